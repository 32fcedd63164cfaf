"""Links from the API to packages that build on it, each imported on first use. The API calls none of their other functions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from .records import record

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = __name__.partition(".")[0]


@record(frozen=False)
class Link:
    """A function of the module `home`, which is imported when the link is first called.

    `(link.function or link.load())(...)` calls the function, too, without a call in between.
    """

    home: str
    function: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return (self.function or self.load())(*args)

    def load(self) -> Callable[..., Any]:
        """The function, once its module is imported."""
        import_module(f"{PACKAGE}.{self.home}")
        assert self.function is not None, self.home
        return self.function

    def provide(self, function: F) -> F:
        """Decorate the function that the link calls."""
        self.function = function
        return function


on_arrays = Link("lazy.call")
"""An operation called on arrays: `(op, args, kwargs)`."""

infer_for_all_sizes = Link("core.inference")
"""Infers the results of an operation whose operands have names in their shapes: `(evaluate, inputs, attributes)`."""

compute_real = Link("core.reals")
"""Applies a function whose result is a real number to sizes: `(name, *operands)`."""

call_custom = Link("lazy.custom_call")
"""A custom operation called with anything but a builder: `(op, args, kwargs)`."""

composite_names = Link("composites")
"""Names of the composites that Opweave brings: `()`."""

compute = Link("lazy.force")
"""Computes pending arrays: `(arrays)`."""

array_namespace = Link("array_api")
"""The module of the array API standard: `(api_version)`."""

explain = Link("inspect.explain")
"""Implements `MLGraph.explain`: `(graph)`."""

check = Link("inspect.check")
"""Implements `check` of custom operations: `(op, devices, arch, arguments)`."""

profile = Link("inspect.profile")
"""Implements `MLGraph.profile`: `(graph, inputs, input_shapes, outputs, repeat, detail)`."""

tune = Link("inspect.tune")
"""Implements `MLGraph.tune`: `(graph, inputs, seconds)`."""

watch_graph = Link("verification.watch")
"""Records how long an `MLGraph` is used, for verification: `(graph)`."""

verify_graph = Link("verification.process")
"""Makes the task of a child process that verifies a graph: `(graph, backend, device, preference, fuse, sample)`."""

save_graph = Link("saved.api")
"""Implements `MLGraph.save`: `(graph, path)`."""

load_graph = Link("saved.api")
"""Implements `MLContext.load`: `(context, path, trusted)`."""

keyed_graphs = Link("saved.keyed")
"""Implements `MLContext.save_graph` and the other methods for graphs by key: `(context)`."""

draw = Link("inspect.drawing.api")
"""Implements `MLGraph.draw`: `(graph, path, profile)`."""

profile_model = Link("inspect.profile")
"""Implements `InferenceSession.profile`: `(program, sources, targets, space, device, repeat, detail, remarks)`."""

draw_model = Link("inspect.drawing.api")
"""Implements `InferenceSession.draw`: `(compiled, inputs, outputs, title, path, profile)`."""

diff_torch = Link("pytorch.module")
"""Implements `opweave.diff` for modules of PyTorch: `(model, other, inputs, on, tolerance, progress)`."""

deferred_context = Link("lazy.deferred_context")
"""The class of the contexts of `create_context(deferred=True)`."""
