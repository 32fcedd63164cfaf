"""Integers of variable length, 7 bits a byte: LEB128 of WebAssembly, varints of protocol buffers."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """The bytes of an integer of 64 bits; negative ones take 10 bytes."""
    if 0 <= number < 0x80:
        return bytes((number,))
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it; `IndexError` if the data ends before, or after 64 bits."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than 64 bits")
