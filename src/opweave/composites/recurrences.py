"""State-space models, linear attention, and other composites over recurrences."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any, Literal as Literal

from ..core.dtypes import FLOATS, DataType
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.sizes import is_same_shape
from ..custom.operation import forget
from ..custom.recurrence import recurrence
from ..expr import Traced, cast, compute, exp, sum_over
from ..ops.constants import constant
from ..support.errors import require
from .declare import check_axis, check_divides, declare

if TYPE_CHECKING:
    from ..ops import Operations

UPDATE_RULES = ("linear", "gated", "delta", "gated_delta")


def _zeros(b: Operations, shape: Sequence[int], data_type: DataType) -> Operand:
    return b.expand(constant(b, 0, data_type), shape)


def _cast(b: Operations, x: Operand, data_type: DataType) -> Operand:
    return x if x.data_type == data_type else b.cast(x, data_type)


def operands_of_steps(b: Operations, *operands: Any) -> list[Any]:
    """Cast operands to float32 if their data type is beyond the specification: steps take the specification's types."""
    return [x if x is None or x.data_type in FLOATS else _cast(b, x, "float32") for x in operands]


def _wide(x: Traced) -> Traced:
    """An array in float32, in which steps compute."""
    return cast(x, "float32") if x.data_type == "float16" else x


def _as_stored(x: Traced, like: Traced) -> Traced:
    return cast(x, "float16") if like.data_type == "float16" else x


def _fits(name: str, operand: Operand | None, shape: Sequence[int], text: str) -> None:
    if operand is not None:
        require(
            is_same_shape(operand.shape, shape) or tuple(operand.shape) == tuple(shape),
            f"{name} must be {text}, {list(shape)}, got {operand.desc}",
        )


# Linear attention ----------------------------------------------------------------------------------------------------


@recurrence(states="state")
def attend(
    state: Any, query: Any, key: Any, value: Any, decay: Any = None, beta: Any = None, *, scale: float = 1.0
) -> Any:
    """Update the state [batches, groups, keys, values] by a key and a value, and read it by the queries of a group.

    query [batches, groups, queries, keys], key [batches, groups, keys], value [batches, groups, values], decay
    [batches, groups, keys or 1], beta [batches, groups or 1].
    """
    size = state.shape[2]
    q, k, v = _wide(query), _wide(key), _wide(value)
    if decay is not None:
        factor, is_one = exp(_wide(decay)), decay.shape[2] == 1
        kept = compute(state.shape, lambda b, g, i, j: state[b, g, i, j] * factor[b, g, 0 if is_one else i])
    else:
        kept = state
    if beta is not None:
        rate, is_shared = _wide(beta), beta.shape[1] == 1
        stored = compute(v.shape, lambda b, g, j: sum_over(size, lambda i: kept[b, g, i, j] * k[b, g, i]))
        change = compute(v.shape, lambda b, g, j: rate[b, 0 if is_shared else g] * (v[b, g, j] - stored[b, g, j]))
    else:
        change = v
    new = compute(state.shape, lambda b, g, i, j: kept[b, g, i, j] + k[b, g, i] * change[b, g, j])
    shape = (*query.shape[:3], value.shape[2])
    out = compute(shape, lambda b, g, h, j: sum_over(size, lambda i: new[b, g, i, j] * q[b, g, h, i]) * scale)
    return new, _as_stored(out, query)


@recurrence(states="state")
def carry(state: Any, added: Any, factor: Any = None) -> Any:
    """Add sums of a chunk of tokens to the state before it, both [batches, groups, keys, values]; factor [batches, groups]."""
    if factor is None:
        return state + added, state
    return compute(state.shape, lambda b, g, i, j: state[b, g, i, j] * factor[b, g] + added[b, g, i, j]), state


forget(attend)
forget(carry)

_TOKENS = Limits("query", ranks=(3, 3))


@declare(
    query=Limits(FLOATS, ranks=(3, 3)),
    key=_TOKENS,
    value=_TOKENS,
    past_state=Limits(FLOATS, ranks=(4, 4)),
    decay=_TOKENS,
    beta=_TOKENS,
)
def linear_attention(
    self: Builder,
    query: Operand,
    key: Operand,
    value: Operand,
    past_state: Operand | None = None,
    decay: Operand | None = None,
    beta: Operand | None = None,
    *,
    heads: int,
    groups: int,
    update_rule: Literal["linear", "gated", "delta", "gated_delta"] = "gated_delta",
    scale: float | None = None,
    label: str = "",
) -> tuple[Desc, Desc]:
    """Compute linear attention: a matrix of keys and values that each token updates and reads, in place of a KV cache.

    With the state S [size, values] of a head, and a token's query q, key k, value v, decay g and beta:

    - "linear": S += k v; "gated": S = exp(g) S + k v;
    - "delta": S += beta k (v - k S); "gated_delta": S = exp(g) S, then as "delta".

    The output is scale * q S.

    Args:
        query: float32 or float16 [batches, tokens, heads * size].
        key: [batches, tokens, groups * size]; for the delta rules, of length 1.
        value: [batches, tokens, groups * values].
        past_state: float32 or float16 [batches, groups, size, values]; default: zeros.
        decay: logarithms of the factors of the state, [batches, tokens, groups * size] or [batches, tokens, groups]; for the
            gated rules alone.
        beta: the share of the error to correct, [batches, tokens, groups] or [batches, tokens, 1]; for the delta rules alone.
        heads: the number of heads of the queries.
        groups: the number of states, and of heads of keys and values; divides `heads`.
        update_rule: how a token changes the state: "linear", "gated", "delta" or "gated_delta".
        scale: factor of the output; default: 1 / sqrt(size).

    Returns: The output [batches, tokens, heads * values], and the state after the last token, of the data type of
        `past_state`, or float32. Between tokens, states are float32.
    Raises: inconsistent shapes; an operand that the rule lacks, or does not take.

    ONNX's LinearAttention, and that of ONNX Runtime; Gated DeltaNet of Qwen3.5, RetNet, GLA.

    >>> ones = np.ones((1, 2, 1), "float32")
    >>> out, state = linear_attention(ones, ones, ones * 3, heads=1, groups=1, update_rule="linear")
    >>> out.ravel().tolist(), state.ravel().tolist()
    ([3.0, 6.0], [6.0])
    """
    require(groups > 0 and heads > 0 and heads % groups == 0, f"groups must divide heads, got {groups} and {heads}")
    size = check_divides("query", query, heads)
    values = check_divides("value", value, groups)
    batches, tokens, _ = query.shape
    _fits("key", key, (batches, tokens, groups * size), "[batches, tokens, groups * size]")
    _fits("value", value, (batches, tokens, groups * values), "[batches, tokens, groups * values]")
    _fits("past_state", past_state, (batches, groups, size, values), "[batches, groups, size, values]")
    for name, operand, rules in (("decay", decay, ("gated", "gated_delta")), ("beta", beta, ("delta", "gated_delta"))):
        is_needed = update_rule in rules
        require(is_needed == (operand is not None), f"{update_rule!r} {'needs' if is_needed else 'takes no'} {name}")
    if decay is not None:
        width = decay.shape[2]
        require(
            width == groups * size or width == groups,
            f"decay must have {groups * size} or {groups} columns, got {decay.desc}",
        )
        _fits("decay", decay, (batches, tokens, width), "[batches, tokens, columns]")
    if beta is not None:
        width = beta.shape[2]
        require(width == groups or width == 1, f"beta must have {groups} or 1 columns, got {beta.desc}")
        _fits("beta", beta, (batches, tokens, width), "[batches, tokens, columns]")
    require(scale is None or isfinite(scale), f"scale must be finite, got {scale}")
    state_type = "float32" if past_state is None else past_state.data_type
    return Desc(query.data_type, (batches, tokens, heads * values)), Desc(state_type, (batches, groups, size, values))


@linear_attention.default("scale")
def _(query: Operand, heads: int) -> float:
    return 1 / sqrt(query.shape[2] // heads) if 0 < heads <= query.shape[2] else 1.0


@linear_attention.decompose
def _(
    b: Operations,
    query: Operand,
    key: Operand,
    value: Operand,
    past_state: Operand | None,
    decay: Operand | None,
    beta: Operand | None,
    heads: int,
    groups: int,
    scale: float,
) -> tuple[Operand, Operand]:
    batches, tokens, width = query.shape
    size, values = width // heads, value.shape[2] // groups
    state = _zeros(b, (batches, groups, size, values), "float32") if past_state is None else past_state
    data_type = query.data_type
    if size == 0:
        # Steps compute no states without elements. Products without terms are 0.
        return _zeros(b, (batches, tokens, heads * values), data_type), state
    query, key, value, decay, beta = operands_of_steps(b, query, key, value, decay, beta)
    if decay is not None:
        decay = b.reshape(decay, [batches, tokens, groups, decay.shape[2] // groups])
    last, out = attend(
        b,
        _cast(b, state, "float32"),
        b.reshape(query, [batches, tokens, groups, heads // groups, size]),
        b.reshape(key, [batches, tokens, groups, size]),
        b.reshape(value, [batches, tokens, groups, values]),
        decay,
        beta,
        scale=scale,
        axis=1,
    )
    out = _cast(b, b.reshape(out, [batches, tokens, heads * values]), data_type)
    return out, _cast(b, last, "float32" if past_state is None else past_state.data_type)


# Selective scans -----------------------------------------------------------------------------------------------------


@recurrence(states="state", constants="a")
def _scan(state: Any, x: Any, delta: Any, b: Any, c: Any, a: Any) -> Any:
    """One step of Mamba: state [batches, channels, size], x and delta [batches, channels], b and c [batches, size]."""
    size = state.shape[2]
    x, step, b, c, rate = _wide(x), _wide(delta), _wide(b), _wide(c), _wide(a)
    new = compute(
        state.shape,
        lambda n, d, k: exp(step[n, d] * rate[d, k]) * state[n, d, k] + step[n, d] * x[n, d] * b[n, k],
    )
    return new, compute(x.shape, lambda n, d: sum_over(size, lambda k: new[n, d, k] * c[n, k]))


@recurrence(states="state", constants="a")
def scan_heads(state: Any, x: Any, delta: Any, b: Any, c: Any, a: Any) -> Any:
    """One step of Mamba 2: state [batches, groups, heads, width, size], x [batches, groups, heads, width], delta
    [batches, groups, heads], b and c [batches, groups, size], a [groups, heads].
    """
    size = state.shape[4]
    x, step, b, c, rate = _wide(x), _wide(delta), _wide(b), _wide(c), _wide(a)
    factor = compute(step.shape, lambda n, g, h: exp(step[n, g, h] * rate[g, h]))
    new = compute(
        state.shape,
        lambda n, g, h, p, k: factor[n, g, h] * state[n, g, h, p, k] + step[n, g, h] * x[n, g, h, p] * b[n, g, k],
    )
    return new, compute(x.shape, lambda n, g, h, p: sum_over(size, lambda k: new[n, g, h, p, k] * c[n, g, k]))


forget(_scan)
forget(scan_heads)


@declare(
    input=Limits(FLOATS, ranks=(3, 4)),
    delta=Limits("input", ranks=(3, 3)),
    a=Limits("input", ranks=(1, 2)),
    b=Limits("input", ranks=(3, 4)),
    c=Limits("input", ranks=(3, 4)),
    d=Limits("input", ranks=(1, 1)),
    initial_state=Limits(FLOATS, ranks=(3, 4)),
)
def selective_scan(
    self: Builder,
    input: Operand,
    delta: Operand,
    a: Operand,
    b: Operand,
    c: Operand,
    d: Operand | None = None,
    initial_state: Operand | None = None,
    *,
    label: str = "",
) -> tuple[Desc, Desc]:
    """Run the state-space model of Mamba: a state whose decay, input and output depend on the token.

    For each token: state = exp(delta * a) * state + delta * input * b; output = sum over the state's last axis of state * c,
    + d * input.

    Args:
        input: float32 or float16. Mamba: [batches, tokens, channels]; Mamba 2: [batches, tokens, heads, width].
        delta: the length of each step, positive: [batches, tokens, channels], or [batches, tokens, heads].
        a: rates, negative: [channels, size], or [heads].
        b: [batches, tokens, size], or [batches, tokens, groups, size], where groups divides heads.
        c: as `b`.
        d: the share of the input in the output: [channels], or [heads]; default: none.
        initial_state: float32 or float16 [batches, channels, size], or [batches, heads, width, size]; default: zeros.

    Returns: The output, of the shape of `input`, and the state after the last token, of the data type of `initial_state`, or
        float32. Between tokens, states are float32.
    Raises: inconsistent shapes.

    >>> ones = np.ones((1, 3, 1), "float32")
    >>> y, state = selective_scan(ones, ones, np.float32([[-np.log(2)]]), ones, ones)
    >>> y.ravel().tolist(), state.ravel().tolist()
    ([1.0, 1.5, 1.75], [1.75])
    """
    batches, tokens, *channels = input.shape
    is_second = input.rank == 4
    _fits("delta", delta, (batches, tokens, channels[0]), "[batches, tokens, heads]" if is_second else "as input")
    rank = f"for input of rank {input.rank}"
    require(a.rank == (1 if is_second else 2), f"a must have rank {1 if is_second else 2} {rank}, got {a.desc}")
    require(b.rank == input.rank, f"b must have rank {input.rank} {rank}, got {b.desc}")
    size = b.shape[-1]
    _fits("a", a, (channels[0],) if is_second else (channels[0], size), "[heads]" if is_second else "[channels, size]")
    groups = b.shape[2:-1]
    if is_second:
        fits = groups[0] > 0 and channels[0] % groups[0] == 0
        require(fits, f"the groups of b must divide {channels[0]} heads, got {b.desc}")
    _fits("b", b, (batches, tokens, *groups, size), "[batches, tokens, …, size]")
    _fits("c", c, b.shape, "as b")
    _fits("d", d, (channels[0],), "[heads]" if is_second else "[channels]")
    _fits("initial_state", initial_state, (batches, *channels, size), "[batches, …, size]")
    state_type = "float32" if initial_state is None else initial_state.data_type
    return input.desc, Desc(state_type, (batches, *channels, size))


@selective_scan.decompose
def _(
    b_: Operations,
    input: Operand,
    delta: Operand,
    a: Operand,
    b: Operand,
    c: Operand,
    d: Operand | None,
    initial_state: Operand | None,
) -> tuple[Operand, Operand]:
    build, (batches, tokens, *channels), size = b_, input.shape, b.shape[-1]
    shape = (batches, *channels, size)
    state = _zeros(build, shape, "float32") if initial_state is None else _cast(build, initial_state, "float32")
    data_type = input.data_type
    input, delta, a, b, c = operands_of_steps(build, input, delta, a, b, c)
    if size == 0:
        # Steps compute no states without elements. Sums without terms are 0.
        last, y = state, _zeros(build, input.shape, "float32")
    elif input.rank == 3:
        last, y = _scan(build, state, input, delta, b, c, a, axis=1)
    else:
        heads, width = channels
        groups = b.shape[2]
        parts = [batches, tokens, groups, heads // groups]
        last, y = scan_heads(
            build,
            build.reshape(state, [batches, groups, heads // groups, width, size]),
            build.reshape(input, [*parts, width]),
            build.reshape(delta, parts),
            b,
            c,
            build.reshape(a, [groups, heads // groups]),
            axis=1,
        )
        last, y = build.reshape(last, shape), build.reshape(y, input.shape)
    if d is not None:
        x, share = _cast(build, input, "float32"), _cast(build, d, "float32")
        y = build.add(y, build.mul(x, build.reshape(share, [channels[0], *[1] * (input.rank - 3)])))
    state_type: DataType = "float32" if initial_state is None else initial_state.data_type
    return _cast(build, y, data_type), _cast(build, last, state_type)


# Filters -------------------------------------------------------------------------------------------------------------


@recurrence
def _leak(state: Any, x: Any, *, decay: float = 1.0) -> Any:
    new = state * decay + _wide(x)
    return new, _as_stored(new, x)


forget(_leak)


@declare(input=Limits(FLOATS, ranks=(1, N)), initial_state=Limits("input", ranks=(0, N)))
def leaky_integrator(
    self: Builder,
    input: Operand,
    initial_state: Operand | None = None,
    *,
    decay: float,
    axis: int = 0,
    reversed: bool = False,
    label: str = "",
) -> tuple[Desc, Desc]:
    """Add up elements along `axis`, with a sum that decays: sum = decay * sum + element.

    Args:
        input: float32 or float16.
        initial_state: the sums before the first element, in the shape of `input` without `axis`; default: zeros.
        decay: the factor of the sum in each step; 1 gives cumulative sums.
        axis: in [0, rank).
        reversed: whether to start from the end.

    Returns: The sums, of the shape of `input`, and the last ones, of the shape without `axis`. Steps compute in float32.
    Raises: an axis out of range, or an initial state of another shape.

    >>> sums, last = leaky_integrator(np.float32([4, 0, 1]), decay=0.5)
    >>> sums.tolist(), last.tolist()
    ([4.0, 2.0, 2.0], 2.0)
    """
    axis = check_axis(input, axis)
    shape = (*input.shape[:axis], *input.shape[axis + 1 :])
    _fits("initial_state", initial_state, shape, "of the shape of input without the axis")
    require(isfinite(decay), f"decay must be finite, got {decay}")
    return input.desc, Desc(input.data_type, shape)


@leaky_integrator.decompose
def _(
    b: Operations, input: Operand, initial_state: Operand | None, decay: float, axis: int, reversed: bool
) -> tuple[Operand, Operand]:
    shape = (*input.shape[:axis], *input.shape[axis + 1 :])
    state = _zeros(b, shape, "float32") if initial_state is None else _cast(b, initial_state, "float32")
    (x,) = operands_of_steps(b, input)
    last, sums = _leak(b, state, x, decay=decay, axis=axis, direction="backward" if reversed else "forward")
    return _cast(b, sums, input.data_type), _cast(b, last, input.data_type)


# Convolutions with a state -------------------------------------------------------------------------------------------


@declare(
    input=Limits(FLOATS, ranks=(3, 3)),
    weight=Limits("input", ranks=(3, 3)),
    bias=Limits("input", ranks=(1, 1)),
    past_state=Limits("input", ranks=(3, 3)),
)
def causal_conv_with_state(
    self: Builder,
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    past_state: Operand | None = None,
    *,
    activation: Literal["none", "silu"] = "none",
    dilation: int = 1,
    label: str = "",
) -> tuple[Desc, Desc]:
    """Convolve each channel with its own filter, which sees the present and the past, and return what the next call needs.

    Args:
        input: float32 or float16 [batches, channels, length].
        weight: [channels, 1, taps], with at least two taps; the last one is that of the present.
        bias: [channels].
        past_state: the elements before the input, [batches, channels, (taps - 1) * dilation]; default: zeros.
        activation: "none", or "silu" for y * sigmoid(y) of each element.
        dilation: the distance between taps.

    Returns: The convolution, of the shape of `input`, and the last elements, of the shape of `past_state`.
    Raises: inconsistent shapes, or a single tap, which needs no state.

    ONNX's CausalConvWithState, and that of ONNX Runtime, as in Mamba and Gated DeltaNet.

    >>> y, state = causal_conv_with_state(np.float32([[[1, 2, 3]]]), np.float32([[[10, 1]]]))
    >>> y.tolist(), state.tolist()
    ([[[1.0, 12.0, 23.0]]], [[[3.0]]])
    """
    batches, channels, _ = input.shape
    taps = weight.shape[2]
    _fits("weight", weight, (channels, 1, taps), "[channels, 1, taps]")
    require(taps > 1, f"weight must have at least 2 taps, got {weight.desc}")
    require(dilation > 0, f"dilation must be greater than 0, got {dilation}")
    _fits("bias", bias, (channels,), "[channels]")
    shape = (batches, channels, (taps - 1) * dilation)
    _fits("past_state", past_state, shape, "[batches, channels, (taps - 1) * dilation]")
    return input.desc, Desc(input.data_type, shape)


@causal_conv_with_state.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    past_state: Operand | None,
    activation: str,
    dilation: int,
) -> tuple[Operand, Operand]:
    (batches, channels, length), taps = input.shape, weight.shape[2]
    before = (taps - 1) * dilation
    past = _zeros(b, (batches, channels, before), input.data_type) if past_state is None else past_state
    if length == 0:
        return input, past
    x = b.concat([past, input], 2)
    image = b.reshape(x, [batches, channels, 1, before + length])
    filter = b.reshape(weight, [channels, 1, 1, taps])
    y = b.reshape(
        b.conv2d(image, filter, bias=bias, groups=channels, dilations=[1, dilation]), [batches, channels, length]
    )
    if activation == "silu":
        y = b.mul(y, b.sigmoid(y))
    return y, b.slice(x, [0, 0, length], [batches, channels, before])
