#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual says what the command takes: every verb has a page, every option of it a text there, and every command that a document shows
is understood. Prints TAP.

usage: manual_test.py --bin RESHARD
The options section of a page is made by tools/make_man1.py of docs/man/options, which must not lack an option nor name one that is gone.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parents[2]
PAGES = TREE / "docs" / "man"


def made(binary, page, options=PAGES / "options"):
    return subprocess.run([sys.executable, TREE / "tools" / "make_man1.py", "-", binary, options, "/doc"], input=page.read_text(),
                          capture_output=True, text=True)


def help_of(binary, *words):
    return subprocess.run([binary, *words, "--help"], capture_output=True, text=True, check=True).stdout


def check_page(binary, verb):
    page = PAGES / ("reshard.1.scd" if verb == "help" else f"reshard-{verb}.1.scd")
    done = made(binary, page)
    assert done.returncode == 0, done.stderr
    taken = {name for names in re.findall(r"^  (?:   |(-\w),) (--[\w-]+)", help_of(binary, verb), re.M) for name in names if name}
    told = {name for line in re.findall(r"^\*-.*", done.stdout, re.M) for name in re.findall(r"\*(--?[\w-]+)\*", line)}
    assert taken == told, f"{sorted(taken ^ told)} stand in --help or in the page only"
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert f"\n# {section}\n" in done.stdout, f"it has no {section}"


def check_page_list(verbs):
    """The page of the command leads to all others, and all are made."""
    names = {page.name.removesuffix(".1.scd") for page in PAGES.glob("*.scd")}
    assert {f"reshard-{verb}" for verb in verbs if verb != "help"} <= names, "a verb has no page"
    told = set(re.findall(r"\*(reshard-\w+)\*\(1\)", (PAGES / "reshard.1.scd").read_text().split("# SEE ALSO")[1]))
    assert told == names - {"reshard"}, f"SEE ALSO of reshard(1): {sorted(told ^ (names - {'reshard'}))}"
    installed = (TREE / "docs" / "meson.build").read_text()
    missing = [name for name in names if f"'{name.removeprefix('reshard')}'" not in installed]
    assert not missing, f"docs/meson.build does not make {missing}"


def check_environment():
    """Every variable that the source asks for stands in the manual, and those of URLs in docs/urls.md."""
    texts = {path: path.read_text() for folder in ("src", "cli") for path in TREE.glob(f"{folder}/**/*.c")}
    asked = {name for text in texts.values() for name in re.findall(r'getenv\("(\w+)"\)', text)} - {"HOME"}
    of_urls = set(re.findall(r'"([A-Z]+_[A-Z0-9_]+)"', texts[TREE / "src/remote/remote_place.c"]))
    pages = "".join(page.read_text().split("# ENVIRONMENT")[-1] for page in PAGES.glob("*.scd"))
    assert len(of_urls) > 10 and asked, (of_urls, asked)
    missing = [name for name in sorted(asked | of_urls) if not re.search(rf"\*{name}\*", pages)]
    assert not missing, f"no page has {missing} under ENVIRONMENT"
    missing = [name for name in sorted(of_urls) if f"`{name}`" not in (TREE / "docs/urls.md").read_text()]
    assert not missing, f"docs/urls.md lacks {missing}"


def shown_commands(binary, verbs):
    """{command: where}: of blocks and `words` in the documents, and of --help."""
    commands = {}
    for path in [*TREE.glob("*.md"), *TREE.glob("docs/**/*.md"), *PAGES.glob("*.scd")]:
        for number, part in enumerate(path.read_text().split("```")):
            lines = part.splitlines() if number % 2 else re.findall(r"`(reshard [^`]+)`", part)
            commands |= {line: path.relative_to(TREE) for line in lines}
    for verb in verbs:
        commands |= {line: f"{verb} --help" for line in help_of(binary, verb).split("examples:\n")[1].splitlines()}
    return {match: where for line, where in commands.items()
            for match in re.findall(r"(?:^[ $]*|[|&;(] *)(reshard [a-z]+ [^|&;()<>#]*)", re.sub(r" \d?>.*", "", line))}


def check_commands(binary, verbs):
    """The options and words are right; what the commands name need not be there."""
    wrong, commands = [], shown_commands(binary, verbs)
    with tempfile.TemporaryDirectory(prefix="reshard-manual-") as folder:
        for command, where in commands.items():
            line = command.removesuffix("\\").replace("reshard", str(binary), 1)
            done = subprocess.run(["bash", "-c", line], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
            is_usage = re.search("unknown|is not one of|takes no value|no value|unexpected|is not a", done.stderr)
            if is_usage and not re.search("[A-Z]{4}|…", command):
                wrong.append(f"{where}: {command}: {done.stderr.splitlines()[0]}")
    assert len(commands) > 100, f"only {len(commands)} commands are found"
    assert not wrong, "\n".join(wrong)


def check_refused(binary, change, wanted):
    """What make_man1.py says of texts that do not fit."""
    with tempfile.TemporaryDirectory(prefix="reshard-manual-") as folder:
        options = pathlib.Path(folder) / "options"
        options.write_text(change((PAGES / "options").read_text()))
        done = made(binary, PAGES / "reshard-convert.1.scd", options)
    assert done.returncode and wanted in done.stderr, f"exit {done.returncode}: {done.stderr}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    binary = parser.parse_args().bin.resolve()
    verbs = re.findall(r"^  (\w+) ", help_of(binary), re.M)
    cases = [(f"the page of {verb}", check_page, (binary, verb)) for verb in verbs]
    cases += [("every page can be found", check_page_list, (verbs,)),
              ("every variable of the environment is told", check_environment, ()),
              ("every command that is shown is understood", check_commands, (binary, verbs)),
              ("an option without a text is refused", check_refused,
               (binary, lambda text: re.sub(r"@ wrap\n(\t.*\n)+", "", text), "no text for --wrap")),
              ("a text for what is gone is refused", check_refused, (binary, lambda text: text + "@ gone\n\tOnce.\n", "no verb"))]
    failed = 0
    print(f"1..{len(cases)}")
    for number, (name, check, arguments) in enumerate(cases, 1):
        try:
            check(*arguments)
            print(f"ok {number} - {name}")
        except AssertionError as problem:
            failed += 1
            print(f"not ok {number} - {name}\n# " + str(problem).replace("\n", "\n# "))
    return failed > 0


sys.exit(main())
