#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C header with the given files as arrays.

usage: embed_models.py OUTPUT FILE...
"""
import pathlib
import sys


def array(data):
    """Rows of numbers: a string literal would be longer than compilers must accept."""
    return "\n".join("    " + "".join(f"{b}," for b in data[i:i + 40]) for i in range(0, len(data), 40))


def main():
    output, *names = sys.argv[1:]
    files = sorted((pathlib.Path(n) for n in names), key=lambda f: f.name)
    text = "/* Made by tools/embed_models.py; not to be edited. */\n"
    for number, file in enumerate(files):
        text += f"static const unsigned char model_file_{number}[] = {{\n{array(file.read_bytes() + bytes(1))}\n}};\n"
    text += "static const struct model_data model_files[] = {\n"
    for number, file in enumerate(files):
        text += f'    {{ "{file.name}", {{ (const char *)model_file_{number}, sizeof(model_file_{number}) - 1 }} }},\n'
    text += f"    {{ 0 }},\n}};\nstatic const uint32_t model_file_count = {len(files)};\n"
    pathlib.Path(output).write_text(text)


main()
