"""Names and docstrings of the source: one word for one thing, and sentences that begin with their subject."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.syntax import syntax_nodes

import opweave as ow

ROOT = Path(ow.__file__).parent

QUESTIONS = ("What", "Where", "How", "Which", "Why")

HISTORY = ("found", "made", "known", "given")

MAX_HISTORY = 40
"""Assigned names that tell their history, in all files: those of public parameters, mostly."""

MAX_PRIVATE = 40
"""Accesses to private attributes of other objects than `self`. Fewer are better: lower this when some go."""

STANDARD = ("os", "sys")
"""Modules of Python that document functions with underscores: `os._exit`, `sys._getframe`."""

SHARED_NAMES = {
    "Buffer": "a buffer of a WGSL module that users write, and one of a GPU graph",
    "Emitter": "back ends outside of Opweave have one, too: the argument of rules",
    "Model": "an ONNX model, and a language model, public in `opweave.chat`",
    "Traced": "arrays in formulas, and arrays in functions of `jit`",
    "Value": "of an emitter, in each back end that has one",
}
"""Class names that are defined twice, and why."""


@cache
def modules() -> dict[str, list[ast.AST]]:
    """The nodes of the syntax trees of all modules, by path."""
    return {
        path.relative_to(ROOT).as_posix(): syntax_nodes(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")
    }


def texts(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, and of its classes, functions and attributes, with their lines."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_docstrings_do_not_begin_with_a_question() -> None:
    wrong = [
        f"{name}:{line}: {text[:60]}"
        for name, nodes in modules().items()
        for line, text in texts(nodes)
        if text.split()[:1] and text.split()[0] in QUESTIONS
    ]
    assert wrong == []


def test_class_names_are_defined_once() -> None:
    homes: dict[str, set[str]] = {}
    for name, nodes in modules().items():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), set()).add(name)
    twice = {name: sorted(files) for name, files in homes.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in SHARED_NAMES} == {}
    assert SHARED_NAMES.keys() <= twice.keys()
    assert len(SHARED_NAMES) <= 10


def test_locals_are_named_by_their_content() -> None:
    assigned = Counter(
        (name, node.id)
        for name, nodes in modules().items()
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in HISTORY
    )
    assert assigned.total() <= MAX_HISTORY, assigned.most_common(10)


def test_private_names_are_used_by_their_owners() -> None:
    used = Counter(
        name
        for name, nodes in modules().items()
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not node.attr.endswith("_")  # `_repr_html_` of notebooks is public
        and ast.unparse(node.value) not in ("self", "cls", "super()", *STANDARD)
    )
    assert used.total() <= MAX_PRIVATE, used.most_common(10)


RETIRED = {
    ast.ClassDef: ("Candidate", "Choice", "Found", "Joining", "Kept", "Made", "Pairs", "Reading"),
    ast.FunctionDef: ("counted", "each", "flat", "given", "its", "kept", "known", "listed", "made", "shown", "what"),
    ast.Name: ("each", "here", "its", "what"),
    ast.arg: ("each", "found", "here", "its", "made", "what"),
    ast.Module: ("borrowed", "dropping", "links", "meetings", "siblings", "texts", "thin", "words"),
}
"""Words that say too little, by what they would name: classes, functions, locals, parameters, modules."""


def names_of(path: str, nodes: list[ast.AST]) -> Iterator[tuple[type[ast.AST], str, int]]:
    """Yield what a module names: the kind of name, the name without leading underscores, and the line."""
    yield ast.Module, Path(path).stem, 1
    for node in nodes:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield type(node), node.name.lstrip("_"), node.lineno
        elif isinstance(node, ast.arg):
            yield ast.arg, node.arg.lstrip("_"), node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield ast.Name, node.id.lstrip("_"), node.lineno


def test_retired_words_name_nothing() -> None:
    uses = [
        f"{path}:{line}: {name}"
        for path, nodes in modules().items()
        for kind, name, line in names_of(path, nodes)
        if name in RETIRED.get(kind, ())
    ]
    assert uses == []
