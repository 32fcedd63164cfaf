"""Custom operations between PyTorch and Opweave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.cuda_driver import cuda_context
from torch import Tensor, nn
from torch.export import Dim

import opweave as ow
from opweave.pytorch import onnx_translations
from opweave.pytorch.dynamo import compile_graph


@ow.expression
def snake(x: Any, *, alpha: float = 1.0) -> Any:
    return x + ow.expr.sin(alpha * x) ** 2 / alpha


@torch.library.custom_op("opweave_tests::snake", mutates_args=())  # type: ignore[untyped-decorator]
def torch_snake(x: Tensor, slope: float = 0.5) -> Tensor:
    return x + torch.sin(slope * x) ** 2 / slope


@torch_snake.register_fake  # type: ignore[untyped-decorator]
def _(x: Tensor, slope: float = 0.5) -> Tensor:
    return torch.empty_like(x)


class Layer(nn.Module):  # type: ignore[misc]
    """A linear layer with an operator of a library."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.linear, self.operator = nn.Linear(4, 3), operator

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.operator(self.linear(x))
        return result


def test_a_registered_operator_is_the_operation() -> None:
    ow.register_torch("opweave_tests::snake", snake, attributes={"slope": "alpha"})
    module, x = Layer(torch_snake).eval(), torch.randn(5, 4)
    compiled = ow.from_torch(module, (x,), fallback="error")
    torch.testing.assert_close(compiled(x), module(x).detach())
    assert "snake" in compiled.explain()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("snake", snake), "name must be that of an operator, as in \"mylib::snake\", got 'snake'"),
        ((3, snake), "name must be that of an operator"),
        (("opweave_tests::other", len), "opweave_tests::other needs an operation, got <built-in function len>"),
    ],
)
def test_wrong_registrations_are_refused(arguments: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ow.ValidationError) as caught:
        ow.register_torch(*arguments)
    assert message in str(caught.value)
    with pytest.raises(ow.ValidationError, match="has the attributes \\['alpha'\\], not 'beta'"):
        ow.register_torch("opweave_tests::snake", snake, attributes={"slope": "beta"})


def test_an_operation_runs_in_eager_exported_and_compiled_modules() -> None:
    operator = ow.as_torch_op(snake, "opweave_tests::made_snake")
    x = torch.randn(5, 4)
    torch.testing.assert_close(operator(x, alpha=2.0), x + torch.sin(2 * x) ** 2 / 2)
    module = Layer(operator).eval().requires_grad_(False)
    compiled = ow.from_torch(module, (x,), dynamic_shapes={"x": {0: "rows"}}, fallback="error")
    for rows in (2, 7):
        y = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(y), module(y))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, backend=compile_graph)(x), module(x))
    torch.library.opcheck(operator, (x,), {"alpha": 0.5}, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("is_named", [False, True])
def test_operations_run_on_cuda(is_named: bool) -> None:
    """Of a GPU whose driver runs CUDA C++ on the processor."""
    ow.register_torch("opweave_tests::snake", snake, attributes={"slope": "alpha"})
    operator = ow.as_torch_op(snake, "opweave_tests::snake_on_cuda")
    context = cuda_context()
    for module in (Layer(torch_snake).eval(), Layer(lambda x: operator(x, alpha=2.0)).eval()):
        x = torch.randn(5, 4)
        shapes = ({0: Dim("rows", min=2)},) if is_named else None
        program = torch.export.export(module, (x,), dynamic_shapes=shapes)
        compiled = ow.from_torch(program, context=context, fallback="error")
        for rows in (5, 3) if is_named else (5,):
            y = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(y), module(y).detach(), rtol=1e-5, atol=1e-5)
        assert {place.device for place in compiled.graph.placements()} == {context.device.name}


def test_an_operation_with_several_results_and_optional_operands() -> None:
    top = ow.as_torch_op(ow.composites.top_k, "opweave_tests::top_k", outputs=2)
    x = torch.randn(3, 6)
    values, positions = top(x, 2)
    want = torch.topk(x, 2)
    assert torch.equal(values, want.values)
    assert torch.equal(positions, want.indices)
    normalize = ow.as_torch_op(ow.composites.group_normalization, "opweave_tests::group_norm")
    image, scale = torch.randn(2, 4, 3, 3), torch.randn(4)
    torch.testing.assert_close(
        normalize(image, scale, groups=2), nn.functional.group_norm(image, 2, scale), atol=1e-5, rtol=1e-5
    )
    torch.library.opcheck(normalize, (image, scale), {"groups": 2}, test_utils=("test_schema", "test_faketensor"))


class ManyOperators(nn.Module):  # type: ignore[misc]
    """Operators of operations with attributes by position and by name, several results, and operands that may be left out."""

    def __init__(self, snake: Any, top: Any, normalize: Any) -> None:
        super().__init__()
        self.linear, self.snake, self.top, self.normalize = nn.Linear(4, 4), snake, top, normalize

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.snake(self.linear(x), alpha=2.0) + self.snake(x)
        values, positions = self.top(y, 2, largest=False)
        return self.normalize(y.reshape(-1, 4, 1, 1), groups=2, epsilon=1e-3), values, positions


def test_operators_of_operations_are_nodes_of_onnx_models(tmp_path: Any) -> None:
    """A custom operation that is declared once runs in eager PyTorch, in an exported program, and in an ONNX model."""
    module = ManyOperators(
        ow.as_torch_op(snake, "opweave_onnx::snake"),
        ow.as_torch_op(ow.composites.top_k, "opweave_onnx::top_k", outputs=2),
        ow.as_torch_op(ow.composites.group_normalization, "opweave_onnx::group_norm"),
    )
    module = module.eval().requires_grad_(False)
    path, x = tmp_path / "model.onnx", torch.randn(5, 4)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.onnx.export(program, (), path, dynamo=True, verbose=False, custom_translation_table=onnx_translations())
    session = ow.InferenceSession(path)
    compiled = ow.from_torch(program, fallback="error")
    for rows in (3, 7):
        y = torch.randn(rows, 4)
        results = session.run(None, {session.get_inputs()[0].name: y.numpy()})
        for result, converted, expected in zip(results, compiled(y), module(y), strict=True):
            np.testing.assert_allclose(result, expected.numpy(), atol=1e-5)
            torch.testing.assert_close(converted, expected, atol=1e-5, rtol=1e-5)
