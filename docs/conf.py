"""Configuration of the documentation site, which `make site` builds with Sphinx."""

from __future__ import annotations

import builtins
import inspect
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

import opweave as ow
from opweave.ops import Operations

project = "Opweave"
copyright = author = "The Opweave authors"
release = version = ow.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["README.md"]
nitpicky = False  # parameters between backquotes are no links
default_role = "py:obj"  # as in `MLGraph`: a link if it is a public name, else code

html_theme = "furo"
html_title = f"Opweave {release}"
html_logo = html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
smartquotes_action = "qe"  # quotation marks and ellipses; two hyphens begin an option
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
pygments_style, pygments_dark_style = "friendly", "monokai"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
myst_html_meta = {
    "description": "The WebNN runtime for Python: networks and ONNX models on CPUs, GPUs and NPUs, with custom operations",
    "keywords": "WebNN, Python, ONNX, inference, custom operations, WebGPU, CUDA, OpenVINO",
}
nb_execution_mode = "auto"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = True
# Of the extras `scale` and `server`, for the signatures of `deployment` and `ModelServer`.
autodoc_mock_imports = ["fastapi", "httptools", "prometheus_client", "ray", "starlette", "uvicorn"]
python_maximum_signature_line_length = 90
napoleon_numpy_docstring = False
toc_object_entries_show_parents = "hide"

EITHER = "MLOperand | ~opweave.Array"
TYPES = {"Builder": "MLGraphBuilder", "Operand": EITHER, "MLOperand": EITHER, "Long": "int", "Number": "float"}
"""Names in annotations of operations -> what a caller knows them as."""

MADE_ELSEWHERE = {"Array", "MLContext", "MLGraph", "MLOperand", "MLTensor", "Module"}
"""Classes that other functions make objects of: how to call them is of no use."""

PAGES = {"www.w3.org/TR/webnn": "The specification", "data-apis.org": "The standard"}
"""Addresses -> what a link to them is called, where it has a line of its own."""


MAX_NUMBER = 24
"""Characters of a number in a table, with its unit and quartiles, as in 0.91x (0.81 to 1.24)."""

MIN_LONG = 40
"""Characters of a cell that needs several lines, and a minimum width."""

MAX_CODE = 20
"""Characters of code that does not wrap: half of a line on a phone."""


class Annotation(str):
    """The text of an annotation, which a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def entry(name: str, op: Any, app: Sphinx) -> list[str]:
    """The lines that document an operation: its signature without the builder, and its docstring."""

    def shown(annotation: Any) -> Annotation:
        return Annotation(
            re.sub(r"\w+", lambda word: TYPES.get(word[0], word[0]), inspect.formatannotation(annotation).strip("'"))
        )

    signature = inspect.signature(op)
    parameters = [p.replace(annotation=shown(p.annotation)) for p in signature.parameters.values() if p.name != "self"]
    result = shown(signature.return_annotation)
    text = str(inspect.Signature(parameters, return_annotation=result))
    lines = (inspect.getdoc(op) or "").splitlines()
    app.emit("autodoc-process-docstring", "function", name, op, None, lines)
    return [f".. function:: {name}{text}", "", *(f"   {line}" for line in lines), ""]


class OperationList(SphinxDirective):
    """The operations of a package, with a section for each family; `opweave.ops drafts` are those of drafts."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse what autodoc would write if these were functions."""
        package = import_module(self.arguments[0])
        operations = Operations.drafts()
        if len(self.arguments) == 1:
            operations = {name: getattr(package, name) for name in getattr(package, "__all__", Operations.listing())}
        families: dict[str, list[str]] = {}
        for name, op in operations.items():
            family = families.setdefault(op.__module__.rpartition(".")[2].capitalize(), [])
            family += entry(name, op, self.env.app)
        lines = [f".. currentmodule:: {package.__name__}", ""]
        for title, entries in families.items():
            lines += [title, "-" * len(title), "", *entries]
        section = nodes.section()
        section.document = self.state.document
        nested_parse_with_titles(self.state, StringList(lines, source=package.__name__), section)
        return section.children


def to_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Prepare a docstring, which is plain text with Google's sections, for Napoleon.

    Indented paragraphs become blocks of code. What a function returns becomes a field, since Napoleon would take the words
    before a colon for a type. Characters that mean something to reStructuredText are escaped.
    """
    made: list[str] = []
    in_code = in_doctest = in_results = False
    for before, line in zip(["", *lines], lines, strict=False):
        depth, previous = _depth(line), _depth(next((line for line in reversed(made) if line), ""))
        in_doctest = bool(line) and (in_doctest or line.lstrip().startswith(">>>"))
        address = re.fullmatch(r"( *)(https://(\S+))", line)
        if address and not in_code:
            title = next((title for start, title in PAGES.items() if address[3].startswith(start)), address[2])
            made.append(f"{address[1]}`{title} <{address[2]}>`__")
            continue
        if line and depth == 0:
            in_code, in_results = False, line == "Returns:"
            if in_results:
                continue
        elif line and not before and depth > previous and not in_code and not in_results:
            language = "python" if re.search(r"ow\.|import |=|@", line) else "text"
            made += [" " * previous + f".. code-block:: {language}", ""]
            in_code = True
        if not in_code and not in_doctest:
            line = _escaped(line)
        made.append(f":returns: {line.lstrip()}" if in_results and before == "Returns:" else line)
    lines[:] = made


def _escaped(line: str) -> str:
    """A line of text in which only backquotes mean something; what follows one without a space, as a plural does, is text."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([*|\\])", r"\\\1", part) for part in parts[::2]]
    parts[2::2] = [re.sub(r"^(?=\w)", r"\\ ", part) for part in parts[2::2]]
    return "`".join(parts)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def signature_of(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Show no arguments of exceptions, and of classes whose objects other functions make."""
    is_made_elsewhere = what == "class" and obj.__name__ in MADE_ELSEWHERE
    return ("", None) if what == "exception" or is_made_elsewhere else (arguments, result)


def keep_builtins(app: Sphinx, document: nodes.document) -> None:
    """Do not link Python's own types in annotations to names of Opweave that end likewise, as `Copies.bytes` does."""
    for link in list(document.findall(pending_xref)):
        if link["refdomain"] == "py" and link["reftype"] == "class" and hasattr(builtins, link["reftarget"]):
            link.replace_self(link.children)


def keep_together(app: Sphinx, document: nodes.document) -> None:
    """Mark numbers in tables and short code, which stay on one line, and long cells, which have a minimum width."""
    for cell in document.findall(nodes.entry):
        text = cell.astext()
        if re.match(r"(<= |\+|-)?\d", text) and len(text) <= MAX_NUMBER:
            cell["classes"].append("number")
        elif len(text) >= MIN_LONG:
            cell["classes"].append("long")
    for code in document.findall(nodes.literal):
        if len(code.astext()) <= MAX_CODE:
            code["classes"].append("short")


def offer_download(app: Sphinx, document: nodes.document) -> None:
    """Link each notebook below its title, as the .ipynb file that was run for the page."""
    page = app.env.docname
    file = Path(app.outdir, "..", "jupyter_execute", f"{page}.ipynb").resolve()
    if not page.startswith("notebooks/") or page.endswith("/index"):
        return
    link = download_reference(
        "", "Download this notebook", reftarget=f"/{os.path.relpath(file, app.srcdir)}", refdoc=page
    )
    title = next(iter(document.findall(nodes.title)))
    title.parent.insert(1, nodes.paragraph("", "", link, nodes.Text(" for Jupyter or Colab."), classes=["notebook"]))


def link_pages(app: Sphinx, page: str, text: list[str]) -> None:
    """Let links to the files at the root of the repository lead to the pages that show them."""

    def target(match: re.Match[str]) -> str:
        name = match[2].lower()
        return f"]({'index' if name == 'readme' else name}.md{match[3] or ''})"

    text[0] = re.sub(r"\]\((\.\./)?(README|CONTRIBUTING|SECURITY|CHANGELOG)\.md(#[^)]*)?\)", target, text[0])


def setup(app: Sphinx) -> None:
    """Add what is above to Sphinx."""
    app.add_directive("operation-list", OperationList)
    app.connect("autodoc-process-docstring", to_rst, priority=400)  # before Napoleon reads the sections
    app.connect("autodoc-process-signature", signature_of)
    app.connect("doctree-read", keep_builtins)
    app.connect("doctree-read", keep_together)
    app.connect("doctree-read", offer_download, priority=400)  # before Sphinx collects the files of downloads
    app.connect("source-read", link_pages)
    app.connect("include-read", lambda app, path, page, text: link_pages(app, page, text))
