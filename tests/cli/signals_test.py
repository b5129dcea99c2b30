#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interrupted conversions leave the old state or the new one, and nothing beside. Prints TAP.

usage: signals_test.py --bin PATH
"""
import argparse
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time

MIB = 1 << 20


def write_source(path, tensors, bytes_each):
    header, at = {}, 0
    for i in range(tensors):
        header[f"t{i}"] = {"dtype": "U8", "shape": [bytes_each], "data_offsets": [at, at + bytes_each]}
        at += bytes_each
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)  # sparse


CONVERT = ("convert", "source.safetensors", "target", "--to", "torch-dcp", "--layout", "ranks=4")
SALVAGE = ("salvage", "source.safetensors", "target", "--to", "hf")


def interrupt_after(binary, work, delay, number, *extra, command=CONVERT):
    target = work / "target"
    process = subprocess.Popen([binary, *command, *extra], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(delay)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    left = sorted(p.name for p in work.iterdir() if p.name != "source.safetensors")
    return process.returncode, err.decode(), target, left


def check_interrupts(binary, work):
    """Whatever the moment: exit 130 and nothing, or exit 0 and a whole target."""
    statuses = []
    for delay in (0.02, 0.05, 0.1, 0.2, 0.4):
        for number, *extra in ((signal.SIGINT,), (signal.SIGTERM, "--verify"), (signal.SIGHUP, "--checksum", "sha256"), (signal.SIGQUIT,)):
            status, err, target, left = interrupt_after(binary, work, delay, number, *extra)
            statuses.append(status)
            if status in (130, -number):  # the latter before there is a handler, which on a busy machine takes a while
                assert left == [], f"{delay} s: left {left}"
            else:
                assert status == 0 and left == ["target"], f"{delay} s: exit {status}, left {left}: {err}"
                subprocess.run(["rm", "-r", target], check=True)
    return f"exit statuses {statuses}"


def check_salvage_interrupts(binary, work):
    """The same of salvage, which says so; and it goes on where nobody reads what it finds."""
    statuses = []
    for delay in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6):
        for number in (signal.SIGINT, signal.SIGTERM):
            status, err, target, left = interrupt_after(binary, work, delay, number, command=SALVAGE)
            statuses.append(status)
            if status in (130, -number):
                assert left == [], f"{delay} s: left {left}"
                assert not err or err == "reshard: interrupted: 'target' is not written\n", err
            else:
                assert status in (0, 1) and left == ["target"], f"{delay} s: exit {status}, left {left}: {err}"
                subprocess.run(["rm", "-r", target], check=True)
    process = subprocess.Popen([binary, *SALVAGE], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=120) == 0 and err == b"" and (work / "target").is_dir(), (process.returncode, err)
    return f"exit statuses {statuses}"


def check_at_once_without_writing(binary, work):
    """While metadata is read, and in verbs that write nothing, a signal ends the process at once, and without a core."""
    with open(work / "wide.safetensors", "wb") as out:
        text = b"{" + b",".join(b'"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(600000)) + b"}"
        out.write(struct.pack("<Q", len(text)) + text)
    os.truncate(work / "source.safetensors", 0)
    write_source(work / "source.safetensors", 1, 1 << 34)
    found = []
    for delay, *command in ((0.05, "convert", "wide.safetensors", "target", "--to", "hf"), (0.05, "inspect", "wide.safetensors"),
                            (0.3, "hash", "source.safetensors")):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            process = subprocess.Popen([binary, *command], cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            time.sleep(delay)
            started = time.monotonic()
            process.send_signal(number)
            _, err = process.communicate(timeout=120)
            took = time.monotonic() - started
            assert process.returncode in (130, -number) and err == b"", f"{command}: exit {process.returncode}: {err}"
            assert took < 2, f"{command}: {took:.1f} s after the signal"
            assert not (work / "target").exists() and len(list(work.iterdir())) == 2, list(work.iterdir())
            found.append(f"{took * 1000:.0f} ms")
    return "gone after " + ", ".join(found)


def check_progress_reader_gone(binary, work):
    """Nobody reads the progress any more: the conversion goes on, and the result is whole."""
    for style in ("json", "plain"):
        process = subprocess.Popen([binary, "convert", "source.safetensors", "target", "--to", "torch-dcp", "--progress", style,
                                    "--verbose"], cwd=work,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stderr.close()
        out = process.stdout.read()
        assert process.wait(timeout=120) == 0 and b"64 tensors" in out, (process.returncode, out)
        same = subprocess.run([binary, "diff", "source.safetensors", "target"], cwd=work, capture_output=True, timeout=120)
        assert same.returncode == 0, same
        subprocess.run(["rm", "-r", work / "target"], check=True)
    left = [p.name for p in work.iterdir()]
    assert left == ["source.safetensors"], left
    return ""


def check_convert_output_gone(binary, work):
    """What convert was asked for is its target, not its line of output."""
    process = subprocess.Popen([binary, "convert", "source.safetensors", "target", "--to", "hf"], cwd=work, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=120) == 0 and err == b"" and (work / "target").is_dir(), (process.returncode, err)
    return ""


def check_file_size_limit(binary, work):
    """A limit on the size of files (ulimit -f) is an error with a status and a reason, and nothing is left; so it is for standard
    output."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))

    for options in (["--to", "torch-dcp"], ["--to", "hf", "--checksum", "sha256"], ["--to", "safetensors"],
                    ["--to", "zarr", "-o", "codec=none"], ["--to", "torch", "--resume"]):
        done = subprocess.run([binary, "convert", "source.safetensors", "target", *options], cwd=work, capture_output=True, text=True,
                              timeout=120, preexec_fn=limit)
        assert done.returncode == 3 and "File too large" in done.stderr and "hint: raise the limit" in done.stderr, (options, done)
        left = [p.name for p in work.iterdir() if p.name not in ("source.safetensors", ".target.reshard-partial")]
        assert left == [] and ("--resume" in options or not (work / ".target.reshard-partial").exists()), (options, left)
    with open(work / "out", "wb") as out:
        done = subprocess.run([binary, "cat", "--as", "raw", "source.safetensors", "t0"], cwd=work, stdout=out, stderr=subprocess.PIPE,
                              timeout=60, preexec_fn=limit)
    assert done.returncode == 3 and b"standard output: File too large" in done.stderr, done
    return ""


def check_overwrite_keeps_old(binary, work):
    (work / "target").mkdir()
    write_source(work / "target" / "model.safetensors", 1, 16)
    status, err, target, left = interrupt_after(binary, work, 0.1, signal.SIGINT, "--overwrite")
    assert left == ["target"], left
    if status == 130:
        assert [p.name for p in target.iterdir()] == ["model.safetensors"]
    else:
        assert status == 0 and not (target / "model.safetensors").exists(), err
    return f"exit status {status}"


def check_compressing(binary, work):
    """Compressing, which takes longer than writing, and what lies between it and the new target's appearance, heed a signal."""
    header = json.dumps({f"t{i}": {"dtype": "U8", "shape": [2 * MIB], "data_offsets": [i * 2 * MIB, (i + 1) * 2 * MIB]} for i in range(16)})
    with open(work / "source.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header.encode())
        for i in range(16):
            out.write(random.Random(i).randbytes(MIB) * 2)

    def compressed(number):
        """(the process, what it says, the seconds since the compressing began)"""
        shutil.rmtree(work / "target", ignore_errors=True)
        (work / "target").mkdir()
        write_source(work / "target" / "model.safetensors", 1, 16)
        process = subprocess.Popen([binary, "convert", "source.safetensors", "target", "--to", "zarr", "-o", "codec=zstd", "-o", "level=19",
                                    "-j", "1", "--overwrite", "--progress", "json"], cwd=work, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        for line in process.stderr:
            said = json.loads(line)
            if said["done"] == said["total"]:
                break
        started = time.monotonic()
        if number:
            time.sleep(0.2)
            process.send_signal(number)
        err = process.communicate(timeout=120)[1]
        return process, err, time.monotonic() - started

    _, _, whole = compressed(None)
    process, err, took = compressed(signal.SIGINT)
    assert took < whole / 2, f"all was compressed first: {took:.1f} s of {whole:.1f}"
    assert process.returncode == 130 and b"'target' is not written" in err, (process.returncode, err)
    left = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
    assert left == ["source.safetensors", "target", "target/model.safetensors"], left
    return f"{took:.1f} s after the signal, {whole:.1f} s without one"


def check_copying_out(binary, work):
    """A target that goes to standard output is whole by then: a reader that reads nothing holds nobody up."""
    (work / "tmp").mkdir()
    for number, waits in ((signal.SIGINT, 0.3), (signal.SIGTERM, 0.3), (signal.SIGTERM, 0.02), (signal.SIGINT, 0.05)):
        process = subprocess.Popen([binary, "convert", "source.safetensors", "-", "--to", "torch"], cwd=work, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(work / "tmp")})
        if waits > 0.1:
            process.stdout.read(10)
        time.sleep(waits)
        process.send_signal(number)
        try:
            status, err = process.wait(timeout=10), process.stderr.read()
        except subprocess.TimeoutExpired:
            process.kill()
            status, err = "none for ten seconds", b""
        assert status in (130, -number) and (not err or err == b"reshard: interrupted: '-' is not written\n"), (status, err)
        process.stdout.close()
        assert list((work / "tmp").iterdir()) == [], list((work / "tmp").iterdir())
    return ""


def check_quiet_pipe(binary, work):
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run([binary, "ls", "source.safetensors"], cwd=work, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert run.stderr == b"" and run.returncode == -signal.SIGPIPE, (run.returncode, run.stderr)
    write_source(work / "source.safetensors", 3, 1 << 34)
    process = subprocess.Popen([binary, "cat", "--as", "raw", "source.safetensors", "t0"], cwd=work, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert err == b"" and process.returncode == -signal.SIGPIPE, (process.returncode, err)
    assert usage.ru_utime + usage.ru_stime < 2, "reads on, for nobody"
    return f"exit status {process.returncode}, {usage.ru_utime + usage.ru_stime:.2f} s of CPU time"


def check_full_device(binary, work):
    if not os.path.exists("/dev/full"):
        return "no /dev/full"
    for command in (["ls"], ["cat", "--as", "raw"], ["hash", "--json"], ["ls", "--json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([binary, *command, "source.safetensors", *(["t0"] if command[0] == "cat" else [])], cwd=work, stdout=full,
                                  stderr=subprocess.PIPE, timeout=60)
        lines = done.stderr.splitlines()
        assert done.returncode == 3 and b"No space left" in lines[-1] and len(lines) == 1, (command, done.returncode, done.stderr)
    return "exit status 3"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    args = parser.parse_args()
    binary = os.path.abspath(args.bin)
    checks = (check_interrupts, check_salvage_interrupts, check_at_once_without_writing, check_file_size_limit, check_overwrite_keeps_old,
              check_compressing, check_copying_out,
              check_progress_reader_gone, check_convert_output_gone, check_quiet_pipe, check_full_device)
    print(f"1..{len(checks)}")
    for number, check in enumerate(checks, 1):
        with tempfile.TemporaryDirectory(prefix="reshard-signals-") as folder:
            work = pathlib.Path(folder)
            write_source(work / "source.safetensors", 64, 4 * MIB)
            try:
                verdict, text = "ok", check(binary, work)
            except AssertionError as problem:
                verdict, text = "not ok", str(problem)
            print(f"{verdict} {number} - {check.__name__[6:]}\n# {text}", flush=True)


main()
