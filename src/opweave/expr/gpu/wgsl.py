"""The dialect of WebGPU (https://www.w3.org/TR/WGSL/)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import MappingProxyType

from .dialect import Dialect, DialectFunction, DialectSource, KernelEntry, Part, Variable, statements

_IDS = {
    "global": "@builtin(global_invocation_id) global: vec3<u32>",
    "group": "@builtin(workgroup_id) group: vec3<u32>",
    "local": "@builtin(local_invocation_id) local: vec3<u32>",
    "lane": "@builtin(local_invocation_index) lane: u32",
}


def binding(number: int, name: str, element: str, writes: bool) -> str:
    mode = "read_write" if writes else "read"
    return f"@group(0) @binding({number}) var<storage, {mode}> {name}: array<{element}>;"


class Wgsl(Dialect):
    name = "wgsl"
    entry_point = "main"
    suffixes = MappingProxyType({"f32": "f", "i32": "", "u32": "u", "i64": "li", "u64": "lu"})
    negative = "i"

    def library_function(self, comments: Sequence[str], function: DialectFunction) -> str:
        return "\n".join([*comments, _function(function).rstrip("\n")])

    def library_constant(self, text: str, constant: Variable) -> str:
        return text

    def module(self, source: DialectSource, words: Collection[str]) -> str:
        bindings = [binding(number, b.name, b.element, b.writes) for number, b in enumerate(source.bindings)]
        if source.sizes:
            members = ", ".join(f"{member}: i32" for member in source.sizes)
            at = f"@group(0) @binding({len(source.bindings)})"
            bindings = [f"struct Sizes {{ {members} }}", *bindings, f"{at} var<uniform> sizes: Sizes;"]
        constants = [f"var<private> {c.name}: {c.type} = {c.value};" for c in source.constants]
        groups = (bindings, [*constants, *map(_declare_shared, source.shared)], ["\n\n".join(source.library)])
        head = "\n\n".join("\n".join(group) for group in groups if any(group))
        enabled = "enable f16;\n\n" if "f16" in words else ""
        return "\n".join([*source.comments, f"{enabled}{head}\n\n{self._parts(source.parts)}"])

    def _parts(self, parts: Sequence[Part]) -> str:
        """Parts with an empty line between them, except between declarations of memory."""
        texts: list[str] = []
        for k, part in enumerate(parts):
            if isinstance(part, Variable):
                next_is_memory = k + 1 < len(parts) and isinstance(parts[k + 1], Variable)
                texts.append(_declare_shared(part) + ("\n" if next_is_memory else "\n\n"))
            elif isinstance(part, KernelEntry):
                texts.append(_entry(part))
            else:
                texts.append(_function(part) + "\n")
        return "".join(texts)


def _declare_shared(variable: Variable) -> str:
    return f"var<workgroup> {variable.name}: {variable.type};"


def _function(function: DialectFunction) -> str:
    parameters = ", ".join(f"{p.name}: {p.type}" for p in function.parameters)
    result = f" -> {function.result}" if function.result else ""
    return f"fn {function.name}({parameters}){result} {{\n{statements(function.lines)}}}\n"


def _entry(entry: KernelEntry) -> str:
    size = ", ".join(map(str, entry.size)).removesuffix(", 1").removesuffix(", 1")
    parameters = ", ".join(_IDS[name] for name in entry.ids)
    return f"@compute @workgroup_size({size})\nfn main({parameters}) {{\n{statements(entry.lines)}}}\n"


WGSL = Wgsl()
