"""What all tests share."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest
from row_sample import sample

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


collect_ignore = ["backends/cuda/libcuda_program.py", "backends/cuda/cuda_triton_samples.py"]
"""Files without doctests; they import a driver of CUDA, and Triton."""
collect_ignore_glob = ["*conftest.py"]
"""Doctests are not looked for in these: all are modules of one name, and pytest imports the first of a name alone."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run the rows that differ by data type or size only, too (`make test-all`)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "data_types(family, subject, types): a row that differs from others of its subject by data types only",
    )
    config.addinivalue_line(
        "markers",
        "default_choice: sessions choose as users' do what runs static models",
    )
    config.addinivalue_line(
        "markers",
        "larger(than): a row whose operations are all in another one, on smaller arrays: run with `--all` alone",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sample the rows that differ by data type or size only, unless tests are asked for by name or with `--all`."""
    if config.option.all or config.option.keyword or any("::" in argument for argument in config.args):
        return
    groups: dict[Any, list[tuple[pytest.Item, str, Any]]] = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("data_types")) is not None:
            family, subject, types = mark.args
            groups[item.path, item.originalname, family].append((item, subject, types))  # type: ignore[attr-defined]
    left_out = {
        item
        for group in groups.values()
        for (item, *_), kept in zip(group, sample([(subject, types) for _, subject, types in group]), strict=True)
        if not kept
    }
    left_out |= {item for item in items if item.get_closest_marker("larger") is not None}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Wait for what a test has left to be compiled in the background: the next one counts what is compiled and kept."""
    try:
        return (yield)
    finally:
        if (module := sys.modules.get("opweave.lazy.background")) is not None:
            module.wait()


@pytest.fixture(autouse=True)
def compiles_static_models(request: pytest.FixtureRequest) -> Generator[None]:
    """Let sessions compile static models: else ONNX Runtime would be tested alone."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: that of a test may be undone before its other fixtures
        if "opweave.onnx" in sys.modules and request.node.get_closest_marker("default_choice") is None:
            patch.setattr("opweave.onnx.session.shape_cache.may_pay", lambda model, size: True)
            patch.setattr("opweave.onnx.session.choice.MAX_FALLBACKS", sys.maxsize)
        yield
