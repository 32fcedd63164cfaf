"""Bounds of the work and memory that a model may use while it is loaded."""

from __future__ import annotations

from ... import memory
from ...support.errors import DataError, require
from ...support.records import record


@record(eq=True, slots=False, kw_only=True)
class ModelLimits:
    """Bounds for loading a model. A model beyond a bound is refused, with an error that names the bound.

    Attributes:
        nodes: the number of nodes, including nodes of sub-graphs, and nodes of functions at each call.
        folded_bytes: the total size of results that are computed from constants. A single result that is larger is computed
            when the model runs.
        dense_bytes: the total size of sparse initializers in dense form.

    Raises:
        ValidationError: a limit is not a positive integer.

    >>> import opweave as ow
    >>> from onnx.parser import parse_model
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    >>> ow.InferenceSession(parse_model(text.replace("Relu(x)", "Relu(x) z = Neg(y)")), limits=ow.onnx.ModelLimits(nodes=1))
    Traceback (most recent call last):
    opweave.support.errors.DataError: ...
    """

    nodes: int = 1_000_000
    folded_bytes: int = min(2**30, memory.physical() // 8)
    dense_bytes: int = min(2**30, memory.physical() // 8)

    def __post_init__(self) -> None:
        for name in ModelLimits.__annotations__:
            value = getattr(self, name)
            is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
            require(is_size, f"limits: {name} must be a positive integer, got {value!r}")

    def check(self, name: str, amount: int, subject: str) -> None:
        """Raise `DataError` if `amount` exceeds the limit called `name`; `subject` begins the message."""
        limit = getattr(self, name)
        if amount > limit:
            from ...support.formatting import size

            much, most = str(amount) if amount < 10**18 else "more than 10**18", str(limit)
            if name.endswith("_bytes") and amount < 10**18 and (rounded := size(amount)) != size(limit):
                much, most = rounded, size(limit)
            raise DataError(
                f"{subject}: {much}, more than the limit of {most}; limits=ModelLimits({name}=…) raises it (on the command "
                f"line, --limit {name}=COUNT)"
            )


DEFAULT = ModelLimits()
"""The limits of models that are loaded without `limits`."""
