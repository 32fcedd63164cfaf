"""The Python in the documentation runs, and prints what its comments say."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import smollm2_file, webgpu_device

from opweave.chat import network
from opweave.onnx.session.room import MAX_COMPILED
from opweave.onnx.session.shape_cache import RECENT, VALUES

pytestmark = pytest.mark.default_choice  # what readers run

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def differences(page: str, name: str) -> list[str]:
    """Run the Python of a page, and say where a statement printed something else than the comment beside it says.

    A comment counts beside a call of `print`, and beside another expression if it is a literal, which then is its value. Where
    several lines are printed, the lines of comments that follow belong to it.
    """
    # Lines that are not code become empty, so that errors tell the line of the page.
    inside, lines = False, []
    for line in page.splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line == "```python" if fence else inside
    comments = {
        token.start[0]: token.string.removeprefix("#").removeprefix(" ")
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline)
        if token.type == tokenize.COMMENT
    }
    watched: dict[int, str] = {}
    ran: set[int] = set()
    found: list[str] = []

    def compare(line: int, got: str) -> None:
        ran.add(line)
        wanted = comments[line]
        for k in range(1, got.count("\n") + 1):
            if lines[line + k - 1].lstrip().startswith("#"):
                wanted += "\n" + comments[line + k]
        if got != wanted:
            found.append(f"{watched[line]} gave {got!r}, and the comment says {wanted!r}")

    @contextlib.contextmanager
    def printing(line: int) -> Iterator[None]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            yield
        compare(line, "\n".join(text.rstrip() for text in printed.getvalue().splitlines()))

    class Watch(ast.NodeTransformer):
        def visit_Expr(self, statement: ast.Expr) -> ast.stmt:
            line = statement.end_lineno or 0
            if line not in comments:
                return statement
            value = statement.value
            number = ast.Constant(line)
            made: ast.stmt
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print":
                made = ast.With([ast.withitem(ast.Call(ast.Name("_printing", ast.Load()), [number], []))], [statement])
            elif is_literal(comments[line]):
                text = ast.Call(ast.Name("repr", ast.Load()), [value], [])
                made = ast.Expr(ast.Call(ast.Name("_compare", ast.Load()), [number, text], []))
            else:
                return statement
            watched[line] = f"line {statement.lineno}: {ast.unparse(value)}"
            return ast.copy_location(made, statement)

    tree = ast.fix_missing_locations(Watch().visit(ast.parse("\n".join(lines), name)))
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(tree, name, "exec", dont_inherit=True), {"_printing": printing, "_compare": compare})
    return [*found, *(f"{text} did not run" for line, text in watched.items() if line not in ran)]


def is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return False
    return True


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All snippets of a page run in order, in one namespace; each statement prints what the comment beside it says."""
    if page.name == "webgpu.md":
        webgpu_device.adapter()  # skips where there is none
    needed = {
        "gradients.md": ["torch"],
        "pytorch.md": ["torch", "transformers"],
        "chat.md": ["openai", "uvicorn", "llguidance"],
        "scale.md": ["ray", "fastapi"],
        "serving.md": ["uvicorn", "prometheus_client", "tritonclient"],
        "spark-and-dask.md": ["dask"],
    }
    targets = {"gradients.md": "test-torch", "pytorch.md": "test-torch", "chat.md": "test-chat", "serving.md": "test"}
    target = targets.get(page.name, "test-scale")
    for package in needed.get(page.name, []):
        pytest.importorskip(package, reason=f"{package} is not installed: `make {target}`")
    if page.name == "chat.md":
        (tmp_path / "model.gguf").symlink_to(smollm2_file.path())  # skips where it is not installed
    monkeypatch.chdir(tmp_path)  # for the files that they write
    assert differences(page.read_text(), str(page)) == []


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("print(0)  # 0", []),
        ("print([[0.0]])  # 0", ["line 2: print([[0.0]]) gave '[[0.0]]', and the comment says '0'"]),
        ("print(1)  # 0\nprint(0)", ["line 2: print(1) gave '1', and the comment says '0'"]),
        ("for x in (1, 2):\n    print(x)  # 2", ["line 3: print(x) gave '1', and the comment says '2'"]),
        ("print('a\\n  b')  # a\n#   b", []),
        ("print('a\\nb')  # a", [r"line 2: print('a\nb') gave 'a\nb', and the comment says 'a'"]),
        ("if False:\n    print(1)  # 1", ["line 3: print(1) did not run"]),
        ("1 + 1  # 2\n[0]  # some words", []),
        ("1 + 1  # 3", ["line 2: 1 + 1 gave '2', and the comment says '3'"]),
        ("print(\n    1,\n    2,\n)  # 1 2", []),
    ],
)
def test_snippet_differences(code: str, wanted: list[str]) -> None:
    assert differences(f"```python\n{code}\n```", "page.md") == wanted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_page_numbers_equal_code() -> None:
    from opweave.demo.network import Network  # needs Pillow, which the environment of PyTorch lacks

    weights = sum(weight.size + bias.size for weight, bias in Network.load().layers)
    assert f"network of {weights:,} weights" in (ROOT / "README.md").read_text()
    onnx = (ROOT / "docs" / "onnx.md").read_text()
    assert f"At most **{MAX_COMPILED}** combinations" in onnx
    assert f"**{RECENT}** combinations of input shapes" in onnx
    assert f"the first **{VALUES}** values" in onnx


def test_settings_page_has_all_environment_variables() -> None:
    pattern = r"\b(?:OPWEAVE|HL)_[A-Z_]+\b"
    read = {name for path in (ROOT / "src").rglob("*.py") for name in re.findall(pattern, path.read_text())}
    page = (ROOT / "docs" / "settings.md").read_text()
    assert sorted(re.findall(rf"^\| `({pattern})`", page, re.MULTILINE)) == sorted(read)


def test_page_workflow_equals_file() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "web.md").read_text(), re.DOTALL)
    assert shown == (ROOT / "examples" / "web" / "workflow.yml").read_text()


def test_page_network_equals_source() -> None:
    """Its function in docs/chat.md is that of opweave.chat, without the docstring."""
    page = (ROOT / "docs" / "chat.md").read_text()
    (block,) = re.findall(r"```python\n([^`]*?def network\(.*?)```", page, re.DOTALL)
    shown, real = (
        next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "network")
        for source in (block, inspect.getsource(network))
    )
    del real.body[0]
    real.returns = None
    for argument in real.args.args:
        argument.annotation = None
    assert ast.unparse(shown) == ast.unparse(real)


@pytest.mark.parametrize(
    "page", sorted(set((ROOT / "docs" / "notebooks").glob("*.md")) - {ROOT / "docs/notebooks/index.md"})
)
def test_notebook_begins_with_its_packages(page: Path) -> None:
    """A line of pip, which only readers run, names an extra that exists for each of Opweave's own."""
    first = page.read_text().split("```{code-cell} python\n")[1].partition("```")[0]
    (line,) = re.findall(r"^:tags: \[skip-execution\]\n\n%pip install --quiet (.*)\n$", first)
    (extras,) = re.findall(r'^"opweave\[([\w,-]+)\]"', line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
