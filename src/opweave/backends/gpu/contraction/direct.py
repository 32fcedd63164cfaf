"""Kernels for contractions that tiles do not suit: few lines on one side, or few output channels.

Both read each element of the larger operand about once, and are limited by memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....expr.gpu import Features
from ....expr.gpu.dialect import Part, Variable
from ....expr.gpu.writing import numbered
from .elements import Reader
from .problem import Matrix, Problem, Window, is_spread
from .text import entry, quarter, stack_offset, window_start, window_tap

# For an NVIDIA H200; `python -m benchmarks webgpu gpu` lists the kernel that each contraction has, and its time.
MAX_THIN_LINES = 12
"""Maximum lines on the smaller side; with more, tiles are faster."""
MAX_NARROW_CHANNELS = 8
"""Maximum output channels of a group; with more, tiles are faster."""
MAX_UNGROUPED_CHANNELS = 4
"""Maximum output channels if there is a single group, whose filter all invocations read."""
INVOCATIONS = 256
"""Invocations of a workgroup, unless more of them are needed to have enough loads under way."""
MAX_WIDE_LINES = 2
"""Maximum lines on the smaller side for workgroups with more invocations, which have fewer registers each."""
PREFETCHED_TERMS = 8
"""Terms that an invocation loads before it uses the first of them."""
MIN_WORKGROUPS = 256
"""Workgroups that keep a device busy; with fewer, each gets fewer lines."""
MAX_SERIAL_CHANNELS = 1 << 14
"""Maximum channels that an invocation goes through; with more, tiles divide them, and some devices end longer loops."""
MAX_UNROLLED_PRODUCTS = 256
"""Maximum products of an invocation that are unrolled; beyond, there is a loop over channels."""
MIN_UNGROUPED_POSITIONS = 1 << 17
"""Positions of a single group that keep a device busy with one invocation each."""


def is_thin(problem: Problem) -> bool:
    """Whether one operand is a matrix, and the other one or a few vectors."""
    sides = isinstance(problem.left, Matrix) and isinstance(problem.right, Matrix)
    return sides and problem.taps == 1 and min(problem.rows, problem.columns) <= MAX_THIN_LINES and problem.terms >= 32


def is_narrow(problem: Problem) -> bool:
    """Whether a convolution has so few output channels that tiles would be mostly empty."""
    if problem.layout.kind == "matrix" or problem.layout.phases > 1:
        return False
    outputs = problem.outputs
    positions = problem.rows * problem.columns // outputs
    if problem.taps * outputs > MAX_UNROLLED_PRODUCTS or problem.channels > MAX_SERIAL_CHANNELS:
        return False
    if problem.stacks > 1:
        return outputs <= MAX_NARROW_CHANNELS
    return outputs <= MAX_UNGROUPED_CHANNELS and positions >= MIN_UNGROUPED_POSITIONS and not is_spread(problem)


class Thin:
    """Products of a matrix and a few vectors: invocations share the terms of each sum, and add up their parts.

    If the lines of the matrix are contiguous, an invocation computes four lines as a vector; if terms are, adjacent
    invocations read adjacent terms of one line.

    Attributes:
        swapped: whether the few vectors are columns.
        quads: whether an invocation computes four lines.
        vectors: whether four results are written at a time.
        width: lines, or groups of four lines, of a workgroup.
        workgroups: the dispatch size.
    """

    def __init__(self, problem: Problem, a: Reader, b: Reader, features: Features) -> None:
        self.problem = problem
        self.swapped = problem.columns < problem.rows
        few, many = (problem.right, problem.left) if self.swapped else (problem.left, problem.right)
        assert isinstance(few, Matrix)
        assert isinstance(many, Matrix)
        self.few, self.many = few, many
        self.few_reader, self.many_reader = (b, a) if self.swapped else (a, b)
        self.count, self.lines = min(problem.rows, problem.columns), max(problem.rows, problem.columns)
        whole = many.step % 4 == 0 and all(stride % 4 == 0 for _, stride in many.stack)
        self.quads = many.stride == 1 and many.lines % 4 == 0 and whole
        self.vectors = self.quads and not self.swapped
        units = -(-self.lines // 4) if self.quads else self.lines
        self.width = next((w for w in (32, 16, 8) if units // w * problem.stacks >= MIN_WORKGROUPS), 4)
        if not self.quads and many.step == 1:
            self.width = min(self.width, 8)
        self.units, self.groups = units, -(-units // self.width)
        self.invocations = self._invocations(features)
        self.number, self.workgroups = numbered(self.groups * problem.stacks)

    @property
    def comment(self) -> str:
        """How the work is divided."""
        lines = "fours of lines" if self.quads else "lines"
        return f"{self.width} {lines} for a workgroup, whose invocations divide the terms"

    def parts(self) -> list[Part]:
        """Memory of the workgroup, and the entry point."""
        teams = self.invocations // self.width
        vector = "vec4<f32>" if self.quads else "f32"
        self.few_reader.width, self.many_reader.width = 1, 4 if self.quads else 1
        along = not self.quads and self.many.step == 1  # adjacent invocations read adjacent terms
        line, part = ("lane / {t}u", "lane % {t}u") if along else ("lane % {w}u", "lane / {w}u")
        stacks = self.problem.stacks
        stack, group = ("stack", f"{self.number} % {self.groups}u") if stacks > 1 else ("0u", self.number)
        offsets = [stack_offset(m, stack, stacks) for m in (self.many, self.few)]
        multiple = 4 if self.quads else self.many.stride
        start = f"min(unit, {self.units - 1}u) * {multiple}u"
        start = start if offsets[0] == "0u" else f"{offsets[0]} + {start}"
        lines = [
            *([f"let stack = {self.number} / {self.groups}u;"] if stacks > 1 else []),
            f"let unit = {group} * {self.width}u + {line.format(t=teams, w=self.width)};",
            f"let part = {part.format(t=teams, w=self.width)};",
            f"let start = {quarter(start, 4 if self.quads else 1)};",
            f"let few_start = {offsets[1]};",
            *(f"var sum_{k} = {vector}();" for k in range(self.count)),
            *self._loop(teams),
        ]
        for k in range(self.count):
            lines += [f"parts[lane] = sum_{k};", "workgroupBarrier();"]
            half = teams // 2
            while half:
                distance = half if along else half * self.width
                add = f"parts[lane] += parts[lane + {distance}u];"
                lines += [f"if (part < {half}u) {{", f"    {add}", "}", "workgroupBarrier();"]
                half //= 2
            lines += [f"if (part == 0u && unit < {self.units}u) {{", *self._puts(k, stack), "}"]
            if k + 1 < self.count:
                lines.append("workgroupBarrier();")
        return [Variable("parts", f"array<{vector}, {self.invocations}>"), entry(self.invocations, lines)]

    def _invocations(self, features: Features) -> int:
        """As many as have a full round of loads each, and as the device runs at the same time."""
        count = INVOCATIONS
        if (
            self.count > MAX_WIDE_LINES
            or features.is_software
            or self.groups * self.problem.stacks > 2 * features.units
        ):
            return count
        size = 16 if self.quads else 4
        while 2 * count <= features.max_invocations and 2 * count * size <= features.max_shared:
            if 2 * count // self.width * PREFETCHED_TERMS > self.problem.terms:
                break
            count *= 2
        return count

    def _loop(self, teams: int) -> Iterator[str]:
        """The products, with several loads in flight before they are used."""
        terms = self.problem.terms
        whole = terms // (PREFETCHED_TERMS * teams) * PREFETCHED_TERMS * teams
        step = self.many.step // 4 if self.quads else self.many.step
        loops = ((0, whole, PREFETCHED_TERMS), (whole, terms, 1))
        for begin, end, count in loops:
            if begin == end:
                continue
            yield f"for (var term = {begin}u + part; term < {end}u; term += {count * teams}u) {{"
            at = [f"(term + {c * teams}u)" if c else "term" for c in range(count)]
            for c in range(count):
                load = self.many_reader.load(f"start + {at[c]} * {step}u", 4 if self.quads else 1)
                yield f"    let m{c} = {load};"
            for k in range(self.count):
                for c in range(count):
                    where = f"few_start + {k * self.few.stride}u + {at[c]} * {self.few.step}u"
                    factor = self.few_reader.load(where, 1)
                    factor = f"vec4<f32>({factor})" if self.quads else factor
                    yield f"    sum_{k} = fma({factor}, m{c}, sum_{k});"
            yield "}"

    def _puts(self, k: int, stack: str) -> list[str]:
        if self.vectors:
            return [f"    put({stack}, {k}u, unit * 4u, parts[lane]);"]
        if not self.quads:
            where = f"unit, {k}u" if self.swapped else f"{k}u, unit"
            return [f"    put({stack}, {where}, parts[lane]);"]
        values = "xyzw"
        return [f"    put({stack}, unit * 4u + {c}u, {k}u, parts[lane].{values[c]});" for c in range(4)]


def narrow(problem: Problem, a: Reader, b: Reader) -> tuple[list[Part], tuple[int, int, int]]:
    """The entry point that computes the output channels of a group at one position, and its dispatch size.

    If each channel is a group, and channels are contiguous, an invocation computes four groups.
    """
    layout, nchw = problem.layout, problem.rows_are_channels
    image, filter, outputs, pixels = problem.image, problem.filter, problem.outputs, layout.pixels
    x, w = (b, a) if nchw else (a, b)
    width = 4 if not nchw and _in_vectors(problem, image, filter) else 1
    x.width = w.width = width
    units = problem.stacks // width
    total = layout.shape[0] * units * pixels
    number, groups = numbered(-(-total // INVOCATIONS))
    if nchw:
        stack, pixel, batch = f"at / {pixels}u % {units}u", f"at % {pixels}u", f"at / {pixels * units}u"
    else:
        stack, pixel, batch = f"at % {units}u", f"at / {units}u % {pixels}u", f"at / {units * pixels}u"
    loop = problem.channels * problem.taps * outputs > MAX_UNROLLED_PRODUCTS
    each = [None] if loop else range(problem.channels)
    products = [line for c in each for line in _taps(problem, x, w, c)]
    lines = [
        f"let at = {number} * {INVOCATIONS}u + lane;",
        f"if (at >= {total}u) {{",
        "    return;",
        "}",
        f"let stack = {stack}{f' * {width}u' if width > 1 else ''};",
        f"let pixel = {pixel};",
        f"let batch = {batch};",
        f"let weights = {stack_offset(filter, 'stack', problem.stacks)};",
        *_origin(image, problem, layout.size[1]),
        *(f"var sum_{k} = {'vec4<f32>()' if width > 1 else '0.0f'};" for k in range(outputs)),
        *([f"for (var c = 0u; c < {problem.channels}u; c++) {{"] if loop else []),
        *(("    " if loop else "") + line for line in products),
        *(["}"] if loop else []),
        *_put_groups(f"batch * {pixels}u + pixel", nchw, outputs, width),
    ]
    return [entry(INVOCATIONS, lines)], groups


def _in_vectors(problem: Problem, image: Matrix | Window, filter: Matrix) -> bool:
    """Whether four groups, of one channel each, are contiguous in the image and in the filter."""
    single = problem.columns == problem.channels == 1 and problem.stacks % 4 == 0
    strides = isinstance(image, Window) and image.stack[0][1] == filter.stack[0][1] == 1
    return single and strides and filter.tap % 4 == 0


def _put_groups(position: str, nchw: bool, outputs: int, width: int) -> list[str]:
    if width > 1:
        return [f"put(stack + {k}u, {position}, 0u, sum_0.{c});" for k, c in enumerate("xyzw")]
    return [f"put(stack, {f'{k}u, {position}' if nchw else f'{position}, {k}u'}, sum_{k});" for k in range(outputs)]


def _origin(image: Matrix | Window, problem: Problem, width: int) -> list[str]:
    """Where the window of a position starts."""
    offset = stack_offset(image, "stack", problem.stacks)
    if isinstance(image, Matrix):
        return [f"let origin = {offset} + (batch * {problem.layout.pixels}u + pixel) * {image.stride}u;"]
    start = window_start(image, "window", f"pixel / {width}u", f"pixel % {width}u")
    return [*start, f"let origin = i32(batch * {image.batch}u + {offset});"]


def _taps(problem: Problem, x: Reader, w: Reader, channel: int | None) -> Iterator[str]:
    """The products of a channel, or of the loop variable `c` if None."""
    image, filter = problem.image, problem.filter
    number = "c" if channel is None else f"{channel}u"
    for tap in range(problem.taps):
        lines: list[str] = []
        conditions: list[str] = []
        at = f"origin + {number} * {image.step}u"
        if isinstance(image, Window):
            y, x_ = (str(n * step) for n, step in zip(divmod(tap, image.kernel[1]), image.dilations, strict=True))
            lines, conditions, offset = window_tap(image, "window", "tap", y, x_)
            at = f"u32(origin + {offset}) + {number} * {image.step}u"
        yield "{"
        yield from (f"    {line}" for line in lines)
        yield f"    if ({' && '.join(conditions)}) {{" if conditions else "    {"
        yield f"        let value = {x.load(quarter(at, x.width), x.width)};"
        for k in range(problem.outputs):
            at = f"weights + {number} * {filter.step}u + {tap * filter.tap + k * filter.stride}u"
            yield f"        sum_{k} = fma(value, {w.load(quarter(at, w.width), w.width)}, sum_{k});"
        yield "    }"
        yield "}"
