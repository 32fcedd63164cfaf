"""`@jit`: functions of arrays that run as graphs.

A function is traced once for each combination of shapes, data types and static arguments: called with operands, which have the
operators and methods of arrays, but no values. Their operations become the graph that later calls run.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

import numpy as np

from ..context.context import MLContext, current_context
from ..context.tensor import MLTensor
from ..context.tensors import check_alive
from ..core import dtypes
from ..core.graph import Operand
from ..memory.arrays import as_array
from ..support.cache import Cache, exact
from ..support.errors import MLError, NoValueError, ValidationError, require, user_line, with_user_line
from ..support.names import count_of, short_repr
from .array import Array
from .named_functions import NamedFunctions, Shapes
from .tracer import JitTracer, TracedFunction, is_array, is_named_tuple

P = ParamSpec("P")
R = TypeVar("R")

GRAPHS = 128
"""Maximum number of graphs of one function."""

_PLAIN = (int, str, bool, type(None), bytes, complex, type(Ellipsis))


class CacheInfo(NamedTuple):
    """Statistics of a function's cache, like those of `functools.lru_cache`."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


@overload
def jit(function: Callable[P, R], /, *, static: Sequence[str] = ()) -> Jitted[P, R]: ...
@overload
def jit(*, static: Sequence[str] = ()) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(function: Callable[..., Any] | None = None, /, *, static: Sequence[str] = ()) -> Any:
    """Run a function of arrays as one graph.

    Args:
        function: takes arrays (`opweave.Array`, NumPy's, tensors), also in tuples, lists and dictionaries, and other values,
            which must be hashable: with each new one the function is traced again.
        static: the names of parameters that are static, too, although their values are or contain arrays.

    Returns:
        The function, which returns an `opweave.Array` in place of each operand that the traced function returned.

    On a CPU, sizes that differ get names at the third combination of shapes, and further sizes compile nothing. `x.shape` then
    has an `opweave.Size` where the size changes. If a function cannot be traced with names, a message of the level INFO in the
    log `opweave` says why, and so does `explain`.

    Arrays that are not arguments (globals, members of `self`) become constants of the graph. NumPy arrays among them are
    read-only while the graph is cached, so that they cannot change unnoticed, and so are the arrays that they are views of.
    Views of writable memory and memory of other libraries are also copied. Tensors are read at each call.

    >>> import numpy as np, opweave as ow
    >>> @ow.jit
    ... def dense(x, weight, *, scale=1.0):
    ...     return (x @ weight * scale).relu()
    >>> dense(np.float32([[1, -2]]), np.float32([[1, -1], [0, 1]]), scale=2.0).tolist()
    [[2.0, 0.0]]
    >>> dense.cache_info()
    CacheInfo(hits=0, misses=1, maxsize=128, currsize=1)

    Raises:
        ValidationError: an argument is neither an array nor hashable; the function needs values of arrays while it is traced.
    """
    if function is None:
        return lambda function: Jitted(function, static)
    return Jitted(function, static)


class Jitted(Generic[P, R]):
    """A function that runs as a graph, made by `opweave.jit`; in a class it is a method."""

    def __init__(self, function: Callable[P, R], static: Sequence[str] = ()) -> None:
        require(callable(function), f"jit takes a function, got {short_repr(function)}")
        self._name = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
        lazily = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
        require(not lazily, f"jit {self._name!r}: a generator or coroutine cannot be traced")
        is_listing = isinstance(static, Iterable) and all(isinstance(name, str) for name in static)
        require(is_listing, f"jit {self._name!r}: static must be a list of names, got {short_repr(static)}")
        names = (static,) if isinstance(static, str) else tuple(static)
        parameters = list(inspect.signature(function).parameters.values())
        unknown = [name for name in names if name not in {p.name for p in parameters}]
        require(not unknown, f"jit {self._name!r}: static names parameters of the function, got {unknown}")
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = [p.name for p in parameters if p.kind in kinds]
        self._static = frozenset(names)
        self._positions = frozenset(k for k, name in enumerate(self._names) if name in self._static)
        self.graphs: Cache[Any, TracedFunction] = Cache(GRAPHS, raw=True)
        self._named: Cache[Any, NamedFunctions] = Cache(GRAPHS, raw=True)  # by key, with ranks in place of shapes
        functools.update_wrapper(self, function)
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<jit {self._name}, {len(self.graphs)} graphs>"

    def __reduce__(self) -> str:
        """Pickle and copy by name, as functions are, without graphs."""
        return str(getattr(self, "__qualname__", self._name))

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Jitted[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def cache_info(self) -> CacheInfo:
        """Return the number of calls with and without a cached graph, and the maximum and current number of graphs."""
        counts = self.graphs.statistics
        return CacheInfo(counts.hits, counts.misses, GRAPHS, counts.entries)

    def explain(self) -> str:
        """Say for which shapes the function was traced, and why sizes that change have no names, if they have none.

        >>> import numpy as np, opweave as ow
        >>> @ow.jit
        ... def total(x):
        ...     return sum(x[k] for k in range(x.shape[0]))
        >>> with ow.ml.create_context(device="reference"):
        ...     _ = total(np.ones((2, 3), "float32"))
        >>> print(total.explain())
        jit 'total', 1 graph
        """
        named = [str(functions) for _, functions in self._named.items()]
        return "\n".join([f"jit {self._name!r}, {count_of(len(self.graphs), 'graph')}", *named])

    def clear_cache(self) -> None:
        """Drop all graphs; the next call traces again."""
        self.graphs.clear()
        self._named.clear()

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R: ...  # NumPy arrays and tensors in place of arrays
    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Run the graph for these arguments; trace it first if there is none.

        With operands of a graph as arguments, the operations are added to that graph.
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
        # Unique, because the cached graph keeps the context alive.
        key.append(id(context))
        check_alive(context)
        whole = tuple(key)
        try:
            program = self.graphs.get(whole)
        except TypeError as error:
            raise ValidationError(f"jit {self._name!r}: an argument cannot be compared ({error})") from None
        if program is None:
            # One thread traces, the others wait.
            with self.graphs.turn(whole):
                program = self.graphs.peek(whole) or self.graphs.put(
                    whole, self._make(context, whole, leaves, args, kwargs)
                )
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
        return context or current_context()

    def _make(
        self, context: MLContext, key: tuple[Any, ...], leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracedFunction:
        """The function for a new key. Sizes that change between calls get names, so that further sizes compile nothing."""
        if not context.backend.takes_names:
            return self._trace(context, args, kwargs)
        with self._named.turn(form := tuple(map(_form_of, key))):
            named = self._named.make(form, NamedFunctions)
            return (
                named.find(leaves)
                or named.trace(leaves, lambda shapes: self._trace(context, args, kwargs, shapes), f"jit {self._name!r}")
                or self._trace(context, args, kwargs)
            )

    def _trace(
        self, context: MLContext, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Shapes | None = None
    ) -> TracedFunction:
        tracer = JitTracer(context, f"jit {self._name!r}", shapes)
        positional = [a if k in self._positions else tracer.stand_in(a) for k, a in enumerate(args)]
        named = {name: a if name in self._static else tracer.stand_in(a) for name, a in kwargs.items()}
        try:
            with context:
                result = self.__wrapped__(*positional, **named)
        except ValidationError as error:
            # Errors of the tracer's operands name the function already.
            if isinstance(error, NoValueError) and str(error).startswith(f"{tracer.title}: "):
                raise ValidationError(str(error)) from error.__cause__
            raise ValidationError(f"{tracer.title}: {with_user_line(error, self.__wrapped__)}") from error
        except MLError:
            raise
        except Exception as error:
            error.add_note(f"while tracing {tracer.title}{user_line(error, self.__wrapped__)}")
            raise
        finally:
            tracer.is_open = False
        return tracer.finish(result)


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


def _form_of(entry: Any) -> Any:
    """An entry of a key, with the rank of an array in place of its shape."""
    is_desc = type(entry) is tuple and len(entry) == 2 and type(entry[0]) is str and type(entry[1]) is tuple
    return (entry[0], len(entry[1])) if is_desc else entry


class _HasOperand(Exception):  # noqa: N818  (never seen by users)
    pass


def _flatten(value: Any, key: list[Any], leaves: list[Any]) -> None:
    """Append the arrays of an argument to `leaves`, and a description of everything else to `key`."""
    kind = type(value)
    if kind is np.ndarray:
        key.append((dtypes.of_array(value.dtype), value.shape))
        leaves.append(value)
    elif kind is Array or isinstance(value, (Array, MLTensor)):
        key.append((value.desc.data_type, value.desc.shape))
        leaves.append(value)
    elif kind in _PLAIN:
        key.append(exact(value))
    elif kind is tuple or kind is list or is_named_tuple(value):
        key.append((kind, len(value)))
        for item in value:
            _flatten(item, key, leaves)
    elif kind is dict or kind is OrderedDict:
        key.append((kind, tuple([_identity(name) for name in value])))
        for item in value.values():
            _flatten(item, key, leaves)
    elif isinstance(value, Operand):
        raise _HasOperand
    elif is_array(value):
        array = as_array(value, "it")
        key.append((dtypes.of_array(array.dtype), array.shape))
        leaves.append(array)
    else:
        key.append(_identity(value))


def _identity(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return exact(value)
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
