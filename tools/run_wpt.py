"""Run the W3C's own JavaScript tests of WebNN in Chromium on Opweave, and write down how they went.

    git clone --depth 1 --filter=blob:none --sparse https://github.com/web-platform-tests/wpt
    git -C wpt sparse-checkout set webnn resources interfaces common
    python tools/run_wpt.py wpt --state "of 2025-03-31" --write docs/wpt-javascript.md

The tests are served on localhost, with the shim before their scripts; in windows, dedicated workers and shared workers.
Failures must be listed with their reasons in tests/expect/wpt-javascript.toml; if others come, or listed ones pass, the
program ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.progress import Progress

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "web"))

from browser import REPORT, Browser, PageError, Site  # noqa: E402

from opweave import serve  # noqa: E402

EXPECTED = ROOT / "tests" / "expect" / "wpt-javascript.toml"

STATUSES = ("passes", "fails", "times out", "does not run", "lacks what it needs")
"""What the statuses of testharness.js mean."""

HARNESS_REPORT = """
setup({output: false, timeout_multiplier: 1});
add_completion_callback((tests, harness) => report({
  harness: [harness.status, harness.message],
  tests: tests.map(test => [test.name, test.status, test.message]),
}));
"""

WORKERS = {"dedicatedworker": "worker", "sharedworker": "sharedworker"}
"""Global scope -> its name in those of pages. Service workers lack the synchronous requests that the shim needs."""

SCOPES = {
    "window": ["window"],
    "worker": [*WORKERS],
    "dedicatedworker": ["dedicatedworker"],
    "sharedworker": ["sharedworker"],
}


LIMITS = serve.ConnectionLimits(contexts=4096)
"""Pages make a context for each test, and leave it to the garbage collector."""

SCOPE_TITLES = {
    "window": "in a window",
    "dedicatedworker": "in a dedicated worker",
    "sharedworker": "in a shared worker",
}

HEAD = """# The W3C's JavaScript tests in Chromium

Written by `python tools/run_wpt.py FOLDER --write docs/wpt-javascript.md`, where FOLDER is a checkout of the
[Web Platform Tests](https://github.com/web-platform-tests/wpt). No test is changed: the files are served as they are, with the
script of [`opweave serve`](web.md) before them. State {state}; variant `{variant}` of tests that have variants; `{mode}` mode.

{passed} of {count} tests pass; the other {failed} are listed below with the reasons.

| Tests | Number | Pass |
| --- | ---: | ---: |
{rows}

Tests in service workers are not run: these have no synchronous requests. `tests/expect/wpt-javascript.toml` lists the
failures; the tool fails if another test fails, or if one of these passes.

## Failures
{failures}"""


@dataclass(frozen=True)
class Page:
    """One test file in one global scope and variant.

    Attributes:
        file: its path below the folder, `webnn/conformance_tests/abs.https.any.js`.
        scope: "window", "dedicatedworker" or "sharedworker".
        variant: the query of its address, "?cpu" or "".
        meta: what its `// META:` lines say.
    """

    file: str
    scope: str
    variant: str
    meta: Mapping[str, list[str]] = field(hash=False)

    @property
    def name(self) -> str:
        """Its name in WPT: `webnn/conformance_tests/abs.https.any.html?cpu`."""
        return self.path.removeprefix("/") + self.variant

    @property
    def path(self) -> str:
        part = "." + WORKERS[self.scope] if self.scope in WORKERS else ""
        return f"/{self.file.removesuffix('.js')}{part}.html"

    def serve(self, site: Site, folder: Path, shim: str) -> str:
        """Add the page to a site; its address."""
        headers = folder / f"{self.file}.headers"
        given = dict(re.findall(r"^([\w-]+): *(.*)$", headers.read_text(), re.MULTILINE)) if headers.exists() else {}
        scope = ", ".join(
            f"{name}: () => {str(name == self._global).lower()}" for name in ("isWindow", "isWorker", "isShadowRealm")
        )
        scope = f"self.GLOBAL = {{{scope}}};"
        scripts = [*self.meta.get("script", []), "/" + self.file]
        harness = f'<script src="/resources/testharness.js"></script><script>{HARNESS_REPORT}</script>'
        if self.scope == "window":
            text = f"<script>{shim}</script><script>{scope}</script>{harness}<div id=log></div>"
            text += "".join(f'<script src="{script}"></script>' for script in scripts)
        else:
            worker = self.path.removesuffix(".html") + ".js"
            imports = "".join(
                f"importScripts({json.dumps(script)});\n" for script in ["/resources/testharness.js", *scripts]
            )
            site.file(worker, f"{shim}\n{scope}\n{imports}done();\n", "text/javascript", given)
            kind = "Worker" if self.scope == "dedicatedworker" else "SharedWorker"
            start = f'fetch_tests_from_worker(new {kind}("{worker}" + location.search));'
            text = f"{harness}<div id=log></div><script>{start}</script>"
        text = f"<!doctype html><meta charset=utf-8><meta name=timeout content=long>{REPORT}{text}"
        site.file(self.path, text, "text/html", given)
        return site.url + self.path + self.variant

    @property
    def _global(self) -> str:
        return "isWindow" if self.scope == "window" else "isWorker"


@dataclass(frozen=True)
class Result:
    """How one test went: its page, name, status (a number of testharness.js) and message."""

    page: Page
    name: str
    status: int
    message: str

    @property
    def id(self) -> str:
        """What it is called in the list of expected failures."""
        return f"{self.page.file.removeprefix('webnn/')} | {self.name}"


def pages(folder: Path, variant: str) -> Iterator[Page]:
    """All test pages of WebNN, in one variant where they have several."""
    files = sorted([*folder.glob("webnn/**/*.any.js"), *folder.glob("webnn/**/*.window.js")])
    for path in files:
        meta: dict[str, list[str]] = defaultdict(list)
        for key, value in re.findall(r"^// META: *(\w+)=(.*?)\s*$", path.read_text(encoding="utf-8"), re.MULTILINE):
            meta[key].append(value)
        asked = (
            "window" if path.name.endswith(".window.js") else ",".join(meta.get("global", ["window,dedicatedworker"]))
        )
        scopes = [scope for name in asked.split(",") for scope in SCOPES.get(name.strip(), [])]
        variants = [text for text in meta.get("variant", [""]) if re.search(rf"\b{variant}$", text)] or [""]
        for scope in scopes:
            for text in variants if "variant" in meta else [""]:
                yield Page(path.relative_to(folder).as_posix(), scope, text, dict(meta))


def run(folder: Path, wanted: list[Page], mode: str, device: str | None, timeout: float) -> Iterator[list[Result]]:
    """Run the pages one after the other; the results of each."""
    below = {f"/{name}": folder / name for name in ("webnn", "resources", "interfaces", "common")}
    options: dict[str, Any] = {} if device is None else {"device": device}
    site = Site(below)
    # The Web Platform Tests' own server has this file at another path, too.
    parser = (folder / "resources/webidl2/lib/webidl2.js").read_text(encoding="utf-8")
    site.file("/resources/WebIDLParser.js", parser, "text/javascript")
    with site, serve.Server(port=0, origins=[site.url], limits=LIMITS, **options) as server, Browser(site) as browser:
        shim = f"self.opweaveOptions = {{mode: {json.dumps(mode)}}};\n{server.script}"
        for page in wanted:
            try:
                found = browser.run(page.serve(site, folder, shim), timeout)
            except PageError as error:
                yield [Result(page, "the page", 2, str(error))]
                continue
            status, message = found["harness"]
            results = [Result(page, name, code, text or "") for name, code, text in found["tests"]]
            if status:
                results.append(Result(page, "the page", status, message or "no message"))
            yield results


def expected() -> dict[str, str]:
    """Pattern of ids -> the reason why such tests fail."""
    if not EXPECTED.exists():
        return {}
    return {name: group["reason"] for group in tomllib.loads(EXPECTED.read_text())["group"] for name in group["tests"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkout of the Web Platform Tests")
    parser.add_argument("--only", default="", help="only pages whose names contain this")
    parser.add_argument("--variant", default="cpu", help="cpu (default), gpu or npu, for tests that have variants")
    parser.add_argument("--device", help="a device of `opweave devices`; by default pages choose by their options")
    parser.add_argument("--mode", default="strict", choices=("strict", "lazy"), help="of the shim")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a page")
    parser.add_argument("--state", default="unknown", help="which state of the tests it is, for the page")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the counts and failures as Markdown")
    arguments = parser.parse_args()
    wanted = [page for page in pages(arguments.folder, arguments.variant) if arguments.only in page.name]
    if not wanted:
        parser.error(f"{arguments.folder} has no such tests: webnn/**/*.any.js are missing")
    results: list[Result] = []
    with Progress() as progress:
        task = progress.add_task("pages", total=len(wanted))
        for found in run(arguments.folder, wanted, arguments.mode, arguments.device, arguments.timeout):
            results += found
            progress.advance(task)
            for result in found:
                if result.status:
                    progress.console.print(
                        f"{result.id} {STATUSES[result.status]}: {result.message[:300]}", markup=False
                    )
    reasons = expected()
    used: set[str] = set()
    surprising = 0
    for result in results:
        listed = [pattern for pattern in reasons if _matches(result, pattern)]
        used.update(listed if result.status else ())
        surprising += bool(result.status) and not listed
    passed = sum(result.status == 0 for result in results)
    print(f"{passed} of {len(results)} pass; {surprising} failures are not listed in {EXPECTED.name}")
    fixed = [] if arguments.only else [pattern for pattern in reasons if pattern not in used]
    for pattern in fixed:
        print(f"listed, but passes or does not exist: {pattern}")
    if arguments.write:
        arguments.write.write_text(page_text(results, reasons, arguments), encoding="utf-8")
    return int(bool(surprising or fixed))


def _matches(result: Result, pattern: str) -> bool:
    return result.id == pattern or fnmatchcase(result.id, pattern)


def page_text(results: list[Result], reasons: Mapping[str, str], arguments: argparse.Namespace) -> str:
    """The Markdown of `--write`."""
    rows = []
    for title, group in _groups(results).items():
        counts = Counter(result.status for result in group)
        rows.append(f"| {title} | {len(group)} | {counts[0]} |")
    found = Counter(
        (result.id, next((reason for pattern, reason in reasons.items() if _matches(result, pattern)), "not listed"))
        for result in results
        if result.status
    )
    by_reason: dict[str, list[str]] = defaultdict(list)
    for (name, reason), count in found.items():
        by_reason[reason].append(name.replace("|", "\\|") + (f" ({count} times)" if count > 1 else ""))
    failures = "".join(
        f"\n**{reason}**\n\n" + "".join(f"- {name}\n" for name in names) for reason, names in by_reason.items()
    )
    return HEAD.format(
        passed=sum(result.status == 0 for result in results),
        count=len(results),
        failed=sum(found.values()),
        mode=arguments.mode,
        variant=arguments.variant,
        rows="\n".join(rows),
        state=arguments.state,
        failures=failures or "\nNone.\n",
    )


def _groups(results: list[Result]) -> dict[str, list[Result]]:
    """The results by kind of test and global scope."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        folder = Path(result.page.file).parent.name
        kind = folder.replace("_", " ") if folder != "webnn" else Path(result.page.file).name.split(".")[0]
        groups[f"{kind}, {SCOPE_TITLES[result.page.scope]}"].append(result)
    return dict(sorted(groups.items()))


if __name__ == "__main__":
    raise SystemExit(main())
