"""The class of custom operations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Protocol, TypeAlias, TypeVar, get_args, overload
from weakref import WeakSet

import numpy as np

from ..core.conversion import Converter
from ..core.graph import Builder, Desc, Operand, iter_operands, map_operands
from ..core.operation import Limits, Op, call_with
from ..core.size_values import values_in_scope
from ..expr.array import Traced as Traced
from ..kernels import Kernel
from ..kernels.expression import program_of
from ..kernels.host import HostKernel
from ..ops import Operations
from ..support import lazy_imports
from ..support.errors import ValidationError, require
from ..support.lazy_imports import call_custom
from ..support.names import short_repr
from .signatures import plain_converter, public, read_signature

if TYPE_CHECKING:
    from ..kernels.wgsl import Shader
    from ..kernels.wgsl.sources import SourceKernel
    from .report import CheckReport

DeviceName = Literal["cpu", "wasm", "webgpu", "cuda"]

Declared = TypeVar("Declared", covariant=True)

Kind = TypeVar("Kind", bound="Traced | _HasValues")
"""Type of operands and results of a call on formulas, arrays or tensors."""


class _HasValues(Protocol):
    """An `Array` or `MLTensor`."""

    @property
    def desc(self) -> Desc: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


class _TensorLike(Protocol):
    """An `MLTensor`."""

    @property
    def constant(self) -> bool: ...
    @property
    def writable(self) -> bool: ...


_declared: WeakSet[CustomOp[Any]] = WeakSet()
"""All custom operations of the process."""

One: TypeAlias = "Traced | Operand | Desc"
Several: TypeAlias = "tuple[Any, ...]"
Plain: TypeAlias = "np.ndarray | np.number[Any] | float | str | Sequence[Any] | None"
"""Arguments that do not decide the device of a call."""


class CustomOp(Op[..., Any], Generic[Declared]):
    """A custom operation. Created by `opweave.op`, `opweave.expression`, `opweave.recurrence` and `opweave.composite`.

    Called with operands, it adds a node to their graph; called with arrays or tensors, it computes. `label=` names the node
    in messages and tables.

    >>> import numpy as np, opweave as ow
    >>> @ow.expression
    ... def swiglu(x, gate):
    ...     return x * gate * ow.expr.sigmoid(gate)
    >>> swiglu(np.float32([1, 2]), np.float32([0, 0])).tolist()
    [0.0, 0.0]
    """

    def __init__(
        self,
        rule: Callable[..., Any],
        source: Callable[..., Any],
        *,
        skip: int,
        limits: Mapping[str, Limits],
        annotated: bool = False,
    ) -> None:
        """Declare an operation by its shape rule, and by the user's function `source`, whose parameters are the operation's.

        The first `skip` parameters of `source` are not parameters of the operation. With `annotated`, the parameters annotated
        as operands are operands; otherwise, the positional ones are.
        """
        self._annotated = annotated
        self.examples: list[dict[str, Any]] = []
        self.step: Any = None
        """The expression of one step of a recurrence; None for all other operations."""
        self.source = source
        signature = read_signature(source, skip)
        rule.__signature__ = signature  # type: ignore[attr-defined]
        rule.__module__ = source.__module__
        super().__init__(rule, source.__name__, lambda: inspect.getdoc(source) or "", limits)
        self.__wrapped__, self.__qualname__ = source, source.__qualname__
        self.__signature__ = public(signature)
        self._check_declared(limits)
        _declared.add(self)

    def __repr__(self) -> str:
        forms = ["recurrence"] if self.recurrence is not None else [f"kernel {name}" for name in self.kernels]
        forms += ["expression"] if self.formula is not None else []
        forms += ["decomposition"] if self.decomposition is not None else []
        return f"<CustomOp {self.name}: {', '.join(forms) or 'nothing that computes it'}>"

    # Declaration -----------------------------------------------------------------------------------------------------

    @overload
    def kernel(self, device: DeviceName, /) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
    @overload
    def kernel(self, device: Literal["wasm"], module: Any, export: str, /, signature: str | None = None) -> None: ...
    @overload
    def kernel(
        self,
        device: Literal["webgpu"],
        source: str | Shader | Sequence[str | Shader] | Callable[..., Any],
        /,
        *,
        invocations: int | Sequence[int] | None = None,
        workgroups: int | Sequence[int] | None = None,
        workgroup_size: int | None = None,
        constants: Mapping[str, Any] = ...,
        scratch: Mapping[str, Desc] = ...,
    ) -> None: ...
    @overload
    def kernel(
        self,
        device: Literal["cuda"],
        source: Any,
        /,
        *,
        invocations: int | Sequence[int] | None = None,
        grid: int | Sequence[int] | None = None,
        block: int | Sequence[int] = 256,
        arguments: Sequence[Any] | None = None,
        constants: Mapping[str, Any] = ...,
        scratch: Mapping[str, Desc] = ...,
        shared: int = 0,
        num_warps: int = 4,
        num_stages: int = 3,
    ) -> None: ...
    @overload
    def kernel(self, device: DeviceName, function: Callable[..., Any], /) -> None: ...
    def kernel(self, device: DeviceName, /, *args: Any, **options: Any) -> Any:
        """Declare a kernel that computes the operation on a device.

        - `@op.kernel("cpu")` decorates a function of NumPy views (`opweave.kernels.host`), or `op.kernel("cpu", function)`;
        - `op.kernel("wasm", module, "export")`: a function of a WebAssembly module (`help(opweave.wasm)` says more);
        - `op.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * x[i]; }")`: WGSL; or `@op.kernel("webgpu")` decorates a
          function that returns it (`help(opweave.wgsl)` says more);
        - `op.kernel("cuda", "void main(unsigned i) { out[i] = x[i] * x[i]; }")`: CUDA C++, or a kernel of Triton, CuPy or
          Numba, or `@op.kernel("cuda")` above a function that makes it (`help(opweave.cuda)` says more).

        Raises:
            ValidationError: the device is unknown, or the kernel is invalid: a function must take `out`, and parameters of
                the operation by name.
        """
        devices = get_args(DeviceName)
        require(
            device in devices, f"{self.name}: kernels are for {', '.join(map(repr, devices))}, got {short_repr(device)}"
        )
        if not args:
            return lambda function: self._add_kernel(device, function, options)
        self._add_kernel(device, *args, options)
        return None

    def _add_kernel(self, device: str, *arguments: Any) -> Any:
        *args, options = arguments
        try:
            kernel: Kernel | SourceKernel
            if device == "wasm":
                from ..kernels.wasm import WasmKernel

                kernel = WasmKernel(*args, **options)
                kernel.check_names(self.operands, tuple(self.attributes))
            elif device == "webgpu":
                from ..kernels.wgsl import WgslKernel

                kernel = WgslKernel(*args, **options)
            elif device == "cuda":
                from ..kernels.cuda import CudaKernel

                kernel = CudaKernel(*args, **options)
            else:
                kernel = HostKernel(*args, **options)
        except ValidationError as error:
            raise ValidationError(f"{self.name}: {error}") from None
        self.kernels[device] = kernel
        self.forget_calls()
        return args[0]

    def example(self, /, **arguments: Any) -> None:
        """Declare a call that `check` and `opweave ops --check` compile kernels for, instead of calls that they make up.

        Args:
            arguments: as `check` takes them. Several examples may cover several data types and shapes.

        >>> import opweave as ow
        >>> @ow.op
        ... def take(self, x: ow.MLOperand, indices: ow.MLOperand):
        ...     return ow.Desc(x.data_type, indices.shape)
        >>> take.kernel("webgpu", "fn main(i: u32) { out[i] = x[indices[i]]; }")
        >>> take.example(x=("float32", [100]), indices=("int32", [7]))
        """
        self.examples.append(arguments)

    def check(self, /, *devices: DeviceName, arch: Any = None, **arguments: Any) -> CheckReport:
        """Compile the kernels of the operation for small operands, without the devices that they are for; nothing runs.

        - `"cuda"`: NVRTC and Triton compile, and need no GPU.
        - `"webgpu"`: the first adapter of this machine compiles; one in software suffices.
        - `"cpu"`: Numba compiles; of other functions, parameters and global names are checked.
        - `"wasm"`: the arguments are checked. wasmtime has validated the module when it was loaded.

        An expression is traced, and compiled by Halide, or for the GPU among `devices`. A decomposition is built.

        Args:
            devices: `"cpu"`, `"wasm"`, `"webgpu"` or `"cuda"`; default: all kernels, the expression and the decomposition.
            arch: compute capabilities for CUDA, as in `90`, `"sm_90"` or `[80, 90]`; default: 80 and 90.
            arguments: operands, as a data type and a shape, a `Desc` or an array; and attributes. The default is the calls
                that `example` declares. If there are none, operands get some ranks, and each data type that their limits
                list; it suffices that a kernel compiles for one rank.

        Returns:
            A report; `print` shows what was checked, and by which compiler. Without `devices`, it also says what could not be
            checked on this machine.

        Raises:
            OperationError: a compiler rejects a kernel. The message has the errors of all kernels, in the user's lines.
            ValidationError: an argument is wrong, a kernel does not fit the operation, or its shape rule accepts none of the
                operands that are tried.
            MissingExtraError: a compiler for one of `devices` is not installed.
            NotSupportedError: one of `devices` cannot be checked on this machine.

        >>> import numpy as np, opweave as ow
        >>> @ow.op
        ... def square(self, x: ow.MLOperand):
        ...     return x.desc
        >>> @square.kernel("cpu")
        ... def _(x, out):
        ...     np.multiply(x, y, out=out)
        >>> square.check("cpu", x=("float32", [2, 3]))
        Traceback (most recent call last):
        opweave.support.errors.OperationError: square: the kernel (..., line 3): name 'y' is not defined...
        """
        report: CheckReport = lazy_imports.check(self, devices, arch, arguments)
        return report

    def forget_calls(self) -> None:
        """Drop the compiled programs of calls on arrays, after a new kernel, decomposition or expression."""
        self.templates.clear()

    def decompose(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the decomposition: `function(b, ...)` takes a builder, and operands and attributes by name."""
        self._check_form(function, 1)
        super().decompose(function)
        self.forget_calls()
        return function

    def expression(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the formula of an element: `function(...)` takes arrays of `opweave.expr` and attributes by name."""
        self._check_form(function, 0)
        super().expression(function)
        if self.decomposition is None:
            self.decomposition, self.is_derived = _decomposition(self), True
        self.forget_calls()
        return function

    def _check_form(self, function: Callable[..., Any], leading: int) -> None:
        require(callable(function), f"{self.name}: expected a function, got {short_repr(function)}")
        allowed = (*self.operands, *self.attributes)
        parameters = list(inspect.signature(function).parameters.values())[leading:]
        unknown = [p.name for p in parameters if p.name not in allowed and p.kind is not p.VAR_KEYWORD]
        renamed = "every operation has an argument 'label', which names it in messages; rename the attribute"
        require("label" not in unknown, f"{self.name}: {renamed}")
        require(not unknown, f"{self.name}: the function takes {unknown}; the operation has {list(allowed)}")

    def _check_declared(self, limits: Mapping[str, Limits]) -> None:
        for name, limit in limits.items():
            is_declared = name in self.operands or name.startswith("output")
            require(is_declared, f"{self.name}: limits are for the operands {list(self.operands)}, got {name!r}")
            if not isinstance(limit, Limits):
                raise ValidationError(f"{self.name}: {name} must be opweave.Limits, got {short_repr(limit)}")
            for field, value, rest in (
                ("data_types", limit.data_types, "a tuple of data types"),
                ("ranks", limit.ranks, "the smallest and the largest rank"),
            ):
                if not (value in self.operands if isinstance(value, str) else isinstance(value, tuple)):
                    # Hundreds of operations are declared when the package is imported: no text is made for those that fit.
                    raise ValidationError(
                        f"{self.name}: {field} of {name} must be {rest}, or the name of an operand, got {short_repr(value)}"
                    )

    def _is_operand(self, parameter: inspect.Parameter) -> bool:
        if self._annotated and parameter.annotation:
            return super()._is_operand(parameter)
        return parameter.kind is parameter.POSITIONAL_OR_KEYWORD

    def _converter(self, parameter: inspect.Parameter) -> Converter:
        annotation = parameter.annotation.removesuffix(" | None")
        if re.fullmatch(r"(int|float|bool|str)", annotation):
            return plain_converter(annotation)
        if annotation == "DataType" or annotation.startswith(("Literal[", "Sequence[int]")):
            return super()._converter(parameter)
        return lambda name, value: tuple(value) if isinstance(value, list) else value

    # Calls -----------------------------------------------------------------------------------------------------------

    # For type checkers, the result is of the kind of the operands. `Never` matches functions without annotations. Their result
    # may also be a tuple; type checkers cannot know, because arrays and operands can be unpacked, too.
    @overload
    def __call__(self: CustomOp[Never], first: _TensorLike, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def __call__(self: CustomOp[One], first: Builder | Operand, /, *args: Any, **kwargs: Any) -> Operand: ...
    @overload
    def __call__(self: CustomOp[One], first: np.ndarray, /, *args: Plain, **kwargs: Any) -> np.ndarray: ...
    @overload
    def __call__(self: CustomOp[One], first: Kind, /, *args: Plain | Kind, **kwargs: Any) -> Kind: ...
    @overload
    def __call__(
        self: CustomOp[Several], first: Builder | Operand, /, *args: Any, **kwargs: Any
    ) -> tuple[Operand, ...]: ...
    @overload
    def __call__(self: CustomOp[Several], first: Kind, /, *args: Plain | Kind, **kwargs: Any) -> tuple[Kind, ...]: ...
    @overload
    def __call__(
        self: CustomOp[Several], first: np.ndarray, /, *args: Plain, **kwargs: Any
    ) -> tuple[np.ndarray, ...]: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]  # (mypy on *args: Any)
        """Add a node to the graph of the operands, or compute the results of arrays and tensors.

        Calls on NumPy arrays return NumPy arrays, calls on tensors return tensors; calls on an `opweave.Array` are computed
        later. An expression that another expression calls with its arrays becomes part of that expression.
        """
        if args and isinstance(args[0], Builder):
            return self.add(args[0], args[1:], kwargs)
        return (call_custom.function or call_custom.load())(self, args, kwargs)

    def inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Inline the operation into another expression that is being traced."""
        formula = self.formula
        if formula is None:
            raise ValidationError(f"{self.name}: has no expression that another one could hold")
        try:
            bound = inspect.signature(self).bind(None, *args, **kwargs)
        except TypeError as error:
            raise ValidationError(f"{self.name}: {error}") from None
        bound.apply_defaults()
        values = bound.arguments
        for name in self.attributes:
            if values[name] is not None:
                values[name] = self._converters[name](f"{self.name}: {name}", values[name])
        return call_with(formula, values)


def forget(operation: CustomOp[Any]) -> None:
    """Leave an operation that is a part of another one out of `operations_of`."""
    _declared.discard(operation)


def operations_of(module: str) -> list[CustomOp[Any]]:
    """Return the operations that a module or package declares, in the order of their files and lines.

    >>> import opweave.composites
    >>> [op.name for op in operations_of("opweave.composites.rotary")]
    ['rotary_embedding']
    """
    own = [op for op in _declared if f"{op.__module__}.".startswith(f"{module}.")]
    return sorted(own, key=lambda op: (op.__module__, op.source.__code__.co_firstlineno))


def _decomposition(op: CustomOp[Any]) -> Callable[..., Any]:
    """Return the decomposition of an operation with an expression: the formula in operations on whole arrays."""

    def decomposition(builder: Operations, /, **arguments: Any) -> Any:
        from ..expr.decompose import decompose, has_constants_with_sizes

        operands = {name: arguments[name] for name in op.operands}
        attributes = {name: arguments[name] for name in op.attributes}
        program = program_of(op, map_operands(operands, lambda operand: operand.desc), attributes)
        if has_constants_with_sizes(program):
            descs = map_operands(operands, lambda operand: Desc(operand.data_type, values_in_scope(operand.shape)))
            program = program_of(op, descs, {name: values_in_scope(value) for name, value in attributes.items()})
        results = decompose(program, builder, list(iter_operands(operands)))
        return results if len(results) > 1 else results[0]

    return decomposition
