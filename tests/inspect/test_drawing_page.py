"""Pages of large graphs: their groups, what they say of operations, and names that cannot break out.

`tests/web/test_drawings.py` looks at pages in Chromium.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from row_sample import examples
from support.onnx import model

import opweave as ow
from opweave import cli
from opweave.inspect.drawing.families import OTHER, family_of
from opweave.inspect.drawing.outline import MANY, Group, outline
from opweave.inspect.drawing.page import page
from opweave.inspect.drawing.picture import Box, Details, DrawnLane, Edge, Picture, scope_of
from opweave.inspect.drawing.times import times_of
from opweave.onnx.convert import operators as operators
from opweave.onnx.model.registry import CONVERTERS
from opweave.ops import Operations
from opweave.support.errors import ValidationError

CPU = ow.ml.create_context(accelerated=False)
HOSTILE = "</script><script>alert(1)</script><!--\"'&\x1b\u202e\ud800"


class Parsed(HTMLParser):
    """The elements of a page: tags, attributes, and the texts of its two scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.is_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self.is_script = tag == "script"
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.is_script = False

    def handle_data(self, data: str) -> None:
        if self.is_script:
            self.scripts[-1] += data

    @property
    def contents(self) -> Any:
        return json.loads(self.scripts[0])


def contents(drawing: str) -> Any:
    return Parsed(drawing).contents


def encoder(layers: int = 12, prefix: str = "encoder/") -> ow.MLGraph:
    """Layers of 14 operations, with labels such as "encoder/layer 0/dense 2/product"."""
    builder = ow.MLGraphBuilder(CPU)
    value = builder.input("x", "float32", [4, 4])
    weight = builder.constant(np.eye(4, dtype="float32"))
    for layer in range(layers):
        start = value
        for dense in range(4):
            scope = f"{prefix}layer {layer}/dense {dense}/" if prefix else ""
            value = builder.matmul(value, weight, label=f"{scope}product" if scope else "")
            value = builder.relu(value, label=f"{scope}relu" if scope else "")
            value = builder.tanh(value, label=f"{scope}tanh" if scope else "")
        value = builder.softmax(value, 1, label=f"{prefix}layer {layer}/soft" if prefix else "")
        value = builder.add(value, start, label=f"{prefix}layer {layer}/add" if prefix else "")
    return builder.build({"y": value})


def titles(group: Group) -> list[str]:
    return [member.title for member in group.members if isinstance(member, Group)]


def chain(names: Sequence[str], scopes: Sequence[tuple[str, ...]] | None = None) -> Picture:
    """A picture of operations, each of which reads the previous one."""
    boxes = [
        Box(name, 0, operations=(name,), details=Details(scope=scopes[index] if scopes else ()))
        for index, name in enumerate(names)
    ]
    return Picture(boxes, [Edge(k, 0, k + 1, "float32[2]") for k in range(len(names) - 1)], [DrawnLane()])


# Groups --------------------------------------------------------------------------------------------------------------


def test_page_groups_by_labels() -> None:
    groups = contents(encoder().draw())["groups"]
    assert [group["title"] for group in groups[:6]] == ["", "encoder", "layer 0", "dense 0", "dense 1", "dense 2"]
    assert sum(group["title"].startswith("layer") for group in groups) == 12


def test_page_groups_repeated_blocks() -> None:
    groups = contents(encoder(prefix="").draw())["groups"]
    assert [group["title"] for group in groups[:4]] == ["", "12 × 14 operations", "block 1", "block 2"]
    assert len(groups) == 2 + 12


def test_outline_finds_blocks_between_other_operations() -> None:
    layer = ["norm", "q", "k", "v", "softmax", "out", "up", "down"]
    root = outline(chain(["embed", "scale", *layer * 9, "norm", "head"]))
    (repeated,) = (member for member in root.members if isinstance(member, Group))
    assert repeated.title == "9 × 8 operations"
    assert [[*block.leaves()] for block in repeated.members if isinstance(block, Group)] == [
        [*range(2 + 8 * k, 10 + 8 * k)] for k in range(9)
    ]


@pytest.mark.parametrize("has_scopes", [False, True])
def test_outline_cuts_many_repeated_blocks(has_scopes: bool) -> None:
    layer, count = ["norm", "q", "k", "v", "softmax", "out", "up", "down"], 3 * MANY
    scopes = [(f"layer {k // len(layer)}",) for k in range(count * len(layer))] if has_scopes else None
    root = outline(chain(layer * count, scopes))
    assert sorted(root.leaves()) == [*range(count * len(layer))]
    groups = [root]
    for group in groups:
        assert len(group.members) <= 2 * MANY
        groups += [member for member in group.members if isinstance(member, Group)]
    assert {group.title for group in groups} >= {"part 1", "part 2", "part 3"}


def test_outline_cuts_long_sequences() -> None:
    root = outline(chain([f"op{index}" for index in range(4 * MANY)]))
    assert len(root.members) <= 2 * MANY
    assert titles(root) == [f"part {number}" for number in range(1, len(root.members) + 1)]


def test_outline_divides_modules_that_would_make_a_cycle() -> None:
    scopes = [("a",)] * 3 + [("b",)] * 3 + [("a",)] * 3
    assert titles(outline(chain(["op"] * 9, scopes))) == ["a", "b", "a (2)"]


def test_outline_absorbs_operations_without_a_module() -> None:
    scopes = [("a",)] * 3 + [()] + [("a",)] * 3 + [()]
    root = outline(chain(["op"] * 8, scopes))
    assert titles(root) == ["a"]
    assert [*root.leaves()] == [*range(8)]
    assert root.members[1:] == [7]


def test_outline_draws_many_inputs_in_the_groups_that_read_them() -> None:
    boxes = [Box(f"past {k}", 0, "input") for k in range(6)]
    boxes += [Box("op", 1, operations=("op",), details=Details(scope=(f"layer {k // 3}",))) for k in range(18)]
    edges = [Edge(k, 0, 6 + 3 * k, "float32[2]") for k in range(6)]
    edges += [Edge(k, 0, k + 1, "float32[2]") for k in range(6, 23)]
    root = outline(Picture(boxes, edges, [DrawnLane(), DrawnLane()]))
    assert titles(root) == [f"layer {k}" for k in range(6)]
    assert [next(iter(member.leaves())) for member in root.members if isinstance(member, Group)] == [*range(6)]


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    """Pictures with random edges and module names, in which modules often depend on each other in both directions."""
    count = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    boxes = [Box(f"in {k}", 0, "input") for k in range(draw(st.integers(1, 6)))]
    first, edges = len(boxes), []
    for index in range(first, first + count):
        scope = tuple(f"m{rng.integers(0, 3)}" for _ in range(rng.integers(0, 4)))
        boxes.append(Box(f"op{rng.integers(0, 3)}", 1, operations=("op",), details=Details(scope=scope)))
        for maker in {int(rng.integers(max(0, index - 9), index)) for _ in range(rng.integers(0, 3))}:
            edges.append(Edge(maker, 0, index, "float32[4]"))
    boxes.append(Box("out", 2, "output"))
    edges.append(Edge(first, 0, len(boxes) - 1, "float32[4]"))
    return Picture(boxes, edges, [DrawnLane()] * 3)


@settings(max_examples=examples(40, in_sample=10))
@given(pictures())
def test_outline_has_no_cycles(picture: Picture) -> None:
    root = outline(picture)
    assert sorted(root.leaves()) == [*range(len(picture.boxes))]

    def check(group: Group) -> None:
        home = {}
        for position, member in enumerate(group.members):
            home.update(dict.fromkeys(member.leaves() if isinstance(member, Group) else (member,), position))
            if isinstance(member, Group):
                check(member)
        for edge in picture.edges:
            if edge.source in home and edge.target in home:
                assert home[edge.source] <= home[edge.target]

    check(root)
    data = contents(page(picture, "any"))
    for group in data["groups"]:
        for source, _, target, _, _, *route in group["links"]:
            assert len(route) == group["layer"][target] - group["layer"][source] - 1


def test_scope_of_names_without_structure() -> None:
    assert [scope_of(name) for name in ("", "Conv_3", "node.1", "p2o.Mul.108", "a..b", "/Add")] == [()] * 6


# Contents ------------------------------------------------------------------------------------------------------------


def names_of_all_operations() -> Iterator[str]:
    yield from Operations.listing()
    yield from (name for _, name in CONVERTERS)


def test_all_operations_have_a_family() -> None:
    names = [*names_of_all_operations()]
    assert len(names) > 200
    assert [name for name in names if family_of(name) == OTHER] == []


def test_page_tells_all_about_an_operation() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("image", "float32", [1, 4, 8, 8])
    weight = builder.constant(np.zeros((4, 4, 3, 3), "float32"))
    stem = builder.conv2d(x, weight, padding=[1, 1, 1, 1], label="stem")
    data = contents(builder.build({"y": builder.relu(stem)}).draw(profile={"stem": 0.25, "relu": 0.5}))
    (box,) = (box for box in data["boxes"] if box["title"] == "conv2d")
    assert box["name"] == "stem"
    assert box["family"] == "convolution"
    assert data["engines"][box["engine"]] == "ONNX Runtime on cpu"
    assert data["reasons"][box["reason"]] == "native: ONNX Runtime"
    assert ["padding", "[1, 1, 1, 1]"] in box["attributes"]
    assert box["operands"] == [
        ["input", "image", "float32[1, 4, 8, 8]"],
        ["filter", "", "constant float32[4, 4, 3, 3], 576 B"],
    ]
    assert box["results"] == [["", "float32[1, 4, 8, 8]"]]
    assert (box["weights"], box["seconds"]) == ("576 B", 0.25)


def test_session_page_tells_names_and_reasons(tmp_path: Path) -> None:
    proto = model(
        [
            onnx.helper.make_node("Conv", ["x", "w"], ["c"], name="/stem/conv/Conv", kernel_shape=[3, 3]),
            onnx.helper.make_node("NonZero", ["c"], ["n"], name="/places/NonZero"),
        ],
        {"x": "float32[1, 1, 5, 5]"},
        {"n": "int64[4, n]"},
        {"w": np.ones((1, 1, 3, 3), "float32")},
    )
    session = ow.InferenceSession(proto, ow.ml.create_context(device="cpu"))
    data = contents(session.draw(tmp_path / "model.html", profile={"/stem/conv/Conv": 1e-3}))
    assert contents((tmp_path / "model.html").read_text(encoding="utf-8")) == data
    conv, nonzero = (box for box in data["boxes"] if box["family"] != "end")
    assert (conv["name"], conv["seconds"]) == ("/stem/conv/Conv", 1e-3)
    assert ["kernel_shape", "[3, 3]"] in conv["attributes"]
    assert conv["operands"][1] == ["", "w", "constant float32[1, 1, 3, 3], 36 B"]
    assert data["engines"][nonzero["engine"]] == "ONNX Runtime, as fallback"
    assert data["reasons"][nonzero["reason"]] == "the size of its result depends on data"


def test_session_page_groups_by_modules_of_pytorch() -> None:
    nodes = []
    for index in range(6):
        node = onnx.helper.make_node("Relu", [f"v{index}"], [f"v{index + 1}"], name=f"node_relu_{index}")
        scope = f": main.Net/model: net.Model/model.layers.{index // 3}: net.Layer/relu_{index}: aten.relu.default"
        node.metadata_props.add(key="namespace", value=scope)
        nodes.append(node)
    session = ow.InferenceSession(model(nodes, {"v0": "float32[2]"}, {"v6": "float32[2]"}))
    assert [group["title"] for group in contents(session.draw(profile={"node_relu_0": 1}))["groups"]] == [
        "",
        "model",
        "model.layers.0",
        "model.layers.1",
    ]


# Times ---------------------------------------------------------------------------------------------------------------


def test_times_of_profile_are_those_of_kernels() -> None:
    graph = encoder(1)
    profile = graph.profile(repeat=2, detail=True)
    data = contents(graph.draw(profile=profile))
    total = sum(box.get("seconds", 0) for box in data["boxes"])
    assert total == pytest.approx(sum(kernel.median for kernel in profile.kernels if kernel.node))


def test_times_divide_what_operations_share() -> None:
    picture = chain(["conv2d", "relu", "relu"])
    times = times_of(picture, {"conv2d + relu": 0.3, "conv2d": 1.0})
    assert {index: time.seconds for index, time in times.items()} == pytest.approx({0: 1.1, 1: 0.1, 2: 0.1})
    assert times[1].shared == "conv2d + relu"
    assert times_of(picture, {"relu": 1})[1].shared == "2 operations called relu"


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"elsewhere": 1.0}, r"draw: profile has no time of an operation of this graph; its names are \['elsewhere'\]"),
        ({"relu": -1.0}, r"finite and not negative, got \{'relu': -1.0\}"),
        ({"relu": float("nan")}, "finite and not negative"),
        ({"relu": "1 ms"}, "finite and not negative"),
        ([1.0], r"draw: profile must be a Profile, or map names to seconds, got \[1.0\]"),
        ({}, "no time of an operation"),
    ],
)
def test_draw_rejects_profile(profile: Any, message: str) -> None:
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": builder.relu(builder.input("x", "float32", [2]))})
    with pytest.raises(ValidationError, match=message):
        graph.draw(profile=profile)


def test_draw_rejects_profile_without_kernels(tmp_path: Path) -> None:
    graph = encoder(1)
    with pytest.raises(ValidationError, match="no times of kernels: measure it with detail=True"):
        graph.draw(profile=replace(graph.profile(repeat=1), kernels=()))
    with pytest.raises(ValidationError, match=r"only pages show a profile; the name of the file must end with \.html"):
        graph.draw(tmp_path / "graph.svg", profile={"relu": 1.0})
    assert not [*tmp_path.iterdir()]


# Files and notebooks -------------------------------------------------------------------------------------------------


def test_draw_chooses_the_form(tmp_path: Path) -> None:
    small, large = encoder(1), encoder()
    assert small.draw().startswith("<svg")
    assert large.draw(tmp_path / "x.svg").startswith("<svg")
    for name in ("x.html", "x.HTM"):
        drawing = small.draw(tmp_path / name)
        assert drawing.startswith("<!doctype html>")
        assert (tmp_path / name).read_text(encoding="utf-8") == drawing
    assert large.draw() == large.draw(tmp_path / "y.html")
    assert repr(large.draw()).startswith("<Drawing as a page, ")


def test_notebooks_show_a_page_in_a_frame() -> None:
    graph = encoder()
    ((tag, attributes),) = Parsed(graph._repr_html_()).tags
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"] == graph.draw()


def test_info_draws_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = tmp_path / "model.onnx", tmp_path / "model.html"
    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="only")
    onnx.save(model([node], {"x": "float32[2]"}, {"y": "float32[2]"}), path)
    monkeypatch.setattr(sys, "argv", ["opweave", "info", str(path), "--draw", str(target)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    assert f"wrote {target}" in capsys.readouterr().out
    assert [box["title"] for box in contents(target.read_text(encoding="utf-8"))["boxes"]] == ["x", "Relu", "y"]


@pytest.mark.long
def test_page_is_the_same_in_every_process() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from hashlib import sha256; from test_drawing_page import encoder\n"
        "print(sha256(encoder().draw().encode()).hexdigest())"
    )
    folder = Path(__file__).parent
    command = [sys.executable, "-c", program, str(folder)]
    path = os.pathsep.join([str(folder.parent), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path}
    other = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    assert other == sha256(encoder().draw().encode()).hexdigest()


# Hostile names -------------------------------------------------------------------------------------------------------


def test_names_cannot_break_out_of_a_page() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input(HOSTILE, "float32", [4])
    graph = builder.build({HOSTILE: builder.relu(builder.relu(x, label=HOSTILE), label=f"{HOSTILE}/{HOSTILE}/x")})
    boxes = [
        Box(HOSTILE, 1, "custom", operations=(HOSTILE,), details=Details(HOSTILE, (HOSTILE,) * 2, HOSTILE, HOSTILE))
        for _ in range(4)
    ]
    boxes[0].details = Details(attributes=((HOSTILE, HOSTILE),), reads=((HOSTILE,) * 3,), writes=((HOSTILE,) * 2,))
    picture = Picture(boxes, [Edge(0, 0, 1, HOSTILE)], [DrawnLane((HOSTILE,)), DrawnLane((HOSTILE,))])
    plain = [tag for tag, _ in Parsed(encoder(1).draw(profile={"encoder/layer 0/add": 1})).tags]
    for drawing in (page(picture, HOSTILE), graph.draw(profile={"relu": 1.0} | {HOSTILE: 1.0})):
        parsed = Parsed(drawing)
        assert [tag for tag, _ in parsed.tags] == plain, "no tag is from a name"
        assert len(parsed.scripts) == 2
        assert "<" not in parsed.scripts[0]
        drawing.encode()
        assert "\u202e" not in drawing
        assert any("</script>" in box["title"] + box.get("name", "") for box in parsed.contents["boxes"])


def test_page_runs_its_own_script_alone() -> None:
    parsed = Parsed(encoder().draw())
    (policy,) = (
        attributes["content"]
        for tag, attributes in parsed.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    digest = b64encode(sha256(parsed.scripts[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    for _, attributes in parsed.tags:
        assert not {"src", "href", "onclick", "onload", "onerror"} & attributes.keys()
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "import("):
        assert sink not in parsed.scripts[1]
