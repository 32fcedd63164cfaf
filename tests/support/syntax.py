"""Syntax trees of the source, which several tests read."""

from __future__ import annotations

import ast
import gc
from functools import cache


@cache
def syntax_nodes(source: str) -> list[ast.AST]:
    """The nodes of a text, as `ast.walk` yields them, for tests that change none of them."""
    nodes = [*ast.walk(ast.parse(source))]
    # Those of all modules would add 0.3 s to each `gc.collect()` of later tests.
    gc.freeze()
    return nodes
