"""Fused multiply-adds where they are ours to choose.

What users write is rounded after each operation, as everywhere else. The polynomials of `mathematics` need not be: there, a
product that is added to something may stay unrounded, which is faster and more accurate. Halide has no way to say so; its
LLVM code does: such products and sums are told by their coefficients, which nobody else uses, and so is what becomes of
them: products of such sums, and what these are added to. That ends where a function does: after its last sum each has a
division, a selection, or a product of products.
"""

from __future__ import annotations

import re
import struct
from functools import cache

from . import mathematics

_LINE = re.compile(r"^\s*(%[\w.]+) = (fmul|fadd|fsub) (<\d+ x (?:float|double)>|float|double) (.*)$")
_NUMBER = re.compile(r"float (0x[0-9A-F]{16})\)")
_SCALAR = re.compile(r"(0x[0-9A-F]{16})")
_REGISTER = re.compile(r"%[\w.]+")


@cache
def _coefficients() -> frozenset[str]:
    """Our coefficients, as LLVM writes numbers of float32."""
    single = [struct.unpack("f", struct.pack("f", value))[0] for value in mathematics.coefficients()]
    return frozenset("0x" + struct.pack(">d", sign * value).hex().upper() for value in single for sign in (1, -1))


def fused(code: str) -> str:
    """LLVM code in which products and sums of our polynomials may be one instruction."""
    lines = code.split("\n")
    found = {k: match for k, line in enumerate(lines) if " = f" in line and (match := _LINE.match(line))}
    chosen: set[int] = set()
    products: dict[str, int] = {}  # of this function; names are those of a function
    ours: set[str] = set()  # those of the products that are ours
    sums: set[str] = set()  # that are ours
    for k, line in enumerate(lines):
        if line.startswith("define"):
            products, ours, sums = {}, set(), set()
        match = found.get(k)
        if match is None:
            continue
        name, operation, type, operands = match.groups()
        numbers = (_NUMBER if type.startswith("<") else _SCALAR).findall(operands)
        registers = _REGISTER.findall(operands.partition(", !")[0])
        is_ours = "double" in type or any(number in _coefficients() for number in numbers)
        if operation == "fmul":
            products[name] = k
            if is_ours or not sums.isdisjoint(registers):
                chosen.add(k)
                ours.add(name)
            continue
        used = [register for register in registers if register in products]
        if is_ours or not ours.isdisjoint(used):
            sums.add(name)
            chosen.update((k, *(products[register] for register in used if is_ours or register in ours)))
    for k in chosen:
        operation = found[k].group(2)
        lines[k] = lines[k].replace(f"= {operation} ", f"= {operation} contract ", 1)
    return "\n".join(lines)
