#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a manual page of section 1: the page from standard input, with "@options" replaced by what its verb takes.

usage: make_man1.py SCDOC RESHARD OPTIONS FOLDER < PAGE      SCDOC "-": the page as scdoc would get it

Which options there are and how they are spelled is what `RESHARD VERB --help` prints; what they mean stands in OPTIONS (docs/man/options).
An option without a text, and a text for an option that no such verb takes, fail. Documents of the tree are named by the place where they
are installed, FOLDER.
"""
import pathlib
import re
import subprocess
import sys


def help_of(command, *words):
    return subprocess.run([command, *words, "--help"], capture_output=True, text=True, check=True).stdout


def options_of(command, verb):
    """[(short or "", name, argument or "")]"""
    return re.findall(r"^  (?:   |(-\w),) --([\w-]+)(?: ('?[^ ]+(?: -> GLOB')?))?  ", help_of(command, verb), re.M)


def heading(short, name, argument):
    """What is typed as it stands is bold, what stands for a value underlined."""
    words = [f"*{one}*" if re.fullmatch(r"[a-z0-9,-]+", one) else f"_{one}_" for one in argument.split("|") if one]
    return (f"*{short}*, " if short else "") + f"*--{name}*" + (" " + "|".join(words) if words else "")


def read_texts(path):
    """{option: {verb or None: text}}"""
    texts = {}
    for part in re.split(r"^@ ", path.read_text(), flags=re.M)[1:]:
        (name, *verbs), text = part.split("\n", 1)[0].split(), part.split("\n", 1)[1]
        for verb in verbs or [None]:
            if verb in texts.setdefault(name, {}):
                sys.exit(f"{path}: two texts for --{name} of {verb or 'all others'}")
            texts[name][verb] = text
    return texts


def check_texts(texts, command, path):
    """Each text is of an option that its verb takes."""
    takes = {verb: {name for _, name, _ in options_of(command, verb)} for verb in re.findall(r"^  (\w+) ", help_of(command), re.M)}
    for name, by_verb in texts.items():
        for verb in by_verb:
            if not any(name in takes.get(one, ()) for one in ([verb] if verb else takes.keys() - by_verb.keys())):
                sys.exit(f"{path}: no verb{f' {verb}' if verb else ' beside those named'} takes --{name}")


def options_section(texts, command, verb):
    entries = []
    for short, name, argument in options_of(command, verb):
        text = texts.get(name, {}).get(verb) or texts.get(name, {}).get(None)
        if not text:
            sys.exit(f"docs/man/options has no text for --{name} of {verb}")
        entries.append(f"{heading(short, name, argument)}\n{text.rstrip()}\n".replace("@VERB@", verb))
    return "\n".join(entries).rstrip()


def main():
    scdoc, command, options, folder = sys.argv[1:]
    page = sys.stdin.read()
    verb = re.match(r"reshard-(\w+)\(1\)", page)
    if "\n@options\n" in page:
        texts = read_texts(pathlib.Path(options))
        check_texts(texts, command, options)
        # The page of the command itself has the options that every verb takes: `help` takes no others.
        page = page.replace("\n@options\n", f"\n{options_section(texts, command, verb[1] if verb else 'help')}\n")
    folder = folder.replace("_", "\\_")
    page = re.sub(r"docs/([a-z-]*\.md|schemas/)", lambda match: f"{folder}/{match[1]}", page)
    page = page.replace("models/README.md", f"{folder}/models/README.md")
    if scdoc == "-":
        print(page, end="")
        return 0
    return subprocess.run([scdoc], input=page, text=True, check=False).returncode


sys.exit(main())
