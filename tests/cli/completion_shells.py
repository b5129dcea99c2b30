#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the shells offer when somebody presses Tab: bash, zsh and fish run with the scripts of `reshard completion`. Prints TAP.

usage: completion_shells.py --bin RESHARD
A shell that is not installed is skipped, or, where RESHARD_TEST_REQUIRED is set, as in CI, a failure.
"""
import argparse
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
]

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
    (work / ".zshrc").write_text(ZSH)
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    args = parser.parse_args()
    number = failed = 0
    environment = {**os.environ, "PATH": f"{args.bin.resolve().parent}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    with tempfile.TemporaryDirectory(prefix="reshard-shells-") as folder:
        work = pathlib.Path(folder)
        safetensors(work / "m.safetensors", ["lm_head.weight", "model.embed.weight", "model.norm.weight"])
        for shell in ("bash", "zsh", "fish"):
            if not shutil.which(shell):
                number += 1
                required = bool(os.environ.get("RESHARD_TEST_REQUIRED"))
                failed += required
                print(f"{'not ok' if required else 'ok'} {number} - {shell}{'' if required else ' # SKIP'} is not installed")
                continue
            for line, wanted in CASES:
                number += 1
                found = offers(shell, line, work, {**environment, "HOME": str(work)})
                missing = [word for word in wanted if word not in found]
                failed += bool(missing)
                print(f"{'not ok' if missing else 'ok'} {number} - {shell}: {line}", flush=True)
                if missing:
                    print(f"# lacks {missing} in {found!r}"[:600])
    print(f"1..{number}")
    return failed > 0


sys.exit(main())
