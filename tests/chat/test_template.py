"""Chat templates: as Transformers runs them, within bounded memory and time."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support import tiny_models

import opweave as ow
from opweave import DataError, MLError, ValidationError
from opweave.chat import GGUF, Conversation, Decoder, Model, Sampler, Vocabulary

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "chat_templates.json").read_text(encoding="utf-8"))
FILE_NAMES = {"unk_token": "unknown_token", "pad_token": "padding_token", "sep_token": "seperator_token"}


def vocabulary(template: str, special: dict[str, str] | None = None, **metadata: Any) -> Vocabulary:
    """A vocabulary whose special tokens are those of `special`."""
    tokens = [*tiny_models.TOKENS, *(special or {}).values()]
    about: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [1] * len(tokens),
        "merges": tiny_models.MERGES,
        **{f"{FILE_NAMES.get(name, name)}_id": tokens.index(token) for name, token in (special or {}).items()},
    }
    values = {f"tokenizer.ggml.{name}": value for name, value in about.items()}
    values |= {"tokenizer.chat_template": template, **metadata}
    return Vocabulary(cast(GGUF, SimpleNamespace(path="x.gguf", metadata=values)))


def render(template: str, **arguments: Any) -> str:
    return vocabulary(template).render([{"role": "user", "content": "hello"}], **arguments)


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["name"])
def test_render_equals_transformers(case: dict[str, Any]) -> None:
    each = vocabulary(case["template"], case["special"])
    if case["text"] is None:
        with pytest.raises(MLError):
            each.render(**case["arguments"])
    else:
        assert each.render(**case["arguments"]) == case["text"]


def test_render_converts_objects_to_plain_data() -> None:
    @dataclasses.dataclass
    class Message:
        role: str
        content: Any

    class Modelled:
        def model_dump(self) -> dict[str, Any]:
            return {"role": "user", "content": "modelled"}

    class Text(str):
        pass

    messages = [
        Message("user", [np.float32(0.5), np.bool_(False), (1, Text("a"))]),
        Modelled(),
        {"role": "user", "content": np.ones(2)},
    ]
    text = vocabulary("{% for m in messages %}{{ m.content }}|{% endfor %}").render(messages)
    assert text == "[0.5, False, (1, 'a')]|modelled|<ndarray>|"


def test_render_takes_the_template_for_tools() -> None:
    each = vocabulary("plain", **{"tokenizer.chat_template.tool_use": "{{ tools[0].name }}"})
    messages = [{"role": "user", "content": "hello"}]
    assert each.render(messages) == "plain"
    assert each.render(messages, tools=[{"name": "weather"}]) == "weather"


def test_render_reads_all_special_tokens_of_the_file() -> None:
    special = {name: f"<{name}>" for name in ("bos_token", "eot_token", "fim_pre_token", "unk_token")}
    text = "{{ bos_token }}{{ eot_token }}{{ fim_pre_token }}{{ unk_token }}"
    each = vocabulary(text, special)
    assert each.render([{"role": "user", "content": ""}]) == "<bos_token><eot_token><fim_pre_token><unk_token>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"messages": []}, "there must be a message"),
        ({"messages": None}, "messages must be a list of messages, got None"),
        ({"messages": "hello"}, "messages must be a list of messages, got 'hello'"),
        ({"messages": {"role": "user"}}, "messages must be a list of messages, got"),
        ({"messages": ["hello"]}, r"messages\[0\] must be a mapping, got 'hello'"),
        (
            {"messages": [{"role": "user", "content": "a\ud800b"}]},
            r"messages\[0\]\['content'\] must be text, got '\\ud800'",
        ),
        ({"messages": [{"role": "\udcff"}]}, r"messages\[0\]\['role'\] must be text"),
        ({"messages": [{"\udcff": "x"}]}, r"a key of messages\[0\] must be text"),
        ({"tools": ["a"]}, r"tools\[0\] must be a dictionary, got 'a'"),
        ({"tools": 1}, "tools must be a list of dictionaries, got 1"),
        ({"tools": [{"name": ["\ud800"]}]}, r"tools\[0\]\['name'\]\[0\] must be text"),
        ({"documents": [None]}, r"documents\[0\] must be a dictionary, got None"),
        ({"other": "\ud800"}, "other must be text"),
    ],
)
def test_render_rejects_arguments(arguments: dict[str, Any], message: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(ValidationError, match=message):
        vocabulary("{{ messages }}").render(**{"messages": messages, **arguments})


def test_render_rejects_nesting_without_an_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValidationError, match="must be nested at most 100 deep"):
        render("x", other=endless)


def test_render_rejects_surrogates_from_template() -> None:
    with pytest.raises(DataError, match=r"the chat template of x\.gguf writes '\\ud800' at index 1"):
        render(r"a{{ '\ud800' }}")


def test_render_limits_the_text() -> None:
    assert render("{{ 'ab' * 50 }}", limit=100) == "ab" * 50
    with pytest.raises(DataError, match=r"the chat template of x\.gguf writes more than 99 characters"):
        render("{{ 'ab' * 50 }}", limit=99)


def test_render_runs_again_after_a_limit() -> None:
    each = vocabulary("{{ 'a' * times }}")
    messages = [{"role": "user", "content": ""}]
    with pytest.raises(DataError, match="more than 4,194,304 characters"):
        each.render(messages, times=10**7)
    for _ in range(100):
        assert each.render(messages, times=10**6) == "a" * 10**6


def test_templates_of_great_length_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"the chat template of x\.gguf has 300,000 characters; at most 262,144 are read"
    ):
        render("x" * 300_000)


TEN = "{% set ns = namespace(x='aaaaaaaaaa') %}"
BIG = "{% set x = 'a' * 4000000 %}"


def repeated(body: str, count: int = 60) -> str:
    return f"{{% for i in range({count}) %}}{body}{{% endfor %}}"


def deep(value: str) -> str:
    """A value in itself twice, 60 times over."""
    return "{% set ns = namespace(x=['a']) %}" + repeated(f"{{% set ns.x = {value} %}}")


def loops(body: str) -> str:
    return repeated(repeated(body, 100_000), 100_000)


DEEP = deep("[ns.x, ns.x]")
MACRO = "{% macro m(n) %}{% if n %}BODY{% else %}{{ varargs }}{% endif %}{% endmacro %}{{ m(60, 1) }}"
BOMBS = {
    "product": "{{ 'a' * 10**9 }}",
    "product of a list": "{{ [0] * 10**9 }}",
    "product in a branch": "{% if 'a' * 10**10 == 'b' %}{% endif %}",
    "product, count first": "{{ 10**9 * 'a' }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "powers": "{% set ns = namespace(x=10) %}" + repeated("{% set ns.x = ns.x * ns.x %}"),
    "doubling": TEN + repeated("{% set ns.x = ns.x + ns.x %}"),
    "doubling by ~": TEN + repeated("{% set ns.x = ns.x ~ ns.x %}"),
    "doubling of lists": TEN + "{% set ns.x = [1] %}" + repeated("{% set ns.x = ns.x + ns.x %}"),
    "doubling by a block": TEN + repeated("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "long concatenation": BIG + "{{ " + " ~ ".join(["x"] * 2000) + " }}",
    "nested lists": DEEP + "{{ ns.x }}",
    "nested lists as JSON": DEEP + "{{ ns.x|tojson|length }}",
    "nested lists that are compared": DEEP + DEEP.replace("ns", "no") + "{{ ns.x == no.x }}",
    "nested tuples as keys": deep("(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
    "nested dictionaries": deep("{1: ns.x, 2: ns.x}") + "{{ ns.x }}",
    "nested calls of dict": deep("dict(a=ns.x, b=ns.x)") + "{{ ns.x }}",
    "nested varargs": MACRO.replace("BODY", "{{ m(n - 1, varargs, varargs) }}"),
    "nested namespaces": deep("namespace(a=ns.x, b=ns.x)") + "{{ (ns.x|string * 10**6)|length }}",
    "nested loops": loops(""),
    "nested loops that write": loops("text"),
    "nested loops in a block": "{% set x %}" + loops("text") + "{% endset %}",
    "nested loops of constants": "{% set x %}" + repeated("{{ '" + "a" * 200_000 + "' }}", 100_000) + "{% endset %}",
    "nested loops in a macro": "{% macro m() %}" + loops("{{ i }}") + "{% endmacro %}{{ m() }}",
    "a loop with a condition": "{% for i in range(100000) if ('a' * 4000000) == ('a' * 4000000) %}{% endfor %}",
    "a loop that compares": BIG + "{% for i in range(100000) if x ~ 'b' == x ~ 'b' %}{% endfor %}",
    "many large values": "{% set ns = namespace(l=[]) %}" + repeated("{% set ns.l = ns.l + ['a' * 4000000] %}", 1000),
    "many slices": BIG + "{% set ns = namespace(l=[]) %}" + repeated("{% set ns.l = ns.l + [x[i:]] %}", 1000),
    "recursion": MACRO.replace("BODY", "{{ m(n - 1) }}{{ m(n - 1) }}"),
    "recursion without an end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "blocks without an end": "{% block a %}{{ self.a() }}{% endblock %}",
    "range": "{{ range(10**9)|list }}",
    "hashes that are equal": "{{ range(0, 100000 * (2**61 - 1), 2**61 - 1)|unique|list|length }}",
    "printf": "{{ '%1000000000d' % 1 }}",
    "printf by an argument": "{{ '%*d' % (10**9, 1) }}",
    "printf, precision": "{{ '%.1000000000f' % 1.5 }}",
    "printf, many": BIG + "{{ ('%(a)s' * 1000) % {'a': x} }}",
    "printf by a filter": "{{ '%*d'|format(10**9, 1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "format by an argument": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "format by a map": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "format, many": BIG + "{{ ('{0}' * 1000).format(x) }}",
    "format, by map": "{{ ['{:1000000000}']|map('format', 1)|list }}{{ '{:1000000000}'|attr('format')(1) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "center, method": "{{ 'a'.center(10**9) }}",
    "center, found by attr": "{{ ('a'|attr('center'))(10**9) }}",
    "center, mapped": "{{ range(100000)|map('center', 100000)|join }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ '1'.zfill(10**9) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(10**6) }}",
    "replace": BIG + "{{ x.replace('a', x) }}",
    "replace of nothing": BIG + "{{ x|replace('', x) }}",
    "translate": BIG + "{{ x.translate({97: x}) }}",
    "join": BIG + "{{ x.join(x) }}",
    "join, filter": BIG + "{{ range(100000)|join(x) }}",
    "indent": "{{ ('\n' * 1000)|indent(10**6) }}",
    "indent, by a text": BIG + "{{ ('a\n' * 1000)|indent(x) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "wordwrap": BIG + "{{ x|wordwrap(1) }}",
    "round": "{{ 1|round(-10**9) }}",
    "urlize": "{{ ('http://a.b ' * 100000)|urlize(target='a' * 100000) }}",
    "lipsum": "{{ lipsum(10**9) }}",
    "lipsum, words": "{{ lipsum(1, false, 10**9, 10**9 + 1) }}",
    "lipsum, by a key": "{{ lipsum(n=10**8) }}",
    "tojson": "{{ [1, 2]|tojson(indent=10**9) }}",
    "tojson, separators": BIG + "{{ range(100000)|list|tojson(separators=(x, ':')) }}",
    "strftime_now": "{{ strftime_now('%999999999Y') }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "codecs": "{{ ('é' * 100000).encode('punycode') }}",
    "sum of lists": "{{ ([[1]] * 100000)|sum(start=[]) }}",
    "strip": "{{ ('b' * 2000000).strip('a' * 2000000 + 'b') }}",
    "HTML": "{{ (('<' * 4000000)|e)|e }}",
    "nested parentheses": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "a long chain": "{{ 1" + "|abs" * 50_000 + " }}",
    "a long sum": "{{ 1" + " + 1" * 50_000 + " }}",
    "constants": "{{ 'a'|center(4000000) ~ 'a'|center(4000000) }}",
}  # fmt: skip

CHILD = """
import json, resource, sys
import jinja2.sandbox, tokenizers
import opweave.chat.budget
from opweave import MLError
import test_template
opweave.chat.budget.MAX_SECONDS = 0.3
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 2**30
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
for name in json.loads(sys.stdin.read()):
    try:
        text = test_template.render(test_template.BOMBS[name])
        outcome = f"a text of {len(text)} characters"
    except MLError as error:
        outcome = "MLError"
    except BaseException as error:
        outcome = type(error).__name__
    print(json.dumps([name, outcome]), flush=True)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="limits of memory are POSIX's")
def test_render_bounds_memory_and_time() -> None:
    """In 1 GiB, and a bounded time: without bounds, each of them takes more memory, or hours."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=Path(__file__).parent, input=json.dumps([*BOMBS]), capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}, timeout=300,
    )  # fmt: skip
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _ in outcomes] == [*BOMBS], done.stderr[-1000:]
    assert [(name, outcome) for name, outcome in outcomes if outcome != "MLError"] == []


def test_say_bounds_template_output(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_models.write(path, metadata={"tokenizer.chat_template": "{{ 'a' * 10**9 }}"})
    file = GGUF(path)
    talk = Conversation(Decoder(Model(file), ow.ml.create_context(device="cpu"), 60), Vocabulary(file), Sampler(seed=0))
    with pytest.raises(
        DataError, match=r"the chat template of .*x\.gguf makes a text of more than 4,194,304 characters"
    ):
        talk.say("hi", 1)
    assert talk.messages == []
