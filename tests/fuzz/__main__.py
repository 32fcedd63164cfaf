"""`python -m fuzz`: run campaigns, or single cases of them."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from math import inf
from pathlib import Path

from fuzz import frame, record

CAMPAIGNS = {
    "models": "models",
    "backend": "models",
    "backend-openvino": "models",
    "nodes": "nodes",
    "contrib": "nodes",
    "operators": "operators",
    "operators-openvino": "operators",
    "operators-gpu-software": "operators",
    "bombs": "bombs",
    "gguf": "gguf_files",
    "files": "saved_files",
    "extras": "extras",
    "graphs": "graphs",
    "graphs-openvino": "graphs",
    "graphs-drafts": "graphs",
    "graphs-drafts-openvino": "graphs",
    "sizes": "sizes",
    "sizes-gpu-software": "sizes",
    "sizes-cuda": "sizes",
    "composites": "composites",
    "composites-openvino": "composites",
    "composites-gpu-software": "composites",
    "composites-cuda": "composites",
    "builder": "builder",
    "builder-openvino": "builder",
    "caches": "caches",
    "loops": "loops",
    "loops-gpu-software": "loops",
    "loops-cuda": "loops",
    "narrow": "narrow",
    "narrow-openvino": "narrow",
    "narrow-gpu-software": "narrow",
    "narrow-cuda": "narrow",
    "op-level": "op_level",
    "serve": "serve",
    "deployment": "deployment",
    "server": "deployment",
    "threads": "threads",
    "wasm": "wasm",
    "patterns": "patterns",
    "patterns-ieee": "patterns",
    "patterns-openvino": "patterns",
    "patterns-openvino-ieee": "patterns",
    "patterns-openvino-bfloat16": "patterns",
    "patterns-gpu-software": "patterns",
    "patterns-cuda": "patterns",
}
"""The module that holds each campaign, as an entry of its table `CAMPAIGNS`."""

_OWN = {"misbehaving": "misbehaving", "pattern-trials": "patterns", "pattern-faults": "patterns"}
"""Campaigns that tests and other campaigns use, and that are not run for themselves."""


def campaign(name: str) -> frame.Campaign:
    """The campaign of that name."""
    found: frame.Campaign = import_module(f"fuzz.{(CAMPAIGNS | _OWN)[name]}").CAMPAIGNS[name]
    return found


def main() -> int:
    """Run what the command line asks for; 1 if there are findings."""
    parser = _parser()
    options = parser.parse_args()
    names = list(CAMPAIGNS) if "all" in options.campaigns else options.campaigns
    if unknown := [name for name in names if name not in CAMPAIGNS | _OWN]:
        parser.error(f"there is no campaign {', '.join(unknown)}")
    if not names and not options.render:
        parser.error("which campaigns? all, or names")
    if options.jobs < 1:
        parser.error(f"--jobs must be positive, got {options.jobs}")
    if options.record is None and (options.again or options.render):
        parser.error("--again and --render need --record")
    frame.bind(options.processors)
    if options.child is not None:
        frame.serve(campaign(names[0]), options.seed, options.child)
        return 0
    if options.render:
        return _rendered(options)
    found = False
    for name in names:
        chosen = campaign(name)
        if options.list:
            print(f"{name}: {chosen.about}; {chosen.count} cases, {chosen.short} in the tests")
        elif missing := chosen.missing():
            print(f"{name}: not run, since {missing}")
        elif options.reduce:
            _reduced(chosen, options)
        elif options.case is not None:
            found |= _alone(chosen, options)
        elif options.record is not None:
            found |= _recorded(chosen, options)
        else:
            numbers = range(options.start, options.start + _count(chosen, options))
            out = options.out.resolve()
            limits = {"most": options.most, "jobs": options.jobs, "minutes": options.minutes}
            result = frame.run(chosen, numbers, seed=options.seed, out=out, progress=sys.stdout, **limits)
            found |= bool(result.findings)
    return int(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz",
        description="Hostile input, in child processes: 2 processors, at least 2 GiB, 20 s a case; findings become files.",
        epilog=f"campaigns: {', '.join(CAMPAIGNS)}",
    )
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help="all, or names")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="go on with the records in this folder")
    parser.add_argument("--again", action="store_true", help="run the findings of the records again")
    parser.add_argument("--render", action="store_true", help="write the records of all campaigns to docs/campaign.md")
    parser.add_argument("--seed", type=int, default=31, help="default: %(default)s")
    parser.add_argument("--count", type=int, help="how many cases; default: all of the campaign")
    parser.add_argument("--start", type=int, default=0, metavar="N", help="the number of the first case")
    parser.add_argument("--short", action="store_true", help="as many as the tests run")
    parser.add_argument("--case", type=int, metavar="N", help="run this case alone, and in this process")
    parser.add_argument("--out", type=Path, default=Path("findings"), help="folder for findings; default: %(default)s")
    parser.add_argument("--most", type=int, default=50, metavar="N", help="stop after N findings")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="children at a time; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=inf, metavar="N", help="begin nothing after N minutes")
    parser.add_argument("--reduce", action="store_true", help="make the findings smaller, and count their kinds")
    parser.add_argument("--list", action="store_true", help="say what the campaigns do, and how long they are")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--processors", type=int, nargs="+", default=[], help=argparse.SUPPRESS)
    return parser


def _count(chosen: frame.Campaign, options: argparse.Namespace) -> int:
    """How many cases are asked for."""
    if options.short:
        return chosen.short
    return chosen.count if options.count is None else int(options.count)


def _recorded(chosen: frame.Campaign, options: argparse.Namespace) -> bool:
    """Go on with a record, or run its findings again; whether there are open ones."""
    folder = options.record.resolve()
    if options.again:
        return bool(record.run_again(chosen, folder, seed=options.seed, progress=sys.stdout).open)
    limits = {"most": options.most, "jobs": options.jobs, "minutes": options.minutes}
    return bool(
        record.go_on(
            chosen, folder, seed=options.seed, count=_count(chosen, options), progress=sys.stdout, **limits
        ).open
    )


def _reduced(chosen: frame.Campaign, options: argparse.Namespace) -> None:
    """Make the findings of a folder, of a record, or one case smaller, and write their kinds."""
    from fuzz.reduction import reduce_findings

    folder = options.out.resolve() if options.record is None else options.record.resolve() / "findings"
    if options.case is not None:
        numbers = [options.case]
    elif options.record is not None:
        numbers = sorted(record.Record.read(record.file_of(options.record, chosen), chosen.name, options.seed).open)
    else:
        numbers = frame.reported(chosen, options.seed, folder)
    reduce_findings(chosen, numbers, seed=options.seed, out=folder, jobs=options.jobs, progress=sys.stdout)


def _rendered(options: argparse.Namespace) -> int:
    """Write the page of the records."""
    sys.path.append(str(frame.TESTS.parent))
    from fuzz.page import render

    render([campaign(name) for name in CAMPAIGNS], options.record, options.seed)
    return 0


def _alone(chosen: frame.Campaign, options: argparse.Namespace) -> bool:
    import tempfile

    frame.bind(frame.processor_pairs(1)[0])  # as children are
    with tempfile.TemporaryDirectory(prefix="opweave-fuzz-") as name:
        for step in (chosen.prepare, chosen.setup):
            if step is not None:
                step(Path(name))
        if chosen.describe is not None:
            print(chosen.describe(chosen.rng(options.seed, options.case), options.case), flush=True)
        word, what, _ = frame.attempt(chosen, options.seed, options.case)
    print(f"{chosen.name} {options.case}: {word}\n{what}".rstrip())
    return bool(what)


if __name__ == "__main__":
    sys.exit(main())
