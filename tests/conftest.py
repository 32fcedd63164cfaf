"""What all tests share."""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import row_sample
from _pytest.doctest import DoctestModule
from row_sample import PARTS, PLACES, Row, divide, long_in_parts, part_number, places_to_run

os.environ.setdefault("OPWEAVE_STRICT", "1")  # faults of converters are raised, and do not hide behind fallback
os.environ.setdefault("OPWEAVE_VERIFY", "0")  # no child processes beside tests; those of verification unset it
os.environ.setdefault("OPWEAVE_DEVICE", "cpu")  # also where there is a GPU; tests of the choice unset it

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the environment of `make test-torch` has none
    pass
else:
    # The same examples on each machine, however fast it is: bounded by their number, with seeds made from the tests' names.
    settings.register_profile(
        "same everywhere", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("same everywhere")


TERMINAL = (
    *("COLUMNS", "LINES", "TERMINAL_WIDTH", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "PY_COLORS"),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS"),
)
"""Variables by which rich and typer choose widths and colours, beside TERM."""


def pytest_sessionstart() -> None:
    """Give the output of programs no colours and 80 columns, in any terminal; tests of terminals choose their own.

    pytest has chosen its own colours before, and commands are imported later.
    """
    for name in TERMINAL:
        os.environ.pop(name, None)
    os.environ["TERM"] = "dumb"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all tests, not a sample of them (`make test-all`)")
    parser.addoption(
        "--part",
        metavar="HASH",
        type=part_number,
        help=f"run what takes long, and one of {PARTS} parts of what the sample leaves out: the part of a number, or of a "
        "commit's hash (`make test-part`)",
    )
    parser.addoption("--sample", action="store_true", help="with --part: run the sample, too")
    parser.addoption(
        "--divide-long",
        action="store_true",
        help="with --part: divide what takes long into parts, too, since another run has all of it",
    )
    parser.addoption(
        "--few-examples", action="store_true", help="draw as few examples of property tests as the sample alone does"
    )


class FilesWithDoctests:
    """Look for doctests only in files that have some: the others need not be imported and searched."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        collectors = yield
        if re.search(rb"^\s*>>> ", file_path.read_bytes(), re.MULTILINE):
            return collectors
        return [collector for collector in collectors if not isinstance(collector, DoctestModule)]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FilesWithDoctests())  # not only for files beside this one
    is_sample_alone = config.option.part is None and not runs_all(config)
    row_sample.draws_few = is_sample_alone or config.option.few_examples
    for marker in (
        "covers(*values): values that a row stands for when rows are sampled, else the parts of its id",
        "default_choice: sessions choose as users' do what runs static models",
        "long(rows=0): a test that takes long: `make test` runs so many rows of it, and each part the others of the sample",
        "whole: a test whose rows are all in the sample, since each is about another operation, and they take no time",
    ):
        config.addinivalue_line("markers", marker)


HERE = os.path.join(os.path.dirname(__file__), "")

TESTS_BETWEEN_FREEZES = 100
"""Tests after which Python's garbage collection is kept away from all objects: without that, each of some hundred calls of
`gc.collect` takes a second once thousands of tests have run."""


def pytest_report_header(config: pytest.Config) -> str | None:
    part = config.option.part
    return None if part is None else f"part {part} of 0 to {PARTS - 1}"


def runs_all(config: pytest.Config) -> bool:
    """Whether all collected tests run: with `--all`, or if tests are asked for by name."""
    return bool(config.option.all or config.option.keyword or any("::" in argument for argument in config.args))


def row_of(item: pytest.Item) -> Row:
    covers, long = item.get_closest_marker("covers"), item.get_closest_marker("long")
    values = covers and covers.args
    if item.get_closest_marker("whole") is not None:
        values = (item.nodeid,)
    return Row(item.nodeid, values, long and long.kwargs.get("rows", 0))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose tests by their places, unless they are asked for by name or with `--all`.

    First, since what orders them takes seconds for those that are not chosen.
    """
    places = config.stash[PLACES] = divide(map(row_of, items))
    if runs_all(config):
        return
    if config.option.divide_long:
        places = long_in_parts(places)
    run = places_to_run(config.option.part, config.option.sample)
    config.hook.pytest_deselected(items=[item for item in items if places[item.nodeid] not in run])
    items[:] = [item for item in items if places[item.nodeid] in run]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep Python's garbage collection away from what pytest collects: many tests call it, and it would take seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


finished = itertools.count(1)
"""Counts the tests that have run."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Wait for what a test has left to be compiled in the background: the next one counts what is compiled and kept.

    After some tests, keep Python's garbage collection away from what they have left, as from what pytest collects.
    """
    try:
        return (yield)
    finally:
        if (module := sys.modules.get("opweave.support.background")) is not None:
            module.background.wait()
        if next(finished) % TESTS_BETWEEN_FREEZES == 0:
            gc.collect()
            gc.freeze()


class SharedGenerators:
    """The random generators that modules of tests share, and the states that they have before each test."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._states: dict[int, tuple[np.random.Generator, Any]] = {}

    def restore(self) -> None:
        """Restore all states, and note generators of modules that are new."""
        are_first = not self._seen
        new = sys.modules.keys() - self._seen
        self._seen |= new
        for module in [sys.modules[name] for name in sorted(new)]:
            if (getattr(module, "__file__", None) or "").startswith(HERE):
                for value in vars(module).values():
                    if isinstance(value, np.random.Generator) and id(value) not in self._states:
                        # A test that imported the module has drawn numbers: begin with the seed.
                        source = value.bit_generator
                        start = source if are_first else type(source)(source.seed_seq)  # type: ignore[attr-defined]
                        self._states[id(value)] = value, start.state
        for generator, state in self._states.values():
            generator.bit_generator.state = state


@pytest.fixture(scope="session")
def shared_generators() -> SharedGenerators:
    return SharedGenerators()


@pytest.fixture(autouse=True)
def seeds(shared_generators: SharedGenerators) -> None:
    """Random numbers that a test draws are the same in each run, whatever runs before.

    They come from the generators of libraries, or from those that modules of tests share.
    """
    for name, seed in {"numpy.random": "seed", "torch": "manual_seed"}.items():
        if (module := sys.modules.get(name)) is not None:
            getattr(module, seed)(0)
    shared_generators.restore()


@pytest.fixture(autouse=True)
def compiles_static_models(request: pytest.FixtureRequest) -> Generator[None]:
    """Let sessions compile static models: else ONNX Runtime would be tested alone."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: that of a test may be undone before its other fixtures
        if "opweave.onnx" in sys.modules and request.node.get_closest_marker("default_choice") is None:
            patch.setattr("opweave.onnx.session.shape_cache.reason_before_trace", lambda model, size: None)
            patch.setattr("opweave.onnx.session.choice.MAX_FALLBACKS", sys.maxsize)
        yield


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache on disk that nothing is in; it does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPWEAVE_CACHE", str(folder))
    return folder
