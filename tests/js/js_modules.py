"""Modules that `opweave.js` writes, run in Node.js on `opweave serve`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from support import node_js
from support.agreement import run_without_composites

import opweave as ow
from opweave.context.graph import recorded_graph
from opweave.js import webnn_only
from opweave.serve import Server

CPU = ow.ml.create_context(device="cpu", backend="auto")

Arrays = Mapping[str, np.ndarray]


class Modules:
    """Modules that run in one process of Node.js.

    Args:
        folder: for the modules, and their inputs and outputs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.graphs: list[ow.MLGraph] = []

    def add(self, graph: ow.MLGraph, feed: Arrays) -> Path:
        """Write the module of a graph."""
        folder = self.folder / f"{len(self.graphs)}"
        folder.mkdir()
        self.graphs.append(graph)
        ow.js.save(graph, folder / "model.mjs")
        recorded = recorded_graph(graph)
        assert recorded is not None
        names = {"inputs": list(webnn_only(recorded).inputs), "outputs": list(graph.outputs)}
        (folder / "names.json").write_text(json.dumps(names))
        for k, name in enumerate(names["inputs"]):
            (folder / f"in_{k}").write_bytes(np.ascontiguousarray(feed[name]).tobytes())
        return folder / "model.mjs"

    def run(self, device: str = "cpu") -> list[dict[str, np.ndarray]]:
        """The outputs of each."""
        folders = [str(self.folder / str(k)) for k in range(len(self.graphs))]
        with Server(port=0, device=device) as server:
            environment = {"OPWEAVE_URL": server.url, "OPWEAVE_TOKEN": server.token or ""}
            node_js.run(
                [str(node_js.JS / "run_module.mjs"), str(node_js.package() / "node.mjs"), *folders], environment
            )
        return [self._outputs(Path(folder), graph) for folder, graph in zip(folders, self.graphs, strict=True)]

    @staticmethod
    def _outputs(folder: Path, graph: ow.MLGraph) -> dict[str, np.ndarray]:
        found = {}
        for k, (name, desc) in enumerate(graph.outputs.items()):
            found[name] = np.fromfile(folder / f"out_{k}", desc.data_type).reshape(desc.shape)
        return found


def expected(graph: ow.MLGraph, feed: Arrays) -> dict[str, np.ndarray]:
    """The results of the graph in Python, with composites decomposed."""
    return run_without_composites(graph, feed, CPU)
