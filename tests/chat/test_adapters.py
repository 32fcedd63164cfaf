"""Adapters of language models: side products equal merged weights, and are loaded, scaled and dropped without compiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_models
from support.tiny_models import gguf
from support.webgpu_device import gpu_context
from typer.testing import CliRunner, Result

import opweave as ow
from opweave import DataError, NotSupportedError, ValidationError
from opweave.chat import GGUF, Decoder, LoRA, Model
from opweave.cli import app

CPU = ow.ml.create_context(device="cpu")
TEXT = [int(k) for k in np.random.default_rng(5).integers(0, len(tiny_models.TOKENS), 40)]
ALL = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
Weights = dict[str, np.ndarray]


def write_adapter(
    path: Path,
    weights: Mapping[str, np.ndarray],
    names: Sequence[str],
    *,
    rank: int = 3,
    alpha: float | None = 6.0,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    changes: Mapping[str, np.ndarray | None] | None = None,
    data_type: Any = np.float32,
) -> Weights:
    """Write an adapter for some weights as llama.cpp's converter does, and return what it adds to each."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    about = {"general.type": "adapter", "adapter.type": "lora", **(metadata or {})}
    for name, value in about.items():
        writer.kv_data[0].pop(name, None)
        if value is not None:
            writer.add_string(name, value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    tensors: dict[str, np.ndarray | None] = {}
    added: Weights = {}
    for name in names:
        rows, columns = weights[name].shape
        a, b = (random.standard_normal(shape).astype(data_type) / 8 for shape in ((rank, columns), (rows, rank)))
        tensors |= {f"{name}.lora_a": a, f"{name}.lora_b": b}
        added[name] = (alpha / rank if alpha else 1) * b.astype(float) @ a.astype(float)
    for name, array in (tensors | dict(changes or {})).items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return added


def merged(weights: Weights, *changes: tuple[Weights, float]) -> np.ndarray:
    """The logits of a model into whose weights the changes are merged, after each token."""
    total = dict(weights)
    for added, scale in changes:
        for name, change in added.items():
            total[name] = total[name] + scale * change
    return tiny_models.logits(total, TEXT)


def names_of(endings: Sequence[str], layers: Sequence[int] = (0, 1)) -> list[str]:
    return [f"blk.{layer}.{ending}.weight" for layer in layers for ending in endings]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Weights]:
    path = tmp_path / "model.gguf"
    return path, tiny_models.write(
        path, extra=["output.weight"], shapes={"output.weight": (len(tiny_models.TOKENS), 64)}
    )


def check(each: Decoder, wanted: np.ndarray) -> None:
    """A prompt, and then tokens one by one."""
    np.testing.assert_allclose(each.feed(TEXT[:30]), wanted[29], rtol=1e-4, atol=2e-4)
    for k in (30, 31):
        np.testing.assert_allclose(each.feed(TEXT[k : k + 1]), wanted[k], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_adapters_equal_merged_weights_and_change_without_compiling(
    device: str, model: tuple[Path, Weights], tmp_path: Path
) -> None:
    path, weights = model
    context = CPU if device == "cpu" else gpu_context()
    first = write_adapter(tmp_path / "a.gguf", weights, [*names_of(ALL), "output.weight"])
    second = write_adapter(
        tmp_path / "b.gguf", weights, names_of(["attn_q", "ffn_down"], [1]), rank=2, alpha=None, seed=1
    )
    third = write_adapter(tmp_path / "c.gguf", weights, names_of(["attn_v"]), rank=1, seed=2, data_type=np.float16)
    adapters = {name: LoRA(tmp_path / f"{name}.gguf") for name in "abc"}
    network = Model(GGUF(path), quantized=False, for_cpu=device == "cpu")
    each = Decoder(network, context, 60, adapters={"a": adapters["a"]}, adapter_rank=6)
    check(each, merged(weights, (first, 1.0)))
    graph = each.graph
    each.scale_adapters({"a": -0.5})
    assert each.tokens == []
    check(each, merged(weights, (first, -0.5)))
    each.load_adapter("b", adapters["b"], 2.0)
    assert each.adapters == {"a": -0.5, "b": 2.0}
    check(each, merged(weights, (first, -0.5), (second, 2.0)))
    each.drop_adapter("a")
    check(each, merged(weights, (second, 2.0)))
    each.load_adapter("c", adapters["c"])
    each.scale_adapters({"b": 0})
    check(each, merged(weights, (third, 1.0)))
    each.load_adapter("c", adapters["a"], 0.25)  # replaces the adapter of this name
    assert each.adapters == {"b": 0.0, "c": 0.25}
    check(each, merged(weights, (first, 0.25)))
    each.drop_adapter("b")
    each.drop_adapter("c")
    check(each, merged(weights))
    assert each.graph is graph
    assert each.adapters == {}


def test_adapters_beside_quantized_weights(tmp_path: Path) -> None:
    """Products of matrices that share their input are one, and each has its side product."""
    path = tmp_path / "model.gguf"
    formats = dict.fromkeys(["embd", *ALL], "Q4_1")
    weights = tiny_models.write(path, formats=formats)
    added = write_adapter(tmp_path / "a.gguf", weights, names_of(["attn_q", "attn_v", "ffn_up"]))
    each = Decoder(Model(GGUF(path)), CPU, 60, adapters={"a": LoRA(GGUF(tmp_path / "a.gguf"))})
    found = np.array([each.feed([token]).copy() for token in TEXT])
    wanted = merged(weights, (added, 1.0))
    assert np.sqrt(((found - wanted) ** 2).mean()) < 0.05 * wanted.std()
    assert np.sqrt(((found - merged(weights)) ** 2).mean()) > 0.2 * wanted.std()


def test_command_applies_adapters(model: tuple[Path, Weights], tmp_path: Path) -> None:
    path, weights = model
    write_adapter(tmp_path / "a=1.gguf", weights, names_of(ALL))
    write_adapter(tmp_path / "b.gguf", weights, names_of(["attn_q"]), seed=1)

    def reply(*options: str) -> Result:
        fixed = ["chat", str(path), "-p", "hello", "--temperature", "0", "--limit", "12"]
        return CliRunner().invoke(app, [*fixed, *options], env={"COLUMNS": "200"})

    first, second = str(tmp_path / "a=1.gguf"), str(tmp_path / "b.gguf")
    plain, adapted = reply(), reply("--adapter", first, "--adapter", f"{second}=0.5")
    assert plain.exit_code == adapted.exit_code == 0
    assert adapted.stdout != plain.stdout
    assert reply("--adapter", f"{first}=0").stdout == plain.stdout
    for options, message in {
        ("--adapter", f"{second}=half"): "--adapter must be PATH or PATH=SCALE, got",
        ("--adapter", second, "--adapter", second): "two adapters have the name 'b'",
        ("--adapter", f"{second}=nan"): "the scale of adapter 'b' must be a finite number in [-1e+30, 1e+30], got nan",
    }.items():
        assert message in str(reply(*options).exception)


def test_scales_that_stay_keep_the_cache(model: tuple[Path, Weights], tmp_path: Path) -> None:
    path, weights = model
    write_adapter(tmp_path / "a.gguf", weights, names_of(["attn_q"]))
    each = Decoder(Model(GGUF(path), quantized=False), CPU, 60, adapters={"a": LoRA(tmp_path / "a.gguf")})
    each.feed(TEXT[:5])
    each.scale_adapters({"a": 1})
    assert each.tokens == TEXT[:5]


Q = "blk.0.attn_q.weight"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"metadata": {"general.type": "model"}}, DataError, "general.type must be 'adapter', got 'model'"),
        ({"metadata": {"general.type": None}}, DataError, "is no adapter: general.type must be 'adapter', got 'model'"),
        ({"metadata": {"adapter.type": "dora"}}, NotSupportedError, "an adapter of type 'dora'; 'lora' is applied"),
        ({"metadata": {"adapter.type": None}}, DataError, "lacks adapter.type"),
        ({"alpha": float("nan")}, DataError, "adapter.lora.alpha must be a finite number, got nan"),
        ({"changes": {f"{Q}.lora_b": None}}, DataError, f"lacks {Q}.lora_b"),
        ({"changes": {f"{Q}.lora_b": np.ones((64, 4), np.float32)}}, DataError, r"must have 3 columns.*got \[64, 4\]"),
        ({"changes": {f"{Q}.lora_a": np.ones(3, np.float32)}}, DataError, "lora_a must have a rank of 2"),
        ({"changes": {f"{Q}.lora_a": np.full((3, 64), np.inf, np.float32)}}, DataError, "lora_a must be finite"),
        ({"changes": {Q: np.ones((64, 64), np.float32)}}, NotSupportedError, "which is not the a or b of a low-rank"),
        ({"changes": {f"token_embd.weight.lora_{k}": np.ones((4, 4), np.float32) for k in "ab"}}, NotSupportedError,
         "changes token_embd.weight; adapters of products are applied"),
        ({"changes": {f"{Q}.lora_a": None, f"{Q}.lora_b": None}}, DataError, "has no weights"),
    ],
)  # fmt: skip
def test_damaged_adapters_are_refused(
    options: dict[str, Any], error: type[Exception], message: str, model: tuple[Path, Weights], tmp_path: Path
) -> None:
    write_adapter(tmp_path / "a.gguf", model[1], [Q], **options)
    with pytest.raises(error, match=message):
        LoRA(tmp_path / "a.gguf")


def test_adapters_of_other_models_are_refused(model: tuple[Path, Weights], tmp_path: Path) -> None:
    path, weights = model
    network, one = Model(GGUF(path), quantized=False), LoRA
    wide = {**weights, Q: np.zeros((32, 64))}
    write_adapter(tmp_path / "wide.gguf", wide, [Q])
    with pytest.raises(DataError, match=r"blk.0.attn_q.weight must be \[64, 64\], as in .*, got \[32, 64\]"):
        Decoder(network, CPU, 60, adapters={"x": one(tmp_path / "wide.gguf")})
    write_adapter(tmp_path / "deep.gguf", {"blk.7.attn_q.weight": weights[Q]}, ["blk.7.attn_q.weight"])
    with pytest.raises(DataError, match=r"changes blk\.7\.attn_q\.weight, which .* does not have"):
        Decoder(network, CPU, 60, adapters={"x": one(tmp_path / "deep.gguf")})
    write_adapter(tmp_path / "qwen.gguf", weights, [Q], metadata={"general.architecture": "qwen2"})
    with pytest.raises(DataError, match="is an adapter for qwen2, and the model is llama"):
        Decoder(network, CPU, 60, adapters={"x": one(tmp_path / "qwen.gguf")})


def test_wrong_calls_are_refused(model: tuple[Path, Weights], tmp_path: Path) -> None:
    path, weights = model
    network = Model(GGUF(path), quantized=False)
    for name, endings in {"q": ["attn_q"], "v": ["attn_v"]}.items():
        write_adapter(tmp_path / f"{name}.gguf", weights, names_of(endings))
    q, v = (LoRA(tmp_path / f"{name}.gguf") for name in "qv")
    plain = Decoder(network, CPU, 60)
    assert plain.adapters == {}
    with pytest.raises(ValidationError, match="without side products takes no adapters: pass `adapters` to Decoder"):
        plain.load_adapter("q", q)
    with pytest.raises(ValidationError, match="adapter_rank must come with adapters"):
        Decoder(network, CPU, 60, adapter_rank=4)
    for rank in (0, -1, 2.0, 2**31):
        with pytest.raises(ValidationError, match="adapter_rank must be in"):
            Decoder(network, CPU, 60, adapters={"q": q}, adapter_rank=rank)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="adapter 'q' has a rank of 3, and 2 of 2 are free"):
        Decoder(network, CPU, 60, adapters={"q": q}, adapter_rank=2)
    each = Decoder(network, CPU, 60, adapters={"q": q})
    with pytest.raises(
        ValidationError, match=r"adapter .v. changes blk\.0\.attn_v, blk\.1\.attn_v: a decoder has side"
    ):
        each.load_adapter("v", v)
    with pytest.raises(ValidationError, match="adapter 'x' has a rank of 3, and 0 of 3 are free; `adapter_rank`"):
        each.load_adapter("x", q)
    with pytest.raises(ValidationError, match="there is no adapter 'x'; loaded are: 'q'"):
        each.scale_adapters({"x": 1})
    with pytest.raises(ValidationError, match="there is no adapter 'x'; loaded are: 'q'"):
        each.drop_adapter("x")
    for scale in (float("nan"), float("inf"), 1e38, 10**400, True, "1"):
        with pytest.raises(ValidationError, match="the scale of adapter 'q' must be a finite number"):
            each.scale_adapters({"q": scale})  # type: ignore[dict-item]
    assert each.adapters == {"q": 1.0}
