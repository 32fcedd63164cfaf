"""Run ONNX's own backend tests, print how many pass, and with `--write` renew the lists of those that do not.

python tools/onnx_expectations.py            the counts, and how the lists would change
python tools/onnx_expectations.py --write    tests/expect/onnx.toml and onnx_fallback.toml

Where versions of ONNX Runtime differ, the lists have a table for each of `VERSIONS`. A run changes only what the installed
version expects; run it with one version of each to renew all.

What cannot pass is tried in ONNX Runtime alone as well: where that succeeds, the fault is Opweave's, and the list says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import onnxruntime

VERSIONS = ("onnxruntime<1.32", "onnxruntime>=1.32")
"""The versions of the engine that the lists tell apart; each version belongs to one of them."""

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import opweave as ow  # noqa: E402

onnx_cases: Any = import_module("support.onnx_cases")

REASONS = {
    r"'test_training_dropout|'test_bernoulli": "ONNX Runtime draws other random numbers than NumPy",
    r"'test_resize_downsample_scales_\w+_align_corners": "ONNX Runtime rounds the size of the output in another way",
    r"'test_maxunpool_export_with_output_shape": "ONNX Runtime places the values in another way",
    r"'test_castlike_\w+_FLOAT4E2M1|'test_cast_\w+_FLOAT4E2M1": "ONNX Runtime has no kernel for Cast with these types",
    r"(\S+)\(-1\) is not a registered function/op": r"ONNX Runtime has no \1",
    r"operator sets up to \d+, and BitShift": "Before operator set 28, shifting by too many bits is left to the machine",
    r"Type parameter \(T\) of Optype \(Add\) bound": "ONNX Runtime expands Attention of bfloat16 into nodes of two types",
    r"while running (Mod|ReduceMax) node": r"ONNX Runtime's \1 refuses these values",
    r"Could not find an implementation for (\w+)\(": r"ONNX Runtime has no kernel for \1 with these types",
    r"Failed to construct locale": "ONNX Runtime needs a locale that the machine does not have",
    r"layout_ == 0 was false": "ONNX Runtime has recurrent networks with layout 0 only",
    r"Batchwise recurrent operations": "ONNX Runtime has recurrent networks with layout 0 only",
    r"Non per-tensor quantization is not supported": "ONNX Runtime takes one zero point for all channels only",
    r"type '(tensor\(\w+\))' of input parameter \(.*?\) of operator \((\w+)\)": r"ONNX Runtime's \2 does not take \1",
    r"Type '(tensor\(\w+\))' of input parameter \(.*?\) of operator \((\w+)\)": r"ONNX Runtime's \2 does not take \1",
}
"""The name of the case, or what the engine says -> the reason in the list."""


def reason_for(name: str, error: BaseException) -> str:
    """One line about why a case fails."""
    text = " ".join([repr(name), *str(error).split()])
    for pattern, reason in REASONS.items():
        if found := re.search(pattern, text):
            return found.expand(reason)
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/\S+:\d+ ", "", text)
    return f"{type(error).__name__}: {text}"[:160]


def engine_passes(case: Any) -> bool:
    """Whether ONNX Runtime alone passes a case."""
    model, sets = case.load()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for inputs, outputs in sets:
            names = [argument.name for argument in session.get_inputs()]
            got = session.run(None, dict(zip(names, inputs, strict=True)))
            onnx_cases.check(got, outputs, case.rtol, case.atol)
    except Exception:  # whatever it is, the engine does not pass
        return False
    return True


def examine() -> tuple[dict[str, str], dict[str, str]]:
    """The cases that fail, and those that need fallback, with reasons."""
    failing: dict[str, str] = {}
    falling: dict[str, str] = {}
    for name, case in onnx_cases.cases().items():
        try:
            steps = onnx_cases.run(case)
        except (AssertionError, ow.MLError) as error:
            reason = reason_for(name, error)
            failing[name] = f"OUR FAULT: {reason}" if engine_passes(case) else reason
            continue
        except Exception as error:
            failing[name] = f"NOT AN ERROR OF OURS: {reason_for(name, error)}"
            continue
        reasons: dict[str, list[str]] = defaultdict(list)
        for step in steps:
            if step.reason not in reasons[step.node.op_type]:
                reasons[step.node.op_type].append(step.reason)
        if reasons:
            falling[name] = "; ".join(
                f"{op}: {', '.join(why).replace(';', ',')}" for op, why in sorted(reasons.items())
            )
    return failing, falling


def divided(old: dict[str, dict[str, str]], found: dict[str, str]) -> dict[str, dict[str, str]]:
    """The tables of a list whose entries for the installed engine become `found`; those for other versions stay."""
    lists = {
        key: found if onnx_cases.is_installed(key) else {**old.get("", {}), **old.get(key, {})} for key in VERSIONS
    }
    shared = {name: reason for name, reason in found.items() if all(li.get(name) == reason for li in lists.values())}
    own = {key: {name: li[name] for name in li if name not in shared} for key, li in lists.items()}
    return {"": shared, **{key: table for key, table in own.items() if table}}


def write(path: Path, head: str, tables: dict[str, dict[str, str]]) -> None:
    """A list; each table grouped by reason, most frequent ones first."""
    lines = [f"# {line}" for line in head.splitlines()]
    for key, table in tables.items():
        if key:
            lines += ["", f"[{quoted(key)}]"]
        groups: dict[str, list[str]] = defaultdict(list)
        for name, reason in table.items():
            groups[reason].append(name)
        for number, (reason, names) in enumerate(sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))):
            blank = [""] if number or not key else []
            lines += [*blank, *(f"{quoted(name)} = {quoted(reason)}" for name in sorted(names))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def quoted(text: str) -> str:
    """A text as TOML writes it."""
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def main() -> None:
    """Print the counts and the differences; write the lists where asked to."""
    parser = argparse.ArgumentParser(description="ONNX's backend tests through InferenceSession")
    parser.add_argument("--write", action="store_true", help="renew the lists in tests/expect")
    arguments = parser.parse_args()
    failing, falling = examine()
    old: dict[str, dict[str, dict[str, str]]] = {}
    for name in ("onnx", "onnx_fallback"):
        old[name] = onnx_cases.read_list(name) if (onnx_cases.EXPECT / f"{name}.toml").exists() else {}
    total = len(onnx_cases.cases())
    print(
        f"{total} cases: {total - len(failing) - len(falling)} pass on WebNN graphs alone, {len(falling)} with ", end=""
    )
    print(f"fallback, {len(failing)} cannot pass")
    for name, new in (("onnx", failing), ("onnx_fallback", falling)):
        before = onnx_cases.merged(old[name])
        for case in sorted(set(new) - set(before)):
            print(f"{name}.toml: new: {case}: {new[case]}")
        for case in sorted(set(before) - set(new)):
            print(f"{name}.toml: gone: {case}")
    if arguments.write:
        write(
            onnx_cases.EXPECT / "onnx.toml",
            "Backend tests of ONNX that cannot pass, with the reason; strict: one that passes fails the run.\n"
            "Made by tools/onnx_expectations.py.",
            divided(old["onnx"], failing),
        )
        write(
            onnx_cases.EXPECT / "onnx_fallback.toml",
            "Backend tests of ONNX that need fallback: the operators that ONNX Runtime runs, and why. Strict in both ways:\n"
            "what falls back must be listed, what is listed must fall back. Made by tools/onnx_expectations.py.",
            divided(old["onnx_fallback"], falling),
        )


if __name__ == "__main__":
    main()
