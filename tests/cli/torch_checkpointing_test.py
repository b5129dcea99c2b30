#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders of torch_checkpointing: a file of each item and rank beside metadata.pkl. Prints TAP.

usage: torch_checkpointing_test.py --bin PATH --root FIXTURES
Real folders are among the fixtures; here they are changed, and others written without torch.
"""
import argparse
import io
import json
import pathlib
import pickle
import shutil
import sys

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub as torch  # noqa: E402


def metadata(world, items=(), version="2.0", **more):
    """As it says where nothing but names is said."""
    said = {item: {"nested_path_to_metadata": {}, "rank_to_layout_info": dict.fromkeys(range(world))} for item in items}
    return {"metadata": said, "world_size": world, "version": version} | more


def entries(items, said):
    """(name, bytes) of a folder; items: {name: [value of each rank]}."""
    for item, values in items.items():
        for rank, value in enumerate(values):
            out = io.BytesIO()
            torch.write_zip(out, value)
            yield f"{item}_{rank}.pt", out.getvalue()
    yield "metadata.pkl", pickle.dumps(said, protocol=4)


def write(folder, items, said):
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, data in entries(items, said):
        (folder / name).write_bytes(data)
    return folder


def weights(*numbers):
    return torch.tensor("ByteStorage", [len(numbers)], bytes(numbers))


def of_ranks():
    """Two ranks, whose items agree, or do not."""
    return {"model": [{"w": weights(1, 2, 3), "deep": [{"b": weights(9)}]} for _ in range(2)], "step": [7, 7], "seed": [10, 11],
            "meta": [{"a": [1, 2.5, None], "s": "x"}] * 2, "epoch_2": [3, 3]}


def found(shell, path):
    return {key: shell.bytes_of(path, key) for key in shell.tensors(path)}


def items(shell, path):
    """{key: value}, but for the parts of values."""
    listed = json.loads(shell("ls", "--items", "--json", path))["items"]
    return {item["key"]: item.get("value") for item in listed if not item["key"].startswith("meta.")}


def read(shell):
    write(shell.work / "c", of_ranks(), metadata(2, ["model"]))
    assert found(shell, "c") == {"model.w": b"\1\2\3", "model.deep.0.b": b"\t"}, found(shell, "c")
    wanted = {"step": 7, "seed": 10, "rank_1.seed": 11, "meta": {"a": [1, 2.5, None], "s": "x"}, "epoch_2": 3}
    assert items(shell, "c") == wanted, items(shell, "c")
    shell("verify", "--deep", "c")
    shell("convert", "c", "c.pt", "--to", "torch", "--no-sync")
    state = torch.load(shell.work / "c.pt")
    assert state["step"] == 7 and state["model"]["deep"][0]["b"].storage.data == b"\t" and state["rank_1"]["seed"] == 11, state
    assert json.loads(shell("inspect", "--json", "c"))["format"] == "torch_checkpointing"


def beside(shell):
    """Files of other names travel; a version 1 is read as well."""
    folder = write(shell.work / "c", of_ranks(), metadata(2, ["model"], "1.0"))
    (folder / "config.json").write_text('{"a": 1}')
    (folder / ".hidden").write_text("no")
    assert {"config.json", "step"} <= set(items(shell, "c")) and ".hidden" not in items(shell, "c")
    shell("convert", "c", "hf", "--to", "hf", "--no-sync")
    assert (shell.work / "hf" / "config.json").read_text() == '{"a": 1}'


def wrong():
    """(items, metadata, exit status, what is said)"""
    own = {"file_path": "weights.safetensors", "serialization_format": {"type": "SafetensorsSerialization"}}
    laid_out = metadata(2, ["model"])
    laid_out["metadata"]["model"]["rank_to_layout_info"][1] = own
    few = of_ranks()
    few["step"] = few["step"][:1]
    return [
        (of_ranks(), laid_out, 5, "item 'model' lies in 'weights.safetensors' (SafetensorsSerialization), a layout of its own"),
        (of_ranks(), metadata(2, ["model", "optimizer"]), 4, "there is no file 'optimizer_0.pt', which has an item"),
        (of_ranks(), metadata(3, ["model"]), 4, "there are files of 2 ranks beside"),
        (of_ranks(), metadata(1, ["model"]), 4, "there are files of 2 ranks beside"),
        (few, metadata(2, ["model"]), 4, "there are files of 1 ranks beside"),
        (of_ranks(), metadata(2, ["model"], "3.0"), 5, "version '3.0', versions 1 and 2 are read"),
        (of_ranks(), metadata(2, ["model"], 2), 4, "it says no version"),
        (of_ranks(), metadata(0, ["model"]), 4, "there is no \"world_size\" of 1 or more"),
        (of_ranks(), metadata(2, metadata=5), 4, "there is no dict \"metadata\""),
        (of_ranks(), metadata(2, metadata={5: {}}), 4, "an item's key is no text"),
    ]


def refused(shell):
    for number, (given, said, status, why) in enumerate(wrong()):
        write(shell.work / "c", given, said)
        text = shell("hash", "c", exit_status=status).decode()
        assert why in text and "metadata.pkl" in text, (number, why, text)
    folder = write(shell.work / "c", of_ranks(), metadata(2, ["model"]))
    (folder / "metadata.pkl").write_bytes(b"nothing")
    assert b"metadata.pkl" in shell("hash", "c", exit_status=4)
    write(folder, of_ranks(), metadata(2, ["model"]))
    (folder / "model_0.pt").unlink()
    assert b"the file of rank 0 beside" in shell("hash", "c", exit_status=4)


def lost(shell):
    """A rank's file that is gone: what others have is saved."""
    folder = write(shell.work / "c", of_ranks(), metadata(2, ["model", "optimizer"]))
    (folder / "model_1.pt").unlink()
    done = shell.any("salvage", "c", "rest", "--to", "torch-dcp", "--no-sync")
    assert done.returncode == 1 and "optimizer" in done.stdout, (done.stdout, done.stderr)
    assert found(shell, "rest") == {"model.w": b"\1\2\3", "model.deep.0.b": b"\t"}


def real(root):
    """What torch_checkpointing wrote, written as other formats."""
    def test(shell):
        cases = sorted((root / "torch_checkpointing").glob("*/manifest.json"))
        assert len(cases) == 2, cases
        for manifest in cases:
            case = json.loads(manifest.read_text())
            source = manifest.parent / case["path"]
            for to in ("torch-dcp", "safetensors", "fsdp-ranks"):
                shell("convert", source, f"{case['case']}.{to}", "--to", to, "--no-sync")
                hashes = {key: t["hash"] for key, t in shell.tensors(f"{case['case']}.{to}").items()}
                assert hashes == {key: t["sha256"] for key, t in case["tensors"].items()}, (case["case"], to)
            copy = shell.work / f"{case['case']}.copy"
            shutil.copytree(source, copy)
            (copy / "metadata.pkl").chmod(0o644)
            (copy / "metadata.pkl").unlink()
            assert b"no known checkpoint format" in shell("inspect", copy, exit_status=5)
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True, type=lambda path: pathlib.Path(path).resolve())
    arguments = parser.parse_args()
    return small_models.run(arguments.bin, [
        ("items of ranks", read), ("files beside", beside), ("what is wrong", refused), ("files that are gone", lost),
        ("what torch_checkpointing wrote", real(arguments.root))])


if __name__ == "__main__":
    sys.exit(main())
