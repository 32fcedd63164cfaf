"""The layout of a drawing: layers from top to bottom, few crossings, straight lines where possible.

This is the method of Sugiyama, Tagawa and Toda (1981). Boxes are grouped into lanes, one below the other, and the boxes of a
lane into layers: the layer of a box is the length of the longest path to it within its lane. A line that crosses a layer gets
a place in it, like a box. Barycentres order the places of each layer. Isotonic regression then moves each place as close to
its neighbours in the other layers as the order allows.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise

ROUNDS = 24
"""Number of passes over all layers, for the order and again for the positions."""
GAP = 26.0
"""Distance between two boxes of a layer."""
LINE_GAP = 14.0
"""Distance between a line and its neighbours in a layer that it crosses."""
LINE_WIDTH = 2.0
"""Width of a line in a layer that it crosses."""
LINE_WEIGHT = 1e-4
"""Weight of a line in a layer that it crosses, for the positions. Boxes have a weight of 1."""
PORT_WEIGHT = 1e-4
"""Weight of a port's distance in the order of a layer: small, so that it only orders the lines that come from one box."""


@dataclass(frozen=True)
class Item:
    """A box to place in a lane; lanes are numbered from the top."""

    width: float
    lane: int


@dataclass(frozen=True)
class DrawnLink:
    """A line between two items; `port` is the offset of its start from the middle of the first one.

    Lines from the same port share their places in crossed layers.
    """

    source: int
    port: float
    target: int


@dataclass
class Placed:
    """The result of `layout`: the middle and the layer of each item, and the positions of each link in layers it crosses."""

    x: list[float]
    layer: list[int]
    routes: list[list[float]]
    layers: int


@dataclass
class _Place:
    """A box, or the point where a line crosses a layer.

    `above` and `below` are the places at the other ends of its lines, each with the port where the line starts.
    """

    width: float
    layer: int
    is_line: bool = False
    x: float = 0.0
    above: list[tuple[int, float]] = field(default_factory=list)
    below: list[tuple[int, float]] = field(default_factory=list)

    @property
    def weight(self) -> float:
        return LINE_WEIGHT if self.is_line else 1.0


def layout(items: Sequence[Item], links: Sequence[DrawnLink], lanes: int) -> Placed:
    """Place boxes in topological order, lane by lane, and the lines from each to later ones."""
    layer = _layers(items, links, lanes)
    places = [_Place(item.width, layer[index]) for index, item in enumerate(items)]
    crossed = _lines(places, links, layer)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for index, place in enumerate(places):
        rows[place.layer].append(index)
    rows = _order(places, rows)
    _position(places, rows)
    leftmost = min((place.x - place.width / 2 for place in places), default=0.0)
    for place in places:
        place.x -= leftmost
    routes = [[places[index].x for index in indices] for indices in crossed]
    return Placed([place.x for place in places[: len(items)]], layer, routes, len(rows))


def line_ends(placed: Placed, links: Sequence[DrawnLink], widths: Sequence[float]) -> list[float]:
    """The x at which each line ends; lines to the same box, which has one of `widths`, end side by side."""
    coming: dict[int, list[int]] = {}
    for k, link in enumerate(links):
        coming.setdefault(link.target, []).append(k)
    result = [0.0] * len(links)
    for target, lines in coming.items():
        start = {k: (placed.routes[k] or [placed.x[links[k].source] + links[k].port])[-1] for k in lines}
        places = sorted(set(start.values()))
        middle = placed.x[target]
        half = max(0.0, min(widths[target] / 2 - LINE_GAP, LINE_GAP * (len(places) - 1)))
        wanted = [min(max(place, middle - half), middle + half) for place in places]
        gaps = [min(LINE_GAP, 2 * half / (len(places) - 1)) if len(places) > 1 else 0.0] * (len(places) - 1)
        # A line from directly above stays straight.
        weights = [1.0 if abs(place - middle) < 2 else 1e-3 for place in places]
        ends = dict(zip(places, spread(wanted, weights, gaps), strict=True))
        for k in lines:
            result[k] = ends[start[k]]
    return result


def _layers(items: Sequence[Item], links: Sequence[DrawnLink], lanes: int) -> list[int]:
    """Assign a layer to each box; the layers of a lane are below all layers of earlier lanes."""
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}  # within a lane
    for link in links:
        before.setdefault(link.target, []).append(link.source)
        if items[link.source].lane == items[link.target].lane:
            after.setdefault(link.source, []).append(link.target)
    layer = [0] * len(items)
    start = 0
    for lane in range(lanes):
        inside = [index for index, item in enumerate(items) if item.lane == lane]
        for index in inside:
            layer[index] = max([start, *(layer[producer] + 1 for producer in before.get(index, ()))])
        for index in inside:
            if index not in before and index in after:  # move a box without inputs to just above its first reader
                layer[index] = min(layer[user] for user in after[index]) - 1
        start = max([start, *(layer[index] + 1 for index in inside)])
    return layer


def _lines(places: list[_Place], links: Sequence[DrawnLink], layer: Sequence[int]) -> list[list[int]]:
    """Add places for the lines that cross layers, and connect all places; return the indices of each line's places."""
    shared: dict[tuple[int, float, int], int] = {}  # source, port and layer -> the place of all lines from this port
    crossed = []
    for link in links:
        indices: list[int] = []
        last, port = link.source, link.port
        for between in range(layer[link.source] + 1, layer[link.target]):
            key = link.source, link.port, between
            if key not in shared:
                shared[key] = len(places)
                places.append(_Place(LINE_WIDTH, between, is_line=True))
                _connect(places, last, port, shared[key])
            last, port = shared[key], 0.0
            indices.append(last)
        _connect(places, last, port, link.target)
        crossed.append(indices)
    return crossed


def _connect(places: list[_Place], source: int, port: float, target: int) -> None:
    places[source].below.append((target, port))
    places[target].above.append((source, port))


# Order ---------------------------------------------------------------------------------------------------------------


def _order(places: list[_Place], rows: list[list[int]]) -> list[list[int]]:
    """Order the places of each row, so that few lines cross. Each pass sorts all rows by barycentre; the best pass is kept."""
    best, fewest = [list(row) for row in rows], _crossings(places, rows)
    for number in range(ROUNDS):
        if not fewest:
            break
        down = number % 2 == 0
        spot = {index: float(position) for row in rows for position, index in enumerate(row)}
        for row in rows if down else reversed(rows):
            keys = {}
            for index in row:
                others = places[index].above if down else places[index].below
                total = sum(spot[other] + (port * PORT_WEIGHT if down else 0) for other, port in others)
                keys[index] = total / len(others) if others else spot[index]
            row.sort(key=keys.__getitem__)
            spot.update((index, float(position)) for position, index in enumerate(row))
        count = _crossings(places, rows)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _crossings(places: Sequence[_Place], rows: Sequence[Sequence[int]]) -> int:
    """The number of crossings of lines between neighbouring rows. Lines from the same port do not cross each other."""
    count = 0
    for above, below in pairwise(rows):
        spot = {index: position for position, index in enumerate(below)}
        ends: list[int] = []  # sorted ends of the lines from ports further left
        for index in above:
            lines = sorted((port, spot[target]) for target, port in places[index].below)
            for _, same_port in groupby(lines, key=lambda line: line[0]):
                targets = [target for _, target in same_port]
                # A line crosses every line that starts further left and ends further right.
                count += sum(len(ends) - bisect_right(ends, target) for target in targets)
                for target in targets:
                    insort(ends, target)
    return count


# Position ------------------------------------------------------------------------------------------------------------


def _position(places: list[_Place], rows: Sequence[Sequence[int]]) -> None:
    """Set the x of each place: move it towards its neighbours above or below in turn, then align the places of columns."""
    for row in rows:
        _settle(places, row, [0.0] * len(row))
    for number in range(ROUNDS):
        down = number % 2 == 1
        for row in rows if down else reversed(rows):
            _settle(places, row, [_mean_of_neighbours(places, index, down) for index in row])
    columns = _columns(places)
    for _ in range(ROUNDS):
        for column in columns:
            total = sum(places[index].weight for index in column)
            middle = sum(places[index].weight * places[index].x for index in column) / total
            for index in column:
                places[index].x = middle
        for row in rows:
            _settle(places, row, [places[index].x for index in row])


def _mean_of_neighbours(places: Sequence[_Place], index: int, down: bool) -> float:
    """The mean position of the neighbours of a place: the upper ones in downward passes, else the lower ones."""
    place = places[index]
    if down:  # directly below the port
        spots = [(places[other].weight, places[other].x + port) for other, port in place.above]
    else:
        spots = [(places[other].weight, places[other].x - port) for other, port in place.below]
    total = sum(weight for weight, _ in spots)
    return sum(weight * x for weight, x in spots) / total if total else place.x


def _columns(places: Sequence[_Place]) -> list[list[int]]:
    """Find columns: places, one below the other, that can be aligned in a vertical line.

    Each place is the only neighbour above the next one and has no other neighbour below. The line starts at its middle.
    """

    def above(index: int) -> int | None:
        if len(places[index].above) != 1:
            return None
        ((producer, port),) = places[index].above
        return None if port or len(places[producer].below) > 1 else producer

    order = sorted(range(len(places)), key=lambda index: places[index].layer)
    return [column for column in chains(order, above) if len(column) > 1]


def chains(order: Iterable[int], previous: Callable[[int], int | None]) -> list[list[int]]:
    """Divide `order` into chains: each member either starts a chain, or joins the chain of its `previous` member.

    >>> chains(range(5), {2: 0, 3: 2}.get)
    [[0, 2, 3], [1], [4]]
    """
    chain_of: dict[int | None, list[int]] = {}  # the members of a chain share one list
    for index in order:
        chain_of[index] = chain_of.get(previous(index), [])
        chain_of[index].append(index)
    return list({id(chain): chain for chain in chain_of.values()}.values())


def _settle(places: list[_Place], row: Sequence[int], wanted: Sequence[float]) -> None:
    """Move the places of a row as close to `wanted` as their order and widths allow."""
    if len(row) == 1:
        places[row[0]].x = wanted[0]
        return
    gaps = []
    for left, right in pairwise(row):
        a, b = places[left], places[right]
        gaps.append((a.width + b.width) / 2 + (LINE_GAP if a.is_line or b.is_line else GAP))
    for index, x in zip(row, spread(wanted, [places[index].weight for index in row], gaps), strict=True):
        places[index].x = x


def spread(wanted: Sequence[float], weights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Increasing positions, at least `gaps` apart, as close to `wanted` as possible by weighted least squares.

    This is isotonic regression by the algorithm "pool adjacent violators".

    >>> spread([0, 10, 11], [1, 1, 1], [5, 5])
    [0.0, 8.0, 13.0]
    """
    # With offset[i] = sum(gaps[:i]): x[i + 1] - x[i] >= gaps[i] if and only if x - offset does not decrease.
    offsets = [0.0, *accumulate(gaps)][: len(wanted)]
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for goal, offset, weight in zip(wanted, offsets, weights, strict=True):
        mean, total, count = float(goal - offset), weight, 1
        while pools and pools[-1][0] > mean:
            other_mean, other_weight, other_count = pools.pop()
            mean = (mean * total + other_mean * other_weight) / (total + other_weight)
            total, count = total + other_weight, count + other_count
        pools.append((mean, total, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
