#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what the public headers declare: structs with their members, and how each crosses the boundary.

As a program it writes a header for the tests of arguments (tests/api/arguments.h): for each struct a list of where its members behind
struct_size begin, so that a member that is added is tested without being named anywhere, and proof that the members found are all.

usage: public_headers.py --include DIR OUT
"""
import argparse
import pathlib
import re

# mpi.h needs an MPI to be compiled, and declares no struct.
OUTSIDE = {"mpi.h"}


def names(include):
    return sorted(path.name for path in (include / "reshard").glob("*.h") if path.name not in OUTSIDE)


def text_of(include, header):
    """A header without comments and macros."""
    text = (include / "reshard" / header).read_text()
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M)


def members(body):
    """Names of the members that a struct's body declares."""
    for declaration in filter(str.strip, body.split(";")):
        pointer = re.search(r"\(\*(\w+)\)\s*\(", declaration)
        if pointer:
            yield pointer.group(1)
            continue
        for part in declaration.split(","):
            yield re.search(r"(\w+)\s*(?:\[\w+\])?\s*$", part).group(1)


class Headers:
    """structs: name -> body, of all headers, in their order; declarations: all that is declared, functions among it, as one text."""

    def __init__(self, include):
        self.structs, texts = {}, []
        for header in names(include):
            texts.append(text_of(include, header))
            for name, body in re.findall(r"^(?:typedef )?struct (\w+) \{\n(.*?)\n\}(?: \1)?;", texts[-1], re.S | re.M):
                self.structs[name] = body
        self.declarations = "\n".join(texts)

    def has_size(self, name):
        return next(members(self.structs[name])) == "struct_size"

    def functions(self):
        """name -> (what it returns, its parameters), of what the library exports."""
        types = r"^(?:typedef )?struct \w+ \{\n.*?\n\}[^;]*;|^typedef [^;]*;|^enum \{.*?\};"
        flat = re.sub(types, "", self.declarations, flags=re.S | re.M)
        found = re.findall(r"([\w\s]+?[\s*]+)(reshard_\w+)\(([^;{]*)\);", flat)
        return {name: (" ".join(returned.split()), " ".join(parameters.split())) for returned, name, parameters in found}

    def callbacks(self):
        """The parameters of all functions of the caller's: members of structs, typedefs, and parameters of functions."""
        return re.findall(r"\(\*\w+\)\s*\(([^)]*)\)", self.declarations)

    def crossings(self):
        """(way, struct): "IN" what a caller hands in, "OUT" what the library fills in, "TOLD" what it hands to a callback."""
        told = "\n".join(self.callbacks())
        given = "\n".join([*(parameters for _, parameters in self.functions().values()), *self.structs.values()])
        given = re.sub(r"\(\*\w+\)\s*\([^)]*\)", " ", given)
        for name in filter(self.has_size, self.structs):
            if name == "reshard_error":
                continue  # is neither: tests/api/test_arguments.c has a test of its own
            if re.search(rf"\bconst {name} \*", given):
                yield "IN", name
            if re.search(rf"(?<!const )\b{name} \*", given):
                yield "OUT", name
            if re.search(rf"\b{name} \*", told):
                yield "TOLD", name

    def arrays(self):
        """"struct.member" and "function.parameter" of each stride of an array."""
        for name, body in self.structs.items():
            yield from (f"{name}.{member}" for member in members(body) if member.endswith("stride"))
        for name, (_, parameters) in self.functions().items():
            yield from (f"{name}.{parameter}" for parameter in re.findall(r"size_t (\w*stride)\b", parameters))

    def problems(self):
        """Structs that could not grow: without a size and no array's member, or inside another one."""
        flat = "\n".join(parameters for _, parameters in self.functions().values())
        for name, body in self.structs.items():
            if name == "reshard_str":
                continue
            if not self.has_size(name) and not re.search(rf"\b{name} \*\w+,(?: \w+)? (?:size_t )?\w*stride", flat) and not any(
                    re.search(rf"\b{name} \*\w+;\s*size_t \w*stride", other) for other in self.structs.values()):
                yield f"{name} begins without struct_size, and is in no array with a stride"
            for other in self.structs:
                if other != "reshard_str" and re.search(rf"^\s*(?:const )?{other} \w", body, re.M):
                    yield f"{name} holds a {other} itself, which can not grow there: a pointer to one"
            if not self.has_size(name):
                yield from (f"{parameters}: a {name} alone, of no known size" for parameters in flat.split("\n")
                            if re.search(rf"\b{name} \*", parameters) and "stride" not in parameters)


def write(include, out):
    headers = Headers(include)
    lines = ["/* Made by tests/abi/public_headers.py of the public headers. */", "#include <stddef.h>", ""]
    lines += [f'#include "reshard/{header}"' for header in names(include)]
    for name in filter(headers.has_size, headers.structs):
        found = list(members(headers.structs[name]))
        places = ", ".join(f"offsetof({name}, {member})" for member in found[1:])
        sizes = " + ".join(f"sizeof((({name} *)0)->{member})" for member in found)
        lines.append(f"#define MEMBERS_{name} (const size_t[]){{ {places}, 0 }}")
        lines.append(f'_Static_assert({sizes} == sizeof({name}), "{name}: members were missed, or it has holes");')
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", type=pathlib.Path, required=True)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    write(args.include, args.out)
