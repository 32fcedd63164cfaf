"""Shaders written by users, and the buffers that they use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from ...core.dtypes import DataType, completable
from ...core.graph import Desc
from ...support.errors import require
from .names import spelling_of
from .syntax import ENTRY, MAIN, Fault, fault_of, without_comments

_WORD = re.compile(r"[^\W\d]\w*")


@completable
@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor that a shader can use.

    Attributes:
        name: the parameter, `out`, or the scratch buffer; part of the names `load_…`, `store_…` and so on.
        desc: data type and shape.
        type: the WGSL type that `load_…` returns and `store_…` takes: "f32", "i32", "u32", "i64", "u64".
        element: the WGSL element type of the buffer.
        packed: number of elements packed into one element of the buffer.

    >>> x = Buffer("x", Desc("float16", (2, 3)), "f32", "u32", packed=2)
    >>> x.variable, x.data_type, x.shape, x.rank, x.size
    ('x_words', 'float16', (2, 3), 2, 6)
    """

    name: str
    desc: Desc
    type: str
    element: str
    packed: int = 1

    @property
    def variable(self) -> str:
        """WGSL name of the buffer: `…_words` for packed elements, `…_` for reserved names, else its own name."""
        return spelling_of(self.name) if self.packed == 1 else f"{self.name}_words"

    @property
    def data_type(self) -> DataType:
        return self.desc.data_type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.desc.shape

    @property
    def rank(self) -> int:
        return self.desc.rank

    @property
    def size(self) -> int:
        return self.desc.element_count


@dataclass(frozen=True)
class Shader:
    """A compute shader and its dispatch size.

    Args:
        source: WGSL without declarations of buffers; `opweave.wgsl` documents the names it can use.
        invocations: number of calls of `fn main(…)`, or the extents of its positions; default: the elements, or the
            shape, of the (first) result.
        workgroups: number of workgroups to dispatch, in up to three dimensions; for entry points with `@compute`.
        workgroup_size: invocations in a workgroup, if Opweave generates the entry point; default: 64.
        constants: additional constants: numbers, booleans, or tuples of numbers.
        scratch: buffers shared by the passes of a node: data type and shape (`opweave.Desc`) by name.

    Raises:
        ValidationError: a value has the wrong type.

    >>> Shader("fn main(i: u32) { out[i] = 2 * x[i]; }", invocations=64).invocations
    64
    """

    source: str
    invocations: int | Sequence[int] | None = None
    workgroups: int | Sequence[int] | None = None
    workgroup_size: int | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    scratch: Mapping[str, Desc] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(isinstance(self.source, str), f"source must be WGSL, a string, got {self.source!r}")
        for name, value in {"invocations": self.invocations, "workgroups": self.workgroups}.items():
            require(
                value is None or all(map(_is_count, sizes(value))), f"{name} must be positive integers, got {value!r}"
            )
        count = len(sizes(self.workgroups or 1))
        require(0 < count <= 3, f"workgroups must have 1 to 3 dimensions, got {self.workgroups!r}")
        size = self.workgroup_size
        require(size is None or _is_count(size), f"workgroup_size must be a positive integer, got {size!r}")
        for option, mapping in {"constants": self.constants, "scratch": self.scratch}.items():
            fits = isinstance(mapping, Mapping) and all(isinstance(n, str) and n.isidentifier() for n in mapping)
            require(fits, f"{option} must map names to values, got {mapping!r}")
        check_scratch(self.scratch)

    @cached_property
    def plain(self) -> str:
        """The source with comments replaced by spaces."""
        return without_comments(self.source)

    @cached_property
    def fault(self) -> Fault | None:
        """A missing part of the source: the end of a comment, bracket or declaration, or the entry point."""
        return fault_of(self.source, self.plain)

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(_WORD.findall(self.plain))

    @property
    def entry(self) -> str:
        """Name of the user's entry point; empty if there is none."""
        names = ENTRY.findall(self.plain)
        require(len(names) <= 1, f"a shader has one entry point, got {', '.join(names)}; give a Shader for each")
        declares = re.search(r"@\s*(?:binding|group)\b", self.plain)
        require(
            declares is None,
            "a shader has no @group and @binding: buffers are declared under the names of parameters, results as out",
        )
        if not names:
            require(
                self.workgroups is None,
                "workgroups= is for entry points with @compute; fn main takes invocations=",
            )
            return ""
        require(
            self.invocations is None and self.workgroup_size is None,
            f"invocations= and workgroup_size= are for fn main without @compute; {names[0]} takes workgroups=",
        )
        require(self.workgroups is not None, f"{names[0]} with @compute takes workgroups=, how many to dispatch")
        return str(names[0])

    def parameters(self) -> list[str]:
        """Return the types of the parameters of `fn main`, each `u32` or `i32`."""
        match = MAIN.search(self.plain)
        assert match is not None, "only shaders without a fault are looked into"
        parts = [part.strip() for part in (match[1] or "").split(",") if part.strip()]
        types = [part.partition(":")[2].strip() for part in parts]
        fits = bool(types) and all(type in ("u32", "i32") for type in types)
        require(
            fits,
            f"fn main takes the number of an element, or its position on each axis, as u32 or i32, got ({', '.join(parts)})",
        )
        return types

    def extents(self, out: Buffer, parameters: Sequence[str]) -> tuple[int, ...]:
        """Return the number of positions for each parameter of `fn main`."""
        return extents_of("fn main", len(parameters), self.invocations, out)


def extents_of(function: str, count: int, invocations: int | Sequence[int] | None, out: Buffer) -> tuple[int, ...]:
    """Return the number of positions for each of `count` parameters of `function`; by default, the positions in the result."""
    shape = sizes(out.shape if invocations is None else invocations)
    subject = f"{out.name} has {out.rank} axes" if invocations is None else f"invocations are {list(shape)}"
    shape = (prod(shape),) if count == 1 else shape
    fits = len(shape) == count
    require(fits, f"{function} takes {count} positions, but {subject}; one parameter is the number of an element")
    require(prod(shape) < 2**31, f"there may be 2**31 - 1 invocations, got {list(shape)}")
    return shape


def indices_of(flat: str, extents: Sequence[int]) -> list[str]:
    """Generate the positions along axes of these extents from a flat index; all are u32 code."""
    strides = [prod(extents[axis + 1 :]) for axis in range(len(extents))]
    quotients = [flat if stride == 1 else f"{flat} / {stride}u" for stride in strides]
    return [
        f"{text} % {extent}u" if axis else text
        for axis, (text, extent) in enumerate(zip(quotients, extents, strict=True))
    ]


def check_scratch(scratch: Mapping[str, Any]) -> None:
    for name, desc in scratch.items():
        require(isinstance(desc, Desc), f"scratch {name!r} must be an opweave.Desc, got {desc!r}")


def sizes(value: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)  # type: ignore[return-value]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
