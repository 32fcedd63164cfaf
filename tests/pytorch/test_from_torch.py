"""`from_torch`: what modules become, and how the result is called. PyTorch is the witness."""

# mypy: disable-error-code="misc, untyped-decorator"
# (PyTorch's classes and decorators have no types here.)

from __future__ import annotations

import doctest
import io
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional
from torch.utils import _pytree

import opweave as ow
from opweave import pytorch
from opweave.context.graph import recorded_graph, state_of
from opweave.pytorch import installed, order
from opweave.pytorch.module import runner_of
from opweave.pytorch.sizes import numbers_of

ROOT = Path(__file__).parents[2]

CPU = ow.ml.create_context(device="cpu", verify=False)


@dataclass
class NoTree:
    """A class that PyTorch does not take apart."""

    x: Any


def module_of(function: Any, **buffers: Any) -> nn.Module:
    """A module whose `forward` is a function of the module and its arguments."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in buffers.items():
                self.register_buffer(name, value.clone())

        def forward(self, *args: Any) -> Any:
            return function(self, *args)

    return Made().eval()


def check(function: Any, *args: Any, shapes: Any = None, calls: Any = (), **buffers: Any) -> ow.CompiledModule:
    """Convert a function, and compare calls with PyTorch's: results, and buffers and arguments afterwards."""
    module, witness = module_of(function, **buffers), module_of(function, **buffers)
    compiled = ow.from_torch(module, args, context=CPU, fallback="error", dynamic_shapes=shapes)
    for call in (args, *calls):
        mine, theirs = ([a.clone() for a in call] for _ in range(2))
        got, expected = compiled(*mine), witness(*theirs)
        torch.testing.assert_close(got, expected, equal_nan=True)
        torch.testing.assert_close(mine, theirs, equal_nan=True)
        torch.testing.assert_close(dict(module.named_buffers()), dict(witness.named_buffers()))
    return compiled


# Calls ---------------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(1), nn.Linear(64, 5))

    def forward(self, image: Any, *, scale: Any = None, flag: bool = True) -> dict[str, Any]:
        y = self.body(self.stem(image))
        return {"scores": y if scale is None else y * scale, "more": [y.argmax(-1), image.shape[0]]}


def test_result_has_structure_of_module() -> None:
    module = Network().eval()
    image = torch.randn(2, 3, 4, 4)
    compiled = ow.from_torch(module, (image,), {"scale": torch.tensor(2.0), "flag": True}, context=CPU)
    got, expected = compiled(image, flag=True, scale=torch.tensor(3.0)), module(image, scale=torch.tensor(3.0))
    assert got.keys() == expected.keys()
    torch.testing.assert_close(got["scores"], expected["scores"])
    assert torch.equal(got["more"][0], expected["more"][0])
    assert got["more"][1] == 2


def test_kind_of_results_is_that_of_arguments() -> None:
    compiled = ow.from_torch(nn.ReLU().eval(), (torch.zeros(2, 3),), context=CPU)
    array = np.float32([[-1, 0, 1], [2, -3, 4]])
    expected = np.maximum(array, 0)
    assert isinstance(compiled(array), np.ndarray)
    assert isinstance(compiled(torch.from_numpy(array)), torch.Tensor)
    tensor = compiled(CPU.tensor_from(array))
    assert isinstance(tensor, ow.MLTensor)
    for result in (compiled(array), compiled(torch.from_numpy(array)).numpy(), tensor.numpy()):
        assert np.array_equal(result, expected)


def test_bool_is_bool_outside() -> None:
    compiled = ow.from_torch(
        module_of(lambda self, x, m: (x > 0) & m), (torch.zeros(3), torch.zeros(3).bool()), context=CPU
    )
    mask = np.array([True, True, False])
    assert compiled(np.float32([1, -1, 1]), mask).tolist() == [True, False, False]
    assert compiled(np.float32([1, -1, 1]), mask).dtype == np.bool_
    assert compiled(torch.tensor([1.0, -1.0, 1.0]), torch.from_numpy(mask)).dtype is torch.bool


def test_calls_do_not_ask_for_the_structure_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch makes a class whenever it is asked, which takes longer than a small graph."""

    def fail(program: Any) -> Any:
        raise AssertionError("a call reads call_spec")

    compiled = ow.from_torch(nn.ReLU().eval(), (torch.ones(2),), context=CPU)
    compiled(torch.ones(2))
    monkeypatch.setattr(torch.export.ExportedProgram, "call_spec", property(fail))
    assert compiled(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_nothing_is_copied() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    x = torch.randn(3, 8)
    compiled = ow.from_torch(module, (x,), context=CPU)
    compiled(x)
    ow.memory.copies.reset()
    compiled(x)
    assert ow.memory.copies.count == 0
    pointers = {p.data_ptr() for p in module.parameters()}
    constants = {c.value.ctypes.data for c in _recorded(compiled).constants}
    assert pointers <= constants


def _recorded(compiled: ow.CompiledModule) -> Any:
    from opweave.context.graph import recorded_graph

    return recorded_graph(compiled.graph)


def test_names_of_dimensions() -> None:
    words = {"x": {0: "batch", 1: Dim("words", min=2)}}

    class Attend(nn.Module):
        def forward(self, x: Any) -> Any:
            q = x[:, None]
            y = functional.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0]
            return (
                y.reshape(x.shape[0] * x.shape[1], -1),
                x.shape[1],
                x.new_zeros(x.shape[0]),
                torch.arange(x.shape[1]) * 2,
            )

    module = Attend().eval()
    compiled = ow.from_torch(module, (torch.randn(2, 5, 8),), dynamic_shapes=words, context=CPU, fallback="error")
    assert str(compiled.graph.inputs["x"].shape) == "(batch, words, 8)"
    for shape in ((2, 5, 8), (3, 7, 8), (4, 2, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), module(x))


def test_exported_program_is_taken() -> None:
    module = nn.Linear(4, 2).eval()
    program = torch.export.export(module, (torch.randn(2, 4),), dynamic_shapes=({0: Dim("n")},))
    for taken in (program, program.run_decompositions()):
        compiled = ow.from_torch(taken, context=CPU)
        torch.testing.assert_close(compiled(torch.ones(5, 4)), module(torch.ones(5, 4)))
    with pytest.raises(ow.ValidationError, match="an exported program has args already"):
        ow.from_torch(program, (torch.ones(2, 4),))


def test_labels_are_modules() -> None:
    compiled = ow.from_torch(Network().eval(), (torch.randn(2, 3, 4, 4),), context=CPU)
    labels = {node.label for node in _recorded(compiled).nodes}
    assert {"stem", "body.0", "body.3"} <= labels
    assert "'body.3'" in compiled.explain()
    assert "stem" in compiled.draw()


# Writes --------------------------------------------------------------------------------------------------------------


def test_written_arguments_share_no_memory() -> None:
    class Adds(nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            a.add_(1)
            return a + b

    compiled = ow.from_torch(Adds().eval(), (torch.ones(4), torch.ones(4)), context=CPU)
    x = torch.arange(8.0)
    for a, b in ((x[:4], x[:4]), (x[:4], x[2:6])):
        with pytest.raises(ow.ValidationError, match="writes to 'a', which shares memory with 'b'"):
            compiled(a, b)
    assert x.equal(torch.arange(8.0))
    assert compiled(x[:4], x[4:]).tolist() == [5, 7, 9, 11]
    assert compiled(x[::2], x[1::2]).tolist() == [4, 8, 10, 14]


@pytest.mark.parametrize("part", [slice(None), slice(1, None)])
def test_written_state_shares_no_memory(part: slice) -> None:
    module = module_of(lambda self, x: (self.total.add_(x).sum(), self.other * 2), total=torch.ones(3))
    module.other = module.total[part]
    with pytest.raises(ow.NotSupportedError, match="writes to 'b_total', which shares memory with 'c_other'"):
        ow.from_torch(module, (torch.ones(3),), context=CPU)


def test_written_state_may_be_interleaved() -> None:
    pairs = torch.zeros(4, 2)
    module = module_of(lambda self, x: self.total.add_(x) + self.other, total=torch.zeros(4))
    module.total, module.other = pairs[:, 0], pairs[:, 1]
    compiled = ow.from_torch(module, (torch.ones(4),), context=CPU)
    assert [compiled(torch.ones(4)).tolist() for _ in range(2)] == [[1.0] * 4, [2.0] * 4]
    assert pairs.tolist() == [[2.0, 0.0]] * 4


@pytest.mark.parametrize("write", [lambda y: y[::2].add_(3), lambda y: y.diagonal().add_(1)])
def test_write_to_view_of_named_size_names_view(write: Any) -> None:
    module = module_of(lambda self, x: (y := x.clone(), write(y))[0])
    with pytest.raises(ow.NotSupportedError, match=r"from_torch: .* writes to a view made by aten\.\w+"):
        ow.from_torch(module, (torch.ones(8, 6),), dynamic_shapes=(({0: torch.export.Dim("n", min=4, max=64)},),))


def test_written_argument_is_no_parameter() -> None:
    module = module_of(lambda self, x: x.add_(1) * self.scale, scale=torch.ones(4))
    compiled = ow.from_torch(module, (torch.ones(4),), context=CPU)
    for x in (module.scale, module.scale.numpy()):
        with pytest.raises(
            ow.ValidationError, match="writes to 'args_0', which shares memory with a parameter or buffer"
        ):
            compiled(x)
    assert compiled(torch.ones(4)).tolist() == [2.0] * 4


def test_writes_to_views() -> None:
    def views(self: Any, x: Any) -> Any:
        y = x * 1
        row = y[1]
        row[2:] = 7
        y.view(-1)[0] += 5
        y.t()[1].mul_(2)
        left, right = y.chunk(2, 1)
        left.neg_()
        y.narrow(1, -2, 1).mul_(3)
        y.mT.swapaxes(0, 1).movedim((1, 0), (0, 1))[2, 1:].add_(4)
        alias = y.view(3, 4)
        y[:, 3].zero_()
        return y, row, alias + 0, right

    check(views, torch.randn(3, 4), calls=[(torch.randn(3, 4),)])


def test_writes_to_buffers_and_arguments() -> None:
    def step(self: Any, x: Any, position: Any) -> Any:
        self.cache.index_copy_(0, position, x)
        self.count += 1
        with torch.no_grad():
            self.total.add_(x.sum())
        x.mul_(2)
        return self.cache.sum(0), self.count * 1

    buffers = {"cache": torch.zeros(4, 3), "count": torch.zeros(1, dtype=torch.int64), "total": torch.zeros(())}
    calls = [(torch.randn(1, 3), torch.tensor([k])) for k in (1, 3, 0)]
    compiled = check(step, torch.randn(1, 3), torch.tensor([2]), calls=calls, **buffers)
    assert {"b_cache", "b_count", "b_total"} <= set(compiled.graph.inputs)


def test_slice_of_buffer_is_written() -> None:
    def roll(self: Any, x: Any) -> Any:
        self.window[:-1] = self.window[1:].clone()
        self.window[-1] = x
        return self.window.mean(0)

    check(roll, torch.randn(3), calls=[(torch.randn(3),)] * 3, window=torch.zeros(4, 3))


# Control flow --------------------------------------------------------------------------------------------------------


def test_branches_on_values() -> None:
    def branch(self: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    check(branch, torch.ones(3), calls=[(-torch.ones(3),)])


def steps_of_a_scan(self: Any, x: Any) -> Any:
    from torch._higher_order_ops.scan import scan

    def step(carry: Any, x: Any) -> Any:
        new = torch.tanh(carry @ self.weight + x)
        return new, (new * x).sum(-1)

    return scan(step, torch.zeros(3), x, dim=0)


@pytest.mark.parametrize("steps", [1, 4, 100])
def test_scan(steps: int) -> None:
    check(steps_of_a_scan, torch.randn(steps, 3), weight=torch.randn(3, 3))


def test_scan_of_a_named_number_of_steps() -> None:
    calls = [(torch.randn(steps, 3),) for steps in (9, 300)]
    shapes = (({0: Dim("steps", min=2)},),)  # `forward` takes *args
    check(steps_of_a_scan, torch.randn(20, 3), shapes=shapes, calls=calls, weight=torch.randn(3, 3) / 2)


def test_while_loop_on_values() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def grow(self: Any, x: Any) -> Any:
        return while_loop(
            lambda i, x: (x.sum() < 100) & (i < 50), lambda i, x: (i + 1, x * 1.5 + i), (torch.tensor(0), x)
        )

    check(grow, torch.ones(3), calls=[(torch.full((3,), 1000.0),), (torch.zeros(3),)])


def test_associative_scan() -> None:
    from importlib import import_module

    scan = import_module("torch._higher_order_ops.associative_scan").associative_scan

    def prefix(self: Any, a: Any, b: Any) -> Any:
        return scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), 0, combine_mode="generic")

    check(prefix, torch.rand(7, 3), torch.randn(7, 3))


def test_vmap() -> None:
    check(lambda self, x: torch.vmap(lambda row: torch.softmax(row, 0) * row.sum())(x), torch.randn(4, 3))


# Fallback and errors -------------------------------------------------------------------------------------------------


class Special(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = module_of(lambda self, x: torch.special.i1e(x))

    def forward(self, x: Any) -> Any:
        return self.inner(x * 2) + 1


def test_operator_without_converter_runs_in_pytorch() -> None:
    x = torch.randn(2, 3)
    compiled = ow.from_torch(Special().eval(), (x,), dynamic_shapes=({0: "n"},), context=CPU)
    for rows in (2, 5):
        torch.testing.assert_close(compiled(torch.ones(rows, 3)), Special()(torch.ones(rows, 3)))
    (call,) = compiled.fallbacks
    assert call.name == "aten.special_i1e.default"
    assert "inner" in call.place
    assert "test_from_torch.py" in call.place
    first, second = compiled.explain().splitlines()[:2]
    assert first.endswith("1 of them in PyTorch:")
    assert "aten.special_i1e.default in 'inner'" in second
    with pytest.raises(ow.NotSupportedError) as raised:
        ow.from_torch(Special().eval(), (x,), context=CPU, fallback="error")
    for text in (
        "aten.special_i1e.default",
        "'inner'",
        "test_from_torch.py:",
        "fallback='auto'",
        "opweave.pytorch.converts",
    ):
        assert text in str(raised.value)


def test_fallback_runs_on_reference() -> None:
    compiled = ow.from_torch(Special().eval(), (torch.ones(2),), context=ow.ml.create_context(device="reference"))
    torch.testing.assert_close(compiled(torch.ones(2)), Special()(torch.ones(2)))


def test_random_numbers_are_those_of_pytorch() -> None:
    def forward(self: Any, x: Any) -> Any:
        chances = torch.sigmoid(x)
        drawn = torch.rand(x.shape), torch.randint(0, x.shape[0], (3,)), torch.rand_like(torch.ones(3))
        return (
            torch.bernoulli(chances),
            *drawn,
            torch.empty_like(x).normal_(1.0, 2.0),
            torch.empty(3).bernoulli_(),
            x + 1,
        )

    module = module_of(forward)
    compiled = ow.from_torch(module, (torch.randn(4, 3),), dynamic_shapes=(({0: "n"},),), context=CPU)
    assert len(compiled.fallbacks) == 6
    for rows in (4, 5):
        x = torch.randn(rows, 3)
        torch.manual_seed(rows)
        results = compiled(x)
        torch.manual_seed(rows)
        torch.testing.assert_close(results, module(x))
    with pytest.raises(ow.NotSupportedError, match=r"aten\.rand\.default .*draws random numbers; pass them"):
        ow.from_torch(module, (torch.randn(4, 3),), context=CPU, fallback="error")


plain_tensor = torch.ones(2)


@pytest.mark.parametrize(
    ("module", "args", "message"),
    [
        (nn.Linear(2, 2), (torch.ones(1, 2),), "Linear is in training mode.*call module.eval"),
        (
            nn.Linear(2, 2, device="meta").eval(),
            (torch.ones(1, 2),),
            "weight is on the device 'meta'.*load the weights",
        ),
        (nn.ReLU().eval(), torch.ones(2), r"args must be a tuple of arguments, got a tensor; write \(x,\)"),
        (len, (), "takes a torch.nn.Module or a torch.export.ExportedProgram"),
        (nn.ReLU().eval(), (), "the arguments do not fit ReLU: missing a required argument: 'input'"),
        (nn.ReLU().eval(), (torch.ones(2), 1), "the arguments do not fit ReLU: too many positional arguments"),
        (
            module_of(lambda self, x: x.nonzero()),
            (torch.ones(2),),
            "aten.nonzero.default in .*depends on values.*torch.where",
        ),
        (module_of(lambda self, x: x[x > 0]), (torch.ones(2),), "depends on values"),
        (
            module_of(lambda self, x: x if x.sum() > 0 else -x),
            (torch.ones(2),),
            r"branch or a shape that depends on values, .*: test_from_torch\.py:\d+, .*x if x.sum\(\) > 0.*torch.where",
        ),
        (
            module_of(lambda self, x: NoTree(x)),
            (torch.ones(2),),
            r"returns .*NoTree, .*call torch\.export\.register_dataclass",
        ),
        (module_of(lambda self, x: x * x.sum().item()), (torch.ones(2),), "the number depends on values"),
        (module_of(lambda self, x: plain_tensor.add_(1) * x), (torch.ones(2),), "is no buffer.*register_buffer"),
        (
            module_of(lambda self, x: functional.instance_norm(x, self.m, self.v), m=torch.zeros(2), v=torch.ones(2)),
            (torch.ones(1, 2, 3),),
            "aten.instance_norm.default in .* updates its running statistics",
        ),
        (
            module_of(
                lambda self, x: functional.batch_norm(x, self.m, self.v, training=True),
                m=torch.ones(2),
                v=torch.ones(2),
            ),
            (torch.ones(3, 2),),
            "aten.batch_norm.default in .* updates its running statistics",
        ),
    ],
)
def test_modules_that_are_refused(module: Any, args: Any, message: str) -> None:
    with pytest.raises(ow.MLError, match=f"(?s){message}"):
        ow.from_torch(module, args, context=CPU)


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu"), pytest.raises(ow.ValidationError, match=r"autocast is on for cpu.*create_context"):
        ow.from_torch(nn.ReLU().eval(), (torch.ones(2),))

    def inside(self: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    with pytest.raises(ow.NotSupportedError, match=r"runs under torch.autocast.*remove the autocast"):
        ow.from_torch(module_of(inside), (torch.ones(2, 2),))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (((torch.ones(2, 3), 3), {}), "'n' must be 2, the value that the module was exported with, got 3"),
        (((torch.ones(2, 3),), {}), "the arguments must be as those of the export, 2 positional"),
        (((torch.ones(2, 3).double(), 2), {}), r"'x' must be torch.float32, got torch.float64"),
        (((np.ones((2, 3)), 2), {}), r"'x' must be float32, got float64; array.astype\('float32'\)"),
        (((torch.ones(2, 4), 2), {}), r"^call: input 'x' must be float32\[2, 3\], got the shape \[2, 4\]$"),
        (((np.ones((2, 4), "float32"), 2), {}), r"^call: input 'x' must be float32\[2, 3\], got the shape \[2, 4\]$"),
        (((torch.ones(6), 2), {}), r"^call: input 'x' must be float32\[2, 3\], got the shape \[6\]$"),
        (((None, 2), {}), "^call: 'x' must be a tensor, as in the export, got None; pass such arguments to from_torch"),
        (
            (([1], 2), {}),
            r"^call: args\[0\] must be a tensor or another single value, as in the export, got list of 1$",
        ),
        (((torch.ones(2, 3, device="meta"), 2), {}), "'x' is on meta"),
    ],
)
def test_calls_that_are_refused(call: Any, message: str) -> None:
    class Repeat(nn.Module):
        def forward(self, x: Any, n: int) -> Any:
            return x.repeat(n, 1)

    compiled = ow.from_torch(Repeat().eval(), (torch.ones(2, 3), 2), context=CPU)
    assert compiled(torch.ones(2, 3), 2).shape == (4, 3)
    with pytest.raises(ow.ValidationError, match=message):
        compiled(*call[0], **call[1])


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_tensors_of_contexts_that_are_refused(device: str) -> None:
    context = ow.ml.create_context(device=device)
    compiled = ow.from_torch(nn.ReLU().eval(), (torch.ones(2, 3),), context=context)
    for shape, data_type, owner, message in (
        ((2, 4), "float32", context, r"^call: input 'input' must be float32\[2, 3\], got the shape \[2, 4\]$"),
        ((2, 3), "int32", context, "^call: 'input' must be float32, got int32$"),
        ((2, 3), "float32", ow.ml.create_context(device=device), "^call: 'input' is a tensor of another context$"),
    ):
        tensor = owner.tensor_from(np.ones(shape, data_type))
        with pytest.raises(ow.ValidationError, match=message):
            compiled(tensor)


def test_sizes_of_names_that_differ_are_refused() -> None:
    shapes = ({0: "n"}, {0: "n"})
    args = (torch.ones(2, 3), torch.ones(2, 3))
    module = module_of(lambda self, x, y: x + y)
    module.forward = lambda x, y: x + y
    compiled = ow.from_torch(module, args, dynamic_shapes=shapes, context=CPU)
    for make in (lambda rows: torch.ones(rows, 3), lambda rows: CPU.tensor_from(np.ones((rows, 3), "float32"))):
        with pytest.raises(ow.ValidationError, match=r"^call: n is 2 in input 'x' and 3 in input 'y'$"):
            compiled(make(2), make(3))
        assert compiled(make(4), make(4)).shape == (4, 3)


@pytest.mark.parametrize(
    ("function", "dim", "sizes", "refused", "rule"),
    [
        (lambda x, d: x * 2 if x.shape[0] <= 5 else x - 1, "n", (0, 1, 3, 5), (6, 9), "x.shape[0] <= 5"),
        (lambda x, d: x * 2 if x.shape[0] > 3 else x - 1, "n", (4, 9), (0, 1, 3), "x.shape[0] >= 4"),
        (lambda x, d: x * 2 if x.shape[0] % 2 == 0 else x - 1, "n", (0, 2, 6), (1, 5), "x.shape[0] % 2 == 0"),
        (lambda x, d: x * 2, Dim("n", min=3, max=4), (3, 4), (2, 5), ""),
        (lambda x, d: x.shape[0] * 2 if x.shape[0] > 3 else 1, "n", (4, 9), (3,), "x.shape[0] >= 4"),
        (lambda x, d: x[:-1] * 2, "n", (1, 2, 3), (), ""),
    ],
)
@pytest.mark.parametrize("is_saved", [False, True])
def test_sizes_of_other_branches_are_refused(
    function: Any, dim: Any, sizes: Any, refused: Any, rule: str, is_saved: bool, tmp_path: Path
) -> None:
    module = module_of(None)
    module.forward = lambda x, d: (function(x, d), d["b"] + 1)

    def make(rows: int) -> Any:
        return torch.randn(rows, 2), {"b": torch.ones(rows)}

    shapes: Any = {"x": {0: dim}, "d": {"b": {0: "m"}}}
    program: Any = module
    if is_saved:  # rules are texts in files
        file = io.BytesIO()
        dims = pytorch.export.with_dims(shapes)
        torch.export.save(torch.export.export(module, make(4), dynamic_shapes=dims, strict=False), file)
        program, shapes = torch.export.load(io.BytesIO(file.getvalue())), None
    compiled = ow.from_torch(program, () if is_saved else make(4), dynamic_shapes=shapes, context=CPU)
    for rows in sizes:
        args = make(rows)
        torch.testing.assert_close(compiled(*args), module(*args))
    compiled.save(tmp_path / "rules.opweave")
    loaded = CPU.load(tmp_path / "rules.opweave")

    def load(x: Any, d: Any) -> None:
        shapes = {name: tuple(value.shape) for name, value in (("x", x), ("d_b", d["b"])) if name in loaded.inputs}
        loaded.compute_shapes(shapes)

    def fix(*args: Any) -> None:
        runner_of(compiled).graph_for(numbers_of(compiled.program, _pytree.tree_leaves(args)))

    for rows in sizes:
        load(*make(rows))
    # The graph has rules for its inputs alone.
    calls: list[Any] = [compiled, compiled.profile, fix, *([load] if "x" in loaded.inputs else [])]
    for rows in refused:
        args = make(rows)
        for call in calls:
            with pytest.raises(ow.ValidationError, match=rf"sizes with {re.escape(rule)}.*shape\[0\] = {rows};"):
                call(*args)
    # Other formats have no rules.
    for graph in (compiled.graph, loaded):
        for suffix, save in {"onnx": ow.onnx.save, "mjs": ow.js.save}.items():
            if getattr(state_of(graph), "size_rules", ()):
                with pytest.raises(ow.NotSupportedError, match=rf"sizes with {re.escape(rule)}.*drop_size_rules=True"):
                    save(graph, tmp_path / f"rules.{suffix}")
                save(graph, tmp_path / f"rules.{suffix}", drop_size_rules=True)


def test_tensor_that_is_several_arguments_of_the_example() -> None:
    module = nn.Linear(3, 3).eval()
    module.forward = lambda x, *, more: x + 10 * more[0] + 100 * more[1] + module.weight + module.bias
    for example in (torch.ones(3), module.bias):
        compiled = ow.from_torch(module, (example,), {"more": [example, example]}, context=CPU)
        args, more = (torch.randn(3),), [torch.randn(3), torch.randn(3)]
        torch.testing.assert_close(compiled(*args, more=more), module(*args, more=more))


def test_operators_that_write_to_their_first_argument() -> None:
    def run(self: Any, x: Any) -> Any:
        self.bits |= x
        self.bits ^= 1
        self.bits &= x + 5
        self.bits <<= 2
        self.bits >>= torch.tensor([1, 0])
        y = self.floats.clone().transpose_(0, 1)
        y.pow_(x + 1).floor_divide_(torch.tensor(2.0))
        return y, self.bits + 0

    def make() -> nn.Module:
        return module_of(run, bits=torch.tensor([1, 6]), floats=torch.tensor([[1.5, 2.0], [3.0, 4.0]]))

    compiled, module = ow.from_torch(make(), (torch.tensor([2, 3]),), context=CPU, fallback="error"), make()
    for _ in range(2):
        for got, want in zip(compiled(torch.tensor([2, 3])), module(torch.tensor([2, 3])), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("shapes", "rows", "message"),
    [
        ({"x": {-1: "n"}}, 2, r"dynamic_shapes\['x'\] is for a tensor of 2 dimensions, .* got the axis -1"),
        (({2: "n"},), 2, r"dynamic_shapes\[0\] is for a tensor of 2 dimensions, .* got the axis 2"),
        ({"x": {0: "n"}}, 1, r"\.shape\[0\] is dynamic, .*pass an example with a size of at least 2"),
    ],
)
def test_dynamic_shapes_that_pytorch_leaves_out(shapes: Any, rows: int, message: str) -> None:
    module = module_of(None)
    module.forward = lambda x: x + 1
    with pytest.raises(ow.ValidationError, match=message):
        ow.from_torch(module, (torch.ones(rows, 3),), dynamic_shapes=shapes, context=CPU)


def test_example_arguments_may_be_arrays() -> None:
    module, x = nn.Linear(3, 2).eval(), np.ones((4, 3), "float32")
    compiled = ow.from_torch(module, (x,), dynamic_shapes=({0: "n"},), context=CPU)
    np.testing.assert_allclose(compiled(x[:3]), module(torch.tensor(x[:3])).detach(), rtol=1e-6)
    with pytest.raises(
        ow.ValidationError, match=r"'input' must be a tensor, as in the export, got None; pass such arg"
    ):
        compiled(None)


def test_sizes_without_a_graph() -> None:
    module = module_of(None)
    module.forward = lambda x: (x.shape[0] * 2, x)
    compiled = ow.from_torch(module, (torch.ones(4),), dynamic_shapes=({0: "n"},), context=CPU)
    assert compiled(torch.ones(5))[0] == 10


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (
            x.shape[0] / 2,
            -x.shape[0] / 4 + 1,
            x.numel(),
            x * (x.numel() / 3),
            torch.ones(2) * (x.shape[0] / 2),
        ),
        lambda x: (x[-(x.shape[0] // 2) :], x[: -(x.shape[0] // 2)], x[x.shape[0] + 5 :], x[x.shape[0] - 2 :]),
        lambda x: (x.slice_scatter(x[: x.shape[0] // 2], 0, -(x.shape[0] // 2)), x.select(0, -(x.shape[0] // 2))),
        lambda x: functional.interpolate(x[None, None], scale_factor=(1.5, 2), mode="bilinear", align_corners=True),
    ],
)
def test_sizes_that_programs_compute(function: Any) -> None:
    module = module_of(None)
    module.forward = function
    compiled = ow.from_torch(module, (torch.randn(6, 2),), dynamic_shapes=({0: "n"},), context=CPU, fallback="error")
    for rows in (2, 5, 8):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), function(x))


def test_integers_have_no_names() -> None:
    module = module_of(None)
    module.forward = lambda x, n: x[:n]
    with pytest.raises(ow.NotSupportedError, match=r"input 'n' is s\d+, which depends on values"):
        ow.from_torch(module, (torch.ones(4), 2), dynamic_shapes=({0: "rows"}, Dim.DYNAMIC), context=CPU)


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"a": 1},
            "args[1] must be dict with the keys ['a', 'b'], as in the export, got dict with the keys ['a']",
        ),
        ({"a": 1, "b": [1]}, "args[1]['b'] must be list of 2, as in the export, got list of 1"),
        ({"a": 1, "b": (1, 1)}, "args[1]['b'] must be list of 2, as in the export, got tuple of 2"),
        ({"a": 1, "b": [1, (1, 1)]}, "args[1]['b'][1] must be Pair of 2, as in the export, got tuple of 2"),
        ({"a": 1, "b": 1}, "args[1]['b'] must be list of 2, as in the export, got a tensor or another single value"),
    ],
)
def test_wrong_structure_of_arguments_names_its_place(more: Any, message: str) -> None:
    x = torch.ones(2)
    module = module_of(lambda self, x, more: x)
    module.forward = lambda x, more: x + more["a"] + more["b"][0] + more["b"][1].right
    compiled = ow.from_torch(module, (x, {"a": x, "b": [x, Pair(x, x)]}), context=CPU)
    torch.testing.assert_close(compiled(x, {"b": [x, Pair(x, 3 * x)], "a": x}), 6 * x)
    with pytest.raises(ow.ValidationError) as raised:
        compiled(x, _pytree.tree_map(lambda leaf: x, more))
    assert str(raised.value).startswith("call: args[1]")
    assert message in str(raised.value)


def test_sparse_tensors_are_refused() -> None:
    message = r"has the layout torch\.sparse_{}, and graphs take dense tensors; call \.to_dense\(\)$"
    compiled = ow.from_torch(nn.ReLU().eval(), (torch.ones(2, 3),), context=CPU)
    for name, tensor in {"coo": torch.eye(2, 3).to_sparse(), "csr": torch.eye(2, 3).to_sparse_csr()}.items():
        with pytest.raises(ow.NotSupportedError, match=f"^call: 'input' {message.format(name)}"):
            compiled(tensor)
    with pytest.raises(ow.NotSupportedError, match=f"^from_torch: input 'input' {message.format('coo')}"):
        ow.from_torch(nn.ReLU().eval(), (torch.eye(2, 3).to_sparse(),), context=CPU)


def test_read_only_memory_is_not_written_to() -> None:
    module = module_of(lambda self, x: x)
    module.forward = lambda x: x.add_(1) * 2
    compiled = ow.from_torch(module, (torch.ones(2),), context=CPU)
    array = np.ones(2, "float32")
    assert compiled(array).tolist() == [4, 4]
    assert array.tolist() == [2, 2]
    array.flags.writeable = False
    with pytest.raises(ow.ValidationError, match=r"^call: the module writes to 'x', which is read-only; pass a copy$"):
        compiled(array)


def test_copies_are_counted() -> None:
    negative = torch.complex(torch.zeros(2, 3), torch.ones(2, 3)).conj().imag
    assert negative.is_neg()
    module = nn.ReLU().eval()
    compiled = ow.from_torch(module, (torch.ones(2, 3),), context=CPU)
    for argument, reason in ((negative, "negative views of PyTorch"), (torch.randn(3, 2).t(), "make contiguous")):
        ow.memory.copies.reset()
        assert compiled(argument).equal(module(argument))
        assert ow.memory.copies.by_reason[reason].bytes == 24
    adds = module_of(lambda self, x: x + self.part)
    adds.register_buffer("part", torch.randn(4, 6)[:, ::2])
    ow.memory.copies.reset()
    compiled = ow.from_torch(adds, (torch.ones(4, 3),), context=CPU)
    assert ow.memory.copies.by_reason["make contiguous"].bytes == 48
    assert compiled(torch.ones(4, 3)).equal(adds(torch.ones(4, 3)))


def test_converter_of_user() -> None:
    @torch.library.custom_op("opweavetest::wave", mutates_args=())
    def wave(x: torch.Tensor, speed: float) -> torch.Tensor:
        return torch.sin(x * speed)

    @wave.register_fake
    def _(x: Any, speed: float) -> Any:
        return torch.empty_like(x)

    module = module_of(lambda self, x: wave(x, 3.0))
    assert len(ow.from_torch(module, (torch.ones(2),), context=CPU).fallbacks) == 1

    @pytorch.converts("opweavetest.wave.default")
    def _(b: Any, x: Any, speed: float) -> Any:
        return b.sin(b.mul(x, speed))

    compiled = ow.from_torch(module, (torch.ones(2),), context=CPU, fallback="error")
    torch.testing.assert_close(compiled(torch.ones(2)), torch.sin(torch.ones(2) * 3))


# Differences ---------------------------------------------------------------------------------------------------------


def test_diff_finds_nothing_in_equal_modules() -> None:
    module = Network().eval()
    compiled = ow.from_torch(module, (torch.randn(2, 3, 4, 4),), context=CPU)
    difference = ow.diff(module, compiled)
    assert difference.first is None
    assert difference.is_complete
    assert {"conv2d 'stem'", "relu_ 'body.0'", "linear 'body.3'"} <= {row.title for row in difference.rows}
    assert ow.diff(compiled, inputs=(torch.randn(2, 3, 4, 4),)).first is None
    assert ow.diff(module, inputs=(torch.randn(2, 3, 4, 4),), on="reference").first is None


def test_diff_names_layer_with_planted_error(tmp_path: Any) -> None:
    module, changed = Network().eval(), Network().eval()
    changed.load_state_dict(module.state_dict())
    with torch.no_grad():
        changed.body[3].weight.mul_(1.001)
    compiled = ow.from_torch(module, (torch.randn(2, 3, 4, 4),), context=CPU)
    difference = ow.diff(changed, compiled)
    assert difference.first is not None
    assert difference.first.title == "linear 'body.3'"
    difference.save(tmp_path / "report.html")
    assert "body.3" in (tmp_path / "report.html").read_text()


def test_diff_names_wrong_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    from opweave.pytorch.registry import CONVERTERS

    module = module_of(lambda self, x: torch.tanh(torch.sigmoid(x) * 3) + 1)
    monkeypatch.setitem(CONVERTERS, "aten.sigmoid.default", (lambda b, x: b.hard_sigmoid(x), False))
    difference = ow.diff(module, ow.from_torch(module, (torch.randn(50),), context=CPU))
    assert [row.title for row in difference.found] == ["sigmoid 'sigmoid'"]


def test_diff_of_state_leaves_buffers_alone() -> None:
    def count(self: Any, x: Any) -> Any:
        self.count += 1
        return x * self.count

    module = module_of(count, count=torch.zeros(1))
    compiled = ow.from_torch(module, (torch.ones(2),), context=CPU)
    assert ow.diff(module, compiled).first is None
    assert module.count.item() == 0


def test_sizes_that_follow_from_constants() -> None:
    """Values of constants are known, so that shapes may follow from them."""

    def forward(self: Any, x: Any) -> Any:
        positions = torch.arange(0, 8)
        low, high, kept = positions[0] - positions[-1], self.high[1], torch.nonzero(positions % 3 == 0)[:, 0]
        wide = torch.ones(2, high.item()).lgamma() + x[0, 0]
        return (
            x[:, kept] * 2,
            torch.arange(low.item(), high.item(), 2) + x.sum(),
            x[:, :1].expand(-1, high.item()),
            wide,
        )

    check(forward, torch.randn(2, 8), high=torch.tensor([4, 5]))


def test_integers_between_floats() -> None:
    def forward(self: Any, start: Any, end: Any) -> Any:
        integers = torch.linspace(start, end, 8, dtype=torch.int64), torch.linspace(-3.7, end, 5, dtype=torch.int32)
        return *integers, torch.linspace(start, end, 3)

    check(forward, torch.tensor(4.7), torch.tensor(9.2))


@pytest.mark.parametrize(("rows", "is_named"), [(1, False), (3, False), (40, False), (5, True)])
def test_mixture_of_experts(rows: int, is_named: bool) -> None:
    """Experts of transformers' models: few rows read their matrices only, more rows are computed by all experts."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.manual_seed(0)
    config = MixtralConfig(hidden_size=8, intermediate_size=16, num_local_experts=6, num_experts_per_tok=2)
    config._experts_implementation = "grouped_mm"
    block = MixtralSparseMoeBlock(config).eval().requires_grad_(False)
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    shapes = ({1: Dim("rows", min=2, max=100)},) if is_named else None
    x = torch.randn(1, rows, 8)
    compiled = ow.from_torch(block, (x,), dynamic_shapes=shapes, context=CPU, fallback="error")
    for again in (x, torch.randn(1, rows + 4 * is_named, 8)):
        torch.testing.assert_close(compiled(again), block(again), rtol=1e-4, atol=1e-5)


def test_product_of_many_groups_is_left_to_pytorch() -> None:
    def forward(self: Any, rows: Any, matrices: Any, ends: Any) -> Any:
        return torch._grouped_mm(rows, matrices.mT, ends)

    ends = torch.arange(1, 33, dtype=torch.int32) * 32
    args = (torch.randn(1024, 256).bfloat16(), torch.randn(32, 512, 256).bfloat16(), ends)
    compiled = ow.from_torch(module_of(forward), args, context=CPU)
    assert [call.reason for call in compiled.fallbacks] == [
        "each of the 32 groups would compute all rows, 8.6e+09 operations"
    ]
    torch.testing.assert_close(compiled(*args), forward(None, *args))


# Loading -------------------------------------------------------------------------------------------------------------


def test_order_of_mesa_and_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of Triton behind Mesa's LLVM ends the process, so that there must be an error before."""
    monkeypatch.setattr(order, "find_spec", lambda name: object())
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(order, "mapped_libraries", lambda: {"/usr/lib/libLLVM-15.so.1", "/usr/lib/libc.so.6"})
    with pytest.raises(ow.OperationError, match=r"libLLVM-15.so.1.*`import triton` before the first context"):
        ow.from_torch(nn.ReLU().eval(), (torch.ones(2),))
    monkeypatch.setitem(sys.modules, "triton", order)
    order.check_order()


@pytest.mark.parametrize("version", ["2.12.1", "1.13.1+cu117", "2.5.0a0+gitabc"])
def test_older_version_is_named(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_by_opweave() -> None:
        torch._dynamo.reset()
        torch.compile(nn.ReLU(), backend="opweave")(torch.ones(2))

    monkeypatch.setattr(torch, "__version__", version)
    error = rf"needs torch 2\.13 or newer, and {re.escape(version)} is installed: pip install --upgrade 'torch>=2\.13'"
    with pytest.raises(ow.MissingExtraError, match=f"from_torch {error}"):
        ow.from_torch(nn.ReLU().eval(), (torch.ones(2),))
    with pytest.raises(Exception, match=error):
        compile_by_opweave()


def test_oldest_version_is_that_of_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["torch"] == [f"torch>={'.'.join(map(str, installed.MIN_TORCH))}"]


def test_names_need_no_pytorch() -> None:
    script = "import sys; sys.modules['torch'] = None; import opweave as ow; print(ow.from_torch.__name__)\n"
    script += "try:\n    ow.from_torch(len)\nexcept ow.MissingExtraError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "from_torch"
    assert "torch" in done.stdout.splitlines()[1]


@pytest.mark.parametrize("name", ["", ".custom", ".installed", ".module", ".registry", ".tensors"])
def test_examples(name: str) -> None:
    module = import_module(f"opweave.pytorch{name}")
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=options).failed == 0


class _Attends(torch.nn.Module):
    """A block with parameters that share memory, and a size that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        return self.head(torch.nn.functional.scaled_dot_product_attention(x, x, x))


def test_save_writes_a_module_that_loads_without_torch(tmp_path: Path) -> None:
    tokens = torch.arange(12).reshape(2, 6)
    length = torch.export.Dim("length", min=2, max=64)
    module = _Attends().eval()
    compiled = ow.from_torch(module, (tokens,), dynamic_shapes=({1: length},))
    compiled.save(tmp_path / "module.opweave")
    graph = compiled.graph.context.load(tmp_path / "module.opweave")
    assert graph.inputs == compiled.graph.inputs
    for count in (6, 9):
        feed = np.arange(2 * count).reshape(2, count) % 50
        (y,) = graph.context.compute(graph, {"tokens": feed}).values()
        np.testing.assert_array_equal(y, compiled(feed))


def test_save_rejects_what_pytorch_runs(tmp_path: Path) -> None:
    class Sorts(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svdvals(x) * 2

    compiled = ow.from_torch(Sorts().eval(), (torch.eye(3),))
    assert compiled.fallbacks
    with pytest.raises(ow.NotSupportedError, match=r"linalg_svdvals .*: files hold numbers, texts"):
        compiled.save(tmp_path / "module.opweave")


# Weights of few bits --------------------------------------------------------------------------------------------------


class _Int8Rows(nn.Module):
    """Integers that are widened as they are, as torchao's Int8WeightOnlyConfig has them."""

    def __init__(self, rows: int = 48, columns: int = 64, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.randint(-128, 128, (rows, columns), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(rows).to(dtype) / 100)

    def forward(self, x: Any) -> Any:
        return torch.mm(x, self.numbers.t().to(x.dtype)) * self.scale


class _Groups(nn.Module):
    """Numbers of some bits in groups, as `torch.export`'s quantisation stores them."""

    def __init__(self, low: int = -8, high: int = 7, zeros: bool = False, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.bounds = low, high
        self.register_buffer("numbers", torch.randint(low, high + 1, (48, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(48, 2) / 100)
        self.register_buffer("zeros", torch.randint(-3, 4, (48, 2)).to(torch.int8) if zeros else None)
        self.bias = nn.Parameter(torch.randn(48).to(dtype), requires_grad=False)

    def forward(self, x: Any) -> Any:
        import torch.ao.quantization.fx._decomposed

        widen = torch.ops.quantized_decomposed.dequantize_per_channel_group
        weight = widen(self.numbers, self.scale, self.zeros, *self.bounds, torch.int8, 32, x.dtype)
        return functional.linear(x, weight, self.bias)


class _Channels(nn.Module):
    """A weight of 8 bits with a scale and a zero point of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.randint(-128, 128, (48, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(48) / 100)
        self.register_buffer("zeros", torch.randint(-9, 9, (48,)))

    def forward(self, x: Any) -> Any:
        import torch.ao.quantization.fx._decomposed

        widen = torch.ops.quantized_decomposed.dequantize_per_channel
        return functional.linear(x, widen(self.numbers, self.scale, self.zeros, 0, -128, 127, torch.int8))


class _Whole(nn.Module):
    """A weight of 8 bits with one scale and one zero point, the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.randint(0, 256, (48, 64), dtype=torch.uint8))
        self.register_buffer("scale", torch.tensor(0.01))

    def forward(self, x: Any) -> Any:
        import torch.ao.quantization.fx._decomposed

        weight = torch.ops.quantized_decomposed.dequantize_per_tensor(self.numbers, 0.01, 127, 0, 255, torch.uint8)
        return x @ weight.transpose(0, 1)


@pytest.mark.parametrize("precision", ["float32", "ieee"])
@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (_Int8Rows(), "int8"),
        (_Int8Rows(dtype=torch.bfloat16), "int8"),
        (_Int8Rows(1100, 1024), "int8"),
        (_Groups(), "int4"),
        (_Groups(zeros=True), "int4"),
        (_Groups(-4, 3, zeros=True), "int4"),
        (_Groups(-128, 127), "int8"),
        (_Groups(dtype=torch.bfloat16), "int4"),
        (_Groups(dtype=torch.float16), "int4"),
        (_Channels(), "int8"),
        (_Whole(), "uint8"),
    ],
)
def test_weights_of_few_bits_stay_narrow(module: nn.Module, kind: str, precision: Any) -> None:
    dtype = getattr(module, "bias", module.scale).dtype
    context = ow.ml.create_context(device="cpu", precision=precision, verify=False)
    x = torch.randn(3, module.numbers.shape[1]).to(dtype)
    compiled = ow.from_torch(module.eval(), (x,), context=context, fallback="error")
    graph = recorded_graph(compiled.graph)
    sizes = {
        c.desc.data_type: c.desc.element_count
        for c in graph.constants
        if c.desc.element_count == module.numbers.numel()
    }
    assert sizes == {kind: module.numbers.numel()}
    result, expected = compiled(x), module(x)
    error = (result - expected).float().norm() / expected.float().norm()
    assert error < (2e-2 if precision == "float32" else 1e-5 if dtype is torch.float32 else 1e-2)
    if precision == "float32":
        assert "MatMulNBits" in str(compiled.profile(x, repeat=1, detail=True))


def test_narrow_constants_that_are_no_weights_are_computed_early() -> None:
    """Such as tables, and weights that something else reads, too."""

    def table(self: Any, x: Any) -> Any:
        return x + self.numbers.to(torch.float32)

    def shared(self: Any, x: Any) -> Any:
        weight = self.numbers.to(torch.float32)
        return x @ weight + weight[0]

    def selected(self: Any, x: Any) -> Any:
        return x @ self.numbers.to(torch.float32)

    for function in (table, shared, selected):
        numbers = torch.randint(-128, 128, (4, 4), dtype=torch.int8)
        compiled = check(function, torch.randn(4, 4), numbers=numbers)
        assert not [
            node for node in recorded_graph(compiled.graph).nodes if node.op.name in ("cast", "dequantize_linear")
        ]


def test_parts_of_subclasses_may_be_large() -> None:
    """Weights of torchao are instances of subclasses, from which programs take the integers and scales."""
    from torch.testing._internal.two_tensor import TwoTensor

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(TwoTensor(torch.randn(600, 600), torch.ones(600, 600)), requires_grad=False)

        def forward(self, x: Any) -> Any:
            return x @ self.weight.a + self.weight.b[0]

    x, module = torch.randn(2, 600), Parts().eval()
    program = torch.export.export(module, (x,))
    assert any("access_subclass" in str(node.target) for node in program.graph.nodes)
    compiled = ow.from_torch(program, context=CPU, fallback="error")
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)


EDGES: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "floor division of bytes": (lambda x: x // -3, (torch.arange(-128, 128).to(torch.int8),)),
    "floor division of int32": (lambda x: x // -3, (torch.tensor([2**31 - 1, -(2**31) + 1, 0], dtype=torch.int32),)),
    "floor division of int64": (lambda x: x // 3, (torch.tensor([2**63 - 1, -(2**63) + 1, -1]),)),
    "a view of an argument": (lambda c: (torch.view_as_real(c), c), (torch.randn(3, 4, dtype=torch.complex64),)),
    "bytes of an argument": (lambda q: (q.to(torch.uint8), q), (torch.tensor([True, False]),)),
    "angles of signed zeros": (
        torch.atan2,
        (torch.tensor([1.0, -1.0, 0.0, -0.0, -0.0]), torch.tensor([-0.0, -0.0, -0.0, -0.0, -1.0])),
    ),
    "angles of infinities": (
        torch.atan2,
        (
            torch.tensor([torch.inf, -torch.inf, torch.inf, 1.0]),
            torch.tensor([torch.inf, torch.inf, -torch.inf, -torch.inf]),
        ),
    ),
    "truth of complex numbers": (lambda c: c.bool(), (torch.tensor([0j, 2j, 1, 0.6]),)),
    "places of NaN": (lambda x, t: torch.bucketize(x, t), (torch.tensor([torch.nan, 1.0]), torch.arange(3.0))),
    "threshold of NaN": (lambda x: functional.threshold(x, 0.5, 7.0), (torch.tensor([torch.nan, 1.0, 0.0]),)),
    "the end of lerp": (lambda x, y: torch.lerp(x, y, 1.0), (torch.tensor([1e8]), torch.tensor([1.0]))),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_agree(name: str) -> None:
    function, args = EDGES[name]
    check(lambda self, *values: function(*values), *args)


@pytest.mark.parametrize("antialias", [False, True])
def test_resized_images_of_bytes_are_rounded(antialias: bool) -> None:
    def resized(x: Any) -> Any:
        return functional.interpolate(x, size=(31, 13), mode="bilinear", antialias=antialias)

    images = torch.randint(0, 256, (1, 3, 17, 23), dtype=torch.uint8)
    compiled = ow.from_torch(module_of(lambda self, x: resized(x)), (images,), context=CPU, fallback="error")
    difference = compiled(images).int() - resized(images).int()
    assert difference.abs().max() <= 1
    assert abs(difference.float().mean()) < 0.1  # PyTorch computes with a fixed point


WRITES: dict[str, Any] = {
    "to, copied": lambda x: x.to(torch.float32, copy=True),
    "to another type": lambda x: x.to(torch.float64),
    "to its type": lambda x: x.to(torch.float32),
    "type_as": lambda x: x.type_as(x),
    "contiguous, copied": lambda x: x.t().contiguous(),
    "contiguous": lambda x: x.contiguous(),
    "reshape, copied": lambda x: x.t().reshape(-1),
    "flatten, copied": lambda x: x.t().flatten(),
    "reshape": lambda x: x.reshape(-1),
    "ravel": lambda x: x.ravel(),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
    "squeeze_": lambda x: x[:1].squeeze_(0),
    "t_": lambda x: x.detach().t_(),
    "conj_physical": lambda x: x.conj_physical(),
    "sum_to_size": lambda x: x.sum_to_size(2, 3),
    "unsafe_split": lambda x: x.unsafe_split(2)[0],
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_reach_views_and_not_copies(name: str) -> None:
    """Of calls that copy what does not fit, a write to the result changes the argument only if they have not copied."""

    class Writing(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            y = WRITES[name](x)
            y.add_(1)
            return x * 1, y * 1

    x = torch.arange(6.0).reshape(2, 3)
    program = torch.export.export(Writing().eval(), (x,))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    # The tensors without memory of a program from a file share none.
    for exported in (program, torch.export.load(file)):
        ours, theirs = x.clone(), x.clone()
        for got, want in zip(ow.pytorch.from_torch(exported)(ours), Writing()(theirs), strict=True):
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours, theirs)


def test_decompositions_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch lists all operators that it composes of others, which takes as long as decomposing several of them."""

    class Combined(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return torch.broadcast_tensors(x, y)[0] + torch.broadcast_tensors(y, x)[0]

    calls = []
    listed = torch.export.default_decompositions

    def list_all() -> Any:
        calls.append(1)
        return listed()

    monkeypatch.setattr(torch.export, "default_decompositions", list_all)
    for count in (1, 3):
        x, y = torch.ones(count, 3), torch.ones(3)
        torch.testing.assert_close(ow.from_torch(Combined().eval(), (x, y))(x, y), Combined()(x, y))
    assert len(calls) <= 1


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (lambda x: torch.einsum("ij->ji", x), "made by aten.einsum"),
        (lambda x: torch.cartesian_prod(x.view(-1)), "made by aten.cartesian_prod"),
        (lambda x: torch.broadcast_tensors(x, torch.ones(2, 3))[0], "made by aten.broadcast_tensors"),
        (lambda x: torch.atleast_2d([x, x])[0], "made by aten.atleast_2d"),
        (lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0], "made by aten.meshgrid"),
        (lambda x: x.t_(), "changes the shape of an argument"),
    ],
)
def test_writes_to_views_of_several_arguments_are_refused(view: Any, reason: str) -> None:
    class Writing(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            view(x)[0].zero_()
            return x * 1

    program = torch.export.export(Writing().eval(), (torch.ones(2, 3),))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, torch.export.load(file)):
        with pytest.raises(ow.NotSupportedError, match=reason):
            ow.pytorch.from_torch(exported)


def test_results_that_no_converter_computes_are_decomposed() -> None:
    class Statistics(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            q = x.reshape(1, 2, 3, 4)
            attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
            return *torch.native_layer_norm(x, (4,), None, None, 1e-5), attention[1]

    x = torch.randn(2, 3, 4)
    for got, want in zip(ow.pytorch.from_torch(Statistics().eval(), (x,))(x), Statistics()(x), strict=True):
        torch.testing.assert_close(got, want)


def test_complex_results_without_elements() -> None:
    class Turned(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 1j

    x = torch.zeros(0, 1, 3, dtype=torch.complex64)
    assert ow.pytorch.from_torch(Turned().eval(), (x,))(x).shape == (0, 1, 3)
