"""Pages with libraries of npm on Opweave: what they import, where the packages are, and what a machine may lack."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
from browser import Browser, Site

from opweave.serve import Server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "examples" / "web"
NODE_MODULES = HERE / "node_modules"
PACKAGES = ROOT / ".models"
"""The packages of the gate: `python -m gate.packages --small` installs them."""

IMPORTS = {
    "onnxruntime-web": "onnxruntime-web/dist/ort.all.bundle.min.mjs",
    "onnxruntime-web/webgpu": "@huggingface/transformers/node_modules/onnxruntime-web/dist/ort.webgpu.bundle.min.mjs",
    "onnxruntime-common": "@huggingface/transformers/node_modules/onnxruntime-common/dist/esm/index.js",
    "@huggingface/transformers": "@huggingface/transformers/dist/transformers.web.js",
    "@litertjs/core": "@litertjs/core/dist/index.js",
    "@litertjs/wasm-utils": "@litertjs/wasm-utils/dist/index.js",
}
"""What pages import -> the file that a bundler would choose, below node_modules."""


ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}


def missing(what: str) -> NoReturn:
    """Skip a test for which the machine lacks something; in CI, that is an error."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


def site(models: Path) -> Site:
    """A web server with the pages, the models, the npm packages and the data of tests."""
    return Site(
        {
            "/app": EXAMPLE,
            "/pages": HERE / "pages",
            "/models": models,
            "/packages": PACKAGES,
            "/node_modules": NODE_MODULES,
            "/data": ROOT / "tests" / "data",
            "/js": ROOT / "tests" / "serve" / "js",
        }
    )


def visit(
    browser: Browser,
    server: Server,
    module: str,
    task: Any = None,
    *,
    isolated: bool = False,
    mode: str = "strict",
    timeout: float = 600,
    host: str = "localhost",
) -> Any:
    """Run a module of `pages/` in a page that has `navigator.ml` by Opweave; what it reports.

    Args:
        browser: where the page runs.
        server: what it connects to.
        module: the file's name.
        task: what the page finds as JSON in the element `task`.
        isolated: whether the page is cross-origin isolated, so that it has `SharedArrayBuffer`.
        mode: of the script that defines `navigator.ml`.
        timeout: seconds until it must have reported.
        host: "127.0.0.1" is another origin of the site.
    """
    imports = {"imports": {name: f"/node_modules/{path}" for name, path in IMPORTS.items()}}
    page = browser.site.page(
        f'<script src="{server.url}/webnn.js?token={server.token}&mode={mode}"></script>'
        f"<script type=importmap>{json.dumps(imports)}</script>"
        f"<script type=application/json id=task>{json.dumps(task)}</script>"
        # An import that fails is an event at the element only; without this, the page would report nothing until the timeout.
        f'<script type=module src="/pages/{module}" onerror="report({{failed: `${{src}} was not loaded`}})"></script>',
        headers=ISOLATED if isolated else None,
    )
    return browser.run(page.replace("localhost", host), timeout)
