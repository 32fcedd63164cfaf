"""Sets of extras that are missing: what needs none works, and what needs one that is missing says which.

A case is a set. Its uses run in a process of their own, in which the packages cannot be imported, with an empty cache on disk:
`python -m fuzz.extras EXTRA …`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

from support.without_extras import Refuse

from fuzz.frame import TESTS, Campaign, Finding

PACKAGES = {
    "chat": {"jinja2", "tokenizers"},
    "cuda": {"cuda"},
    "demo": {"PIL", "safetensors"},
    "halide": {"halide", "llvmlite"},
    "numba": {"numba"},
    "openvino": {"openvino"},
    "safetensors": {"safetensors"},
    "scale": {"ray"},
    "server": {"httptools", "prometheus_client", "uvicorn"},
    "wasm": {"wasmtime"},
    "webgpu": {"wgpu"},
}
"""The packages of each extra by which it is known to be there."""

RANDOM = 3
"""How many sets are random ones."""


def sets() -> list[list[str]]:
    """Each extra missing alone, all but one missing, all missing; and random ones."""
    names = sorted(PACKAGES)
    rng = random.Random("sets of extras")
    alone = [[name] for name in names]
    others = [[other for other in names if other != name] for name in names]
    return [names, *alone, *others, *(sorted(rng.sample(names, rng.randint(2, 5))) for _ in range(RANDOM))]


# In the process in which they are missing ----------------------------------------------------------------------------


def of_a_graph() -> Any:
    import numpy as np

    import opweave as ow

    context = ow.ml.create_context()
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 2])
    graph = builder.build({"y": builder.relu(builder.matmul(x, x))})
    return context.compute(graph, {"x": np.float32([[1, 2], [-3, 1]])})["y"].tolist()


def of_an_expression() -> Any:
    import numpy as np

    import opweave as ow

    @ow.expression
    def gated(x: Any, *, sharpness: float = 1.0) -> Any:
        return x * ow.expr.max(sharpness * x, 0.0)

    return gated(ow.array(np.float32([1, -2, 3])), sharpness=2.0).tolist()


def of_a_model() -> Any:
    import numpy as np
    from support.served_models import served_model

    import opweave as ow

    return ow.InferenceSession(served_model("fixed")).run(None, {"x": np.ones((2, 3), "float32")})[0].tolist()


def of_operations() -> Any:
    import opweave as ow

    x = ow.array([[1.0, -2.0], [3.0, 4.0]])
    return (x @ x.transpose() + 1).relu().reduce_sum().item()


def of_the_standard() -> Any:
    from opweave import array_api as xp

    x = xp.asarray([1.0, 5.0])
    return xp.where(x > xp.mean(x), x, 0.0).tolist()


def command(*arguments: str) -> Callable[[], Any]:
    """A command line that ends without an error; what it prints is not compared."""

    def run() -> Any:
        from typer.testing import CliRunner

        import opweave as ow
        from opweave.cli import app

        done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
        if done.exit_code == 1:
            raise ow.OperationError(done.output)
        return done.exit_code

    return run


def device(name: str, backend: str | None = None) -> Callable[[], Any]:
    """A context on a device."""

    def make() -> Any:
        import opweave as ow

        return (
            ow.ml.create_context(device=name, **({} if backend is None else {"backend": backend})).backend is not None
        )

    return make


def of_a_module() -> Any:
    from pathlib import Path

    import opweave as ow
    from opweave.kernels import wasm

    return len(wasm.load(Path(ow.__file__).parent / "kernels/wasm/library/kernels.wasm").exports) > 0


def of_compiled_loops() -> Any:
    from opweave.core.graph import Desc
    from opweave.expr import trace
    from opweave.expr.halide import compile

    return compile(trace(lambda x: x + 1, "p", [Desc("float32", (3,))])) is not None


def of_serving() -> Any:
    from support.served_models import served_model

    from opweave.scale import deployment

    return deployment(served_model("fixed"), name="fixed") is not None


def of_a_server() -> Any:
    from support.served_models import served_model

    from opweave.deploy import ModelServer

    with ModelServer({"fixed": served_model("fixed")}) as server:
        return server.url.startswith("http://127.0.0.1:")


USES: dict[str, tuple[str, Callable[[], Any], Any]] = {
    "a graph": ("", of_a_graph, [[0.0, 4.0], [0.0, 0.0]]),
    "an expression": ("", of_an_expression, [2.0, 0.0, 18.0]),
    "a model": ("", of_a_model, [[-1.0] * 3] * 2),
    "operations on arrays": ("", of_operations, 32.0),
    "the array API": ("", of_the_standard, [0.0, 5.0]),
    "doctor": ("", command("doctor"), 0),
    "devices": ("", command("devices"), 0),
    "a device of OpenVINO": ("openvino", device("cpu", "openvino"), True),
    "a device of WebGPU": ("webgpu", device("gpu-software"), True),
    "a device of CUDA": ("cuda", device("cuda"), True),
    "a module of WebAssembly": ("wasm", of_a_module, True),
    "compiled loops": ("halide", of_compiled_loops, True),
    "a deployment": ("scale", of_serving, True),
    "a server": ("server", of_a_server, True),
}
"""What is done: the extra that it needs, how, and what comes of it."""


def attempts() -> dict[str, list[Any]]:
    """What comes of each use: its value, or the class and the message of an error."""
    from opweave.support.errors import MLError

    found = {}
    for name, (_, use, _) in USES.items():
        try:
            found[name] = ["value", use()]
        except MLError as error:
            found[name] = [type(error).__name__, str(error)]
    return found


# In the process of the campaign --------------------------------------------------------------------------------------


def case(rng: random.Random, number: int) -> tuple[str, int]:
    """Run all uses without a set of extras, and check what came of each."""
    missing = sets()[number]
    command = [sys.executable, "-m", "fuzz.extras", *missing]
    with TemporaryDirectory(prefix="opweave-extras-") as cache:  # code that was compiled before runs without a compiler
        environment = os.environ | {"OPWEAVE_CACHE": cache}
        done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Finding(f"without {missing}: exit status {done.returncode}\n{done.stderr[-4000:]}")
    for name, (kind, what) in json.loads(done.stdout).items():
        extra, _, expected = USES[name]
        there = not extra or (extra not in missing and all(find_spec(package) for package in PACKAGES[extra]))
        hint = f"pip install 'opweave[{extra}]'"
        if there:
            # A device that the machine does not have is an error, but no extra brings it.
            is_right = what == expected if kind == "value" else bool(extra) and hint not in what
        else:
            is_right = kind in ("MissingExtraError", "NotSupportedError") and hint in what
        if not is_right:
            raise Finding(f"without {missing}, {name} gives {kind} {str(what)[:1000]!r}")
    return "as it should be", len(USES)


CAMPAIGNS = {
    "extras": Campaign(
        "extras",
        "a set of missing extras: features without extras work, and others name the extra that they need",
        case,
        count=len(sets()),
        short=1,
        batch=1,
        memory=None,
        unit="uses",
        patience=300,  # it waits for its process
        outcomes=frozenset({"as it should be"}),
    )
}


if __name__ == "__main__":
    refused = {package for extra in sys.argv[1:] for package in PACKAGES[extra]}
    sys.meta_path.insert(0, Refuse(refused))
    print(json.dumps(attempts()))
