"""Digests of graphs, programs and files, by which they are cached."""

from __future__ import annotations

try:  # part of Python itself; `hashlib` also loads OpenSSL, into every process
    from _blake2 import blake2b as blake2b
except ImportError:  # a Python that is built without it
    from hashlib import blake2b as blake2b

DIGEST_BYTES = 32
"""The size of a digest."""

SMALL_BYTES = 2**16
"""The digest of a graph has the values of constants up to this size: engines rewrite graphs by scales and zero points.
Of larger ones, the weights, it has data type and shape: times and rewrites hardly depend on their values."""


def digest(data: bytes = b"") -> blake2b:
    """A BLAKE2b digest of 256 bits (https://www.rfc-editor.org/rfc/rfc7693), to `update` with further bytes.

    >>> digest(b"abc").hexdigest()[:16]
    'bddd813c63423972'
    """
    return blake2b(data, digest_size=DIGEST_BYTES)
