"""Drawings of graphs: everything is in them, nothing lies on anything else, and names cannot break out."""

from __future__ import annotations

import itertools
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper
from row_sample import examples

import opweave as ow
from opweave import cli
from opweave.inspect.drawing import render
from opweave.inspect.drawing.condense import LARGE, condense
from opweave.inspect.drawing.layout import DrawnLink, Item, layout, spread
from opweave.inspect.drawing.picture import Box, DrawnLane, Edge, Picture
from opweave.support.errors import DataError, InvalidStateError, ValidationError

CPU = ow.ml.create_context(accelerated=False)
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>&amp;\x1b\x00\ud800\"'"


@ow.op
def both(self: ow.MLGraphBuilder, x: ow.MLOperand) -> tuple[ow.Desc, ow.Desc]:
    return x.desc, ow.Desc("int32", x.shape)


@both.kernel("cpu")
def _(x: np.ndarray, out: tuple[np.ndarray, np.ndarray]) -> None:
    out[0][...] = x
    out[1][...] = x


def parsed(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


def texts(root: ElementTree.Element, kind: str = "text") -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}{kind}")]


def rectangles(root: ElementTree.Element, kind: str) -> Iterator[tuple[float, float, float, float]]:
    """Left, top, right and bottom of the rectangles of a class."""
    for element in root.iter(f"{SVG}rect"):
        if kind in element.get("class", "").split():
            x, y, width, height = (float(element.get(name, "0")) for name in ("x", "y", "width", "height"))
            yield x, y, x + width, y + height


def check_apart(root: ElementTree.Element) -> None:
    """Boxes lie within the drawing, each on its own."""
    boxes = [*rectangles(root, "box"), *rectangles(root, "end")]
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        # What stands for several operations has a second sheet behind it.
        shifted = all(abs(abs(a - b) - 4) < 0.2 for a, b in zip(one, other, strict=True))
        assert apart or shifted, (one, other)


def mixed() -> ow.MLGraph:
    """conv2d -> both (a kernel) -> conv2d, and results under several names."""
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("image", "float32", [1, 4, 8, 8])
    weight = builder.constant(np.zeros((4, 4, 3, 3), "float32"))
    stem = builder.conv2d(x, weight, padding=[1, 1, 1, 1], label="stem")
    values, kinds = both(stem, label="own")
    head = builder.mul(builder.conv2d(values, weight, label="head"), 0.5)
    return builder.build({"y": head, "twin": head, "kinds": kinds})


def test_everything_is_there() -> None:
    root = parsed(mixed().draw())
    shown = texts(root)
    for word in ("image", "conv2d", "'stem'", "both", "'own'", "'head'", "mul", "y", "twin", "kinds"):
        assert word in shown, word
    assert shown.count("conv2d") == 2
    assert shown.count("filter 4×4×3×3") == 2
    assert "b 0.5" in shown
    for text in ("float32[1, 4, 8, 8]", "int32[1, 4, 8, 8]", "float32[1, 4, 6, 6]"):
        assert text in shown
    assert [text for text in shown if text.startswith("segment")] == ["segment 0", "segment 1", "segment 2"]
    assert shown.count("ONNX Runtime") == 2
    assert any(text.startswith("test_drawing.py:") for text in shown)
    (tooltip,) = (text for text in texts(root, "title") if text.startswith("conv2d 'stem'"))
    assert "padding = [1, 1, 1, 1]" in tooltip
    assert "native on cpu: ONNX Runtime" in tooltip
    check_apart(root)


def test_custom_operations_and_copies_stand_out() -> None:
    root = parsed(mixed().draw())
    assert len(list(rectangles(root, "custom"))) == 1
    assert len(list(rectangles(root, "kernel"))) == 1 + 2  # the lane, and what lies behind its two labels
    copied = [group for group in root.iter(f"{SVG}g") if group.get("class") == "copied"]
    assert [group.findtext(f"{SVG}title") for group in copied] == ["float32[1, 4, 6, 6], copied"]


def test_draw_lanes_in_execution_order() -> None:
    root = parsed(mixed().draw())
    heads: dict[str | None, float] = {}
    for element in root.iter(f"{SVG}text"):
        heads.setdefault(element.text, float(element.get("y", "0")))
    order = ["inputs", "segment 0", "'stem'", "segment 1", "'own'", "segment 2", "'head'", "mul", "outputs"]
    places = [heads[name] for name in order]
    assert places == sorted(places)


def test_draw_one_engine_has_one_lane() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = value = builder.input("small", "float32", [1, 1, 20, 20])
    for k in range(5):
        weight = builder.constant(np.zeros((4, 1 if k == 0 else 4, 3, 3), "float32"))
        value = builder.leaky_relu(builder.conv2d(value, weight, label=f"detail {k}"), alpha=0.1)
    edge = builder.slice(x, [0, 0, 5, 5], [1, 1, 10, 10])
    root = parsed(builder.build({"large": builder.add(value, edge)}).draw())
    shown = texts(root)
    assert len(list(rectangles(root, "engine"))) > 1
    assert [text for text in shown if text.startswith("segment")] == []
    assert "ONNX Runtime" in shown
    assert shown.count("leaky_relu") == 5
    check_apart(root)


def test_draw_shows_names_in_shapes_and_sizes_of_last_run(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    x = builder.input("x", "float32", ["n", "<b>"])
    graph = builder.build({"y": builder.concat([x, x], 0)})
    root = parsed(graph.draw())
    assert {"float32[n, '<b>']", "float32[2*n, '<b>']", "not compiled yet"} <= {*texts(root)}
    assert "compiled when it first runs" in graph.draw(tmp_path / "graph.html")
    assert graph._repr_html_().startswith("<svg")
    graph.context.compute(graph, {"x": np.ones((5, 3), "float32")})
    root = parsed(graph.draw())
    assert {"float32[n, '<b>']", "ONNX Runtime"} <= {*texts(root)}
    assert root.findtext(f"{SVG}title") == "graph from x to y: n = 5, '<b>' = 3"


def test_draw_segments_with_names() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    x = builder.input("x", "float32", ["n", 4])
    values, kinds = both(builder.relu(x), label="own")
    graph = builder.build({"y": builder.concat([values, values], 0), "kinds": kinds})
    graph.context.compute(graph, {"x": np.ones((5, 4), "float32")})
    root = parsed(graph.draw())
    assert {"segment 0", "segment 1", "segment 2", "float32[n, 4]", "float32[2*n, 4]"} <= {*texts(root)}
    check_apart(root)


def test_draw_composite_divided_by_segments() -> None:
    @ow.composite
    def whole(b: Any, x: ow.MLOperand) -> Any:
        return b.abs(x) + 1

    @ow.composite
    def divided(b: Any, x: ow.MLOperand) -> Any:
        return b.exp(both(b.sqrt(x))[0])

    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [4])
    shown = texts(parsed(builder.build({"y": divided(whole(x))}).draw()))
    assert {"whole", "sqrt", "both", "exp"} <= set(shown)
    assert not {"divided", "abs", "add"} & set(shown)


def test_draw_decompositions_of_reference() -> None:
    @ow.composite
    def shifted(b: Any, x: ow.MLOperand) -> Any:
        return b.abs(x) + 1

    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    graph = builder.build({"y": builder.relu(shifted(builder.input("x", "float32", [4])))})
    root = parsed(graph.draw())
    assert {"shifted", "relu"} <= set(texts(root))
    assert any("decomposed on reference: NumPy: abs, add" in text for text in texts(root, "title"))


def test_names_cannot_break_out() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input(HOSTILE, "float32", [4])
    y = both(builder.relu(x, label=HOSTILE), label=HOSTILE)[0]
    graph = builder.build({HOSTILE: builder.relu(y, label=HOSTILE * 20)})
    for drawing in (graph.draw(), graph._repr_html_()):
        root = parsed(drawing)
        assert not list(root.iter(f"{SVG}script"))
        assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
            "svg",
            "title",
            "style",
            "rect",
            "g",
            "path",
            "text",
        }
        drawing.encode()
        assert "\x1b" not in drawing
    assert sum("<script>" in text for text in texts(parsed(drawing))) > 3
    profile = graph.profile(repeat=1)
    assert "<script>" not in profile._repr_html_()


def test_draw_escapes_characters_invalid_in_xml() -> None:
    picture = Picture([Box("a\x00\ud800b", 0, tooltip=HOSTILE)], [], [DrawnLane((HOSTILE,))])
    drawing = render(picture, HOSTILE)
    assert r"a\x00\ud800b" in drawing
    parsed(drawing)


def test_draw_writes_atomically(tmp_path: Path) -> None:
    graph, path = mixed(), tmp_path / "graph.svg"
    assert graph.draw(path) == path.read_text(encoding="utf-8")
    assert graph.draw(str(path)) == graph.draw()
    with pytest.raises(DataError, match="there is no folder"):
        graph.draw(tmp_path / "nowhere" / "graph.svg")


def test_draw_rejects_other_file_names(tmp_path: Path) -> None:
    path = tmp_path / "graph.png"
    with pytest.raises(ValidationError) as refused:
        mixed().draw(path)
    assert str(refused.value) == f"draw: the name of the file must end with .svg or .html, got {str(path)!r}"
    assert not path.exists()


def test_draw_rejects_destroyed_graph() -> None:
    graph = mixed()
    graph.destroy()
    with pytest.raises(InvalidStateError, match="the graph is destroyed"):
        graph.draw()
    assert "destroyed" in graph._repr_html_()


def test_draw_writes_size_attributes(tmp_path: Path) -> None:
    """CairoSVG, for one, takes `height:auto` for 0."""
    path = tmp_path / "graph.svg"
    mixed().draw(path)
    root = ElementTree.parse(path).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert (float(root.attrib["width"]), float(root.attrib["height"])) == (width, height)
    assert "style" not in root.attrib
    assert "height:auto" not in path.read_text(encoding="utf-8")


def test_notebooks_show_the_drawing_and_not_its_text(tmp_path: Path) -> None:
    graph = mixed()
    drawing = graph.draw(tmp_path / "graph.svg")
    assert len(repr(drawing)) < 80
    assert repr(drawing).startswith("<Drawing ")
    assert drawing.startswith("<svg ")
    assert parsed(drawing._repr_html_()).attrib["style"] == "max-width:100%;height:auto"
    assert graph._repr_html_() == drawing._repr_html_()


def test_drawing_is_self_contained() -> None:
    drawing = mixed().draw()
    assert "prefers-color-scheme:dark" in drawing
    assert re.findall(r"https?://[^\"]*", drawing) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\b(href|onload|url\()", drawing)
    for rule in re.findall(r"[}>]([^{}<>@]+)\{", drawing):
        assert all(name.startswith(".ow-graph") for name in rule.split(",")), (
            rule
        )  # other drawings of a page stay as they are


def test_documentation_drawing_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    path = tmp_path / "graph.svg"
    monkeypatch.setattr(sys, "argv", ["draw_example.py", str(path)])
    runpy.run_path(str(root / "tools" / "draw_example.py"), run_name="__main__")
    assert path.read_text(encoding="utf-8") == (root / "docs" / "images" / "graph.svg").read_text(encoding="utf-8")


# Large graphs --------------------------------------------------------------------------------------------------------


def residual(blocks: int, masked: bool = False) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(CPU)
    value = builder.input("x", "float32", [4, 4])
    mask = builder.exp(builder.input("mask", "float32", [4, 4]))
    weight = builder.constant(np.eye(4, dtype="float32"))
    for _ in range(blocks):
        inner = builder.relu(builder.matmul(builder.relu(builder.matmul(value, weight)), weight))
        value = builder.tanh(builder.add(value, inner))
        value = builder.mul(value, mask) if masked else value
    return builder.build({"y": value})


def drawn(graph: ow.MLGraph, folder: Path) -> ElementTree.Element:
    """The drawing in an .svg file, as which graphs of all sizes can be drawn."""
    return parsed(graph.draw(folder / "graph.svg"))


def test_blocks_that_repeat_are_drawn_once(tmp_path: Path) -> None:
    root = drawn(residual(40), tmp_path)
    shown = texts(root)
    assert "40 × (6 operations)" in shown
    assert "2 matmul, 2 relu," in shown
    assert "add, tanh" in shown
    assert "weights 64 B" in shown, "one constant, which 80 products read"
    assert len([*rectangles(root, "box"), *rectangles(root, "end")]) < 10
    assert "40 × (7 operations)" in texts(drawn(residual(40, masked=True), tmp_path)), (
        "what goes everywhere is no hindrance"
    )
    small = texts(drawn(residual(5), tmp_path))
    assert small.count("matmul") == 10


def test_chains_become_one_box(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(CPU)
    value = builder.input("x", "float32", [4])
    for _ in range(LARGE):
        value = builder.tanh(value)
    shown = texts(drawn(builder.build({"y": value}), tmp_path))
    assert f"{LARGE} operations" in shown
    assert f"{LARGE} tanh" in shown


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    count = draw(st.integers(1, 260))
    lanes = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    homes = np.sort(rng.integers(1, lanes + 1, count))
    boxes = [Box("in", 0, "input")]
    edges = []
    for index, lane in enumerate(homes, start=1):
        name = f"op{rng.integers(0, 3)}"
        boxes.append(
            Box(name, int(lane), "operation", operations=(name,), weights={index // 3: 4})
        )  # three read one constant
        for maker in set(rng.integers(max(0, index - 4), index, rng.integers(0, 3)).tolist()):
            edges.append(Edge(maker, 0, index, "float32[4]"))
    edges.append(Edge(count, 0, count + 1, "float32[4]"))
    boxes.append(Box("out", lanes + 1, "output"))
    return Picture(boxes, edges, [DrawnLane(("lane",)) for _ in range(lanes + 2)])


@settings(max_examples=examples(25, in_sample=8))
@given(pictures())
def test_pictures_of_all_kinds_are_drawn(picture: Picture) -> None:
    made = condense(picture)
    assert len(made.boxes) <= LARGE
    assert sum(len(box.operations) for box in made.boxes) == sum(len(box.operations) for box in picture.boxes)
    weights = [{*itertools.chain(*(box.weights.items() for box in each.boxes))} for each in (made, picture)]
    assert weights[0] == weights[1]
    assert all(edge.source < edge.target for edge in made.edges), "still in topological order"
    assert [box.lane for box in made.boxes] == sorted(box.lane for box in made.boxes)
    check_apart(parsed(render(picture, "any")))


# Models --------------------------------------------------------------------------------------------------------------


def test_draw_model_with_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="stem <b>", kernel_shape=[3, 3]),
        helper.make_node("NonZero", ["c"], ["n"]),
        helper.make_node("Slice", ["c", "zero", "last"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 5, 5])],
        [helper.make_empty_tensor_value_info(name) for name in ("y", "n")],
        [
            numpy_helper.from_array(np.ones((1, 1, 3, 3), "float32"), "w"),
            numpy_helper.from_array(np.int64([0]), "zero"),
            numpy_helper.from_array(np.int64([2**63 - 1]), "last"),
        ],
    )
    model, path = tmp_path / "model.onnx", tmp_path / "model.svg"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)
    monkeypatch.setattr(sys, "argv", ["opweave", "info", str(model), "--draw", str(path), "--fix-shapes", "batch=2"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    assert f"wrote {path}" in capsys.readouterr().out
    root = parsed(path.read_text(encoding="utf-8"))
    shown = texts(root)
    assert {"Conv", "'stem <b>'", "Relu", "NonZero", "x", "y", "n", "1×1×3×3", "end", "float32[2, 1, 3, 3]"} <= set(
        shown
    )
    assert "ONNX Runtime (fallback)" in shown
    assert "WebNN on cpu" in shown
    assert len([*rectangles(root, "fallback")]) == 2  # the lane, and what lies behind a label
    check_apart(root)


# Layout --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0.01, 10), st.floats(0, 50)), min_size=1, max_size=12))
def test_spread_keeps_distances_and_cannot_be_bettered(rows: list[tuple[float, float, float]]) -> None:
    wanted, weights, gaps = [list(column) for column in zip(*rows, strict=True)]
    found = spread(wanted, weights, gaps[:-1])
    for (one, other), gap in zip(itertools.pairwise(found), gaps, strict=False):
        assert other - one >= gap - 1e-6

    def cost(places: list[float]) -> float:
        return float(sum(w * (place - goal) ** 2 for w, place, goal in zip(weights, places, wanted, strict=True)))

    for cut in range(len(found) + 1):  # moving the upper or the lower part outwards never helps
        for step in (1e-3, -1e-3):
            moved = [place + step * (at >= cut if step > 0 else at < cut) for at, place in enumerate(found)]
            assert cost(moved) >= cost(found) - 1e-6


def test_columns_are_straight_and_branches_symmetrical() -> None:
    items = [Item(60, 0) for _ in range(6)]
    links = [
        DrawnLink(0, 0, 1),
        DrawnLink(0, 0, 2),
        DrawnLink(1, 0, 3),
        DrawnLink(2, 0, 4),
        DrawnLink(3, 0, 5),
        DrawnLink(4, 0, 5),
    ]
    placed = layout(items, links, 1)
    assert placed.layer == [0, 1, 1, 2, 2, 3]
    assert placed.x[1] == pytest.approx(placed.x[3])
    assert placed.x[2] == pytest.approx(placed.x[4])
    assert placed.x[0] == pytest.approx((placed.x[1] + placed.x[2]) / 2)
    assert placed.x[5] == pytest.approx(placed.x[0])


def test_lines_that_skip_layers_give_way_to_boxes() -> None:
    items = [Item(100, 0) for _ in range(5)]
    links = [DrawnLink(k, 0, k + 1) for k in range(4)] + [DrawnLink(0, 0, 4)]
    placed = layout(items, links, 1)
    assert max(placed.x) - min(placed.x) < 0.1
    assert len(placed.routes[4]) == 3
    assert all(abs(x - placed.x[0]) > 50 for x in placed.routes[4])


def test_crossings_that_can_be_avoided_are_avoided() -> None:
    items = [Item(40, 0) for _ in range(6)]
    links = [DrawnLink(0, 0, 5), DrawnLink(1, 0, 4), DrawnLink(2, 0, 3)]
    x = layout(items, links, 1).x
    assert sorted(range(3), key=lambda k: x[k]) == sorted(range(3), key=lambda k: x[5 - k])
