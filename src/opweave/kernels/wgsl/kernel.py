"""WGSL shaders as kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ...errors import ValidationError, require, user_line
from ...expr.gpu import Features, Kernel
from ...expr.gpu.types import computed, layout
from ...expr.ir import Input
from ...graph import Desc
from .. import KernelCall, parameters_of
from .declarations import Bound, Scope, entry_of
from .messages import Explained, Written, pointed
from .shader import Buffer, Shader

Inputs: TypeAlias = "Mapping[str, Input | tuple[Input, ...] | None]"
"""The memory of operands, by parameter."""


class WgslKernel:
    """WGSL that computes the results of a node on a WebGPU device.

    Args:
        source: WGSL; a `Shader`, or several that run in order; or a function that returns any of these for a node.
        options: options of `Shader`, if `source` is text.

    Raises:
        ValidationError: `source` is none of these, or an option does not fit.
    """

    def __init__(self, source: Any, **options: Any) -> None:
        self.function: Callable[..., Any] | None = None
        self.names: list[str] = []
        self.shaders: tuple[Shader, ...] = ()
        if callable(source):
            require(not options, f"a function returns its options in a Shader, got {', '.join(options)}")
            self.function, self.where = source, Written.of(source)
            self.names = parameters_of(source)
        else:
            self.where = Written.here()
            try:
                self.shaders = _shaders(Shader(source, **options) if isinstance(source, str) else source)
            except TypeError as error:
                if isinstance(error, ValidationError):
                    raise
                known = "invocations, workgroups, workgroup_size, constants, scratch"
                raise ValidationError(f"WGSL takes {known}, got {', '.join(options)}") from None
            require(isinstance(source, str) or not options, f"a Shader has its options, got {', '.join(options)}")

    def __repr__(self) -> str:
        return f"<WgslKernel{self.where.suffix(form=' of {}')}>"

    @property
    def detail(self) -> str:
        """A description for `explain()`."""
        return f"WGSL{self.where.suffix()}"

    def kernels(self, call: KernelCall, inputs: Inputs, targets: Sequence[Input], features: Features) -> list[Kernel]:
        """The kernels for a node, in order.

        Args:
            call: the node.
            inputs: the memory of each operand.
            targets: the memory of each result.
            features: features and limits of the device.

        Raises:
            ValidationError: a shader does not fit the node, or does not write a result; messages start with
                `call.title`.
            NotSupportedError: a shader exceeds a limit of the device.
            OperationError: the function raised an exception.
        """
        bound: list[Bound] = []

        def buffer(name: str, memory: Input) -> Buffer:
            bound.append(_bound(name, memory, features))
            return bound[-1].buffer

        given: dict[str, Any] = {}
        for name, value in inputs.items():
            if isinstance(value, tuple):
                given[name] = tuple(buffer(f"{name}{k}", item) for k, item in enumerate(value))
            else:
                given[name] = None if value is None else buffer(name, value)
        names = [f"out{k}" for k in range(len(targets))] if len(targets) > 1 else ["out"]
        results = [_bound(name, target, features, writes=True) for name, target in zip(names, targets, strict=True)]
        outs = tuple(result.buffer for result in results)
        given = {"features": features, "out": outs if len(outs) > 1 else outs[0], **given, **call.attributes}
        shaders = self.shaders if self.function is None else self._made(call, given)
        count = len(shaders)
        titles = [f"{call.title}, pass {k + 1} of {count}" if count > 1 else call.title for k in range(count)]
        for title, shader in zip(titles, shaders, strict=True):
            if shader.fault is not None:
                raise ValidationError(f"{title}: {pointed(shader.source, self.where, shader.fault)}")
        written = set().union(*(shader.words for shader in shaders))
        for result in results:
            # A packed result is not declared under its own name; the compiler reports its use.
            wanted = {result.buffer.name, result.buffer.variable, f"store_{result.buffer.name}"}
            require(
                bool(wanted & written),
                f"{call.title}: the WGSL does not write {result.buffer.name}{self.where.suffix()}",
            )
        absent = [name for name, value in inputs.items() if value is None]
        shared: dict[str, Bound] = {}
        made = []
        for title, shader in zip(titles, shaders, strict=True):
            own = [_scratch(name, desc, shared, call.title, features) for name, desc in shader.scratch.items()]
            scope = Scope(call.title, [*bound, *results, *own], call.attributes, absent, features)
            made.append(self._kernel(title, shader, scope, outs[0], features))
        return made

    def _made(self, call: KernelCall, given: Mapping[str, Any]) -> tuple[Shader, ...]:
        """The shaders that the function returns for a node."""
        function = self.function
        assert function is not None
        call.check_names(self.names, "features")
        try:
            return _shaders(function(**{name: given[name] for name in self.names}))
        except ValidationError as error:
            raise ValidationError(
                f"{call.title}: {error}{user_line(error, function) or self.where.suffix()}"
            ) from error
        except Exception as error:
            raise call.failed(error, function) from error

    def _kernel(self, title: str, shader: Shader, scope: Scope, out: Buffer, features: Features) -> Kernel:
        try:
            entry = entry_of(shader, out, features)
        except ValidationError as error:
            raise ValidationError(f"{title}: {error}{self.where.suffix()}") from None
        rest, bound = scope.module(shader, entry)
        before = "enable f16;\n" if any(item.buffer.element == "f16" for item in bound) else ""
        return Kernel(
            title,
            f"{before}{shader.source.rstrip()}\n\n{rest}",
            tuple(item.memory for item in bound),
            tuple(item.writes for item in bound),
            entry.workgroups,
            entry.name,
            Explained(shader, before.count("\n"), self.where, scope.hint),
        )


def _shaders(given: Any) -> tuple[Shader, ...]:
    """One or several shaders, given as `Shader` or text."""
    items = given if isinstance(given, (tuple, list)) else (given,)
    require(
        bool(items) and all(isinstance(item, (str, Shader)) for item in items),
        f"a kernel is WGSL (a string), an opweave.wgsl.Shader, several of them, or a function of these, got {given!r}",
    )
    return tuple(item if isinstance(item, Shader) else Shader(item) for item in items)


def _bound(name: str, memory: Input, features: Features, *, writes: bool = False) -> Bound:
    lay = layout(memory.desc.data_type, features)
    type = computed(memory.desc.data_type)
    return Bound(Buffer(name, memory.desc, type, lay.element, lay.lanes), memory, writes)


def _scratch(name: str, desc: Desc, shared: dict[str, Bound], title: str, features: Features) -> Bound:
    """A scratch buffer; passes that use the same name share it."""
    known = shared.get(name)
    if known is None:
        fits = features.int64 or desc.data_type not in ("int64", "uint64")
        require(fits, f"{title}: scratch {name}: the device has no {desc.data_type}")
        known = shared[name] = _bound(name, Input(len(shared), desc), features, writes=True)
    require(known.buffer.desc == desc, f"{title}: scratch {name} is {known.buffer.desc} in one pass, {desc} in another")
    return known
