#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""atorch's flat parameters: files for other world sizes and wrappings byte by byte, pickles as Python writes them, what is refused and
what it says, and how little is read for one tensor. Prints TAP.

usage: atorch_test.py --bin PATH --spy LIBRARY --root DIR
DIR/atorch-fsdp has what atorch itself wrote.
"""
import argparse
import filecmp
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import types

import small_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import torch_stub  # noqa: E402

SIZES = (1, 2, 3, 4)


class Size(tuple):
    """torch.Size, for Python's own pickle."""

    def __reduce__(self):
        return Size, (tuple(self),)


Size.__module__, Size.__qualname__, Size.__name__ = "torch", "Size", "Size"
sys.modules.setdefault("torch", types.ModuleType("torch")).Size = Size


def folder(root, case):
    inner = root / "atorch-fsdp" / case / "ckpt"
    return inner / "iter_17" if (inner / "iter_17").exists() else inner


def must_be_same(a, b, without=()):
    names = sorted(p.name for p in a.iterdir())
    assert names == sorted(p.name for p in b.iterdir()), (names, sorted(p.name for p in b.iterdir()))
    same, other, failed = filecmp.cmpfiles(a, b, [n for n in names if n not in without], shallow=False)
    assert not other and not failed, (other, failed)


def header(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def other_world_sizes(root):
    def test(shell):
        for a in SIZES:
            for b in SIZES:
                shell("convert", folder(root, f"atorch-w{a}"), f"w{a}-{b}", "--to", "atorch", "--layout", f"ranks={b}", "--quiet")
                must_be_same(folder(root, f"atorch-w{b}"), shell.work / f"w{a}-{b}")
        shell("convert", folder(root, "atorch-bf16-w2"), "bf16", "--to", "atorch", "--layout", "ranks=4", "--quiet")
        must_be_same(folder(root, "atorch-bf16-w4"), shell.work / "bf16")
        shell("convert", folder(root, "atorch-noorig-w2"), "noorig", "--to", "atorch", "--layout", "ranks=4", "--quiet")
        must_be_same(folder(root, "atorch-noorig-w4"), shell.work / "noorig")
    return test


def written_again(root):
    def test(shell):
        cases = [p.name for p in sorted((root / "atorch-fsdp").iterdir()) if p.name.startswith("atorch-")]
        for case in cases:
            shell("convert", folder(root, case), case, "--to", "atorch", "--quiet", "--verify")
            must_be_same(folder(root, case), shell.work / case)
        assert len(cases) > 20
    return test


def other_wrappings(root):
    def test(shell):
        source = folder(root, "atorch-w2")
        for rule in "h.*|h.*.attn|tiny", r"^(h\.\d+(\.attn)?|tiny)\.":
            shell("convert", source, "wrapped", "--to", "atorch", "--wrap", rule, "--layout", "ranks=3", "--quiet", "--overwrite")
            assert "ranks\t3" in shell("inspect", "wrapped").decode()
            must_be_same(folder(root, "atorch-w3"), shell.work / "wrapped", without=["ckpt_meta"])     # classes of modules have no rule
        for case in "rewrap", "rootonly", "mp-bf16", "noorig-w4", "hsdp", "w4":
            shell("convert", folder(root, "atorch-w3"), case, "--like", folder(root, f"atorch-{case}"), "--quiet")
            must_be_same(folder(root, f"atorch-{case}"), shell.work / case, without=["optim_meta"])
            a, b = (json.loads(shell("ls", "--chunks", "--json", p))["tensors"] for p in (folder(root, f"atorch-{case}"), case))
            assert [t for t in a if t["key"] != "none"] == [t for t in b if t["key"] != "none"]
        for case in "w1", "w2", "w4", "mp-bf16", "rewrap", "hsdp":                                       # whatever the units
            words = ["--to", "atorch", "--layout", "ranks=3", "-o", "compute=f32", "--overwrite", "--wrap"]
            said = json.loads(shell("convert", folder(root, f"atorch-{case}"), "anew", *words, "root", "--json"))
            assert not any("tells" in text for text in said["changed"]), said
            must_be_same(folder(root, "atorch-rootonly"), shell.work / "anew")
            shell("convert", folder(root, f"atorch-{case}"), "anew", *words, "h.*|h.*.attn|tiny", "--quiet")
            must_be_same(folder(root, "atorch-w3"), shell.work / "anew", without=["ckpt_meta"])
        for rule, near in (("transformer.h.*", "'h.*'"), ("h.*|tinny", "'tiny'"), (r"^(g\.\d+)\.", "'root'")):
            said = shell("convert", source, "none", "--to", "atorch", "--wrap", rule, exit_status=2).decode()
            assert "names no module" in said and near in said and not (shell.work / "none").exists(), said
        words = ["--to", "atorch", "--wrap", "root", "--json"]                                           # groups of units tell no order
        said = json.loads(shell("convert", folder(root, "atorch-noorig-w2"), "told", *words))["changed"]
        assert any(text.startswith("tiny: nothing in the source tells whether the model has it behind 'h'") for text in said), said
        shell("convert", source, "root", "--to", "atorch", "--wrap", "root", "--quiet")
        assert list(header(shell.work / "root" / "flat_param.00000-00002")[0]) == [""]
        shell("convert", source, "dcp", "--to", "torch-dcp", "--quiet")                              # through a format without units
        shell("convert", "dcp", "back", "--like", folder(root, "atorch-w3"), "--quiet")
        must_be_same(folder(root, "atorch-w3"), shell.work / "back", without=["optim_meta"])
    return test


def chunks_like_the_reference(root):
    """What has the same content and is written like a case has its files, boxes, runs and copies, and shapes that the source forgot."""
    def test(shell):
        def chunks(path):
            return sorted((t["key"], t["dtype"], t["shape"], [sorted(c.items()) for c in t["chunks"]])
                          for t in json.loads(shell("ls", "--chunks", "--json", path))["tensors"])

        linked = checked = 0
        for manifest in sorted((root / "atorch-fsdp").glob("atorch-*/manifest.json")):
            case, also = manifest.parent.name, json.loads(manifest.read_text()).get("also") or {}
            for other in also.get("same_content_as") or []:
                linked += 1
                if linked % 4 == 0 or other == "atorch-async":  # a fourth of them, and the one that forgets shapes
                    shell("convert", folder(root, other), "like", "--like", folder(root, case), "--quiet", "--overwrite")
                    assert chunks("like") == chunks(folder(root, case)), f"{other} like {case}"
                    checked += 1
        assert checked > 30, checked
    return test


def padding_beyond_a_shard(root):
    """Where atorch's own loader fails: more padding than a shard has elements."""
    def test(shell):
        shell("convert", folder(root, "atorch-w3"), "w24", "--to", "atorch", "--layout", "ranks=24", "--quiet", "--verify")
        shell("diff", "w24", folder(root, "atorch-w3"), "--items", "ignore")
        last = header(shell.work / "w24" / "flat_param.00023-00024")
        at = last[0]["tiny"]["data_offsets"]
        assert last[1][at[0]:at[1]] == struct.pack("<f", 42)
        meta = pickle.loads((shell.work / "w24" / "flat_meta.00023-00024").read_bytes())
        assert meta["flat_param_meta"]["tiny"]["numels_with_padding"] == (3, 21) and "tiny.scale" not in meta["param_meta"]
        names = {n for r in range(24) for n in pickle.loads((shell.work / "w24" / f"flat_meta.{r:05}-00024").read_bytes())["param_meta"]}
        assert names >= {"h.0.void", "h.1.void"}
        shell("convert", folder(root, "atorch-w3"), "w50", "--to", "atorch", "--layout", "ranks=50", "--quiet")
        shell("diff", "w50", folder(root, "atorch-w3"), "--items", "ignore")               # h.0.void lies between two shards
    return test


def pickles_as_python_writes_them(root):
    def test(shell):
        shared = "x" * 300
        values = [
            [{"lr": 0.1, "params": []}], [], [{f"k{i}": i for i in range(2500)}],
            [{"params": [], "n": [i % 70000 - 5 for i in range(3001)]}],
            [{"a": shared, "b": shared, "c": (shared, shared), "t": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4))}],
            [{"long": "y" * 70000, "bytes": b"z" * 70000, "few": b"q"}, {"more": ["w" * 1000 + str(i) for i in range(200)]}],
            [{"big": 2**70, "low": -2**31 - 1, "f": float("inf"), "none": None, "yes": True, "set": {1}, "frozen": frozenset([2])}],
        ]
        for i, value in enumerate(values):
            shutil.copytree(folder(root, "atorch-w2"), shell.work / f"in{i}")
            path = shell.work / f"in{i}" / "optim_meta"
            path.chmod(0o644)
            path.write_bytes(pickle.dumps(value, 4))
            shell("convert", f"in{i}", f"out{i}", "--to", "atorch", "--quiet")
            made = (shell.work / f"out{i}" / "optim_meta").read_bytes()
            assert made == pickle.dumps(value, 4), i
    return test


def names(root):
    def test(shell):
        w2 = folder(root, "atorch-w2")
        shell("convert", w2, "long", "--to", "atorch", "--add-prefix", "glm.", "--quiet")
        meta = pickle.loads((shell.work / "long" / "flat_meta.00000-00002").read_bytes())
        assert "glm.h.0" in meta["flat_param_meta"] and meta["param_meta"]["glm.h.0.gate"]["param_names"] == "gate"
        assert pickle.loads((shell.work / "long" / "optim_meta").read_bytes())[0]["params"][0] == "glm.emb.weight"
        shell("convert", "long", "short", "--to", "atorch", "--strip-prefix", "glm.", "--quiet")
        must_be_same(w2, shell.work / "short")
        said = shell("cat", w2, "bn.runing_mean", exit_status=2)
        assert b"did you mean 'bn.running_mean'" in said, said
        for key in ("bn.weight", "h.0.gate", "h.0.ln.bias", "h.1.mlp.fc.weight"):    # a parameter among others without states
            shell("convert", w2, "some", "--to", "atorch", "--exclude", key + "-*", "--verify", "--overwrite", "--quiet")
            before, after = (set(shell("ls", path).decode().splitlines()) for path in (w2, "some"))
            assert sorted(line.split("\t")[0] for line in before - after) == [f"{key}-{s}" for s in ("exp_avg", "exp_avg_sq", "step")]
            assert not after - before, after - before
        for rename in (r"s/^tiny\.scale/scale/", r"s/^h\.0\.mlp\.fc\.weight/h.0.fc.weight/"): # in no module, or no longer in one as deep
            said = shell("convert", w2, "lost", "--to", "atorch", "--rename", rename, "--quiet", exit_status=5).decode()
            assert "two units would be called ''" in said and "hint: " in said and "--wrap says which modules" in said, said
            shell("convert", w2, "lost", "--to", "atorch", "--rename", rename, "--wrap", "h.*", "--verify", "--overwrite", "--quiet")
        shell("convert", folder(root, "atorch-noopt"), "zeros", "--like", w2, "--missing", "zeros", "--quiet")
        assert shell("cat", "zeros", "tiny.scale-exp_avg").split() == [b"0"] * 3
    return test


TORCHS_NAMES = ("--rename", r"s/^optim_meta$/optim.param_groups/", "--rename", r"s/^(?!optim\.|ckpt_meta|.*-\w+$)/model./",
                "--rename", r"s/^(.*)-(exp_avg|exp_avg_sq|step)$/optim.state.\1.\2/")


def torchs_names(root):
    """optim.state.w.exp_avg and optim.param_groups, beside model.w, become what atorch itself writes."""
    def test(shell):
        shell("convert", folder(root, "atorch-w2"), "torch", "--to", "torch-dcp", *TORCHS_NAMES, "--quiet")
        listed = shell("ls", "torch").decode()
        assert "\nmodel.h.0.gate\t" in listed and "\noptim.state.h.0.gate.exp_avg\t" in listed and "-exp_avg" not in listed, listed
        for missing in (), ("--missing", "error"), ("--missing", "zeros"):         # nothing is, however the reference spells it
            done = shell.any("convert", "torch", "w3", "--like", folder(root, "atorch-w3"), "--strip-prefix", "model.", "--verify",
                             "--overwrite", *missing)
            assert done.returncode == 0 and "not written" not in done.stderr, (missing, done.stderr)
            must_be_same(folder(root, "atorch-w3"), shell.work / "w3")
        other = ("--rename", r"s/^h\.0\.ln\.bias-exp_avg$/optim.state.h.1.gate.exp_avg/", "--rename", r"s/^h\.1\.gate-exp_avg$/spare/")
        shell("convert", folder(root, "atorch-w2"), "odd", "--to", "torch-dcp", *other, *TORCHS_NAMES, "--quiet")
        said = shell.any("convert", "odd", "w3", "--like", folder(root, "atorch-w3"), "--strip-prefix", "model.", "--overwrite").stderr
        assert "2 tensors of the reference are not written" in said and "'h.1.gate-exp_avg'" in said, said   # which has another shape
        shell("convert", "torch", "long", "--to", "atorch", "--rename", r"s/^model\.h\./net.h./", "--verify", "--quiet")
        group = pickle.loads((shell.work / "long" / "optim_meta").read_bytes())[0]
        assert group["params"][0] == "model.emb.weight" and "net.h.0.void" in group["params_names"].values(), group
        assert shell("cat", "long", "net.h.1.gate-exp_avg") == shell("cat", folder(root, "atorch-w2"), "h.1.gate-exp_avg")
        shell("convert", "torch", "few", "--to", "atorch", "--exclude", "model.h.0.gate", "--verify", "--quiet")
        assert b"optim.state.h.0.gate.exp_avg" in shell("ls", "few")                    # of what is not written: kept as it is
        twice = ("--rename", r"s/^model\.bn\.num_batches_tracked$/model.h.1.gate-step/")
        said = shell("convert", "torch", "twice", "--to", "atorch", *twice, "--quiet", exit_status=5).decode()
        assert "two tensors are the state step of 'model.h.1.gate'" in said, said
    return test


SPELT_AS_TORCH = ("--rename", r"s/^optim_meta$/optimizer.param_groups/", "--rename",
                  r"s/^(.*)-(exp_avg|exp_avg_sq|step)$/optimizer.state.\1.\2/")


def to_torch_and_back(root):
    """Where a reference asks for it, and in files of ranks, state and groups are spelled as torch has them, and come back as atorch wrote
    them. Else keys stay as they are."""
    def test(shell):
        for case in "atorch-w2", "atorch-noorig-w2":
            source = folder(root, case)
            weights = {line.split("\t")[0] for line in shell("ls", source).decode().splitlines() if "-exp_avg_sq\t" in line}
            weights = {name.removesuffix("-exp_avg_sq") for name in weights}
            shell("convert", source, "asked", "--to", "torch-dcp", *SPELT_AS_TORCH, "--overwrite", "--quiet")
            for form in "torch-dcp", "torch":
                shell("convert", source, "torch", "--to", form, "--like", "asked", "--overwrite", "--verify", "--quiet")
                listed = {line.split("\t")[0] for line in shell("ls", "--items", "torch").decode().splitlines()}
                assert {f"optimizer.state.{name}.{state}" for name in weights for state in ("exp_avg", "exp_avg_sq", "step")} <= listed
                assert not [key for key in listed if "-exp_avg" in key or key in ("optim_meta", "ckpt_meta")], (form, listed)
                shell("convert", "torch", "back", "--like", source, "--overwrite", "--verify", "--quiet")
                must_be_same(source, shell.work / "back", without=("optim_meta",))
                if form == "torch-dcp" and case == "atorch-w2":
                    before, after = (pickle.loads((path / "optim_meta").read_bytes()) for path in (source, shell.work / "back"))
                    assert before == after, (before, after)
            shell("convert", source, "long", "--to", "atorch", "--add-prefix", "glm.", "--overwrite", "--quiet")
            said = shell.any("convert", "long", "short", "--to", "torch-dcp", "--strip-prefix", "glm.", "--overwrite").stderr
            assert "param_groups" not in said, said
            shell("convert", source, "plain", "--to", "torch-dcp", "--overwrite", "--quiet")
            shell("diff", source, "plain")
            shell("diff", "plain", "short", "--items", "ignore")
            shell("convert", source, "ranks", "--to", "fsdp-ranks", "--overwrite", "--verify", "--quiet")
            listed = shell("ls", "--items", "ranks").decode()      # which have optimizers in files of their own
            assert "-exp_avg" not in listed and "_meta" not in listed and "\nparam_groups\t" in listed, listed
            shell("convert", "long", "stripped", "--to", "fsdp-ranks", "--strip-prefix", "glm.", "--overwrite", "--quiet")
            shell("diff", "ranks", "stripped")                        # state loses the prefix with its weight, in groups too
    return test


def groups_that_are_gone(root):
    """Without optim_meta all parameters that have state are one group: those of the run's own, and units where it has no others."""
    def test(shell):
        for case in "atorch-w2", "atorch-noorig-w4":
            said = shell.any("convert", folder(root, case), case, "--to", "atorch", "--items", "drop").stderr
            assert "the source has no groups of parameters: one of all, without options, is written" in said, said
            group, = pickle.loads((shell.work / case / "optim_meta").read_bytes())
            own = [name for one in pickle.loads((folder(root, case) / "optim_meta").read_bytes()) for name in one["params"]]
            assert sorted(group["params"]) == sorted(own) and group["params_names"] == dict(enumerate(group["params"])), (case, group, own)
    return test


def groups_by_option(root):
    """A DCP may have an item of each option of a group."""
    def test(shell):
        source = root / "torch-dcp" / "dcp-fsdp1" / "ckpt"
        shell("convert", source, "out", "--to", "atorch", "--layout", "ranks=3", "--verify", "--quiet")
        group, = pickle.loads((shell.work / "out" / "optim_meta").read_bytes())
        assert group["betas"] == (0.8, 0.95), group
        assert group["params"][2] == "model.embed.weight" and group["params_names"][6] == "model.norm.bias", group
        listed = shell("ls", "out").decode()
        assert "model.stack-exp_avg\tF32\t[3,5,2]" in listed and "\nmodel.ema\tBF16" in listed and "optim." not in listed, listed
    return test


def groups_by_parameter(root):
    """flatten_optimizer_state_dict has an item of each option of each parameter: those of the same options are a group."""
    def test(shell):
        source = root / "torch-dcp" / "dcp-tp-fsdp-2d" / "ckpt"
        shell("convert", source, "out", "--to", "atorch", "--layout", "ranks=3", "--verify", "--quiet")
        names = [f"model.{n}" for n in ("emb.weight", "up.weight", "up.bias", "down.weight", "down.bias", "norm.weight", "norm.bias")]
        group, = pickle.loads((shell.work / "out" / "optim_meta").read_bytes())
        assert group["betas"] in ((0.8, 0.95), [0.8, 0.95]) and group["lr"] == 0.01 and len(group) == 13, group
        assert group["params"] == names and group["params_names"] == dict(enumerate(names)), group
        assert "param_groups" not in shell("ls", "--items", "out").decode()
        less = ("--exclude", "optim.param_groups.*.bias.weight_decay")
        shell("convert", source, "two", "--to", "atorch", *less, "--verify", "--quiet")
        first, second = pickle.loads((shell.work / "two" / "optim_meta").read_bytes())
        assert second["params"] == [n for n in names if n.endswith("bias")] and "weight_decay" not in second, second
        assert first["params"] == [n for n in names if n.endswith("weight")] and first["weight_decay"] == 0, first
        assert list(second["params_names"]) == [4, 5, 6], second
    return test


def options_that_are_tensors(shell):
    """A learning rate may be a tensor: it is a number of the groups, whether they go by number or by parameter."""
    number = lambda value, kind="FloatStorage", code="<f": torch_stub.tensor(kind, (), struct.pack(code, value))
    row = lambda *values: torch_stub.tensor("FloatStorage", (len(values),), struct.pack(f"<{len(values)}f", *values))
    model = {f"h.{i}.w": row(i, i + 1, i + 2) for i in range(2)}
    state = {f"h.{i}.w": {"exp_avg": row(7, 8, 9 + i), "step": number(5)} for i in range(2)}
    rates = number(0.5), number(0.25, "DoubleStorage", "<d")
    by_number = [{"lr": rate, "eps": 1e-8, "params": [f"h.{i}.w"]} for i, rate in enumerate(rates)]
    by_parameter = {f"h.{i}.w": {"lr": rate, "eps": 1e-8} for i, rate in enumerate(rates)}
    for name, groups in (("number", by_number), ("parameter", by_parameter)):
        torch_stub.write_zip(shell.work / f"{name}.pt", {**model, "optim": {"state": state, "param_groups": groups}})
        done = shell.any("convert", f"{name}.pt", name, "--to", "atorch", "--layout", "ranks=2", "--wrap", "h.*", "--verify")
        assert done.returncode == 0 and done.stderr.count("lr: becomes a number in the groups of parameters") == 2, done.stderr
        made = pickle.loads((shell.work / name / "optim_meta").read_bytes())
        assert [(g["lr"], g["eps"], g["params"]) for g in made] == [(0.5, 1e-8, ["h.0.w"]), (0.25, 1e-8, ["h.1.w"])], made
        assert b"param_groups" not in shell("ls", "--items", name)
    torch_stub.write_zip(shell.work / "alone.pt", {**model, "optim": {"param_groups": by_number}})
    done = shell.any("convert", "alone.pt", "alone", "--to", "atorch", "--verify")
    assert done.returncode == 0 and done.stderr.count("a number of groups of parameters that are not written") == 2, done.stderr


def local_flat_parameters(root):
    """FSDP1's LOCAL_STATE_DICT has flat parameters without names: they are read whole, with a warning, and no unit is made of them."""
    def test(shell):
        source = root / "torch-dcp" / "dcp-fsdp1-local" / "ckpt"
        known = json.loads((source.parent / "manifest.json").read_text())["tensors"]
        warning, = json.loads(shell("ls", "--json", source))["warnings"]
        assert "'model._flat_param' and others" in warning and "LOCAL_STATE_DICT" in warning and "no file says" in warning, warning
        for form in ("hf", "torch-dcp"):
            shell("convert", source, form, "--to", form, "--quiet", "--verify")
            assert {k: v["hash"] for k, v in shell.tensors(form).items()} == {k: v["sha256"] for k, v in known.items()}, form
        said = shell("convert", source, "out", "--to", "atorch", "--quiet", exit_status=5).decode()
        assert "'model._flat_param' is a flat parameter" in said and "stored nowhere" in said and "SHARDED_STATE_DICT" in said, said
        assert "--exclude" in said and not (shell.work / "out").exists(), said
        buffers = ("--exclude", "*_flat_param", "-o", "buffers=*")
        shell("convert", source, "buffers", "--to", "atorch", *buffers, "--quiet")
        like = ("--like", source.parents[1] / "dcp-fsdp1" / "ckpt", "--missing", "error", "--quiet")
        said = shell("convert", source, "like", *like, exit_status=5).decode()
        assert "the source lacks" in said and "'model.embed.weight'" in said, said
        assert not json.loads(shell("ls", "--json", like[1]))["warnings"]
    return test


def a_part_of_the_experts(root):
    """What has lost its place in a unit is kept, with its state."""
    def test(shell):
        shell("convert", folder(root, "atorch-moe"), "out", "--to", "atorch", "--exclude", "ckpt_meta.expert_0.*", "--verify", "--quiet")
        listed = shell("ls", "out").decode()
        assert "ckpt_meta.expert_1.layers.0.w1\t" in listed and "ckpt_meta.expert_1.layers.0.w1-exp_avg\t" in listed, listed
    return test


def one_tensor(root, spy):
    """A tensor by name costs its bytes and the metadata: of flat parameters, of FSDP1 in DCP and in a torch file, of files of ranks."""
    forms = {"atorch": ["--wrap", "h.*"], "torch-dcp": [], "torch": [], "fsdp-ranks": []}

    def test(shell):
        ranks, states, bytes_ = 4, ("", ".exp_avg", ".exp_avg_sq"), 1 << 21
        keys = [f"optim.state.h.{i}.w{state}" if state else f"h.{i}.w" for i in range(8) for state in states]
        one = lambda i: {"dtype": "F32", "shape": [512, 1024], "data_offsets": [i * bytes_, (i + 1) * bytes_]}
        text = json.dumps({key: one(i) for i, key in enumerate(keys)}).encode()
        (shell.work / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + os.urandom(len(keys) * bytes_))

        def read(form, key, *words):
            report = shell.work / "spy.txt"
            done = subprocess.run([shell.binary, "cat", form, key, "--as", "raw", *words], cwd=shell.work, capture_output=True,
                                  env=os.environ | {"LD_PRELOAD": str(spy), "SPY_OUTPUT": str(report)})
            assert done.returncode == 0, (form, key, done.stderr)
            counts = dict(line.split() for line in report.read_text().splitlines())
            return done.stdout, int(counts["read_bytes"])

        for form, words in forms.items():
            cut = ["--layout", f"ranks={ranks}"] if form != "torch" else []
            shell("convert", "m.safetensors", form, "--to", form, *cut, *words, "--quiet")
            place = shell.work / form
            files = [p for p in place.rglob("*") if p.is_file()] if place.is_dir() else [place]
            metadata = sum(p.stat().st_size for p in files) - len(keys) * bytes_
            most = 2 * metadata + 4096 * (len(files) + 4)  # the end of a file is read by the page, and to recognise the format
            listed = [tensor["key"] for tensor in json.loads(shell("ls", "--json", form))["tensors"]]
            assert len(listed) == len(keys), (form, len(listed))
            for key in ("h.3.w", next(key for key in listed if "h.5.w" in key and "exp_avg_sq" in key)):
                whole, counted = read(form, key)
                assert len(whole) == bytes_ <= counted <= bytes_ + most, (form, key, counted - bytes_, metadata)
                row, counted = read(form, key, "--slice", "130:131,:")
                assert row == whole[130 * 4096:131 * 4096] and counted <= 4096 + most, (form, key, counted, metadata)
    return test


def change(path, edit):
    value = pickle.loads(path.read_bytes())
    edit(value)
    path.chmod(0o644)
    path.write_bytes(pickle.dumps(value, 4))


def refused(root):
    def test(shell):
        def case(name, edit, expected, status=4, source="atorch-w2"):
            shutil.copytree(folder(root, source), shell.work / name)
            edit(shell.work / name)
            said = shell("hash", name, exit_status=status).decode()
            assert all(word in said for word in expected), f"{name}: {said}"

        meta = "flat_meta.00001-00002"
        entry = lambda edit: lambda d: change(d / meta, lambda v: edit(v["param_meta"]["bn.bias"]))
        unit = lambda edit: lambda d: change(d / meta, lambda v: edit(v["flat_param_meta"]["h.0"]))
        case("a persistent id", lambda d: (d / "ckpt_meta").write_bytes(b"\x80\2X\1\0\0\0aQ."), ["ckpt_meta", "a persistent id"])
        case("no meta", lambda d: (d / meta).unlink(), [f"'{meta}' is missing"])
        for world in 2**31, 2**32 + 2:                                                                  # none is taken for 2
            case(f"{world} ranks", lambda d: [p.rename(d / p.name.replace("-00002", f"-{world}")) for p in d.glob("*-00002")],
                 [f"flat_param.00002-{world}' is missing"])
        case("stale", lambda d: shutil.copy(d / "flat_param.00000-00002", d / "flat_param.00000-00003"),
             ["two world sizes", "00000-00003"])
        other = folder(root, "atorch-w3")
        for kind in "flat_meta", "optim_param", "*":                                                    # whole sets of another world size
            stale = lambda d: [shutil.copy(p, d) for p in other.glob(f"{kind}.*-00003")]
            case(f"stale {kind.strip('*')}", stale, ["two world sizes", "-00002' of 2 ranks", "-00003' of 3", "another number of ranks"])
        case("rank", entry(lambda e: e.update(rank=0)), [meta, "says rank 0"])
        case("offsets", entry(lambda e: e.update(param_offsets=(30, 29))), [meta, "param_offsets", "byte"])
        case("one offset", entry(lambda e: e.update(param_offsets=(30,))), [meta, "param_offsets"])
        case("beyond", entry(lambda e: e.update(param_offsets=(2**40, 2**40 + 7))), [meta, "past the end"])
        case("unit", entry(lambda e: e.update(striped_fsdp_name="gone")), [meta, "'gone'"])
        case("shape", entry(lambda e: e.update(param_shapes=Size((8,)))), [meta, "param_shapes"])
        case("negative", entry(lambda e: e.update(param_numels=-7)), [meta, "below 0"])
        case("strides", entry(lambda e: e.update(param_strides=(2,))), [meta, "param_strides"])
        first = lambda edit: lambda d: change(d / meta, lambda v: edit(v["param_meta"]["emb.weight"]))
        case("gap", first(lambda e: e.update(param_offsets=tuple(x + 1 for x in e["param_offsets"]))), [meta, "emb.weight", "do not go on"])
        every = lambda edit: lambda d: [change(p, lambda v: edit(v["param_meta"]["emb.weight"])) for p in d.glob("flat_meta.*")]
        for size in 90, 92:                                                                             # of 91 elements on two ranks
            case(f"size {size}", every(lambda e: e.update(param_numels=size, param_shapes=Size((size,)), param_strides=(1,))),
                 [f"param_offsets of parameter 'emb.weight' hold 91 elements on all ranks, param_numels says {size}"])
        case("text", entry(lambda e: e.update(param_names=3)), [meta, "param_names"])
        case("nothing", entry(lambda e: e.pop("pad")), [meta, "has no pad"])
        case("runs", unit(lambda u: u.update(numels_with_padding=u["numels_with_padding"][:-1])), [meta, "is_padding_mask"])
        case("numels", unit(lambda u: u.update(numels=u["numels"][1:])), [meta, "numels"])
        case("flat_numel", unit(lambda u: u.update(flat_numel=3)), [meta, "flat_numel"])
        case("half", lambda d: change(d / meta, lambda v: v.pop("param_meta")), [meta, "without param_meta"])
        case("version", lambda d: change(d / "ckpt_meta", lambda v: v.update(version=2)), ["ckpt_meta", "version 2"], status=5)
        case("no version", lambda d: change(d / "ckpt_meta", lambda v: v.pop("version")), ["ckpt_meta"])
        case("no optimizer", lambda d: [p.unlink() for p in d.glob("optim_param*")], ["optim_param.00000-00002", "missing"])
        moe = lambda edit: lambda d: change(d / "flat_meta.00001-00004", lambda v: edit(v["flat_param_meta"]["layers.0"]))
        case("experts", moe(lambda u: u.update(expert_ranks=[0, 1, 2])), ["layers.0", "expert ranks"], source="atorch-moe")
        case("same expert", moe(lambda u: u.update(expert_rank=0)), ["same piece"], source="atorch-moe")
        case("outside", moe(lambda u: u.update(expert_rank=7)), ["outside of its group"], source="atorch-moe")
        v0 = lambda edit: lambda d: change(d / "flat_meta.00000-00003", lambda v: edit(v))
        case("v0", v0(lambda v: v["h.0.ln.bias"].update(param_offsets=(13, 20))), ["h.0"], source="atorch-v0")
        case("v0 shard", v0(lambda v: v["emb.weight"].update(flat_numel=35)), ["flat_numel"], source="atorch-v0")
    return test


def padding_is_looked_at(root):
    def test(shell):
        shutil.copytree(folder(root, "atorch-w2"), shell.work / "in")
        path = shell.work / "in" / "flat_param.00001-00002"
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        at = data.rindex(struct.pack("<f", 42))
        data[at:at + 4] = struct.pack("<f", 41)
        path.write_bytes(data)
        said = shell("verify", "in").decode()
        assert "padding of unit" in said and "flat_param.00001-00002" in said, said
    return test


def numbers_of_ranks_are_compared(root):
    """A number that ranks keep copies of is told where they differ (spec: atorch takes the last one)."""
    def test(shell):
        shutil.copytree(folder(root, "atorch-w2"), shell.work / "in")
        path = shell.work / "in" / "optim_param.00001-00002"
        path.chmod(0o644)
        head, payload = header(path)
        key, entry = next((k, v) for k, v in head.items() if k.endswith("-step") and k[:-5] + "-exp_avg" in header(
            shell.work / "in" / "optim_param.00000-00002")[0])
        data = bytearray(path.read_bytes())
        at = len(data) - len(payload) + entry["data_offsets"][0]
        data[at:at + 4] = struct.pack("<f", 12345)
        path.write_bytes(data)
        said = shell("verify", "in", exit_status=1).decode()
        assert f"'{key}'" in said or key in said, said
    return test


def zeros_behind_units(root):
    """Without original parameters padding is zero, and verify looks at it."""
    def test(shell):
        case = folder(root, "atorch-noorig-w4")
        shutil.copytree(case, shell.work / "in")
        path = shell.work / "in" / "flat_param.00003-00004"
        path.chmod(0o644)
        head, payload = header(path)
        entries = pickle.loads((case / "flat_meta.00003-00004").read_bytes())["param_meta"].values()
        unit = next(e["striped_fsdp_name"] for e in entries if e["pad"])
        data = bytearray(path.read_bytes())
        at = len(data) - len(payload) + head[unit]["data_offsets"][1] - 4
        assert data[at:at + 4] == bytes(4)
        data[at:at + 4] = struct.pack("<f", 42)
        path.write_bytes(data)
        said = shell("verify", "in").decode()
        assert said.count("padding of unit") == 1 and f"unit '{unit}'" in said and path.name in said, said
    return test


def version_0_is_cut_anew(root):
    """Where atorch's own loader fails: version 0 for other numbers of ranks, and back."""
    def test(shell):
        v0 = folder(root, "atorch-v0")
        ranks = len(list(v0.glob("flat_param*")))
        for other in (1, 2, 5, 13):
            shell("convert", v0, f"v{other}", "--to", "atorch", "--layout", f"ranks={other}", "--quiet", "--verify")
            shell("convert", f"v{other}", f"b{other}", "--to", "atorch", "--layout", f"ranks={ranks}", "--quiet")
            must_be_same(v0, shell.work / f"b{other}")
    return test


def names_that_no_file_has(root):
    """A parameter without elements that no file names is told, and its run stays, whatever the number of ranks."""
    def test(shell):
        shutil.copytree(folder(root, "atorch-w3"), shell.work / "in")
        for meta in (shell.work / "in").glob("flat_meta.*"):
            change(meta, lambda v: v["param_meta"].pop("h.0.void", None))
        told = str(json.loads(shell("ls", "--json", "in"))["warnings"])
        assert "1 parameters without elements lie between two shards" in told, told
        state = ["optim_param.00000-00003", "buffers"]                                                  # of no parameter: among others
        shell("convert", "in", "same", "--to", "atorch", "--quiet")
        must_be_same(shell.work / "in", shell.work / "same", without=state)
        shell("convert", "in", "two", "--to", "atorch", "--layout", "ranks=2", "--quiet")
        shell("convert", "two", "back", "--to", "atorch", "--layout", "ranks=3", "--quiet")
        must_be_same(shell.work / "in", shell.work / "back", without=state)
    return test


def files_beside(root):
    """atorch takes flat_param.00000-00002.bak for a shard: here it is a file beside, carried along."""
    def test(shell):
        w2 = folder(root, "atorch-w2")
        shutil.copytree(w2, shell.work / "in")
        shutil.copy(w2 / "flat_param.00000-00002", shell.work / "in" / "flat_param.00000-00002.bak")
        assert shell("hash", "in") == shell("hash", w2)
        shell("convert", "in", "out", "--to", "atorch", "--layout", "ranks=3", "--quiet")
        (shell.work / "out" / "flat_param.00000-00002.bak").unlink()
        must_be_same(folder(root, "atorch-w3"), shell.work / "out")
    return test


def a_lost_rank(root):
    """Looked at and salvaged, a folder without a rank's files shows what the others hold, and nothing that they do not."""
    def test(shell):
        number = 0
        for case in ("atorch-w4", "atorch-v0", "atorch-moe", "atorch-noorig-w4", "atorch-hsdp", "atorch-names"):
            whole = shell.tensors(folder(root, case))
            world = len(list(folder(root, case).glob("flat_param.*")))
            for rank in range(world):
                for lost in (("flat_param",), ("flat_meta",), ("optim_param",), ("flat_param", "flat_meta", "optim_param")):
                    number += 1
                    names = [f"{stem}.{rank:05}-{world:05}" for stem in lost]
                    damaged = shell.work / str(number)
                    shutil.copytree(folder(root, case), damaged, ignore=shutil.ignore_patterns(*names))
                    said = json.loads(shell("ls", "--json", damaged))
                    assert all(name in str(said["warnings"]) for name in names), (damaged, said["warnings"])
                    listed = {t["key"]: t for t in said["tensors"]}
                    for key, tensor in listed.items():
                        assert (tensor["dtype"], tensor["shape"]) == (whole[key]["dtype"], whole[key]["shape"]), (case, rank, lost, key)
                    shell("hash", damaged, exit_status=4)
                    shell("salvage", damaged, f"{number}.safetensors", "--to", "safetensors", exit_status=1)
                    saved = shell.tensors(f"{number}.safetensors")
                    assert 0 < len(saved) < len(whole), (case, rank, lost, len(saved))
                    assert all(tensor == whole[key] for key, tensor in saved.items()), (case, rank, lost)
                    incomplete = sum(" elements" in str(warning) and " chunks hold " in str(warning) for warning in said["warnings"])
                    assert len(saved) == len(listed) - incomplete, (case, rank, lost, set(listed) - set(saved))
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--spy", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--root", required=True, type=lambda path: pathlib.Path(path).resolve())
    arguments = parser.parse_args()
    root = arguments.root
    tests = [
        ("every case is written again byte by byte", written_again(root)), ("all world sizes from each other", other_world_sizes(root)),
        ("other wrappings, by rules and references", other_wrappings(root)), ("chunks like the reference", chunks_like_the_reference(root)),
        ("padding beyond a shard", padding_beyond_a_shard(root)),
        ("pickles as Python writes them", pickles_as_python_writes_them(root)), ("names and what is missing", names(root)),
        ("names of torch's optimizers", torchs_names(root)),
        ("to torch's own formats and back", to_torch_and_back(root)), ("groups by option", groups_by_option(root)),
        ("groups by parameter", groups_by_parameter(root)), ("groups that are gone", groups_that_are_gone(root)),
        ("options that are tensors", options_that_are_tensors), ("flat parameters without names", local_flat_parameters(root)),
        ("a part of the experts", a_part_of_the_experts(root)), ("one tensor costs its bytes", one_tensor(root, arguments.spy)),
        ("what is refused, and why", refused(root)),
        ("padding that is not 42 is told", padding_is_looked_at(root)), ("padding that is not zero is told", zeros_behind_units(root)),
        ("numbers that ranks have copies of", numbers_of_ranks_are_compared(root)), ("files beside", files_beside(root)),
        ("names that no file has", names_that_no_file_has(root)),
        ("version 0 for other ranks", version_0_is_cut_anew(root)), ("a rank's files are lost", a_lost_rank(root)),
    ]
    return small_models.run(arguments.bin, tests)


if __name__ == "__main__":
    raise SystemExit(main())
