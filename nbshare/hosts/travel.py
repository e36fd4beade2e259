"""What goes to hosts that may have no nbshare, or another version: the carrier, and the library."""

from __future__ import annotations

import inspect
import io
import os
import secrets
from functools import cache

from nbshare.hosts import carrier

PACKAGE = os.path.dirname(os.path.dirname(__file__))


@cache
def traveller() -> carrier.Carry:
    """Return what clusters run."""
    return carrier.Carry(inspect.getsource(carrier), _digest().hex())


def boot_at(address: carrier.Address, key: bytes) -> carrier.Boot:
    """Return what tells agents how to reach this process."""
    return carrier.Boot(
        name=secrets.token_hex(8),
        address=address,
        key=key,
        versions=dict(carrier.versions()),
        library=_digest(),
    )


@cache  # it takes 10 ms
def _digest() -> bytes:
    return carrier.digest_of(PACKAGE)


@cache
def packed_library() -> bytes:
    """Return this package as a zip file."""
    from zipfile import ZIP_DEFLATED, ZipFile  # late: few hosts need it

    with ZipFile(file := io.BytesIO(), "w", ZIP_DEFLATED) as archive:
        for name, path in carrier.library_files(PACKAGE).items():
            archive.write(path, f"nbshare{name}")
    return file.getvalue()
