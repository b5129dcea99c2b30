#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What convert may not destroy: its source in all disguises, and whatever is no checkpoint. Prints TAP.

usage: target_test.py --bin PATH --fixtures DIR
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import small_models


def safetensors(tensors):
    header, at = {}, 0
    for key, data in tensors.items():
        header[key] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


class Shell:
    def __init__(self, binary, fixtures, work):
        self.binary, self.fixtures, self.work = binary, fixtures, work
        (work / "in.safetensors").write_bytes(safetensors({f"t{i}": bytes([i]) * 64 for i in range(6)}))

    def __call__(self, *arguments, status=0):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=self.work)
        assert done.returncode == status, f"{arguments}: exit {done.returncode}, not {status}: {done.stderr.strip()[:400]}"
        return done

    def convert(self, target, form="safetensors", *options, source="in.safetensors", status=0):
        return self("convert", source, target, "--to", form, "--quiet", "--overwrite", *options, status=status)

    def picture(self):
        """Everything that lies here: names, kinds, contents."""
        found = {}
        for path in sorted(self.work.rglob("*")):
            name = str(path.relative_to(self.work))
            if path.is_symlink():
                found[name] = os.readlink(path)
            elif path.is_file():
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[name] = "folder" if path.is_dir() else "special"
        return found

    def warned(self, target, form, *options, source, says):
        """Whoever only asks learns the same."""
        for words in ("plan",), ("convert", "--dry-run"):
            done = self(*words, source, target, "--to", form, *options)
            assert any(line.startswith("warning\t") and says in line for line in done.stdout.splitlines()), (words, target, done.stdout)

    def refused(self, target, form="safetensors", *options, source="in.safetensors", status=2, says="", hint="hint: "):
        before = self.picture()
        if status == 2 and says:
            self.warned(target, form, "--overwrite", *options, source=source, says=says)
        done = self.convert(target, form, *options, source=source, status=status)
        assert says in done.stderr and hint in done.stderr, done.stderr
        assert self.picture() == before, f"{target}: something changed"

    def files(self, folder, *names, content="precious"):
        for name in names:
            path = self.work / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def what_is_no_checkpoint_stays(shell):
    shell.files(".", "notes.txt", "data.json", "archive.zip")
    shell.files("folder", "notes.txt")
    shell.files("deep", "a/b/c")
    os.mkfifo(shell.work / "fifo")
    (shell.work / "link").symlink_to("in.safetensors")
    (shell.work / "dangling").symlink_to("nowhere")
    for form in ("safetensors", "hf"):
        for target in ("notes.txt", "data.json", "archive.zip", "folder", "deep"):
            shell.refused(target, form, says=f"'{target}' is no checkpoint")
        shell.refused("fifo", form, says="neither a file nor a folder")
        shell.refused("dangling", form, says="symbolic link")
    (shell.work / "other.safetensors").write_bytes(safetensors({"o": b"1"}))
    shell.refused("link", "hf", source="other.safetensors", says="symbolic link")


def a_checkpoint_among_other_things_stays(shell):
    """A repository or a home folder that happens to hold weights."""
    weights = safetensors({"w": b"old"})
    for name, others, says in (("repository", [".git/HEAD", "train.py", "README.md"], "'.git'"),
                               ("home", [".bashrc", "thesis.tex", "photos/a.jpg", "mail", "todo.txt"], "and 2 more"),
                               ("papers", ["paper.pdf"], "'paper.pdf'"), ("nested", ["sub/thing"], "'sub'"),
                               ("notes", ["notes.txt"], "'notes.txt'")):
        shell.files(name, *others)
        (shell.work / name / "model.safetensors").write_bytes(weights)
        shell.refused(name, "hf", says=says)
        shell.refused(name, "safetensors", says="holds more than a checkpoint")
    shell.convert("dcp", "torch-dcp")
    shell.files("dcp", "evaluation.csv")
    shell.refused("dcp", "torch-dcp", says="'evaluation.csv'")
    (shell.work / "dcp" / "evaluation.csv").unlink()
    (shell.work / "dcp" / "link").symlink_to("/")
    shell.refused("dcp", "torch-dcp", says="'link'")
    shell.convert("zarr", "zarr")
    shell.files("zarr", "t0/../group/thing.csv")
    shell.refused("zarr", "zarr", says="'group/thing.csv'")


def several_checkpoints_stay(shell):
    shell.convert("dcp", "torch-dcp")
    for root, names in (("megatron", ["iter_0000010", "iter_0000020"]), ("trainer", ["checkpoint-5", "checkpoint-10"])):
        for name in names:
            shutil.copytree(shell.work / "dcp", shell.work / root / name)
        shell.refused(root, "hf", says="holds 2 checkpoints")
        shutil.rmtree(shell.work / root / names[0])
        shell.files(f"{root}/{names[1]}", "evaluation.csv")
        shell.refused(root, "hf", says=f"'{names[1]}/evaluation.csv'")
        (shell.work / root / names[1] / "evaluation.csv").unlink()
        shell.convert(root, "hf")
    (shell.work / "final").mkdir()
    (shell.work / "final" / "model.safetensors").write_bytes(safetensors({"w": b"old"}))
    shutil.copytree(shell.work / "dcp", shell.work / "final" / "checkpoint-5")
    shell.refused("final", "hf", says="'checkpoint-5'")


def what_may_be_replaced_is(shell):
    (shell.work / "empty").mkdir()
    (shell.work / "nothing").touch()
    for target, form in (("empty", "hf"), ("nothing", "safetensors"), ("empty", "safetensors"), ("nothing", "hf")):
        shell.convert(target, form)
        shell("diff", "--items", "ignore", "in.safetensors", target)
    shell.files("trainer", "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "README.md", ".gitattributes",
                "trainer_state.json", "optimizer.pt", "rng_state_3.pth", "optimizer.bin", "random_states_0.pkl",
                "global_step5/mp_rank_00_model_states.pt", "latest", "zero_to_fp32.py", "modeling_own.py", "reshard.json", content="{}")
    (shell.work / "trainer" / "model.safetensors").write_bytes(safetensors({"w": b"old"}))
    shell.convert("trainer", "hf")
    assert [p.name for p in (shell.work / "trainer").iterdir()] == ["model.safetensors"]
    shell.files("model", "own_name.py", "notes.md", content="{}")
    (shell.work / "model" / "model.safetensors").write_bytes(safetensors({"w": b"new"}))
    for _ in range(2):  # what a conversion brings along is replaced by the next one
        shell.convert("copy", "hf", source="model")
    assert (shell.work / "copy" / "own_name.py").exists() and (shell.work / "copy" / "notes.md").exists()


def every_format_replaces_every_other(shell):
    formats = [f["name"] for f in json.loads(shell("formats", "--json").stdout)["formats"] if f["writes"] and f["name"] != "megatron"]
    for old in formats:
        for new in formats:
            shell.convert("target", old, "--checksum", "sha256") if old != new else None
            shell.convert("target", new)
    return " ".join(formats)


def fixtures_may_be_replaced(shell):
    """Checkpoints as their frameworks write them hold nothing that is taken for a stranger."""
    count = 0
    for case in sorted(shell.fixtures.glob("*/*/ckpt*")):
        if case.parent.name.startswith("bad-"):
            continue
        target = shell.work / "target"
        shutil.copytree(case, target) if case.is_dir() else shutil.copy(case, target)
        done = shell.convert("target", "hf")
        shutil.rmtree(target)
        count += 1
    assert count > 20, count
    return f"{count} checkpoints"


def indexed(shell, folder):
    """A model of three shards."""
    shell("convert", "in.safetensors", folder, "--to", "hf", "--max-shard-size", "128", "--quiet")
    return sorted(p.name for p in (shell.work / folder).glob("*.safetensors"))


def all_objects_of_the_source_are_the_source(shell):
    shards = indexed(shell, "src")
    assert len(shards) == 3, shards
    index = "src/model.safetensors.index.json"
    shell("hash", index)
    for shard in shards:
        shell.refused(f"src/{shard}", "safetensors", source=index, says="source")
    shell.refused(index, "safetensors", source=index, says="is the source itself")
    shell.refused("src", "hf", source=index, says="source")
    shell.convert("dcp", "torch-dcp", "--layout", "ranks=2")
    for name in ("__0_0.distcp", "__1_0.distcp"):
        shell.refused(f"dcp/{name}", "safetensors", source="dcp/.metadata", says="source")
    shell.convert("dist", "torch_dist")
    common = next((shell.work / "dist").rglob("common.pt"))
    shell.refused(common, "torch", source=common.parent / ".metadata", says="source")
    # Another name of a shard, and a link to it.
    os.link(shell.work / "src" / shards[0], shell.work / "hard.safetensors")
    (shell.work / "soft.safetensors").symlink_to(f"src/{shards[1]}")
    for source in (index, "src"):
        shell.refused("hard.safetensors", "safetensors", source=source, says="source")
        shell.refused("soft.safetensors", "safetensors", source=source, hint="")
    # Beside the index there is room for what is new.
    shell.convert("src/new.safetensors", "safetensors", source=index)
    # What is there already may belong to the model, whether or not the index names it.
    shell.refused("src/new.safetensors", "safetensors", source=index, says="is or holds a file of the source")


def the_source_behind_links(shell):
    """A hub cache: the snapshot's files are links to blobs."""
    (shell.work / "blobs").mkdir()
    (shell.work / "snapshot").mkdir()
    shutil.move(shell.work / "in.safetensors", shell.work / "blobs" / "model.safetensors")
    (shell.work / "snapshot" / "model.safetensors").symlink_to("../blobs/model.safetensors")
    for target, form in (("blobs/model.safetensors", "safetensors"), ("blobs", "hf"),
                         ("snapshot/../blobs/./model.safetensors", "safetensors")):
        shell.refused(target, form, "--follow-links", source="snapshot", says="source")
        shell.refused(target, form, source="snapshot/model.safetensors", says="source")


def spellings_of_the_source(shell):
    indexed(shell, "outer")
    shutil.move(shell.work / "outer", shell.work / "src")
    (shell.work / "outer").mkdir()
    shutil.move(shell.work / "src", shell.work / "outer" / "src")
    (shell.work / "link").symlink_to("outer/src")
    (shell.work / "up").symlink_to("outer")
    for target in ("outer/src", "link", "link/", "./outer//src/.", "up/src", "outer/src/new", "link/new", "up/src/x", "outer", "up",
                   shell.work / "outer" / "src", "."):
        for source in ("outer/src", "link", "up/src/"):
            shell.refused(target, "hf", source=source, hint="")


def a_plan_warns_of_what_is_in_the_way(shell):
    """Without --overwrite it is what exists, whatever it is; nothing is said where there is nothing to say."""
    shell.files("folder", "notes.txt")
    for form in ("safetensors", "hf"):
        shell.convert(f"there-{form}", form)
        for target, says in ((f"there-{form}", "exists"), ("folder", "exists"), ("in.safetensors", "is the source itself"),
                             ("none/out", "cannot write"), ("s3://bucket/out", "URL")):
            before = shell.picture()
            shell.warned(target, form, source="in.safetensors", says=says)
            assert shell.picture() == before, target
        for target, more in ((f"there-{form}", ["--overwrite"]), ("new", [])):
            done = shell("plan", "in.safetensors", target, "--to", form, *more)
            assert "warning" not in done.stdout, (target, done.stdout)


def the_sidecar_of_a_file_replaces_only_its_like(shell):
    (shell.work / "a.safetensors.reshard.json").mkdir()
    shell.files("a.safetensors.reshard.json", "precious")
    for options in (["--checksum", "sha256"], ["--checksum", "crc32c"]):
        shell.refused("a.safetensors", "safetensors", *options, says="'a.safetensors.reshard.json' is in the way")
    shell.files(".", "b.safetensors.reshard.json", content='{"mine": true}')
    shell.refused("b.safetensors", "safetensors", "--checksum", "sha256", says="is in the way")
    (shell.work / "c.safetensors.reshard.json").symlink_to("b.safetensors.reshard.json")
    shell.refused("c.safetensors", "safetensors", "--checksum", "sha256", says="is in the way")
    for _ in range(2):
        shell.convert("d.safetensors", "safetensors", "--checksum", "sha256")
    (shell.work / "d.safetensors").unlink()
    before = shell.picture()
    done = shell("convert", "in.safetensors", "d.safetensors", "--to", "safetensors", "--checksum", "sha256", status=3)
    assert "'d.safetensors.reshard.json'" in done.stderr and shell.picture() == before, done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--fixtures", required=True)
    args = parser.parse_args()
    checks = (what_is_no_checkpoint_stays, a_checkpoint_among_other_things_stays, several_checkpoints_stay, what_may_be_replaced_is,
              every_format_replaces_every_other, fixtures_may_be_replaced, all_objects_of_the_source_are_the_source,
              the_source_behind_links, spellings_of_the_source, a_plan_warns_of_what_is_in_the_way,
              the_sidecar_of_a_file_replaces_only_its_like)
    fixtures = pathlib.Path(args.fixtures).resolve()
    return small_models.run(args.bin, [(check.__name__, lambda shell, check=check: check(Shell(shell.binary, fixtures, shell.work)))
                                       for check in checks])


sys.exit(main())
