#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the shells offer when somebody presses Tab: bash, zsh and fish run with the scripts of `reshard completion`. Prints TAP.

usage: completion_shells.py --bin RESHARD
A shell that is not installed is skipped, or, where RESHARD_TEST_REQUIRED is set, as in CI, a failure.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time

# A line, and what must be among the offers; words that complete the line are offered as wholes or from the last separator on.
CASES = [
    ("reshard ver", ["verify"]),
    ("reshard convert a b --to torch-", ["torch-dcp"]),
    ("reshard convert a b --to megatron --layout ", ["tp=", "pp="]),
    ("reshard convert a b --to megatron --layout tp=2,e", ["ep=", "etp="]),
    ("reshard convert a b --to megatron -o padded", ["padded-vocab="]),
    ("reshard cat m.safetensors model.", ["model.norm.weight", "model.embed.weight"]),
    ("reshard map inv", ["invert"]),
    ("reshard formats safe", ["safetensors"]),
    ("reshard help conv", ["convert"]),
    ("reshard convert m.safetensors b --include lm", ["lm_head.weight"]),
    ("reshard hash --digest xx", ["xxh3"]),
    ("reshard convert --checks", ["--checksum"]),
    ("reshard --json ls --tree m.safetensors mod", ["model.norm.weight", "model.embed.weight"]),
    ("reshard convert --json -j 2 m.safetensors b --inc", ["--include"]),
    ("reshard convert m.safetensors b --to=fsdp-", ["fsdp-ranks"]),
    ("reshard convert --to megatron m.safetensors b --layout=tp=2,e", ["ep=", "etp="]),
    ("reshard verify m.safetensors --fail-on nan,z", ["zero"]),
    ("reshard plan m.safetensors --limit json_", ["json_bytes="]),
    ("reshard convert m.safetensors b --dtype bf", ["bf16"]),
    ("reshard convert m.safetensors b --missing z", ["zeros"]),
    ("reshard inspect m.saf", ["m.safetensors"]),
    ("reshard plan x.safetensors --like m.saf", ["m.safetensors"]),
]

# What stands for values in --help, and what is offered there: words of the answer, or "files"; nothing where only the user knows.
VALUES = {"FORMAT": ["torch-dcp", "hf"], "WORDS": ["tp=", "ranks="], "OPTION=VALUE": ["padded-vocab="], "LIMIT=VALUE": ["json_depth="],
          "GLOB": ["lm_head.weight"], "[GLOB=]TYPE": ["bf16", "f32"], "PATH": ["\tfiles"], "FILE": ["\tfiles"], "REF": ["\tfiles"],
          "SIBLING": ["\tfiles"], "FAMILY": ["llama", "qwen3"],
          **dict.fromkeys(("TEXT", "N", "I/N", "SIZE", "REGEX", "VALUE", "STATEMENT", "NAME=N", "A:B,…", "ABS[,REL]",
                           "s/RE/NEW/", "'GLOB -> GLOB'"), [])}

BASH = r'''eval "$(reshard completion bash)"
line=$1; COMP_LINE=$line; COMP_POINT=${#line}; words=${line//=/ = }; COMP_WORDS=($words)
case $line in *' ') COMP_WORDS+=('') ;; esac
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _reshard; printf '%s\n' "${COMPREPLY[@]}"'''
FISH = "reshard completion fish | source; complete -C $argv[1] | cut -f1"
ZSH = r'''autoload -Uz compinit; compinit -u -D; eval "$(reshard completion zsh)"
zstyle ':completion:*' list-prompt ''
setopt no_beep no_always_last_prompt list_ambiguous; unsetopt auto_menu; PS1='> '
bindkey '^I' complete-word; bindkey '^X' list-choices
print READY
'''


def safetensors(path, keys):
    header = {key: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, key in enumerate(keys)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(len(keys)))


def read_until(terminal, quiet_for):
    text, last = b"", time.monotonic()
    while time.monotonic() - last < quiet_for:
        if select.select([terminal], [], [], 0.05)[0]:
            text, last = text + os.read(terminal, 65536), time.monotonic()
    return text.decode("utf-8", "replace")


def zsh_offers(line, work, environment):
    """Types the line into a zsh on a terminal, and asks for the choices; a single one is typed out by Tab."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(work)
        os.execvpe("zsh", ["zsh", "-i"], {**environment, "ZDOTDIR": str(work), "TERM": "dumb", "COLUMNS": "200"})
    try:
        text = ""
        for _ in range(100):
            text += read_until(terminal, 0.1)
            if "READY" in text:
                break
        os.write(terminal, line.encode() + b"\x18")
        shown = read_until(terminal, 1.0)
        os.write(terminal, b"\t")
        shown += read_until(terminal, 0.7)
    finally:
        os.write(terminal, b"\x03\x04")
        os.close(terminal)
        os.waitpid(pid, 0)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def offers(shell, line, work, environment):
    if shell == "zsh":
        return zsh_offers(line, work, environment)
    words = ["bash", "-c", BASH, "bash", line] if shell == "bash" else ["fish", "-N", "-c", FISH, "--", line]
    return subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True, timeout=60).stdout


def answer(environment, work, *words):
    done = subprocess.run(["reshard", "completion", "words", "--", *words], cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = [line if line.startswith("\t") else line.split("\t")[0] for line in done.stdout.splitlines()]
    assert len(names) == len(set(names)), f"offered twice: {words}: {sorted(names)}"
    return set(names)


def help_of(environment, *words):
    return subprocess.run(["reshard", *words, "--help"], env=environment, capture_output=True, text=True, check=True).stdout


def wanted_of(argument):
    """The answer to an argument of --help: lower case is typed as it stands, the rest are kinds of values."""
    for one in argument.split("|"):
        if re.fullmatch(r"[a-z0-9,-]+", one):
            yield from one.split(",")
        else:
            yield from VALUES[one]


def table_problems(environment, work):
    """Every verb, every option of every verb in both spellings, and the values of each, as --help has them."""
    verbs = re.findall(r"^  (\w+) ", help_of(environment), re.M)
    if answer(environment, work, "") != set(verbs):
        yield f"verbs: {answer(environment, work, '')}"
    for verb in verbs:
        rows = re.findall(r"^  (?:   |(-\w),) (--[\w-]+)(?: ('?[^ ]+(?: -> GLOB')?))?  ", help_of(environment, verb), re.M)
        offered, named = answer(environment, work, verb, "-"), [name for _, name, _ in rows]
        if offered != set(named):
            yield f"{verb}: options {sorted(offered ^ set(named))}"
        for short, name, argument in rows:
            for words in ([name], [short]) if argument and short else ([name],) if argument else ():
                found = answer(environment, work, verb, "m.safetensors", *words, "")
                for wanted in wanted_of(argument):
                    if wanted not in found:
                        yield f"{verb} {words[0]} {argument}: {wanted!r} is not among {sorted(found)[:20]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    args = parser.parse_args()
    number = failed = 0
    environment = {**os.environ, "PATH": f"{args.bin.resolve().parent}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    with tempfile.TemporaryDirectory(prefix="reshard-shells-") as folder:
        work = pathlib.Path(folder)
        safetensors(work / "m.safetensors", ["lm_head.weight", "model.embed.weight", "model.norm.weight"])
        (work / ".zshrc").write_text(ZSH)
        problems = list(table_problems(environment, work))
        number, failed = 1, bool(problems)
        print(f"{'not ok' if problems else 'ok'} 1 - every option of every verb, and its values")
        for problem in problems[:20]:
            print(f"# {problem}"[:400])
        for shell in ("bash", "zsh", "fish"):
            if not shutil.which(shell):
                number += 1
                required = bool(os.environ.get("RESHARD_TEST_REQUIRED"))
                failed += required
                print(f"{'not ok' if required else 'ok'} {number} - {shell}{'' if required else ' # SKIP'} is not installed")
                continue
            with concurrent.futures.ThreadPoolExecutor(4) as pool:  # a zsh on a terminal is mostly waited for
                answers = list(pool.map(lambda case: offers(shell, case[0], work, {**environment, "HOME": str(work)}), CASES))
            for (line, wanted), found in zip(CASES, answers):
                number += 1
                missing = [word for word in wanted if word not in found]
                failed += bool(missing)
                print(f"{'not ok' if missing else 'ok'} {number} - {shell}: {line}", flush=True)
                if missing:
                    print(f"# lacks {missing} in {found!r}"[:600])
    print(f"1..{number}")
    return failed > 0


sys.exit(main())
