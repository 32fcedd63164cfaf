"""Evaluate expressions with NumPy: used without the extra `halide`, and as the reference for compiled kernels.

Each array of a program becomes a list of instructions, one NumPy call each. Dimensions are the axes of the result
followed by the reduction variables, of size 1 where a value does not depend on one. Loads at affine positions are
views, temporaries are reused, and results are written in place. Large results are computed in blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from .. import memory
from ..core.dtypes import FLOATS
from ..core.graph import Desc
from ..support.errors import OperationError, require
from ..support.records import record
from . import elements
from .elements import Array, Precision, Rule
from .ir import Bitcast, Call, Cast, Const, Expr, Formula, Index, Load, Reduce, Source, walk
from .loads import Block, gather_rule, is_view, view_rule

BLOCK_BYTES = 2**18
"""Size of all temporaries of a block, in bytes, so that they stay in the cache (a typical L2). One position of the
result may need more.
"""


def evaluate(
    program: Formula, inputs: Sequence[Array], outputs: Sequence[Array], *, precision: Precision = "float32"
) -> None:
    """Compute `program` with NumPy. If a check of the program fails, outputs are not modified.

    Precision "float64" computes floats in float64, for comparisons; float outputs must then be float64, and inputs may be.
    """
    Evaluator(program, precision).bind(inputs, outputs)()


class Evaluator:
    """A program prepared for evaluation; threads may share it."""

    def __init__(self, program: Formula, precision: Precision = "float32") -> None:
        self.program, self.precision = program, precision
        self.stored = [(s, _EvaluationStage(s.axes, (s.body,), precision)) for s in program.stored]
        self.checks = []
        for check in program.checks:
            axes = tuple(sorted(check.condition.free, key=lambda v: v.serial))
            self.checks.append((check, _EvaluationStage(axes, (check.condition,), precision)))
        self.results = []
        for axes in dict.fromkeys(output.axes for output in program.outputs):
            numbers = [k for k, output in enumerate(program.outputs) if output.axes == axes]
            bodies = tuple(program.outputs[k].body for k in numbers)
            self.results.append((numbers, _EvaluationStage(axes, bodies, precision)))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Return a function that computes `outputs` from `inputs`."""
        program = self.program
        check_arrays(program.name, interface_of(program), inputs, outputs, self.precision)
        inputs, outputs = tuple(inputs), tuple(outputs)
        if not overlap(program, inputs, outputs):
            return lambda: self._run(inputs, outputs)
        results = [np.empty_like(output) for output in outputs]
        return through_copies(lambda: self._run(inputs, results), results, outputs)

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            arrays: dict[Source, Array] = {
                source: np.asarray(array, order="C") for source, array in zip(self.program.inputs, inputs, strict=True)
            }
            for source, stage in self.stored:
                dtype = self.precision if source.desc.data_type == "float32" else source.desc.data_type
                arrays[source] = array = np.empty(source.desc.shape, dtype)
                stage.run(arrays, (array,))
            for check, stage in self.checks:
                holds = np.empty([axis.extent for axis in stage.axes], np.uint8)
                stage.run(arrays, (holds,))
                if not holds.all():
                    got = (
                        ""
                        if check.value is None
                        else f", got {self._first_value(check.value, stage.axes, holds, arrays)}"
                    )
                    raise OperationError(f"{self.program.name}: {check.message}{got}")
            for numbers, stage in self.results:
                stage.run(arrays, [outputs[k] for k in numbers])

    def _first_value(self, value: Expr, axes: tuple[Index, ...], holds: Array, arrays: Mapping[Source, Array]) -> int:
        values = np.empty(holds.shape, np.uint64 if value.type == "uint64" else np.int64)
        wide = value if value.type in ("int64", "uint64") else Cast(value, "int64")
        _EvaluationStage(axes, (wide,), self.precision).run(arrays, (values,))
        return int(values[holds == 0][0])


def through_copies(run: Callable[[], None], results: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
    """Return a function that calls `run`, then copies `results` to `outputs`; for outputs that overlap inputs."""

    def run_and_copy() -> None:
        run()
        for output, result in zip(outputs, results, strict=True):
            memory.copy(output, result, memory.OVER_INPUT)

    return run_and_copy


Interface: TypeAlias = tuple[Sequence[Desc], Sequence[Desc]]
"""The descriptors of a program's inputs and outputs."""


def interface_of(program: Formula) -> Interface:
    return [source.desc for source in program.inputs], [output.desc for output in program.outputs]


def check_arrays(
    name: str,
    interface: Interface,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    precision: Precision = "float32",
) -> None:
    """Require arrays of a program's data types and shapes; with "float64", float outputs must be float64, as inputs may be."""
    for role, arrays, descs in (("input", inputs, interface[0]), ("output", outputs, interface[1])):
        require(len(arrays) == len(descs), f"{name}: takes {len(descs)} {role}s, got {len(arrays)}")
        for number, (array, desc) in enumerate(zip(arrays, descs, strict=True)):
            is_wide = precision == "float64" and desc.data_type in FLOATS
            dtype = "float64" if is_wide and (role == "output" or array.dtype == "float64") else desc.data_type
            require(
                array.dtype == dtype and array.shape == desc.shape,
                f"{name}: {role} {number} must be {dtype}{list(desc.shape)}, got {array.dtype}{list(array.shape)}",
            )


def overlap(program: Formula, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Whether writing an output may overwrite input elements that are read later."""
    for output in outputs:
        for array in inputs:
            if not np.may_share_memory(array, output):
                continue
            same = array.ctypes.data == output.ctypes.data and array.strides == output.strides
            alike = same and array.shape == output.shape and array.dtype == output.dtype
            if not (alike and program.is_pointwise and len(outputs) == 1):
                return True
    return False


# ---------------------------------------------------------------------------------------------------------------------
# Instructions


@record(eq=True, slots=False)
class _Instruction:
    """A NumPy call. Values are identified by number.

    Attributes:
        rule: the function; if `reads`, it takes the block and the arrays before the arguments.
        reads: whether it is a variable or a load.
        owns: whether the result is a new array rather than a view.
        reuse: the argument whose memory the result may take, because this is its last use; -1 for none.
        dead: values that are not used afterwards.
        target: the output to write in place; -1 for none.
    """

    node: Expr
    rule: Rule
    arguments: tuple[int, ...] = ()
    reads: bool = False
    owns: bool = True
    reuse: int = -1
    dead: tuple[int, ...] = ()
    target: int = -1


class _EvaluationStage:
    """The instructions that compute arrays with the same axes."""

    def __init__(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...], precision: Precision) -> None:
        self.axes, self.bodies, self.precision = axes, bodies, precision
        self.slots = slots_of(axes, bodies)
        self.rank = max(self.slots.values(), default=-1) + 1
        steps = self._steps()
        number = {step.node: k for k, step in enumerate(steps)}
        self.roots = [number[body] for body in bodies]
        live = _with_lifetimes(steps, self.roots)
        extents = self._block_extents(live)
        self.blocks = _blocks(self.axes, extents)
        split = {axis for axis in self.axes if extents[axis] < axis.extent}
        once = {k for k, step in enumerate(steps) if split and not step.node.free & split}  # for all blocks
        self.steps = _with_lifetimes(steps, [*self.roots, *once]) if once else live
        self._mark_targets()
        self.first = [(k, step) for k, step in enumerate(self.steps) if k in once]
        self.per_block = [(k, step) for k, step in enumerate(self.steps) if k not in once]

    # Planning --------------------------------------------------------------------------------------------------------

    def _steps(self) -> list[_Instruction]:
        needed: dict[Expr, tuple[Expr, ...]] = {}

        def enter(node: Expr) -> tuple[Expr, ...]:
            needed[node] = () if isinstance(node, Load) and is_view(node) else node.parts  # views need no indices
            return needed[node]

        number = {node: k for k, node in enumerate(walk(*self.bodies, enter=enter))}
        return [
            replace(self._step(node, not needed[node]), arguments=tuple(number[part] for part in needed[node]))
            for node in number
        ]

    def _step(self, node: Expr, alone: bool) -> _Instruction:
        match node:
            case Const():
                single = node.value if node.type not in FLOATS else elements.to_float32(node.value)
                value = np.array(single, elements.dtype_of(node.type, self.precision))
                return _Instruction(node, lambda: value, owns=False)
            case Index():
                return _Instruction(node, self._positions_of(node), reads=True)
            case Load():
                wide = elements.dtype_of(node.type, self.precision)
                read = (view_rule if alone else gather_rule)(node, self.slots, self.rank)
                if wide == node.type:
                    return _Instruction(node, read, reads=True, owns=not alone)
                return _Instruction(node, lambda *arguments: read(*arguments).astype(wide), reads=True)
            case Call():
                return _Instruction(node, elements.function(node.name, node.parts[-1].type))
            case Cast():
                return _Instruction(node, elements.conversion(node.parts[0].type, node.type, self.precision))
            case Bitcast():
                return _Instruction(node, elements.bit_conversion(node.parts[0].type, node.type, self.precision))
            case Reduce():
                return _Instruction(node, self._reduction_rule(node))
        raise AssertionError(node)

    def _positions_of(self, variable: Index) -> Rule:
        shape = tuple(-1 if k == self.slots[variable] else 1 for k in range(self.rank))

        def rule(block: Block, arrays: Mapping[Source, Array]) -> Array:
            return np.arange(*block.get(variable, (0, variable.extent)), dtype=np.int64).reshape(shape)

        return rule

    def _reduction_rule(self, node: Reduce) -> Rule:
        axes = tuple(self.slots[v] for v in node.variables)
        rule = elements.reduction(node, axes)
        missing = {self.slots[v]: v.extent for v in node.variables if v not in node.body.free}
        if not missing:
            return rule

        def stretch(x: Array) -> Array:
            shape = x.shape or (1,) * self.rank
            return rule(np.broadcast_to(x, tuple(missing.get(k, size) for k, size in enumerate(shape))))  # type: ignore[no-any-return]

        return stretch

    def _block_extents(self, steps: Sequence[_Instruction]) -> dict[Index, int]:
        """The size of the blocks along each axis, so that temporaries fit into `BLOCK_BYTES`."""
        extents = {axis: axis.extent for axis in self.axes}

        def bytes_of(node: Expr) -> int:
            size = math.prod(extents.get(v, v.extent) for v in node.free)
            return size * elements.dtype_of(node.type, self.precision).itemsize

        def peak() -> int:
            now = highest = 0
            for step in steps:
                if step.owns and step.reuse < 0:
                    now += bytes_of(step.node)
                highest = max(highest, now)
                now -= sum(bytes_of(steps[k].node) for k in step.dead if steps[k].owns and k != step.reuse)
            return highest

        # A single function per result gains nothing from the cache: its blocks only bound the memory.
        is_single = sum(isinstance(step.node, (Call, Cast, Reduce)) for step in steps) <= len(self.bodies)
        limit = 256 * BLOCK_BYTES if is_single else BLOCK_BYTES
        for axis in extents:  # the leading ones first
            while extents[axis] > 1 and peak() > limit:
                extents[axis] = (extents[axis] + 1) // 2
        return extents

    def _mark_targets(self) -> None:
        """Let ufuncs that compute a complete result write it in place."""
        whole = {axis for axis in self.axes if axis.extent > 1}
        for target, number in enumerate(self.roots):
            step = self.steps[number]
            direct = isinstance(step.rule, np.ufunc) and step.node.type not in ("float16", "index")
            if direct and step.target < 0 and whole and whole <= step.node.free:
                self.steps[number] = replace(step, target=target, owns=False, reuse=-1)
        for k, step in enumerate(self.steps):
            if step.reuse >= 0 and not self.steps[step.reuse].owns:
                self.steps[k] = replace(step, reuse=-1)

    # Running ---------------------------------------------------------------------------------------------------------

    def run(self, arrays: Mapping[Source, Array], results: Sequence[Array]) -> None:
        values: list[Array | None] = [None] * len(self.steps)
        results = [r.view(np.bool_) if b.type == "bool" else r for r, b in zip(results, self.bodies, strict=True)]
        pad = (None,) * (self.rank - len(self.axes))
        self._do(self.first, values, {}, arrays, ())
        for block in self.blocks:
            key = (..., *(slice(*block[axis]) if axis in block else slice(None) for axis in self.axes), *pad)
            targets = [result[key] for result in results]
            self._do(self.per_block, values, block, arrays, targets)
            for number, target in zip(self.roots, targets, strict=True):
                value = values[number]
                if value is not target:
                    assert value is not None
                    np.copyto(target, value, casting="unsafe")

    @staticmethod
    def _do(
        steps: Sequence[tuple[int, _Instruction]],
        values: list[Array | None],
        block: Block,
        arrays: Mapping[Source, Array],
        targets: Sequence[Array],
    ) -> None:
        for number, step in steps:
            arguments = [values[k] for k in step.arguments]
            if step.reads:
                values[number] = step.rule(block, arrays, *arguments)
            elif step.target >= 0:
                values[number] = step.rule(*arguments, out=targets[step.target])
            elif step.reuse >= 0:
                values[number] = step.rule(*arguments, out=values[step.reuse])
            else:
                values[number] = step.rule(*arguments)
            for k in step.dead:
                values[k] = None


def slots_of(axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> dict[Index, int]:
    """Assign a dimension to each variable; two reduction variables share one if no value depends on both."""
    together: dict[Index, set[Index]] = {}
    variables: list[Index] = []
    for node in reversed(walk(*bodies)):
        if isinstance(node, Reduce):
            variables += node.variables
            # A reduction variable needs a dimension even if the reduced value does not depend on it.
            beside = {*node.variables, *node.body.free}
            for variable in node.variables:
                together.setdefault(variable, set()).update(beside)
            for other in node.body.free:
                together.setdefault(other, set()).update(node.variables)
    for free in {node.free for node in walk(*bodies)}:
        for variable in free & together.keys():
            together[variable] |= free
    slots = {axis: k for k, axis in enumerate(axes)}
    for variable in dict.fromkeys(variables):
        taken = {slots[other] for other in together[variable] if other in slots and other is not variable}
        slots.setdefault(variable, next(k for k in itertools.count(len(axes)) if k not in taken))
    return slots


def _with_lifetimes(steps: Sequence[_Instruction], kept: Sequence[int]) -> list[_Instruction]:
    """Set `dead` and `reuse` of the instructions; values in `kept` stay alive."""
    last = {argument: k for k, step in enumerate(steps) for argument in step.arguments}
    staying = set(kept)
    result = []
    for k, step in enumerate(steps):
        dead = tuple(a for a in dict.fromkeys(step.arguments) if last[a] == k and a not in staying)
        reuse = -1
        if isinstance(step.rule, np.ufunc) and step.node.free:
            alike = (a for a in dead if steps[a].owns and _alike(steps[a].node, step.node))
            reuse = next(alike, -1)
        result.append(replace(step, dead=dead, reuse=reuse))
    return result


def _alike(a: Expr, b: Expr) -> bool:
    """Whether the values of two nodes have the same shape and NumPy type."""
    return a.free == b.free and elements.dtype_of(a.type, "float32") == elements.dtype_of(b.type, "float32")


def _blocks(axes: tuple[Index, ...], extents: Mapping[Index, int]) -> list[Block]:
    split = [axis for axis in axes if extents[axis] < axis.extent]
    ranges = [
        [(start, min(start + extents[axis], axis.extent)) for start in range(0, axis.extent, extents[axis])]
        for axis in split
    ]
    return [dict(zip(split, block, strict=True)) for block in itertools.product(*ranges)]
