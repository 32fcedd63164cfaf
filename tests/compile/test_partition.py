"""How nodes are divided into segments."""

from __future__ import annotations

from opweave.compile.partition import divide


def segments(**nodes: tuple[str, str]) -> list[str]:
    """The names of the nodes in each segment; a node is its kind, and the names of what it reads, a letter each."""
    made = divide(list(nodes), ["z"], lambda n: nodes[n][0], lambda n: nodes[n][1], lambda n: n)
    return ["".join(segment.nodes) for segment in made]


def test_partition_constant_nodes_join_readers() -> None:
    assert segments(w=("engine", ""), v=("engine", "w"), a=("kernel", "x"), z=("engine", "av")) == ["a", "wvz"]


def test_partition_constant_nodes_precede_early_readers() -> None:
    nodes = {"w": ("engine", ""), "a": ("engine", "xw"), "b": ("kernel", "a"), "z": ("engine", "bw")}
    assert segments(**nodes) == ["wa", "b", "z"]


def test_partition_constant_nodes_precede_kernel() -> None:
    assert segments(w=("engine", ""), a=("kernel", "wx"), z=("engine", "a")) == ["w", "a", "z"]
