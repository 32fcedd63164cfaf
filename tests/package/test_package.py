"""The package as a whole: what it imports, and when; which modules may import which others."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest
from support.processes import run_python
from support.syntax import syntax_nodes

import opweave as ow
from opweave.support import lazy_imports

ROOT = Path(ow.__file__).parent


def test_import_loads_no_engine() -> None:
    """Engines, and what only tools need, load at the point of use."""
    code = "import opweave, sys; print(*sys.modules)"
    loaded = set(run_python(code).split())
    assert loaded.isdisjoint(
        {"onnxruntime", "onnx", "ml_dtypes", "torch", "PIL", "safetensors", "typer", "rich", "asyncio"}
    )


def test_session_imports_no_needless_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that take much memory, or serve only expressions, tuning and notebooks, load at the point of use."""
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path))  # where nothing is tuned
    code = """
import sys, numpy as np, onnx.helper as h, opweave as ow
imported = set(sys.modules)
x, y = (h.make_tensor_value_info(name, 1, [2]) for name in "xy")
model = h.make_model(h.make_graph([h.make_node("Relu", ["x"], ["y"])], "g", [x], [y]), ir_version=8)
session = ow.InferenceSession(model.SerializeToString())
session.run(None, {"x": np.zeros(2, np.float32)})
print(*set(sys.modules) - imported)
"""
    loaded = set(run_python(code).split())
    assert "opweave.onnx.session.session" in loaded
    assert loaded.isdisjoint({"hashlib", "html", "json", "fractions", "decimal", "statistics"})


def test_import_without_extras() -> None:
    code = """
import sys
from itertools import permutations
class Refuse:
    def find_spec(self, name, path=None, target=None):
        extras = {"PIL", "safetensors", "halide", "wasmtime", "wgpu", "numba", "openvino", "torch", "scipy"}
        if name.partition(".")[0] in extras:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Refuse())
import numpy as np, opweave as ow
context = ow.ml.create_context()
builder = ow.MLGraphBuilder(context)
graph = builder.build({"y": builder.input("x", "float32", [2]).relu()})
print(context.compute(graph, {"x": np.float32([-1, 1])})["y"].tolist())
from pathlib import Path
from opweave.demo import run
try:
    run(None, Path("x.png"))
except ow.MissingExtraError as error:
    print(error)
"""
    assert run_python(code) == "[0.0, 1.0]\nthe demo needs PIL: pip install 'opweave[demo]'\n"


def test_mypy_is_strict_outside_tests() -> None:
    """Tests pass what is wrong on purpose; pyproject.toml names the modules in which mypy reports that as an error."""
    root = ROOT.parents[1]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["mypy"]
    strict = next(each for each in settings["overrides"] if "opweave.*" in each["module"])
    assert strict["enable_error_code"] == settings["disable_error_code"]
    scripts = {path.stem for folder in ("examples", "tools") for path in (root / folder).glob("*.py")}
    assert {"opweave.*", "benchmarks.*", "gate.*", *scripts} == set(strict["module"])


def test_torch_is_imported_only_by_its_tests() -> None:
    """In a process where Mesa has loaded its LLVM, importing Triton, which PyTorch does, ends the process."""
    tests = Path(__file__).parents[1]
    files = {path.relative_to(tests) for path in tests.rglob("*.py")}
    pattern = re.compile(r"""^\s*(import|from) torch\b|importorskip\(["']torch\b""", re.MULTILINE)
    found = {path for path in files if pattern.search((tests / path).read_text())}
    # `make test` collects neither folder, and imports the file on an NVIDIA GPU alone.
    assert {path.parts[0] for path in found - {Path("backends/cuda/torch_on_cuda.py")}} <= {"pytorch", "libraries"}


PACKAGE = "opweave"

COMPUTED_IMPORTS = {
    "__init__.py": "the public names are imported when they are asked for",
    "backends/base.py": "back ends name their rules",
    "backends/discovery.py": "back ends are entry points",
    "backends/onnxruntime/plugins.py": "packages of others: plug-in execution providers",
    "cli/common.py": "modules of users, which declare operations",
    "composites/__init__.py": "the composites are imported when they are asked for",
    "core/__init__.py": "the public names are imported when they are asked for",
    "onnx/__init__.py": "the public names are imported when they are asked for",
    "support/errors.py": "extras: packages of others",
    "support/lazy_imports.py": "functions of rooms that build on the API",
    "onnxruntime/__init__.py": "submodules of ONNX Runtime",
    "pytorch/__init__.py": "names that need PyTorch are imported when they are asked for",
    "saved/operations.py": "modules of operations that files name",
    "scale/predictor.py": "modules of users, which declare operations",
}
"""Files that import modules whose names are computed, and why they may."""


def resolved(package: tuple[str, ...], level: int, module: str) -> tuple[str, ...] | None:
    """A module inside of the package, from a relative or an absolute name; None for those of others."""
    names = tuple(filter(None, module.split(".")))
    if level:
        return (*package[: len(package) - level + 1], *names)
    return names[1:] if names[:1] == (PACKAGE,) else None


def literal(node: ast.expr, package: tuple[str, ...]) -> str | None:
    """The text of a string in which `__package__` and `__name__` may stand; None where it is computed."""
    whole = ".".join((PACKAGE, *package))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = [
        part.value
        if isinstance(part, ast.Constant)
        else {"__package__": whole, "__name__": whole}.get(ast.unparse(part.value))  # type: ignore[attr-defined]
        for part in node.values
    ]
    return None if None in parts else "".join(map(str, parts))


def called(node: ast.Call) -> str:
    """The last name of a called function; empty where it is computed."""
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


@cache
def dependencies(where: str, source: str, types: bool = False) -> tuple[set[tuple[str, ...]], set[str]]:
    """Find what a file depends on when it runs, also inside of functions.

    Args:
        where: the file, relative to the package.
        source: what is in it.
        types: whether imports for type checkers count, too.

    Returns:
        What it imports of the package in any form, as names from the package on, and what it does that hides a dependency:
        modules of computed names, and attributes that it sets on modules.
    """
    nodes = syntax_nodes(source)
    typing = {
        inner
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    if typing and not types:
        nodes = [node for node in nodes if node not in typing]
    package = Path(where).parts[:-1]
    found: set[tuple[str, ...]] = set()
    modules: set[str] = set()  # names of variables that are modules of the package
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            base = resolved(package, node.level, node.module or "")
            if base is not None:
                for alias in node.names:
                    found.add((*base, alias.name))
                    place = ROOT.joinpath(*base, alias.name)
                    if place.is_dir() or place.with_suffix(".py").is_file():
                        modules.add(alias.asname or alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                base = resolved(package, 0, alias.name)
                if base is not None:
                    found.add(base)
                    modules.add(alias.asname or PACKAGE)
    hidden: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            name = literal(node.args[0], package) if node.args else None
            if name is None:
                hidden |= set() if where in COMPUTED_IMPORTS else {f"imports {ast.unparse(node.args[0])}"}
            elif base := resolved(package, len(name) - len(name.lstrip(".")), name.lstrip(".")):
                found.add(base)
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and called(node) == "setattr":
            targets = [ast.Attribute(node.args[0], ast.unparse(node.args[1]))]
        for target in targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value).split(".")[0] in modules:
                owner = ast.unparse(target.value)
                if owner in modules or owner.startswith(f"{PACKAGE}."):
                    hidden.add(f"sets {owner}.{target.attr}")
    return found - {()}, hidden


def listed_rooms(page: str, pattern: str) -> list[str]:
    """The rooms that the section "Rooms" of a page lists, in their order."""
    text = (ROOT.parent.parent / page).read_text().partition("## Rooms\n")[2].partition("\n## ")[0]
    return re.findall(pattern, text, re.MULTILINE)


@cache
def layers() -> dict[str, int]:
    """The rooms in the order of CONTRIBUTING.md."""
    return {name: number for number, name in enumerate(listed_rooms("CONTRIBUTING.md", r"^\d+\. `([\w/]+)/`"))}


def room_of(path: tuple[str, ...]) -> str:
    """The room of a file or module, as parts of its path; empty for the package itself."""
    rooms = layers()
    return next((name for k in (2, 1) if (name := "/".join(path[:k])) in rooms), "")


def against_the_arrows(where: str, source: str) -> list[str]:
    """What a file imports from rooms below its own, and what it hides."""
    layer = layers()
    own = room_of(Path(where).parts)
    imported, hidden = dependencies(where, source)
    rooms = {room_of(path) for path in imported} - {""}
    lower = sorted(room for room in rooms if layer[room] > layer[own] and (own, room) not in NEEDED_BELOW)
    return [f"{where} imports {room}" for room in lower] + [f"{where} {what}" for what in sorted(hidden)]


NEEDED_BELOW = {
    ("onnx/model", "onnx/convert"): "the converters of operators, when a model is traced",
    ("onnx/ort_api", "onnx/session"): "io_binding, a method of the session",
}
"""Rooms that import from one below, inside of functions, and why they may."""


FILES = sorted(
    file.relative_to(ROOT).as_posix()
    for file in ROOT.rglob("*.py")
    if not file.name.startswith("__") or file.parent != ROOT
)


def test_rooms_are_listed_in_one_order() -> None:
    assert listed_rooms("docs/how-it-works.md", r"^\| `([\w/]+)/`") == list(layers())
    assert {room_of(Path(file).parts) for file in FILES} == layers().keys()


def test_rooms_picture_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT.parent.parent / "tools")
    import draw_house  # type: ignore[import-not-found]

    assert draw_house.PICTURE.read_text(encoding="utf-8") == draw_house.picture(), "run python tools/draw_house.py"
    assert draw_house.rooms() == list(layers())
    down = [(room, other) for room, other in draw_house.arrows() if layers()[other] > layers()[room]]
    assert down == []  # nor does a module that is loaded import from below by an exception of `NEEDED_BELOW`


def test_modules_are_in_rooms() -> None:
    assert sorted(path.name for path in ROOT.glob("*.py*")) == ["__init__.py", "__main__.py"]


def test_rooms_import_only_from_rooms_above() -> None:
    """Modules import from the rooms above theirs in the list of CONTRIBUTING.md, never from those below."""
    assert [line for file in FILES for line in against_the_arrows(file, (ROOT / file).read_text())] == []


@pytest.mark.parametrize(
    ("where", "added", "found"),
    [
        ("lazy/call.py", "from ..core import operation\noperation.on_arrays = call", "sets operation.on_arrays"),
        ("lazy/force.py", "from . import array as arrays\narrays.compute = force", "sets arrays.compute"),
        ("lazy/force.py", "deferred_free.lock = None", "sets deferred_free.lock"),
        ("context/context.py", "from ..support import names\nnames.default_context = ml", "sets names.default_context"),
        ("context/context.py", "from ..support import names\nsetattr(names, 'x', ml)", "sets names.'x'"),
        (
            "ops/__init__.py",
            "def __getattr__(name):\n    return getattr(import_module('opweave.lazy.force'), name)",
            "imports lazy",
        ),
        ("core/operation.py", "def f():\n    import_module('opweave.lazy.call')", "imports lazy"),
        ("core/operation.py", "def f(name):\n    importlib.import_module(name)", "imports name"),
        ("custom/__init__.py", "import_module('..lazy.custom_call', __package__)", "imports lazy"),
        ("backends/webgpu/engine.py", "from ...inspect.profile import Profile", "imports inspect"),
        ("backends/webgpu/engine.py", "from ... import context", "imports context"),
        ("memory/host.py", "import opweave.context.context as c", "imports context"),
        ("memory/host.py", "from opweave import onnx", "imports onnx"),
    ],
)
def test_imports_against_the_arrows_are_found(where: str, added: str, found: str) -> None:
    source = (ROOT / where).read_text()
    assert against_the_arrows(where, f"{source}\n{added}\n") == [f"{where} {found}"]


@cache
def file_of(path: tuple[str, ...]) -> str:
    """The file of a module, or of the one that holds a name; empty for the package itself."""
    for names in (path, path[:-1]):
        place = ROOT.joinpath(*names)
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if names and file.is_file():
                return file.relative_to(ROOT).as_posix()
    return ""


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    """All that is imported when a file is, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = edges.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found


def circles(sources: dict[str, str]) -> list[set[str]]:
    """Sets of files that import each other, directly or not, also inside of functions and for type checkers."""
    edges = {file: set(map(file_of, dependencies(file, text, True)[0])) - {"", file} for file, text in sources.items()}
    reached = {file: reachable(file, edges) for file in edges}
    together = {frozenset({other for other in reached[file] if file in reached[other]}) for file in edges}
    return [set(circle) for circle in together if circle]


MAX_CIRCLE = 5


def test_circles_of_imports_are_short_and_within_a_room() -> None:
    sources = {file: (ROOT / file).read_text() for file in FILES}
    all_circles = circles(sources)
    assert [sorted(circle) for circle in all_circles if len(circle) > MAX_CIRCLE] == []
    rooms = [{room_of(Path(file).parts) for file in circle} for circle in all_circles]
    assert [sorted(circle) for circle, own in zip(all_circles, rooms, strict=True) if len(own) > 1] == []


def test_circles_finds_import_circle() -> None:
    sources = {
        "core/graph.py": "import numpy",
        "support/names.py": "from ..ops.movement import concat",
        "ops/movement.py": "def f():\n    from ..memory import host",
        "memory/host.py": "if TYPE_CHECKING:\n    import opweave.support.names\nfrom ..core.graph import Desc",
    }
    assert circles(sources) == [{"support/names.py", "ops/movement.py", "memory/host.py"}]


def test_links_from_the_api_to_packages_that_build_on_it() -> None:
    """There are no others; adding one needs a reason."""
    found = {name: link for name, link in vars(lazy_imports).items() if isinstance(link, lazy_imports.Link)}
    assert {name: link.home for name, link in found.items()} == {
        "array_namespace": "array_api",
        "infer_for_all_sizes": "core.inference",
        "call_custom": "lazy.custom_call",
        "check": "inspect.check",
        "composite_names": "composites",
        "compute": "lazy.force",
        "compute_real": "core.reals",
        "deferred_context": "lazy.deferred_context",
        "diff_torch": "pytorch.module",
        "draw": "inspect.drawing.api",
        "draw_model": "inspect.drawing.api",
        "explain": "inspect.explain",
        "keyed_graphs": "saved.keyed",
        "load_graph": "saved.api",
        "on_arrays": "lazy.call",
        "profile": "inspect.profile",
        "profile_model": "inspect.profile",
        "save_graph": "saved.api",
        "tune": "inspect.tune",
        "watch_graph": "verification.watch",
        "verify_graph": "verification.process",
    }
    for link in found.values():
        function = link.load()
        assert function.__module__ == f"opweave.{link.home}"


BACK_ENDS = ("reference", "onnxruntime", "webgpu")


@pytest.mark.parametrize(("name", "other"), list(permutations(BACK_ENDS, 2)))
def test_back_ends_do_not_import_each_other(name: str, other: str) -> None:
    for file in (ROOT / "backends" / name).rglob("*.py"):
        lines = [line for line in file.read_text().splitlines() if re.match(r"\s*(from|import)\b", line)]
        assert [line for line in lines if re.search(rf"\b{other}\b", line)] == [], file
