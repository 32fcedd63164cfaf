"""Chat templates: Jinja programs from the authors of models, run in a sandbox with bounded memory and time.

Templates get the same variables and functions as in Transformers' `apply_chat_template`:
https://huggingface.co/docs/transformers/chat_templating_writing.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from sys import getsizeof
from threading import Lock
from typing import Any, NoReturn, cast

import numpy as np

from ..support.errors import DataError, import_extra, require
from ..support.names import first_surrogate, short_repr
from .budget import MAX_TEXT, Budget
from .result_sizes import FILTER_SIZES, METHOD_SIZES, size_of_lipsum

MAX_TEMPLATE = 2**18
"""Maximum characters of a template. Templates of published models have up to 30,000."""

MAX_NESTING = 100
"""Maximum depth of lists and dictionaries in the variables of a template."""

MAX_RANGE = 2**53
"""Maximum of the numbers that `range` takes in a template."""

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the reasoning in a message. Templates read the first or the second."""


class Template:
    """A chat template; `path` is for messages."""

    def __init__(self, source: str, path: object) -> None:
        self._title = f"the chat template of {path}"
        if len(source) > MAX_TEMPLATE:
            raise DataError(f"{self._title} has {len(source):,} characters; at most {MAX_TEMPLATE:,} are read")
        self._lock = Lock()
        self._budget = Budget(self._title, MAX_TEXT)
        self._environment = _environment_class()(self._title, self._budget)
        self._template = self._environment.from_string(source)

    def render(self, variables: Mapping[str, Any], limit: int = MAX_TEXT) -> str:
        """Write a text of at most `limit` characters, from plain data."""
        with self._lock:
            self._budget.begin(limit)
            for value in variables.values():
                self._budget.require_small(value)
            parts: list[str] = []
            for part in self._template.generate(**variables):
                self._budget.write(part)
                parts.append(part)
        text = "".join(parts)
        if surrogate := first_surrogate(text):
            raise DataError(f"{self._title} writes {surrogate}")
        return text


def plain_messages(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Convert messages (mappings, dataclasses or objects of Pydantic) to dictionaries; entries that are None are missing.

    The reasoning of a message is copied to all names that templates read.
    """
    require(isinstance(messages, Iterable) and not isinstance(messages, (str, bytes, Mapping)),
            f"messages must be a list of messages, got {short_repr(messages)}")  # fmt: skip
    plain = []
    for k, message in enumerate(messages):
        entries = plain_data(message, f"messages[{k}]")
        require(isinstance(entries, dict), f"messages[{k}] must be a mapping, got {short_repr(message)}")
        entries = {name: value for name, value in entries.items() if value is not None}
        reasoning = next((entries[name] for name in REASONING if name in entries), None)
        if reasoning is not None:
            entries = {"thinking": reasoning, **entries, "reasoning_content": reasoning}
        plain.append(entries)
    require(len(plain) > 0, "there must be a message")
    return plain


def plain_mappings(name: str, values: Iterable[Any] | None) -> list[dict[str, Any]] | None:
    """Convert a list of mappings to plain data; None stays None."""
    if values is None:
        return None
    require(isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping)),
            f"{name} must be a list of dictionaries, got {short_repr(values)}")  # fmt: skip
    plain = [plain_data(value, f"{name}[{k}]") for k, value in enumerate(values)]
    for k, value in enumerate(plain):
        require(isinstance(value, dict), f"{name}[{k}] must be a dictionary, got {short_repr(value)}")
    return plain


def plain_data(value: Any, name: str, depth: int = 0) -> Any:
    """Convert a value to types of JSON, so that a template reaches no methods of other objects.

    Objects of other types become the name of the type, as "<ndarray>".
    """
    require(depth <= MAX_NESTING, f"{name} must be nested at most {MAX_NESTING} deep")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        surrogate = first_surrogate(value)
        require(not surrogate, f"{name} must be text, got {surrogate}")
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, (list, tuple)):
        plain = [plain_data(item, f"{name}[{k}]", depth + 1) for k, item in enumerate(value)]
        return tuple(plain) if isinstance(value, tuple) else plain
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif not isinstance(value, Mapping) and callable(getattr(value, "model_dump", None)):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {
            plain_data(key, f"a key of {name}", depth + 1): plain_data(item, f"{name}[{short_repr(key)}]", depth + 1)
            for key, item in value.items()
        }
    return f"<{type(value).__name__}>"


# The sandbox ---------------------------------------------------------------------------------------------------------


@cache
def _environment_class() -> Any:
    """Create the class of the sandbox on first use, since Jinja is an optional package.

    Operations whose result may be larger than the operands are checked before they run; the results of all others are
    counted. Repeated statements check the time.
    """
    import_extra("jinja2.sandbox", "chat", "the template of a conversation")
    from jinja2 import nodes, runtime, sandbox, utils
    from jinja2.defaults import DEFAULT_NAMESPACE
    from jinja2.ext import Extension
    from jinja2.visitor import NodeTransformer
    from markupsafe import EscapeFormatter

    lorem_ipsum: Any = DEFAULT_NAMESPACE["lipsum"]

    class Generation(Extension):
        """Blocks `{% generation %}`, which mark replies for training; only the content is written."""

        tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

        def parse(self, parser: Any) -> Any:
            # Transformers makes the block a macro, which has a separate scope.
            scope = nodes.CallBlock(lineno=next(parser.stream).lineno)
            scope.call, scope.args, scope.defaults = self.call_method("_write_body"), [], []
            scope.body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return scope

        def _write_body(self, caller: Callable[[], str]) -> str:
            return caller()

    class Namespace(utils.Namespace):
        """`namespace()`. Names of attributes must not begin with an underscore."""

        def __init__(*args: Any, **attributes: Any) -> None:
            self, *others = args
            for name in (entries := dict(*others, **attributes)):
                _check_attribute(name)
            utils.Namespace.__init__(self, entries)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_attribute(name)
            utils.Namespace.__setitem__(self, name, value)

        def __repr__(self) -> str:
            # Namespaces are mutable, so the size of their contents is unknown.
            return "<Namespace>"

    class Dict:
        """`dict()`, without the attributes of the type."""

        def __call__(self, *args: Any, **entries: Any) -> dict[Any, Any]:
            return dict(*args, **entries)

        def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
            return dict.fromkeys(keys, value)

    class Counted(NodeTransformer):
        """Adds counting calls to a template."""

        def visit(self, node: Any, *args: Any, **options: Any) -> Any:
            node = self.generic_visit(node)
            match node:
                case nodes.For() | nodes.Macro() | nodes.CallBlock() | nodes.Block() | nodes.FilterBlock():
                    node.body.insert(0, step(node, 0))
                case nodes.Output():
                    return output(node)
                case nodes.Concat():
                    return counter(nodes.List(node.nodes, lineno=node.lineno), "concatenate")
                case nodes.List() | nodes.Dict() | nodes.Tuple(ctx="load") | nodes.Getitem(arg=nodes.Slice()):
                    return counter(node, "collect")
                case nodes.Compare():
                    return counter(node, "compare")
            return node

    def output(node: Any) -> list[Any]:
        texts = [part.data for part in node.nodes if isinstance(part, nodes.TemplateData)]
        texts += [str(part.value) for part in node.nodes if isinstance(part, nodes.Const)]
        node.nodes = [
            part if isinstance(part, (nodes.TemplateData, nodes.Const)) else counter(part, "output")
            for part in node.nodes
        ]
        return [step(node, sum(map(getsizeof, texts))), node] if texts else [node]

    def counter(node: Any, name: str) -> Any:
        """Call a counting filter. Templates cannot name it, since its name has a space."""
        return nodes.Filter(node, f"{name} counted", [], [], None, None, lineno=node.lineno)

    def step(node: Any, size: int) -> Any:
        return nodes.ExprStmt(counter(nodes.Const(size, lineno=node.lineno), "step"), lineno=node.lineno)

    class Sandbox(sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def __init__(self, title: str, budget: Budget) -> None:
            extensions = [Generation, "jinja2.ext.loopcontrols"]
            super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
            self._budget = budget

            def refuse(message: object = "") -> NoReturn:
                raise DataError(f"{title} says: {message}")

            self.globals |= {
                "raise_exception": refuse,
                "strftime_now": self._now,
                "dict": Dict(),
                "namespace": Namespace,
            }
            self.globals["range"] = self._range
            self.filters["tojson"] = self._to_json
            for table in (self.filters, self.tests):
                wrapped: dict[str, Any] = {
                    name: self._wrap_counting(name, callback) for name, callback in dict[str, Any](table).items()
                }
                table |= wrapped
            counting: dict[str, Callable[[Any], Any]] = {
                "step": budget.step,
                "output": self._output,
                "concatenate": self._concatenate,
                "collect": budget.admit_container,
                "compare": self._compare,
            }
            for name, function in counting.items():
                self.filters[f"{name} counted"] = utils.pass_context(_without_context(function))

        def from_string(self, source: Any, *args: Any, **options: Any) -> Any:
            return super().from_string(Counted().visit(self.parse(source)), *args, **options)

        # Filters that count

        def _output(self, value: Any) -> str:
            return cast(str, self._budget.admit(str(value)))

        def _concatenate(self, values: list[Any]) -> Any:
            size, texts = 0, []
            for value in values:
                texts.append(str(value))
                size += len(texts[-1])
                self._budget.require_text(size)
            return self._budget.admit("".join(texts))

        def _compare(self, value: Any) -> Any:
            self._budget.step()
            return value

        def _wrap_counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            """Wrap a filter or test: check sizes before it runs, and count the result."""
            marks = {mark: getattr(function, mark) for mark in _MARKS if hasattr(function, mark)}
            first = 1 if "jinja_pass_arg" in marks else 0
            size = FILTER_SIZES.get(name)

            def wrapper(*args: Any, **options: Any) -> Any:
                self._budget.step()
                if name == "join" and len(args) > first and not isinstance(args[first], str):
                    args = (*args[:first], list(args[first]), *args[first + 1 :])
                if size is not None:
                    self._require_size(size, args[first:], options)
                return self._budget.admit(function(*args, **options))

            vars(wrapper).update(marks)
            return wrapper

        def _require_size(self, size: Callable[..., int], args: tuple[Any, ...], options: dict[str, Any]) -> None:
            """Require that a result is small enough. Skip invalid arguments: the function raises the error."""
            try:
                predicted = size(*args, **options)
            except (TypeError, ValueError, AttributeError, OverflowError):
                return
            self._budget.require_text(predicted)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            self._budget.step()
            self._budget.require_operands(operator, left, right)
            result = super().call_binop(context, operator, left, right)
            return self._budget.admit_container(result)

        def call(self, context: Any, function: Any, *args: Any, **options: Any) -> Any:
            self._budget.step()
            owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
            if isinstance(owner, (str, bytes)) and name in METHOD_SIZES:
                if name == "join" and len(args) == 1:
                    args = (list(args[0]),)
                self._require_size(METHOD_SIZES[name], (owner, *args), options)
            elif isinstance(owner, int) and name == "to_bytes":
                self._require_size(lambda length=1, *_, **__: length, args, options)
            elif function is lorem_ipsum:
                self._require_size(size_of_lipsum, args, options)
            elif isinstance(function, runtime.Macro):
                # The arguments become elements of `varargs` and `kwargs`.
                self._budget.require_small((args, options))
            return self._budget.admit(super().call(context, function, *args, **options))

        def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
            wrapper = super().wrap_str_format(value)
            if wrapper is None:
                return None
            owner, is_map = value.__self__, value.__name__ == "format_map"
            formatter: Any = Formatter(self)
            if hasattr(owner, "__html__"):
                make: Any = HtmlFormatter
                formatter = make(self, escape=owner.escape)
            formatter.budget = self._budget

            def format_text(*args: Any, **options: Any) -> str:
                if is_map:
                    (options,), args = args, ()
                return cast(str, type(owner)(formatter.vformat(owner, args, options)))

            return format_text

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            # Some of Python's codecs take quadratic time.
            is_codec = isinstance(obj, (str, bytes)) and attr in ("encode", "decode")
            return not is_codec and super().is_safe_attribute(obj, attr, value)

        # Functions for templates

        def _range(self, *args: int) -> range:
            # Larger numbers can have equal hashes, which makes dictionaries slow.
            if any(abs(number) > MAX_RANGE for number in args):
                raise OverflowError(f"numbers of a range must be at most {MAX_RANGE:,}, got {short_repr(args)}")
            return sandbox.safe_range(*args)

        def _now(self, form: str) -> str:
            # The C library pads to widths such as %999999999Y.
            widths = sum(int(digits[:20]) for digits in re.findall(r"\d+", form))
            self._budget.require_text(64 * len(form) + widths)
            return datetime.now().strftime(form)

        def _to_json(
            self,
            value: Any,
            ensure_ascii: bool = False,
            indent: int | str | None = None,
            separators: tuple[str, str] | None = None,
            sort_keys: bool = False,
        ) -> str:
            indent_size = len(indent) if isinstance(indent, str) else indent or 0
            if isinstance(indent_size, int):
                self._budget.require_text(MAX_NESTING * indent_size)
            encoder = json.JSONEncoder(
                ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
            )
            # In chunks: separators and indentation can be much longer than the value.
            size, chunks = 0, []
            for chunk in encoder.iterencode(value):
                size += len(chunk)
                self._budget.require_text(size)
                chunks.append(chunk)
            return "".join(chunks)

    class Fields:
        budget: Budget

        def format_field(self, value: Any, form: str) -> Any:
            self.budget.require_text(sum(int(digits[:20]) for digits in re.findall(r"\d+", form)))
            return self.budget.admit(super().format_field(value, form))  # type: ignore[misc]

    class Formatter(Fields, sandbox.SandboxedFormatter):
        pass

    class HtmlFormatter(Fields, sandbox.SandboxedFormatter, EscapeFormatter):
        pass

    return Sandbox


def _without_context(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Add a parameter for the context, so that Jinja does not evaluate calls while compiling."""
    return lambda _, value: function(value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise ValueError(f"attributes of a namespace must not begin with an underscore, got {name!r}")


_MARKS = ("jinja_pass_arg", "jinja_async_variant")
"""Attributes by which Jinja marks the parameters of a filter."""
