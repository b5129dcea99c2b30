# SPDX-License-Identifier: Apache-2.0
"""Arrays as NumPy's files hold them, written here by the description of the format (numpy.lib.format), without NumPy."""
import io
import itertools
import struct
import warnings
import zipfile

# dtype of the library: NumPy's kind and size, how struct calls it
KINDS = {"BOOL": ("b1", "?"), "I8": ("i1", "b"), "I16": ("i2", "h"), "I32": ("i4", "i"), "I64": ("i8", "q"), "U8": ("u1", "B"),
         "U16": ("u2", "H"), "U32": ("u4", "I"), "U64": ("u8", "Q"), "F16": ("f2", "e"), "F32": ("f4", "f"), "F64": ("f8", "d")}


def framed(text, data=b"", version=1, magic=b"\x93NUMPY"):
    """A file of any header."""
    text = text if isinstance(text, bytes) else text.encode()
    return magic + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def npy(descr, shape, data, fortran=False, version=1):
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {tuple(shape)!r}, }}"
    room = 10 if version == 1 else 12
    return framed(text + " " * (-(room + len(text) + 1) % 64) + "\n", data, version)


def numbers(dtype, shape, values, big=False, fortran=False, version=1):
    """An array of values, counted by rows; and its bytes, by rows and little-endian."""
    kind, code = KINDS[dtype]
    places = list(itertools.product(*map(range, shape)))
    stored = list(itertools.product(*map(range, reversed(shape)))) if fortran else places
    by_place = dict(zip(places, values))
    ordered = [by_place[place[::-1] if fortran else place] for place in stored]
    order = "|" if kind[1] == "1" else ">" if big else "<"
    data = struct.pack((">" if big else "<") + str(len(ordered)) + code, *ordered)
    return npy(order + kind, shape, data, fortran, version), struct.pack(f"<{len(values)}{code}", *values)


def npz(members, deflated=(), with_zip64=False):
    """An archive of (name, bytes) pairs, which may be named twice; with_zip64: sizes lie in the zip64 fields, as numpy.savez has them."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in members:
            if with_zip64:
                with archive.open(name, "w", force_zip64=True) as member:
                    member.write(data)
            else:
                archive.writestr(name, data, zipfile.ZIP_DEFLATED if name in deflated else zipfile.ZIP_STORED)
    return out.getvalue()
