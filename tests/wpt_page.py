"""Run the specification's conformance cases on a device, and write down how it went.

    python tests/wpt_page.py gpu docs/conformance-h200.md

The cases are those that `tests/backends/all/test_wpt.py` runs; this is for devices that the tests do not have.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import wpt
from rich.progress import track

import opweave as ow

HEAD = """# The conformance cases on {description}

Written by `python tests/wpt_page.py {device} {page}`: all {count} conformance cases of the Web Platform Tests, built, run
through tensors and compared within the specification's tolerances, in {seconds:.0f} s. {passed} pass{rest}.

Data types that its shaders support natively: {types}.

| Operation | Cases | Pass |
| --- | ---: | ---: |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="a name of `opweave devices`")
    parser.add_argument("page", type=Path, help="the Markdown file to write")
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
    memory = context.backend.space
    features = getattr(memory, "features", None)
    types = [
        name for name, there in (("float16", "float16"), ("int64 and uint64", "int64")) if getattr(features, there, 0)
    ]
    text = HEAD.format(
        description=context.device.description,
        device=arguments.device,
        page=arguments.page.name,
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
    arguments.page.write_text(text)
    print(f"{sum(passed.values())} of {len(cases)} pass; {arguments.page} says more")


if __name__ == "__main__":
    main()
