#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints behind URLs: what the verbs say of fixtures on a web server, on S3 and on a hub is what they say of the folder; only what is
wanted is fetched; servers that are in trouble, that do not keep to the protocol and that are hostile end in an error that says so, and with
nothing at the target. Prints TAP.

usage: url_test.py --bin PATH --fixtures DIR [--share N] [--seed N] [--only TEXT]
"""
import argparse
import concurrent.futures
import contextlib
import filecmp
import html
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import draw  # noqa: E402
import object_server  # noqa: E402
import small_models  # noqa: E402

KINDS = ("pages", "s3", "hub")
HUB_TREE = f"/api/models/org/model/tree/{object_server.COMMIT}"
FAMILIES = {"torch-dcp": 6, "megatron": 6, "paddle": 5, "safetensors": 6, "atorch-fsdp": 5, "zarr": 5, "torch-file": 5, "verl": 1,
            "accelerate": 1}
HOSTILE = ["../secret.safetensors", "/etc/secret.safetensors", "..", "a/../../secret.safetensors", "a\\secret.safetensors",
           "./secret.safetensors", "a//secret.safetensors", "nul\0secret.safetensors"]


class Sites:
    """A folder on one server of each kind, and who asks them."""

    def __init__(self, shell, root, kinds=KINDS, **options):
        self.shell = shell
        self.servers = {kind: object_server.Server(root, kind, **options) for kind in kinds}
        self.environment = {"AWS_ACCESS_KEY_ID": object_server.KEY, "AWS_SECRET_ACCESS_KEY": object_server.SECRET, "HOME": str(shell.work),
                            "AWS_SESSION_TOKEN": object_server.SESSION, "AWS_REGION": object_server.REGION, "HF_TOKEN": object_server.TOKEN,
                            "NO_PROXY": "127.0.0.1,localhost", "AWS_ENDPOINT_URL_S3": ""}
        if "s3" in kinds:
            self.environment["AWS_ENDPOINT_URL"] = self.servers["s3"].url
        if "gs" in kinds:
            self.environment |= {"STORAGE_EMULATOR_HOST": self.servers["gs"].url, "GOOGLE_OAUTH_ACCESS_TOKEN": object_server.GOOGLE_TOKEN}
        if "az" in kinds:
            self.environment |= {"AZURE_STORAGE_SERVICE_ENDPOINT": self.servers["az"].url,
                                 "AZURE_STORAGE_ACCOUNT": object_server.AZURE_ACCOUNT,
                                 "AZURE_STORAGE_KEY": object_server.AZURE_KEY, "AZURE_STORAGE_SAS_TOKEN": ""}
        if "hub" in kinds:
            self.environment["HF_ENDPOINT"] = self.servers["hub"].url + "/"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for server in self.servers.values():
            server.__exit__()
        problems = [problem for server in self.servers.values() for problem in server.problems]
        assert not problems or error[0], problems[0]

    def url(self, kind, path):
        if kind == "pages":
            return f"{self.servers[kind].url}/{urllib.parse.quote(path)}"
        return f"hf://org/model/{path}" if kind == "hub" else f"{kind}://bucket/{path}"

    def ask(self, *words, **environment):
        """Whatever becomes of it."""
        return subprocess.run([self.shell.binary, *map(str, words)], cwd=self.shell.work, capture_output=True, text=True, errors="replace",
                              timeout=120, env={**os.environ, **self.environment, **environment})

    def good(self, *words, exit_status=0):
        done = self.ask(*words)
        assert done.returncode == exit_status, f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr[:800]}"
        return done.stdout

    def refused(self, words, *said, exit_status=3, **environment):
        """Ends so, says all of it, and leaves nothing at `out`."""
        done = self.ask(*words, **environment)
        told = f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stdout[:200]} {done.stderr[:800]}"
        assert done.returncode == exit_status, told
        for text in said:
            assert text in done.stderr, f"lacks {text!r}: {told}"
        left = [name for name in os.listdir(self.shell.work) if name.startswith(("out", ".out"))]
        assert not left, f"{left} is left: {told}"
        return done.stderr


def cases(fixtures, is_bad):
    """{family: [(folder, name of the checkpoint in it)]}"""
    found = {}
    for manifest in sorted(fixtures.glob("*/*/manifest.json")):
        if manifest.parent.name.startswith("bad-") == is_bad:
            found.setdefault(manifest.parent.parent.name, []).append((manifest.parent, json.loads(manifest.read_text())["path"]))
    return found


def some(fixtures, is_bad, counts, salt):
    chance = random.Random(SEED + salt)
    return [case for family, all_cases in sorted(cases(fixtures, is_bad).items()) if family in counts
            for case in chance.sample(all_cases, min(math.ceil(counts[family] * SHARE), len(all_cases)))]


def at_once(function, items):
    """A few at a time; the first failure is raised."""
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        return list(threads.map(function, items))


# ---- the same by URL as by path ----

def plain(text, url):
    """Without the URL; the revision of a hub is always said."""
    return text.replace(url, "PATH").replace(url.replace("hf://org/model/", "hf://org/model@main/"), "PATH")


def says_the_same(shell, folder, name):
    with Sites(shell, folder) as sites:
        for words in (("hash", "--json"), ("ls", "--json"), ("inspect",)):
            wanted = sites.ask(*words, folder / name)
            for kind in KINDS:
                url = sites.url(kind, name)
                found = sites.ask(*words, url)
                assert found.returncode == wanted.returncode, (words, folder.name, kind, wanted.returncode, found)
                told, right = plain(found.stdout, url), wanted.stdout.replace(str(folder / name), "PATH")
                assert told == right, f"{words} {folder.name} {kind}:\n{told[:1500]}\nof the folder:\n{right[:1500]}"


def good_fixtures(shell, fixtures):
    drawn = some(fixtures, False, FAMILIES, 0)
    at_once(lambda case: says_the_same(shell, *case), drawn)
    return f"{len(drawn)} fixtures, seed {SEED}"


def bad_fixture(shell, folder, name):
    with Sites(shell, folder) as sites:
        wanted = sites.ask("hash", folder / name)
        for kind in KINDS:
            found = sites.ask("hash", sites.url(kind, name))
            assert found.returncode == wanted.returncode, (folder.name, kind, wanted.returncode, found)


def bad_fixtures(shell, fixtures):
    drawn = some(fixtures, True, dict.fromkeys(FAMILIES, 3), 1)
    at_once(lambda case: bad_fixture(shell, *case), drawn)
    return f"{len(drawn)} fixtures, seed {SEED}"


def files_below(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) if root.is_dir() else None


def must_be_same_files(a, b):
    names = files_below(a)
    assert names == files_below(b), (names, files_below(b))
    different = [name for name in names if not filecmp.cmp(a / name, b / name, False)] if names else filecmp.cmp(a, b, False) is False
    assert not different, f"{a.name} and {b.name}: {different}"


def convert_all(shell, fixtures):
    drawn = [("torch-dcp", "dcp-async"), ("safetensors", None), ("megatron", None), ("zarr", None)]
    chance, found = random.Random(SEED + 2), cases(fixtures, False)

    def convert(case):
        family, wanted = case
        of_family = [c for c in found[family] if wanted in (None, c[0].name)]
        folder, name = chance.choice(of_family)
        with Sites(shell, folder) as sites:
            there = shell.work / family / "path/out"
            for kind in ("path", *KINDS):
                (shell.work / family / kind).mkdir(parents=True)
            if sites.ask("convert", folder / name, there, "--to", "torch-dcp", "--quiet").returncode:
                return f"{folder.name}: not convertible"
            for kind in KINDS:
                here = shell.work / family / kind / "out"
                sites.good("convert", sites.url(kind, name), here, "--to", "torch-dcp", "--verify", "--quiet")
                sites.good("diff", there, here)
                sites.good("diff", sites.url(kind, name), folder / name)
                must_be_same_files(there, here)
        return folder.name
    return ", ".join(at_once(convert, drawn))


def verbs(shell, fixtures):
    folder = shell.work / "site"
    (folder / "root").mkdir(parents=True)
    shutil.copytree(fixtures / "torch-dcp/dcp-async/ckpt", folder / "dcp")
    path = folder / "dcp"
    for number in (5, 20):
        shutil.copytree(path, folder / f"root/step_{number}")
    with Sites(shell, folder) as sites:
        for kind in KINDS:
            url = sites.url(kind, "dcp")
            for words in (["verify"], ["verify", "--deep"], ["stats"], ["ls", "--chunks"], ["ls", "--items"], ["plan", "out", "--to", "hf"],
                          ["plan", "out", "--like", "TOO"], ["cat", "w", "--as", "raw"], ["cat", "w", "--slice", "2:4,1"],
                          ["diff", path], ["verify", "--against", "TOO"], ["draw"]):
                words = [words[0], "PATH", *words[1:]]
                by_url = sites.ask(*[url if word in ("PATH", "TOO") else word for word in words])
                by_path = sites.ask(*[path if word in ("PATH", "TOO") else word for word in words])
                assert (by_url.returncode, plain(by_url.stdout, url)) == \
                    (by_path.returncode, by_path.stdout.replace(str(path), "PATH")), (kind, words, by_url.stdout[:800], by_url.stderr[:500],
                                                                                     by_path.stdout[:800], by_path.stderr[:300])
            sites.good("convert", path, f"{kind}-like", "--like", url, "--quiet")
            sites.good("diff", f"{kind}-like", url + "/")
            for by in ("path", "url"):
                (shell.work / kind / by).mkdir(parents=True)
            done = sites.ask("salvage", path, f"{kind}/path/saved", "--quiet")
            sites.good("salvage", url, f"{kind}/url/saved", "--quiet", exit_status=done.returncode)
            must_be_same_files(shell.work / f"{kind}/path/saved", shell.work / f"{kind}/url/saved")
            newest = sites.good("verify", "--latest-good", sites.url(kind, "root"))
            assert newest.strip() == sites.good("verify", "--latest-good", folder / "root").strip().replace(
                str(folder / "root"), sites.url(kind, "root")), newest
            assert sites.good("hash", newest.strip()) == sites.good("hash", path)


def odd_names(shell, fixtures):
    del fixtures
    names = ["a b+c%20d&e", "größe \u65e5\u672c", "q'uo\"te", "#hash?mark", "a;b=c,d@e:f", "%2e%2e", "[1] {2}<3>"]
    for name in names:
        (shell.work / "site" / name).mkdir(parents=True)
        small_models.write(shell.work / "site" / name / f"model {name}.safetensors", {"w": [4, 3]})
        (shell.work / "site" / name / "config.json").write_text("{}")
    with Sites(shell, shell.work / "site") as sites:
        for name in names:
            path = shell.work / "site" / name
            wanted = sites.good("hash", path / f"model {name}.safetensors")
            for kind in KINDS:
                for slash in ("", "/"):
                    assert sites.good("ls", sites.url(kind, name) + slash, "--format", "hf") == sites.good("ls", path, "--format", "hf")
                assert sites.good("hash", sites.url(kind, f"{name}/model {name}.safetensors")) == wanted, (kind, name)


# ---- only what is wanted ----

def little_is_fetched(shell, fixtures):
    (shell.work / "site").mkdir()
    size = 64 << 20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size // 1024, 1024], "data_offsets": [0, size]}}).encode()
    with open(shell.work / "site/big.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    told = []
    with Sites(shell, shell.work / "site") as sites:
        for kind in KINDS:
            sites.good("cat", sites.url(kind, "big.safetensors"), "w", "--slice", "30000:30004,5:9")
            server = sites.servers[kind]
            assert server.bytes_sent < 1 << 20, f"{kind}: {server.bytes_sent} bytes of a slice of 16"
            assert server.counts["requests"] <= 12, [asked[1] for asked in server.asked]
            told.append(f"{kind}: a slice {server.bytes_sent} bytes, {server.counts['requests']} requests")
        server = sites.servers["s3"]
        server.delay = 0.1  # who waits for answers asks for more of them, whatever the number of CPUs
        for words, most in ((["hash"], 16), (["convert", "--to", "torch", "out.pt"], 16), (["hash", "--threads", "3"], 3)):
            server.most = 0
            sites.good(words[0], sites.url("s3", "big.safetensors"), *words[1:])
            assert most - 1 <= server.most <= most + 1, (words, server.most)
        server.delay = 0
    with Sites(shell, fixtures / "torch-dcp/dcp-async") as sites:
        for kind, most in zip(KINDS, (8, 4, 4)):
            sites.good("ls", sites.url(kind, "ckpt"))
            server = sites.servers[kind]
            assert server.counts["requests"] <= most, [asked[1] for asked in server.asked]
            told.append(f"{kind}: ls {server.counts['requests']} requests")
    return "; ".join(told)


def pages_of_lists(shell, fixtures):
    folder = shell.work / "site/model"
    folder.mkdir(parents=True)
    small_models.write(folder / "whole.safetensors", {f"w{i}": [50] for i in range(11)})
    shell("convert", folder / "whole.safetensors", folder / "hf", "--to", "hf", "--max-shard-size", "100", "--quiet")
    assert len(os.listdir(folder / "hf")) > 10
    wanted = shell("hash", folder / "hf").decode()
    kinds = ("s3", "gs", "az", "hub")
    with Sites(shell, shell.work / "site", kinds=kinds, page=3) as sites:
        for kind in kinds:
            assert sites.good("hash", sites.url(kind, "model/hf")) == wanted
            assert sites.servers[kind].counts["lists"] >= 4, sites.servers[kind].counts


# ---- trouble ----

def write_bytes(path, sizes, data):
    """Safetensors of a byte tensor of each size."""
    ends = [sum(sizes[:i + 1]) for i in range(len(sizes))]
    header = json.dumps({f"w{i}": {"dtype": "U8", "shape": [sizes[i]], "data_offsets": [end - sizes[i], end]}
                         for i, end in enumerate(ends)})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data(ends[-1]))


def small_site(shell):
    """A file that takes several requests, in a folder."""
    (shell.work / "site/model").mkdir(parents=True)
    write_bytes(shell.work / "site/model/model.safetensors", [100000, 600000, 700000], random.Random(SEED).randbytes)
    (shell.work / "site/model/config.json").write_text("{}")
    return shell.work / "site"


def small_files_whole(shell, fixtures):
    """Of small files hubs give all, without its size, whatever range was asked for; of others that is refused."""
    (shell.work / "site/model").mkdir(parents=True)
    small_models.write(shell.work / "site/model/model.safetensors", {"w": [4, 3]})
    (shell.work / "site/model/config.json").write_text("{}")
    write_bytes(shell.work / "site/large.safetensors", [600000], random.Random(SEED).randbytes)
    with Sites(shell, shell.work / "site") as sites:
        for kind in ("s3", "hub"):
            sites.servers[kind].always = "stream"
            assert sites.good("hash", sites.url(kind, "model")) == sites.good("hash", shell.work / "site/model")
            sites.refused(["convert", sites.url(kind, "large.safetensors"), "out", "--to", "hf"], "whole files")


def tried_again(shell, fixtures):
    site = small_site(shell)
    wanted = shell("hash", site / "model").decode()
    troubles = [(503, {"Retry-After": "0"}), (429, {"Retry-After": "0"}), (500, {}), "cut", "silence", (502, {}), (504, {})]

    def try_kind(kind):
        with Sites(shell, site, kinds=(kind,)) as sites:
            server = sites.servers[kind]
            for trouble in troubles:
                # With each of the first requests once, and with two of them.
                for good in range(4):
                    met = iter([None] * good + [trouble, None, trouble])
                    server.failures.clear()
                    server.failures.extend(met)
                    before = server.counts["requests"]
                    assert sites.good("hash", sites.url(kind, "model/")) == wanted, (kind, trouble, good)
                    assert server.counts["requests"] > before
            server.always = (503, {"Retry-After": "0"}, b"<Error><Code>SlowDown</Code></Error>")
            server.failures.clear()
            server.counts.clear()
            sites.refused(["convert", sites.url(kind, "model/"), f"{kind}-out", "--to", "torch-dcp"], "HTTP 503", "SlowDown")
            assert 3 <= server.counts["requests"] <= 12, server.counts
    at_once(try_kind, KINDS)


def signals_are_heeded(shell, fixtures):
    """While a server says nothing, or asks to be asked later."""
    del fixtures
    site = small_site(shell)
    told = []

    def asks_for_values(server):
        """Metadata lies at the beginning."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", server.asked[-1][2].get("Range", ""))
        return asked and int(asked[1]) >= 1 << 18

    with Sites(shell, site) as sites:
        for kind in KINDS:
            server = sites.servers[kind]
            source = sites.url(kind, "model/model.safetensors")
            converting = ["convert", source, "out", "--to", "hf", "--memory", "2MiB", "-j", "2"]
            for fault, words in (("hang", converting), ((503, {"Retry-After": "29"}), converting), ("hang", ["salvage", source, "out"])):
                server.before = lambda number, server=server, fault=fault: asks_for_values(server) and setattr(server, "always", fault)
                process = subprocess.Popen([shell.binary, *words], cwd=shell.work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                           env={**os.environ, **sites.environment})
                object_server.wait_until(lambda: server.always)
                time.sleep(0.5)
                started = time.monotonic()
                process.send_signal(signal.SIGINT)
                err = process.communicate(timeout=60)[1].decode()
                took = time.monotonic() - started
                server.before = server.always = None
                seen = (kind, fault, words[0], process.returncode, took, err)
                assert process.returncode == 130 and "'out' is not written" in err and took < 5, seen
                assert sorted(os.listdir(shell.work)) == ["site"], (kind, fault, os.listdir(shell.work))
                told.append(f"{took:.1f} s")
    return ", ".join(told)


def odd_servers(shell, fixtures):
    """What is said of servers that do not keep to the protocol, and of what may not be read."""
    site = small_site(shell)
    with Sites(shell, site) as sites:
        for word, said in (("whole", "the server gives whole files and no ranges of them"),
                           ("other range", "the server gives another range than was asked for"),
                           ("more", "the server gives more than was asked for")):
            for kind in KINDS:
                sites.servers[kind].always = word
                words = ["convert", sites.url(kind, "model/model.safetensors"), "out", "--to", "torch-dcp"]
                sites.refused(words, said, "model.safetensors")
                sites.servers[kind].always = None
        sites.servers["pages"].always = "no size"
        sites.refused(["hash", sites.url("pages", "model/model.safetensors")], "does not say how many bytes", "model.safetensors")
        sites.servers["pages"].always = None
        sites.refused(["convert", sites.url("pages", "model/other.safetensors"), "out", "--to", "hf"], "other.safetensors")
        for kind in KINDS:
            for code, word in ((403, "AccessDenied"), (401, "InvalidToken"), (404, "NoSuchKey")):
                sites.servers[kind].always = (code, {}, f"<Error><Code>{word}</Code></Error>".encode())
                words = ["convert", sites.url(kind, "model/model.safetensors"), "out", "--to", "torch-dcp"]
                done = sites.ask(*words)
                assert done.returncode == 3 and "model" in done.stderr, (kind, code, done)
                assert code == 404 or (f"HTTP {code}" in done.stderr and word in done.stderr), (kind, code, done.stderr)
                sites.servers[kind].always = None
                # After the list, when files are read.
                sites.servers[kind].special[{"pages": "/model/model.safetensors", "s3": "/bucket/model/model.safetensors",
                                             "hub": "/cdn/model/model.safetensors"}[kind]] = (code, {}, b"")
                sites.refused(words, "model.safetensors", *([f"HTTP {code}"] if kind != "pages" or code != 404 else []))
                sites.servers[kind].special.clear()
        assert not os.path.exists(shell.work / "out")


def not_there(shell, fixtures):
    site = small_site(shell)
    with Sites(shell, site) as sites:
        for kind in KINDS:
            for name in ("nothing", "nothing/", "nothing/nothing", "model/nothing.safetensors", "model/nothing/nothing/"):
                sites.refused(["convert", sites.url(kind, name), "out", "--to", "hf"], "nothing")
        for url in ("s3://other/a", "s3://other/", "s3://other/a/b/", "s3://other/a/b.safetensors"):
            sites.refused(["hash", url], "HTTP 404", "NoSuchBucket")
        for url in ("hf://org/other", "hf://org/other/a/b", "hf://org/model@other", "hf://org/model@other/a"):
            sites.refused(["hash", url], "HTTP 404", "other")


def absent_roots(shell, fixtures):
    """A bucket, a container or a repository that is not there is asked for once, and so is a folder that a server does not know."""
    del fixtures
    site = small_site(shell)
    kinds = ("s3", "gs", "az", "hub")
    with Sites(shell, site, kinds=kinds) as sites:
        for kind, urls in (("s3", ["s3://other/", "s3://other/a/b", "s3://other/a/"]), ("gs", ["gs://other/", "gs://other/a.safetensors"]),
                           ("az", ["az://other/", "az://other/a/b"]),
                           ("hub", ["hf://org/other", "hf://org/model@other/a", f"hf://org/model@{object_server.COMMIT[::-1]}",
                                    f"hf://org/model@{object_server.COMMIT[::-1]}/a/b"])):
            server = sites.servers[kind]
            for url in urls:
                server.counts.clear()
                sites.refused(["hash", url], "HTTP 404", "other" if "other" in url else "hf://org/model@")
                assert server.counts["requests"] == 1, (url, server.counts, [asked[1] for asked in server.asked][-5:])
        # A hierarchical account knows folders, and says of others that they are not there.
        server = sites.servers["az"]
        server.answers = lambda path, query: 404 if "prefix=model%2F" in query and "prefix=model%2F&" not in query else None
        server.asked.clear()
        assert sites.good("hash", "az://bucket/model/") == shell("hash", site / "model").decode()
        lists = [path for _, path, _ in server.asked if "comp=list" in path]
        assert len(set(lists)) == len(lists), lists


def redirects_and_regions(shell, fixtures):
    site = small_site(shell)
    with Sites(shell, site) as sites:
        words = {kind: ["convert", sites.url(kind, "model/model.safetensors"), "out", "--to", "torch-dcp"] for kind in KINDS}
        for kind in KINDS:
            server = sites.servers[kind]
            server.always = (302, {"Location": f"{server.url}/again"})
            sites.refused(words[kind], "302" if kind == "s3" else "redirects")
            assert server.counts["requests"] < 30
            server.always = (302, {"Location": "file:///etc/passwd"})
            sites.refused(words[kind])
            server.always = None
        sites.servers["s3"].always = (301, {"x-amz-bucket-region": "eu-central-1"}, b"<Error><Code>PermanentRedirect</Code></Error>")
        sites.refused(words["s3"], "HTTP 301", "PermanentRedirect", "AWS_REGION", "eu-central-1")
        sites.servers["s3"].always = (400, {"x-amz-bucket-region": "eu-central-1"},
                                         b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>")
        sites.refused(words["s3"], "HTTP 400", "AuthorizationHeaderMalformed", "eu-central-1")


def who_asks(shell, fixtures):
    """Without, and with wrong keys; and whom they are told."""
    site = small_site(shell)
    elsewhere = object_server.Server(site, "hub")
    elsewhere.url = elsewhere.url.replace("127.0.0.1", "localhost")
    with Sites(shell, site) as sites, elsewhere:
        s3, hub, pages = (sites.url(kind, "model/model.safetensors") for kind in ("s3", "hub", "pages"))
        sites.refused(["hash", s3], "HTTP 403", "AccessDenied", "AWS_ACCESS_KEY_ID", AWS_ACCESS_KEY_ID="")
        sites.refused(["hash", s3], "HTTP 403", "SignatureDoesNotMatch", AWS_SECRET_ACCESS_KEY="other")
        sites.refused(["hash", hub], "HTTP 401", "HF_TOKEN", HF_TOKEN="")
        sites.refused(["hash", hub], "HTTP 401", HF_TOKEN="other")
        wanted = sites.good("hash", site / "model/model.safetensors")
        sites.servers["hub"].files_at = elsewhere.url
        assert sites.good("hash", hub) == wanted
        assert elsewhere.counts["ranges"] and all("Authorization" not in headers for _, _, headers in elsewhere.asked), elsewhere.asked
        sites.servers["pages"].asked.clear()
        secret = pages.replace("http://", "http://user:pass-word@")
        assert sites.good("hash", secret) == wanted
        assert any(headers.get("Authorization", "").startswith("Basic ") for _, _, headers in sites.servers["pages"].asked)
        assert sites.good("hash", pages + "?X-Amz-Signature=abc") == wanted
        assert sites.servers["pages"].asked[-1][1].endswith("model.safetensors?X-Amz-Signature=abc")


def signed_files(shell, fixtures):
    """Of a URL that is signed nothing else is there, in whatever words the server says so; below a file nobody looks."""
    del fixtures
    site = small_site(shell)
    shell("convert", site / "model/model.safetensors", site / "model/m.pt", "--to", "torch", "--quiet")
    shell("convert", site / "model/model.safetensors", site / "model/m.npz", "--to", "npz", "--quiet")
    with Sites(shell, site, kinds=("pages",)) as sites:
        server = sites.servers["pages"]
        for name in ("model.safetensors", "m.pt", "m.npz"):
            url, wanted = sites.url("pages", f"model/{name}") + "?sig=ok", sites.good("hash", site / "model" / name)
            for code in (400, 401, 403, 404, 405, 409, 410):
                server.answers = lambda path, query, code=code, name=name: None if (path, query) == (f"/model/{name}", "sig=ok") else code
                server.asked.clear()
                assert sites.good("hash", url) == wanted, (name, code)
                assert not [path for _, path, _ in server.asked if path.startswith(f"/model/{name}/")], server.asked
                sites.good("verify", url)
                sites.good("convert", url, "out.safetensors", "--to", "safetensors", "--quiet", "--overwrite")
                assert sites.good("hash", "out.safetensors") == sites.good("hash", url)
                os.unlink(shell.work / "out.safetensors")
                sites.refused(["convert", url.replace("sig=ok", "sig=no"), "out", "--to", "hf"],
                              "nothing is there" if code in (404, 410) else f"HTTP {code}", name)
            # What is no answer about a name ends the run, and says what it was: digests that cannot be looked for are not missing.
            server.answers = lambda path, query, name=name: None if (path, query) == (f"/model/{name}", "sig=ok") else 451
            sites.refused(["verify", url], "HTTP 451", f"{name}.reshard.json")
            sites.good("hash", url)
        server.answers = None


def segments(shell, fixtures):
    """Where the name of an object is one segment of a path (Google's JSON API, GitLab) its %2F stays what it is."""
    del fixtures
    site = small_site(shell)
    (site / "o").mkdir()
    os.rename(site / "model", site / "o/a b+c")
    wanted = shell("hash", site / "o/a b+c/model.safetensors").decode()
    with Sites(shell, site, kinds=("pages",)) as sites:
        server = sites.servers["pages"]
        for name, asked in (("o/a%20b+c%2Fmodel.safetensors?alt=media", None), ("o/a%20b%2Bc%2fmodel.safetensors", None),
                            ("o/a b+c%2Fmodel.safetensors", "o/a%20b+c%2Fmodel.safetensors")):
            server.asked.clear()
            assert sites.good("hash", f"{server.url}/{name}") == wanted
            own = {path for _, path, _ in server.asked if urllib.parse.unquote(path) == "/" + urllib.parse.unquote(name)}
            assert own == {"/" + (asked or name)}, (name, own)
            # What lies beside it is asked for by names.
            sites.good("verify", f"{server.url}/{name}")
            assert any(path.startswith("/o/a%20b%2Bc/model.safetensors.reshard") for _, path, _ in server.asked), server.asked


def one_object(shell, fixtures):
    """Nothing is looked for in an object of a bucket that was named: a hierarchical account calls that a mistake."""
    del fixtures
    site = small_site(shell)
    path = site / "model/model.safetensors"
    shell("convert", path, site / "model/m.pt", "--to", "torch", "--quiet")
    kinds = ("s3", "gs", "az")
    with Sites(shell, site, kinds=kinds) as sites:
        for kind in kinds:
            server = sites.servers[kind]
            for name in ("model.safetensors", "m.pt"):
                inside = urllib.parse.quote(f"prefix=model/{name}/", safe="=")
                server.answers = lambda path, query, inside=inside: 400 if inside in query else None
                assert sites.good("hash", sites.url(kind, f"model/{name}")) == sites.good("hash", site / "model" / name)
                sites.good("verify", sites.url(kind, f"model/{name}"))
                assert not [asked for _, asked, _ in server.asked if inside in asked], (kind, [asked for _, asked, _ in server.asked])


def handshakes(shell, fixtures):
    """A connection that breaks before it is a secure one is tried again, and so is a name that is not found; a certificate that is not
    good is not."""
    del fixtures
    key, certificate = shell.work / "key.pem", shell.work / "certificate.pem"
    made = shutil.which("openssl") and subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=127.0.0.1",
         "-days", "9", "-keyout", key, "-out", certificate], capture_output=True).returncode == 0
    with Sites(shell, shell.work) as sites:
        for secures in (False, True) if made else (False,):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            if secures:
                context.load_cert_chain(certificate, key)
            with breaking_server(context if secures else None) as (port, taken):
                sites.refused(["hash", f"https://127.0.0.1:{port}/m.safetensors"], "certificate" if secures else "m.safetensors")
                assert len(taken) == (1 if secures else 5), (secures, taken)
        begun = time.monotonic()
        sites.refused(["hash", "http://host.invalid/m.safetensors"], "host.invalid", http_proxy="", all_proxy="", ALL_PROXY="")
        assert time.monotonic() - begun < 4, "a name that is not found at first is looked for again"
    return "" if made else "no openssl: nothing of certificates"


@contextlib.contextmanager
def breaking_server(context):
    """(port, list that grows by each connection) of one that hangs up in the middle of the handshake, or makes it with that context."""
    taken, listener = [], socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            taken.append(len(taken))
            try:
                connection.recv(1, socket.MSG_PEEK)
                if context:
                    context.wrap_socket(connection, server_side=True)
            except OSError:
                pass
            connection.close()
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], taken
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def others_are_not_told(shell, fixtures):
    site = small_site(shell)
    elsewhere = object_server.Server(site, "hub")
    with Sites(shell, site) as sites, elsewhere:
        sites.servers["s3"].special["/bucket/model/model.safetensors"] = (
            307, {"Location": f"{elsewhere.url.replace('127.0.0.1', 'localhost')}/cdn/model/model.safetensors"}, b"")
        sites.servers["pages"].special["/model/model.safetensors"] = sites.servers["s3"].special["/bucket/model/model.safetensors"]
        sites.ask("hash", sites.url("s3", "model/model.safetensors"))
        secret = sites.url("pages", "model/model.safetensors").replace("http://", "http://user:pass-word@")
        sites.good("hash", secret)
        assert elsewhere.asked
        told = {name for _, _, headers in elsewhere.asked for name in headers if name.lower() in ("authorization", "x-amz-security-token")}
        assert not told, f"another server is told {told}"
        for words in (["ls", secret.replace("model.safe", "nothing.safe")], ["inspect", secret],
                      ["ls", secret + "?X-Amz-Signature=s3cret"]):
            sites.servers["pages"].always = (403, {}) if "s3cret" in words[1] else None
            done = sites.ask(*words)
            said = done.stderr + done.stdout.replace(secret, "")
            assert "pass-word" not in said and "s3cret" not in said, f"a secret of the URL is printed: {said}"


SECRETS = ("josephine", "s3cret", "TOPSIG")
# U: a file, F: a folder, R: a root of checkpoints, all behind a password and a signature; L: a file of this machine.
SPOKEN = (
    "inspect U|inspect F|ls U --chunks --items|ls F|hash U|cat U w0|cat U nokey|cat F nokey|cat U w0 --slice 9:9:9:9|stats U|verify U|"
    "verify U --deep|verify L --against U|verify U --against L|verify --latest-good R|verify --latest-good U|verify --latest-good F|"
    "diff U L|diff L U|diff U F|plan U --to hf|plan L --like U|plan L U --to hf|plan U --to hf --ranks|convert U out --to hf|"
    "convert U out --to torch-dcp --verify --checksum sha256|convert L out --like F|convert L out --like U --missing U|"
    "convert U out --to hf --dry-run|convert L U|convert L U --to hf --overwrite|convert U F|convert L out --map U|convert L out U --to hf|"
    "convert L out --to hf --config U|convert L out --to hf --part 1/2 --like F|convert L out --to hf --rules U|commit U|salvage U out|"
    "salvage L U|salvage U F|salvage F out --like F|salvage L out --like U|draw U|draw U out.html|draw U out.svg|draw U out.html --to hf|"
    "draw --diff U L out.html|draw L U|draw --diff L L U|map check U --source L|map parse U|map expand L --source U|map eval U --source U|"
    "hash U --format hf|ls U --iteration 4|convert U out --to nothing|formats U|help U").split("|")


FAULTY = ("inspect U", "ls U", "verify L --against U", "verify --latest-good U", "diff L U", "plan L --like U", "convert U out --to hf",
          "convert L U", "convert L out --like L --missing U", "commit U", "salvage U out", "salvage F out --like U", "draw U out.html",
          "map expand L --source U")


def must_hide(text, words):
    found = [secret for secret in SECRETS if secret.encode() in text]
    assert not found, f"{' '.join(words)} says {found}: {text[:1500]}"


def say_nothing(sites, words, terminal=False):
    """Neither the output has a secret nor what is written."""
    work = sites.shell.work
    ours, theirs = os.openpty() if terminal else (None, subprocess.PIPE)
    process = subprocess.Popen([sites.shell.binary, *words], cwd=work, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.STDOUT,
                               env={**os.environ, **sites.environment})
    if terminal:
        os.close(theirs)
    must_hide(small_models.terminal_output(ours) if terminal else process.communicate(timeout=120)[0], words)
    process.wait(timeout=120)
    for path in [*work.glob("out*"), *work.glob(".out*"), *work.glob("reshard*")]:
        for file in [path] if path.is_file() else [below for below in path.rglob("*") if below.is_file()]:
            if ".reshard-partial" not in str(file):  # what a part has to open is kept for commit, and for its user alone
                must_hide(file.read_bytes(), words)
        subprocess.run(["rm", "-rf", path], check=True)


def secrets_stay(shell, fixtures):
    """Names, passwords and signatures of URLs are in no output of any verb, whatever becomes of it, and in nothing that is written."""
    site = small_site(shell)
    for number in (1, 2):
        shutil.copytree(site / "model", site / f"root/step_{number}")
    small_models.write(shell.work / "local.safetensors", {"w0": [4, 3], "w9": [2]})
    with Sites(shell, site, kinds=("pages",)) as sites:
        server = sites.servers["pages"]
        hide = lambda url: url.replace("://", "://josephine:s3cret@") + "?X-Amz-Signature=TOPSIG"
        names = {"U": hide(sites.url("pages", "model/model.safetensors")), "F": hide(sites.url("pages", "model/")),
                 "R": hide(sites.url("pages", "root/")), "L": "local.safetensors"}
        for line in SPOKEN:
            for more in ([], ["--json"], ["--verbose"]):
                say_nothing(sites, [names.get(word, word) for word in line.split()] + more)
        for line in ("inspect U", "cat U nokey", "draw U", "verify --latest-good R", "ls U"):
            say_nothing(sites, [names.get(word, word) for word in line.split()], terminal=True)
        faults = [hide("ftp://host.invalid/a"), hide("http://host.invalid/a%zz"), hide("http:///a"), "whole",
                  *((code, {}, b"<Error><Code>No</Code></Error>") for code in (400, 401, 404, 409))]
        say_nothing(sites, ["ls", hide("http://127.0.0.1:1/a")])
        for fault in faults:
            server.always = None if "://" in fault else fault
            for line in FAULTY:
                for more in ([], ["--json"]):
                    say_nothing(sites, [fault if word == "U" and "://" in fault else names.get(word, word) for word in line.split()] + more)
        server.always = None
        newest = sites.good("verify", "--latest-good", names["R"])
        assert newest.strip() == sites.url("pages", "root/step_2"), newest


def replaced(shell, fixtures):
    """All of what is written is of one version, whenever the file is replaced by one of its size."""
    (shell.work / "site/model").mkdir(parents=True)
    place, new, versions, size = shell.work / "site/model/model.safetensors", shell.work / "new", [], 1000000
    for number in (1, 2):
        write_bytes(place, [size] * 4, lambda count, number=number: bytes([number]) * count)
        versions.append(place.read_bytes())

    def put(number):
        new.write_bytes(versions[number])
        os.replace(new, place)

    told, mixed = [], []
    with Sites(shell, shell.work / "site", kinds=(*KINDS, "az")) as sites:
        for kind, heeds in (("pages", True), ("s3", True), ("pages", False), ("s3", False), ("hub", True), ("hub", False), ("az", True),
                            ("az", False)):
            server = sites.servers[kind]
            server.heeds_match, server.before = heeds, None
            server.bare_etags = kind in ("s3", "az")  # the quotes that a list leaves out belong to a version
            put(0)
            before = server.counts["requests"]
            words = ["convert", sites.url(kind, "model/model.safetensors"), "out", "--to", "safetensors", "--memory", "2MiB", "-j", "1"]
            sites.good(*words)
            (shell.work / "out").unlink()
            requests = server.counts["requests"] - before
            refused = 0
            for at in range(2, requests + 1, max(1, requests // 6)):
                put(0)
                server.counts["requests"] = 0
                server.before = lambda number, at=at: put(1) if number == at else None
                done = sites.ask(*words)
                server.before = None
                if done.returncode:
                    refused += 1
                    assert done.returncode == 3 and "model.safetensors" in done.stderr and "replaced" in done.stderr, (at, done)
                    assert not (shell.work / "out").exists()
                    continue
                values = set((shell.work / "out").read_bytes()[-4 * size:])
                if len(values) != 1:
                    mixed.append(f"{kind}{'' if heeds else ', no If-Match'}, before request {at} of {requests}: {values}")
                (shell.work / "out").unlink()
            told.append(f"{kind} {'' if heeds else 'without If-Match '}{refused} refused, {requests} requests")
    assert not mixed, "bytes of two versions:\n" + "\n".join(mixed)
    return ", ".join(told)


def moving_branch(shell, fixtures):
    """Shards of a repository whose branch moves are all of the commit that it was at the beginning."""
    del fixtures
    roots = {commit: shell.work / commit for commit in (object_server.COMMIT, object_server.COMMIT[::-1])}
    old, new = roots
    for number, root in enumerate(roots.values(), 1):
        root.mkdir()
        write_bytes(shell.work / "whole.safetensors", [300000] * 4, lambda count, number=number: bytes([number]) * count)
        shell("convert", shell.work / "whole.safetensors", root / "model", "--to", "hf", "--max-shard-size", "300kB", "--quiet")
    wanted = {shell("hash", root / "model").decode(): commit for commit, root in roots.items()}
    with Sites(shell, roots[old], kinds=("hub",)) as sites:
        server = sites.servers["hub"]
        server.roots = roots
        told = []
        for at in range(1, 40):
            server.commits["main"] = old
            server.counts["requests"] = 0
            server.before = lambda number, at=at: server.commits.update(main=new) if number == at else None
            found = sites.good("hash", "hf://org/model/model")
            assert found in wanted, f"bytes of two commits, the branch moved at request {at}"
            assert wanted[found] == (new if at == 1 else old), (at, wanted[found])
            if server.counts["requests"] < at:
                break
            told.append(server.counts["requests"])
        server.before, server.commits["main"] = None, old
        # A commit does not move, and nobody asks what it is.
        server.asked.clear()
        assert wanted[sites.good("hash", f"hf://org/model@{new}/model")] == new
        assert not [path for _, path, _ in server.asked if "/revision/" in path]
        server.special["/api/models/org/model/revision/main"] = (200, {}, b'{"id":"org/model"}')
        sites.refused(["convert", "hf://org/model/model", "out", "--to", "hf"], "hf://org/model@main/model", "which commit", exit_status=4)
    return f"{len(told)} times moved"


def revisions(shell, fixtures):
    """Names of revisions with '/': those that a hub gives, and others by %2F."""
    del fixtures
    site = small_site(shell)
    wanted = shell("hash", site / "model").decode()
    with Sites(shell, site, kinds=("hub",)) as sites:
        server = sites.servers["hub"]
        server.commits = dict.fromkeys(["refs/pr/1", "refs/convert/parquet", "feature/x", "100%"], object_server.COMMIT)
        for name in ("refs/pr/1", "refs%2Fpr%2F1", "refs%2fpr%2f1", "refs/convert/parquet", "feature%2Fx", "100%"):
            assert sites.good("hash", f"hf://org/model@{name}/model") == wanted, name
            url = f"hf://org/model@{name}/model/model.safetensors"
            assert url in sites.good("inspect", url)
            assert sites.good("ls", url) == sites.good("ls", site / "model/model.safetensors")
        for name in ("feature/x/model", "refs/pr/2/model", "refs/heads/main"):
            sites.refused(["hash", f"hf://org/model@{name}"], "HTTP 404")
        for name in ("..%2Fx", "%2Fx", "x%2F", "refs/pr/.."):
            sites.refused(["hash", f"hf://org/model@{name}"], "names no repository", exit_status=2)


# ---- lists ----

def s3_answer(keys, token=None, prefixes=()):
    encode = lambda key: urllib.parse.quote_plus(key, safe="/")
    text = "".join(f"<Contents><Key>{encode(key)}</Key><Size>10</Size></Contents>" for key in keys)
    text += "".join(f"<CommonPrefixes><Prefix>{encode(prefix)}</Prefix></CommonPrefixes>" for prefix in prefixes)
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return (200, {}, f"<ListBucketResult><EncodingType>url</EncodingType>{more}{text}</ListBucketResult>".encode())


def lists_for_ever(shell, fixtures):
    (shell.work / "site").mkdir()
    told = []

    def try_kind(kind):
        with Sites(shell, shell.work / "site", kinds=(kind,)) as sites:
            server = sites.servers[kind]
            if kind == "s3":
                server.special["/bucket/"] = s3_answer([], "again")
            else:
                path = HUB_TREE
                server.special[path] = (200, {"Link": f'<{server.url}{path}?cursor=1>; rel="next"'}, b"[]")
            begun = time.monotonic()
            done = sites.ask("convert", sites.url(kind, "model"), f"out-{kind}", "--to", "hf")
            assert done.returncode in (3, 4, 6) and "pages" in done.stderr, done
            assert not os.path.exists(shell.work / f"out-{kind}") and server.counts["requests"] <= 10001
            told.append(f"{kind}: {server.counts['requests']} requests, {time.monotonic() - begun:.1f} s")
    at_once(try_kind, ("s3", "hub"))
    return "; ".join(told)


def hub_answer(names, folders=()):
    return (200, {}, json.dumps([{"type": "file", "path": name, "size": 10} for name in names] +
                                [{"type": "directory", "path": name, "size": 0} for name in folders]).encode())


def hostile_lists(shell, fixtures):
    site = small_site(shell)
    config = "model/config.json"
    names = ["model/" + name for name in HOSTILE] + HOSTILE
    page = "".join(f'<a href="{html.escape(link)}">x</a>' for link in
                   [name for name in HOSTILE if name[:2] != "./"] + [urllib.parse.quote(name, safe="") for name in HOSTILE] +
                   ["..", "%2e%2e", "%2E%2E/", "a%2Fsecret.safetensors", "%2Fsecret.safetensors", "http://127.0.0.1/secret.safetensors",
                    "//secret.safetensors", "javascript:secret.safetensors", "?secret.safetensors", "#secret.safetensors",
                    "model.safetensors", "config.json"])
    with Sites(shell, site) as sites:
        size = (site / "model/model.safetensors").stat().st_size
        good = [{"type": "file", "path": "model/model.safetensors", "size": size}, {"type": "file", "path": config, "size": 2}]
        sites.servers["pages"].special["/model/"] = (200, {}, page.encode())
        sites.servers["s3"].special["/bucket/"] = s3_answer(
            names + [config], prefixes=["../", "model/../", "model/", "/", "//", "model//"])
        status, headers, body = sites.servers["s3"].special["/bucket/"]
        last = f"<Contents><Key>model/model.safetensors</Key><Size>{size}</Size></Contents></ListBucketResult>"
        body = body.replace(b"</ListBucketResult>", last.encode())
        sites.servers["s3"].special["/bucket/"] = (status, headers, body)
        sites.servers["hub"].special[HUB_TREE] = (
            200, {}, json.dumps(json.loads(hub_answer(names, ["..", "model/..", "model", "/", "model//a"])[2]) + good).encode())
        wanted = sites.good("hash", site / "model")
        for kind in KINDS:
            done = sites.ask("hash", sites.url(kind, "model/"))
            asked = [path for _, path, _ in sites.servers[kind].asked]
            assert not [path for path in asked if "secret" in path or ".." in path or "%2e" in path.lower()], (kind, asked)
            assert done.returncode == 0 and done.stdout == wanted, (kind, done.stderr, asked)
            assert "secret" not in sites.good("inspect", sites.url(kind, "model/"))


def odd_lists(shell, fixtures):
    """What is no list."""
    site = small_site(shell)
    with Sites(shell, site) as sites:
        s3, hub = sites.servers["s3"], sites.servers["hub"]
        tree = HUB_TREE
        for body in (b"", b"<html>hello</html>", b"<ListBucketResult><Contents><Key>model/x</Key></Contents></ListBucketResult>",
                     b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
                     b"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>model/%zz</Key><Size>1</Size></Contents>"
                     b"</ListBucketResult>",
                     b"<ListBucketResult><Contents><Key>model/x</Key><Size>-1</Size></Contents></ListBucketResult>"):
            s3.special["/bucket/"] = (200, {}, body)
            sites.refused(["convert", sites.url("s3", "model"), "out", "--to", "hf"], "list", exit_status=4)
        for body in (b"", b"<html>hello</html>", b"{}", b"[1]", b"[{}]", b'[{"type":"file"}]', b'[{"type":"link","path":"x"}]', b"[",
                     b'[{"type":', b"[]x", b"[][]"):
            hub.special[tree] = (200, {}, body)
            sites.refused(["convert", sites.url("hub", "model"), "out", "--to", "hf"], exit_status=4)
        hub.special[tree] = (200, {"Link": f'<{hub.url}/api?{"x" * 2000}>; rel="next"'}, b"[]")
        sites.refused(["convert", sites.url("hub", "model"), "out", "--to", "hf"], "more than 1999 bytes", exit_status=6)
        hub.special[tree] = (200, {"Link": '<http://elsewhere.invalid/api>; rel="next"'}, b"[]")
        sites.refused(["convert", sites.url("hub", "model"), "out", "--to", "hf"], "another server", exit_status=4)


def cut_lists(shell, fixtures):
    """A list whose connection ends early says no size, and is no shorter list."""
    del fixtures
    folder = shell.work / "site/model"
    folder.mkdir(parents=True)
    small_models.write(folder / "whole.safetensors", {f"w{i}": [50] for i in range(6)})
    shell("convert", folder / "whole.safetensors", folder / "hf", "--to", "hf", "--max-shard-size", "100", "--quiet")
    os.unlink(folder / "hf/model.safetensors.index.json")  # by the list alone it is known which files there are
    kinds = ("s3", "gs", "az", "hub")
    with Sites(shell, shell.work / "site", kinds=kinds) as sites:
        for kind in kinds:
            server, url = sites.servers[kind], sites.url(kind, "model/hf")
            sites.good("hash", url)
            for eighths in range(1, 8):
                server.shortens = lambda body, eighths=eighths: \
                    body[:len(body) * eighths // 8] if body.startswith((b"<?xml", b"\xef\xbb\xbf", b"[")) else body
                sites.refused(["hash", url], "list of a folder is" if kind != "hub" else "", exit_status=4)
            server.shortens = None


def google(shell, fixtures):
    """Its store is asked as S3 is, by a token or by a key for signatures; what belongs to Amazon is not told to it."""
    site = small_site(shell)
    wanted = shell("hash", site / "model").decode()
    keys = {"GOOGLE_OAUTH_ACCESS_TOKEN": "", "GS_ACCESS_KEY_ID": object_server.GOOGLE_KEY, "GS_SECRET_ACCESS_KEY": object_server.SECRET}
    with Sites(shell, site, kinds=("gs",)) as sites:
        url, server = sites.url("gs", "model"), sites.servers["gs"]
        for environment in ({}, {**keys, "GOOGLE_OAUTH_ACCESS_TOKEN": object_server.GOOGLE_TOKEN}):  # it goes before keys
            done = sites.ask("hash", url, **environment)
            assert done.returncode == 0 and done.stdout == wanted, done.stderr
        assert all(headers["Authorization"] == f"Bearer {object_server.GOOGLE_TOKEN}" and "x-amz-date" not in map(str.lower, headers)
                   for _, _, headers in server.asked), server.asked
        server.asked.clear()
        signed = sites.ask("hash", url, **keys)
        assert signed.returncode == 0 and signed.stdout == wanted, signed.stderr
        assert server.asked and not any("x-amz-security-token" in headers for _, _, headers in server.asked), server.asked
        assert server.counts["ranges"] and server.counts["lists"], server.counts
        sites.refused(["hash", url], "HTTP 403", "AuthenticationRequired", "GOOGLE_OAUTH_ACCESS_TOKEN", "GS_ACCESS_KEY_ID",
                      GOOGLE_OAUTH_ACCESS_TOKEN="")
        sites.refused(["hash", url], "HTTP 401", "the key or token", GOOGLE_OAUTH_ACCESS_TOKEN="other")
        sites.refused(["hash", url], "SignatureDoesNotMatch", **{**keys, "GS_SECRET_ACCESS_KEY": "other"})
        sites.refused(["hash", url], "STORAGE_EMULATOR_HOST", exit_status=2, STORAGE_EMULATOR_HOST="localhost")
        sites.refused(["convert", "gs://other/a", "out", "--to", "hf"], "NoSuchBucket")
        sites.good("convert", url, "out.safetensors", "--to", "safetensors", "--quiet")
        assert shell("hash", "out.safetensors").decode() == wanted


def azure(shell, fixtures):
    """By a shared key, and by a token of shared access that goes with every URL, and is printed nowhere."""
    site = small_site(shell)
    (site / "model/a folder & more").mkdir()
    shutil.copy(site / "model/model.safetensors", site / "model/a folder & more/it's 100%+.safetensors")
    for number in (5, 20):
        (site / f"root/größe <&>/step_{number}").mkdir(parents=True)
        shutil.copy(site / "model/model.safetensors", site / f"root/größe <&>/step_{number}")
    wanted = shell("hash", site / "model").decode()
    token = {"AZURE_STORAGE_SAS_TOKEN": "?" + object_server.AZURE_TOKEN}
    with Sites(shell, site, kinds=("az",)) as sites:
        url, server = sites.url("az", "model"), sites.servers["az"]
        for environment in ({}, token, {"AZURE_STORAGE_SAS_TOKEN": object_server.AZURE_TOKEN, "AZURE_STORAGE_KEY": "no key"}):
            done = sites.ask("hash", url, **environment)
            assert done.returncode == 0 and done.stdout == wanted, done.stderr
            one = sites.ask("hash", url + "/a folder & more/it's 100%+.safetensors", **environment)
            assert one.returncode == 0 and one.stdout == wanted, one.stderr
        newest = sites.good("verify", "--latest-good", "az://bucket/root/größe <&>")
        assert newest.strip() == "az://bucket/root/größe <&>/step_20" and sites.good("hash", newest.strip()) == wanted, newest
        assert server.counts["ranges"] and server.counts["lists"], server.counts
        assert any(headers.get("If-Match", "").startswith('"') for _, _, headers in server.asked)
        for connection in (f"AccountName={object_server.AZURE_ACCOUNT};AccountKey={object_server.AZURE_KEY};BlobEndpoint={server.url}",
                           f"BlobEndpoint={server.url}/;SharedAccessSignature={object_server.AZURE_TOKEN}"):
            done = sites.ask("hash", url, AZURE_STORAGE_CONNECTION_STRING=connection, AZURE_STORAGE_ACCOUNT="", AZURE_STORAGE_KEY="",
                             AZURE_STORAGE_SERVICE_ENDPOINT="")
            assert done.returncode == 0 and done.stdout == wanted, done.stderr
        said = sites.refused(["hash", url], "AZURE_STORAGE_CONNECTION_STRING", exit_status=2,
                             AZURE_STORAGE_CONNECTION_STRING=f"AccountKey={object_server.AZURE_KEY}")
        assert object_server.AZURE_KEY not in said, said
        other = {"AZURE_STORAGE_KEY": "b3RoZXI="}
        sites.refused(["hash", url], "HTTP 403", "AuthenticationFailed", "the key or token", **other)
        sites.refused(["hash", url + "/model.safetensors"], "HTTP 404", "ResourceNotFound", "AZURE_STORAGE_SAS_TOKEN",
                      AZURE_STORAGE_KEY="")
        said = sites.refused(["hash", url + "/model.safetensors"], "HTTP 403", "AuthenticationFailed", "the key or token",
                             AZURE_STORAGE_SAS_TOKEN="sv=1&sig=s3cret")
        assert "s3cret" not in said, said
        sites.refused(["hash", url], "AZURE_STORAGE_KEY", exit_status=2, AZURE_STORAGE_KEY="no base64")
        for account in ("", "no/account"):
            sites.refused(["hash", url], "AZURE_STORAGE_ACCOUNT", exit_status=2, AZURE_STORAGE_ACCOUNT=account)
        sites.refused(["hash", url], "AZURE_STORAGE_SERVICE_ENDPOINT", exit_status=2, AZURE_STORAGE_SERVICE_ENDPOINT="localhost")
        sites.refused(["convert", "az://other/a", "out", "--to", "hf"], "ContainerNotFound")
        server.signed = False  # who does not sign says all the same which version of the protocol it speaks
        done = sites.ask("hash", url, AZURE_STORAGE_KEY="")
        assert done.returncode == 0 and done.stdout == wanted, done.stderr
        server.signed = True
        server.special["/bucket"] = (200, {}, b"<EnumerationResults><Blobs><Blob><Name Encoded='true'>%FF</Name></Blob></Blobs>"
                                     b"</EnumerationResults>")
        sites.refused(["ls", "az://bucket/model"], "XML", exit_status=4)


# ---- what is refused here ----

def targets(shell, fixtures):
    small_models.write(shell.work / "m.safetensors", {"w": [4, 3]})
    with Sites(shell, shell.work) as sites:
        for url in ("s3://bucket/c", "https://host.invalid/c.safetensors", "hf://org/model", "gs://bucket/c"):
            for words in (["convert", "m.safetensors", url, "--to", "hf"], ["convert", "m.safetensors", url, "--overwrite", "--to", "hf"],
                          ["convert", "m.safetensors", url, "--to", "hf", "--part", "0/2"],
                          ["convert", "m.safetensors", url, "--to", "hf", "--resume"],
                          ["salvage", "m.safetensors", url], ["commit", url]):
                sites.refused(words, "nothing is written there", url, exit_status=5)
            assert "nothing is written there" in sites.good("plan", "m.safetensors", url, "--to", "hf")
        assert sorted(os.listdir(shell.work)) == ["m.safetensors"], os.listdir(shell.work)
        for url in ("gcs://bucket/c", "ftp://host.invalid/c", "file:///etc/passwd", "abfs://a/b"):
            sites.refused(["ls", url], url, "s3://BUCKET/KEY", exit_status=5)
        assert all(not server.asked for server in sites.servers.values())


def bad_urls(shell, fixtures):
    with Sites(shell, shell.work) as sites:
        for url in ("https://", "http:///x", "s3://", "s3://b", "s3:///key", "s3://bu$ket/x", "gs://", "gs:///key", "az://", "az:///key",
                    "hf://", "hf://org", "hf://org/", "hf://org/model@", "hf:///model", "https://127.0.0.1/%zz",
                    "https://127.0.0.1/a/../b", "https://127.0.0.1/a%00b", "https://127.0.0.1/a%5cb",
                    "s3://bucket/a//b", "s3://bucket/../b", "hf://org/model/../b", "hf://../model", "hf://org/..", "hf://org/model@../b"):
            sites.refused(["ls", url], exit_status=2)
        assert all(not server.asked for server in sites.servers.values())


def endpoints(shell, fixtures):
    with Sites(shell, shell.work) as sites:
        for endpoint in ("nonsense", "http://", "://", "/", "http://127.0.0.1:1", "http://127.0.0.1:99999/x", "ftp://127.0.0.1/"):
            for url in ("hf://org/model", "s3://bucket/x"):
                done = sites.ask("ls", url, HF_ENDPOINT=endpoint, AWS_ENDPOINT_URL=endpoint)
                assert done.returncode in (2, 3, 5) and done.stderr, (endpoint, url, done)
        assert all(not server.asked for server in sites.servers.values())


def without_libcurl(shell, fixtures):
    (shell.work / "libcurl.so.4").write_bytes(b"no library")
    with Sites(shell, shell.work) as sites:
        done = sites.ask("ls", sites.url("pages", "m.safetensors"), LD_LIBRARY_PATH=str(shell.work))
        assert done.returncode == 5 and "URLs need libcurl.so.4, which cannot be loaded: " in done.stderr, done
        assert "install libcurl" in done.stderr and not sites.servers["pages"].asked, done


def main():
    global SEED, SHARE
    parser = argparse.ArgumentParser()
    draw.add_options(parser, 0.3)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    SEED, SHARE = args.seed, args.share
    tests = {"fixtures are the same by URL": good_fixtures, "bad fixtures are refused alike": bad_fixtures, "convert": convert_all,
             "other verbs": verbs, "odd names": odd_names, "little is fetched": little_is_fetched, "lists of several pages": pages_of_lists,
             "small files that come whole": small_files_whole, "trouble is tried again": tried_again,
             "signals are heeded": signals_are_heeded,
             "servers that do not keep to the protocol": odd_servers,
             "what is not there": not_there, "what is not there is asked for once": absent_roots,
             "handshakes that break": handshakes, "one object of a bucket": one_object, "names that are one segment": segments,
             "redirects and regions": redirects_and_regions, "keys and tokens": who_asks, "Google's store": google,
             "Azure's store": azure, "files that are signed": signed_files,
             "secrets are for one server": others_are_not_told, "secrets are not told": secrets_stay,
             "files that are replaced": replaced, "a branch that moves": moving_branch, "names of revisions": revisions,
             "lists that go on for ever": lists_for_ever, "hostile names": hostile_lists, "what is no list": odd_lists,
             "lists that are cut off": cut_lists,
             "nothing is written to URLs": targets, "bad URLs": bad_urls, "endpoints": endpoints, "without libcurl": without_libcurl}
    return small_models.run(args.bin, [(name, lambda shell, test=test: test(shell, args.fixtures)) for name, test in tests.items()
                                       if args.only in name])


if __name__ == "__main__":
    raise SystemExit(main())
