#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a link out of a checkpoint's folder leads to shows nowhere, and the link is named. Prints TAP.

usage: links_test.py --bin PATH
"""
import argparse
import json
import pathlib
import re
import shutil
import struct
import subprocess

import small_models

SIZE = 54321
SECRET = b"secret" + b"s" * (SIZE - 6)
CARRY_FILES = ("hf", "torch-dcp", "torch_dist", "paddle-flex", "paddle-uc", "atorch")
NOTE = "leads out of the checkpoint's directory"


class Shell:
    def __init__(self, binary, work):
        self.binary, self.work = binary, work
        (work / "outside").mkdir()
        (work / "outside" / "note").write_bytes(SECRET)
        text = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
        self.model = struct.pack("<Q", len(text)) + text + bytes(range(8))
        (work / "in").mkdir()
        (work / "in" / "model.safetensors").write_bytes(self.model)

    def __call__(self, *arguments, status=0):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, timeout=120, cwd=self.work)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == status, f"{arguments}: exit {done.returncode}, not {status}: {out[:300]} {err[:300]}"
        return out, err

    def link(self, name, target):
        (self.work / "in" / name).symlink_to(target)


def files_of(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def is_silent(*texts):
    for text in texts:
        for sign in (str(SIZE), f"{SIZE / 1024:.1f}", f"{SIZE / 1000:.1f}", "secret"):
            assert sign not in text, text


def side_file(shell, target, source="in"):
    shell.link("tokenizer.json", target)
    plain = [["ls", "--items"], ["ls", "--items", "--json"], ["inspect"], ["inspect", "--verbose"], ["inspect", "--json"], ["verify"],
             ["verify", "--json"], ["verify", "--deep"]]
    for arguments in plain:
        out, err = shell(*arguments, source)
        is_silent(out, err)
        if arguments != ["ls", "--items"]:
            assert NOTE in out and "tokenizer.json" in out, f"{arguments}: {out}"
    warnings = json.loads(shell("verify", "--json", source)[0])
    assert any(f["severity"] == "warning" and "tokenizer.json" in f["text"] for f in warnings["findings"]), warnings
    assert json.loads(shell("ls", "--items", "--json", source)[0])["items"] == []
    out, err = shell("convert", source, "out", "--to", "hf")
    is_silent(out, err)
    assert "tokenizer.json" not in files_of(shell.work / "out"), files_of(shell.work / "out")
    shell("cat", source, "tokenizer.json", status=2)


def side_file_beside(shell):
    side_file(shell, "../outside/note")


def side_file_elsewhere(shell):
    side_file(shell, shell.work / "outside" / "note")


def nothing_behind_the_link(shell):
    """Whether there is a target at all does not show either."""
    shell.link("tokenizer.json", "../outside/note")
    def shown():
        verbs = (["inspect", "--json"], ["ls", "--items", "--json"], ["verify", "--json"])
        return [re.sub(r'"seconds":[0-9.]+', "", str(shell(*verb, "in"))) for verb in verbs]
    before = shown()
    (shell.work / "outside" / "note").unlink()
    assert before == shown()


def followed_when_asked(shell):
    shell.link("tokenizer.json", "../outside/note")
    out, _ = shell("ls", "--items", "--json", "--follow-links", "in")
    listed = json.loads(out)
    assert [i["key"] for i in listed["items"]] == ["tokenizer.json"] and str(SIZE) in out, out
    assert listed["warnings"] == [], out
    shell("convert", "--follow-links", "in", "out", "--to", "hf")
    assert (shell.work / "out" / "tokenizer.json").read_bytes() == SECRET


def links_inside_are_no_matter(shell):
    (shell.work / "in" / "vocabulary").write_bytes(SECRET)
    shell.link("tokenizer.json", "vocabulary")
    out, _ = shell("ls", "--items", "--json", "in")
    assert str(SIZE) in out and json.loads(out)["warnings"] == [], out
    assert NOTE not in shell("verify", "in")[0]


def many_links(shell):
    for i in range(40):
        shell.link(f"{i:02}.json", "../outside/note")
    out, _ = shell("inspect", "--verbose", "in")
    named = [i for i in range(40) if f"'{i:02}.json'" in out]
    assert len(named) < 40 and "further symbolic links lead out" in out, out
    assert "'31.json'" in out and "further" not in shell("inspect", "--verbose", "--follow-links", "in")[0], out


def hub_cache(shell):
    """snapshots/REVISION/FILE -> ../../blobs/HASH: refused with the hint, followed when asked, or when the link itself is named."""
    snapshot = shell.work / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (shell.work / "blobs").mkdir()
    for name, content in (("model.safetensors", shell.model), ("config.json", b"{}")):
        (shell.work / "blobs" / f"of-{name}").write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/of-{name}")
    _, err = shell("ls", snapshot, status=5)
    assert err.count("--follow-links") == 1, err
    out, _ = shell("ls", "--items", "--json", "--follow-links", snapshot)
    assert [i["key"] for i in json.loads(out)["items"]] == ["config.json"], out
    assert json.loads(shell("ls", "--json", snapshot / "model.safetensors")[0])["tensors"], "a link that is named is followed"


def payload_behind_a_link(shell):
    """The error names the link and the way out, in every format whose files are looked up by name."""
    for form in ("torch-dcp", "zarr", "torch_dist"):
        folder = shell.work / form
        shell("convert", shell.work / "in", folder, "--to", form)
        for name in files_of(folder):
            copy = shell.work / "copy"
            shutil.copytree(folder, copy)
            shutil.move(copy / name, shell.work / "outside" / "payload")
            (copy / name).symlink_to(shell.work / "outside" / "payload")
            done = subprocess.run([shell.binary, "verify", "--deep", copy], capture_output=True, text=True, timeout=120)
            assert done.returncode in (0, 1, 4, 5), f"{form} {name}: exit {done.returncode}: {done.stderr}"
            said = done.stdout + done.stderr
            assert said.count("--follow-links") <= 1 or done.stdout, f"{form} {name}: the way out is said twice: {said}"
            assert pathlib.Path(name).name in said and ("leads out" in said or "--follow-links" in said), f"{form} {name}: {said}"
            before = subprocess.run([shell.binary, "hash", folder], capture_output=True, text=True, timeout=120)
            after = subprocess.run([shell.binary, "hash", "--follow-links", copy], capture_output=True, text=True, timeout=120)
            assert after.returncode == 0 and before.stdout == after.stdout, f"{form} {name}: {after.stderr}"
            shutil.rmtree(copy)


def side_file_of_any_format(shell):
    """Whoever writes folders that carry such files along: what a link leads to outside is no item there, and a file is."""
    for form in CARRY_FILES:
        folder = shell.work / form
        shell("convert", "in", folder, "--to", form)
        folder = folder / "release" if (folder / "release").exists() else folder
        (folder / "tokenizer.json").symlink_to(shell.work / "outside" / "note")
        listed = json.loads(shell("ls", "--items", "--json", folder)[0])
        assert "tokenizer.json" not in str(listed["items"]) and NOTE in str(listed["warnings"]), f"{form}: {listed}"
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.json").write_bytes(SECRET)
        listed = json.loads(shell("ls", "--items", "--json", folder)[0])
        assert "tokenizer.json" in [item["key"] for item in listed["items"]] and not listed["warnings"], f"{form}: {listed}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    options = parser.parse_args()
    cases = [side_file_beside, side_file_elsewhere, nothing_behind_the_link, followed_when_asked, links_inside_are_no_matter, many_links,
             hub_cache, payload_behind_a_link, side_file_of_any_format]
    return small_models.run(options.bin,
                            [(case.__name__, lambda shell, case=case: case(Shell(shell.binary, shell.work))) for case in cases])


if __name__ == "__main__":
    raise SystemExit(main())
