"""Rules of attention operations: define queries, keys, values and masks for `flash`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....composites import group_query_attention, multi_head_attention, scaled_dot_product_attention
from ....composites.attention import LEAST_CACHE_SCALE
from ....expr import Traced, cast, clamp, compute, max as larger_of, max_over, round_even, where
from ....expr.array import truth
from ....expr.gpu import Local, Workgroups
from ....expr.ir import Cast, storage
from ....expr.tracing import of_input
from ....ops.formulas import broadcast
from ..table import gpu
from .flash import Attention, AttentionSizes, Element, NewKeys, Place, attend, names_needed
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


def _cached_element(memory: Traced, scale: Traced | None = None) -> Element:
    """An element of cached keys or values, as float32."""
    if scale is None:
        array = widen(memory)
        return lambda *p: array[p]
    return lambda b, g, k, s: cast(memory[b, g, k, s], "float32") * scale[b, g, k]


def _scale_of_vector(program: Workgroups, vector: Local) -> Local:
    """Compute the scale of a vector in workgroup memory that becomes int8."""
    (size,) = vector.desc.shape
    part, scale = 1 << size.bit_length() // 2, program.shared_array([1])
    largest = program.shared_array([-(-size // part)])

    def largest_of_part(k: Traced) -> Traced:
        return max_over(part, lambda j: abs(program[vector][clamp(k * part + j, None, size - 1)]))

    program.fill(largest, largest_of_part)
    count = largest.desc.shape[0]
    program.fill(scale, lambda _: larger_of(max_over(count, lambda k: program[largest][k]) / 127, LEAST_CACHE_SCALE))
    return scale


def _concatenate(old: Traced | None, new: Traced) -> Traced:
    """Concatenate along axis 2."""
    assert old is not None
    past, shape = old.shape[2], (*new.shape[:2], old.shape[2] + new.shape[2], *new.shape[3:])

    def element(b: Traced, g: Traced, at: Traced, *s: Traced) -> Traced:
        return where(at < past, old.clamped[(b, g, at, *s)], new.clamped[(b, g, at - past, *s)])

    return compute(shape, element)


def _code(quotient: Traced) -> Traced:
    return cast(clamp(round_even(quotient), -127, 127), "int8")


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
    past_key_scale: Traced | None,
    past_value_scale: Traced | None,
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

    def rounded(element: Element) -> Element:
        return lambda *p: widen(narrow(element(*p), query))

    def append_new(stages: Stages) -> NewKeys:
        """The KV cache with the past keys and values. Attention, or a kernel before it, writes the new ones."""
        targets = [stages.array(data_type, [batches, groups, keys, size]) for _ in range(2)]
        for old, target, label in zip((past_key, past_value), targets, ("keys", "values"), strict=True):
            assert old is not None
            stages.add(old, target, f"the past {label}")
        return NewKeys(rounded(new_key), rounded(new_value), position, (targets[0], targets[1]), new)

    def append_in_8_bits(stages: Stages) -> list[Traced]:
        """Append the new keys and values as int8, then their scales."""
        pasts = (past_key, past_value, past_key_scale, past_value_scale)
        labels = ("the past keys", "the past values", "the scales of the past keys", "the scales of the past values")
        length = new if lengths is None else keys
        targets = [stages.array("int8", [batches, groups, length, size]) for _ in range(2)]
        targets += [stages.array("float32", [batches, groups, length]) for _ in range(2)]
        if lengths is not None:
            for old, target, label in zip(pasts, targets, labels, strict=True):
                assert old is not None
                stages.add(old, target, label)
        program = Workgroups([batches, new, groups], width=size)
        batch, i, group = program.positions
        row = i if lengths is None else position(batch, i)
        vectors = [program.shared_array([size]) for _ in range(2)]
        for vector, element in zip(vectors, (new_key, new_value), strict=True):
            program.fill(vector, lambda s, element=element: element(batch, group, i, s))
        factors = [_scale_of_vector(program, vector) for vector in vectors]
        for target, vector, factor in zip(targets, vectors, factors, strict=False):
            program.write(
                target,
                [size],
                lambda s: (batch, group, row, s),
                lambda s, vector=vector, factor=factor: _code(program[vector][s] / program[factor][0]),
            )
        for target, factor in zip(targets[2:], factors, strict=True):
            program.write(target, [1], lambda _: (batch, group, row), lambda k, factor=factor: program[factor][k])
        stages.add(program, targets[0], "the new keys and values")
        present = list(map(of_input, targets))
        if lengths is not None:
            return present
        pairs = zip(
            pasts, present, ("the keys", "the values", "scales of the keys", "scales of the values"), strict=True
        )
        return [stages.store(_concatenate(old, added), label) for old, added, label in pairs]

    def plan(stages: Stages) -> list[Traced]:
        new_keys = None
        if past_key_scale is not None:
            memory = append_in_8_bits(stages)
        elif lengths is None:
            elements = ((past_key, new_key, "keys"), (past_value, new_value, "values"))
            memory = [stages.store(present(old, element), f"the {label}") for old, element, label in elements]
        else:
            new_keys = append_new(stages)
            memory = list(map(of_input, new_keys.targets))
        of_key, of_value = _cached_element(*memory[::2]), _cached_element(*memory[1::2])

        def of_query(b: Traced, h: Traced, i: Traced, s: Traced) -> Traced:
            return rotate(q, b, h, i, s) * scale

        read = [query, *memory, *(a for a in (lengths, cosines, sines, bias, sinks) if a is not None)]
        count = len(read) + 1
        if rotation is not None and count > stages.features.max_buffers:
            turned = stages.store(compute([batches, heads, new, size], of_query), "the queries")
            of_query = lambda *p: turned[p]  # noqa: E731
            count -= 2
        if past_key_scale is not None and count > stages.features.max_buffers:
            real = [stages.store(compute([batches, groups, keys, size], of), "as floats") for of in (of_key, of_value)]
            of_key, of_value = map(_cached_element, real)

        def visible(b: Traced, h: Traced, i: Traced, at: Traced) -> Traced:
            seen = at <= position(b, i)
            return seen & (at > position(b, i) - window) if window else seen

        problem = Attention(
            *sizes,
            query=of_query,
            key=of_key,
            value=of_value,
            visible=visible,
            adjust=None if bias is None else _plus(broadcast(widen(bias))),
            sink=None if sinks is None else lambda h: widen(sinks)[h],
            softcap=softcap,
            first=(lambda b, i: position(b, i) - window + 1) if window else None,
            end=lambda b, i: position(b, i) + 1,
            has_room=lengths is not None,
            new_keys=new_keys,
        )
        result = stages.array(data_type, query.shape)
        y = attend(stages, problem, result, lambda b, h, i, d: (b, i, h * size + d))
        return [y, *memory]

    return Staged(plan, lambda _: names_needed(AttentionSizes(*sizes)))
