#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes manual pages of section 3 from the public headers: a page a function, and reshard.3 with what holds for all.

usage: make_man3.py --list HEADER...        names of the pages
       make_man3.py OUTPUT_FOLDER HEADER... writes them

A function's page is its declaration, the comment before it, and the structs and enumerations that it is given. Functions that share a
comment, because it stands before several declarations, share its text.
"""
import pathlib
import re
import sys

FUNCTION = re.compile(r"^(?!typedef|struct|enum|#|static|\s|/|\*|\}|extern)([A-Za-z_][\w \t\n*]*?\b(reshard_\w+)\([^;{}]*\));", re.M)
COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
TYPE = re.compile(r"typedef (?:struct \w+ \{.*?^\} (\w+)|[^;{]*?\(\*(\w+)\)\([^;]*\)|enum[^;]*? (\w+));", re.S | re.M)
ENUM = re.compile(r"^enum \{.*?\};", re.S | re.M)


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\n".join("\\&" + line if line.startswith(".") else line for line in text.split("\n"))


def words(comment):
    """A comment's paragraphs."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip().split("\n")]
    return [" ".join(line.strip() for line in p.split("\n")) for p in re.split(r"\n\s*\n", "\n".join(lines)) if p.strip()]


def code(text):
    return f".nf\n{roff(text)}\n.fi\n"


class Header:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.text = self.path.read_text()
        self.types = {next(n for n in m.groups() if n): m[0] for m in TYPE.finditer(self.text)}
        comments = [(m.start(), m.end(), m[1]) for m in COMMENT.finditer(self.text) if "----" not in m[1]]
        self.about = next((c for _, _, c in comments if "SPDX" not in c), "")
        self.functions = {}
        for match in FUNCTION.finditer(self.text):
            before = [c for c in comments if c[1] <= match.start()]
            # The comment counts if only other declarations stand between it and this one.
            between = self.text[before[-1][1]:match.start()] if before else ""
            related = before and "\n\n" not in between.strip("\n") and not re.search(r"^#|^typedef|^enum|\{", between, re.M)
            self.functions[match[2]] = (match[1] + ";", words(before[-1][2]) if related and before[-1][2] is not self.about else [])


def page(name, header, headers, version):
    prototype, paragraphs = header.functions[name]
    first = re.split(r"(?<=[.;:])\s", paragraphs[0])[0].rstrip(".;:") if paragraphs else "function of libreshard"
    text = f'.TH "{name}" "3" "" "reshard {version}" "libreshard"\n.SH NAME\n{roff(name)} \\- {roff(first)}\n.SH SYNOPSIS\n'
    text += f"#include <reshard/{header.path.name}>\n.PP\n" + code(prototype) + ".SH DESCRIPTION\n"
    text += "\n.PP\n".join(roff(p) for p in paragraphs) + "\n" if paragraphs else "See the structs below, and\n.BR reshard (3).\n"
    types = {t: body for h in headers for t, body in h.types.items()}
    used = [t for t in types if re.search(rf"\b{t}\b", prototype) and t not in ("reshard_str", "reshard_error", "reshard_status")]
    for used_type in used:
        text += f".SS {used_type}\n" + code(types[used_type])
    text += ".SH RETURN VALUE\n"
    status = "RESHARD_OK, or another value of\n.IR reshard_status :\nerr, which may be NULL, tells what is wrong.\n"
    text += status if "reshard_status reshard_" in prototype else "As described.\n"
    others = [n for n in header.functions if n != name][:12]
    return text + ".SH SEE ALSO\n.BR reshard (1),\n.BR reshard (3)" + "".join(f",\n.BR {n} (3)" for n in others) + "\n"


def overview(headers, version):
    text = f'.TH "reshard" "3" "" "reshard {version}" "libreshard"\n.SH NAME\n'
    text += "reshard \\- opens, checks and reshards deep\\-learning checkpoints\n"
    text += ".SH SYNOPSIS\n#include <reshard/reshard.h>\n.PP\n"
    text += "cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs reshard)\n.SH DESCRIPTION\n"
    for header in sorted(headers, key=lambda h: (h.path.name != "reshard.h", h.path.name)):
        text += f".SS reshard/{header.path.name}\n" + "\n.PP\n".join(roff(p) for p in words(header.about)) + "\n.PP\nFunctions:\n"
        text += ",\n".join(f".BR {name} (3)" for name in header.functions) + "\n" if header.functions else "none.\n"
    return text + ".SH SEE ALSO\n.BR reshard (1)\n"


def main():
    if sys.argv[1] == "--list":
        print("\n".join(["reshard.3"] + [f"{n}.3" for h in map(Header, sys.argv[2:]) for n in h.functions]))
        return
    folder, headers = pathlib.Path(sys.argv[1]), [Header(p) for p in sys.argv[2:]]
    main_header = next(h.text for h in headers if h.path.name == "reshard.h")
    version = ".".join(re.search(rf"RESHARD_VERSION_{n} (\d+)", main_header)[1] for n in ("MAJOR", "MINOR", "PATCH"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reshard.3").write_text(overview(headers, version))
    for header in headers:
        for name in header.functions:
            (folder / f"{name}.3").write_text(page(name, header, headers, version))


main()
