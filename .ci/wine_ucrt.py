"""Copies Wine 8's ucrtbase.dll with the functions of complex numbers that NumPy 2 imports.

Wine 8 has stubs for them, which end the process when NumPy is imported. The short ones are put in
their places; those that compute more (cexp, cpow, ...) stay stubs, and nothing here calls them.

usage: wine_ucrt.py SOURCE TARGET
"""

import struct
import sys

# Machine code of x86-64: Windows passes a float complex in rcx, a double complex by its address in
# rcx, and returns in xmm0. With a name, it ends with a jump to that function.
CODE = {
    "crealf": ("660f6ec1c3", None),
    "cimagf": ("48c1e920660f6ec1c3", None),
    "creall": ("f20f1001c3", None),
    "cimag": ("f20f104108c3", None),
    "cimagl": ("f20f104108c3", None),
    "cabsf": ("660f6ec148c1e920660f6ec9", "_hypotf"),
    "cabsl": ("f20f1001f20f104908", "hypot"),
    "cargf": ("660f6ec948c1e920660f6ec1", "atan2f"),
    "carg": ("f20f1009f20f104108", "atan2"),
    "cargl": ("f20f1009f20f104108", "atan2"),
}
STUB = "4883ec28488d0d"  # how a stub begins: sub rsp, 28h; lea rcx, ...
LONGEST = 26  # bytes of a stub

with open(sys.argv[1], "rb") as file:
    dll = bytearray(file.read())


def number(place: int, form: str = "<I") -> int:
    """Return an integer of the file."""
    return struct.unpack_from(form, dll, place)[0]


# The format is Microsoft's "PE Format": sections (size, address, size in the file, place in it).
header = number(0x3C)
optional = header + 24
first = optional + number(header + 20, "<H")
sections = [
    struct.unpack_from("<IIII", dll, first + 40 * i + 8) for i in range(number(header + 6, "<H"))
]


def place_of(address: int) -> int:
    """Return where an address of the loaded library is in the file."""
    return next(
        place + address - start
        for size, start, in_file, place in sections
        if start <= address < start + max(size, in_file)
    )


exports = place_of(number(optional + 112))
functions, names, ordinals = (place_of(number(exports + k)) for k in (28, 32, 36))
addresses = {}
for i in range(number(exports + 24)):
    start = place_of(number(names + 4 * i))
    name = dll[start : dll.index(b"\0", start)].decode()
    addresses[name] = number(functions + 4 * number(ordinals + 2 * i, "<H"))

for name, (digits, target) in CODE.items():
    code, place = bytes.fromhex(digits), place_of(addresses[name])
    if dll[place : place + 7].hex() != STUB:
        sys.exit(f"{name} is no stub in this library")
    if target is not None:
        distance = addresses[target] - (addresses[name] + len(code) + 5)
        code += b"\xe9" + struct.pack("<i", distance)
    assert len(code) <= LONGEST
    dll[place : place + len(code)] = code
dll[0x40:0x50] = bytes(16)  # Wine's mark of a library that is its own
with open(sys.argv[2], "wb") as file:
    file.write(dll)
