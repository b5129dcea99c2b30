#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Megatron's distributed checkpoints hold beside tensors follows the layout and the release that they are written for. Prints TAP.

usage: mcore_items_test.py --bin PATH --fixtures DIR
"""
import json
import random
import re
import shutil
import struct
import zipfile

import blowup_inputs
import moe_layouts_test
import optimizer_cases
import python_reads_test
import small_models

DENSE, EXPERT = False, True


def item(shell, path, key):
    return json.loads(shell("cat", path, key))


def optimizers(shell, path):
    """The groups of parameters of each optimizer, and what names the layout of its state."""
    found = item(shell, path, "optimizer")
    return [found] if "optimizer" in found else [found[number] for number in sorted(found)]


def groups(optimizer):
    return [(group["is_expert_parallel"], group["wd_mult"]) for group in optimizer["optimizer"]["param_groups"]]


def differing_tensors(shell, a, b):
    return [f for f in json.loads(shell.any("diff", "--json", a, b).stdout)["findings"] if f["kind"] != "item"]


def optimizers_follow_expert_parallelism(shell, fixtures):
    """Two optimizers with expert parallelism, one without: the experts' groups go, and come back with the same settings."""
    source = fixtures / "megatron" / "megatron-optim-moe-full-ep2" / "ckpt"
    two = optimizers(shell, source)
    assert [groups(one) for one in two] == [[(DENSE, 1.0), (DENSE, 0.0)], [(EXPERT, 1.0)]], two
    shell("convert", source, "one", "--to", "torch_dist", "--layout", "tp=1,pp=1,ep=1", "--quiet")
    one = optimizers(shell, "one")
    assert len(one) == 1 and one[0] == two[0], one
    shell("convert", "one", "two", "--to", "torch_dist", "--layout", "tp=1,pp=1,ep=2", "--quiet")
    assert optimizers(shell, "two") == two, optimizers(shell, "two")
    # What the groups say of learning rates and steps is the experts' too.
    assert two[1]["optimizer"]["param_groups"][0] == {**two[0]["optimizer"]["param_groups"][0], "is_expert_parallel": True}, two
    assert shell.tensors(source) == shell.tensors("two")
    # The same where state is flattened, as old releases read it.
    shell("convert", "one", "old", "--to", "torch_dist", "--layout", "tp=1,pp=1,ep=2", "-o", "release=0.8", "--quiet")
    assert differing_tensors(shell, source, "old") == []
    assert [[expert for expert, _ in groups(one)] for one in optimizers(shell, "old")] == [[DENSE, DENSE], [EXPERT]]


def state_by_bucket_comes_back(shell, fixtures):
    """Experts' state by bucket, in each layout that has buckets and for every number of ranks of experts, comes back bit by bit."""
    source = fixtures / "megatron" / "megatron-optim-moe-full-ep2" / "ckpt"
    before = shell.tensors(source)
    for layout in ("dp_reshardable", "dp_zero_gather_scatter"):
        for sizes in ("tp=1,pp=1,ep=1,dp=2", "tp=1,pp=1,ep=2,dp=2", "tp=1,pp=2,ep=2,dp=2"):
            shell("convert", source, "buckets", "--to", "torch_dist", "--layout", sizes, "-o", f"optimizer={layout}", "--overwrite",
                  "--quiet")
            shell("convert", "buckets", "back", "--to", "torch_dist", "-o", "optimizer=fully_reshardable", "--overwrite", "--quiet")
            after = shell.tensors("back")
            small_models.keys_must_be(set(after), set(before))
            wrong = [key for key in before if before[key] != after[key]]
            assert not wrong, (layout, sizes, wrong[:4])


def with_common(source, target, change, file="common.pt"):
    """A copy of a checkpoint in which the pickle of common.pt, or of each file of that name, is what change makes of it."""
    shutil.copytree(source, target)
    for path in target.rglob(file):
        path.chmod(0o644)
        path.parent.chmod(0o755)
        with zipfile.ZipFile(path) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members:
                archive.writestr(name, change(data) if name.endswith("/data.pkl") else data)


def with_buckets(source, target, size):
    """A copy of a checkpoint whose run, as its arguments say, overlapped the reduction of gradients in buckets of so many elements."""
    def change(data):
        for key, old, new in ((b"ddp_bucket_size", b"N", b"K" + bytes([size])), (b"overlap_grad_reduce", b"\x89", b"\x88")):
            at = data.index(old, data.index(key) + len(key))  # behind the number in the memo
            data = data[:at] + new + data[at + 1:]
        return data
    with_common(source, target, change)


def rng_states_are_those_that_the_release_asks_for(shell, fixtures):
    """With expert parallelism Megatron Core 0.16 alone asks for the RNG state of each data-parallel rank; others for the first one's."""
    def renamed(old, new):
        return lambda data: data.replace(old, new)

    def states(source, target, *words):
        told = shell.any("convert", source, target, "--to", "torch_dist", *words)
        assert told.returncode == 0, told.stderr
        dropped = [line.split(": ")[1] for line in (told.stdout + told.stderr).splitlines() if ".rng_state: " in line]
        keys = {entry["key"] for entry in json.loads(shell("ls", "--json", "--items", target))["items"]}
        return {key.split("/")[1] for key in keys if key.startswith("rng_state/") and key[-1].isdigit()}, dropped

    each = {f"shard_{pp}.0.{dp}_2.1.2" for pp in (0, 1) for dp in (0, 1)}
    first = {f"shard_{pp}.0_2.1" for pp in (0, 1)}
    fixture = fixtures / "megatron" / "megatron-moe-legacy-pp2ep2" / "ckpt"
    found = states(fixture, "each", "--layout", "dp=2")
    assert found == (each, []), found
    for name, change in (("before", renamed(b"moe_latent_size", b"moe_latent_sizX")),
                         ("since", renamed(b"use_cpu_initialization", b"mtp_use_repeated_layer"))):
        with_common(fixture, shell.work / f"{name} source", change, "model_optim_rng.pt")
        found, dropped = states(f"{name} source", name, "--layout", "dp=2")
        assert found == first, (name, found)
        assert dropped == ["mp_rank_00_000_001.rng_state", "mp_rank_00_001_001.rng_state"], dropped
    # Those of a distributed checkpoint stay as they are, and files of ranks come back from either.
    assert states("each", "again")[0] == each and states("since", "again since")[0] == first


def two_groups_of_one_kind_are_refused(shell, fixtures):
    """Where two groups have the same weight decay, and only their learning rates differ, nobody can tell whose a parameter is."""
    zero, one = b"G" + struct.pack(">d", 0), b"G" + struct.pack(">d", 1)
    for name, old, new in (("with", zero, one), ("without", one, zero)):
        with_common(fixtures / "megatron" / "megatron-optim-fp32-dist-tp1" / "ckpt", shell.work / name, lambda data: data.replace(old, new))
        said = shell("convert", name, "out", "--to", "megatron", exit_status=5).decode()
        assert f"parameter group 1: a second group {name} weight decay" in said and not (shell.work / "out").exists(), said


def buckets_need_parameter_groups(shell, fixtures):
    """State by bucket is refused, with what lacks them named, where the source's optimizers have no groups of parameters."""
    with_common(fixtures / "megatron" / "megatron-optim-dense-full-tp2dp2" / "ckpt", shell.work / "groupless",
                lambda data: data.replace(b"param_groups", b"other_groups"))
    said = shell("convert", "groupless", "out", "--to", "torch_dist", "-o", "optimizer=dp_reshardable", exit_status=5).decode()
    assert "the source has no parameter groups of optimizer 0" in said and not (shell.work / "out").exists(), said


def state_in_several_buckets_comes_back(shell, fixtures):
    """A run whose gradient buffers have several buckets: state by bucket comes back bit by bit, and Megatron's mistake is told."""
    with_buckets(fixtures / "megatron" / "megatron-optim-dense-full-tp2dp2" / "ckpt", shell.work / "source", 80)
    before = shell.tensors("source")
    for layout in ("dp_reshardable", "dp_zero_gather_scatter"):
        words = ["--to", "torch_dist", "--overwrite", "--verify"]
        said = shell.any("convert", "source", "buckets", *words, "-o", f"optimizer={layout}")
        assert said.returncode == 0 and "padding between their buckets" in said.stderr, said.stderr
        buckets = {key.split("bucket_idx_")[1].split(".")[0] for key in shell.tensors("buckets") if "bucket_idx_" in key}
        assert layout != "dp_reshardable" or buckets == set("01234567"), buckets
        shell("convert", "buckets", "back", *words, "-o", "optimizer=fully_reshardable", "--quiet")
        after = shell.tensors("back")
        assert after == before, (layout, [key for key in before if before[key] != after.get(key)][:4])


def state_of_two_types_is_refused(shell, fixtures):
    """A vector has one type: state that is of another one for some parameters is written by parameter alone."""
    source = fixtures / "megatron" / "megatron-optim-dense-full-tp2dp2" / "ckpt"
    for layout in ("dp_reshardable", "dp_zero_gather_scatter"):
        words = ["convert", source, "out", "--to", "torch_dist", "-o", f"optimizer={layout}", "--quiet", "--overwrite", "--dtype"]
        said = shell(*words, "optimizer.state.exp_avg.*norm*=f16", exit_status=5).decode()
        assert "state 'exp_avg' has several dtypes, and would lie in one vector" in said and not (shell.work / "out").exists(), said
        shell(*words, "optimizer.state.exp_avg.*=f16")
        shutil.rmtree(shell.work / "out")


def stages_that_predict_have_their_copy(shell, fixtures):
    """The stage that predicts further tokens has the embedding in its buffers too: state by bucket is as Megatron writes it."""
    legacy, real = (fixtures / "megatron" / f"megatron-optim-mtp-{form}-pp2" / "ckpt" for form in ("legacy", "dpr"))
    words = ["--to", "torch_dist", "--overwrite", "--quiet"]
    for layout in ([], ["--layout", "pp=1,dp=2"], ["--layout", "tp=2,pp=2,dp=1"]):
        shell("convert", legacy, "buckets", *words, "-o", "optimizer=dp_reshardable", *layout)
        made = shell.tensors("buckets")
        if not layout:
            stored = shell.tensors(real)
            small_models.keys_must_be(set(made), set(stored))
            wrong = [key for key, tensor in stored.items() for word in ("dtype", "shape") if tensor[word] != made[key][word]]
            assert len([key for key in made if ".bucket_idx_1." in key]) == 6 and not wrong, (wrong[:4], sorted(made)[:40])
        shell("convert", "buckets", "back", "--to", "megatron", "--layout", "tp=1,pp=2", "--overwrite", "--quiet")
        assert differing_tensors(shell, "back", legacy) == [], layout
    # Megatron saves wrongly what follows padding. The first stage's embedding follows 1536 elements. In the second one a copy alone, which
    # is not saved, follows 3968.
    for ranks, is_shifted in ((2, False), (3, False), (5, True)):
        shell("convert", legacy, "full", *words, "-o", "optimizer=fully_reshardable", "--layout", f"pp=2,dp={ranks}")
        assert ("have padding between their buckets" in shell.any("ls", "full").stderr) == is_shifted, ranks

    def tied(data):
        key = b"untie_embeddings_and_output_weights"
        at = data.index(b"\x88", data.index(key) + len(key))
        return data[:at] + b"\x89" + data[at + 1:]
    with_common(real, shell.work / "tied", tied)  # which no release of Megatron Core saves
    said = shell.any("convert", "tied", "out", "--to", "torch_dist", "-o", "optimizer=fully_reshardable")
    assert said.returncode == 5 and "is tied, and further tokens are predicted on the last of several stages" in said.stderr, said


def stages_without_experts_have_their_optimizer(shell, fixtures):
    """Stages without experts have the objects of their optimizer too: Megatron asks for them. Of one optimizer it gets the same groups."""
    legacy, real = (fixtures / "megatron" / f"megatron-optim-moe-mixed-{form}-pp2" / "ckpt" for form in ("legacy", "dpr"))
    words = ["--to", "torch_dist", "--quiet"]
    shell("convert", legacy, "two", *words, "-o", "optimizer=dp_reshardable")
    shell("convert", legacy, "one", *words, "--layout", "pp=1,ep=1")
    shell("convert", "one", "again", *words, "-o", "optimizer=dp_reshardable", "--layout", "pp=2,ep=2,dp=2")
    for stage in (0, 1):
        prefix = f"chained_1.optimizer.distributed.dp_group_idx_{2 * stage}."
        for name in ("per_bucket_numel", "per_bucket_numel_unpadded", "optimizer"):
            expected = item(shell, real, prefix + name + "/shard_0_1")
            assert (name == "optimizer" or bool(expected[0]) == (stage == 0)), expected
            for made in ("two", "again"):
                assert item(shell, made, prefix + name + "/shard_0_1") == expected, (made, stage, name)


def experts_that_predict_become_those_of_ranks(shell, fixtures):
    """From 0.17 on ranks call the inner layer of multi-token prediction otherwise than checkpoints do, of which rules know nothing."""
    stored, legacy = (fixtures / "megatron" / f"megatron-mtp-moe-{form}-tp1" / "ckpt" for form in ("dist", "legacy"))
    shell("convert", stored, "out", "--to", "megatron", "--quiet")
    assert differing_tensors(shell, legacy, "out") == []
    files = [shell.tensors(root / "iter_0000010/mp_rank_00/model_optim_rng.pt") for root in (legacy, shell.work / "out")]
    assert any(".mtp_model_layer.mlp.experts.local_experts.1." in key for key in files[0]), files[0]
    assert files[0] == files[1], set(files[0]) ^ set(files[1])


def one_file_for_each_rank_becomes_a_dict(shell, fixtures):
    """Files of ranks have a list of optimizers, distributed checkpoints a dict of their numbers."""
    source = fixtures / "megatron" / "megatron-optim-moe-legacy-ep2dp4" / "ckpt"
    listed = item(shell, source, "optimizer")
    shell("convert", source, "out", "--to", "torch_dist", "--quiet")
    numbered = item(shell, "out", "optimizer")
    assert isinstance(listed, list) and list(numbered) == ["0", "1"], numbered
    for before, after in zip(listed, numbered.values()):
        assert groups(after) == groups(before) and after["param_state_sharding_type"] == "fully_reshardable", after


def experts_of_other_cuts_have_an_optimizer(shell, fixtures):
    """Since Megatron Core 0.19 experts have an optimizer of their own with EP = 1 too, if they are cut for other ranks than the rest."""
    def count(case, *layouts):
        source, counts = fixtures / "megatron" / case / "ckpt", []
        for number, layout in enumerate(layouts):
            target = f"{case}-{number}"
            shell("convert", source, target, "--to", "torch_dist", "--layout", layout, "-o", "optimizer=fully_reshardable", "--quiet")
            counts.append([[expert for expert, _ in groups(one)] for one in optimizers(shell, target)])
            source = target
        return counts

    one, two = [[DENSE, DENSE]], [[DENSE, DENSE], [EXPERT]]
    # Each of the one before.
    for case, layouts, expected in (
            ("megatron-optim-etp-full-ep2", ("tp=2,ep=1,etp=1", "tp=2,ep=1,etp=2", "tp=2,ep=1,etp=1", "tp=1,ep=1,etp=1"),
             [two, one, two, one]),
            ("megatron-optim-etp-full-ep2", ("tp=2,ep=2,etp=1", "tp=2,ep=1,etp=1", "tp=2,ep=4,etp=2"), [two, two, two]),
            ("megatron-optim-etp-dpr-tp2etp1", ("tp=2,ep=1,etp=1", "tp=1,ep=1,etp=1", "tp=1,ep=2,etp=1"), [two, one, two]),
            ("megatron-optim-moe-full-ep2", ("tp=2,ep=1,etp=1", "tp=2,ep=2,etp=1", "tp=1,ep=1,etp=1"), [one, two, one])):
        assert count(case, *layouts) == expected, (case, count(case, *layouts))
        for number, _ in enumerate(layouts):
            shutil.rmtree(shell.work / f"{case}-{number}")
    # Buckets and files of ranks are those of the optimizers that there are.
    first = fixtures / "megatron" / "megatron-optim-etp-legacy-tp2etp1" / "ckpt"
    shell("convert", first, "apart", "--to", "torch_dist", "-o", "optimizer=dp_reshardable", "--quiet")
    assert differing_tensors(shell, "apart", first.parent.parent / "megatron-optim-etp-dpr-tp2etp1" / "ckpt") == []
    shell("convert", "apart", "back", "--to", "megatron", "--layout", "tp=2,etp=1", "--quiet")
    assert differing_tensors(shell, "back", first) == []
    # A reference's release is that of the run that is to load it.
    old = fixtures / "megatron" / "megatron-optim-moe-full-ep2" / "ckpt"
    shell("convert", old, "new", "--to", "torch_dist", "--like", fixtures / "megatron" / "megatron-optim-etp-full-ep2" / "ckpt", "--layout",
          "tp=2,ep=1,etp=1", "--quiet")
    assert len(optimizers(shell, "new")) == 2
    for name, layout in (("as it is", []), ("another", ["--layout", "pp=2,etp=1"])):
        shell("convert", old, name, "--to", "megatron", "--like", first, *layout, "--quiet")
        rank = f"iter_0000010/mp_rank_00{'_000' if layout else ''}/distrib_optim.pt"
        assert {key[0] for key in shell.tensors(shell.work / name / rank)} == {"0", "1"}, name
        assert differing_tensors(shell, old, name) == [], name


def rows_of_words_follow_the_layout(shell, fixtures):
    """The arguments say the rows that a run of the target's size has, as such a run says itself."""
    found = {}
    for tp in (1, 2, 4):
        said = item(shell, fixtures / "megatron" / f"megatron-repad-dist-tp{tp}" / "ckpt", "args")["padded_vocab_size"]
        shell("convert", fixtures / "megatron" / "megatron-repad-dist-tp1" / "ckpt", f"{tp}", "--to", "torch_dist", "--layout",
              f"tp={tp}", "--quiet")
        found[tp] = said, item(shell, f"{tp}", "args")["padded_vocab_size"]
    assert all(a == b for a, b in found.values()) and len(set(found.values())) > 1, found


def arguments_follow_the_layout(shell, fixtures):
    """The arguments in the common state say the layout that the checkpoint was written for."""
    source = fixtures / "megatron" / "megatron-optim-moe-full-ep2" / "ckpt"
    shell("convert", source, "out", "--to", "torch_dist", "--layout", "tp=2,pp=2,ep=2,etp=1,dp=2", "--quiet")
    args = item(shell, "out", "args")
    found = {name: args.get(name) for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
                                               "expert_tensor_parallel_size", "world_size", "data_parallel_size")}
    assert list(found.values()) == [2, 2, 2, 1, 8, 2], found
    shell("convert", source, "files", "--to", "megatron", "--quiet")
    assert (args["ckpt_format"], item(shell, "files", "args")["ckpt_format"]) == ("torch_dist", "torch")


def every_argument_of_the_layout_follows(shell, fixtures):
    """Names that some releases have, where the source has them: each rank's file says its own rank and the target's sizes."""
    sizes = dict(model_parallel_size=7, transformer_pipeline_model_parallel_size=7, num_virtual_stages_per_pipeline_rank=7,
                 num_layers_per_virtual_pipeline_stage=7, inprocess_active_world_size=7, rank=7, local_rank=7, use_dist_ckpt=True)
    wanted = dict(model_parallel_size=2, transformer_pipeline_model_parallel_size=1, num_virtual_stages_per_pipeline_rank=None,
                  num_layers_per_virtual_pipeline_stage=None, inprocess_active_world_size=2, use_dist_ckpt=False,
                  tensor_model_parallel_size=2, pipeline_model_parallel_size=1, virtual_pipeline_model_parallel_size=None, world_size=2,
                  data_parallel_size=1)
    blowup_inputs.megatron(shell.work / "source", **sizes)
    shell("convert", "source", "out", "--to", "megatron", "--layout", "tp=2", "--quiet")
    for rank in range(2):
        (path,) = (shell.work / "out").rglob(f"mp_rank_0{rank}/model_optim_rng.pt")
        said, _ = python_reads_test.read(python_reads_test.member(path, "data.pkl"))
        said = said["args"].state
        found = {name: said.get(name, "nothing") for name in {**wanted, "rank": 0, "local_rank": 0}}
        assert found == {**wanted, "rank": rank, "local_rank": rank}, found


def the_split_of_a_pipeline_goes_with_it(shell, fixtures):
    """What says how layers are shared out among stages is the source's for as many stages, and nothing for others."""
    names = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout",
             "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    source = fixtures / "megatron" / "megatron-dense-legacy-pp2uneven" / "ckpt"
    before = {name: item(shell, source, "args").get(name) for name in names}
    assert before[names[0]], before
    shell("convert", source, "same", "--to", "megatron", "--layout", "tp=2,pp=2", "--quiet")
    assert {name: item(shell, "same", "args").get(name) for name in names} == before
    shell("convert", source, "one", "--to", "megatron", "--layout", "pp=1", "--quiet")
    after = {name: item(shell, "one", "args").get(name) for name in names}
    assert after == dict(zip(names, (None, None, None, False, False))), after


def ranks_have_as_many_model_chunks(shell, fixtures):
    """A rank of a run with another virtual pipeline among the others is named with what it holds."""
    one, two = (fixtures / "megatron" / f"megatron-dense-legacy-{name}" / "ckpt" for name in ("pp2", "pp2vpp2"))
    for number, (run, other, said) in enumerate(((one, two, "'mp_rank_00_000' holds 1 model chunks, 'mp_rank_00_001' 2"),
                                                 (two, one, "'mp_rank_00_000' holds 2 model chunks, 'mp_rank_00_001' 1"))):
        mixed = shell.work / f"mixed{number}"
        shutil.copytree(run, mixed)
        place = mixed / "iter_0000010" / "mp_rank_00_001"
        shutil.rmtree(place)
        shutil.copytree(other / "iter_0000010" / "mp_rank_00_001", place)
        done = shell.any("ls", mixed)
        assert done.returncode == 4 and said in done.stderr, done.stderr


def a_reference_says_of_what_modules_the_model_is(shell, _):
    """A source without arguments, for another number of ranks than the reference's: names of parameters follow from its modules."""
    blowup_inputs.megatron(shell.work / "reference", transformer_impl="local", moe_grouped_gemm=False)
    shell("convert", "reference", "bare.safetensors", "--quiet")
    shell("convert", "bare.safetensors", "out", "--to", "megatron", "--like", "reference", "--layout", "tp=2", "--quiet")
    args = item(shell, "out", "args")
    assert args["transformer_impl"] == "local" and args["moe_grouped_gemm"] is False, args
    assert "vocab_size" not in args, "arguments of the reference's run, not of its modules, were taken"


def releases_get_what_they_know(shell, fixtures):
    """-o release leaves out, and names, the classes that a release does not have, and nothing else."""
    source = fixtures / "megatron" / "megatron-optim-moe-full-ep2" / "ckpt"
    before = item(shell, source, "args")
    assert "attention_backend" in before, before
    for release, is_known in (("0.8", False), ("0.8.1", False), ("0.16", True), ("0.16.1", True), ("", True)):
        done = shell.any("convert", source, "out", "--to", "torch_dist", "-o", f"release={release}", "--overwrite")
        assert done.returncode == 0, done.stderr
        dropped = [line for line in done.stderr.splitlines() if line.startswith("dropped:")]
        wanted = [] if is_known else ["dropped: args.attention_backend: Megatron Core 0.8 does not have "
                                      "megatron.core.transformer.enums.AttnBackend"]
        assert dropped == wanted, (release, dropped)
        after = item(shell, "out", "args")
        assert sorted(before.keys() - after.keys()) == ([] if is_known else ["attention_backend"]), (release, sorted(after))
        assert differing_tensors(shell, source, "out") == [], release
    for release in ("x", "1.2", "0", "0.", "0.0", "0.8.x", "0.99999999999"):
        done = shell.any("convert", source, "out", "--to", "torch_dist", "-o", f"release={release}", "--overwrite")
        assert done.returncode == 2 and f"'{release}' is no release" in done.stderr and "hint: release is 0.N" in done.stderr, done.stderr


def flattened_matrices_are_refused(shell, fixtures):
    """State of experts in one matrix is stored by parameter; the flattened layout of old releases is refused before anything is written."""
    chance = random.Random(1)
    model = {**moe_layouts_test.random_model(chance)[0], "spelling": "matrix", "optimizer": "distributed"}
    moe_layouts_test.write_checkpoint(shell.work / "source", model, chance)
    shell("convert", "source", "whole", "--to", "torch_dist", "-o", "optimizer=fully_reshardable", "--quiet")
    assert any(key.startswith("optimizer.state.exp_avg.decoder.") for key in shell.tensors("whole"))
    done = shell.any("convert", "source", "flat", "--to", "torch_dist", "-o", "optimizer=fully_sharded_model_space")
    assert done.returncode == 5 and "flattened state of experts in one matrix is not written" in done.stderr, done.stderr
    assert "optimizer=fully_reshardable" in done.stderr and not (shell.work / "flat").exists()


def rules_of_optimizers(shell, _):
    """What an optimizer's state must be like: each rule is named by the error, with the file, and nothing is written."""
    for case in optimizer_cases.CASES:
        source, out = shell.work / f"{case.kind}-source", shell.work / "out"
        optimizer_cases.write(source, case)
        done = shell.any("convert", source, out, "--to", "torch_dist", "-o", "optimizer=fully_reshardable", "--quiet")
        assert done.returncode == case.status and case.text in done.stderr, (case.kind, case.name, done.returncode, done.stderr)
        file = "distrib_optim.pt" if case.kind == "distributed" else "model_optim_rng.pt"
        assert case.status == 0 or (f"'mp_rank_00/{file}'" in done.stderr and not out.exists()), (case.kind, case.name, done.stderr)
        for folder in (source, out):
            shutil.rmtree(folder, ignore_errors=True)


def settings_of_groups_are_the_references(shell, _):
    """Of parameter groups: what only the source has goes, what only the reference has comes; what both have is the source's."""
    def run(name, **settings):
        def change(content):
            for number, group in enumerate(content["optimizer"]["optimizer"]["param_groups"]):
                group.update({key: value + number for key, value in settings.items()})
        optimizer_cases.write(shell.work / name, optimizer_cases.Case("plain", name, change, 0, ""))

    run("source", old=3, lr=0.25, step=7)
    run("reference", new=5, lr=0.75, step=9)
    done = shell.any("convert", "source", "out", "--to", "megatron", "--like", "reference")
    assert done.returncode == 0, done.stderr
    before, after = (item(shell, path, "optimizer")["optimizer"]["param_groups"] for path in ("source", "out"))
    assert [{name: group.get(name) for name in ("old", "new", "lr", "step")} for group in before] == [
        dict(old=3, new=None, lr=0.25, step=7), dict(old=4, new=None, lr=1.25, step=8)], before
    assert [{name: group.get(name) for name in ("old", "new", "lr", "step")} for group in after] == [
        dict(old=None, new=5, lr=0.25, step=7), dict(old=None, new=6, lr=1.25, step=8)], after
    assert [group["params"] for group in after] == [group["params"] for group in before], after
    said = [line for line in done.stderr.splitlines() if "setting" in line]
    assert len(said) == 2, done.stderr


def module_states(shell, path):
    """Names of the modules' objects, and the modules of which they are."""
    keys = {entry["key"] for entry in json.loads(shell("ls", "--json", "--items", path))["items"]}
    names = {key for key in keys if "._extra_state/shard_" in key}
    return names, {name.split("._extra_state/")[0] for name in names}


def modules_have_the_objects_that_megatron_wrote(shell, fixtures):
    """Ranks' files get the objects that Megatron wrote for the same model, and for Transformer Engine's modules those of norms too."""
    folder = fixtures / "megatron"
    for model in ("bert", "dense", "gdn", "mamba", "mla", "moe", "moe-gmm", "moe-mixed", "mtp", "t5", "tied"):
        shell("convert", folder / f"megatron-{model}-legacy-tp1" / "ckpt", model, "--to", "torch_dist", "--quiet")
        found, wanted = (module_states(shell, path)[0] for path in (model, folder / f"megatron-{model}-dist-tp1" / "ckpt"))
        if model == "gdn":  # whose arguments do not say that modules are local, which they were
            of_engine = {name for name in found if "norm." in name or ".core_attention." in name}
            assert of_engine, found
            found -= of_engine
        small_models.keys_must_be(found, wanted)


def objects_are_those_that_the_run_asks_for(shell, _):
    """Weights from elsewhere are for Transformer Engine's modules, whose norms have state; options say local ones, or the release."""
    layer = {"self_attention.linear_qkv.weight": [12, 4], "self_attention.linear_proj.weight": [4, 4],
             "self_attention.linear_qkv.layer_norm_weight": [4], "self_attention.q_layernorm.weight": [2], "mlp.linear_fc1.weight": [8, 4],
             "mlp.linear_fc1.layer_norm_weight": [4], "mlp.linear_fc2.weight": [4, 8]}
    small_models.write(shell.work / "model.safetensors",
                       {"embedding.word_embeddings.weight": [8, 4], "decoder.final_layernorm.weight": [4], "output_layer.weight": [8, 4],
                        "mtp.layers.0.enorm.weight": [4], "mtp.layers.0.hnorm.weight": [4], "mtp.layers.0.eh_proj.weight": [4, 8],
                        "mtp.layers.0.final_layernorm.weight": [4],
                        **{f"decoder.layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}})
    local = {"decoder.layers." + name for name in ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1",
                                                   "mlp.linear_fc2")} | {"mtp.layers.0.eh_proj"}
    engine = local | {"decoder.layers.self_attention.q_layernorm", "decoder.final_layernorm", "mtp.layers.0.enorm", "mtp.layers.0.hnorm",
                      "mtp.layers.0.final_layernorm"}
    attention = {"decoder.layers.self_attention.core_attention"}
    for option, wanted in (("module-state=yes", engine | attention), ("release=0.14", engine | attention), ("release=0.15", engine),
                           ("module-state=local", local), ("module-state=no", set())):
        shell("convert", "model.safetensors", "out", "--to", "torch_dist", "-o", option, "--overwrite", "--quiet")
        names, modules = module_states(shell, "out")
        small_models.keys_must_be(modules, wanted)
        of_layers = {name.split("/")[1] for name in names if name.startswith("decoder.layers.")}
        assert not wanted or of_layers == {"shard_0_2", "shard_1_2"}, of_layers


def states_of_other_modules_come_along(shell, fixtures):
    """What a source has of a module of which a run of its arguments asks nothing becomes an object all the same."""
    def renamed(old, new):
        text = rb"X....(decoder\.layers\.\d\.)" + re.escape(old) + rb"\._extra_state"
        return lambda data: re.sub(text, lambda m: b"X" + struct.pack("<I", len(m[1] + new) + 13) + m[1] + new + b"._extra_state", data,
                                   flags=re.DOTALL)

    for model, old, new, wanted in (
            ("mla", b"self_attention.linear_proj", b"self_attention.q_layernorm", {"decoder.layers.self_attention.q_layernorm",
                                                                                   "decoder.layers.self_attention.linear_proj"}),
            ("mamba", b"mixer.in_proj", b"mixer.norm", {f"decoder.layers.{i}.mixer.{part}" for i in (0, 2) for part in ("norm", "in_proj")})
    ):
        with_common(fixtures / "megatron" / f"megatron-{model}-legacy-tp1" / "ckpt", shell.work / f"{model} source", renamed(old, new),
                    "model_optim_rng.pt")
        done = shell.any("convert", f"{model} source", model, "--to", "torch_dist")
        assert done.returncode == 0 and "norm._extra_state" not in done.stdout + done.stderr, done.stderr
        modules = module_states(shell, model)[1]
        assert wanted <= modules and "decoder.layers.self_attention.kv_layernorm" not in modules, (wanted, modules)
        assert ("output_layer" in modules) == (model == "mamba"), modules


def files_beside_plain_dcp_come_along(shell, fixtures):
    """What a trainer saves beside plain DCP files of an iteration comes along, into Megatron's folders and into others."""
    small_models.write(shell.work / "a.safetensors", {"w": [3, 2]})
    (shell.work / "run").mkdir()
    shell("convert", "a.safetensors", "run/iter_0000017", "--to", "torch-dcp", "--quiet")
    (shell.work / "run" / "latest_checkpointed_iteration.txt").write_text("17")
    beside = shell.work / "run" / "iter_0000017" / "extra_state.pth"
    beside.write_bytes(b"the state of a trainer")
    assert b"format\ttorch_dcp" in shell("inspect", "run")
    assert [i["key"] for i in json.loads(shell("ls", "--items", "--json", "run"))["items"]] == ["extra_state.pth"]
    for number, target in enumerate((["--like", "run"], ["--to", "torch_dcp"], ["--to", "torch-dcp"], ["--to", "hf"])):
        shell("convert", "run", f"out{number}", *target, "--quiet")
        found = list((shell.work / f"out{number}").rglob("extra_state.pth"))
        assert len(found) == 1 and found[0].read_bytes() == beside.read_bytes(), target


def main():
    args = small_models.arguments()
    tests = (optimizers_follow_expert_parallelism, state_by_bucket_comes_back, state_in_several_buckets_comes_back,
             stages_that_predict_have_their_copy, stages_without_experts_have_their_optimizer,
             experts_that_predict_become_those_of_ranks,
             arguments_follow_the_layout, every_argument_of_the_layout_follows, the_split_of_a_pipeline_goes_with_it,
             ranks_have_as_many_model_chunks, a_reference_says_of_what_modules_the_model_is, releases_get_what_they_know,
             state_of_two_types_is_refused, one_file_for_each_rank_becomes_a_dict, experts_of_other_cuts_have_an_optimizer,
             rng_states_are_those_that_the_release_asks_for, rules_of_optimizers, settings_of_groups_are_the_references,
             rows_of_words_follow_the_layout, flattened_matrices_are_refused, two_groups_of_one_kind_are_refused,
             buckets_need_parameter_groups, modules_have_the_objects_that_megatron_wrote, objects_are_those_that_the_run_asks_for,
             states_of_other_modules_come_along, files_beside_plain_dcp_come_along)
    return small_models.run(args.bin, [(test.__doc__, lambda shell, test=test: test(shell, args.fixtures)) for test in tests])


if __name__ == "__main__":
    raise SystemExit(main())
