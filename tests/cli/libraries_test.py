#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the command is loaded with, as that is most of the time of a short run; and what it loads when it is asked for. Prints TAP.

usage: libraries_test.py --bin PATH
"""
import argparse
import sys

import small_models

AT_START = {"libreshard", "libz", "libzstd", "libxxhash", "libnettle", "libisal", "libpcre2-8", "liblz4", "libbz2", "liblzma", "libc",
            "libm"}
LOAD = ["convert", "a.safetensors", "packed", "--to", "zarr", "-o", "codec=blosc"]


def nothing_more_at_the_start(sh):
    """No library that few runs need (blosc, with the runtime of C++), and none that takes long to load (libcrypto)."""
    listed = sh("--version", environment={"LD_TRACE_LOADED_OBJECTS": "1"}).decode()
    found = {line.split()[0].rsplit("/", 1)[-1].split(".so")[0] for line in listed.splitlines() if ".so" in line} - {"linux-vdso"}
    assert "libreshard" in found and all(name in AT_START or name.startswith("ld-linux") for name in found), found - AT_START


def blosc_is_loaded_on_demand(sh):
    small_models.write(sh.work / "a.safetensors", {"w": [3, 4]})
    (sh.work / "libblosc.so.1").write_bytes(b"no library")
    without = {"LD_LIBRARY_PATH": f"{sh.work}"}
    said = sh(*LOAD, exit_status=5, environment=without).decode()
    assert "needs libblosc.so.1, which cannot be loaded: " in said and "install libblosc" in said, said
    assert not (sh.work / "packed").exists()
    sh(*LOAD)
    sh("hash", "packed", exit_status=5, environment=without)
    sh("hash", "a.safetensors", environment=without)
    assert sh.tensors("packed") == sh.tensors("a.safetensors")


parser = argparse.ArgumentParser()
parser.add_argument("--bin", required=True)
sys.exit(small_models.run(parser.parse_args().bin, [("what is loaded at the start", nothing_more_at_the_start),
                                                    ("blosc is loaded when an array asks for it", blosc_is_loaded_on_demand)]))
