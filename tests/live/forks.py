# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked from one that has imported the frameworks: the imports, which take seconds, are done once.

What a framework sets up for a job (groups of ranks, settings of a release) begins anew in each.
"""
import gc
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import traceback


def start(log, function, *arguments, environment=None):
    """Begins function(*arguments) in a fork of this process; its output goes to the file `log`. It ends well if it returns 0 or None."""
    process = multiprocessing.get_context("fork").Process(target=become, args=(log, environment or {}, function, arguments))
    process.start()
    return process


def become(log, environment, function, arguments):
    os.environ.update(environment)
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    gc.freeze()  # what came from the parent is no garbage: frameworks that collect as they load need not look at it
    status = 1
    try:
        status = int(function(*arguments) or 0)
    except BaseException:  # of whatever kind the frameworks raise
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)  # without what the frameworks do at the end of a process: that is its parent's


def in_forks(seconds, *calls):
    """(whether all ended well, what they said); a call is a function and its arguments."""
    with tempfile.TemporaryDirectory(prefix="reshard-forks-") as folder:
        logs = [pathlib.Path(folder, str(number)) for number in range(len(calls))]
        is_good = all_ended_well([start(log, *call) for log, call in zip(logs, calls)], seconds)
        return is_good, "".join(log.read_text(errors="replace") for log in logs)


def answer_of(call):
    """What call() returns, (complaints, what was compared), by a fork."""
    with tempfile.TemporaryFile("r+") as said:
        child = os.fork()
        if child == 0:
            try:
                answer = call()
            except BaseException as problem:  # of whatever kind the frameworks raise
                answer = [f"{type(problem).__name__}: {str(problem)[:300]}"], ""
            json.dump(answer, said)
            said.flush()
            os._exit(0)
        os.waitpid(child, 0)
        said.seek(0)
        text = said.read()
    return json.loads(text) if text else (["the process that reads died"], "")


def all_ended_well(processes, seconds):
    """Waits so long for each, and ends those that hang."""
    for process in processes:
        process.join(seconds)
    for process in processes:
        process.kill()
        process.join()
    return all(process.exitcode == 0 for process in processes)
