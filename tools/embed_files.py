#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C header with the given files as arrays.

usage: embed_files.py OUTPUT NAME FILE...     an array NAME_files of struct NAME_data, and its length NAME_file_count
"""
import pathlib
import sys


def array(data):
    """Rows of numbers: a string literal would be longer than compilers must accept."""
    return "\n".join("    " + "".join(f"{b}," for b in data[i:i + 40]) for i in range(0, len(data), 40))


def main():
    output, name, *names = sys.argv[1:]
    files = sorted((pathlib.Path(n) for n in names), key=lambda f: f.name)
    text = "/* Made by tools/embed_files.py; not to be edited. */\n"
    for number, file in enumerate(files):
        text += f"static const unsigned char {name}_file_{number}[] = {{\n{array(file.read_bytes() + bytes(1))}\n}};\n"
    text += f"static const struct {name}_data {name}_files[] = {{\n"
    for number, file in enumerate(files):
        text += f'    {{ "{file.name}", {{ (const char *){name}_file_{number}, sizeof({name}_file_{number}) - 1 }} }},\n'
    text += f"    {{ 0 }},\n}};\nstatic const uint32_t {name}_file_count = {len(files)};\n"
    pathlib.Path(output).write_text(text)


main()
