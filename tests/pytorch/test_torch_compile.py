"""`torch.compile(backend="opweave")`, against eager PyTorch."""

from __future__ import annotations

import tomllib
import warnings
import weakref
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (PyTorch's word)

import opweave as ow
from opweave.pytorch import dynamo, program, runner
from opweave.pytorch.dynamo import DynamoGraph, compile_graph

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled_by_opweave(module: Any, **options: Any) -> Any:
    dynamic = options.pop("dynamic", None)
    return torch.compile(module, backend=compile_graph, dynamic=dynamic, options=options or None)


class Block(nn.Module):  # type: ignore[misc]
    """A convolution with normalisation, attention and a gated network."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.normalization = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.qkv, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, int]:
        self.calls.add_(1)
        x = F.relu(self.normalization(self.convolution(image)), inplace=True).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x, x.mean(1) + self.calls, image.shape[0]


def block(seed: int = 0) -> Block:
    torch.manual_seed(seed)
    return Block().eval()


def agree(module: nn.Module, compiled: Any, *arguments: Any) -> None:
    for got, want in zip(compiled(*arguments), module(*arguments), strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_pytorch_finds_the_back_end_by_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["opweave"].partition(":")
    assert getattr(import_module(module), name) is compile_graph


def test_a_compiled_module_agrees_with_eager_for_all_sizes() -> None:
    module = block()
    compiled = compiled_by_opweave(module)
    for batches, size in ((2, 6), (3, 6), (5, 6), (4, 7), (2, 9)):
        agree(block(), _same_buffers(compiled, module), torch.randn(batches, 3, size, size))


def _same_buffers(compiled: Any, module: Block) -> Any:
    """The compiled module with its counter as it is in a new module."""

    def call(*arguments: Any) -> Any:
        module.calls.zero_()
        return compiled(*arguments)

    return call


def test_one_graph_serves_sizes_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[DynamoGraph] = []
    prepare = DynamoGraph.prepare

    def counted(self: DynamoGraph, values: Any) -> Any:
        graphs.append(self)
        return prepare(self, values)

    monkeypatch.setattr(DynamoGraph, "prepare", counted)
    network = nn.Sequential(nn.Linear(4, 5), nn.GELU()).eval()
    compiled = compiled_by_opweave(network, dynamic=True)
    for rows in (2, 3, 7, 11):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), network(x))
    assert len(graphs) == 1


def test_buffers_that_the_module_writes_are_updated() -> None:
    module = block()
    compiled, image = compiled_by_opweave(module), torch.randn(1, 3, 4, 4)
    for count in (1, 2, 3):
        compiled(image)
        assert module.calls.item() == count


def test_weights_may_change_between_calls() -> None:
    network = nn.Linear(3, 2).eval()
    compiled, x = compiled_by_opweave(network), torch.randn(4, 3)
    torch.testing.assert_close(compiled(x), network(x))
    network.weight.mul_(2)
    torch.testing.assert_close(compiled(x), network(x))
    network.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    torch.testing.assert_close(compiled(x), network(x))
    network.weight = nn.Parameter(torch.randn(2, 3))
    torch.testing.assert_close(compiled(x), network(x))
    network.weight.data = torch.randn(2, 3)  # other memory, and the same version
    torch.testing.assert_close(compiled(x), network(x))


def test_memory_of_a_written_buffer_may_change_between_calls() -> None:
    module = block()
    compiled, image = compiled_by_opweave(module), torch.randn(1, 3, 4, 4)
    compiled(image)
    module.calls.data = torch.full((1,), 7.0)
    compiled(image)
    assert module.calls.item() == 8


def test_layers_with_the_same_code_have_their_own_weights() -> None:
    layers, x = [nn.Linear(3, 3).eval() for _ in range(3)], torch.randn(2, 3)
    for layer in layers:
        layer.compile(backend=compile_graph)
    for _ in range(2):
        for layer in layers:
            torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


def test_graph_breaks_leave_the_rest_to_python() -> None:
    network = nn.Linear(3, 3).eval()

    def function(x: Tensor) -> Tensor:
        y = network(x)
        if float(y.sum()) > 0:
            return F.relu(y)
        return network(-y)

    compiled = compiled_by_opweave(function)
    for sign in (1, -1):
        x = sign * torch.ones(2, 3)
        torch.testing.assert_close(compiled(x), function(x))


def test_arguments_are_read_where_they_are() -> None:
    compiled, x = compiled_by_opweave(lambda x: F.silu(x) * 2 + 1), torch.randn(64, 64)
    compiled(x)
    ow.memory.copies.reset()
    compiled(x)
    assert ow.memory.copies.count == 0


def test_a_language_model_agrees() -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed; `make test-torch` installs it"
    )
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    compiled = compiled_by_opweave(model)
    for length in (5, 8, 9):
        words = torch.randint(0, 64, (2, length))
        want = model(words, use_cache=False).logits
        torch.testing.assert_close(compiled(words, use_cache=False).logits, want, atol=1e-5, rtol=1e-5)


def test_a_call_that_needs_gradients_is_refused() -> None:
    compiled = compiled_by_opweave(nn.Linear(3, 2))
    with torch.enable_grad(), pytest.raises(Exception, match=r"inference_mode\(\) or torch\.no_grad\(\)"):
        compiled(torch.ones(1, 3))
    with torch.inference_mode():
        assert compiled(torch.ones(1, 3)).shape == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"speed": 3}}, "the options are device, fallback, precision, got speed"),
        ({"mode": "reduce-overhead"}, "modes belong to PyTorch's own compiler"),
        ({"options": {"fallback": "never"}}, "fallback must be 'auto' or 'error'"),
        ({"options": {"precision": "float8"}}, "precision"),
        ({"options": {"precision": "float16"}}, "cannot compute so"),
    ],
)
def test_options_are_checked(arguments: dict[str, Any], message: str) -> None:
    compiled = torch.compile(nn.ReLU(), backend=compile_graph, **arguments)
    with pytest.raises(Exception, match=message):
        compiled(torch.ones(2))


def test_options_reach_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = []
    convert = program.convert_program

    def seen(captured: Any, context: ow.MLContext, *arguments: Any, **options: Any) -> Any:
        contexts.append(context)
        return convert(captured, context, *arguments, **options)

    monkeypatch.setattr(runner, "convert_program", seen)
    network, x = nn.Linear(4, 4).eval(), torch.randn(8, 4)
    compiled = compiled_by_opweave(network, precision="ieee", device="cpu")
    torch.testing.assert_close(compiled(x), network(x), atol=1e-5, rtol=1e-5)
    assert [(context.device.name, context.precision) for context in contexts] == [("cpu", "ieee")]


def test_what_cannot_be_converted_runs_in_pytorch_with_a_warning() -> None:
    def function(x: Tensor) -> Tensor:
        return x + x[x > 0.5].sum()

    x = torch.tensor([0.25, 0.75, 1.0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = compiled_by_opweave(function)
        with pytest.warns(UserWarning, match="PyTorch runs a part of the program"):
            torch.testing.assert_close(compiled(x), function(x))
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"aten\.index\.Tensor .*the shape of its result depends on values"):
            compiled_by_opweave(function, fallback="error")(x)


def test_random_numbers_are_those_of_pytorch() -> None:
    def function(x: Tensor) -> Tensor:
        return x + torch.randn(4)

    compiled, x = compiled_by_opweave(function), torch.rand(4)
    for seed in (1, 2):
        torch.manual_seed(seed)
        result = compiled(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(result, function(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"aten\.randn\.default .*draws random numbers; pass them as an argument"):
        compiled_by_opweave(function, fallback="error")(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_memory_on_a_gpu_is_described_without_being_kept(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, 3, dtype=dtype)
    described = dynamo.BorrowedMemory.of(tensor).__cuda_array_interface__
    assert described["data"] == (tensor.data_ptr(), False)
    assert described["shape"] == (2, 3)
    assert np.dtype(described["typestr"]).itemsize == tensor.element_size()
    alive = weakref.ref(tensor)
    del tensor
    assert alive() is None


def test_arguments_on_a_gpu_are_aligned() -> None:
    whole = torch.arange(9.0)
    assert dynamo._plain(whole).data_ptr() == whole.data_ptr()
    part = dynamo._plain(whole[1:])
    assert part.data_ptr() % dynamo.ALIGNMENT == 0
    torch.testing.assert_close(part, whole[1:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no NVIDIA GPU that PyTorch can use")
def test_calls_on_a_gpu_bind_nothing_for_the_same_memory() -> None:
    compiled = compiled_by_opweave(block().cuda())
    module = block().cuda()
    images = [torch.randn(2, 3, 8, 8, device="cuda") for _ in range(3)]
    for turn in range(6):  # with other arguments, and results that are alive
        image = images[turn % 3] * (turn + 1)
        results = [compiled(image), compiled(images[0])]
        agree(module, lambda x, results=results: results[0], image)
        agree(module, lambda x, results=results: results[1], images[0])


def test_written_arguments_that_share_memory() -> None:
    """PyTorch runs these calls: graphs have their arguments apart."""

    def write(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 2

    torch._dynamo.reset()
    compiled = torch.compile(write, backend=compile_graph)
    assert compiled(torch.ones(4), torch.ones(4)).tolist() == [2.0] * 4
    mine, theirs = torch.arange(8.0), torch.arange(8.0)
    with pytest.warns(UserWarning, match="a call writes to an argument that shares memory with another one"):
        result = compiled(mine[:4], mine[2:6])
    assert torch.equal(result, write(theirs[:4], theirs[2:6]))
    assert torch.equal(mine, theirs)
    assert torch.equal(compiled(mine[:4], mine[4:]), write(theirs[:4], theirs[4:]))
    assert torch.equal(mine, theirs)
    torch._dynamo.reset()
    strict = torch.compile(write, backend=compile_graph, options={"fallback": "error"})
    with pytest.raises(ow.NotSupportedError, match="pass a copy"):
        strict(mine[:4], mine[2:6])


def test_written_argument_that_is_a_parameter() -> None:
    """PyTorch runs such a call."""
    module, witness = torch.nn.Linear(3, 3, bias=False).eval(), torch.nn.Linear(3, 3, bias=False).eval()
    witness.load_state_dict(module.state_dict())

    def write(layer: Any, x: Tensor) -> Tensor:
        return layer(x.add_(1))

    compiled = torch.compile(write, backend=compile_graph)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(module, torch.ones(3, 3))
        torch.testing.assert_close(compiled(module, module.weight.data), write(witness, witness.weight.data))


class Cast(nn.Module):  # type: ignore[misc]
    """A linear layer under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y: Tensor = self.linear(x).softmax(-1) @ torch.ones(4, 3)
        return y


@pytest.mark.parametrize("place", ["inside", "around"])
def test_autocast_casts_as_in_pytorch(place: str) -> None:
    torch._dynamo.reset()
    module = Cast().eval()
    x = torch.randn(3, 8)
    with torch.inference_mode():
        if place == "around":
            module = module.linear
        compiled = torch.compile(module, backend=compile_graph, options={"fallback": "error"})
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=place == "around"):
            result, expected = compiled(x), module(x)
        assert result.dtype is expected.dtype is torch.bfloat16
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
        if place == "around":  # outside of autocast, there is a graph of its own
            torch.testing.assert_close(compiled(x), module(x))


def test_shapes_and_branches_that_depend_on_values_break_the_graph() -> None:
    torch._dynamo.reset()
    x = torch.randn(3, 8)
    calls = [lambda x: x[x > 0] * 2, lambda x: x * 2 if x.sum() > 0 else x * 3, lambda x: x * x.sum().item()]
    for call in calls:
        torch.testing.assert_close(torch.compile(call, backend=compile_graph)(x), call(x))


def test_training_mode_is_named() -> None:
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    compiled = torch.compile(module, backend=compile_graph, options={"fallback": "error"})
    with torch.no_grad(), pytest.raises(Exception, match=r"it is in training mode; call eval\(\) before"):
        compiled(torch.randn(3, 8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no NVIDIA GPU that PyTorch can use")
def test_results_on_a_gpu_are_in_the_order_of_pytorchs_stream() -> None:
    module = block().cuda()
    compiled = compiled_by_opweave(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                image = torch.randn(2, 3, 8, 8, device="cuda")
                agree(block().cuda(), _same_buffers(compiled, module), image * 2)


def _write_and_copy(x: Tensor) -> Tensor:
    x.add_(1)
    return x.clone()


def _write_and_return(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x.t()
    y.add_(1)
    return y, x.clone(), x[0]


@torch._dynamo.disable
def _add_outside(x: Tensor) -> None:
    x.add_(10)


def _written_after_a_break(view: Any) -> Any:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        _add_outside(view(y))
        return y * 2

    return function


def _turned_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x.view(-1), x[0]
    return y.unsqueeze_(0), z.unsqueeze_(1)


def _write_data(x: Tensor) -> Tensor:
    y = x.data
    y.add_(1)
    return x * 1


RESULTS: dict[str, Any] = {
    "copy": lambda x: x.clone(),
    "argument": lambda x: x,
    "views": lambda x: (x.t(), x[0], x.view(-1), x.detach(), x[:, 1:]),
    "constants": lambda x: (torch.zeros(3), torch.zeros(3), torch.tensor([1.0, 2.0])),
    "copies": lambda x: (x.clone(), x.clone(), x.t().contiguous(), x.to(torch.float32, copy=True)),
    "same type": lambda x: (x.contiguous(), x.to(torch.float32)),
    "of a result": lambda x: (lambda y: (y, y.clone(), y))(x + 1),
    "written, copied": _write_and_copy,
    "written, returned": _write_and_return,
    "parts": lambda x: x.split(1),
    "views of a result": lambda x: (lambda y: (y, y.t(), y[0], *y.split(1)))(x + 1),
    "only views of a result": lambda x: (lambda y: (y[0], y.view(-1), y.view(torch.int32)))(x.clone()),
    "views of a transposed result": lambda x: (lambda y: (y, y.t().view(-1)))(x.t() + 1),
    "views of a constant": lambda x: (lambda y: (y, y.view(3, 1)))(torch.zeros(3)),
    "bytes": lambda x: x.view(torch.int32),
    "written behind a break": _written_after_a_break(lambda y: y.view(-1)),
    "part written behind a break": _written_after_a_break(lambda y: y.chunk(2, 1)[0]),
    "turned in place": _turned_in_place,
    "data": _write_data,
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_share_memory_as_in_eager_mode(name: str) -> None:
    """A later write to a result changes the argument where PyTorch says so, and never constants or other results."""

    def outcome(function: Any) -> list[Any]:
        x = torch.arange(6.0).reshape(2, 3)
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        tensors = (x, *results)
        shared = [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in tensors] for a in tensors]
        values = [result.tolist() for result in results]
        for result in results:
            result.fill_(7)
        return [shared, values, x.tolist()]

    compiled = compiled_by_opweave(RESULTS[name])
    for _ in range(2):
        assert outcome(compiled) == outcome(RESULTS[name])
