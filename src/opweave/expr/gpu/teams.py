"""Teams: invocations of a workgroup that combine their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .dialect import Dialect


@dataclass(frozen=True)
class TeamValue:
    """A value that each invocation contributes.

    Attributes:
        names: the variables that hold the value.
        memory: names of arrays in workgroup memory, one for each variable.
        combine: returns statements that add the value of another invocation, given an expression for each of its variables.
        begin: WGSL expression of the first element to use in each array; empty for 0.
    """

    names: Sequence[str]
    memory: Sequence[str]
    combine: Callable[[Sequence[str]], list[str]]
    begin: str = ""


class Team:
    """Invocations that combine their values; all invocations of the workgroup must take part.

    If the dialect has warps, invocations of a warp read each other's registers, and a team of several warps stores a partial
    result of each warp in workgroup memory. Otherwise, a tree in workgroup memory combines the values, with a barrier for each
    level.

    Args:
        dialect: the language.
        workgroup: number of invocations of the workgroup.
        size: number of invocations of a team, a power of two.
        distance: distance between invocations of a team in the workgroup; if not 1, a team spans the whole workgroup.
        index: WGSL expression of the index of an invocation in its team.

    Attributes:
        warp: size of a warp; 0 if the team does not use warps.
        parts: number of partial results that `store` leaves in memory for each team.
        elements: number of elements of workgroup memory that each variable needs.
    """

    def __init__(self, dialect: Dialect, workgroup: int, size: int, distance: int = 1, index: str = "lane") -> None:
        self.dialect, self.size, self.distance, self.index = dialect, size, distance, index
        has_warps = dialect.warp > 0 and workgroup % dialect.warp == 0 and distance <= dialect.warp
        self.warp = dialect.warp if has_warps else 0
        # Invocations of a team in one warp.
        self._team_in_warp = min(self.warp // distance, size) if has_warps else 1
        self.parts = size // self._team_in_warp if has_warps else 1
        self.elements = workgroup // self._team_in_warp

    @property
    def is_in_warp(self) -> bool:
        """Whether `exchange` suffices, because a team is in one warp: each invocation then has the result in its variables."""
        return self.warp > 0 and self.parts == 1

    def exchange(self, values: Sequence[TeamValue]) -> list[str]:
        """Return statements that combine values inside of each warp."""
        if self._team_in_warp == 1:
            return []
        lines = list[str]()
        for value in values:
            lines += value.combine([f"subgroupShuffleXor({name}, bits)" for name in value.names])
        first = self._team_in_warp * self.distance // 2
        head = f"for (var bits = {first}u; bits >= {self.distance}u; bits = bits >> 1u) {{"
        return self.dialect.loop(head, lines)

    def store(self, values: Sequence[TeamValue]) -> list[str]:
        """Return statements that store results at `positions` in workgroup memory, where all invocations may read them."""
        if not self.warp:
            return self._tree(values)
        position, condition = "lane", ""
        if self._team_in_warp > 1 and self.distance == 1:
            count = self._team_in_warp
            position, condition = f"lane / {count}u", f"lane % {count}u == 0u"
        elif self._team_in_warp > 1:
            lane = f"lane % {self.warp}u"
            position, condition = f"lane / {self.warp}u * {self.distance}u + {lane}", f"{lane} < {self.distance}u"
        lines = _assign(values, position)
        if condition:
            lines = [f"if ({condition}) {{", *(f"    {line}" for line in lines), "}"]
        return [*lines, "workgroupBarrier();"]

    def positions(self, team: str, begin: str = "") -> list[str]:
        """Return the positions in workgroup memory of a team's `parts`, as WGSL expressions; `team` is that of its index."""
        if self.distance > 1:
            positions = [f"{team} + {k * self.distance}u" if k else team for k in range(self.parts)]
        else:
            count = self.parts if self.warp else self.size
            first = f"{team} * {count}u" if count > 1 else team
            positions = [f"{first} + {k}u" if k else first for k in range(self.parts)]
        return [_at(begin, position) for position in positions]

    def _tree(self, values: Sequence[TeamValue]) -> list[str]:
        lines = list[str]()
        for value in values:
            other = _at(value.begin, "lane + stride" + (f" * {self.distance}u" if self.distance > 1 else ""))
            lines += value.combine([f"{memory}[{other}]" for memory in value.memory])
        lines += _assign(values, "lane")
        return [
            *_assign(values, "lane"),
            "workgroupBarrier();",
            f"for (var stride = {self.size // 2}u; stride > 0u; stride = stride >> 1u) {{",
            f"    if ({self.index} < stride) {{",
            *(f"        {line}" for line in lines),
            "    }",
            "    workgroupBarrier();",
            "}",
        ]


def _assign(values: Sequence[TeamValue], position: str) -> list[str]:
    return [
        f"{memory}[{_at(value.begin, position)}] = {name};"
        for value in values
        for memory, name in zip(value.memory, value.names, strict=True)
    ]


def _at(begin: str, position: str) -> str:
    return f"{begin} + {position}" if begin else position
