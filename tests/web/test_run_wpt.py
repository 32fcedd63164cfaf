"""tools/run_wpt.py finds the tests of a checkout, and its page lists the failures that are expected."""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from libraries import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import run_wpt

OPERATION = """// META: title=an operation
// META: global=window,worker
// META: variant=?cpu
// META: variant=?gpu
// META: script=../resources/utils.js
"""
BINARY = """// META: global=window
// META: variant=?op=add&device=cpu
// META: variant=?op=add&device=npu
// META: variant=?op=cpuLike&device=gpu
"""


def test_pages_of_each_scope_and_variant(tmp_path: Path) -> None:
    folder = tmp_path / "webnn" / "conformance_tests"
    folder.mkdir(parents=True)
    (folder / "abs.https.any.js").write_text(OPERATION)
    (folder / "binary.https.any.js").write_text(BINARY)
    (folder / "plain.https.any.js").write_text("// no META lines: a window and a dedicated worker\n")
    (folder / "helper.window.js").write_text("// a window only\n")
    (folder / "utils.js").write_text("// no test\n")
    found = [page.name.removeprefix("webnn/conformance_tests/") for page in run_wpt.pages(tmp_path, "cpu")]
    assert found == [
        "abs.https.any.html?cpu",
        "abs.https.any.worker.html?cpu",
        "abs.https.any.sharedworker.html?cpu",
        "binary.https.any.html?op=add&device=cpu",
        "helper.window.html",
        "plain.https.any.html",
        "plain.https.any.worker.html",
    ]
    assert next(iter(run_wpt.pages(tmp_path, "cpu"))).meta["script"] == ["../resources/utils.js"]


def test_page_lists_expected_failures() -> None:
    text = (ROOT / "docs" / "wpt-javascript.md").read_text()
    listed = [re.sub(r" \(\d+ times\)$", "", line) for line in re.findall(r"^- (.*)$", text, re.MULTILINE)]
    listed = [line.replace(r"\|", "|") for line in listed]
    reasons = run_wpt.expected()
    assert "not listed" not in text
    for pattern, reason in reasons.items():
        assert f"**{reason}**" in text
        assert any(fnmatchcase(line, pattern) or line == pattern for line in listed), pattern
    for line in listed:
        assert any(fnmatchcase(line, pattern) or line == pattern for pattern in reasons), line
