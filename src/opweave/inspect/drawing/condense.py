"""Make drawings of large graphs readable: merge chains into one box, and repeated blocks into one box with a count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from .layout import chains
from .picture import Box, Edge, Picture, summary

LARGE = 150
"""Number of boxes from which the boxes of a chain are merged into one."""
STILL_LARGE = 30
"""Number of remaining boxes from which repeated blocks are merged into one."""
LONGEST_PERIOD = 8
"""Maximum number of blocks in a repeated pattern."""

REACH = 20
"""A value that is read more than this many boxes later, such as a mask, does not connect the blocks in between."""


def condense(picture: Picture) -> Picture:
    """Merge boxes until the picture is readable; small pictures are not changed."""
    if len(picture.boxes) <= LARGE:
        return picture
    picture = merge(picture, _chains(picture))
    if len(picture.boxes) > STILL_LARGE:
        picture = merge(picture, _repeats(picture))
    if len(picture.boxes) > LARGE:
        lanes: dict[int, list[int]] = {}
        for index in _inner(picture):
            lanes.setdefault(picture.boxes[index].lane, []).append(index)
        picture = merge(picture, [[part] for part in lanes.values()])
    return picture


def _inner(picture: Picture) -> list[int]:
    return [index for index, box in enumerate(picture.boxes) if box.style not in ("input", "output")]


def _chains(picture: Picture) -> list[list[list[int]]]:
    """Find chains: each box reads only the previous box, and is its only reader."""
    before: dict[int, set[int]] = {}
    after: dict[int, set[int]] = {}
    for edge in picture.edges:
        before.setdefault(edge.target, set()).add(edge.source)
        after.setdefault(edge.source, set()).add(edge.target)

    def previous(index: int) -> int | None:
        (producer, *others) = before.get(index) or {-1}
        if others or after.get(producer) != {index}:
            return None
        box, other = picture.boxes[index], picture.boxes[producer]
        is_plain = "custom" not in (box.style, other.style) and not (box.mark or other.mark)
        return producer if box.lane == other.lane and is_plain else None

    return [[chain] for chain in chains(_inner(picture), previous)]


def _repeats(picture: Picture) -> list[list[list[int]]]:
    """Find equal consecutive blocks; each group lists its blocks."""
    groups: list[list[list[int]]] = []
    for lane in range(len(picture.lanes)):
        inner = [index for index in _inner(picture) if picture.boxes[index].lane == lane]
        groups += _runs(picture, _blocks(picture, inner))
    return groups


def _blocks(picture: Picture, indices: Sequence[int]) -> list[list[int]]:
    """Divide the boxes into blocks, after each box with only one live value."""
    last: dict[tuple[int, int], int] = {}
    for edge in picture.edges:
        key = edge.source, edge.port
        last[key] = max(last.get(key, 0), edge.target)
    change = [0] * (len(picture.boxes) + 1)  # number of live values after a box, minus the number before
    for (source, _), end in last.items():
        if end - source <= REACH:
            change[source] += 1
            change[end] -= 1
    alive = list(accumulate(change))
    blocks: list[list[int]] = [[]]
    for index in indices:
        blocks[-1].append(index)
        if alive[index] <= 1:
            blocks.append([])
    return [block for block in blocks if block]


def _runs(picture: Picture, blocks: list[list[int]]) -> list[list[list[int]]]:
    looks = [_look(picture, block) for block in blocks]
    groups: list[list[list[int]]] = []
    first = 0
    while first < len(blocks):
        best = 1, 1
        for period in range(1, LONGEST_PERIOD + 1):
            count = 1
            pattern = looks[first : first + period]
            if any(one == next_one for one, next_one in pairwise(pattern)):
                break  # the repetition within the pattern is merged first
            while len(pattern) == period and looks[first + count * period : first + (count + 1) * period] == pattern:
                count += 1
            if count > 1 and period * count > best[0] * best[1]:
                best = period, count
        period, count = best
        if count > 1:
            parts = [blocks[first + k * period : first + (k + 1) * period] for k in range(count)]
            groups.append([[index for block in part for index in block] for part in parts])
        else:
            groups += [[[index]] for index in blocks[first]]
        first += period * count
    return groups


def _look(picture: Picture, block: list[int]) -> object:
    """Key of a block: operations and edges. Blocks with equal keys are merged."""
    place = {index: number for number, index in enumerate(block)}
    edges = sorted(
        (place.get(edge.source, -1), edge.port if edge.source in place else -1, place[edge.target])
        for edge in picture.edges
        if edge.target in place
    )
    return [(picture.boxes[index].operations, picture.boxes[index].mark) for index in block], edges


def merge(picture: Picture, groups: Sequence[Sequence[Sequence[int]]]) -> Picture:
    """Merge each group into one box. A group is a list of equal parts; boxes in no group are not changed."""
    home: dict[int, int] = {}
    merged: dict[int, Box] = {}
    for group in groups:
        indices = [index for part in group for index in part]
        leader = max(indices)  # all boxes that a group reads from come before its last box
        merged[leader] = _merge_boxes(picture, indices, len(group))
        home.update((index, leader) for index in indices)
    remaining = [index for index in range(len(picture.boxes)) if home.get(index, index) == index]
    number = {index: position for position, index in enumerate(remaining)}
    boxes = [merged.get(index, picture.boxes[index]) for index in remaining]
    ports: dict[int, dict[tuple[int, int], int]] = {}  # new box -> old box and port -> new port
    edges: dict[Edge, None] = {}
    for edge in picture.edges:
        source, target = home.get(edge.source, edge.source), home.get(edge.target, edge.target)
        if source != target:
            numbers = ports.setdefault(source, {})
            port = numbers.setdefault((edge.source, edge.port), len(numbers))
            edges[replace(edge, source=number[source], port=port, target=number[target])] = None
    return Picture(boxes, list(edges), picture.lanes)


def _merge_boxes(picture: Picture, indices: Sequence[int], count: int) -> Box:
    boxes = [picture.boxes[index] for index in indices]
    if len(boxes) == 1:
        return boxes[0]
    operations = [name for box in boxes for name in box.operations]
    weights = {constant: count for box in boxes for constant, count in box.weights.items()}
    title, lines, chips = summary(count, operations[: len(operations) // count], sum(weights.values()))
    labels = [line for box in boxes for line in (box.tooltip.splitlines() or [""])[:1]]
    tooltip = "\n".join(labels[:40] + ["…"] * (len(labels) > 40))
    mark = max((box.mark for box in boxes), key=["", "found", "first"].index)
    return Box(title, boxes[0].lane, "several", lines, chips, tooltip, tuple(operations), weights, mark)
