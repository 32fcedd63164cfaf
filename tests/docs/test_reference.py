"""The reference: every public name has an entry, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import onnx
import pytest

import opweave as ow
from opweave.core.dtypes import ANY, DataType
from opweave.core.graph import MAX_RANK
from opweave.core.operation import Op
from opweave.ops import Operations
from opweave.support.hints import Misnomer

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
OPERATIONS = Operations.listing()
DRAFTS = Operations.drafts()

MODULES = [
    *(
        "opweave",
        "opweave.lazy",
        "opweave.ops",
        "opweave.array_api",
        "opweave.chat",
        "opweave.composites",
        "opweave.cuda",
    ),
    *("opweave.support.errors", "opweave.expr", "opweave.js", "opweave.memory", "opweave.onnx", "opweave.scale"),
    *("opweave.deploy", "opweave.serve", "opweave.wasm", "opweave.wgsl"),
]
"""The public modules."""


ELSEWHERE = {
    "opweave.chat.adapters.LoRA": "chat.md",
    "opweave.chat.conversation.Conversation": "chat.md",
    "opweave.chat.decoder.Decoder": "chat.md",
    "opweave.chat.gguf.GGUF": "chat.md",
    "opweave.chat.grammar.Grammar": "chat.md",
    "opweave.chat.model.Model": "chat.md",
    "opweave.chat.model.network": "chat.md",
    "opweave.chat.vocabulary.Vocabulary": "chat.md",
    "opweave.context.context.MLContext.create_exportable_tensor": "webgpu.md",
    "opweave.context.context.MLContext.create_exportable_tensor_async": "webgpu.md",
    "opweave.scale.deployment": "scale.md",
}
"""Names whose examples take more than NumPy (a model's file, a GPU, Ray), and the page that has them."""


def exported(module: str) -> Iterator[str]:
    """The public names of a module."""
    for name in OPERATIONS if module == "opweave.ops" else getattr(resolve_name(module), "__all__", ()):
        if not name.startswith("__") and f"{module}.{name}" not in ELSEWHERE:
            yield f"{module}.{name}"


def home(path: str) -> str:
    """Where an object is defined, by which it is known under all its names; data keep the path."""
    value = resolve_name(path)
    is_defined = inspect.isclass(value) or inspect.isroutine(inspect.unwrap(value))
    return home_of(value) if is_defined else path


def home_of(value: Any) -> str:
    """The module and the name under which a class or a function is defined."""
    return f"{value.__module__}.{value.__qualname__}"


def is_ours(cls: type) -> bool:
    """Whether a class is one of Opweave's."""
    return cls.__module__.startswith("opweave.")


@cache
def entries() -> dict[str, bool]:
    """What the pages of the reference document, and whether they document the members of classes, too."""
    found: dict[str, bool] = {}
    for page in REFERENCE.glob("*.rst"):
        module = ""
        for kind, name, options in re.findall(r"^\.\. ([\w-]+):: (\S+)((?:\n +:.*)*)", page.read_text(), re.MULTILINE):
            if kind == "currentmodule":
                module = name
            elif kind == "operation-list" or (kind == "automodule" and ":members:" in options):
                found.update((home(path), True) for path in exported(name))
            elif kind in ("autoclass", "autodata", "autofunction", "data"):
                path = name if name.startswith("opweave.") else f"{module}.{name}"
                if path not in ELSEWHERE:  # which may take an extra to import
                    found[home(path)] = ":members:" in options
    return found


@cache
def examples(module: str) -> dict[str, str]:
    """The code of the docstrings of a module, by what they are of: those that pytest collects, too."""
    found = doctest.DocTestFinder(exclude_empty=True).find(import_module(module))
    return {test.name: "".join(example.source for example in test.examples) for test in found if test.examples}


def public() -> Iterator[str]:
    """All public names but modules, by where they are defined."""
    paths = dict.fromkeys(path for module in MODULES for path in exported(module))
    yield from dict.fromkeys(home(path) for path in paths if not isinstance(resolve_name(path), ModuleType))


def members(bases: Iterable[type]) -> Iterator[tuple[type, str]]:
    """The public methods and properties of classes, each with its class; operations have entries of their own."""
    for base in filter(is_ours, bases):
        for name, value in vars(base).items():
            is_code = callable(value) or isinstance(value, (property, cached_property, classmethod, staticmethod))
            if is_code and not name.startswith("_") and name not in OPERATIONS | DRAFTS:
                yield base, name


def without_example(path: str) -> Iterator[str]:
    """The name if it has no example, and documented members of a class that neither their examples nor its own show."""
    value = resolve_name(path)
    if not hasattr(value, "__qualname__") or path in ELSEWHERE:  # data have none
        return
    if path not in examples(value.__module__):
        yield path
    bases = value.__mro__ if inspect.isclass(value) and entries().get(path) else ()
    shown = "".join(examples(base.__module__).get(home_of(base), "") for base in bases if is_ours(base))
    for base, name in members(bases):
        is_shown = f"{home_of(base)}.{name}" in examples(base.__module__) or re.search(rf"\b{name}\b", shown)
        if not is_shown and f"{path}.{name}" not in ELSEWHERE:
            yield f"{path}.{name}"


def test_public_names_have_entries() -> None:
    names = list(public())
    assert len(names) > 300
    assert [name for name in names if name not in entries()] == []


def test_public_names_have_examples() -> None:
    assert [missing for name in public() for missing in without_example(name)] == []


@pytest.mark.parametrize("path", ELSEWHERE)
def test_names_without_example_have_one_on_a_page(path: str) -> None:
    code = re.findall(
        r"^```py(?:thon)?\n(.*?)^```", (REFERENCE.parent / ELSEWHERE[path]).read_text(), re.MULTILINE | re.DOTALL
    )
    assert re.search(rf"\b{path.rpartition('.')[2].removesuffix('_async')}\(", "".join(code))


def public_names(instance: object) -> list[str]:
    """The names that completion offers for an object."""
    return [name for name in dir(instance) if not name.startswith("__")]


@pytest.mark.parametrize("module", [module for module in MODULES if module != "opweave.support.errors"])
def test_dir_of_modules_lists_documented_names(module: str) -> None:
    expected = {path.rpartition(".")[2] for path in exported(module)}
    expected |= {path.rpartition(".")[2] for path in ELSEWHERE if path.rpartition(".")[0] == module}
    names = public_names(resolve_name(module))
    assert expected <= set(names)
    if module != "opweave.chat":
        assert set(names) == expected


def documented(cls: type) -> set[str]:
    """The members of a class that its reference documents: its own, those of bases, and operations."""
    return {name for base in cls.__mro__ if is_ours(base) for name in vars(base) if not name.startswith("_")}


def test_dir_of_instances_lists_documented_names() -> None:
    context = ow.ml.create_context(device="reference")
    builder = ow.MLGraphBuilder(context)
    operand = builder.input("x", "float32", [2]).relu()
    graph = ow.MLGraphBuilder(context)
    built = graph.build({"y": graph.input("x", "float32", [2]).relu()})
    expected = {
        ow.ml: {"create_context", "create_context_async"},
        builder: {"build", "build_async", "constant", "context", "input", "inputs", "subgraph", *OPERATIONS, *DRAFTS},
        operand: documented(ow.MLOperand) | {*OPERATIONS} - {"concat"},
        built: documented(ow.MLGraph),
        context: documented(ow.MLContext),
        context.create_tensor("float32", [2]): documented(ow.MLTensor),
    }
    for instance, names in expected.items():
        listed = public_names(instance)
        assert listed == sorted(listed)
        assert set(listed) == {name for name in names if not is_misnomer(instance, name)}


def is_misnomer(instance: object, name: str) -> bool:
    """Whether a name is there for its error alone."""
    return isinstance(inspect.getattr_static(instance, name, None), Misnomer)


def test_dir_of_operations_lists_documented_names() -> None:
    described = set(re.findall(r"^    (\w+): ", inspect.getdoc(Op) or "", re.MULTILINE))
    declaring = {"decompose", "expression", "in_place", "named", "value_range"}
    assert set(public_names(ow.ops.relu)) == described | declaring | {"name"}
    assert set(public_names(ow.composites.top_k)) == described | declaring | {
        "name",
        "kernel",
        "check",
        "example",
        "step",
    }


def test_dir_of_arrays_and_sessions_lists_no_internals() -> None:
    array = ow.array([1.0])
    assert set(public_names(array)) == documented(ow.Array) - {
        *("code", "is_captured", "is_operand", "is_written", "memory", "node", "readers", "reads")
    }
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Relu", ["x"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [2])],
            [onnx.helper.make_tensor_value_info("y", 1, [2])],
        )
    )
    session = ow.InferenceSession(model.SerializeToString())
    assert set(public_names(session)) == documented(ow.InferenceSession)


def test_undocumented_names_are_found() -> None:
    assert home("opweave.support.errors.user_code") not in entries()
    assert list(without_example("opweave.support.errors.user_code")) == ["opweave.support.errors.user_code"]
    assert "opweave.context.context.MLContext.lost" not in list(without_example("opweave.context.context.MLContext"))


def arguments(op: Op[..., Any]) -> dict[str, str]:
    """What the docstring of an operation says about each argument."""
    section = (op.__doc__ or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE))


COMPOSITES = [op for name in ow.composites.__all__ if isinstance(op := getattr(ow.composites, name), Op)]


@pytest.mark.whole
@pytest.mark.parametrize("op", [*OPERATIONS.values(), *DRAFTS.values(), *COMPOSITES], ids=lambda op: op.name)
def test_docstrings_of_operations_agree_with_their_declarations(op: Op[..., Any]) -> None:
    """They name each argument and its choices, the data types and ranks of operands, results and errors."""
    text = op.__doc__ or ""
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Args", "Returns", "Raises"]
    assert list(arguments(op)) == list(op.parameters)
    for name in op.operands:
        told, limits = arguments(op)[name], op.limits[name]
        assert told_types(op, told) == allowed_types(op, name)
        sizes = re.findall(r"\[([\w */,()]+)\]", told)
        if "any rank" in told:
            assert limits.ranks == (0, MAX_RANK)
        elif "rank 1 or more" in told:
            assert limits.ranks == (1, MAX_RANK)
        elif sizes and "broadcasts" not in told:
            ranks = [size.count(",") + 1 for size in sizes]
            assert limits.ranks == (min(ranks), max(ranks))
    for name in op.attributes:
        annotation = eval(op.parameters[name].annotation, op.function.__globals__)
        for choice in choices(annotation) if annotation != DataType else ():
            assert f'"{choice}"' in arguments(op)[name]


def allowed_types(op: Op[..., Any], operand: str) -> set[str]:
    """The data types that an operand may have."""
    types = op.limits[operand].data_types
    return allowed_types(op, types) if isinstance(types, str) else set(types)


def told_types(op: Op[..., Any], told: str) -> set[str]:
    """The data types that a docstring gives an operand; if it names none, those that it gives all."""
    named = set(ANY) if "any data type" in told else set(re.findall(r"\bu?int\d+\b|\bfloat\d+\b", told))
    like = re.findall(r"data type (?:and \w+ )?of `(\w+)`", told)
    if not named and not like:
        like = re.findall(r"^All (?:other )?operands have the data type of `(\w+)`\.", op.__doc__ or "", re.MULTILINE)
    return named.union(*(allowed_types(op, operand) for operand in like))


def choices(annotation: Any) -> Iterator[str]:
    """The values of the literals in an annotation."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from choices(part)
