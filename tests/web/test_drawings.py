"""Pages of large graphs in Chromium: search, groups, pan and zoom, phones, and names that cannot run scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import browser as browsers
import numpy as np
import pytest
from browser import Browser, Site
from libraries import missing

import opweave as ow

HOSTILE = "</script><script>parent.attacked=1</script><img src=x onerror='parent.attacked=1'>\"'&"

FRAME = """<iframe id="frame" src="{address}" style="width:{width}px;height:{height}px;border:0"></iframe>
<script type="module">
const frame = document.querySelector("#frame");
const isLoaded = () => frame.contentDocument.readyState === "complete" && frame.contentWindow.location.href !== "about:blank";
if (!isLoaded()) await new Promise((resolve) => frame.addEventListener("load", resolve));
const page = frame.contentDocument, inside = frame.contentWindow;
const get = (name) => page.getElementById(name);
const settled = async () => {{
  for (let k = 0; k < 3; k += 1) await new Promise((resolve) => inside.requestAnimationFrame(resolve));
}};
const nodes = (kind) => [...page.querySelectorAll(`#stage .${{kind}}`)];
const titles = (kind = "node") => nodes(kind).map((node) => node.querySelector("text")?.textContent);
const labels = () => [...page.querySelectorAll("#stage [data-node]")].map((node) => node.getAttribute("aria-label"));
const press = (element, key, more = {{}}) => element.dispatchEvent(
  new inside.KeyboardEvent("keydown", {{key, bubbles: true, cancelable: true, ...more}}));
const type = (text) => {{ get("query").value = text; get("query").dispatchEvent(new inside.Event("input")); }};
const click = (element) => element.dispatchEvent(new inside.MouseEvent("click", {{bubbles: true}}));
const box = (element) => {{
  const {{left, top, right, bottom}} = element.getBoundingClientRect();
  return [left, top, right, bottom];
}};
const camera = () => get("stage").getAttribute("transform").match(/-?[0-9][0-9.e+-]*/g).map(Number);
await settled();
{script}
</script>"""

Visit = Callable[..., Any]


@pytest.fixture(scope="module")
def visit() -> Iterator[Visit]:
    """Shows a drawing in a frame, and runs a script beside it."""
    if browsers.find() is None:
        missing("there is no Chromium: install it, or set CHROMIUM to its path")
    with Site() as site, Browser(site) as browser:

        def run(drawing: str, script: str, width: int = 1200, height: int = 800) -> Any:
            site.file("/drawing.html", drawing, "text/html")
            text = FRAME.format(address=f"{site.url}/drawing.html", width=width, height=height, script=script)
            return browser.run(site.page(text), timeout=60)

        yield run


def network(layers: int = 12, label: str = "encoder/layer {}/{}") -> ow.MLGraph:
    """Layers of two branches, whose operations are grouped by their labels."""
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    value = builder.input("x", "float32", [4, 4])
    weight = builder.constant(np.eye(4, dtype="float32"))
    for layer in range(layers):
        left = builder.matmul(value, weight, label=label.format(layer, "left"))
        left = builder.relu(left, label=label.format(layer, "relu"))
        right = builder.tanh(value, label=label.format(layer, "right"))
        value = builder.add(builder.add(left, right, label=label.format(layer, "sum")), value)
        value = builder.softmax(value, 1, label=label.format(layer, "end"))
    return builder.build({"y": value})


@pytest.fixture(scope="module")
def drawing() -> str:
    return str(network().draw(profile={f"encoder/layer {k}/left": 0.001 * (k + 1) for k in range(12)}))


def test_search_steps_through_matches(visit: Visit, drawing: str) -> None:
    seen = visit(
        drawing,
        """
const seen = [];
const note = () => seen.push([get("matches").textContent, get("panel").querySelector(".name")?.textContent ?? ""]);
type("LEFT matmul"); note();
get("search").requestSubmit(); await settled(); note();
get("search").requestSubmit(); await settled(); note();
const current = nodes("current").map((node) => node.getAttribute("aria-label"));
const [left, top, right, bottom] = box(nodes("current")[0]);
const isShown = left > 0 && top > 0 && right < inside.innerWidth && bottom < inside.innerHeight;
get("previous").click(); get("previous").click(); await settled(); note();
type("nowhere"); note();
type(""); note();
report({seen, current, isShown});
""",
    )
    assert seen == {
        "seen": [
            ["12 found", ""],
            ["1 of 12", "encoder/layer 0/left"],
            ["2 of 12", "encoder/layer 1/left"],
            ["12 of 12", "encoder/layer 11/left"],
            ["0 found", "encoder/layer 11/left"],
            ["", "encoder/layer 11/left"],
        ],
        "current": ["matmul, encoder/layer 1/left"],
        "isShown": True,
    }


def test_groups_open_and_close(visit: Visit, drawing: str) -> None:
    seen = visit(
        drawing,
        """
const seen = [];
const note = async () => {
  press(get("view"), "0"); await settled();
  seen.push([titles("closed").length, nodes("frame").length]);
};
await note();
const group = () => page.querySelector('[aria-label^="Group layer 3,"]');
const before = box(group())[1];
click(group().querySelector("[data-toggle]")); await settled();
const after = box(group().querySelector("rect"))[1];
await note();
press(group(), "Enter"); await note();
get("close-all").click(); await note();
get("open-all").click(); await note();
report({seen, isSteady: Math.abs(before - after) < 3});
""",
    )
    assert seen == {"seen": [[12, 1], [11, 2], [12, 1], [1, 0], [0, 13]], "isSteady": True}


def test_boxes_do_not_overlap(visit: Visit, drawing: str) -> None:
    boxes, frames = visit(
        drawing,
        """
get("open-all").click(); press(get("view"), "0"); await settled();
report([nodes("node"), nodes("frame")].map((found) => found.map((node) => box(node.querySelector("rect")))));
""",
    )
    assert (len(boxes), len(frames)) == (12 * 6 + 2, 13)
    for one, other in combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    for left, top, right, bottom in boxes:
        for frame in frames:
            is_inside = frame[0] < left and frame[1] < top and right < frame[2] and bottom < frame[3]
            is_outside = right <= frame[0] or frame[2] <= left or bottom <= frame[1] or frame[3] <= top
            assert is_inside or is_outside


def test_pointers_and_keys_move_the_graph(visit: Visit, drawing: str) -> None:
    start, dragged, wheel, key, pinch, fitted = visit(
        drawing,
        """
const view = get("view"), steps = [camera()];
const pointer = (kind, pointerId, clientX, clientY) => view.dispatchEvent(new inside.PointerEvent(
  `pointer${kind}`, {pointerId, clientX, clientY, bubbles: true, isPrimary: pointerId === 1}));
view.setPointerCapture = () => {};
pointer("down", 1, 300, 300); pointer("move", 1, 340, 370); pointer("up", 1, 340, 370); steps.push(camera());
const turn = {deltaY: -200, clientX: 300, clientY: 300, cancelable: true};
view.dispatchEvent(new inside.WheelEvent("wheel", turn)); steps.push(camera());
press(view, "ArrowDown"); steps.push(camera());
pointer("down", 1, 300, 300); pointer("down", 2, 400, 300); pointer("move", 2, 500, 300);
pointer("up", 1, 300, 300); pointer("up", 2, 500, 300); steps.push(camera());
get("fit").click(); await settled(); steps.push(camera());
report(steps);
""",
    )
    assert dragged == pytest.approx([start[0] + 40, start[1] + 70, start[2]])
    assert wheel[2] > 1.2 * dragged[2]
    assert key == pytest.approx([wheel[0], wheel[1] - 90, wheel[2]])
    assert pinch[2] == pytest.approx(2 * key[2])
    assert fitted[2] < pinch[2]


def test_selection_shows_details_and_neighbours(visit: Visit, drawing: str) -> None:
    seen = visit(
        drawing,
        """
type("encoder/layer 2/sum"); get("search").requestSubmit(); await settled();
const texts = () => get("panel").textContent;
const before = texts(), lit = page.querySelectorAll(".edge.lit").length;
[...get("panel").querySelectorAll("li button")].find((button) => button.textContent.startsWith("relu")).click();
await settled();
const after = get("panel").querySelector(".name").textContent;
press(page.body, "Escape"); await settled();
report({before, lit, after, isClosed: get("panel").hidden});
""",
    )
    for text in ("encoder › layer 2", "add", "arithmetic", "on reference", "float32[4, 4]", "Computed by", "Read by"):
        assert text in seen["before"], text
    assert seen["lit"] >= 3
    assert seen["after"] == "encoder/layer 2/relu"
    assert seen["isClosed"]


def test_colours_show_times(visit: Visit, drawing: str) -> None:
    seen = visit(
        drawing,
        """
type("layer 11/left"); get("search").requestSubmit();
get("colours").value = "time"; get("colours").dispatchEvent(new inside.Event("change")); await settled();
report([nodes("current")[0].textContent, get("legend").textContent, get("panel").textContent]);
""",
    )
    assert "12.00 ms, 15.4%" in seen[0]
    assert "up to 12.00 ms" in seen[1]
    assert "12.00 ms, 15.4% of all" in seen[2]


def test_page_fits_a_phone(visit: Visit, drawing: str) -> None:
    seen = visit(
        drawing,
        """
const wide = page.documentElement.scrollWidth;
type("layer 5/left"); get("search").requestSubmit(); await settled();
const small = [...page.querySelectorAll("button, input, select")].filter((element) => (
  element.offsetParent && Math.min(...[element.getBoundingClientRect()].map(({height}) => height)) < 30
  && !element.closest(".path")));
report({wide, panel: box(get("panel")), node: box(nodes("current")[0]), small: small.map((element) => element.id)});
""",
        390,
        844,
    )
    assert seen["wide"] == 390
    left, top, right, bottom = seen["panel"]
    assert (left, right, bottom) == (0, 390, 844)
    assert 0 <= seen["node"][0] < seen["node"][2] <= 390
    assert seen["node"][3] <= top, "the match is above the panel"
    assert seen["small"] == []


def test_names_cannot_run_scripts(visit: Visit) -> None:
    graph = network(label=f"{HOSTILE.replace('/', '')}/{{}}/{HOSTILE.replace('/', '∕')}{{}}")
    seen = visit(
        str(graph.draw(profile={"add": 1.0})),
        """
let refused = 0;
page.addEventListener("securitypolicyviolation", () => (refused += 1));
type("onerror"); get("search").requestSubmit(); get("open-all").click(); await settled();
report({attacked: window.attacked ?? 0, refused, images: page.images.length, scripts: page.scripts.length,
  name: get("panel").querySelector(".name").textContent, matches: get("matches").textContent});
""",
    )
    name = seen.pop("name")
    assert "onerror='parent.attacked=1'" in name
    assert seen == {"attacked": 0, "refused": 0, "images": 0, "scripts": 2, "matches": "1 of 60"}


def test_notebook_frame_runs_the_page(visit: Visit) -> None:
    html = network(30)._repr_html_()
    assert html.startswith("<iframe sandbox=")
    seen = visit(
        f"<!doctype html><meta charset=utf-8><body>{html}",
        """
const frame2 = page.querySelector("iframe");
let isClosed = false;
try { isClosed = frame2.contentDocument === null; } catch { isClosed = true; }
report({isClosed, height: frame2.getBoundingClientRect().height});
""",
    )
    assert seen == {"isClosed": True, "height": 642}
