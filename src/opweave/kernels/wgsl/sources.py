"""Kernels as source code: the common part of all languages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from ...core.graph import Desc
from ...expr.gpu import Features, GpuKernel
from ...expr.ir import Input
from ...support.errors import ValidationError, require, user_line
from ..base import KernelCall, parameters_of
from .declarations import Bound, DeclarationScope
from .messages import SourcePlace, point_at
from .shader import Buffer

Inputs: TypeAlias = "Mapping[str, Input | tuple[Input, ...] | None]"
"""Memory of each operand, by parameter."""


class SourceKernel(ABC):
    """Source code that computes the results of a node on a GPU.

    `source` is text, to which `options` apply; a source with its options; several sources that run in order; or a
    function that returns any of these for a node.
    """

    language: ClassVar[str]
    kind: ClassVar[type[Any]]
    options: ClassVar[str]
    accepts: ClassVar[str]
    """Description of valid kernels, for messages."""

    scope: ClassVar[type[DeclarationScope]] = DeclarationScope
    """Class of the names that sources may use."""

    def __init__(self, source: Any, **options: Any) -> None:
        self.function: Callable[..., Any] | None = None
        self.names: list[str] = []
        self.shaders: tuple[Any, ...] = ()
        if callable(source) and not self._is_launched(source):
            require(not options, f"a function returns its options in a {self.kind.__name__}, got {', '.join(options)}")
            self.function, self.where = source, SourcePlace.of(source)
            self.names = parameters_of(source)
        else:
            self.where = SourcePlace.here()
            try:
                takes_options = self._is_plain(source)
                self.shaders = self._sources(self._source(source, **options) if takes_options else source)
            except TypeError as error:
                if isinstance(error, ValidationError):
                    raise
                raise ValidationError(f"{self.language} takes {self.options}, got {', '.join(options)}") from None
            name = self.kind.__name__
            require(takes_options or not options, f"a {name} has its options, got {', '.join(options)}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.where.suffix(form=' of {}')}>"

    @property
    def detail(self) -> str:
        return f"{self.language}{self.where.suffix()}"

    def kernels(
        self, call: KernelCall, inputs: Inputs, targets: Sequence[Input], features: Features
    ) -> list[GpuKernel]:
        """Return the kernels of a node, in the order in which they run.

        `inputs` is the memory of the operands, and `targets` the memory of the results.
        """
        bound: list[Bound] = []

        def buffer(name: str, memory: Input) -> Buffer:
            bound.append(self._bind(name, memory, features))
            return bound[-1].buffer

        arguments: dict[str, Any] = {}
        for name, value in inputs.items():
            if isinstance(value, tuple):
                arguments[name] = tuple(buffer(f"{name}{k}", item) for k, item in enumerate(value))
            else:
                arguments[name] = None if value is None else buffer(name, value)
        names = [f"out{k}" for k in range(len(targets))] if len(targets) > 1 else ["out"]
        results = [self._bind(name, target, features, writes=True) for name, target in zip(names, targets, strict=True)]
        outs = tuple(result.buffer for result in results)
        arguments = {"features": features, "out": outs if len(outs) > 1 else outs[0], **arguments, **call.attributes}
        shaders = self.shaders if self.function is None else self._call_function(call, arguments)
        count = len(shaders)
        titles = [f"{call.title}, pass {k + 1} of {count}" if count > 1 else call.title for k in range(count)]
        for title, shader in zip(titles, shaders, strict=True):
            if shader.fault is not None:
                raise ValidationError(f"{title}: {point_at(shader.source, self.where, shader.fault, self.language)}")
        written = set().union(*(shader.words for shader in shaders))
        for result in results:
            # A packed result has no variable named like the result; the compiler reports sources that use this name.
            result_words = {result.buffer.name, result.buffer.variable, f"store_{result.buffer.name}"}
            require(
                bool(result_words & written),
                f"{call.title}: the {self.language} does not write {result.buffer.name}{self.where.suffix()}",
            )
        absent = [name for name, value in inputs.items() if value is None]
        shared: dict[str, Bound] = {}
        kernels = []
        for title, shader in zip(titles, shaders, strict=True):
            own = [self._scratch(name, desc, shared, call.title, features) for name, desc in shader.scratch.items()]
            scope = self.scope(call.title, [*bound, *results, *own], call.attributes, absent, features)
            kernels.append(self._kernel(title, shader, scope, outs[0], features))
        return kernels

    def _call_function(self, call: KernelCall, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        function = self.function
        assert function is not None
        call.check_names(self.names, "features")
        try:
            return self._sources(function(**{name: arguments[name] for name in self.names}))
        except ValidationError as error:
            raise ValidationError(
                f"{call.title}: {error}{user_line(error, function) or self.where.suffix()}"
            ) from error
        except Exception as error:
            raise call.error_of(error, function) from error

    @abstractmethod
    def _kernel(self, title: str, shader: Any, scope: Any, out: Buffer, features: Features) -> GpuKernel:
        """Create the kernel of one source."""

    @abstractmethod
    def _buffer(self, name: str, desc: Desc, features: Features) -> Buffer:
        """Describe a tensor in the types of the language."""

    def _is_launched(self, source: Any) -> bool:
        """Whether an object is a kernel that another library compiles, not a function that returns kernels."""
        return False

    def _is_plain(self, source: Any) -> bool:
        """Whether a source has no options yet: text, or a kernel that another library compiles."""
        return isinstance(source, str) or self._is_launched(source)

    def _source(self, source: Any, **options: Any) -> Any:
        return self.kind(source, **options)

    def _sources(self, source: Any) -> tuple[Any, ...]:
        items = source if isinstance(source, (tuple, list)) else (source,)
        fits = bool(items) and all(self._is_plain(item) or self._fits(item) for item in items)
        require(fits, f"a kernel is {self.accepts}, several of them, or a function of these, got {source!r}")
        return tuple(self._source(item) if self._is_plain(item) else item for item in items)

    def _fits(self, item: Any) -> bool:
        return isinstance(item, self.kind)

    def _bind(self, name: str, memory: Input, features: Features, *, writes: bool = False) -> Bound:
        return Bound(self._buffer(name, memory.desc, features), memory, writes)

    def _scratch(self, name: str, desc: Desc, shared: dict[str, Bound], title: str, features: Features) -> Bound:
        """Return a scratch buffer; passes that use the same name share it."""
        bound = shared.get(name)
        if bound is None:
            fits = features.int64 or desc.data_type not in ("int64", "uint64")
            require(fits, f"{title}: scratch {name}: the device has no {desc.data_type}")
            bound = shared[name] = self._bind(name, Input(len(shared), desc), features, writes=True)
        fits = bound.buffer.desc == desc
        require(fits, f"{title}: scratch {name} is {bound.buffer.desc} in one pass, {desc} in another")
        return bound
