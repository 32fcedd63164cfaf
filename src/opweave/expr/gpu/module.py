"""Build WGSL modules: bindings, constants, and the library functions in use."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Input, Stored, Type
from . import mathematics
from .kernel import Buffer, Features, Kernel
from .types import Layout, bits, computed, is_plain, layout, literal, unpacked


class Module:
    """A WGSL module under construction.

    Attributes:
        bindings: the declared buffers, in order.
        writes: for each buffer, whether it is written.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.bindings: list[Buffer] = []
        self.writes: list[bool] = []
        self.names: dict[Buffer, str] = {}
        self.atomic: set[Buffer] = set()
        self.shared: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}

    def read(self, source: Input | Stored) -> None:
        """Declare a buffer for reading."""
        self._declare(source, "x" if isinstance(source, Input) else "s", False)

    def write(self, target: Buffer) -> None:
        """Declare a buffer for writing."""
        self._declare(target, "s" if isinstance(target, Stored) else "y", True)

    def _declare(self, buffer: Buffer, letter: str, writes: bool) -> None:
        if buffer in self.names:
            number = self.bindings.index(buffer)
            self.writes[number] = self.writes[number] or writes
            return
        # Number buffers by order of use, so that equal kernels have equal text and are compiled once.
        self.names[buffer] = f"{letter}{sum(name[0] == letter for name in self.names.values())}"
        self.bindings.append(buffer)
        self.writes.append(writes)

    def layout(self, buffer: Buffer) -> Layout:
        """The memory layout of a buffer's elements."""
        return layout(buffer.desc.data_type, self.features)

    def load(self, source: Input | Stored, flat: str) -> str:
        """The text of an element, in the type it is computed in.

        Args:
            source: the array; declared if necessary.
            flat: the position of the element, as i32 or u32 text.
        """
        if source not in self.names:
            self.read(source)
        name, data_type, lay = self.names[source], source.desc.data_type, self.layout(source)
        if lay.lanes == 1:
            return f"f32({name}[{flat}])" if lay.element == "f16" else f"{name}[{flat}]"
        return unpacked(name, flat if flat == "flat" else f"u32({flat})", data_type, lay.lanes)

    def store(self, target: Buffer, flat: str, value: str) -> str:
        """A statement that writes an unpacked element.

        Args:
            target: the array; declared if necessary.
            flat: the position of the element, as i32 or u32 text.
            value: text of the type that the element is computed in.
        """
        self.write(target)
        lay = self.layout(target)
        assert lay.lanes == 1, f"{target.desc} has {lay.lanes} elements in a word"
        if lay.element == "f16":
            value = f"f16({value})"
        return f"{self.names[target]}[{flat}] = {value};"

    def constant(self, value: int | float | bool, type: Type, *, opaque: bool = False) -> str:
        """The text of a number. Numbers that have no literal, and `opaque` ones, become private variables, so that
        compilers do not evaluate them.
        """
        plain = is_plain(value, type)
        if plain and not opaque:
            return literal(value, type)
        pattern = "u64" if type == "int64" else "u32"
        wgsl, text = (computed(type), literal(value, type)) if plain else (pattern, bits(value, type))
        name = self._constants.setdefault((wgsl, text), f"c{len(self._constants)}")
        return name if plain else f"bitcast<{computed(type)}>({name})"

    def text(self, body: str, workgroup_size: tuple[int, int, int]) -> str:
        """The text of the module.

        Args:
            body: the statements of `main`. They may use the built-in values `global`, `group`, `local` (`vec3<u32>`)
                and `lane` (u32, the local invocation index).
            workgroup_size: invocations of a workgroup in each dimension.
        """
        builtins = {
            "global": "@builtin(global_invocation_id) global: vec3<u32>",
            "group": "@builtin(workgroup_id) group: vec3<u32>",
            "local": "@builtin(local_invocation_id) local: vec3<u32>",
            "lane": "@builtin(local_invocation_index) lane: u32",
        }
        used = mathematics.words(body)
        parameters = ", ".join(text for name, text in builtins.items() if name in used)
        size = ", ".join(map(str, workgroup_size)).removesuffix(", 1").removesuffix(", 1")
        lines = "\n".join(f"    {line}" if line else "" for line in body.rstrip("\n").split("\n"))
        entry = f"@compute @workgroup_size({size})\nfn main({parameters}) {{\n{lines}\n}}\n"
        return f"{self.declarations(entry)}\n\n{entry}"

    def declarations(self, body: str, bindings: Sequence[str] = ()) -> str:
        """The declarations that a body needs, in front of it: buffers, constants and library functions.

        Args:
            body: functions, the entry point among them.
            bindings: further buffers, declared by `binding`.
        """
        private = [f"var<private> {name}: {type} = {value};" for (type, value), name in self._constants.items()]
        buffers = [self._binding(k) for k in range(len(self.bindings))]
        groups = ([*buffers, *bindings], [*private, *self.shared], ["\n\n".join(mathematics.used((body,)))])
        text = "\n\n".join("\n".join(group) for group in groups if any(group))
        return f"enable f16;\n\n{text}" if "f16" in mathematics.words(text + body) else text

    def kernel(
        self,
        title: str,
        comments: Sequence[str],
        body: Sequence[str],
        workgroup_size: tuple[int, int, int],
        workgroups: tuple[int, int, int],
    ) -> Kernel:
        """The complete kernel; `comments` precede the module, see `text` and `Kernel` for the others."""
        source = "\n".join([*comments, self.text("\n".join(body), workgroup_size)])
        return Kernel(title, source, tuple(self.bindings), tuple(self.writes), workgroups)

    def replace(self, target: Buffer, flat: str, pattern: str) -> list[str]:
        """Statements that atomically replace a packed element, in a word whose other elements other invocations write.

        Args:
            target: the array.
            flat: the position of the element, as i32 or u32 text.
            pattern: the bits of the element, as u32 text.
        """
        self.atomic.add(target)
        name, lanes = self.names[target], self.layout(target).lanes
        bits = 32 // lanes
        return [
            f"let shift = u32({flat}) % {lanes}u * {bits}u;",
            f"let pattern = {pattern} << shift;",
            f"let word = u32({flat}) / {lanes}u;",
            "loop {",
            f"    let old = atomicLoad(&{name}[word]);",
            f"    let new_word = (old & ~({(1 << bits) - 1}u << shift)) | pattern;",
            f"    if (atomicCompareExchangeWeak(&{name}[word], old, new_word).exchanged) {{",
            "        break;",
            "    }",
            "}",
        ]

    def _binding(self, number: int) -> str:
        buffer = self.bindings[number]
        element = self.layout(buffer).element
        element = f"atomic<{element}>" if buffer in self.atomic else element
        return binding(number, self.names[buffer], element, self.writes[number])


def binding(number: int, name: str, element: str, writes: bool) -> str:
    """The declaration of a buffer."""
    mode = "read_write" if writes else "read"
    return f"@group(0) @binding({number}) var<storage, {mode}> {name}: array<{element}>;"
