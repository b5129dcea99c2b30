#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What programs rely on that are built already: symbols with their versions, and sizes and places of members of public structs.

A dump of each version lies beside this file (0.2.txt). Of every one, all symbols must be there, all members where they were, and structs at
least as large. The newest one must be exact, so that nothing is exported, and no struct grows, unseen. Also compiles each header alone as
C99 and as C++17, without a warning and without a hole between members; and says which structs, arrays and functions the tests of arguments
(tests/api/test_arguments*.c) lack. Prints TAP.

usage: abi_test.py --library FILE --include DIR [--cc COMMAND] [--write VERSION]
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import public_headers

HERE = pathlib.Path(__file__).resolve().parent
TABLES = HERE.parent / "api"
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Wpadded", "-Werror"]


def probe(include):
    """A program that prints every struct's size, and every member's place and size."""
    lines = [*(f'#include "reshard/{header}"' for header in public_headers.names(include)), "#include <stdio.h>", "int main(void)", "{"]
    for name, body in public_headers.Headers(include).structs.items():
        lines.append(f'    printf("struct {name} %zu\\n", sizeof({name}));')
        for member in public_headers.members(body):
            place = f"offsetof({name}, {member}), sizeof((({name} *)0)->{member})"
            lines.append(f'    printf("member {name}.{member} %zu %zu\\n", {place});')
    return "\n".join([*lines, "    return 0;", "}"])


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def layout(cc, include, work):
    (work / "probe.c").write_text(probe(include))
    built = run(cc, "-std=c99", "-I", str(include), str(work / "probe.c"), "-o", str(work / "probe"))
    if built.returncode:
        raise SystemExit(built.stderr)
    return run(str(work / "probe")).stdout.splitlines()


def symbols(library):
    listed = run("nm", "-D", "--defined-only", "--with-symbol-versions", str(library)).stdout
    return sorted("symbol " + line.split()[2] for line in listed.splitlines() if line.split()[1] in "TDBR")


def as_table(lines):
    return {tuple(line.split()[:2]): [int(n) for n in line.split()[2:]] for line in lines}


def differences(old, new, is_newest):
    """What of a version's dump does not hold any more."""
    for key, values in old.items():
        found = new.get(key)
        if found is None:
            yield f"{' '.join(key)} is gone"
        elif found != values and (key[0] != "struct" or is_newest or found[0] < values[0]):
            yield f"{' '.join(key)} was {values}, is {found}"
    if is_newest:
        yield from (f"{' '.join(key)} is in no dump: abi_test.py --write makes that of a new version" for key in new if key not in old)


class Tap:
    def __init__(self):
        self.count = self.failed = 0

    def __call__(self, name, problems):
        self.count += 1
        self.failed += bool(problems)
        print(f"{'not ok' if problems else 'ok'} {self.count} - {name}")
        for problem in problems:
            print(f"# {problem}")


def check_headers(tap, cc, include, work):
    languages = [("C99", [cc, "-std=c99", "-xc"])]
    if shutil.which("c++"):
        languages.append(("C++17", ["c++", "-std=c++17", "-xc++"]))
    for header in public_headers.names(include):
        macros = re.findall(r"#define (RESHARD_(\w+)_INIT)\b", (include / "reshard" / header).read_text())
        uses = "\n".join(f"reshard_{name.lower()} make_{name.lower()}(void);\nreshard_{name.lower()} make_{name.lower()}(void)\n"
                         f"{{\n    const reshard_{name.lower()} made = {macro};\n    return made;\n}}" for macro, name in macros)
        (work / "header.c").write_text(f'#include "reshard/{header}"\n{uses}\n')
        for language, command in languages:
            done = run(*command, *STRICT, "-I", str(include), "-c", str(work / "header.c"), "-o", str(work / "header.o"))
            tap(f"{header} alone as {language}", done.stderr.splitlines())


# A report is handed back as it was filled in: no call reads it as options. Statistics are added to what they were: a struct that goes in.
OTHERS = {("IN", "reshard_report"), ("OUT", "reshard_tensor_stats")}


def untested(headers):
    """Structs, strides and functions of the headers that are in no table of tests/api/test_arguments*.c."""
    text = "\n".join(path.read_text() for path in sorted(TABLES.glob("test_arguments*.c")))
    tested = set(re.findall(r"\b(IN|OUT|TOLD)\((reshard_\w+)", text)) | OTHERS
    yield from (f"no row {way}({name}, ...)" for way, name in headers.crossings() if (way, name) not in tested)
    arrays = {f"{where}.{stride}" for where, stride in re.findall(r"\bARRAY\((\w+), (\w+)", text)}
    yield from (f"no row ARRAY({where.replace('.', ', ')}, ...)" for where in headers.arrays() if where not in arrays)
    for name, (returned, parameters) in headers.functions().items():
        if "*" in parameters and not re.search(rf"(?:REFUSED|HARMLESS|NOTHING|HARMLESS_STATUS)\([^;]*\b{name}\b", text):
            yield f"no REFUSED({name}(...)) or HARMLESS({name}(NULL))"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--include", type=pathlib.Path, required=True)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--write", metavar="VERSION")
    args = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="reshard-abi-") as name:
        work = pathlib.Path(name)
        lines = symbols(args.library) + layout(args.cc, args.include, work)
        if args.write:
            (HERE / f"{args.write}.txt").write_text("\n".join(lines) + "\n")
            return 0
        new = as_table(lines)
        dumps = sorted(HERE.glob("*.txt"), key=lambda path: [int(part) for part in path.stem.split(".")])
        for dump in dumps:
            tap(f"what version {dump.stem} has", list(differences(as_table(dump.read_text().splitlines()), new, dump == dumps[-1])))
        tap("only names of reshard are exported", [key[1] for key in new if key[0] == "symbol" and not key[1].startswith("reshard_")])
        check_headers(tap, args.cc, args.include, work)
        headers = public_headers.Headers(args.include)
        tap("every struct can grow", list(headers.problems()))
        tap("arguments of every version are tested", list(untested(headers)))
    print(f"1..{tap.count}")
    return 1 if tap.failed else 0


sys.exit(main())
