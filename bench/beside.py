# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of the package for Python do alike: rounds of jobs that take turns, ranks, and what is printed."""
import argparse
import multiprocessing
import pathlib
import shutil
import statistics
import sys
import tempfile
import time


def parser(megabytes, rounds):
    """The options that all take; read by options_of."""
    made = argparse.ArgumentParser()
    made.add_argument("--package", required=True)
    made.add_argument("--megabytes", type=int, default=megabytes)
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--folder", default="/dev/shm")
    return made


def options_of(made):
    """What was asked for; the package that it names can be imported then."""
    args = made.parse_args()
    sys.path.insert(0, args.package)
    return args


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)


def medians_of(calls, rounds, prepare, meet):
    """{name: seconds} of {name: call}: in one round all run, one after the other. Not timed: prepare(name), before each; timed from one
    meet() to the end of another, where ranks or devices are waited for."""
    seconds = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            prepare(name)
            meet()
            begun = time.perf_counter()
            call()
            meet()
            seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first round is for warmth


def said_by_ranks(run, args, *more):
    """What run(rank, args, work, *more, said) puts into said, a queue, from one of args.ranks processes; work is a folder of their own."""
    multiprocessing.set_start_method("fork")
    said = multiprocessing.Queue()
    work = pathlib.Path(tempfile.mkdtemp(dir=args.folder))
    try:
        ranks = [multiprocessing.Process(target=run, args=(rank, args, work, *more, said)) for rank in range(args.ranks)]
        for rank in ranks:
            rank.start()
        answer = said.get(timeout=1200)
        for rank in ranks:
            rank.join()
    finally:
        remove(work)
    return answer


def print_medians(medians, peers, megabytes):
    """A line for each job: its time, its rate, and how much of its peer's time that is. peers: a job's name, or None."""
    for name, median in medians.items():
        beside = f"{median / medians[peers[name]]:6.2f} x {peers[name]}" if peers[name] else ""
        print(f"{name:36} {median * 1000:8.1f} ms  {megabytes / 1024 / median:6.2f} GiB/s  {beside}")
