#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the habits of the tree that no compiler checks, and ends with a line that counts them.

usage: tidy.py [ROOT]
Every pair of a file and a rule counts as one check. A failure is printed as `path:line: what was found, what is expected`.
"""
import collections
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys

# What the files of a folder of src/ may include besides their own folder. docs/ARCHITECTURE.md says why.
LAYERS = {
    "base": [],
    "tensor": ["base"],
    "kernels": ["base", "tensor"],
    "encoding": ["base", "tensor"],
    "store": ["base"],
    "remote": ["base", "encoding", "store"],
    "catalog": ["base", "tensor", "encoding"],
    "parallel": ["base", "tensor", "encoding", "catalog"],
    "mapping": ["base", "tensor", "catalog", "parallel"],
    "formats": ["base", "tensor", "encoding", "store", "catalog", "parallel"],
    "plan": ["base", "tensor", "kernels", "catalog"],
    "engine": ["base", "tensor", "kernels", "encoding", "store", "catalog", "plan"],
    "comm": ["base", "tensor", "kernels"],
    "names": ["base", "tensor", "kernels", "encoding", "store", "catalog", "parallel", "mapping", "formats", "plan"],
    "convert": ["base", "tensor", "kernels", "encoding", "store", "remote", "catalog", "parallel", "mapping", "formats", "plan", "engine",
                "comm", "names"],
    "api": ["base", "tensor", "kernels", "encoding", "store", "catalog", "parallel", "mapping", "formats", "plan", "engine", "comm",
            "names", "convert"],
}
# What the files of a driver's folder may include of other folders of src/formats/: what all share, and these. docs/ARCHITECTURE.md draws
# it.
SIBLINGS = {"mcore": ["dcp", "zarr"], "orbax": ["zarr"], "torchsnapshot": ["dcp"]}
SHARED = "shared"  # in src/formats/: owned by no driver
PUBLIC_ONLY = ["cli", "examples", "mpi", "python"]  # they see include/ and their own folder, which proves that the API suffices
THIRD_PARTY = {  # each library is behind one file of src/
    "zlib": r"zlib\.h",
    "zstd": r"zstd(_errors)?\.h",
    "xxhash": r"xxh(ash|3)\.h",
    "nettle": r"nettle/.*",
    "isa-l's checksums": r"isa-l\.h|isa-l/crc\.h|crc\.h",
    "isa-l's inflate": r"(isa-l/)?igzip_lib\.h",
    "liburing": r"liburing.*",
    "curl": r"curl/.*",
    "lz4": r"lz4.*\.h",
    "blosc": r"blosc.*\.h",
    "bz2": r"bzlib\.h",
    "lzma": r"lzma\.h",
    "mpi": r"mpi\.h",
}
FOLDERS = ["include", "src", "cli", "mpi", "python", "examples", "tests", "fuzz", "bench", "tools", "docs"]
SKIPPED = {"fixtures", "__pycache__"}
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 1000
COLUMNS_MAX = 140
SPDX = "SPDX-License-Identifier: Apache-2.0"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)

DRIVER = re.compile(r'struct format_driver \w+ = \{[^}]*?\.name = "([^"]+)"', re.S)
COMPARISON = re.compile(r'\b(?:str(?:n?(?:case)?cmp|_is|_equal|_starts_with|_ends_with|_find)|format_driver_find)\s*\([^;{}]*?"[^"\n]*"')
OTHER_NAMES = re.compile(r"\b(?:module|flavour)\b")  # of Python modules and of an option: the same words mean something else
TABLE = re.compile(r'\{(?:\s*"[^"\n]*"\s*,?)+\s*\}')


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, good, where, text):
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print(f"{where}: {text}")


class Source:
    """A C file: its text, and a copy in which comments and literals are blanks, line for line."""

    def __init__(self, root, path):
        self.path = path.relative_to(root)
        self.text = path.read_text(encoding="utf-8", errors="replace")
        self.code = blank(self.text)
        self.includes = [(line_of(self.text, m.start()), m[1] == '"', m[2]) for m in INCLUDE.finditer(self.text)
                         if self.code[m.start():m.end()].lstrip().startswith("#")]

    @property
    def layer(self):
        parts = self.path.parts
        return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def line_of(text, position):
    return text.count("\n", 0, position) + 1


LITERAL = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def blank(text):
    return LITERAL.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def functions(code):
    """(name, first line, number of lines) of every function definition. Tables inside it, `= { … };`, do not count."""
    code = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: re.sub(r"[^\n]", " ", m[0]), code, flags=re.M)
    depth, start, found, name, table, tables = 0, 0, [], None, None, 0
    for m in re.finditer(r"[{};]", code):
        if m[0] == "{":
            if depth and table is None and code[max(0, m.start() - 80):m.start()].rstrip().endswith("="):
                table = (depth, m.start())
            if depth == 0:
                tables = 0
                head = code[start:m.start()]
                call = re.search(r"(\w+)\s*\(\s*(\w*)", re.sub(r"__attribute__\s*\(\(.*?\)\)", "", head, flags=re.S))
                is_function = call and head.rstrip().endswith(")") and "=" not in head
                name = (call[2] if call[1] == "TEST" else call[1]) if is_function else None
                first = start + len(head) - len(head.lstrip())
            depth += 1
        elif m[0] == "}":
            depth -= 1
            if table and table[0] == depth:
                tables += code.count("\n", table[1], m.start())
                table = None
            if depth == 0 and name:
                found.append((name, line_of(code, first), code.count("\n", first, m.start()) + 1 - tables))
        if depth == 0:
            start = m.end()
    return found


def check_columns(report, path, text):
    wide = [number for number, line in enumerate(text.split("\n"), 1) if len(line) > COLUMNS_MAX]
    report.check(not wide, f"{path}:{wide[0] if wide else 1}", f"{len(wide)} lines of more than {COLUMNS_MAX} columns, the first one here")
    blank = [number for number, line in enumerate(text.split("\n"), 1) if line != line.rstrip()]
    report.check(not blank, f"{path}:{blank[0] if blank else 1}", f"{len(blank)} lines end in blanks, the first one here")


def check_lengths(report, source):
    lines = source.text.count("\n")
    report.check(lines <= FILE_LINES_MAX, source.path, f"{lines} lines, at most {FILE_LINES_MAX}")
    check_columns(report, source.path, source.text)
    for name, first, length in functions(source.code):
        report.check(length <= FUNCTION_LINES_MAX, f"{source.path}:{first}", f"{name} has {length} lines, at most {FUNCTION_LINES_MAX}")


def driver_of(path):
    """The folder of src/formats/ that a file lies in, as a path of parts below src/; None elsewhere."""
    return path[1] if len(path) > 2 and path[0] == "formats" else None


def allowed_sibling(source, name):
    own, other = driver_of(source.path.parts[1:]), driver_of(name.split("/"))
    if other is None or other == own:
        return True
    if own is None:  # the registry has a row for every driver; nobody else knows one
        return source.layer is None or source.path.name == "registry.c" or other == SHARED
    return other == SHARED or other in SIBLINGS.get(own, [])


def allowed_include(source, name):
    top = name.split("/")[0]
    if source.layer:
        if not allowed_sibling(source, name):
            return False
        if top == "reshard":
            return source.layer == "api" or name == "reshard/error.h"
        if top == "models": # data that the build turns into a header
            return source.layer == "base"
        return "/" in name and (top == source.layer or top in LAYERS.get(source.layer, []))
    folder = source.path.parts[0]
    if folder == "include":
        return top == "reshard"
    if folder in PUBLIC_ONLY:
        return top == "reshard" or name.startswith(folder + "/") or "/" not in name
    return True


def check_includes(report, root, source):
    for line, quoted, name in source.includes:
        where = f"{source.path}:{line}"
        if quoted:
            report.check(allowed_include(source, name), where, f'may not include "{name}": the layer table forbids it')
        elif (root / "src" / name).exists() or (root / "include" / name).exists():
            report.check(source.path.parts[0] in PUBLIC_ONLY, where, f'<{name}> is ours: write "{name}"')
    own = source.path.with_suffix(".h")
    if source.path.suffix == ".c" and (root / own).exists():
        expected = str(own.relative_to("src")) if source.layer else own.name
        first = source.includes[0][2] if source.includes else "nothing"
        report.check(first in (expected, str(own)), source.path, f'includes {first} first, expected its own header "{expected}"')


def driver_names(sources):
    """{name of a format: folder of src/formats/ that declares its driver}"""
    found = {}
    for source in sources:
        folder = driver_of(source.path.parts[1:]) if source.layer == "formats" else None
        for m in DRIVER.finditer(source.text) if folder else ():
            found[m[1]] = folder
    return found


def named_drivers(source, names):
    """(line, name) of each literal that a comparison takes, or a table that others are compared with holds, and that is a driver's name."""
    for m in COMPARISON.finditer(source.text):
        if source.code[m.start()] != " " and not OTHER_NAMES.search(m[0]):
            yield from ((line_of(source.text, m.start()), name) for name in re.findall(r'"([^"]*)"', m[0]) if name in names)
    for m in TABLE.finditer(source.text):
        listed = re.findall(r'"([^"]*)"', m[0])
        if len(listed) > 1 and all(name in names for name in listed):
            yield line_of(source.text, m.start()), listed[0]


def check_driver_names(report, sources):
    """What others need to know of a format is a trait of its driver or of the catalog; its name is for people."""
    names = driver_names(sources)
    for source in sources:
        if source.path.parts[0] != "src":
            continue
        own = driver_of(source.path.parts[1:])
        foreign = [(line, name) for line, name in named_drivers(source, names) if names[name] != own]
        report.check(not foreign, f"{source.path}:{foreign[0][0] if foreign else 1}",
                     "asks for a driver by its name, which only its own folder may: "
                     + ", ".join(f'"{name}" (line {line})' for line, name in foreign))


def check_third_party(report, sources):
    for library, pattern in THIRD_PARTY.items():
        users = {s.path: line for s in sources if s.layer for line, quoted, name in s.includes if not quoted
                 and re.fullmatch(pattern, name)}
        if users:
            places = ", ".join(f"{path}:{line}" for path, line in sorted(users.items()))
            report.check(len(users) == 1, library, f"its headers are included by {len(users)} files, expected one: {places}")


def check_names(report, sources):
    by_name = {}
    for source in (s for s in sources if s.path.parent.name != "reshard"):  # these are always written with reshard/ before them
        by_name.setdefault(source.path.name, []).append(str(source.path))
    for name, paths in sorted(by_name.items()):
        report.check(len(paths) == 1, name, "is not unique: " + ", ".join(paths))


def check_jumps(report, sources):
    """One idiom of cleaning up: a label `out` at the end of a function."""
    for source in sources:
        for m in re.finditer(r"\bgoto\s+(\w+)", source.code):
            report.check(m[1] == "out", f"{source.path}:{line_of(source.text, m.start())}", f"goto {m[1]}: the only label is out")


def check_shown_paths(report, sources):
    """A path may be a URL with a password in it: what is printed of one goes through shown_path or print_path."""
    printing = r"\b(?:print_\w+|json_\w+|[fs]n?printf|printf|f?puts|refuse)\("
    for source in (s for s in sources if s.path.parts[0] == "cli" and s.path.suffix == ".c"):
        for m in re.finditer(printing + r"(?:(?!shown_path\()[^;{}])*?(?:->paths\[|\breshard_checkpoint_path\()", source.code):
            shown = m[0].startswith("print_path(") or "(" not in m[0]
            where = f"{source.path}:{line_of(source.text, m.start())}"
            report.check(shown, where, "prints a path as it was given: shown_path(…) has no secrets")


def check_error_scopes(report, sources):
    """An exported function that takes an error begins with its scope, or does nothing but hand it on."""
    for source in sources:
        for m in re.finditer(r"^API_EXPORT ([^;{]*)\{(.*?)^\}", source.code, re.M | re.S):
            if "reshard_error *err" in m[1]:
                is_scoped = re.search(r"\bERROR_SCOPE\(err\);", m[2]) or re.fullmatch(r"\s*return [^;]*;\s*", m[2])
                report.check(is_scoped, f"{source.path}:{line_of(source.text, m.start())}", "no ERROR_SCOPE(err)")


def check_joined_names(report, sources):
    """printf is for messages: a text in it ends at a NUL, which names do not, and by STR_ARG at 2000 bytes."""
    for source in sources:
        for m in re.finditer(r"\barena_printf\([^;]*?%\.\*s", source.text):
            report.check(False, f"{source.path}:{line_of(source.text, m.start())}", "a name is put together by ARENA_JOIN")


def check_arrays(report, sources):
    """Arrays on the heap come from base/array.h: one rule for a count of 0 and for bytes that overflow, and no slack."""
    for source in sources:
        for m in re.finditer(r"\bcalloc\((?!1,)|\breallocarray\(NULL,|\bmalloc\([^;]*?\* sizeof", source.code):
            is_home = str(source.path) == "src/base/array.c"
            report.check(is_home, f"{source.path}:{line_of(source.text, m.start())}", "an array comes from array_new or array_zeroed")


def check_statics(report, sources):
    """A backtrace shows a function's name and not its file: static functions of src/ have names of their own."""
    files = {}
    for source in sources:
        if source.layer and source.path.suffix == ".c":
            for name in {name for name, _, _ in functions(source.code) if name and not name.isupper()}:
                files.setdefault(name, []).append(source.path.name)
    for name, paths in sorted(files.items()):
        report.check(len(paths) == 1, name, "is a function of several files: " + ", ".join(paths))


def check_uses(report, sources):
    """What a header of src/ offers, somebody calls: a declaration, a definition and nothing else are dead code."""
    words = collections.Counter(word for source in sources for word in re.findall(r"\w+", source.code))
    for source in (s for s in sources if s.layer and s.path.suffix == ".h"):
        inline = {name for name, _, _ in functions(source.code) if name}
        for name in re.findall(r"^(?:static inline )?(?:const )?(?:struct |enum )?\w+[ *]+(\w+)\((?!\*)", source.code, re.M):
            report.check(words[name] > (1 if name in inline else 2), str(source.path), f"nobody calls {name}")


def check_decisions(report, root):
    numbers = {}
    for path in sorted((root / "docs/decisions").glob("*.md")):
        numbers.setdefault(path.name.split("-")[0], []).append(path.name)
    for number, names in numbers.items():
        report.check(len(names) == 1, f"docs/decisions/{names[0]}", "number is taken twice: " + ", ".join(names))


def check_fuzz_targets(report, root):
    """What each fuzz target reads, and how far it has come, is told in docs/TESTING.md."""
    listed, page = root / "fuzz" / "targets.txt", root / "docs" / "TESTING.md"
    if not listed.is_file():
        return
    text = page.read_text() if page.is_file() else ""
    for heading in ("| target | input | mutator |", "| target | executions |"):
        rows = text.partition(heading)[2].partition("\n\n")[0]
        told = {name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if row.count("|") > 3 else "")}
        for target in re.findall(r"^([a-z]\w*) ", listed.read_text(), re.M):
            report.check(target in told, "docs/TESTING.md", f"fuzz target {target} is not in the table {heading}")


def check_conformance(report, root):
    """The page of upstream tests names files of tests, and tests in them, behind the last bar of a row."""
    page = root / "docs/conformance.md"
    if not page.exists():
        return
    files = [path for path in (root / "tests").rglob("*") if path.suffix in (".c", ".py")]
    names, tests = {path.name for path in files}, set()
    for path in files:
        if path.suffix == ".c":
            tests.update(re.findall(r"^TEST\((\w+)\)", path.read_text(encoding="utf-8", errors="replace"), re.M))
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for word in re.findall(r"`([^`]+)`", line.split("|")[-2]) if line.count("|") > 2 else []:
            if word.startswith(("tests/", "tools/")):
                good = any(root.glob(word))
            elif word.endswith((".c", ".py")):
                good = word in names
            elif re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", word) and not word.startswith("reshard_"):
                good = word in tests
            else:
                continue
            report.check(good, f"docs/conformance.md:{number}", f"`{word}` is no test, nor a file of tests")


def check_license(report, root, paths):
    for path in paths:
        head = path.read_text(encoding="utf-8", errors="replace").split("\n", 2)[:2]
        if not head[0].startswith("#!"):
            head = head[:1]
        report.check(SPDX in head[-1], f"{path.relative_to(root)}:{len(head)}", f"expected '{SPDX}' here")


def check_built(report, root, sources):
    """A file that no meson.build names is never compiled. Loops of a meson.build may add the ending, and fuzz_ before the name."""
    builds = {folder: "\n".join(path.read_text() for path in sorted((root / folder).rglob("meson.build"))) for folder in FOLDERS}
    for source in sources:
        if source.path.suffix != ".c":
            continue
        stem = re.escape(source.path.stem)
        short = re.escape(source.path.stem.removeprefix("fuzz_"))
        named = re.search(rf"['/]{stem}\.c'|'{stem}'|'{short}'", builds[source.path.parts[0]])
        report.check(named, source.path, "no meson.build names it")


def compile_alone(root, path, languages):
    problems = []
    for language in languages:
        compiler = shlex.split(os.environ.get("CXX", "c++") if language.startswith("c++") else os.environ.get("CC", "cc"))
        command = compiler + ["-std=" + language, "-x", "c++" if language.startswith("c++") else "c", "-fsyntax-only", "-Wall",
                              "-Wextra", "-Werror",
                              "-Wno-unused-function", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Iinclude", "-Isrc", "-Itests",
                              "-I" + str(path.parent),
                              "-include", str(path), os.devnull]
        try:
            run = subprocess.run(command, cwd=root, capture_output=True, text=True)
        except FileNotFoundError:
            if language.startswith("c++"):
                continue  # a C++ compiler is no requirement
            return [f"no compiler {compiler[0]}"]
        if run.returncode:
            first = next((line for line in run.stderr.splitlines() if "error" in line), f"exit {run.returncode}")
            problems.append(f"does not compile alone as {language}: {first}")
    return problems


def check_headers(report, root, sources):
    # MPI's needs a compiler of its own, Python's a path.
    headers = [s.path for s in sources if s.path.suffix == ".h" and not re.search(r"#include <(mpi|Python)\.h>", s.text)]
    languages = {p: ["c99", "c++11"] if p.parts[0] == "include" else ["gnu17"] for p in headers}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for path, problems in zip(headers, pool.map(lambda p: compile_alone(root, p, languages[p]), headers)):
            report.check(not problems, path, "; ".join(problems))


def find_files(root):
    for folder in FOLDERS:
        for base, folders, names in os.walk(root / folder):
            folders[:] = sorted(f for f in folders if f not in SKIPPED)
            yield from (pathlib.Path(base, name) for name in sorted(names))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    report = Report()
    files = list(find_files(root))
    sources = [Source(root, path) for path in files if path.suffix in (".c", ".h")]
    licensed = [path for path in files if path.suffix in (".c", ".h", ".py", ".sh") or path.name == "meson.build"]
    check_license(report, root, licensed)
    for path in files:
        if path.suffix == ".py":
            check_columns(report, path.relative_to(root), path.read_text(encoding="utf-8", errors="replace"))
    for source in sources:
        check_lengths(report, source)
        check_includes(report, root, source)
    check_names(report, sources)
    check_driver_names(report, sources)
    check_third_party(report, sources)
    check_jumps(report, [s for s in sources if s.layer])
    check_shown_paths(report, sources)
    check_error_scopes(report, [s for s in sources if s.layer])
    check_joined_names(report, [s for s in sources if s.layer])
    check_arrays(report, [s for s in sources if s.layer])
    check_decisions(report, root)
    check_conformance(report, root)
    check_fuzz_targets(report, root)
    check_statics(report, sources)
    check_uses(report, sources)
    check_built(report, root, sources)
    check_headers(report, root, sources)
    print(f"tidy: {report.passed} checks hold, {report.failed} do not")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
