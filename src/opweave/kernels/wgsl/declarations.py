"""Declarations that Opweave adds to a shader: buffers, shapes, attributes, and the entry point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

from ...expr.gpu import Features
from ...expr.gpu.mathematics import declarations_of, words
from ...expr.gpu.types import unpack
from ...expr.gpu.wgsl import binding
from ...expr.gpu.writing import workgroup_number
from ...expr.ir import Input
from ...support.errors import NotSupportedError, require
from .names import spelling_of
from .shader import Buffer, Shader, indices_of, sizes

WORKGROUP_SIZE = 64
"""Default invocations of a workgroup: one or two subgroups on common hardware."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A buffer, its memory, and whether the shader may write to it."""

    buffer: Buffer
    memory: Input
    writes: bool

    def declaration(self, number: int) -> str:
        element = f"atomic<{self.buffer.element}>" if self.writes and self.buffer.packed > 1 else self.buffer.element
        return binding(number, self.buffer.variable, element, self.writes)

    def functions(self) -> dict[str, str]:
        """Return the functions that load and store an element, by name."""
        buffer, name = self.buffer, self.buffer.name
        texts = {f"load_{name}": f"fn load_{name}(i: u32) -> {buffer.type} {{ return {self._element()}; }}"}
        if self.writes:
            texts[f"store_{name}"] = f"fn store_{name}(i: u32, value: {buffer.type}) {{ {self._assignment()} }}"
        return texts

    def _element(self) -> str:
        buffer, variable = self.buffer, self.buffer.variable
        if buffer.packed == 1:
            return f"f32({variable}[i])" if buffer.element == "f16" else f"{variable}[i]"
        return unpack(variable, "i", buffer.data_type, buffer.packed, atomic=self.writes)

    def _assignment(self) -> str:
        buffer, variable = self.buffer, self.buffer.variable
        if buffer.packed == 1:
            return f"{variable}[i] = {'f16(value)' if buffer.element == 'f16' else 'value'};"
        width = 32 // buffer.packed
        bits = "half_bits(value)" if buffer.data_type == "float16" else "bitcast<u32>(value)"
        # Other invocations may write other elements of the word, so modify only the bits of this element.
        return (
            f"let at = i % {buffer.packed}u * {width}u; "
            f"atomicAnd(&{variable}[i / {buffer.packed}u], ~({(1 << width) - 1:#x}u << at)); "
            f"atomicOr(&{variable}[i / {buffer.packed}u], ({bits} & {(1 << width) - 1:#x}u) << at);"
        )

    def constants(self) -> dict[str, str]:
        name, shape = self.buffer.name, self.buffer.shape
        texts = {
            f"{name}_size": f"const {name}_size: u32 = {self.buffer.size}u;",
            f"{name}_rank": f"const {name}_rank: u32 = {len(shape)}u;",
        }
        if shape:  # WGSL has no empty arrays
            strides = tuple(accumulate((1, *shape[:0:-1]), mul))[::-1]
            texts[f"{name}_shape"] = f"const {name}_shape = {_u32s(shape)};"
            texts[f"{name}_strides"] = f"const {name}_strides = {_u32s(strides)};"
        return texts


def _u32s(values: Sequence[int]) -> str:
    return f"array<u32, {len(values)}>({', '.join(f'{value}u' for value in values)})"


def constant(name: str, value: Any) -> str | None:
    """Declare an attribute as an untyped constant; return None if WGSL cannot represent it."""
    if isinstance(value, (tuple, list)):
        kinds = {isinstance(item, bool) for item in value}
        items = [_number(item) for item in value]
        if not items or None in items or len(kinds) > 1:
            return None
        text = f"array({', '.join(map(str, items))})"
    else:
        number = _number(value)
        if number is None:
            return None
        text = number
    return f"const {name} = {text};"


def _number(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if -(2**63) <= value < 2**63 else None
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    return None


@dataclass(frozen=True, slots=True)
class DeclarationScope:
    """The names declared for the shaders of a node; `absent` are optional operands that the call omits."""

    title: str
    bound: Sequence[Bound]
    attributes: Mapping[str, Any]
    absent: Sequence[str]
    features: Features

    def module(self, shader: Shader, entry: EntryPoint) -> tuple[str, tuple[Bound, ...]]:
        """Return the text to append to the user's, and the buffers that it declares, in order."""
        declarations = self._texts(shader)
        texts = [text for name, text in declarations.items() if name in shader.words]
        inner = set().union(*map(words, texts)) | shader.words  # accessors contain the names of their buffers
        bound = tuple(item for item in self.bound if item.buffer.variable in inner)
        maximum = self.features.max_buffers
        if len(bound) > maximum:
            raise NotSupportedError(f"{self.title}: the shader takes {len(bound)} buffers, the device has {maximum}")
        lines = [item.declaration(number) for number, item in enumerate(bound)]
        library_texts = [text.strip() for text in declarations_of(texts)]
        return "\n".join([*lines, *texts, *library_texts, *entry.lines]) + "\n", bound

    def _texts(self, shader: Shader) -> dict[str, str]:
        texts: dict[str, str] = {}
        for item in self.bound:
            for name, text in {item.buffer.variable: "", **item.constants(), **item.functions()}.items():
                require(name not in texts, f"{self.title}: two declarations are called {name}; rename a parameter")
                texts[name] = text
        self.add_constants(texts, shader.constants, spelling_of, constant)
        return {name: text for name, text in texts.items() if text}

    def add_constants(
        self,
        texts: dict[str, str],
        constants: Mapping[str, Any],
        spelling_of: Callable[[str], str],
        declare: Callable[[str, Any], str | None],
    ) -> None:
        """Add the declarations of attributes and of `constants` to `texts`, if they are constants of the language."""
        for name, value in (*self.attributes.items(), *constants.items()):
            word = spelling_of(name)
            text = declare(word, value)
            require(
                text is not None or name not in constants,
                f"{self.title}: the constant {name} must be a finite number, true, false or a tuple of them, got {value!r}",
            )
            require(word not in texts, f"{self.title}: two declarations are called {word}; rename a parameter")
            if text is not None:
                texts[word] = text

    def hint(self, name: str) -> str:
        for item in self.bound:
            buffer = item.buffer
            if name == buffer.name and buffer.packed == 1:
                return f"{name} is called {buffer.variable}, as the word is one of WGSL's"
            if name == buffer.name:
                return (
                    f"{name} is {buffer.data_type} here, {buffer.packed} to a word: load_{name}(i) reads an element"
                    + (f", store_{name}(i, value) writes one" if item.writes else "")
                    + f", {name}_words are the words"
                )
        if name in self.absent:
            return f"the operand {name} is absent here; a function can give another text then"
        if name in self.attributes:
            value = self.attributes[name]
            return f"{name} is {value!r}, which is not a constant of WGSL; a function can put it into the text"
        names = [item.buffer.variable for item in self.bound]
        names += [spelling_of(n) for n, value in self.attributes.items() if constant(n, value) is not None]
        return f"declared are {', '.join(names)}, sizes, and the functions of opweave.wgsl"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The entry point of a shader, with `lines` if Opweave generates it, and the number of workgroups to dispatch."""

    name: str
    workgroups: tuple[int, int, int]
    lines: tuple[str, ...] = ()


def entry_of(shader: Shader, out: Buffer, features: Features) -> EntryPoint:
    """Return the entry point of a shader: its own, or one that calls `fn main` for each element or position."""
    maximum, name = features.max_workgroups, shader.entry
    if name:
        workgroups = sizes(shader.workgroups or 1)
        require(
            max(workgroups) <= maximum,
            f"the device dispatches {maximum} workgroups a dimension, got {list(workgroups)}",
        )
        x, y, z = (*workgroups, 1, 1)[:3]
        return EntryPoint(name, (x, y, z))
    parameters = shader.parameters()
    extents = shader.extents(out, parameters)
    width = shader.workgroup_size or min(WORKGROUP_SIZE, features.max_invocations)
    require(
        width <= features.max_invocations,
        f"workgroup_size must be at most {features.max_invocations} on this device, got {width}",
    )
    count = math.prod(extents)
    number, groups = workgroup_number(-(-count // width), maximum)
    require(groups[1] <= maximum, f"the device has no room for {count} invocations in workgroups of {width}")
    pairs = zip(indices_of("i", extents), parameters, strict=True)
    arguments = [f"i32({index})" if type == "i32" else index for index, type in pairs]
    return EntryPoint(
        "opweave_main",
        groups,
        (
            f"@compute @workgroup_size({width})",
            "fn opweave_main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {",
            f"    let i = {number} * {width}u + lane;",
            f"    if (i < {count}u) {{",
            f"        main({', '.join(arguments)});",
            "    }",
            "}",
        ),
    )
