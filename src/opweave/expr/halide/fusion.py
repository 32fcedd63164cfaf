"""Edit Halide's LLVM code: fused multiply-add in the polynomials of `mathematics`, and prefetching into all caches.

User code is rounded after each operation. In the polynomials, fused products are faster and more accurate. Halide
cannot request fusion for single expressions, so its LLVM code is edited. Products and sums of a polynomial are recognised
by their coefficients, which user code does not contain, or by an operand that belongs to the polynomial. The chain ends
at the last step of a function: a division, a select, or a product of products.
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

_PREFETCH = re.compile(r"(@llvm\.prefetch\.p0\(.*), i32 0, i32 1\)")
"""A prefetch past the caches, the only kind that Halide emits. The last number but one is the locality: 3 for all caches."""


@cache
def _coefficients() -> frozenset[str]:
    """The coefficients as LLVM prints float32 constants."""
    single = [struct.unpack("f", struct.pack("f", value))[0] for value in mathematics.coefficients()]
    return frozenset("0x" + struct.pack(">d", sign * value).hex().upper() for value in single for sign in (1, -1))


def edit(code: str) -> str:
    """Mark the operations of our polynomials `contract`, and let prefetches go into all caches."""
    lines = code.split("\n")
    matches = {k: match for k, line in enumerate(lines) if " = f" in line and (match := _LINE.match(line))}
    chosen: set[int] = set()
    products: dict[str, int] = {}  # line number of each product; register names are local to a function
    ours: set[str] = set()  # products that belong to a polynomial
    sums: set[str] = set()  # sums that belong to a polynomial
    for k, line in enumerate(lines):
        if line.startswith("define"):
            products, ours, sums = {}, set(), set()
        match = matches.get(k)
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
        operation = matches[k].group(2)
        lines[k] = lines[k].replace(f"= {operation} ", f"= {operation} contract ", 1)
    return _PREFETCH.sub(r"\1, i32 3, i32 1)", "\n".join(lines))
