"""Rules of attention operations: define queries, keys, values and masks for `flash`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....composites import group_query_attention, multi_head_attention, scaled_dot_product_attention
from ....expr import Traced, clamp, compute, where
from ....expr.array import truth
from ....expr.gpu import Workgroups
from ....expr.ir import Cast, storage
from ....expr.tracing import of_input
from ..table import gpu
from .flash import Attention, AttentionSizes, Element, Place, attend, names_needed
from .positions import broadcast
from .reduction import narrow, widen
from .results import Staged, Stages
from .rotary import Rotation


def _plus(term: Element) -> Element:
    """Add a term to a score."""
    return lambda score, *position: score + term(*position)


def _with_mask(problem: Attention, mask: Traced | None, causal: bool) -> Attention:
    """Add a mask to a problem. A uint8 mask hides keys, any other mask is added to scores."""
    visible = None
    if mask is not None and mask.data_type == "uint8":
        visible = broadcast(Traced(mask.shape, truth(mask.body)))
    elif mask is not None:
        problem = replace(problem, adjust=_plus(broadcast(widen(mask))))
    if causal:
        by_mask = visible

        def is_seen(b: Traced, h: Traced, i: Traced, k: Traced) -> Traced:
            return k <= i if by_mask is None else (k <= i) & by_mask(b, h, i, k)

        visible = is_seen
        problem = replace(problem, end=lambda b, i: i + 1)
    return replace(problem, visible=visible)


def _in_one_array(problem: Attention, query: Traced, shape: Sequence[int], place: Place) -> Staged:
    def plan(stages: Stages) -> list[Traced]:
        return [attend(stages, problem, stages.array(storage(query.data_type), shape), place)]

    return Staged(plan, lambda _: names_needed(problem))


@gpu.lower(scaled_dot_product_attention)
def _(query: Traced, key: Traced, value: Traced, mask: Traced | None, causal: bool, scale: float) -> Staged:
    q, k, v = widen(query), widen(key), widen(value)
    batches, heads, queries, size = query.shape
    groups, keys, values = key.shape[1], key.shape[2], value.shape[3]
    problem = Attention(
        *(batches, heads, groups, queries, keys, size, values),
        query=lambda *p: q[p] * scale,
        key=lambda *p: k[p],
        value=lambda *p: v[p],
    )
    shape = [batches, heads, queries, values]
    return _in_one_array(_with_mask(problem, mask, causal), query, shape, lambda *p: p)


@gpu.lower(multi_head_attention)
def _(query: Traced, key: Traced, value: Traced, mask: Traced | None, heads: int, causal: bool, scale: float) -> Staged:
    q, k, v = widen(query), widen(key), widen(value)
    batches, queries, _ = query.shape
    keys, size, values = key.shape[1], query.shape[2] // heads, value.shape[2] // heads
    problem = Attention(
        *(batches, heads, heads, queries, keys, size, values),
        query=lambda b, h, i, s: q[b, i, h * size + s] * scale,
        key=lambda b, h, i, s: k[b, i, h * size + s],
        value=lambda b, h, i, d: v[b, i, h * values + d],
    )
    shape = [batches, queries, heads * values]
    place: Place = lambda b, h, i, d: (b, i, h * values + d)  # noqa: E731
    return _in_one_array(_with_mask(problem, mask, causal), query, shape, place)


@gpu.lower(group_query_attention)
def _(
    query: Traced,
    key: Traced,
    value: Traced,
    past_key: Traced | None,
    past_value: Traced | None,
    lengths: Traced | None,
    cosines: Traced | None,
    sines: Traced | None,
    bias: Traced | None,
    sinks: Traced | None,
    heads: int,
    groups: int,
    scale: float,
    softcap: float,
    window: int,
    interleaved: bool,
) -> Staged:
    q, k, v = widen(query), widen(key), widen(value)
    batches, new, _ = query.shape
    size, past = query.shape[2] // heads, 0 if past_key is None else past_key.shape[2]
    keys = past if lengths is not None else past + new
    rotation = Rotation(cosines, sines, interleaved) if cosines is not None and sines is not None else None
    data_type = storage(query.data_type)
    sizes = batches, heads, groups, new, keys, size, size

    def position(batch: Traced, i: Traced) -> Traced:
        """The position of query `i`, or of new key `i`, among all keys."""
        if lengths is None:
            return i + past
        return clamp(Traced((), Cast(lengths[batch].body, "index")), 0, keys - new) + i

    def rotate(x: Traced, batch: Traced, head: Traced, i: Traced, s: Traced) -> Traced:
        def of_head(at: Traced) -> Traced:
            return x[batch, i, head * size + at]

        if rotation is None:
            return of_head(s)
        row = clamp(position(batch, i), 0, rotation.cosines.shape[0] - 1)
        return rotation.of(of_head, size, row, s)

    def present(old: Traced | None, new_element: Element) -> Traced:
        """Concatenate old and new keys or values."""

        def element(b: Traced, g: Traced, at: Traced, s: Traced) -> Traced:
            added = new_element(b, g, clamp(at - past, 0), s)
            return added if old is None else where(at < past, widen(old).clamped[b, g, at, s], added)

        joined = compute([batches, groups, keys, size], element)
        return narrow(joined, query)

    def new_key(b: Traced, g: Traced, i: Traced, s: Traced) -> Traced:
        return rotate(k, b, g, i, s)

    def new_value(b: Traced, g: Traced, i: Traced, s: Traced) -> Traced:
        return v[b, i, g * size + s]

    def append_new(stages: Stages) -> list[Traced]:
        """Append the new keys and values to the KV cache."""
        shape = [batches, groups, keys, size]
        targets = [stages.array(data_type, shape) for _ in range(2)]
        for old, target, label in zip((past_key, past_value), targets, ("keys", "values"), strict=True):
            assert old is not None
            stages.add(old, target, f"the past {label}")
        program = Workgroups([batches, new], width=groups * size)
        batch, i = program.positions
        for target, element in zip(targets, (new_key, new_value), strict=True):
            program.write(
                target,
                [groups, size],
                lambda g, s: (batch, g, position(batch, i), s),
                lambda g, s, element=element: element(batch, g, i, s),
            )
        stages.add(program, targets[0], "the new keys and values")
        return list(map(of_input, targets))

    def plan(stages: Stages) -> list[Traced]:
        if lengths is None:
            elements = ((past_key, new_key, "keys"), (past_value, new_value, "values"))
            memory = [stages.store(present(old, element), f"the {label}") for old, element, label in elements]
        else:
            memory = append_new(stages)
        all_keys, all_values = map(widen, memory)

        def of_query(b: Traced, h: Traced, i: Traced, s: Traced) -> Traced:
            return rotate(q, b, h, i, s) * scale

        read = [query, *memory, *(a for a in (lengths, cosines, sines, bias, sinks) if a is not None)]
        if rotation is not None and len(read) + 1 > stages.features.max_buffers:
            turned = stages.store(compute([batches, heads, new, size], of_query), "the queries")
            of_query = lambda *p: turned[p]  # noqa: E731

        def visible(b: Traced, h: Traced, i: Traced, at: Traced) -> Traced:
            seen = at <= position(b, i)
            return seen & (at > position(b, i) - window) if window else seen

        problem = Attention(
            *sizes,
            query=of_query,
            key=lambda *p: all_keys[p],
            value=lambda *p: all_values[p],
            visible=visible,
            adjust=None if bias is None else _plus(broadcast(widen(bias))),
            sink=None if sinks is None else lambda h: widen(sinks)[h],
            softcap=softcap,
            first=(lambda b, i: position(b, i) - window + 1) if window else None,
            end=lambda b, i: position(b, i) + 1,
            has_room=lengths is not None,
        )
        result = stages.array(data_type, query.shape)
        y = attend(stages, problem, result, lambda b, h, i, d: (b, i, h * size + d))
        return [y, *memory]

    return Staged(plan, lambda _: names_needed(AttentionSizes(*sizes)))
