"""GEMV kernels: products of a matrix and a few vectors. Each element of the matrix is read once, so memory bandwidth limits
these kernels.

One kernel computes several products of the same vectors. Each `Section` has separate workgroups. The products of a section
have equal result shapes, so that one epilogue combines their sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product

from ....core.guards import estimate
from ....core.sizes import Dimension, Size, is_multiple, is_same_size, is_static, may_exceed
from ....expr.gpu import Buffer, Features, GpuKernel, GpuModule, element_for_workgroup, shared_elements
from ....expr.gpu.dialect import Part, Variable
from ....expr.gpu.writing import workgroup_number
from ....expr.ir import Formula, Input, Source
from .elements import ElementReader, ElementWriter
from .epilogue import assemble
from .expansion import BIAS_BITS, QuantizedReader, reader_of
from .problem import Matrix, Problem, has_few_columns
from .section import Section
from .team_sums import TeamSums
from .text import entry, plus, quarter, return_if, stack_offset, statement

# For an NVIDIA H200; `python -m benchmarks webgpu gpu` lists the kernel that each contraction has, and its time.
MAX_THIN_LINES = 12
"""The largest number of lines on the smaller side; with more, tiles are faster."""
MIN_THIN_TERMS = 32
"""Fewest terms of a sum that a team of invocations divides."""
INVOCATIONS = 256
"""Invocations of a workgroup, unless more are needed for enough loads in flight."""
MAX_WIDE_LINES = 2
"""The largest number of lines on the smaller side for larger workgroups, whose invocations have fewer registers."""
PREFETCHED_TERMS = 8
"""Terms that an invocation loads before the first use."""
MIN_WORKGROUPS = 256
"""Fewest workgroups that keep a device busy; with fewer, each workgroup gets fewer lines."""
MAX_COMBINED = 4
"""The largest number of products of an epilogue: each takes registers for sums and loads. An estimate."""
COMPUTING_INVOCATIONS = 512
"""Invocations of a workgroup that computes the few vectors while loading a matrix. Two products of 1 x 8192 with 2048 terms
take 28 us on an H200, and 30 us with 256 or 1024 invocations. Also those of long lines of packed numbers: a language model of
1.1 billion weights of 4 bits takes 0.602 ms a token instead of 0.735, by its products of 1 x 2048 with 8192 terms."""
MAX_SHARED_ELEMENTS = 1 << 13
"""The largest number of elements of the few vectors that each workgroup recomputes, instead of a preceding kernel. An
estimate: while a kernel starts and drains, 256 workgroups read two arrays of this size from the cache."""
MIN_INVOCATIONS = 64
"""Fewest invocations that must fit the workgroup memory."""
MIN_TALL_LINES = 2
"""Fewest vectors for which an invocation computes four lines of the matrix, and so loads and converts the terms of the vectors
once for four lines. With four float16 vectors and one line, issuing the instructions would take an H200 twice as long as
reading the matrix (counted in sm_90 code, not measured)."""
PREFETCH_UNIT = 16
"""Granularity of prefetching, in bytes: `cp.async.bulk.prefetch` takes multiples (PTX)."""
FEW = "few"
"""Variable of the few vectors in workgroup memory, if the workgroup computes them."""


def is_thin(problem: Problem) -> bool:
    """Whether one operand is a matrix, and the other at most `MAX_THIN_LINES` vectors, whose number has no name."""
    sides = isinstance(problem.left, Matrix) and isinstance(problem.right, Matrix) and not problem.is_integer
    if not (sides and problem.taps == 1):
        return False
    is_swapped = has_few_columns(problem)
    if isinstance(problem.right, Matrix) and problem.right.quantized is not None and is_swapped:
        return False  # the few vectors would be quantized
    few = problem.columns if is_swapped else problem.rows
    is_long = isinstance(problem.terms, Size) or problem.terms >= MIN_THIN_TERMS
    return isinstance(few, int) and few <= MAX_THIN_LINES and is_long


@dataclass(frozen=True)
class ThinKernel(GpuKernel):
    """A kernel of sections, which can be extended. Each workgroup computes the few vectors if `before` is their program.

    No kernel writes the inputs `fixed` of `before`.
    """

    sections: tuple[Section, ...] = ()
    before: Formula | None = None
    fixed: tuple[Source, ...] = ()

    def with_buffers(self, buffers: Mapping[Buffer, Buffer]) -> ThinKernel:
        """The same kernel with other arrays; arrays that `buffers` lacks are kept. It must not be merged `after` another."""
        assert self.before is None
        sections = tuple(section.with_buffers(buffers) for section in self.sections)
        bindings = tuple(buffers.get(buffer, buffer) for buffer in self.bindings)
        return replace(self, sections=sections, bindings=bindings)

    def beside(self, other: ThinKernel, features: Features) -> ThinKernel | None:
        """Merge the sections of both kernels; None if their forms differ, or if there are too many buffers."""
        sections = (*self.sections, *other.sections)
        forms = {section.form(features) for section in sections}
        if len(forms) > 1 or self.before is not None or other.before is not None:
            return None
        return _bindable(thin_kernel(sections, features), features)

    def after(self, before: Formula, title: str, features: Features, fixed: Collection[Source]) -> ThinKernel | None:
        """Inline the producer of the few vectors into each workgroup; None if that is impossible or slow.

        No kernel writes the inputs `fixed` of `before`. `title` is the title of `before`.
        """
        size = self.sections[0].few.source.desc.element_count
        is_large = not is_static((size,)) or size > MAX_SHARED_ELEMENTS
        if self.before is not None or is_large or element_for_workgroup(before) is None:
            return None
        writing = _Writing(self.sections, features, before, fixed)
        if writing.invocations < MIN_INVOCATIONS:
            return None
        kernel = writing.kernel()
        return _bindable(replace(kernel, title=f"{title} + {kernel.title}"), features)

    def prefetching(self, array: Input, features: Features) -> ThinKernel | None:
        """The same kernel, which also fetches a constant into the device's cache before it waits for the previous kernel.

        None if the kernel loads nothing before it waits, or if there are too many buffers.
        """
        writing = _Writing(self.sections, features, self.before, self.fixed, prefetched=array)
        if not (writing.is_early and writing.waits):
            return None
        return _bindable(replace(writing.kernel(), title=self.title), features)


def thin_kernel(sections: Sequence[Section], features: Features) -> ThinKernel:
    return _Writing(sections, features).kernel()


def _bindable(kernel: ThinKernel, features: Features) -> ThinKernel | None:
    return kernel if len(kernel.bindings) <= features.max_buffers else None


class _Writing:
    """Writes the text of a kernel.

    The invocations of a team divide the terms of a sum, and then add their partial sums. If lines of the matrix are
    contiguous, an invocation computes four lines as a vector. If terms are contiguous, adjacent invocations read adjacent
    terms, as aligned vectors where possible, of one line or of four.

    Attributes:
        width: lines of a workgroup, or groups of four lines.
        chunks: vector loads of a line before the first use.
        is_early: whether the first chunks are loaded before anything else. Constant matrices load while the preceding kernel
            drains, others while the workgroup computes the few vectors.
        turns: number of blocks of lines that a workgroup computes with the same few vectors.
        bias_bits: the text of the number by which packed numbers become floats.
    """

    def __init__(
        self,
        sections: Sequence[Section],
        features: Features,
        before: Formula | None = None,
        fixed: Collection[Source] = (),
        prefetched: Input | None = None,
    ) -> None:
        self.sections, self.features, self.before, self.fixed = sections, features, before, fixed
        self.prefetched = prefetched
        self.module = GpuModule(features)
        self.first = sections[0]
        self.products = max(len(section.problems) for section in sections)
        self.terms = self.first.problems[0].terms
        self.deep = self.first.deep(features)
        self.every = -(-self.terms // self.deep) if self.deep else 0
        self.ahead = max(1, PREFETCHED_TERMS // self.products)
        self.fours = self.first.quads
        if self.deep:
            # A matrix of long lines of few words has few workgroups.
            is_long = self.first.is_quantized and estimate(self.every) >= COMPUTING_INVOCATIONS
            is_large = before is not None or is_long
            number = min(COMPUTING_INVOCATIONS, features.max_invocations) if is_large else INVOCATIONS
            self.invocations = self._within_memory(number)
            self.width = self._lines_of_deep()
            if self._is_tall():
                self.fours, self.width = True, self.width // 4
        else:
            self.width = next((w for w in (32, 16, 8) if self._workgroups(w) >= MIN_WORKGROUPS), 4)
            self.width = min(self.width, 8) if self.first.along else self.width
        self.groups = [-(-section.units(self.fours) // self.width) for section in sections]
        self.totals = [groups * section.stacks for groups, section in zip(self.groups, sections, strict=True)]
        if not self.deep:
            self.invocations = self._invocations()
        self.team, self.turns, self.is_early = self.invocations // self.width, 1, False
        self.bias_bits = BIAS_BITS
        if self.deep:
            most = self.ahead // 4 if self.fours else self.ahead
            self.chunks = max(1, min(most, estimate(self.every) // self.team))
            is_one_round = is_same_size(self.chunks * self.team, self.every)
            if before is not None and is_one_round and len(sections) == 1:
                self._take_turns()
            # Terms with names may be fewer than those of a round.
            has_rounds = is_static((self.every,)) and self.chunks * self.team < self.every
            self.is_early = is_one_round or (self.waits and has_rounds)
            if not is_one_round or self.turns > 1:
                # Without loops, the constant would only take registers: 56 instead of 40 for products of 1 x 2048 with 2048
                # terms (sm_90), too many to run beside workgroups of other kernels.
                self.bias_bits = features.dialect.in_register(BIAS_BITS)
        room = features.max_shared - self._memory[1] - 4 * self.invocations * (before is not None)
        self.sums = TeamSums(
            self.first,
            features,
            invocations=self.invocations,
            width=self.width,
            fours=self.fours,
            products=self.products,
            deep=self.deep > 0,
            turns=self.turns,
            room=room,
        )
        unsigned = self.module.unsigned
        self.number, self.workgroups = workgroup_number(sum(self.totals), features.max_workgroups, unsigned)
        self.in_fours = bool(self.deep) and self.first.few_in_fours
        width = self.deep or (4 if self.first.quads else 1)
        self.in_words = bool(self.deep) and self.first.is_quantized
        self.few = ElementReader("a", self.first.few.source, features, 4 if self.in_fours else 1)
        numbers = count()
        self.many = [
            [reader_of(f"b{next(numbers)}", side, features, 0 if self.in_words else width) for side in section.many]
            for section in sections
        ]

    @property
    def waits(self) -> bool:
        """Whether a constant matrix can be loaded before the preceding kernel ends."""
        return self.features.dialect.starts_early([sum(self.totals)]) and self.first.is_constant

    def _take_turns(self) -> None:
        """Maximise the turns while enough workgroups are left, so that few workgroups compute the vectors."""
        while is_multiple(self.groups[0], 2) and estimate(self.totals[0]) // 2 >= MIN_WORKGROUPS:
            self.turns, self.groups[0], self.totals[0] = 2 * self.turns, self.groups[0] // 2, self.totals[0] // 2

    def _workgroups(self, width: int) -> int:
        return estimate(sum(section.units(self.first.quads) // width * section.stacks for section in self.sections))

    def _lines_of_deep(self) -> int:
        """Lines of a workgroup with a team of adjacent invocations per line, each with one round of loads if possible.

        Adding the sums of a team would take as many instructions as expanding a round of words, so these take more rounds.
        """
        chunks, team, most = estimate(self.every), 8, max(8, self.invocations // 4)
        while not self.first.is_quantized and team < most and team * self.ahead < chunks:
            team *= 2
        fewest = max(MIN_WORKGROUPS * INVOCATIONS // self.invocations, min(MIN_WORKGROUPS, self.features.units))
        while team < min(most, chunks) and self._workgroups(self.invocations // team) < fewest:
            team *= 2
        return self.invocations // team

    def _is_tall(self) -> bool:
        """Whether an invocation computes four lines, in teams of four times the size."""
        if self.first.count < MIN_TALL_LINES and not self.first.is_quantized:
            return False
        self.fours = True
        has_room = self._within_memory(self.invocations) == self.invocations
        self.fours = False
        team = 4 * self.invocations // self.width
        whole = self.width % 4 == 0 and all(
            section.problems[0].is_multiple(section.lines, 4) for section in self.sections
        )
        return has_room and whole and team <= estimate(self.every)

    @property
    def _part_bytes(self) -> int:
        """Bytes of workgroup memory for an invocation's partial sums of one vector."""
        return (16 if self.fours else 4) * self.products

    @property
    def _memory(self) -> tuple[int, int]:
        """Bytes of workgroup memory per invocation, and in addition."""
        if self.before is None:
            return self._part_bytes, 0
        # 4 bytes per invocation for the reductions of the producer, and 4 bytes for each of its elements.
        return self._part_bytes + 4, 4 * self.first.few.source.desc.element_count

    def _within_memory(self, number: int) -> int:
        per_invocation, whole = self._memory
        while number > 1 and number * per_invocation + whole > self.features.max_shared:
            number //= 2
        return number

    def _invocations(self) -> int:
        """The most invocations of a workgroup that each have a full round of loads, and that the device runs concurrently."""
        features, number = self.features, self._within_memory(INVOCATIONS)
        is_busy, terms = estimate(sum(self.totals)) > 2 * features.units, estimate(self.terms)
        if self.first.count > MAX_WIDE_LINES or features.is_software or is_busy:
            return number
        while 2 * number <= features.max_invocations and self._within_memory(2 * number) == 2 * number:
            if 2 * number // self.width * PREFETCHED_TERMS > terms:
                break
            number *= 2
        return number

    def kernel(self) -> ThinKernel:
        module, parts, writers = self.module, list[Part](), list[ElementWriter]()
        for s, section in enumerate(self.sections):
            vectors, loads = section.vectors(self.features), self.sums.early_loads(section)
            functions, writer = section.end.functions(module, self.features, vectors, _suffix(s), loads)
            parts += functions
            writers.append(writer)
        parts += self.sums.memory
        readers = [reader for readers in self.many for reader in readers]
        computed = list[str](), list[str]()
        if self.before is None:
            readers = [self.few, *readers]
        else:
            element = element_for_workgroup(self.before)
            assert element is not None
            size = self.first.few.source.desc.element_count
            at, type = "{0}[{1}]", f"array<f32, {size}>"
            if self.in_fours:
                at, type = "{0}[{1} / 4u][{1} % 4u]", f"array<vec4<f32>, {size // 4}>"
            place = partial(at.format, FEW)
            computed = shared_elements(module, *element, place, self.invocations, self.fixed)
            parts.append(Variable(FEW, type))
        parts.append(entry(self.invocations, list(self._lines(module, computed))))
        sizes = "; ".join(section.comment(module) for section in self.sections)
        title = " | ".join(dict.fromkeys(section.title for section in self.sections))
        lines = "fours of lines" if self.fours else "lines"
        vectors_of_terms = f" in vectors of {self.deep}" if self.deep else ""
        times = f" {self.turns} times" if self.turns > 1 else ""
        comment = f"{sizes}; {self.width} {lines}{times} for a workgroup, whose invocations divide the terms{vectors_of_terms}"
        kernel = assemble(title, comment, readers, writers, module, parts, self.workgroups)
        fields = {name: getattr(kernel, name) for name in GpuKernel.__dataclass_fields__}
        return ThinKernel(**fields, sections=tuple(self.sections), before=self.before, fixed=tuple(self.fixed))

    def _lines(self, module: GpuModule, computed: tuple[list[str], list[str]]) -> Iterator[str]:
        total, unsigned = sum(self.totals), module.unsigned
        start: Dimension = 0
        yield f"let number = {self.number};"
        if not is_same_size(self.workgroups[0] * self.workgroups[1], total):
            yield from return_if(f"number >= {unsigned(total)}")
        if len(self.sections) == 1:
            yield from self._section(module, 0, "number", computed)
            return
        for s, groups in enumerate(self.totals):
            condition = f"if (number < {unsigned(start + groups)}) " if s + 1 < len(self.totals) else ""
            yield f"{'} else ' if s else ''}{condition}{{"
            number = f"(number - {unsigned(start)})" if s else "number"
            yield from (f"    {line}" for line in self._section(module, s, number, computed))
            start += groups
        yield "}"

    def _section(self, module: GpuModule, s: int, number: str, computed: tuple[list[str], list[str]]) -> Iterator[str]:
        """The statements of a section; `number` is the workgroup's index within, `computed` computes the few vectors."""
        early, late = computed
        section, team, stacks = self.sections[s], self.team, self.sections[s].stacks
        line, part = ("lane / {t}u", "lane % {t}u") if section.along else ("lane % {w}u", "lane / {w}u")
        groups = module.divisor(self.groups[s]) if may_exceed(stacks, 1) else ""
        stack, block = ("stack", f"{number} % {groups}") if groups else ("0u", number)
        few_start, declared = stack_offset(section.few, stack, stacks, module), "let"
        if groups:
            yield f"let stack = {number} / {groups};"
        if self.turns > 1:
            yield f"var block = {block} * {self.turns}u;"
            block, declared = "block", "var"
        yield f"{declared} unit = {block} * {self.width}u + {line.format(t=team, w=self.width)};"
        yield f"let part = {part.format(t=team, w=self.width)};"
        for name, text in self._starts(s, "unit").items():
            yield f"{declared} {name} = {text};"
        yield f"let few_start = {quarter(few_start, 4 if self.in_fours else 1)};"
        yield from early
        if self.is_early:
            is_last = self.turns == 1 and estimate(self.every) < 2 * self.chunks * team
            yield from self._load(s, "part", self.chunks, "let" if is_last else "var")
            if self.waits:
                yield from self._prefetch()
                yield f"{self.features.dialect.await_previous}();"
        loads = self.sums.early_loads(section)
        yield from self.sums.reads(section, loads, module, stack, block)
        yield from late
        lines = [*self._sums(s), *self.sums.lines(section, f"put{_suffix(s)}", stack, block, len(loads), module)]
        if self.turns == 1:
            yield from lines
            return
        lines += ["block++;", f"unit += {self.width}u;"]
        yield from statement(f"for (var turn = 0u; turn < {self.turns}u; turn++)", lines)

    def _prefetch(self) -> Iterator[str]:
        """Fetch one part of the array for each workgroup, after the workgroup's own loads, which are needed first."""
        if self.prefetched is None:
            return
        self.module.read(self.prefetched)
        desc, unit = self.prefetched.desc, PREFETCH_UNIT
        total = desc.byte_length // unit * unit
        part = -(-total // (estimate(sum(self.totals)) * unit)) * unit
        place = f"{self.module.names[self.prefetched]}[number * {part * desc.element_count // desc.byte_length}u]"
        call = f"{self.features.dialect.prefetch}({place}, min({part}u, {total}u - number * {part}u));"
        yield from statement(f"if (lane == 0u && number * {part}u < {total}u)", [call])

    def _starts(self, s: int, unit: str) -> dict[str, str]:
        """The variables that depend on the line of the matrix: its offset, and its index if blocks of lines have a scale."""
        starts = {"start": self._start(s, unit)}
        if self.in_words:
            number = f"min({unit}, {self.module.unsigned(self.sections[s].units(self.fours) - 1)})"
            starts["line"] = f"{number} * 4u" if self.fours else number
        return starts

    def _start(self, s: int, unit: str) -> str:
        """The offset of a line of the matrix, or of a group of four lines."""
        section = self.sections[s]
        many, units = section.many[0], section.units(self.fours)
        unsigned = self.module.unsigned
        offset = stack_offset(many, "stack", section.stacks, self.module)
        start = f"min({unit}, {unsigned(units - 1)}) * {unsigned((4 if self.fours else 1) * many.stride)}"
        start = start if offset == "0u" else f"{offset} + {start}"
        return f"({start}) / {self.deep}u" if self.deep else quarter(start, 4 if section.quads else 1)

    def _sums(self, s: int) -> Iterator[str]:
        vector, products = "vec4<f32>" if self.fours or self.deep else "f32", range(len(self.sections[s].problems))
        yield from (f"var sum_{k}_{j} = {vector}();" for k in range(self.first.count) for j in products)
        yield from self._deep_loop(s) if self.deep else self._loop(s)

    def _loop(self, s: int) -> Iterator[str]:
        section, readers, team = self.sections[s], self.many[s], self.team
        few, many, terms = section.few, section.many[0], self.terms
        ahead = self.ahead
        whole = terms // (ahead * team) * ahead * team
        step, width = (many.step // 4, 4) if section.quads else (many.step, 1)
        unsigned = self.module.unsigned
        for begin, end, loads in ((0, whole, ahead), (whole, terms, 1)):
            if is_same_size(begin, end):
                continue
            at, lines = [f"(term + {c * team}u)" if c else "term" for c in range(loads)], list[str]()
            for c in range(loads):
                for j, reader in enumerate(readers):
                    lines.append(f"let m{c}_{j} = {reader.load(f'start + {at[c]} * {unsigned(step)}', width)};")
            for k in range(section.count):
                for c in range(loads):
                    of_vector, of_term = unsigned(k * few.stride), unsigned(few.step)
                    value = self._few_load(f"few_start + {of_vector} + {at[c]} * {of_term}", 1)
                    lines.append(f"let f{c}_{k} = {f'vec4<f32>({value})' if section.quads else value};")
                    lines += (f"sum_{k}_{j} = fma(f{c}_{k}, m{c}_{j}, sum_{k}_{j});" for j in range(len(readers)))
            header = f"for (var term = {unsigned(begin)} + part; term < {unsigned(end)}; term += {loads * team}u)"
            yield from statement(header, lines)

    def _deep_loop(self, s: int) -> Iterator[str]:
        count, step = self.every, self.chunks * self.team
        whole, unsigned = count // step * step, self.module.unsigned
        if self.is_early:
            yield from self._early_rounds(s, whole, step)
        for begin, end, loads in ((whole if self.is_early else 0, whole, self.chunks), (whole, count, 1)):
            if not is_same_size(begin, end):
                steps = f"chunk < {unsigned(end)}; chunk += {loads * self.team}u"
                header = f"for (var chunk = {unsigned(begin)} + part; {steps})"
                yield from statement(
                    header, [*self._load(s, "chunk", loads, "let"), *self._multiply(s, "chunk", loads)]
                )

    def _early_rounds(self, s: int, whole: int, step: int) -> Iterator[str]:
        """The software-pipelined rounds: each multiplies loaded chunks and loads the chunks of the next round."""
        first, after, rest = "part", list[str](), ""
        if whole > step:
            first, rest = "chunk", f"chunk < {whole - step}u"
            after = list(self._load(s, f"(chunk + {step}u)", self.chunks))
        elif self.turns > 1:
            rest = f"turn < {self.turns - 1}u"
            starts = self._starts(s, f"unit + {self.width}u").items()
            after = [*(f"{name} = {text};" for name, text in starts), *self._load(s, "part", self.chunks)]
        lines = [*self._multiply(s, first, self.chunks)]
        if rest:
            lines += statement(f"if ({rest})", after)
        if whole == step:
            yield from lines
            return
        yield from self.features.dialect.unroll_hint(1)  # more would take registers
        yield from statement(f"for (var chunk = part; chunk < {whole}u; chunk += {step}u)", lines)

    def _chunk_names(self, s: int, count: int) -> Iterator[tuple[str, int, int, int]]:
        """The variables of matrix loads: (name, chunk, product, line)."""
        lines = range(4 if self.fours else 1)
        for c, j, n in product(range(count), range(len(self.many[s])), lines):
            yield f"m{c}_{j}_{n}", c, j, n

    def _chunk(self, first: str, c: int) -> str:
        return f"({first} + {c * self.team}u)" if c else first

    def _load(self, s: int, first: str, count: int, declared: str = "") -> Iterator[str]:
        stride = self.sections[s].many[0].stride // self.deep
        for name, c, j, n in self._chunk_names(s, count):
            reader, chunk = self.many[s][j], self._chunk(first, c)
            # The constants become part of the loads, whose address is computed once.
            place = self._plus(plus(self.features.dialect.wide(f"start + {first}"), c * self.team), n * stride)
            values = {name: reader.load(place, self.deep)}
            if isinstance(reader, QuantizedReader):
                values = {name: reader.word(place)}
                if upper := reader.upper_of_word(self._plus(f"start + {chunk}", n * stride)):
                    values[f"{name}_upper"] = upper
                if reader.by_word:
                    has_own = reader.quantized.block_lines == 1
                    line, after = ("line", n) if has_own else (self._line(reader, n), None)
                    block = reader.block_values(line, chunk, self.deep, after)
                    values |= {f"{name}_{part}": text for part, text in block.items()}
            for variable, value in values.items():
                yield f"{declared} {variable} = {value};".lstrip()

    def _plus(self, text: str, number: Dimension) -> str:
        return plus(text, number) if isinstance(number, int) else f"{text} + {self.module.unsigned(number)}"

    def _line(self, reader: QuantizedReader, n: int) -> str:
        """The index of line `n` of an invocation, or of its first line if all have the same blocks."""
        is_same = self.fours and reader.quantized.block_lines % 4 == 0
        return "line" if is_same else plus("line", n)

    def _multiply(self, s: int, first: str, count: int) -> Iterator[str]:
        if self.in_words:
            for c in range(count):
                yield from self._multiply_words(s, self._chunk(first, c), c)
            return
        section, readers = self.sections[s], self.many[s]
        for name, c, j, n in self._chunk_names(s, count):
            for h, four in enumerate(readers[j].fours(name)):
                yield f"let w{c}_{j}_{n}_{h} = {four};"
        for k in range(section.count):
            for c in range(count):
                for h in range(self.deep // 4):
                    few = f"f{c}_{k}_{h}"
                    yield f"let {few} = {self._four(section.few, k, self._chunk(first, c), h)};"
                    for j in range(len(readers)):
                        many = [f"w{c}_{j}_{n}_{h}" for n in range(4 if self.fours else 1)]
                        yield from self._add(f"sum_{k}_{j}", few, many)

    def _multiply_words(self, s: int, chunk: str, c: int) -> Iterator[str]:
        """Multiply the words of a chunk of each line.

        If all numbers of a word are in one block, its scale multiplies the sum of the products of a word. The numbers then
        have different factors, the inverse of which multiply the terms of the vectors, once for all lines.
        """
        section, readers, halves = self.sections[s], self.many[s], range(self.deep // 4)
        reader, lines = readers[0], range(4 if self.fours else 1)
        assert isinstance(reader, QuantizedReader)
        blocks = reader.names if reader.by_word else []
        for j, n in product(range(len(readers)), lines):
            name, expanded, other = f"m{c}_{j}_{n}", f"w{c}_{j}_{n}", readers[j]
            assert isinstance(other, QuantizedReader)
            if other.by_word:
                yield from other.biased(name, expanded, {part: f"{name}_{part}" for part in blocks}, self.bias_bits)
            else:
                last = self.terms - 1 if self.terms % self.deep else None
                yield from other.real(name, expanded, self._line(other, n), f"{chunk} * {self.deep}u", last)
        for k in range(section.count):
            few = [f"f{c}_{k}_{h}" for h in halves]
            for h in halves:
                yield f"let {few[h]} = {self._four(section.few, k, chunk, h)};"
            if "minimum" in blocks:
                yield f"let t{c}_{k} = {self._total(few)};"
            if reader.by_word:
                for h in halves:
                    yield f"let g{c}_{k}_{h} = {_divide_terms(few[h], reader.powers(h))};"
                few = [f"g{c}_{k}_{h}" for h in halves]
            for j, n in product(range(len(readers)), lines):
                total = f"sum_{k}_{j}.{'xyzw'[n]}" if self.fours else f"sum_{k}_{j}"
                numbers = [f"w{c}_{j}_{n}_{h}" for h in halves]
                if not reader.by_word:
                    yield f"{total} = {self._products(few, numbers, total)};"
                    continue
                factors = {part: f"m{c}_{j}_{n}_{part}" for part in blocks}
                if not self.fours:
                    factors = {part: f"vec4<f32>({text})" for part, text in factors.items()}
                value = total
                if "minimum" in factors:
                    value = f"fma({factors['minimum']}, t{c}_{k}, {value})"
                yield f"{total} = fma({factors['scale']}, {self._products(few, numbers)}, {value});"

    def _products(self, few: Sequence[str], many: Sequence[str], total: str = "") -> str:
        """The sum of the products of a word: a number, or of each fourth product if an invocation computes one line."""
        if not self.fours:
            value = total or "vec4<f32>()"
            for a, b in zip(few, many, strict=True):
                value = f"fma({a}, {b}, {value})"
            return value
        value = total
        for a, b in zip(few, many, strict=True):
            for e in "xyzw":
                value = f"fma({a}.{e}, {b}.{e}, {value})" if value else f"{a}.{e} * {b}.{e}"
        return value

    def _total(self, few: Sequence[str]) -> str:
        """The sum of the terms of a chunk, in the form that `_products` returns."""
        if not self.fours:
            return " + ".join(few)
        return " + ".join(f"({four}.x + {four}.y) + ({four}.z + {four}.w)" for four in few)

    def _add(self, total: str, few: str, many: Sequence[str]) -> Iterator[str]:
        """Add products of four terms: to one sum per line, or to the four components of a single line's sum."""
        if not self.fours:
            yield f"{total} = fma({few}, {many[0]}, {total});"
            return
        for part, line in zip("xyzw", many, strict=True):
            value = f"{total}.{part}"
            for term in "xyzw":
                value = f"fma({few}.{term}, {line}.{term}, {value})"
            yield f"{total}.{part} = {value};"

    def _four(self, few: Matrix, k: int, chunk: str, half: int) -> str:
        """Four terms of vector `k`: half `half` of a chunk."""
        first = f"{chunk} * {self.deep}u"
        if self.in_fours:
            fours = f"few_start + {self.module.unsigned(k * few.stride // 4 + half)} + {chunk} * {self.deep // 4}u"
            return self._existing(self._few_load(fours, 4), plus(first, 4 * half), "vec4<f32>()")
        start, unsigned = k * few.stride + 4 * half * few.step, self.module.unsigned
        of_chunk = unsigned(self.deep * few.step)
        places = [f"few_start + {unsigned(start + e * few.step)} + {chunk} * {of_chunk}" for e in range(4)]
        values = (
            self._existing(self._few_load(place, 1), plus(first, 4 * half + e), "0.0f")
            for e, place in enumerate(places)
        )
        return f"vec4<f32>({', '.join(values)})"

    def _existing(self, value: str, term: str, zero: str) -> str:
        """A term of a vector, or zero beyond the last term: the last word of a line may have more numbers."""
        return (
            value
            if self.first.problems[0].is_multiple(self.terms, self.deep)
            else f"select({zero}, {value}, {term} < {self.module.unsigned(self.terms)})"
        )

    def _few_load(self, place: str, width: int) -> str:
        return self.few.load(place, width) if self.before is None else f"{FEW}[{place}]"


def _divide_terms(vector: str, powers: Sequence[float]) -> str:
    """Four terms divided by powers of two, which is exact."""
    parts = (
        f"{vector}.{e}" + (f" * {1 / power}f" if power > 1 else "") for e, power in zip("xyzw", powers, strict=True)
    )
    return f"vec4<f32>({', '.join(parts)})"


def _suffix(number: int) -> str:
    return f"_{number}" if number else ""
