#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes away what `meson install` of a build put below DESTDIR, links of the library too, and its folders that are empty then.

usage: uninstall.py BUILD DESTDIR
"""
import json
import os
import pathlib
import subprocess
import sys


def files_below(source, path):
    """Of a folder that is installed as a whole: what came from the source tree, nothing else."""
    return [path / found.relative_to(source) for found in sorted(pathlib.Path(source).rglob("*")) if found.is_file()]


def main():
    build, destination = sys.argv[1], sys.argv[2]
    plan = json.loads(subprocess.run(["meson", "introspect", "--installed", build], check=True, capture_output=True, text=True).stdout)
    gone, folders = 0, set()
    for source, path in plan.items():
        path = pathlib.Path(destination + path)
        library = path.name.split(".so.")[0] if ".so." in path.name else None
        links = [path.parent / f"{library}.so", path.parent / f"{library}.so.0"] if library else []
        for file in (files_below(source, path) if os.path.isdir(source) else [path, *links]):
            if file.is_file() or file.is_symlink():
                file.unlink()
                gone += 1
            folders.update(p for p in file.parents if any("reshard" in part for part in p.parts))
    for folder in sorted(folders, key=lambda p: -len(p.parts)):
        if folder.is_dir() and "reshard" in folder.name + folder.parent.name and not any(folder.iterdir()):
            folder.rmdir()
    print(f"{gone} files are taken away")


main()
