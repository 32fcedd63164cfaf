"""Run the specification's conformance cases on a device, and write down how it went.

    python tools/wpt_page.py gpu docs/conformance-h200.md

The cases are those that `tests/backends/all/test_wpt.py` runs; this is for devices that the tests do not have. `--reports`
adds what pytest ran there: files that its option `--junitxml` has written.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import wpt

import opweave as ow

HEAD = """# The conformance cases on {description}

Written by `{command}`: all {count} conformance cases of the Web Platform Tests, built, run
through tensors and compared within the specification's tolerances, in {seconds:.0f} s. {passed} pass{rest}.

Data types that its kernels support natively: {types}.

| Operation | Cases | Pass |
| --- | ---: | ---: |
"""
TESTS = """
## Other tests

The same command has run these tests on the device.

| Tests | Passed | Skipped | Failed |
| --- | ---: | ---: | ---: |
"""
OUTCOMES = {"skipped": "skipped", "failure": "failed", "error": "failed"}
"""What the elements within a test of a report mean."""


def tests(reports: Sequence[Path]) -> Iterator[str]:
    """The lines of a table of files with tests, and why some were skipped."""
    counts: dict[str, Counter[str]] = {}
    skipped = []
    for report in reports:
        for test in ElementTree.parse(report).iter("testcase"):
            module = test.attrib["classname"]
            outcome = next((OUTCOMES[child.tag] for child in test if child.tag in OUTCOMES), "passed")
            counts.setdefault(module, Counter())[outcome] += 1
            if (child := test.find("skipped")) is not None:
                skipped.append(f"- `{test.attrib['name']}`: {child.attrib['message']}\n")
    for module, found in counts.items():
        said = ast.get_docstring(ast.parse(Path(*module.split(".")).with_suffix(".py").read_text()))
        assert said, f"{module} lacks a docstring"
        numbers = " | ".join(str(found[outcome]) for outcome in ("passed", "skipped", "failed"))
        yield f"| `{module.rpartition('.')[2]}`: {' '.join(said.split())} | {numbers} |\n"
    if skipped:
        yield "\nSkipped:\n\n"
        yield from skipped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="a name of `opweave devices`")
    parser.add_argument("page", type=Path, help="the Markdown file to write")
    parser.add_argument(
        "--reports", nargs="+", type=Path, default=(), help="files that pytest's option --junitxml has written"
    )
    parser.add_argument("--command", help="what the page says it was written by, if not this script alone")
    arguments = parser.parse_args()
    context = ow.ml.create_context(device=arguments.device)
    cases = wpt.cases("conformance")
    counts: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    failures: list[tuple[str, str, str]] = []
    start = time.perf_counter()
    for case in track(cases, "cases"):
        counts[case["op"]] += 1
        try:
            wpt.check_conformance(case, wpt.run_conformance(context, case))
        except (AssertionError, ow.MLError) as error:
            reason = " ".join(str(error).split())[:200]
            failures.append((case["id"], case["name"], reason.replace("|", "\\|")))
        else:
            passed[case["op"]] += 1
    seconds = time.perf_counter() - start
    features = getattr(context.backend, "features", None)
    types = [
        name for name, there in (("float16", "float16"), ("int64 and uint64", "int64")) if getattr(features, there, 0)
    ]
    text = HEAD.format(
        description=context.device.description,
        command=arguments.command or f"python tools/wpt_page.py {arguments.device} {arguments.page}",
        count=len(cases),
        seconds=seconds,
        passed=sum(passed.values()),
        rest=f"; the other {len(failures)} are listed below" if failures else "",
        types=", ".join(["float32, int32 and uint32", *types]),
    )
    text += "".join(f"| {op} | {counts[op]} | {passed[op]} |\n" for op in sorted(counts))
    if failures:
        text += "\n| Case | Name | What happened |\n| --- | --- | --- |\n"
        text += "".join(f"| {case} | {name} | {reason} |\n" for case, name, reason in failures)
    if arguments.reports:
        text += TESTS + "".join(tests(arguments.reports))
    arguments.page.write_text(text)
    print(f"{sum(passed.values())} of {len(cases)} pass; {arguments.page} says more")


if __name__ == "__main__":
    main()
