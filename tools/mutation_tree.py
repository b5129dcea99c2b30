# SPDX-License-Identifier: Apache-2.0
"""A private copy of the source tree with a build directory of its own, in which one mutation at a time is built and tested."""
import hashlib
import json
import os
import pathlib
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

ADDRESS_SPACE = 8 << 30  # a mutant without its limits must not take the machine
SECONDS_FLOOR, SECONDS_FACTOR = 20, 5  # a mutant may hang; it gets this much, and this many times what its test took unchanged
BUILD_SECONDS = 600
FIXTURES = "tests/fixtures.stamp"  # the target that unpacks them


class MutationError(Exception):
    """The mutation, or what is asked of it, is wrong: nothing was learnt about the tests."""


def tracked_files(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, check=True, capture_output=True).stdout
    return sorted(name for name in listed.decode().split("\0") if name and (root / name).is_file())


def program_files(root):
    """Those that programs and tests are made of: a changed document or a new mutation changes nothing that was found out about lines."""
    beside = ("docs/", "bench/", "debian/", "CHANGELOG.md", "CONTRIBUTING.md", "tests/mutants.json", "tools/mut")
    return [name for name in tracked_files(root) if not name.startswith(beside)]


def digest_files(root, names):
    """One digest of the names and bytes of the files."""
    total = hashlib.sha256()
    for name in names:
        total.update(name.encode() + b"\0" + hashlib.sha256((root / name).read_bytes()).digest())
    return total.hexdigest()


def digest_file(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


class Outcome:
    """What one run of a test said: `failure` is None or why it is red; `count` is how many cases were judged."""

    def __init__(self, failure, count, seconds):
        self.failure, self.count, self.seconds = failure, count, seconds


class TestRun:
    """One process of a test, read line by line, so that the first failure ends it."""

    def __init__(self, command, cwd, env, seconds, address_space=ADDRESS_SPACE):
        self.address_space = address_space
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                                        preexec_fn=self.limit)
        self.is_late = False
        self.timer = threading.Timer(seconds, self.expire)
        self.timer.start()

    def limit(self):
        resource.setrlimit(resource.RLIMIT_AS, (self.address_space, self.address_space))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def expire(self):
        self.is_late = True
        self.stop()

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def outcome(self):
        planned, count, ran, failure = None, 0, 0, None
        try:
            for line in self.process.stdout:
                if line.startswith("1.."):
                    planned = int("0" + line[3:].split()[0])
                elif line.startswith("not ok"):
                    failure = line.split("-", 1)[-1].strip() or "a case"
                    break
                elif line.startswith("ok "):
                    ran += 1
                    count += "# SKIP" not in line
        finally:
            if failure:
                self.stop()
            self.timer.cancel()
            self.process.stdout.close()
            code = self.process.wait()
            self.stop()  # what the test left running
        if not failure and self.is_late:
            failure = "hangs"
        if not failure and (code or planned != ran):
            failure = f"died, exit {code}" if code else f"ran {ran} of {planned} cases"
        return Outcome(failure, count, time.monotonic() - self.started)


class Tree:
    def __init__(self, origin, folder, options, env=None):
        self.origin, self.source, self.build = origin, folder / "source", folder / "source" / "build"
        self.scratch = folder / "tmp"
        self.changed = self.original = None  # the file that is mutated, and its text without
        self.objects = {}  # digests of object files as they are without a mutation
        self.options, self.env = options, env or {}

    def prepare(self):
        """Brings the copy up to date and builds what tests introspection needs; leftovers of an earlier run go."""
        names = tracked_files(self.origin)
        for name in names:
            source, target = self.origin / name, self.source / name
            if not target.exists() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                shutil.copymode(source, target)
        known = set(names)
        for folder, folders, files in os.walk(self.source):
            folders[:] = [f for f in folders if not (pathlib.Path(folder) == self.source and f == "build") and f != "__pycache__"]
            for path in (pathlib.Path(folder, f) for f in files):
                if str(path.relative_to(self.source)) not in known:
                    path.unlink()
        for live in self.origin.glob(".venv*"): # the Pythons of live tests, where the tests look for them
            if not (self.source / live.name).exists():
                (self.source / live.name).symlink_to(live)
        if not (self.build / "build.ninja").exists():
            self.call(["meson", "setup", *self.options, str(self.build), str(self.source)], "meson setup")
        self.ninja(["build.ninja"])
        self.tests = {test["name"]: test for test in self.introspect("--tests")}
        self.targets = {target["id"]: [str(pathlib.Path(f).relative_to(self.build)) for f in target["filename"]]
                        for target in self.introspect("--targets") if target["filename"][0].startswith(str(self.build))}
        commands = json.loads((self.build / "compile_commands.json").read_text())
        self.object_of = {os.path.relpath(os.path.join(c["directory"], c["file"]), self.source): self.build / c["output"] for c in commands}

    def introspect(self, what):
        return json.loads(self.call(["meson", "introspect", what, str(self.build)], "meson introspect"))

    @staticmethod
    def call(command, what):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise MutationError(f"{what}: {(done.stdout + done.stderr).strip()[-2000:]}")
        return done.stdout

    def ninja(self, targets):
        """None, or what the compiler said."""
        done = subprocess.run(["ninja", "-j2", "-C", str(self.build), "--quiet", *targets], capture_output=True, text=True,
                              timeout=BUILD_SECONDS)
        if done.returncode == 0:
            return None
        lines = [line for line in done.stdout.splitlines() if "error" in line or "undefined" in line] or done.stdout.splitlines() or ["?"]
        return lines[0].strip()[:300]

    def find(self, spec):
        """The test that spec names, and arguments that narrow it: `fixtures hash --family zarr`."""
        name = max((name for name in self.tests if spec == name or spec.startswith(name + " ")), key=len, default=None)
        if not name:
            raise MutationError(f"no test is called {spec!r}")
        return self.tests[name], shlex.split(spec[len(name):])

    def targets_of(self, spec):
        test, _ = self.find(spec)
        return {file for identity in test["depends"] for file in self.targets.get(identity, [])}

    def run(self, spec, seconds, reserves_much=False):
        test, extra = self.find(spec)
        command = list(test["cmd"]) + extra
        if os.path.basename(command[0]).startswith("python"):
            command[0] = sys.executable
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        env = {"MALLOC_PERTURB_": "0", "RESHARD_TEST_TIMES": "1000", **os.environ, **self.env, **test["env"], "TMPDIR": str(self.scratch),
               "PYTHONDONTWRITEBYTECODE": "1"}
        reserves_much |= any(suite.split(":")[-1] == "live" for suite in test["suite"])  # browsers and sanitizers reserve terabytes
        outcome = TestRun(command, self.build, env, seconds, resource.RLIM_INFINITY if reserves_much else ADDRESS_SPACE).outcome()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return outcome

    def object_digest(self, file):
        return digest_file(self.object_of[file]) if file in self.object_of else None

    def restore(self):
        if self.changed:
            (self.source / self.changed).write_text(self.original)
            self.changed = self.original = None

    def apply(self, file, mutate):
        """Only this file, whose text `mutate` changes, differs from the copy as it was made: the checkout may go on meanwhile."""
        self.restore()
        path = self.source / file
        if not path.is_file():
            raise MutationError("no such file")
        original = path.read_text()
        text = mutate(original)
        if file not in self.objects:
            self.objects[file] = self.object_digest(file)
        path.write_text(text)
        self.changed, self.original = file, original

    def is_unchanged(self):
        """True if the compiler made the same object of the mutated file."""
        before = self.objects.get(self.changed)
        return before is not None and before == self.object_digest(self.changed)
