"""Write the list of ONNX Runtime's own operators into its page: `python tools/microsoft_operators.py docs/onnx.md`.

A test compares the list with what the installed engine knows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from opweave.onnx.convert.operators import CONVERTERS
from opweave.onnx.model.registry import MICROSOFT

BEGIN, END = "<!-- ONNX Runtime's operators, made by `make docs` -->", "<!-- end -->"

REASONS: dict[str, str] = {
    "numbers in formats, or layouts, of one provider": """
        DequantizeBFP DequantizeWithOrder EPContext GemmFloat8 MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight
        MatMulPacked QOrderedAttention QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul
        QuantizeBFP QuantizeWithOrder RMSNormRotary Snpe""",
    "sparse, paged and routed forms that servers of single networks write": """
        DynamicSparseAttention EngramGate HyperConnectionLowRankMix HyperConnectionPostMix HyperConnectionPreMix
        LongformerAttention MoEGroupRouter MoEPacked PackedSparseAttentionIndexer PackedSparseAttentionIndexerMerge
        PagedAttention RouterGateUpProj SparseAttention SparseAttentionIndexer SparsePagedAttention
        SpeculativePrefixCommit""",
    "weights of 2 to 4 bits in other forms": """
        MatMulBnb4 MatMulFpQ4 MatMulNBitsMlp MatMulNBitsQLoRA MatMulNBitsQkv""",
    "recurrences": """
        AttnLSTM ConvStateReplay DynamicTimeWarping GatedDeltaNet GatedDeltaNetStateReplay Mamba2Verify
        VarlenCausalConvWithState""",
    "loops over a model that generates text, and what they read": """
        BeamSearch BifurcationDetector GreedySearch NGramRepeatBlock Sampling WhisperBeamSearch""",
    "the shape of the result depends on data": "GatherPacked RemovePadding Unique",
    "strings and hashes": "MurmurHash3 NGramHashMapping Tokenizer VarlenNGramHashMapping WordConvEmbedding",
    "integers of 16 bits": "MatMulInteger16",
    "sparse tensors": "SparseToDenseMatMul",
    "branches whose conditions are inputs; other operators replaced it": "DecoderAttention",
    "examples and internal use": "MaxpoolWithMask SampleOp",
    "training": "IsAllFinite",
}
"""Why operators are not converted -> their names."""


def converted() -> list[str]:
    return sorted(name for domain, name in CONVERTERS if domain == MICROSOFT)


def refused() -> dict[str, list[str]]:
    return {reason: sorted(names.split()) for reason, names in REASONS.items()}


def known() -> set[str]:
    """The operators of the installed engine."""
    return {schema.name for schema in get_all_operator_schema() if schema.domain == MICROSOFT}


def render() -> str:
    """The list as Markdown."""
    names = ", ".join(f"`{name}`" for name in converted())
    lines = [f"Converted ({len(converted())}): {names}.", "", "| Not converted | Reason |", "|---|---|"]
    for reason, others in refused().items():
        lines.append(f"| {', '.join(f'`{name}`' for name in others)} | {reason} |")
    return "\n".join(lines)


def written_into(page: str) -> str:
    """A page with the list between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written_into(path.read_text("utf-8")), "utf-8")
