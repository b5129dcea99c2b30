#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The registry with one driver more: what somebody who adds a format changes outside of its folder.

usage: add_row.py REGISTRY OUT
"""
import sys

text = open(sys.argv[1], encoding="utf-8").read()
row = "static const struct format_driver *const registry[] = {\n"
include = '#include "formats/driver.h"\n'
assert text.count(row) == 1 and text.count(include) == 1, "registry.c has another form: add_row.py must follow it"
text = text.replace(include, include + '#include "toy_format.h"\n').replace(row, row + "    &format_toy,\n")
open(sys.argv[2], "w", encoding="utf-8").write(text)
