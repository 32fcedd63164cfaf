"""Uses the back end of back_end.py, once it is added to the package."""

import json

import numpy as np
from opweave.backends.accelerator import accelerator  # type: ignore[import-not-found]

import opweave as ow

X = np.float32([[1, -2], [-3, 4]])
found = next(device for device in ow.devices() if device.name == "accelerator")
context = ow.ml.create_context(device="accelerator")


@ow.op
def twice(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
    """Twice `x`, by a rule of the back end."""
    return x.desc


@ow.op
def thrice(self, x: ow.MLOperand):  # type: ignore[no-untyped-def]
    """Three times `x`, by a kernel of the host."""
    return x.desc


@thrice.kernel("cpu")
def _(x, out):  # type: ignore[no-untyped-def]
    np.multiply(x, 3, out=out)


accelerator.lower(twice)(lambda x: 2 * x)


def graph_of(function):  # type: ignore[no-untyped-def]
    """A graph of one input."""
    builder = ow.MLGraphBuilder(context)
    return builder.build({"y": function(builder, builder.input("x", "float32", [2, 2]))})


whole = graph_of(lambda b, x: b.matmul(twice(b, b.relu(x + 1)), b.constant(X)))
parts = graph_of(lambda b, x: b.relu(thrice(b, x + 1) + 1))
x, y = context.create_tensor("float32", [2, 2], writable=True), context.create_tensor("float32", [2, 2], readable=True)
context.write_tensor(x, X)
context.dispatch(whole, {"x": x}, {"y": y})
refused = []
for call in (
    lambda: ow.ml.create_context(device="accelerator", deferred=True),
    lambda: context.tensor_from(X),
    lambda: y.numpy(),
):
    try:
        call()
    except ow.MLError as error:
        refused.append(type(error).__name__)
result = {
    "kind": found.kind,
    "dispatched": context.read_tensor(y).tolist(),
    "computed": context.compute(parts, {"x": X})["y"].tolist(),
    "whole": [placement.device for placement in whole.placements()],
    "parts": [placement.device for placement in parts.placements()],
    "copies": sorted(copied.reason for copied in parts.profile({"x": x}, repeat=1).copies),
    "limits": sorted(context.op_support_limits())[:1],
    "drawn": parts.draw().startswith("<svg"),
    "refused": refused,
}
context.destroy()
result["destroyed"] = whole.destroyed
print(json.dumps(result))
