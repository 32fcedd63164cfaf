"""Digests of graphs, programs and files, by which they are cached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:  # part of Python itself; `hashlib` also loads OpenSSL, into every process
    from _blake2 import blake2b as blake2b
except ImportError:  # a Python that is built without it
    from hashlib import blake2b as blake2b

DIGEST_BYTES = 32

PREFIX_DIGITS = 16
"""Number of hexadecimal digits of `prefix_of`."""

LARGE_BYTES = 2**22
"""Bytes from which the digest of a file is SHA-256, which takes half the time of BLAKE2b on processors with instructions for
it. Loading OpenSSL takes some milliseconds."""

SMALL_BYTES = 2**16
"""The largest constant whose values enter the digest of a graph: engines rewrite graphs by scales and zero points. Larger
constants (weights) enter by data type and shape alone: times and rewrites hardly depend on their values."""


def digest(data: bytes = b"") -> blake2b:
    """A BLAKE2b digest of 256 bits (https://www.rfc-editor.org/rfc/rfc7693), to `update` with further bytes.

    >>> digest(b"abc").hexdigest()[:16]
    'bddd813c63423972'
    """
    return blake2b(data, digest_size=DIGEST_BYTES)


def digest_of_file(contents: Sequence[bytes]) -> bytes:
    """A digest of the concatenated sections of a file."""
    hasher: Any = digest()
    if sum(map(len, contents)) > LARGE_BYTES:
        from hashlib import sha256

        hasher = sha256()
    for data in contents:
        hasher.update(data)
    result: bytes = hasher.digest()
    return result


def prefix_of(digest: str) -> str:
    """The first digits of the keys of files about a graph or model with this digest, whatever else the keys depend on."""
    return blake2b(digest.encode(), digest_size=PREFIX_DIGITS // 2).hexdigest()
