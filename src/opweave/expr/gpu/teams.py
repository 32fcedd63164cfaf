"""Teams of invocations of a workgroup, which combine their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .dialect import Dialect


@dataclass(frozen=True)
class TeamValue:
    """A value that each invocation contributes: the variables `names`, and an array in workgroup memory for each.

    `combine` returns statements that add the value of another invocation, given the text of each variable. `begin` is the text
    of the offset of its part of the memory; empty for 0.
    """

    names: Sequence[str]
    memory: Sequence[str]
    combine: Callable[[Sequence[str]], list[str]]
    begin: str = ""


class Team:
    """Invocations that combine their values; all invocations of the workgroup must take part.

    If the dialect has warps, invocations of a warp read each other's registers, and a team of several warps leaves a part for
    each warp in workgroup memory. Otherwise, a tree in workgroup memory combines the values, with a barrier for each level.

    Args:
        dialect: the language.
        workgroup: invocations of the workgroup.
        size: invocations of a team, a power of two.
        distance: distance between invocations of a team in the workgroup; if not 1, a team spans the whole workgroup.
        part: text of the number of an invocation in its team.
    """

    def __init__(self, dialect: Dialect, workgroup: int, size: int, distance: int = 1, part: str = "lane") -> None:
        self.dialect, self.size, self.distance, self.part = dialect, size, distance, part
        has_warps = dialect.warp > 0 and workgroup % dialect.warp == 0 and distance <= dialect.warp
        self.warp = dialect.warp if has_warps else 0
        self._inside = min(self.warp // distance, size) if has_warps else 1
        self.parts = size // self._inside if has_warps else 1
        self.elements = workgroup // self._inside

    @property
    def is_in_warp(self) -> bool:
        """Whether `exchanged` suffices: each invocation then has the result in its variables."""
        return self.warp > 0 and self.parts == 1

    def exchange(self, values: Sequence[TeamValue]) -> list[str]:
        """Statements that combine values inside of each warp."""
        if self._inside == 1:
            return []
        lines = list[str]()
        for value in values:
            lines += value.combine([f"subgroupShuffleXor({name}, bits)" for name in value.names])
        first = self._inside * self.distance // 2
        head = f"for (var bits = {first}u; bits >= {self.distance}u; bits = bits >> 1u) {{"
        return self.dialect.loop(head, lines)

    def store(self, values: Sequence[TeamValue]) -> list[str]:
        """Statements that leave results in memory at `places`, for all invocations."""
        if not self.warp:
            return self._tree(values)
        place, condition = "lane", ""
        if self._inside > 1 and self.distance == 1:
            place, condition = f"lane / {self._inside}u", f"lane % {self._inside}u == 0u"
        elif self._inside > 1:
            number = f"lane % {self.warp}u"
            place, condition = f"lane / {self.warp}u * {self.distance}u + {number}", f"{number} < {self.distance}u"
        lines = _assign(values, place)
        if condition:
            lines = [f"if ({condition}) {{", *(f"    {line}" for line in lines), "}"]
        return [*lines, "workgroupBarrier();"]

    def places(self, team: str, begin: str = "") -> list[str]:
        """Texts of the positions in memory of the parts of a result; `team` is the text of the number of the team."""
        if self.distance > 1:
            positions = [f"{team} + {k * self.distance}u" if k else team for k in range(self.parts)]
        else:
            count = self.parts if self.warp else self.size
            first = f"{team} * {count}u" if count > 1 else team
            positions = [f"{first} + {k}u" if k else first for k in range(self.parts)]
        return [_at(begin, place) for place in positions]

    def _tree(self, values: Sequence[TeamValue]) -> list[str]:
        lines = list[str]()
        for value in values:
            place = _at(value.begin, "lane + stride" + (f" * {self.distance}u" if self.distance > 1 else ""))
            lines += value.combine([f"{memory}[{place}]" for memory in value.memory])
        lines += _assign(values, "lane")
        return [
            *_assign(values, "lane"),
            "workgroupBarrier();",
            f"for (var stride = {self.size // 2}u; stride > 0u; stride = stride >> 1u) {{",
            f"    if ({self.part} < stride) {{",
            *(f"        {line}" for line in lines),
            "    }",
            "    workgroupBarrier();",
            "}",
        ]


def _assign(values: Sequence[TeamValue], place: str) -> list[str]:
    return [
        f"{memory}[{_at(value.begin, place)}] = {name};"
        for value in values
        for memory, name in zip(value.memory, value.names, strict=True)
    ]


def _at(begin: str, place: str) -> str:
    return f"{begin} + {place}" if begin else place
