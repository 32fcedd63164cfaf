"""The text of a JavaScript module that builds a graph."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np

from .. import __version__
from ..core.conversion import SizeHint
from ..core.graph import Desc, Graph, Node, Operand
from ..core.guards import explore
from ..core.operation import call_with
from ..core.sizes import Dimension, Size, is_static, is_symbolic
from ..serve.idl import DRAFTS, OPERATIONS, Operation
from ..serve.messages import MAX_SAFE_INTEGER
from ..support.errors import ValidationError
from ..support.formatting import size
from ..support.names import camel_case, count_of
from .safetensors import TYPES

MAX_INLINE = 8
"""Maximum number of elements of a constant in the module. Constants of float16 are never in the module: older browsers
have no Float16Array."""
MAX_LINE = 118
"""Maximum number of characters of a line. In a longer call, each argument has a line."""

VIEWS = {
    "float32": "Float32Array",
    "float16": "globalThis.Float16Array ?? Uint16Array",
    "int64": "BigInt64Array",
    "uint64": "BigUint64Array",
    "int32": "Int32Array",
    "uint32": "Uint32Array",
    "int8": "Int8Array",
    "uint8": "Uint8Array",
}
"""JavaScript's typed array of each data type."""

RARE = ("int64", "uint64", "float16")
"""Data types that a device may lack (https://www.w3.org/TR/webnn/#api-mlcontext-opsupportlimits)."""

# Reserved words of JavaScript in modules, and the names that the module itself uses.
_WORDS = """
arguments await break case catch class const continue debugger default delete do else enum eval export extends false finally
for function if implements import in instanceof interface let new null package private protected public return static super
switch this throw true try typeof undefined var void while with yield
build builder constant context file globalThis inputs literal loadWeights outputs reader types weights
MLGraphBuilder Infinity NaN Number Error Uint8Array ArrayBuffer DataView TextDecoder JSON URL fetch
"""
RESERVED = frozenset([*_WORDS.split(), *re.findall(r"\w+", " ".join(VIEWS.values()))])


class JsModule:
    """A graph of WebNN's operations as a module.

    `unread` names the inputs that are left out; `size_hints` are those of names in the shapes of inputs. Constants that are
    not in the module are in `weights`, by name, once `text` has been called.
    """

    def __init__(
        self,
        graph: Graph,
        name: str,
        weights_name: str,
        title: str = "",
        unread: Sequence[str] = (),
        size_hints: Mapping[str, SizeHint] = MappingProxyType({}),
    ) -> None:
        self.graph, self.name, self.weights_name, self.title = graph, name, weights_name, title
        self.unread, self.size_hints = unread, size_hints
        self.weights: dict[str, np.ndarray] = {}
        self._taken = {*RESERVED}
        self._names: dict[Operand, str] = {}
        self._stored: dict[tuple[Any, ...], str] = {}
        self._has_literals = False

    def text(self) -> str:
        """Return the text of the module."""
        body = [*self._inputs(), *self._statements(), *self._outputs()]
        arguments = "context, weights = loadWeights()" if self.weights else "context"
        head = ["export async function build(" + arguments + ") {", "  const builder = new MLGraphBuilder(context);"]
        if self.weights:
            head.append("  const constant = reader(builder, await weights);")
        if self._has_literals:
            head.append("  const literal = (dataType, shape, view) => builder.constant({ dataType, shape }, view);")
        doc = [
            "/**",
            " * Build the graph.",
            " *",
            " * @param {MLContext} context - of `navigator.ml.createContext()`",
        ]
        if self.weights:
            name = json.dumps(self.weights_name)
            doc.append(f" * @param {{ArrayBuffer | Uint8Array | Promise}} [weights] - the bytes of {_comment(name)}")
        doc += [" * @returns {Promise<MLGraph>}", " */"]
        parts = [self._comment(), *self._descriptors(), ""]
        if self.weights:
            parts += self._loader()
        reader = ["", _script("reader")] if self.weights else []
        return "\n".join([*parts, *doc, *head, "", *body, "}", *reader, ""])

    def declarations(self) -> str:
        """Return the types of the module for TypeScript, once `text` has been called.

        They name the interfaces of WebNN, whose types the package `opweave-webnn` has.
        """
        lines = [f"// Types of {_comment(json.dumps(self.name))}, made by opweave {__version__}.", ""]
        for name, operands, hints in self._operands():
            lines.append(f"export declare const {name}: {{")
            lines += [
                f"  readonly {_key(key)}: {_desc_type(operand.desc, hints)};" for key, operand in operands.items()
            ]
            lines.append("};")
        weights = ""
        if self.weights:
            lines += [
                "",
                "/** Fetch the weights from the folder of the module. Node.js fetches no files: use readFileSync(). */",
                "export declare function loadWeights(): Promise<ArrayBuffer>;",
            ]
            bytes_type = "ArrayBuffer | Uint8Array"
            weights = f", weights?: {bytes_type} | Promise<{bytes_type}>"
        lines += [
            "",
            "/** Build the graph in a context of `navigator.ml.createContext()`. */",
            f"export declare function build(context: MLContext{weights}): Promise<MLGraph>;",
            "",
        ]
        return "\n".join(lines)

    # The head --------------------------------------------------------------------------------------------------------

    def _comment(self) -> str:
        nodes = self.graph.nodes
        names = sorted({camel_case(node.op.name) for node in nodes})
        operands = {o for node in nodes for o in (*node.operands, *node.outputs)}
        types = [name for name in VIEWS if any(operand.data_type == name for operand in operands)]
        origin = f" from {_comment(self.title)}" if self.title else ""
        lines = [f"Made by opweave {__version__}{origin}: a WebNN graph of {count_of(len(nodes), 'operation')}.", ""]
        lines += _wrap("Operations: ", names)
        lines += _wrap("Data types: ", types)
        if rare := [name for name in types if name in RARE]:
            lines.append(f"Not all browsers and devices have {' and '.join(rare)}: context.opSupportLimits() tells.")
        if not all(is_static(operand.shape) for operand in self.graph.inputs.values()):
            lines.append("Inputs have sizes with names, which are a draft of WebNN.")
        if self.unread:
            lines += _wrap("Left out, since no operation reads them: ", map(_comment, self.unread))
        if self.weights:
            total = sum(array.nbytes for array in self.weights.values())
            lines.append(
                f"Weights: {count_of(len(self.weights), 'tensor')}, {size(total)}, in {_comment(self.weights_name)}."
            )
        lines += [
            "",
            f"  import {{ build }} from {json.dumps('./' + _url(self.name))};",
            "  const context = await navigator.ml.createContext();",
            "  const graph = await build(context);",
        ]
        return "\n".join(f"// {line}".rstrip() for line in lines) + "\n"

    def _descriptors(self) -> list[str]:
        lines = []
        for name, operands, hints in self._operands():
            lines.append(f"export const {name} = {{")
            lines += [f"  {_key(key)}: {_desc(operand.desc, hints)}," for key, operand in operands.items()]
            lines.append("};")
        return lines

    def _operands(self) -> Iterable[tuple[str, Mapping[str, Operand], Mapping[str, SizeHint]]]:
        """The operands that a module describes: inputs, whose names in shapes have hints, and outputs."""
        yield "inputs", self.graph.inputs, self.size_hints
        yield "outputs", self.graph.outputs, {}

    def _loader(self) -> list[str]:
        names = {array.dtype.name for array in self.weights.values()}
        types = [f"  {TYPES[name]}: [{json.dumps(name)}, {view}]," for name, view in VIEWS.items() if name in names]
        loader = _script("loader").replace('"WEIGHTS"', json.dumps(_url(self.weights_name)))
        return [loader, "", "const types = {", *types, "};", ""]

    # The body --------------------------------------------------------------------------------------------------------

    def _inputs(self) -> list[str]:
        lines = []
        for name, operand in self.graph.inputs.items():
            variable = self._names[operand] = self._fresh(name)
            lines.append(f"  const {variable} = builder.input({json.dumps(name)}, inputs{_member(name)});")
        return [*lines, ""]

    def _statements(self) -> Iterable[str]:
        uses: dict[Operand, int] = {}
        for node in self.graph.nodes:
            for operand in node.operands:
                uses[operand] = uses.get(operand, 0) + 1
        for node in self.graph.nodes:
            base = node.label or camel_case(node.op.name)
            variables = [self._fresh(f"{base}_{k}" if k else base) for k in range(len(node.outputs))]
            for name, operand in operands_of(node):
                if operand.is_constant and uses[operand] > 1 and operand not in self._names:
                    text = self._constant(variables[0], name, operand)
                    self._names[operand] = self._fresh(f"{variables[0]}_{name}")
                    yield f"  const {self._names[operand]} = {text};"
            yield self._statement(node, variables)
            self._names.update(zip(node.outputs, variables, strict=True))

    def _statement(self, node: Node, variables: list[str]) -> str:
        operation = _operation(node)
        positional: list[str] = []
        options: list[str] = []
        explicit = dict(node.op.explicit_arguments(node.arguments))
        parameters = [
            name
            for name in node.op.parameters
            if name in node.op.positional or (name in explicit and not _is_computed(node, name))
        ]
        for name in parameters:
            public, value = camel_case(name), node.arguments[name]
            if is_symbolic(value):
                rule = "must not have sizes with names in JavaScript"
                raise ValidationError(
                    f"{node.title}: {public} {rule}, got {list(value) if isinstance(value, tuple) else value}"
                )
            text = self._value(variables[0], node, name, node.arguments[name])
            if name in node.op.positional:
                positional.append(text)
            else:
                options.append(f"{public}: {text}")
        if node.label:
            options.append(f"label: {json.dumps(node.label)}")
        target = f"[{', '.join(variables)}]" if operation.several else variables[0]
        return _call(f"  const {target} = builder.{operation.name}", positional, options)

    def _value(self, variable: str, node: Node, name: str, value: Any) -> str:
        if isinstance(value, Operand):
            return self._names.get(value) or self._constant(variable, name, value)
        if isinstance(value, (tuple, list)):
            texts = (self._value(variable, node, f"{name}_{k}", item) for k, item in enumerate(value))
            return f"[{', '.join(texts)}]"
        if isinstance(value, (bool, str)):
            return json.dumps(value)
        # WebNN rounds the number to the data type of this operand.
        if isinstance(value, float) and name in node.op.casts:
            like = node.inputs[node.op.casts[name]]
            assert isinstance(like, Operand)
            if like.data_type in ("float32", "float16"):
                with np.errstate(over="ignore"):
                    value = float(str(np.dtype(like.data_type).type(value)))
        # Web IDL's `double` is finite, but numbers that an operand's data type rounds to infinity are allowed.
        if isinstance(value, float) and math.isinf(value) and _operation(node).options.get(camel_case(name)) == "d":
            return "1e300" if value > 0 else "-1e300"
        return _number(value)

    def _constant(self, variable: str, name: str, operand: Operand) -> str:
        """Return JavaScript for the constant operand `name` of the operation with the result `variable`."""
        array: np.ndarray = operand.value
        if array.size <= MAX_INLINE and operand.data_type != "float16":
            self._has_literals = True
            numbers = ", ".join(_element(value) for value in array.reshape(-1))
            desc = f"{json.dumps(operand.data_type)}, {json.dumps(list(operand.shape))}"
            return f"literal({desc}, {VIEWS[operand.data_type]}.of({numbers}))"
        place = array.__array_interface__["data"][0]
        key = (place, array.dtype.name, array.shape, array.strides)
        if key not in self._stored:
            # The name is unique, because names of variables are.
            stored = self._stored[key] = f"{variable}.{camel_case(name)}"
            self.weights[stored] = array
        return f"constant({json.dumps(self._stored[key])})"

    def _outputs(self) -> list[str]:
        items = [f"{_key(name)}: {self._names[operand]}" for name, operand in self.graph.outputs.items()]
        return ["", _call("  return builder.build", [], items)]

    def _fresh(self, text: str) -> str:
        """Return an unused variable name made from a text."""
        base = name = _identifier(text)
        number = 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


def _operation(node: Node) -> Operation:
    return (DRAFTS if node.op.is_draft else OPERATIONS)[node.op.name]


def _is_computed(node: Node, name: str) -> bool:
    """Whether an attribute with sizes that have names is the one that the operation computes without it."""
    value = node.attributes.get(name)
    fill = node.op.fillers.get(name)
    if fill is None or not isinstance(value, tuple) or is_static(value):
        return False
    return all(tuple(way) == value for way in explore(lambda: call_with(fill, node.arguments)))


def _script(name: str) -> str:
    return Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8").rstrip()


def _call(start: str, positional: list[str], options: list[str]) -> str:
    parts = [*positional, *([f"{{ {', '.join(options)} }}"] if options else [])]
    line = f"{start}({', '.join(parts)});"
    if len(line) <= MAX_LINE:
        return line
    first = f"{start}({', '.join([*positional, '{'])}"
    if options and len(first) <= MAX_LINE:
        return "\n".join([first, *(f"    {option}," for option in options), "  });"])
    lines = [f"{start}(", *(f"    {part}," for part in positional)]
    if options:
        lines += ["    {", *(f"      {option}," for option in options), "    },"]
    return "\n".join([*lines, "  );"])


def operands_of(node: Node) -> Iterable[tuple[str, Operand]]:
    """The operands of a node by their parameters; those of a sequence are numbered."""
    for name, value in node.inputs.items():
        if isinstance(value, tuple):
            yield from ((f"{name}_{k}", operand) for k, operand in enumerate(value))
        elif value is not None:
            yield name, value


def _number(value: Any) -> str:
    """Write a number as JavaScript.

    >>> _number(3), _number(0.5), _number(-0.0), _number(float("-inf")), _number(2**60)
    ('3', '0.5', '-0', '-Infinity', '1152921504606846976n')
    """
    if isinstance(value, int):
        return str(value) if abs(value) <= MAX_SAFE_INTEGER else f"{value}n"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).removesuffix(".0")


def _element(value: Any) -> str:
    """Write an element of an array; a float32 with the shortest digits that round to it."""
    if value.dtype.kind in "iu":
        return f"{value}n" if value.dtype.itemsize == 8 else str(value)
    number = float(value)
    return _number(float(str(value))) if math.isfinite(number) else _number(number)


def _identifier(text: str) -> str:
    """Make a variable name from a text.

    >>> _identifier("encoder.layer.0/MatMul"), _identifier("3d"), _identifier("…")
    ('encoder_layer_0_MatMul', '_3d', '_')
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "_"
    return f"_{name}" if name[0].isdigit() else name


def _url(name: str) -> str:
    """The relative URL of a file in the same folder.

    >>> _url("net.mjs"), _url("a net#2.mjs")
    ('net.mjs', 'a%20net%232.mjs')
    """
    return quote(os.fsencode(name))


def _key(name: str) -> str:
    # `__proto__` without brackets would set the prototype.
    if name == "__proto__":
        return '["__proto__"]'
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else json.dumps(name)


def _member(name: str) -> str:
    """Write the access to a property, to append to an object: `.name`, or `["a name"]`."""
    return f".{name}" if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else f"[{json.dumps(name)}]"


def _desc(desc: Desc, hints: Mapping[str, SizeHint]) -> str:
    shape = ", ".join(_dimension(size, hints) for size in desc.shape)
    return f"{{ dataType: {json.dumps(desc.data_type)}, shape: [{shape}] }}"


def _desc_type(desc: Desc, hints: Mapping[str, SizeHint]) -> str:
    """The type of a descriptor: data type and shape are literals, since code that reads them depends on their values."""
    shape = ", ".join(_dimension(size, hints, "readonly ", "; ") for size in desc.shape)
    return f"{{ readonly dataType: {json.dumps(desc.data_type)}; readonly shape: readonly [{shape}] }}"


def _dimension(
    size: Dimension, hints: Mapping[str, SizeHint], before_member: str = "", between_members: str = ", "
) -> str:
    """Write a dimension: a number, a formula of sizes, a name, or an object of a name and its hint."""
    if not isinstance(size, Size):
        return str(size)
    text, hint = json.dumps(size.name or str(size)), hints.get(size.name or "")
    if hint is None or hint == SizeHint():
        return text
    members = {"name": text, "minSize": str(hint.min_size)}
    if hint.max_size is not None:
        members["maxSize"] = str(hint.max_size)
    return f"{{ {between_members.join(f'{before_member}{name}: {value}' for name, value in members.items())} }}"


def _comment(text: str) -> str:
    """Escape a text for a comment."""
    plain = json.dumps(text)[1:-1].replace('\\"', '"')
    return plain.replace("*/", "* /")[:200]


def _wrap(start: str, words: Iterable[str]) -> list[str]:
    lines, line = [], start
    for word in words:
        if len(line) + len(word) > MAX_LINE - 6:
            lines.append(line.rstrip())
            line = " " * len(start)
        line += f"{word}, "
    return [*lines, line.rstrip().rstrip(",")]
