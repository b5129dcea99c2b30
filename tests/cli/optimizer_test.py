#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""State of Megatron's optimizers, whichever layout and kind of optimizer it comes from and goes to: tensors, steps, groups, scalers, and
what belongs to ranks. Prints TAP.

usage: optimizer_test.py --bin PATH --fixtures DIR
"""
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import small_models
import torch_stub

COMMON, METADATA, RANK = "iter_0000010/common.pt", "iter_0000010/.metadata", "iter_0000010/mp_rank_00/model_optim_rng.pt"
REFERENCES = ("dense-dpr-dp2", "dense-full-tp2dp2", "old-modelspace-v0.14.0-dp2", "old-gather-v0.12.3-dp2", "plain-dist-tp1",
              "dense-legacy-dp2", "plain-legacy-tp1")


def fixture(fixtures, case):
    return fixtures / "megatron" / f"megatron-{case}" / "ckpt"


def copied(shell, fixtures, case, target):
    """A copy of a checkpoint that may be changed."""
    made = shell.work / target
    shutil.copytree(fixture(fixtures, case), made)
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return made


def item(shell, path, key):
    return json.loads(shell("cat", path, key))


def converted(shell, source, target, *words):
    """What is said of a conversion that succeeds."""
    done = shell.any("convert", source, target, *words)
    assert done.returncode == 0, (words, done.stderr)
    return done.stderr


def refused(shell, source, target, *words, status=5):
    said = shell("convert", source, target, *words, exit_status=status).decode()
    assert not (shell.work / target).exists(), said
    return said


def by_parameter(shell, path):
    """{key: digest} with one tensor for each parameter and kind of state, and one name for masters."""
    shell("convert", path, "by-parameter", "--to", "torch_dist", "-o", "optimizer=fully_reshardable", "--overwrite", "--quiet")
    return {key.replace(".fp32_param.", ".param."): (t["dtype"], t["shape"], t["hash"]) for key, t in shell.tensors("by-parameter").items()}


# ---- references ----

def references_have_their_own_layout(shell, fixtures):
    """State in the layout and under the names of the reference is all of it: nothing is missing, and what is read back is what was."""
    for case in ("dense-full-tp2dp2", "dense-dpr-dp2", "plain-dist-tp1"):
        source = fixture(fixtures, f"optim-{case}")
        before = by_parameter(shell, source)
        for like in REFERENCES:
            for number, missing in enumerate(([], ["--missing", "error"], ["--missing", "zeros"])):
                said = converted(shell, source, "out", "--like", fixture(fixtures, f"optim-{like}"), "--overwrite", "--verify", *missing)
                assert "not written" not in said, (case, like, said)
                found = shell.tensors("out")
                assert number == 0 or found == first, (case, like, missing, sorted(found.keys() ^ first.keys())[:4])
                first = found
            assert by_parameter(shell, "out") == before, (case, like)
            wanted = {key for key in shell.tensors(fixture(fixtures, f"optim-{like}"))}
            if "legacy" not in like:
                assert "tp2" in like or {key for key in found if "optimizer" in key} == {key for key in wanted if "optimizer" in key}, like


def lacks_are_told_by_parameter(shell, fixtures):
    """What the source lacks of a reference by bucket are the states of parameters, and zeros in their place are the buckets."""
    source, like = fixture(fixtures, "dense-dist-tp1"), fixture(fixtures, "optim-dense-dpr-dp2")
    said = converted(shell, source, "out", "--like", like)
    assert "27 tensors of the reference are not written, as the source lacks them: 'optimizer.state." in said, said
    said = refused(shell, source, "none", "--like", like, "--missing", "error")
    assert "the source lacks 27 tensors of the reference: 'optimizer.state." in said, said


def state_that_is_stored_twice(shell, fixtures):
    """Where a state is there by bucket and by parameter, nobody knows which of the two counts."""
    folder = copied(shell, fixtures, "optim-dense-dpr-dp2", "twice")
    old, new = "decoder.final_layernorm.weight", "optimizer.state.param.decoder.final_layernorm.weight"

    def both(metadata):
        state = metadata.state
        state["state_dict_metadata"][new] = state["state_dict_metadata"][old].remade()
        for index in [index for index in state["storage_data"] if index.state["fqn"] == old]:
            state["storage_data"][index.remade(fqn=new)] = state["storage_data"][index]
    torch_stub.edit_pickle(folder / METADATA, both)
    assert new in shell.tensors("twice")
    said = refused(shell, "twice", "out", "--to", "torch_dist", "-o", "optimizer=fully_reshardable", status=4)
    assert f"'{new}' is stored by bucket and by parameter" in said, said


def main():
    args = small_models.arguments()
    tests = (references_have_their_own_layout, lacks_are_told_by_parameter, state_that_is_stored_twice)
    return small_models.run(args.bin, [(test.__doc__, lambda shell, test=test: test(shell, args.fixtures)) for test in tests])


if __name__ == "__main__":
    raise SystemExit(main())
