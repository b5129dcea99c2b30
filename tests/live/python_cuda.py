#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package for Python with tensors in a GPU's memory: saved, loaded, read there and saved in the background, against torch's own DCP and
safetensors, by one process and by two with DTensors; behind kernels that are still running; in host memory that does not grow. Prints TAP.

usage: python_cuda.py --package DIR          skipped where there is no GPU
"""
import argparse
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch_tensors import of_every_type, same

TYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
         torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.uint32]


def every_type(work):
    """Tensors of every type on the GPU come back bit by bit, there and on the host; torch loads them"""
    tensors = of_every_type(TYPES, "cuda")
    for to in ("torch-dcp", "torch_dist", "hf", "torch"):
        reshard.torch.save(work / to, tensors, to=to)
        loaded = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
        reshard.torch.load(work / to, loaded)
        read = reshard.torch.read(work / to, device="cuda")
        host = reshard.torch.read(work / to)
        for key, tensor in tensors.items():
            assert loaded[key].is_cuda and same(loaded[key], tensor), (to, key)
            assert read[key].is_cuda and same(read[key], tensor) and not host[key].is_cuda and same(host[key], tensor), (to, key)
    dcp.load(theirs := {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}, checkpoint_id=work / "torch-dcp")
    assert all(same(theirs[key], tensor) for key, tensor in tensors.items())
    dcp.save(tensors, checkpoint_id=work / "theirs")
    loaded = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
    reshard.torch.load(work / "theirs", loaded)
    assert all(same(loaded[key], tensor) for key, tensor in tensors.items())
    torch.save(tensors, work / "theirs.pt")
    assert all(same(value, tensors[key]) for key, value in reshard.torch.read(work / "theirs.pt", device="cuda").items())


def strides(work):
    """Transposed and stepped tensors, empty ones, scalars and parameters are saved and filled where they lie; casts happen on the way"""
    base = torch.arange(48., device="cuda").reshape(6, 8)
    state = {"t": base.t(), "step": base[::2, 1::3], "zero": base[:0], "one": base[3, 3], "p": torch.nn.Parameter(base * 2)}
    reshard.save(work / "s", state, to="torch-dcp")
    around = torch.full((8, 12), -1., device="cuda")
    into = {"t": around[:, ::2], "step": torch.zeros(3, 3, dtype=torch.bfloat16, device="cuda"), "zero": base[:0].clone(),
            "one": torch.zeros((), device="cuda"), "p": torch.nn.Parameter(torch.zeros(6, 8, device="cuda"))}
    reshard.load(work / "s", into)
    assert torch.equal(into["t"], base.t()) and (around[:, 1::2] == -1).all()
    assert torch.equal(into["step"].float(), base[::2, 1::3]) and into["one"] == base[3, 3] and torch.equal(into["p"], base * 2)
    with reshard.open(work / "s") as checkpoint:
        part = torch.zeros(2, 3, device="cuda")
        checkpoint.tensors["t"].read((1, 2), (2, 3), out=part)
        assert torch.equal(part, base.t()[1:3, 2:5])
    with reshard.from_memory(state) as live:
        assert reshard.diff(live, work / "s")
        base += 1
        assert not reshard.diff(live, work / "s")


def of_many_sizes(work):
    """Tensors of sizes around those of the buffers that they pass by"""
    sizes = [size + more for size in (1 << 20, 16 << 20, 32 << 20, 48 << 20) for more in (-1, 0, 1)]
    state = {str(size): torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda") for size in sizes}
    reshard.save(work / "s", state, to="hf", sync=False)
    for memory in (0, 1 << 20, 20 << 20):
        into = {key: torch.zeros_like(value) for key, value in state.items()}
        reshard.load(work / "s", into, **({"memory": memory} if memory else {}))
        assert all(torch.equal(into[key], value) for key, value in state.items()), memory


def behind_kernels(work):
    """What is queued on the stream comes first: values are those behind it, also on a stream of one's own"""
    for number, stream in enumerate((torch.cuda.current_stream(), torch.cuda.Stream())):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            values = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(1 << 30)  # about half a second
            values += 5
            reshard.torch.save(work / f"s{number}", {"w": values}, to="hf")
            torch.cuda._sleep(1 << 30)
            values.zero_()
            reshard.torch.load(work / f"s{number}", {"w": values})
            values += 1
        stream.synchronize()
        assert (values == 6).all() and (reshard.torch.read(work / f"s{number}")["w"] == 5).all()


def background(work):
    """A saver has its copy when save() returns: what changes on the GPU then is not saved"""
    for by in ("thread", "process") if "RESHARD_SAVER_PROGRAM" in os.environ else ("thread",):
        values = torch.arange(1 << 22, dtype=torch.float32, device="cuda")
        with reshard.torch.Saver(by) as saver:
            for step in range(2):
                saver.save(work / f"{by}{step}", {"w": values, "step": step}, to="torch-dcp", sync=False)
                values += 1
        for step in range(2):
            found = reshard.torch.read(work / f"{by}{step}", device="cuda")
            assert torch.equal(found["w"], torch.arange(1 << 22, device="cuda") + step), (by, step)


def peak_growth(call):
    """MiB by which the peak of this process's memory grows."""
    def status(name):
        return int(next(line for line in open("/proc/self/status", encoding="ascii") if line.startswith(name)).split()[1]) // 1024
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def memory_is_flat(work):
    """Two GiB on the GPU are saved, loaded and read with less than a GiB of the host's memory"""
    state = {f"w{i}": torch.randn(1 << 25, device="cuda") for i in range(16)}
    zeros = {key: torch.zeros_like(value) for key, value in state.items()}
    small = {"memory": 64 << 20}
    grown = [peak_growth(lambda: reshard.torch.save(work / "s", state, to="torch-dcp", sync=False, **small)),
             peak_growth(lambda: reshard.torch.load(work / "s", zeros, **small)),
             peak_growth(lambda: reshard.torch.read(work / "s", device="cuda", **small))]
    assert all(torch.equal(zeros[key], value) for key, value in state.items())
    assert max(grown) < 1024, grown
    return "MiB more, saving, loading, reading: " + ", ".join(map(str, grown))


def placed(mesh, whole, *placements):
    """A DTensor of the piece that the rank has, without a collective on the GPU, which gloo lacks and NCCL refuses for two on one GPU."""
    size, offset = torch.distributed.tensor._utils.compute_local_shape_and_global_offset(whole.shape, mesh, placements)
    local = whole[tuple(slice(at, at + extent) for at, extent in zip(offset, size))].clone()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def run_rank(rank, size, work):
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{work}/meet", rank=rank, world_size=size)
    mesh = init_device_mesh("cuda", (size,))
    w = torch.arange(77., device="cuda").reshape(7, 11)
    for to in ("torch-dcp", "torch_dist", "hf"):
        reshard.torch.save(work / to, {"a": placed(mesh, w, Shard(0)), "b": placed(mesh, w * 2, Replicate()), "c": w * 3, "step": 4}, to=to)
        after = {"a": placed(mesh, w * 0, Shard(1)), "b": placed(mesh, w * 0, Shard(0)), "c": placed(mesh, w * 0, Replicate())}
        reshard.torch.load(work / to, after, memory=200)
        for key, whole, placement in (("a", w, Shard(1)), ("b", w * 2, Shard(0)), ("c", w * 3, Replicate())):
            assert torch.equal(after[key].to_local(), placed(mesh, whole, placement).to_local()), (to, key)
    with reshard.torch.Saver() as saver:
        saver.save(work / "background", {"a": placed(mesh, w, Shard(1))}, to="torch-dcp")
    assert torch.equal(reshard.torch.read(work / "background", device="cuda")["a"], w)
    dist.barrier()
    dist.destroy_process_group()


def guarded(package, rank, size, work):
    try:
        take_package(package)
        run_rank(rank, size, work)
    except BaseException:
        with open(work / "said", "a", encoding="utf-8") as file:
            file.write(f"rank {rank}: {traceback.format_exc()}\n")
        os._exit(1)


def ranks_of_torch(work):
    """Two ranks with DTensors on the GPU: saved together in three formats, loaded under other placements, in rounds"""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=guarded, args=(PACKAGE, rank, 2, work)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
        if rank.is_alive():
            rank.kill()
    assert [rank.exitcode for rank in ranks] == [0, 0], (work / "said").read_text() if (work / "said").exists() else "a rank was late"


def take_package(package):
    global reshard, PACKAGE
    PACKAGE = package
    warnings.simplefilter("ignore")
    sys.path.insert(0, package)
    import reshard
    import reshard.torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", required=True)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("1..0 # SKIP there is no GPU")
        return 0
    take_package(args.package)
    tests = [every_type, strides, of_many_sizes, behind_kernels, background, memory_is_flat, ranks_of_torch]
    print(f"1..{len(tests)}")
    failed = 0
    for number, function in enumerate(tests, 1):
        work = pathlib.Path(tempfile.mkdtemp())
        said = why = None
        try:
            said = function(work)
        except Exception:
            why = traceback.format_exc()
        shutil.rmtree(work)
        print(f"{'not ok' if why else 'ok'} {number} - {function.__doc__}", flush=True)
        print("".join(f"# {line}\n" for line in (why or said or "").splitlines()), end="", flush=True)
        failed += why is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
