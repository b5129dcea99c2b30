#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes one folder of all fixtures: links to those kept as plain files, and the content of the archives (`<family>.tar.xz`).

usage: unpack_fixtures.py SOURCE TARGET STAMP
SOURCE is tests/fixtures. An archive holds folders `<family>/<case>/`; a case that is there as plain files too is an error. Nothing is done
if SOURCE has not changed since the run that left STAMP.
"""
import hashlib
import pathlib
import shutil
import sys
import tarfile


def identity(source):
    """Changes whenever a case comes or goes, or an archive has other bytes."""
    entries = [str(path) for path in sorted(source.glob("*/*"))]
    entries += [f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(source.glob("*.tar.xz"))]
    return "\n".join(entries)


def link_plain_cases(source, target):
    for case in source.glob("*/*"):
        (target / case.parent.name).mkdir(exist_ok=True)
        (target / case.parent.name / case.name).symlink_to(case)


def unpack(archive, target):
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            parts = pathlib.PurePosixPath(member.name).parts
            if ".." in parts or member.name.startswith("/") or not (member.isfile() or member.isdir()):
                sys.exit(f"{archive}: '{member.name}' is neither a file nor a folder below the target")
            if len(parts) > 1 and (target / parts[0] / parts[1]).is_symlink():
                sys.exit(f"{archive}: '{member.name}' is among the plain files too")
        tar.extractall(target)


def main():
    source, target, stamp = map(pathlib.Path, sys.argv[1:])
    source = source.resolve()
    now = identity(source)
    if stamp.exists() and target.is_dir() and stamp.read_text() == now:
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    link_plain_cases(source, target)
    for archive in sorted(source.glob("*.tar.xz")):
        unpack(archive, target)
    stamp.write_text(now)


if __name__ == "__main__":
    main()
