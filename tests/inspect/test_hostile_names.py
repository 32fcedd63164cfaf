"""Names that control terminals or the direction of text, in all that is printed, drawn or raised."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import opweave as ow
from opweave.cli import app
from opweave.context.graph import recorded_graph
from opweave.support.names import visible

HOSTILE = "n\x1b[2J\x1b]0;p\x07\x9b\u202e\u2066\u2069\u200e\u200f\u061c\ufeff\u2028\u2029\x85\u200b\u2060\xad\r"
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def safe(text: str) -> str:
    match = FORBIDDEN.search(text)
    assert match is None, ascii(text[max(0, match.start() - 80) : match.end() + 20])
    return text


def graph(name: str) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    x = builder.input(f"i{name}", "float32", [2, 2])
    y = builder.relu(x, label=f"l{name}") + 1
    return builder.build({f"o{name}": y, f"p{name}": builder.matmul(x, np.ones((2, 2), "float32"), label=f"m{name}")})


@pytest.mark.parametrize("name", [HOSTILE, "\ud800\x00", "a\nb\tc"], ids=["controls", "surrogates", "lines"])
def test_texts_of_graphs_show_codes_of_characters(name: str, tmp_path: Path) -> None:
    built = graph(name)
    texts = [repr(built), str(recorded_graph(built)), built.explain(), built._repr_html_(), str(built.draw())]
    profile: Any = built.profile({f"i{name}": np.ones((2, 2), "float32")})
    texts += [str(profile), profile._repr_html_()]
    difference = ow.diff(built)
    texts += [str(difference), *difference.conclusion(), repr(difference)]
    difference.save(tmp_path / "report.html")
    texts.append((tmp_path / "report.html").read_bytes().decode())
    for text in texts:
        safe(text)


def test_tables_of_outputs_keep_to_one_line() -> None:
    text = str(ow.diff(graph("a\nb\x1b")))
    assert r"'oa\nb\x1b'" in text
    assert not any(line.startswith("b") for line in text.splitlines())


@pytest.mark.parametrize(
    "call",
    [
        lambda g, c: c.compute(g, {}),
        lambda g, c: c.compute(g, {HOSTILE: np.ones(2)}),
        lambda g, c: c.compute(g, {f"i{HOSTILE}": np.ones(3, "float32")}),
        lambda g, c: g.profile({HOSTILE: np.ones(2)}),
        lambda g, c: ow.ml.create_context(device=HOSTILE),
        lambda g, c: ow.InferenceSession(f"/nowhere/{HOSTILE}.onnx"),
        lambda g, c: ow.MLGraphBuilder(c).input(HOSTILE, "float32", [0]),
        lambda g, c: ow.MLGraphBuilder(c).input("x", HOSTILE, [1]),
        lambda g, c: (_ for _ in ()).throw(ow.OperationError(HOSTILE)),
        lambda g, c: (_ for _ in ()).throw(ow.MissingExtraError(HOSTILE)),
    ],
)
def test_errors_show_codes_of_characters(call: Callable[..., Any]) -> None:
    built = graph(HOSTILE)
    with pytest.raises(ow.MLError) as caught:
        call(built, built.context)
    safe(str(caught.value))


def model(path: Path, *, unknown: bool = False, function: bool = False) -> Path:
    """A model, all names of which are hostile."""
    n = HOSTILE
    nodes = [
        helper.make_node("Relu", [f"i{n}"], [f"t{n}"], name=f"relu{n}"),
        helper.make_node("Add", [f"t{n}", f"c{n}"], [f"o{n}"], name=f"add{n}"),
    ]
    if unknown or function:
        nodes.append(helper.make_node(f"F{n}", [f"i{n}"], [f"u{n}"], domain=f"d{n}", name=f"call{n}"))
    whole = helper.make_graph(
        nodes,
        f"g{n}",
        [helper.make_tensor_value_info(f"i{n}", TensorProto.FLOAT, [f"size{n}", 2])],
        [helper.make_tensor_value_info(f"o{n}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(2, "float32"), f"c{n}")],
    )
    opset = helper.make_opsetid("", 17)
    body = helper.make_function(f"d{n}", f"F{n}", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [opset])
    proto = helper.make_model(
        whole, opset_imports=[opset, helper.make_opsetid(f"d{n}", 1)], ir_version=8, functions=[body] * function
    )
    proto.producer_name, proto.doc_string = f"maker{n}", f"text{n}"
    proto.metadata_props.add(key=f"key{n}", value=f"value{n}")
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("options", [{}, {"unknown": True}, {"function": True}], ids=str)
@pytest.mark.parametrize("command", ["info", "run", "diff", "convert"])
def test_commands_show_codes_of_characters(command: str, options: dict[str, bool], tmp_path: Path) -> None:
    path = model(tmp_path / "model.onnx", **options)
    arguments = {"run": [["-i", "random"], []], "convert": [[str(tmp_path / "out.onnx")]]}.get(command, [[]])
    for each in arguments:
        result = CliRunner().invoke(app, [command, str(path), *each], env={"COLUMNS": "200"})
        assert result.output or result.exception
        safe(result.stdout)
        safe(result.stderr)
        if not isinstance(result.exception, SystemExit):
            safe(str(result.exception))


def test_commands_show_codes_in_names_of_files() -> None:
    for command in ("info", "run", "chat"):
        result = CliRunner().invoke(app, [command, f"/nowhere/{HOSTILE}.onnx"], env={"COLUMNS": "200"})
        safe(result.stdout + result.stderr + str(result.exception))


def test_summaries_of_sessions_show_codes_of_characters(tmp_path: Path) -> None:
    session = ow.InferenceSession(model(tmp_path / "model.onnx", function=True))
    safe(repr(session) + session._repr_html_())
    for call in (
        lambda: session.run(None, {HOSTILE: np.ones((2, 2), "float32")}),
        lambda: session.run([HOSTILE], {f"i{HOSTILE}": np.ones((2, 2), "float32")}),
        lambda: session.run(None, {f"i{HOSTILE}": np.ones((2, 3), "float32")}),
    ):
        with pytest.raises(ow.MLError) as caught:
            call()
        safe(str(caught.value))


def test_visible_keeps_readable_text() -> None:
    text = "größer\t\N{SNOWMAN} 日本語 \N{WOMAN}\u200d\N{PERSONAL COMPUTER} עברית\nline"
    assert visible(text) == text
    assert visible("\x00\x7f\u202e\U000e0041\ud800") == r"\x00\x7f\u202e\U000e0041\ud800"
