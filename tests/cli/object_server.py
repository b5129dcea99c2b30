# SPDX-License-Identifier: Apache-2.0
"""A server of a folder for tests: as a web server that lists folders as links, as S3 with signatures, as Google's store with tokens or
signatures, as Azure's, as a hub of Hugging Face. It counts
what is asked of it, and fails on request."""
import base64
import collections
import email.utils
import hashlib
import hmac
import html
import http.server
import json
import os
import pathlib
import re
import threading
import time
import traceback
import urllib.parse

KEY, SECRET, SESSION, REGION = "AKIDEXAMPLE", "secret/with+signs", "session/token==", "eu-test-1"
TOKEN = "hf_token"
AZURE_ACCOUNT, AZURE_KEY, AZURE_TOKEN = "account1", base64.b64encode(bytes(range(64))).decode(), "sv=2021-08-06&sig=a%2Bb%3D"
GOOGLE_TOKEN, GOOGLE_KEY = "ya29.token", "GOOG1EXAMPLE"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def signature(method, path, query, headers, authorization, key=KEY, region=REGION, session=SESSION):
    """What AWS's fourth signature is of a request, by its definition."""
    found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=(\w+)",
                         authorization)
    assert found, authorization
    found_key, day, found_region, names, given = found.groups()
    assert (found_key, found_region) == (key, region), authorization
    pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    encode = lambda text: urllib.parse.quote(text, safe="-_.~")
    canonical = "\n".join([method, urllib.parse.quote(urllib.parse.unquote(path), safe="/-_.~"),
                           "&".join(f"{encode(name)}={encode(value)}" for name, value in pairs),
                           "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in names.split(";")), names,
                           headers["x-amz-content-sha256"]])
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], f"{day}/{region}/s3/aws4_request",
                      hashlib.sha256(canonical.encode()).hexdigest()])
    secret = ("AWS4" + SECRET).encode()
    for part in (day, region, "s3", "aws4_request"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    assert "host" in names.split(";") and ("x-amz-security-token" in names.split(";")) == bool(session), names
    assert headers.get("x-amz-security-token") == session, headers
    return given, hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def azure_signature(method, path, query, headers):
    """What Azure's shared key makes of a request, by its definition."""
    headers = {name.lower(): value for name, value in headers.items()}
    names = ["content-encoding", "content-language", "content-length", "content-md5", "content-type", "date", "if-modified-since",
             "if-match", "if-none-match", "if-unmodified-since", "range"]
    own = sorted(name for name in headers if name.startswith("x-ms-"))
    asked = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    text = "\n".join([method, *("" if name == "date" and "x-ms-date" in own else headers.get(name, "") for name in names),
                      *(f"{name}:{headers[name]}" for name in own), f"/{AZURE_ACCOUNT}{path}",
                      *(f"{name.lower()}:{value}" for name, value in asked)])
    assert "x-ms-date" in own and "x-ms-version" in own, own
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    return f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"


etags = {}


def etag_of(place):
    """Of the bytes, which are read once for each version of a file."""
    facts = place.stat()
    key = (str(place), facts.st_ino, facts.st_mtime_ns, facts.st_size)
    if key not in etags:
        with place.open("rb") as file:
            etags[key] = f'"{hashlib.file_digest(file, "md5").hexdigest()}"'
    return etags[key]


def all_below(root):
    """Every folder and file, those behind links too, in the order of their names."""
    found = []
    for folder, folders, files in os.walk(root, followlinks=True):
        found += [pathlib.Path(folder) / name for name in folders + files]
    return sorted(found)


class Server(http.server.ThreadingHTTPServer):
    """kind: "pages", "s3" or "hub"; page: entries of a list. failures: (status, headers, body) or a word for each of the next requests.

    words        "cut": ends in the middle of the body; "whole": heeds no range; "other range"; "more": more bytes than it says it gives;
                 "no size": of the whole is not said; "silence": nothing is said; "stream": the whole file, and not how long that is;
                 "hang": nothing is said until the server ends
    always       the same for every request when failures are used up
    special      {path: (status, headers, body)} instead of what is there
    answers      called with the path and the query of each request: the status that it is answered with, or None
    shortens     called with the body of each good answer: what is sent of it before the connection ends, as if that were all
    before       called with the number of each request, from 1, before it is answered
    heeds_match  whether another version than that of If-Match is refused
    files_at     the URL that a hub sends on to for files; its own
    commits      {revision: commit} of a hub, and of each commit the folder that it is, in roots
    bare_etags   lists, and Azure's answers, have no quotes around versions
    """
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 100

    def __init__(self, root, kind="pages", page=1000, signed=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.kind, self.page, self.signed = pathlib.Path(root), kind, page, signed
        self.failures, self.counts, self.bytes_sent = collections.deque(), collections.Counter(), 0
        self.answers = self.shortens = None
        self.always, self.special, self.before, self.heeds_match, self.files_at = None, {}, None, True, ""
        self.commits, self.roots, self.bare_etags = {"main": COMMIT, "v1": COMMIT}, {COMMIT: self.root}, False
        self.delay, self.now, self.most = 0, 0, 0  # seconds before each answer; requests at a time: now, and the most there were
        self.lock, self.ending = threading.Lock(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked, self.problems = [], []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.ending.set()
        self.shutdown()
        self.server_close()

    def next_failure(self):
        with self.lock:
            return self.failures.popleft() if self.failures else self.always

    def handle_error(self, request, client_address):
        """A client may hang up; all else is a request that should not have been made."""
        problem = traceback.format_exc()
        if "ConnectionResetError" not in problem and "BrokenPipeError" not in problem:
            self.problems.append(problem)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, *words):
        pass

    def do_GET(self):
        with self.server.lock:
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        try:
            time.sleep(self.server.delay)
            self.serve()
        finally:
            with self.server.lock:
                self.server.now -= 1

    def serve(self):
        path, _, query = self.path.partition("?")
        decoded = urllib.parse.unquote(path)
        with self.server.lock:
            self.server.counts["requests"] += 1
            number = self.server.counts["requests"]
            self.server.asked.append((self.command, self.path, dict(self.headers)))
            if self.server.before:
                self.server.before(number)
        self.failure = failure = self.server.next_failure()
        if isinstance(failure, tuple):
            return self.answer(failure[0], failure[2] if len(failure) > 2 else b"", failure[1])
        if failure == "hang":
            self.server.ending.wait(60)
        if failure in ("silence", "hang"):
            self.close_connection = True
            return None
        refused = self.server.answers and self.server.answers(decoded, query)
        if refused:
            return self.answer(refused, b"<Error><Code>Refused</Code></Error>")
        if decoded in self.server.special:
            status, headers, body = self.server.special[decoded]
            return self.answer(status, body, headers)
        return getattr(self, f"get_{self.server.kind}")(decoded, query)

    def answer(self, status, body=b"", headers=(), says_size=True):
        cut = self.failure == "cut" and body
        if self.server.shortens and status == 200:
            body, says_size, self.close_connection = self.server.shortens(body), False, True
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if says_size and not any(name.lower() == "content-length" for name in dict(headers)):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with self.server.lock:
            self.server.bytes_sent += len(body)
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.wfile.flush()
        if cut:
            self.close_connection = True

    def file(self, path, root=None):
        place = (root or self.server.root) / path
        if not place.is_file():
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        with place.open("rb") as file:
            etag, size = etag_of(place), os.fstat(file.fileno()).st_size
            if self.server.heeds_match and self.headers.get("If-Match", etag) != etag:
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            shown = etag.strip('"') if self.server.bare_etags and self.server.kind == "az" else etag
            return self.part(file, size, {"ETag": shown, "Last-Modified": email.utils.formatdate(place.stat().st_mtime)})

    def part(self, file, size, headers):
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("x-ms-range") or self.headers.get("Range", ""))
        if self.failure == "stream":
            self.close_connection = True
            return self.answer(200, file.read(), {**headers, "Connection": "close"}, says_size=False)
        if not asked or self.failure == "whole":
            return self.answer(200, file.read(), headers)
        begin, end = int(asked[1]), min(int(asked[2]) + 1, size)
        if begin >= size:
            return self.answer(416, b"", {**headers, "Content-Range": f"bytes */{size}"})
        with self.server.lock:
            self.server.counts["ranges"] += 1
        if self.failure == "other range":
            begin, end = begin + 1, end + 1
        file.seek(begin)
        body = file.read(end - begin)
        total = "*" if self.failure == "no size" else size
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{total}"
        if self.failure == "more":
            body += b"more"
        return self.answer(206, body, headers)

    # ---- a web server ----

    def get_pages(self, path, query):
        place = self.server.root / path.strip("/")
        if not place.is_dir():
            return self.file(path.strip("/"))
        if not path.endswith("/"):
            return self.answer(301, b"", {"Location": urllib.parse.quote(path) + "/"})
        link = lambda name: html.escape(urllib.parse.quote(name + "/" * (place / name).is_dir()))
        links = "".join(f'<li><a href="{link(name)}">{html.escape(name)}</a></li>\n' for name in sorted(os.listdir(place)))
        page = f'<html><a href="../">..</a><a href="?C=N;O=D">Name</a><A HREF=\'http://elsewhere/x\'>x</A><ul>{links}</ul></html>'
        with self.server.lock:
            self.server.counts["lists"] += 1
        return self.answer(200, page.encode(), {"Content-Type": "text/html"})

    # ---- S3 ----

    def get_s3(self, path, query):
        authorization = self.headers.get("Authorization")
        if self.server.signed:
            if not authorization:
                return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            given, right = signature(self.command, self.path.partition("?")[0], query, self.headers, authorization)
            if given != right:
                return self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        return self.bucket(path, query)

    def get_gs(self, path, query):
        """Google's store by S3's protocol: a token, or a key's signature of no region."""
        authorization = self.headers.get("Authorization", "")
        if authorization.startswith("AWS4"):
            given, right = signature(self.command, self.path.partition("?")[0], query, self.headers, authorization, key=GOOGLE_KEY,
                                     region="auto", session=None)
            if given != right:
                return self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        elif authorization != f"Bearer {GOOGLE_TOKEN}":
            return self.answer(401 if authorization else 403, b"<Error><Code>AuthenticationRequired</Code></Error>")
        return self.bucket(path, query)

    def bucket(self, path, query):
        bucket, _, key = path.strip("/").partition("/")
        if bucket != "bucket":
            return self.answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if not query:
            return self.file(key)
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        assert asked["list-type"] == "2" and asked["delimiter"] == "/" and asked["encoding-type"] == "url", asked
        with self.server.lock:
            self.server.counts["lists"] += 1
        return self.answer(200, self.s3_list(asked["prefix"], int(asked.get("continuation-token", "t0")[1:])).encode())

    def listed(self, prefix):
        """[(key, whether it is a folder)] in order. An empty folder is none."""
        above, _, first = prefix.rpartition("/")
        folder = self.server.root / above
        names = [name for name in (os.listdir(folder) if folder.is_dir() else ()) if name.startswith(first)]
        found = []
        for name in names:
            key = f"{above}/{name}" if above else name
            if (folder / name).is_file():
                found.append((key, False))
            elif any(files for _, _, files in os.walk(folder / name, followlinks=True)):
                found.append((key + "/", True))
        return sorted(found)

    def s3_list(self, prefix, begin):
        found = self.listed(prefix)
        text, last = "", min(begin + self.server.page, len(found))
        encode = lambda key: urllib.parse.quote_plus(key, safe="/")
        for key, is_folder in found[begin:last]:
            if is_folder:
                text += f"<CommonPrefixes><Prefix>{encode(key)}</Prefix></CommonPrefixes>"
            else:
                place = self.server.root / key
                etag = etag_of(place).strip('"') if self.server.bare_etags else html.escape(etag_of(place))
                text += (f"<Contents><Key>{encode(key)}</Key><LastModified>x</LastModified><ETag>{etag}"
                         f"</ETag><Size>{place.stat().st_size}</Size></Contents>")
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>t{last}</NextContinuationToken>" if last < len(found) else \
            "<IsTruncated>false</IsTruncated>"
        return ('<?xml version="1.0"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
                f"<Prefix>{encode(prefix)}</Prefix><EncodingType>url</EncodingType>{more}{text}</ListBucketResult>")

    # ---- Azure ----

    def get_az(self, path, query):
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        authorization, signed = self.headers.get("Authorization"), dict(urllib.parse.parse_qsl(AZURE_TOKEN))
        assert self.headers.get("x-ms-version") == "2021-08-06", dict(self.headers)
        if authorization:
            if authorization != azure_signature(self.command, self.path.partition("?")[0], query, self.headers):
                return self.answer(403, b"\xef\xbb\xbf<?xml version='1.0'?><Error><Code>AuthenticationFailed</Code></Error>")
        elif self.server.signed and any(asked.pop(name, None) != value for name, value in signed.items()):
            code, said = (403, b"AuthenticationFailed") if "sig" in asked else (404, b"ResourceNotFound")
            return self.answer(code, b"\xef\xbb\xbf<?xml version='1.0'?><Error><Code>%s</Code></Error>" % said)
        container, _, key = path.strip("/").partition("/")
        if container != "bucket":
            return self.answer(404, b"<Error><Code>ContainerNotFound</Code></Error>")
        if key:
            return self.file(key)
        assert asked["comp"] == "list" and asked["restype"] == "container" and asked.get("delimiter", "/") == "/", asked
        with self.server.lock:
            self.server.counts["lists"] += 1
        return self.answer(200, self.azure_list(asked.get("prefix", ""), int(asked.get("marker", "2!0")[2:])),
                           {"Content-Type": "application/xml"})

    def azure_list(self, prefix, begin):
        """A directory of a hierarchical store is listed as a blob as well, and its prefix says so too."""
        found = self.listed(prefix)
        text, last = "", min(begin + self.server.page, len(found))
        for key, is_folder in found[begin:last]:
            name = "".join(f"&#{ord(c)};" if c in "&<>" else f"&#x{ord(c):X};" if ord(c) > 127 else c for c in key)
            size, etag, kind = 0, "0x0", "directory"
            if not is_folder:
                place = self.server.root / key
                size, etag, kind = place.stat().st_size, etag_of(place)[1:-1], "file"
            text += (f"<Blob><Name>{name.rstrip('/')}</Name><Properties><Content-Length>{size}</Content-Length><Etag>{etag}</Etag>"
                     f"<BlobType>BlockBlob</BlobType><ResourceType>{kind}</ResourceType></Properties></Blob>")
            text += (f"<BlobPrefix><Name>{name}</Name><Properties><Content-Length>0</Content-Length><Etag>0x0</Etag>"
                     "<ResourceType>directory</ResourceType></Properties></BlobPrefix>") * is_folder
        more = f"<NextMarker>2!{last}</NextMarker>" if last < len(found) else "<NextMarker />"
        return (f'\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="http://x/" ContainerName="bucket">'
                f"<Prefix>{html.escape(prefix)}</Prefix><Delimiter>/</Delimiter><Blobs>{text}</Blobs>{more}</EnumerationResults>").encode()

    # ---- a hub ----

    def get_hub(self, path, query):
        if self.server.signed and self.headers.get("Authorization") != f"Bearer {TOKEN}" and not path.startswith("/cdn/"):
            return self.answer(401)
        raw, asked = self.path.partition("?")[0], dict(urllib.parse.parse_qsl(query))
        found = re.fullmatch(r"/api/models/org/model/(tree|revision)/([^/]+)|/org/model/resolve/([^/]+)/(.*)", raw)
        if path.startswith("/cdn/"):
            return self.file(path.removeprefix("/cdn/"), self.server.roots.get(asked.get("commit")))
        revision = found and urllib.parse.unquote(found[2] or found[3])
        commit = self.server.commits.get(revision, revision)
        if commit not in self.server.roots:
            return self.answer(404, b'{"error":"no such revision"}')
        if found[1] == "revision":
            said = {"id": "org/model", "siblings": [{"rfilename": "a", "sha": "no"}], "sha": commit, "private": False}
            return self.answer(200, json.dumps(said).encode())
        if found[1] == "tree":
            return self.hub_tree(commit, asked)
        return self.answer(302, b"", {"Location": f"{self.server.files_at}/cdn/{found[4]}" + f"?commit={commit}" * (commit != COMMIT)})

    def hub_tree(self, commit, asked):
        root = self.server.roots[commit]
        places = all_below(root)
        begin = int(asked.get("cursor", 0))
        last = min(begin + self.server.page, len(places))
        entries = [{"type": "directory" if place.is_dir() else "file", "oid": "1234", "size": 0 if place.is_dir() else place.stat().st_size,
                    "path": str(place.relative_to(root)), "lfs": {"size": 3}} for place in places[begin:last]]
        headers = {"Link": f'<{self.server.url}/api/models/org/model/tree/{commit}?recursive=true&cursor={last}>; rel="next"'} \
            if last < len(places) else {}
        with self.server.lock:
            self.server.counts["lists"] += 1
        return self.answer(200, json.dumps(entries).encode(), headers)


def wait_until(call, seconds=10):
    end = time.monotonic() + seconds
    while not call() and time.monotonic() < end:
        time.sleep(0.02)
