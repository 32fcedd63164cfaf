"""The groups of a page: modules by the names of nodes, repeated blocks, and parts of what is still long.

No path leaves a group and returns to it, so that groups can be drawn as boxes: the graph of groups has no cycle.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from ...support.names import count_of
from .picture import Picture

FEWEST = 3
"""Minimum number of members of a group; the members of a smaller one join the group around it."""
MANY = 40
"""Number of members above which repeated blocks become groups, and what is still long is cut into parts."""
SHORTEST = 4
"""Minimum number of members of a repeated block, if they are single operations."""
GAIN = 1.25
"""Factor by which a run of longer blocks must be longer, since two equal blocks are also one longer block."""
FEW_ENDS = 4
"""Number of inputs, and of outputs, above which they are drawn in the groups that read or compute them."""


@dataclass
class Group:
    """Several boxes drawn as one, until it is opened. A member is the index of a box, or a group."""

    title: str
    members: list[int | Group] = field(default_factory=list)

    def leaves(self) -> Iterator[int]:
        """Indices of all boxes in the group."""
        for member in self.members:
            if isinstance(member, Group):
                yield from member.leaves()
            else:
                yield member


Member = int | Group


def outline(picture: Picture) -> Group:
    """Divide the boxes of a picture into groups."""
    return _Outliner(picture).root()


class _Outliner:
    def __init__(self, picture: Picture) -> None:
        self.boxes = picture.boxes
        self.before: list[dict[int, None]] = [{} for _ in picture.boxes]
        self.after: list[dict[int, None]] = [{} for _ in picture.boxes]
        for edge in picture.edges:
            self.before[edge.target][edge.source] = None
            self.after[edge.source][edge.target] = None

    def root(self) -> Group:
        inner = [index for index, box in enumerate(self.boxes) if box.style not in ("input", "output")]
        # Constants are computed just before they are read.
        inner.sort(key=lambda index: index if self.before[index] else min(self.after[index], default=index) - 0.5)
        root = Group("", self._modules(inner, 0))
        self._shorten(root)
        for style, beside in (("input", self.after), ("output", self.before)):
            ends = [index for index, box in enumerate(self.boxes) if box.style == style]
            for index in ends:
                home = self._home(root, beside[index]) if len(ends) > FEW_ENDS else root
                home.members.insert(0 if style == "input" else len(home.members), index)
        return root

    def _home(self, root: Group, neighbours: Mapping[int, None]) -> Group:
        """The innermost group that has all the neighbours of an input or an output."""
        home = root
        while True:
            inner = [
                member
                for member in home.members
                if isinstance(member, Group) and neighbours and neighbours.keys() <= set(member.leaves())
            ]
            if not inner:
                return home
            home = inner[0]

    # Modules -------------------------------------------------------------------------------------------------------------

    def _modules(self, indices: Sequence[int], depth: int) -> list[Member]:
        """Group boxes by the names of their modules, from the outermost to the innermost."""
        keys: list[Hashable] = []
        for index in indices:
            scope = self.boxes[index].details.scope
            keys.append(scope[depth] if len(scope) > depth else index)
        members: list[Member] = []
        if not any(isinstance(key, str) for key in keys):
            return [*indices]  # there are no modules, and the time of _parts is quadratic in the number of parts
        counts: dict[Hashable, int] = {}
        for key, part in self._parts(indices, keys):
            if not isinstance(key, str):
                members.append(part[0])
                continue
            inner = self._modules(part, depth + 1)
            if len(inner) == 1 and isinstance(inner[0], Group):
                members.append(Group(f"{key}/{inner[0].title}", inner[0].members))
            elif len(inner) < FEWEST and not any(isinstance(member, Group) for member in inner):
                members += inner
            else:
                counts[key] = counts.get(key, 0) + 1
                members.append(Group(key if counts[key] == 1 else f"{key} ({counts[key]})", inner))
        return members

    def _parts(self, indices: Sequence[int], keys: Sequence[Hashable]) -> list[tuple[Hashable, list[int]]]:
        """Merge boxes with equal keys into parts, in topological order, unless that would make a cycle of parts.

        Boxes that belong to no module join the part whose boxes are before and behind them.
        """
        parts: list[tuple[Hashable, list[int]]] = []
        after: list[int] = []  # for each part, a bit set of the parts behind it
        before: list[int] = []
        last_part: dict[Hashable, int] = {}
        home: dict[int, int] = {}
        for index, key in zip(indices, keys, strict=True):
            sources = {home[producer] for producer in self.before[index] if producer in home}
            number = last_part.get(key, -1)
            behind = 0
            for source in sources:
                behind |= before[source] | 1 << source
            between = [*_bits(behind & after[number])] if number >= 0 else []
            if number < 0 or any(isinstance(parts[part][0], str) for part in between):
                number, between = len(parts), []
                last_part[key] = number
                parts.append((key, []))
                after.append(0)
                before.append(0)
            parts[number][1].append(index)
            home[index] = number
            absorbed = 0
            for part in between:
                parts[number][1].extend(parts[part][1])
                home.update(dict.fromkeys(parts[part][1], number))
                parts[part][1].clear()
                absorbed |= 1 << part
                behind |= before[part]
                after[number] |= after[part]
            front = (behind | before[number]) & ~(absorbed | 1 << number)
            back = after[number] & ~(absorbed | 1 << number)
            for sets, others, same in ((after, front, back), (before, back, front)):
                sets[number] = same
                for part in _bits(others):
                    sets[part] = sets[part] & ~absorbed | same | 1 << number
        # Kahn's algorithm; parts that are ready come in the order of their first boxes.
        waiting = [bits.bit_count() for bits in before]
        rank = {index: position for position, index in enumerate(indices)}

        def first_of(part: int) -> int:
            return min(rank[index] for index in parts[part][1])

        ready = [(first_of(part), part) for part, count in enumerate(waiting) if parts[part][1] and not count]
        heapify(ready)
        order = []
        while ready:
            _, number = heappop(ready)
            order.append((parts[number][0], sorted(parts[number][1], key=rank.__getitem__)))
            for part in _bits(after[number]):
                waiting[part] -= 1
                if not waiting[part]:
                    heappush(ready, (first_of(part), part))
        return order

    # Repeated blocks -----------------------------------------------------------------------------------------------------

    def _shorten(self, group: Group) -> None:
        """Make groups of repeated blocks and of parts in a group with many members, and in its groups."""
        if len(group.members) > MANY:
            group.members = self._repeats(group.members)
        if len(group.members) > 2 * MANY:
            group.members = self._cut(group.members)
        for member in group.members:
            if isinstance(member, Group):
                self._shorten(member)

    def _repeats(self, members: list[Member]) -> list[Member]:
        """Find the run of equal blocks that has most members, then those before and behind it."""
        sequence = _Sequence(self, members)
        run = sequence.longest_run()
        if run is None:
            return members
        start, period, count = run
        end = start + period * count
        if count == len(members):  # as in the group of the repeated blocks themselves
            return members
        blocks: list[Member] = []
        for number in range(count):
            block = members[start + number * period : start + (number + 1) * period]
            blocks.append(block[0] if period == 1 else Group(f"block {number + 1}", block))
        size = sum(len([*member.leaves()]) if isinstance(member, Group) else 1 for member in members[start:end])
        repeated = Group(f"{count} × {count_of(size // count, 'operation')}", blocks)
        return [*self._repeats(members[:start]), repeated, *self._repeats(members[end:])]

    def _cut(self, members: list[Member]) -> list[Member]:
        """Cut a sequence into parts of at most `MANY` members, where few values cross."""
        widths = _Sequence(self, members).widths(MANY)
        parts: list[Member] = []
        start = 0
        while start < len(members):
            end = len(members)
            if end - start > MANY:
                end = min(range(start + MANY // 2, start + MANY + 1), key=lambda place: (widths[place], -place))
            parts.append(Group(f"part {len(parts) + 1}", members[start:end]))
            start = end
        return parts


class _Sequence:
    """Members of a group in topological order; `sources` has the members that each one reads, `codes` their operations."""

    def __init__(self, outliner: _Outliner, members: Sequence[Member]) -> None:
        self.members = members
        home: dict[int, int] = {}
        for number, member in enumerate(members):
            home.update(dict.fromkeys(member.leaves() if isinstance(member, Group) else (member,), number))
        self.sources: list[set[int]] = [set() for _ in members]
        for index, number in home.items():
            self.sources[number].update(home[producer] for producer in outliner.before[index] if producer in home)
        looks = [
            tuple(
                operation
                for leaf in (member.leaves() if isinstance(member, Group) else (member,))
                for operation in outliner.boxes[leaf].operations
            )
            for member in members
        ]
        numbers: dict[Hashable, int] = {}
        self.codes = np.array([numbers.setdefault(look, len(numbers)) for look in looks], np.int64)

    def widths(self, reach: int) -> list[int]:
        """The number of members whose values cross each place between two members.

        A value that is read more than `reach` members later, such as a mask, does not count.
        """
        last = np.arange(len(self.members))
        for number, sources in enumerate(self.sources):
            last[[*sources]] = number
        change = np.zeros(len(self.members) + 2, np.int64)
        for source, end in enumerate(last.tolist()):
            if source < end <= source + reach:
                change[source + 1] += 1
                change[end + 1] -= 1
        return list(np.cumsum(change).tolist())

    def longest_run(self) -> tuple[int, int, int] | None:
        """Start, period and count of the run of equal blocks with the largest number of members; None if there is none."""
        best: tuple[int, int, int] | None = None
        size = len(self.members)
        for period in range(1, size // 2 + 1):
            borders = np.flatnonzero(np.diff(np.r_[0, self.codes[:-period] == self.codes[period:], 0])).tolist()
            for start, end in zip(borders[::2], borders[1::2], strict=True):
                least = best[1] * best[2] * GAIN if best else 0
                if end - start < period or end - start + period <= least:
                    continue
                run = self._align_run(start, period, end + period)
                if run is not None and run[1] * run[2] > least:
                    best = run
        return best

    def _align_run(self, start: int, period: int, end: int) -> tuple[int, int, int] | None:
        """Move the blocks of a run to where few values cross their borders, and keep those that are connected alike."""
        widths = self.widths(period)
        starts = range(start, min(start + period, end - 2 * period + 1))
        start = min(starts, key=lambda place: (widths[place], place))
        if period < SHORTEST and not any(isinstance(m, Group) for m in self.members[start : start + period]):
            return None
        looks = [self._look(block, period) for block in range(start, end - period + 1, period)]
        count = next((number for number, look in enumerate(looks) if look != looks[0]), len(looks))
        return (start, period, count) if count > 1 else None

    def _look(self, start: int, period: int) -> list[list[int]]:
        return [
            sorted(source - start for source in self.sources[number] if start <= source < number)
            for number in range(start, start + period)
        ]


def _bits(bits: int) -> Iterator[int]:
    """Positions of the bits that are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
