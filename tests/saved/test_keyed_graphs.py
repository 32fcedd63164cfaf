"""Graphs by key: `save_graph`, `load_graph`, `list_graphs`, `delete_graph`."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import opweave as ow
from opweave import cli
from opweave.saved.keyed import KeyedGraphs
from opweave.support import disk_cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def draft_context() -> ow.MLContext:
    return ow.ml.create_context(device="reference", drafts=True)


def scaled(context: ow.MLContext, factor: float, size: int = 2) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    weights = builder.constant(np.full(size, factor, "float32"))
    return builder.build({"y": builder.input("x", "float32", [size]) * weights})


def value(graph: ow.MLGraph) -> float:
    return float(graph.context.compute(graph, {"x": np.ones(2, "float32")})["y"][0])


def test_nothing_was_ever_saved(cache: Path) -> None:
    context = draft_context()
    context.delete_graph("a")
    assert context.list_graphs() == []
    with pytest.raises(ow.DataError, match=r"load_graph: there is no graph 'a'"):
        context.load_graph("a")
    assert not cache.exists()


def test_graphs_are_kept_by_key(cache: Path) -> None:
    context = draft_context()
    assert context.list_graphs() == []
    keys = ["b", "a/../../b", "ключ", "A", "a", "x" * 1024]
    for number, key in enumerate(keys):
        context.save_graph(key, scaled(context, number))
    other = draft_context()
    assert other.list_graphs() == sorted(keys)
    assert [value(other.load_graph(key)) for key in keys] == [0, 1, 2, 3, 4, 5]
    other.save_graph("a", scaled(other, 9))
    assert value(context.load_graph("a")) == 9
    context.delete_graph("a")
    context.delete_graph("a")
    assert "a" not in other.list_graphs()
    assert {path.parent.name for path in cache.rglob("*.opweave")} == {"graphs"}
    disk_cache.clear()
    assert len(context.list_graphs()) == 5


def test_loaded_graph_outlives_its_file() -> None:
    context = draft_context()
    context.save_graph("a", scaled(context, 3, 2))
    graph = context.load_graph("a")
    context.delete_graph("a")
    assert value(graph) == 3


@pytest.mark.parametrize("method", ["save_graph", "load_graph", "list_graphs", "delete_graph"])
def test_graphs_by_key_need_drafts(method: str) -> None:
    context = ow.ml.create_context(device="reference")
    arguments = {"save_graph": ("a", scaled(context, 1)), "list_graphs": ()}.get(method, ("a",))
    with pytest.raises(ow.ValidationError, match=rf"{method} .*drafts=True"):
        getattr(context, method)(*arguments)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "1 to 1024 characters, got 0"),
        ("a" * 1025, "got 1025"),
        (7, "must be a string, got 7"),
        ("\ud800", "UTF-8"),
    ],
    ids=["empty", "long", "number", "surrogate"],
)
def test_key_must_be_a_text(key: str, message: str) -> None:
    context = draft_context()
    for call in (lambda: context.save_graph(key, scaled(context, 1)), lambda: context.load_graph(key)):
        with pytest.raises(ow.ValidationError, match=message):
            call()


def test_save_graph_rejects_graphs_of_other_contexts() -> None:
    context = draft_context()
    with pytest.raises(ow.ValidationError, match="save_graph: the graph belongs to another context"):
        context.save_graph("a", scaled(draft_context(), 1))
    with pytest.raises(ow.ValidationError, match="graph must be an MLGraph, got str"):
        context.save_graph("a", "graph")  # type: ignore[arg-type]


def test_load_graph_without_a_graph_is_an_error() -> None:
    context = draft_context()
    with pytest.raises(ow.DataError, match="there is no graph 'a'"):
        context.load_graph("a")
    context.save_graph("b", scaled(context, 1))
    with pytest.raises(ow.DataError, match="there is no graph 'a'"):
        context.load_graph("a")


def test_save_graph_respects_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    context = draft_context()
    context.save_graph("a", scaled(context, 1, 2**16))
    monkeypatch.setenv("OPWEAVE_GRAPHS_BYTES", str(2**19))
    with pytest.raises(ow.OperationError, match=r"the graph 'b' takes 25\d.* KiB, and 2\d\d.* KiB of 512"):
        context.save_graph("b", scaled(context, 2, 2**16))
    context.save_graph("a", scaled(context, 3, 2**16))
    assert context.list_graphs() == ["a"]


def test_damaged_graphs_are_not_listed(cache: Path) -> None:
    context = draft_context()
    context.save_graph("a", scaled(context, 1))
    context.save_graph("b", scaled(context, 1))
    path = next(cache.rglob("*.opweave"))
    path.write_bytes(path.read_bytes()[:50])
    assert len(context.list_graphs()) == 1


def test_save_graph_deletes_what_ended_processes_left(cache: Path) -> None:
    context = draft_context()
    context.save_graph("a", scaled(context, 1))
    path = next(cache.rglob("*.opweave"))
    old, new = (path.with_name(f".{path.name}.{number}") for number in (1, 2))
    for file in (old, new):
        file.write_bytes(bytes(100))
    os.utime(old, (0, 0))
    context.save_graph("b", scaled(context, 1))
    assert not old.exists()
    assert new.exists()  # another process may be writing it now
    assert context.list_graphs() == ["a", "b"]


def test_cache_commands_show_and_delete_graphs(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["opweave", "cache", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        return capsys.readouterr().out

    context = draft_context()
    page = KeyedGraphs(context, "http://localhost:5173")
    assert "graph" not in run("list")
    context.save_graph("b", scaled(context, 1))
    context.save_graph("[red]a", scaled(context, 1))
    page.save("b", scaled(context, 1))
    disk_cache.store("0" * 64, "o", bytes(2000))
    disk_cache.store("1" * 64, "o", bytes(2000))
    shown = run("list")
    for line in (
        r"compiled expression: 2 files, 4\.0 KiB",
        r"2 files, 4\.0 KiB of 256\.0 MiB in ",
        r"'\[red\]a' +programs +\d",
        r"'b' +programs +\d",
        r"'b' +a web page +\d",
        r"3 graphs, .* KiB of 4\.0 GiB",
    ):
        assert re.search(line, shown), (line, shown)
    assert run("clear") == "deleted 2 files, 4.0 KiB\n"
    assert context.list_graphs() == ["[red]a", "b"]
    assert "deleted 3 graphs, " in run("clear", "--graphs")
    assert context.list_graphs() == page.keys() == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_save_graph_needs_a_directory_of_this_user(cache: Path) -> None:
    context = draft_context()
    context.save_graph("a", scaled(context, 1))
    os.chmod(cache / "graphs", 0o777)
    with pytest.raises(ow.OperationError, match="can be written to by other users"):
        context.save_graph("b", scaled(context, 1))
    assert context.list_graphs() == []


def test_threads_save_and_load_one_key() -> None:
    context = draft_context()
    context.save_graph("a", scaled(context, 0))

    def use(number: int) -> float:
        if number % 2:
            context.save_graph("a", scaled(context, number))
        return value(context.load_graph("a"))

    with ThreadPoolExecutor(8) as pool:
        values = [*pool.map(use, range(32))]
    assert {*values} <= {0.0, *range(1, 32, 2)}
    assert context.list_graphs() == ["a"]
