"""Functions of arrays as graphs: traced once for each combination of shapes, data types and static arguments.

While it is traced a function gets operands, which have the operators and methods of arrays, but no values yet. What it does
with them becomes a graph, and the next call runs that.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, overload

import numpy as np

from . import dtypes, memory
from .arrays import as_array, contiguous, describe
from .builder import MLGraphBuilder
from .cache import Cache, exact
from .context import MLContext
from .dtypes import DataType
from .errors import MLError, ValidationError, require, user_line
from .graph import Desc, MLOperand, Node, Operand, Operators
from .names import shown
from .operation import Op
from .run.graph import MLGraph
from .run.locks import Locks
from .runtime import adopted, deferred, lazy
from .runtime.lazy import Array
from .tensor import MLTensor

P = ParamSpec("P")
R = TypeVar("R")

GRAPHS = 128
"""For how many combinations of shapes, data types and static arguments a function stays compiled."""

_PLAIN = (int, str, bool, type(None), bytes, complex, type(Ellipsis))


class CacheInfo(NamedTuple):
    """What a function's cache has seen, as `functools.lru_cache` says it."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


@overload
def jit(function: Callable[P, R], /, *, static: Sequence[str] = ()) -> Jitted[P, R]: ...
@overload
def jit(*, static: Sequence[str] = ()) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(function: Callable[..., Any] | None = None, /, *, static: Sequence[str] = ()) -> Any:
    """Make a function of arrays run as one graph.

    Args:
        function: takes arrays (`opweave.Array`, NumPy's, tensors), also in tuples, lists and dictionaries, and other values,
            which must be hashable: with each new one the function is traced again.
        static: the names of parameters whose values are such, too, although they look like arrays or hold some.

    Returns:
        The function, which returns what it returned while it was traced, with an `opweave.Array` for each operand.

    Arrays that the function finds elsewhere (globals, members of `self`) become constants of the graph: NumPy's are read-only
    as long as it is kept, so that they cannot change unnoticed. Tensors that it finds elsewhere are read at each call.

    >>> import numpy as np, opweave as ow
    >>> @ow.jit
    ... def dense(x, weight, *, scale=1.0):
    ...     return (x @ weight * scale).relu()
    >>> dense(np.float32([[1, -2]]), np.float32([[1, -1], [0, 1]]), scale=2.0).tolist()
    [[2.0, 0.0]]
    >>> dense.cache_info()
    CacheInfo(hits=0, misses=1, maxsize=128, currsize=1)

    Raises:
        ValidationError: an argument that is neither an array nor hashable; a function that asks for values while it is traced.
    """
    if function is None:
        return lambda function: Jitted(function, static)
    return Jitted(function, static)


class Jitted(Generic[P, R]):
    """A function that runs as a graph. Made by `opweave.jit`; as a member of a class it is a method."""

    def __init__(self, function: Callable[P, R], static: Sequence[str] = ()) -> None:
        require(callable(function), f"jit takes a function, got {shown(function)}")
        self._name = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
        lazily = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
        require(not lazily, f"jit {self._name!r}: a generator or coroutine cannot be traced")
        names = (static,) if isinstance(static, str) else tuple(static)
        parameters = list(inspect.signature(function).parameters.values())
        unknown = [name for name in names if name not in {p.name for p in parameters}]
        require(not unknown, f"jit {self._name!r}: static names parameters of the function, got {unknown}")
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = [p.name for p in parameters if p.kind in kinds]
        self._static = frozenset(names)
        self._positions = frozenset(k for k, name in enumerate(self._names) if name in self._static)
        self.graphs: Cache[Any, _Program] = Cache(GRAPHS, raw=True)
        functools.update_wrapper(self, function)
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<jit {self._name}, {len(self.graphs)} graphs>"

    def __reduce__(self) -> str:
        """Pickled and copied by name, as functions are; graphs stay where they are."""
        return str(getattr(self, "__qualname__", self._name))

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Jitted[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def cache_info(self) -> CacheInfo:
        """How many calls found a graph, how many had to trace one, how many graphs are kept at most, and now."""
        found = self.graphs.statistics
        return CacheInfo(found.hits, found.misses, GRAPHS, found.entries)

    def clear_cache(self) -> None:
        """Forget all graphs; the next call traces again."""
        self.graphs.clear()

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R: ...  # what is annotated as an array may be NumPy's, or a tensor
    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Run the graph for these arguments, made when they come for the first time.

        Called with operands of a graph, the function's operations become part of that.
        """
        key: list[Any] = [len(args)]
        leaves: list[Any] = []
        argument: str | int = 0
        try:
            for argument, value in enumerate(args):
                if argument in self._positions:
                    key.append(_identity(value))
                else:
                    _flatten(value, key, leaves)
            for argument, value in kwargs.items():
                key.append(argument)
                if argument in self._static:
                    key.append(_identity(value))
                else:
                    _flatten(value, key, leaves)
        except _HasOperand:
            return self.__wrapped__(*args, **kwargs)
        except ValidationError as error:
            raise ValidationError(f"jit {self._name!r}: argument {self._title(argument)}: {error}") from None
        context = self._context(leaves)
        key.append(id(context))  # the graph keeps the context, so that no other one gets its identity
        context.check_alive()
        whole = tuple(key)
        try:
            program = self.graphs.get(whole)
        except TypeError as error:
            raise ValidationError(f"jit {self._name!r}: an argument cannot be compared ({error})") from None
        if program is None:
            with self.graphs.turn(whole):  # the first thread that comes traces, others wait for it
                program = self.graphs.peek(whole) or self.graphs.put(whole, self._trace(context, args, kwargs))
        return program(leaves)  # type: ignore[no-any-return]

    def _title(self, argument: str | int) -> str:
        if isinstance(argument, str):
            return repr(argument)
        return repr(self._names[argument]) if argument < len(self._names) else f"number {argument + 1}"

    def _context(self, leaves: Sequence[Any]) -> MLContext:
        context = None
        for leaf in leaves:
            if isinstance(leaf, (Array, MLTensor)):
                if context is None:
                    context = leaf.context
                elif context is not leaf.context:
                    raise ValidationError(f"jit {self._name!r}: the arguments belong to several contexts")
        return context or adopted.current_context()

    def _trace(self, context: MLContext, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Program:
        """Call the function with operands, and compile what it does with them."""
        tracer = _Tracer(context, f"jit {self._name!r}")
        given = [a if k in self._positions else tracer.stand_in(a) for k, a in enumerate(args)]
        named = {name: a if name in self._static else tracer.stand_in(a) for name, a in kwargs.items()}
        try:
            with context:
                result = self.__wrapped__(*given, **named)
        except _NoValueError as error:
            raise ValidationError(str(error)) from error.__cause__
        except ValidationError as error:
            raise ValidationError(f"{tracer.title}: {error}{user_line(error, self.__wrapped__)}") from error
        except MLError:
            raise
        except Exception as error:
            error.add_note(f"while {tracer.title} was traced{user_line(error, self.__wrapped__)}")
            raise
        finally:
            tracer.is_open = False
        return tracer.finish(result)


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


class _HasOperand(Exception):  # noqa: N818  (never seen by users)
    """There is an operand among the arguments."""


def _flatten(value: Any, key: list[Any], leaves: list[Any]) -> None:
    """Add the arrays of an argument to `leaves`, and what tells it from others to `key`, in one order for all."""
    kind = type(value)
    if kind is np.ndarray:
        key.append((dtypes.of_array(value.dtype), value.shape))
        leaves.append(value)
    elif kind is Array or isinstance(value, (Array, MLTensor)):
        key.append((value.desc.data_type, value.desc.shape))
        leaves.append(value)
    elif kind in _PLAIN:
        key.append(exact(value))
    elif kind is tuple or kind is list or _is_named_tuple(value):
        key.append((kind, len(value)))
        for item in value:
            _flatten(item, key, leaves)
    elif kind is dict or kind is OrderedDict:
        key.append((kind, tuple([_identity(name) for name in value])))
        for item in value.values():
            _flatten(item, key, leaves)
    elif isinstance(value, Operand):
        raise _HasOperand
    elif _is_array(value):
        array = as_array(value, "it")
        desc = describe(array, "it")
        key.append((desc.data_type, desc.shape))
        leaves.append(array)
    else:
        key.append(_identity(value))


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_array(value: Any) -> bool:
    """Whether a value that is not of the usual kinds stands for an array."""
    if isinstance(value, np.generic):
        return value.dtype.name in dtypes.INFO
    return not isinstance(value, type) and (isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"))


def _identity(value: Any) -> Any:
    """What tells a static value from others; dictionaries are compared by what is in them."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind, tuple(map(_identity, value))
    if kind is dict:
        return kind, tuple((_identity(name), _identity(item)) for name, item in value.items())
    try:
        hash(value)
    except TypeError:
        raise ValidationError(
            f"an object of type {kind.__name__} is neither an array, nor a tuple, list or dict of arrays, nor hashable"
        ) from None
    return exact(value)


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dictionaries, with `leaf` of what is in them."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_mapped(item, leaf) for item in value])
    if kind is dict or kind is OrderedDict:
        return kind((name, _mapped(item, leaf)) for name, item in value.items())
    if _is_named_tuple(value):
        return kind(*[_mapped(item, leaf) for item in value])
    return leaf(value)


# ---------------------------------------------------------------------------------------------------------------------
# Tracing


class _NoValueError(ValidationError):
    """Something asks for the value of an operand. The message is complete."""


_WHERE = "ow.ops.where(condition, a, b) chooses by values"
_STATIC = "compute with operations, return the array, or make what it depends on a static argument"
_COMPARISONS = {
    "__lt__": ("<", "lesser"),
    "__le__": ("<=", "lesser_or_equal"),
    "__gt__": (">", "greater"),
    "__ge__": (">=", "greater_or_equal"),
    "__eq__": ("==", "equal"),
    "__ne__": ("!=", "not_equal"),
}
_QUESTIONS = {
    "__bool__": ("bool()", _WHERE),
    "__contains__": ("'in'", "ow.ops.equal compares"),
    "__float__": ("float()", _STATIC),
    "__int__": ("int()", _STATIC),
    "__index__": ("int()", _STATIC),
    "__complex__": ("complex()", _STATIC),
    "__round__": ("round()", "ow.ops.round_even rounds"),
    "__trunc__": ("trunc()", _STATIC),
    "__floor__": ("floor()", "ow.ops.floor does that"),
    "__ceil__": ("ceil()", "ow.ops.ceil does that"),
    "__array__": ("NumPy", "ow.ops has such functions"),
    "__dlpack__": ("DLPack", _STATIC),
    "__dlpack_device__": ("DLPack", _STATIC),
    "__buffer__": ("a buffer", _STATIC),
    "item": ("item()", _STATIC),
    "tolist": ("tolist()", _STATIC),
    "numpy": ("numpy()", _STATIC),
}
_UFUNCS = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "div",
    np.power: "pow",
    np.matmul: "matmul",
}
"""What NumPy calls for the operators of an array and an operand."""
_REVERSED = {
    np.less: "<",
    np.less_equal: "<=",
    np.greater: ">",
    np.greater_equal: ">=",
    np.equal: "==",
    np.not_equal: "!=",
}


class Traced(MLOperand):
    """An operand that stands for an array while a function is traced: it has no values, and says so."""

    __slots__ = ()
    __hash__ = object.__hash__

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements, as NumPy has it."""
        return np.dtype(self._desc.data_type)

    @property
    def ndim(self) -> int:
        """Number of dimensions, as NumPy calls it."""
        return self._desc.rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._desc.element_count

    @property
    def context(self) -> MLContext:
        """Where it will be computed."""
        assert isinstance(self._builder, _Tracer)
        return self._builder.context

    def __len__(self) -> int:
        require(self.rank > 0, "an array of shape [] has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if self.rank == 0:
            self._refuse("iteration", _STATIC)
        return super().__iter__()

    def _refuse(self, asks: str, advice: str) -> NoReturn:
        """Say that there are no values, and where they were asked for."""
        tracer = self._builder
        assert isinstance(tracer, _Tracer)
        raise _NoValueError(
            f"{tracer.title}: {asks} asks for the values of {self._desc}, which are not known while the function is traced"
            f"{_users_line()}; {advice}"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = _UFUNCS.get(ufunc)
        if name is not None and method == "__call__" and not options:
            return self._apply(name, *inputs)
        if ufunc in _REVERSED:
            self._refuse(f"'{_REVERSED[ufunc]}'", "comparisons are called by name: ow.ops.greater(x, y)")
        return self._refuse(f"np.{ufunc.__name__}", "ow.ops has such functions")

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._refuse("a format", _STATIC)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        self._refuse(f"np.{function.__name__}", "ow.ops has such functions")


def _question(name: str, asks: str, advice: str) -> Callable[..., NoReturn]:
    def refuse(self: Traced, *_: Any, **__: Any) -> NoReturn:
        self._refuse(asks, advice)

    refuse.__name__ = name
    return refuse


def _comparison(name: str, sign: str, by_name: str) -> Callable[[Traced, Any], Any]:
    def compare(self: Traced, other: Any) -> Any:
        tracer = self._builder
        is_value = isinstance(other, (Operators, int, float)) or hasattr(other, "__array__")
        if other is self or not is_value or (isinstance(tracer, _Tracer) and not tracer.is_open):
            return NotImplemented  # that it is itself
        return self._refuse(f"'{sign}'", f"comparisons are called by name, x.{by_name}(y), and {_WHERE}")

    compare.__name__ = name
    return compare


for _name, (_asks, _advice) in _QUESTIONS.items():
    setattr(Traced, _name, _question(_name, _asks, _advice))
for _name, (_asks, _advice) in _COMPARISONS.items():
    setattr(Traced, _name, _comparison(_name, _asks, _advice))


def _users_line() -> str:
    """Where the innermost code that is neither ours nor NumPy's is: ` (model.py, line 3: if x > 0:)`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("opweave", "numpy"):
        frame = frame.f_back
    name, line = frame.f_code.co_filename, frame.f_lineno
    text = shorten(linecache.getline(name, line), 100, placeholder=" …")
    return f" ({name.replace(chr(92), '/').rpartition('/')[2]}, line {line}{': ' + text if text else ''})"


@dataclass(frozen=True, slots=True)
class _Given:
    """A result that is an argument: its number among them."""

    number: int


@dataclass(frozen=True, slots=True)
class _Made:
    """A result that the graph computes: its number among them."""

    number: int


class _Tracer(MLGraphBuilder):
    """Builds the graph of a function."""

    def __init__(self, context: MLContext, title: str) -> None:
        super().__init__(context)
        self.title, self.is_open = title, True
        self._arguments: dict[Operand, int] = {}
        self._captured: dict[int, tuple[Any, Operand]] = {}
        self._tensors: dict[str, MLTensor] = {}
        self._outputs: dict[str, Operand] = {}
        self._markers: dict[Operand, _Made] = {}

    def add_node(
        self, op: Op[..., Any], inputs: Mapping[str, Any], attributes: Mapping[str, Any], label: str, descs: Any
    ) -> tuple[Operand, ...]:
        node = Node(op, inputs, attributes, label, self._serial + 1)
        node.outputs = tuple(Traced(self, desc, node=node) for desc in descs)
        self._serial = node.serial
        return node.outputs

    def input(self, name: str, data_type: DataType, shape: Sequence[int]) -> MLOperand:
        desc = self.context.check_desc(data_type, shape)
        operand = self.inputs[name] = Traced(self, desc, name=name)
        return operand

    def constant(self, *args: Any) -> MLOperand:
        made = super().constant(*args)
        return Traced(self, made.desc, value=made.value)

    def as_operand(self, value: Any, data_type: DataType) -> Operand:
        """What a function finds elsewhere: arrays are constants, tensors inputs that it does not know of."""
        if not isinstance(value, (Array, MLTensor, np.ndarray)):
            return super().as_operand(value, data_type)
        known = self._captured.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, (Array, MLTensor)) and value.context is not self.context:
            raise ValidationError(f"an array of {value.context!r} in a function that runs in {self.context!r}")
        operand: Operand
        keep: Any = value  # nothing else gets its identity
        if isinstance(value, MLTensor) and not value.constant:
            name = f"tensor{len(self._tensors)}"
            operand = self.input(name, value.data_type, value.shape)
            self._tensors[name] = value
        elif isinstance(value, MLTensor):
            operand = self.constant(value)
        else:
            keep = value if isinstance(value, Array) else adopted.array(value, copy=False)
            operand = Traced(self, keep.desc, value=keep._values())
        self._captured[id(value)] = (value, keep), operand
        return operand

    def stand_in(self, value: Any) -> Any:
        """An argument with operands for its arrays."""

        def leaf(item: Any) -> Any:
            if not isinstance(item, (Array, MLTensor)) and not _is_array(item):
                return item
            desc = item.desc if isinstance(item, (Array, MLTensor)) else describe(as_array(item, "it"), "it")
            operand = self.input(f"x{len(self._arguments)}", desc.data_type, desc.shape)
            self._arguments[operand] = len(self._arguments)
            return operand

        return _mapped(value, leaf)

    def finish(self, result: Any) -> _Program:
        """Compile what the function has returned."""
        tree = _mapped(result, self._marked)
        graph = self.build(self._outputs) if self._outputs else None
        self._built = True
        numbers = {operand.name: number for operand, number in self._arguments.items()}
        return _Program(self.context, tree, graph, numbers, self._tensors, self._captured, len(self._arguments))

    def _marked(self, value: Any) -> Any:
        """What stands for a result."""
        if isinstance(value, Operand):
            if value.builder is not self:
                raise ValidationError(f"{self.title}: a result is an operand of another graph: {shown(value)}")
            if value in self._arguments:
                return _Given(self._arguments[value])
            if value.is_input:
                return self._tensors[value.name]
            if value.is_constant:
                return _copied(self.context, value.value)
            if value not in self._markers:
                self._markers[value] = _Made(len(self._outputs))
                self._outputs[f"y{len(self._outputs)}"] = value
            return self._markers[value]
        if isinstance(value, np.ndarray):
            return _copied(self.context, value)
        if not isinstance(value, (Array, MLTensor)):
            try:
                hash(value)
            except TypeError:
                raise ValidationError(
                    f"{self.title}: results are arrays, tuples, lists and dictionaries of them, and what is hashable, "
                    f"got a {type(value).__name__}"
                ) from None
        elif isinstance(value, Array):
            value._values()
        return value


# ---------------------------------------------------------------------------------------------------------------------
# Running


class _Program:
    """A traced function.

    Args:
        context: where it runs.
        tree: what the function returned, with markers in it.
        graph: what it computes, None for nothing.
        numbers: which argument an input of the graph is.
        tensors: the inputs that are no arguments.
        captured: what the constants of the graph are memory of.
        count: how many arrays there are among the arguments.
    """

    def __init__(
        self,
        context: MLContext,
        tree: Any,
        graph: MLGraph | None,
        numbers: Mapping[str, int],
        tensors: Mapping[str, MLTensor],
        captured: Any,
        count: int,
    ) -> None:
        self.context, self.tree, self.graph, self.captured = context, tree, graph, captured
        self.tensors = [tensors[name] for name in graph.inputs if name in tensors] if graph is not None else []
        inputs = list(graph.inputs) if graph is not None else []
        names = [name for name in inputs if name in numbers] + [name for name in inputs if name in tensors]
        self.takes = [numbers[name] for name in inputs if name in numbers]
        self.takes_all = self.takes == list(range(count)) and not self.tensors
        self.program = graph.check_alive() if graph is not None else None
        self.order = [names.index(name) for name in inputs]
        outputs = list(graph.outputs.values()) if graph is not None else []
        self.outputs: list[tuple[Desc, int]] = [(desc, lazy.code_of(desc)) for desc in outputs]

    def __call__(self, leaves: list[Any]) -> Any:
        """The results for the arrays among the arguments."""
        made: list[Array] = []
        if self.program is not None:
            taken = leaves if self.takes_all else [leaves[number] for number in self.takes] + self.tensors
            pending = [leaf for leaf in taken if isinstance(leaf, Array) and leaf._array is None]
            if pending:
                deferred.force(pending)  # which takes the locks of tensors, so it must come before ours
            if any(isinstance(leaf, MLTensor) for leaf in taken):
                with Locks(list({id(leaf): leaf for leaf in taken if isinstance(leaf, MLTensor)}.values())):
                    made = self._computed(taken)
            else:
                made = self._computed(taken)
        if type(self.tree) is _Made:
            return made[self.tree.number]
        return _mapped(self.tree, lambda value: self._result(value, made, leaves))

    def _result(self, value: Any, made: Sequence[Array], leaves: Sequence[Any]) -> Any:
        """What a marker stands for."""
        if type(value) is _Made:
            return made[value.number]
        found = leaves[value.number] if type(value) is _Given else value
        if isinstance(found, MLTensor):
            with found._lock:
                return _copied(self.context, self.context._own(found, "a result"))
        return _copied(self.context, found) if isinstance(found, np.ndarray) else found

    def _computed(self, taken: list[Any]) -> list[Array]:
        sources = [
            contiguous(leaf)
            if type(leaf) is np.ndarray
            else leaf._values()
            if isinstance(leaf, Array)
            else self.context._own(leaf, "an argument")
            for leaf in taken
        ]
        targets = [memory.empty(desc) for desc, _ in self.outputs]
        assert self.program is not None
        self.program.run([sources[k] for k in self.order], targets)
        return [
            Array(self.context, desc, code, array=target)
            for (desc, code), target in zip(self.outputs, targets, strict=True)
        ]


def _copied(context: MLContext, values: np.ndarray) -> Array:
    """An array of its own memory."""
    desc = describe(values, "a result")
    own = memory.empty(desc)
    memory.copy(own, values, "a result that is not computed")
    return Array(context, desc, lazy.code_of(desc), array=own)


__all__ = ["CacheInfo", "Jitted", "jit"]
