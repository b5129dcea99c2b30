# SPDX-License-Identifier: Apache-2.0
"""Other checksums in the archives that torch.save writes."""
import struct
import zipfile


def set_crc(data, start, member, crc):
    """In the header, the descriptor and the directory of the archive that begins at start."""
    old, new = struct.pack("<I", member.CRC), struct.pack("<I", crc)
    at = start + member.header_offset
    end = at + 30 + sum(struct.unpack("<HH", data[at + 26:at + 30])) + member.compress_size
    central = data.index(member.filename.encode(), end) - 46
    while data[central:central + 4] != b"PK\1\2":
        central = data.index(member.filename.encode(), central + 47) - 46
    places = [at + 14, central + 16] + ([end + 4] if data[end:end + 4] == b"PK\7\10" else [])
    for place in places:
        if data[place:place + 4] == old:
            data[place:place + 4] = new


def without(path, forget=lambda name: True):
    """Sets to 0 the CRC-32 of members whose name passes."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if forget(member.filename):
                set_crc(data, 0, member, 0)
    path.write_bytes(data)
