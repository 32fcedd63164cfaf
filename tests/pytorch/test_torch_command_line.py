"""Commands that take a program of PyTorch. PyTorch is the witness."""

# mypy: disable-error-code="misc, untyped-decorator"
# (PyTorch's classes have no types here.)

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from typer.testing import CliRunner

import opweave as ow
from opweave.cli import app, main


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Any, mask: Any, factor: int = 2, *, scale: Any = None) -> dict[str, Any]:
        y = self.linear(x) * factor
        return {"y": y if scale is None else y * scale, "kept": mask & (x > 0), "x": x, "rows": x.shape[0], "again": y}


class LogGamma(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.lgamma(x) + torch.eye(3)


def save(path: Path, module: nn.Module, args: Any, kwargs: Any = None, shapes: Any = None) -> Path:
    program = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a dynamic dimension, a mask, a number, and a keyword argument."""
    rows = Dim("rows", min=2)
    shapes = {"x": {0: rows}, "mask": {0: rows}, "factor": None, "scale": None}
    args = (torch.randn(5, 4), torch.ones(5, 4).bool(), 2)
    path = tmp_path_factory.mktemp("network") / "network.pt2"
    return save(path, Network(), args, {"scale": torch.tensor(3.0)}, shapes)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return self.linear(x) * self.count


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a dynamic dimension that writes to a buffer."""
    path = tmp_path_factory.mktemp("counter") / "counter.pt2"
    return save(path, Counter(), (torch.randn(5, 4),), None, {"x": {0: Dim("rows", min=2)}})


@pytest.fixture(scope="module")
def log_gamma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of which PyTorch runs one call."""
    return save(tmp_path_factory.mktemp("log_gamma") / "log_gamma.PT2", LogGamma(), (torch.eye(3),))


def call(*args: Any) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args], terminal_width=200, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def error_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: Any) -> str:
    monkeypatch.setattr(sys, "argv", ["opweave", *map(str, args)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code
    return " ".join(capsys.readouterr().err.split())


def symbol_of(path: Path) -> str:
    return str(next(iter(torch.export.load(path).range_constraints)))


def test_run_equals_torch(network: Path, tmp_path: Path) -> None:
    x, mask, scale = np.float32(np.random.randn(7, 4)), np.random.rand(7, 4) > 0.5, np.float32(1.5)
    np.savez(tmp_path / "in.npz", x=x, mask=mask)
    np.save(tmp_path / "scale.npy", scale)
    written = tmp_path / "out.npz"
    text = call("run", network, "-i", tmp_path / "in.npz", "-i", f"scale={tmp_path / 'scale.npy'}", "--device", "cpu")
    assert "[7, 3]" in text
    assert " ms on cpu in float32" in text
    with pytest.raises(Exception, match=r"an \.npz file holds arrays; \['sym_size.*'\] are sequences"):
        call("run", network, "-i", "random", "-o", written)
    path = save(tmp_path / "plain.pt2", nn.Sequential(nn.Linear(4, 3), nn.ReLU()), (torch.zeros(7, 4),))
    call("run", path, "-i", "random", "--seed", 3, "-o", written)
    expected = torch.export.load(path).module()(
        torch.from_numpy(np.random.default_rng(3).standard_normal((7, 4))).float()
    )
    torch.testing.assert_close(torch.from_numpy(np.load(written)["relu"]), expected.detach())


def test_sizes_are_those_of_example_unless_fixed(network: Path) -> None:
    assert "[5, 3]" in call("run", network, "-i", "random")
    assert "[6, 3]" in call("run", network, "-i", "random", "--fix-shapes", f"{symbol_of(network)}=6")
    assert "[8, 3]" in call("run", network, "-i", "random", "--fix-shapes", "x=8x4", "--fix-shapes", "mask=8x4")


def test_info(network: Path, log_gamma: Path, tmp_path: Path) -> None:
    text = call("info", network, "--device", "cpu", "--draw", tmp_path / "network.svg")
    assert text.startswith("cpu runs it whole: PyTorch runs none of its ")
    name = symbol_of(network)
    for line in (
        f"input x tensor(float) [{name}, 4]",
        f"input mask tensor(bool) [{name}, 4]",
        "parameters 15 in 2 tensors",
    ):
        assert line in " ".join(text.split())
    assert "linear 1" in text
    assert f"--fix-shapes {name}=SIZE" in text
    assert (tmp_path / "network.svg").read_text(encoding="utf-8").startswith("<svg")
    text = call("info", log_gamma, "--device", "cpu")
    assert text.startswith("PyTorch runs 1 of its 3 calls:\n  1 x aten.lgamma.default in ")
    assert "dynamic dimensions  none" in text


def test_info_compiles_for_fixed_shapes(network: Path) -> None:
    text = call("info", network, "--fix-shapes", f"{symbol_of(network)}=9")
    assert "compiled for x [9, 4], mask [9, 4]" in text
    assert "were taken" not in text


def test_bench_compares_with_torch(network: Path) -> None:
    name = symbol_of(network)
    text = call("bench", network, "--seconds", 0.1, "--engines", "auto", "--json", "--dynamic", f"{name}=2,3")
    measured = json.loads(text[: text.rindex("}") + 1])
    assert [engine["engine"] for engine in measured["engines"]] == ["PyTorch itself", "auto"]
    assert measured["shapes"][1]["x"] == [3, 4]
    assert all(engine["difference"] < 1e-6 and engine["median"] > 0 for engine in measured["engines"])


def test_diff_compares_with_torch(network: Path, tmp_path: Path) -> None:
    text = call("diff", network, "--on", "cpu", "--json", tmp_path / "diff.json", "--report", tmp_path / "diff.html")
    assert "against PyTorch" in text
    assert "linear 'linear'" in text
    assert "all within their tolerances" in text
    assert (tmp_path / "diff.json").exists()


def test_diff_names_first_that_differs(network: Path) -> None:
    args = ["diff", str(network), "--on", "cpu", "--tolerance", "0"]
    result = CliRunner().invoke(app, args, env={"COLUMNS": "200"})
    assert result.exit_code == 1, result.output
    assert "first" in result.output


def test_profile_measures_steps(network: Path, tmp_path: Path) -> None:
    trace, name = tmp_path / "trace.json", symbol_of(network)
    text = call("profile", network, "--repeat", 2, "--device", "cpu", "--trace", trace)
    assert "of operation" in text
    assert f"sizes: {name} = 5" in text
    assert f"--fix-shapes {name}=SIZE" in text
    assert json.loads(trace.read_text(encoding="utf-8"))
    text = call("profile", network, "--repeat", 2, "--device", "cpu", "--fix-shapes", f"{name}=9", "--json")
    assert json.loads(text)["steps"]
    assert f"sizes: {name} = 9" in call("profile", network, "--repeat", 2, "--fix-shapes", f"{name}=9")


def test_tune_measures_each_shape(network: Path) -> None:
    name = symbol_of(network)
    text = call("tune", network, "--seconds", 0, "--device", "cpu", "--shape", f"{name}=6", "--shape", "x=7x4,mask=7x4")
    assert [line.split(f"{name} = ")[1][0] for line in text.splitlines() if f"{name} = " in line] == ["6", "7"]
    assert f"{name} = 5" in call("tune", network, "--seconds", 0, "--device", "cpu")


@pytest.mark.parametrize("rows", [None, 6])
def test_convert_and_compile_write_graph(rows: int | None, counter: Path, tmp_path: Path) -> None:
    """The files compute what PyTorch does; a buffer that the program writes to is an input and an output."""
    name = symbol_of(counter)
    fixed = [] if rows is None else ["--fix-shapes", f"{name}={rows}"]
    shape = f"x: float32[{name if rows is None else rows}, 4]"
    assert shape in call("convert", counter, tmp_path, *fixed)
    assert shape in call("compile", counter, "-o", tmp_path / "counter.opweave", "--device", "cpu", *fixed)
    x, module = np.float32(np.random.randn(6, 4)), torch.export.load(counter).module()
    expected = module(torch.from_numpy(x)).detach().numpy()
    session = ow.InferenceSession(tmp_path / "counter.onnx")
    graph = ow.ml.create_context(device="cpu").load(tmp_path / "counter.opweave")
    feed = {"x": x, "b_count": np.float32([0])}
    by_names = dict(zip((item.name for item in session.get_outputs()), session.run(None, feed), strict=True))
    for results in (by_names, graph.context.compute(graph, feed)):
        assert sorted(name.removesuffix("_out") for name in results) == ["b_count", "mul"]
        np.testing.assert_allclose(results["mul"], expected, rtol=1e-5)
        assert {float(value[0]) for name, value in results.items() if "count" in name} == {1.0}
    other = {"x": x[:4], "b_count": np.float32([0])}
    if rows is None:
        assert graph.context.compute(graph, other)["mul"].shape == (4, 3)
    else:
        with pytest.raises(ow.ValidationError, match=r"\[6, 4\]"):
            graph.context.compute(graph, other)


def test_convert_writes_javascript(counter: Path, tmp_path: Path) -> None:
    call("convert", counter, tmp_path / "counter.mjs", "--fix-shapes", f"{symbol_of(counter)}=6")
    assert "builder.gemm(" in (tmp_path / "counter.mjs").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["convert", "compile"])
def test_program_that_torch_runs_in_part_is_refused(
    command: str, log_gamma: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / ("x.onnx" if command == "convert" else "x.opweave")
    text = error_of(capsys, monkeypatch, command, log_gamma, "-o", output)
    assert "lgamma" in text
    assert not output.exists()


def test_sizes_that_contradict_are_refused(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = ["--fix-shapes", "x=8x4", "--fix-shapes", "mask=9x4"]
    text = error_of(capsys, monkeypatch, "convert", network, tmp_path / "x.onnx", *fixed)
    assert f"--fix-shapes: the dimension '{symbol_of(network)}' is 8 and 9" in text


def test_convert_loses_rules_for_sizes_on_request_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = save(tmp_path / "relu.pt2", nn.ReLU(), (torch.ones(3),), shapes={"input": {0: Dim("n", max=4)}})
    for name in ("x.onnx", "x.mjs"):
        assert "--drop-size-rules" in error_of(capsys, monkeypatch, "convert", program, tmp_path / name)
        call("convert", program, tmp_path / name, "--fix-shapes", "input=4")
        call("convert", program, tmp_path / name, "--drop-size-rules")
    assert "= 5;" in error_of(capsys, monkeypatch, "convert", program, tmp_path / "y.onnx", "--fix-shapes", "input=5")


@pytest.mark.parametrize("command", ["run", "info", "bench", "diff", "profile", "tune", "convert", "compile"])
def test_option_for_onnx_is_named(
    command: str, network: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = {"convert": ["-o", "x.onnx"], "compile": ["-o", "x.opweave"]}.get(command, [])
    text = error_of(capsys, monkeypatch, command, network, "--limit", "nodes=10", *output)
    assert "--limit is for ONNX models, and network.pt2 is a program of PyTorch" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{network}", "--against", "cpu"], "--against is for ONNX models"),
        (["{network}", "{network}"], "OTHER is for ONNX models"),
    ],
)
def test_diff_refuses_another_side(
    words: list[str],
    message: str,
    network: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [word.format(network=network) for word in words]
    assert message in error_of(capsys, monkeypatch, "diff", *words)


def test_wrong_files_and_inputs(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged.pt2"
    damaged.write_bytes(network.read_bytes()[:300])
    assert "damaged.pt2: not a program of torch.export.save" in error_of(capsys, monkeypatch, "info", damaged)
    assert "No such file" in error_of(capsys, monkeypatch, "info", tmp_path / "absent.pt2")
    np.save(tmp_path / "x.npy", np.zeros((5, 4)))
    text = error_of(capsys, monkeypatch, "run", network, "-i", f"x={tmp_path / 'x.npy'}", "-i", "random")
    assert "input 'x' must be tensor(float), got an array of float64" in text
    assert "input 'x' has no value" in error_of(capsys, monkeypatch, "run", network)
    text = error_of(capsys, monkeypatch, "run", network, "-i", "random", "--fix-shapes", "x=8x5")
    assert "--fix-shapes" in text


def test_missing_torch_is_named(
    network: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "reading network.pt2 needs torch: pip install 'opweave[torch]'" in error_of(
        capsys, monkeypatch, "run", network
    )
