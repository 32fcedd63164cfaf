"""Families of operations, which have colours on a page; operations of WebNN and operators of ONNX are in the same families."""

from __future__ import annotations

import re

FAMILIES = {
    "attention": "attention|attend|rotary|positionbias|restorepadding",
    "quantization": "quantize|pack",
    "convolution": "conv|col2im|unfold",
    "matrix product": "matmul|gemm|einsum|linearregressor|linearclassifier|^q?moe$|cdist",
    "recurrent": "gru|lstm|rnn|^recur$|^loop$|scan$|integrator",
    "normalization": "normali[sz]|norm$|^lrn$|scaler",
    "activation": "relu|elu$|gelu|glu$|silu$|sigmoid|^tanh$|swish|soft|mish|hardmax|shrink|^linear$",
    "reduction": "^(qlinear)?reduce|^arg|pool|^cum|^topk|^mean$|nonmaxsuppression|unique",
    "data movement": "reshape|transpose|concat|split|slice|^pad|tile|expand|^gather|arrayfeature|scatter|squeeze|flatten|"
    "identity|dropout|^cast|bitcast|resize|resample|upsample|gridsample|affinegrid|roialign|croppad|shape|size|depth|reverse|triangular|trilu|"
    "onehot|constant|eyelike|range|nonzero|compress|^(qlinear)?where$|sequence|optional|embed",
    "arithmetic": "^(qlinear(add|mul)|biasadd|gatedadd|complexmul(conj)?|mulinteger|"
    "abs|neg|sign|ceil|floor|round|roundeven|exp|log|sqrt|reciprocal|pow|erf|mod|sum|add|sub|mul|div|max|min|"
    "clip|clamp|binarizer|bit.*|shift.*|a?(sin|cos|tan)h?|expm1|log1p|erfinv|det|inverse|"
    "dft|stft|i?rfft|melweightmatrix|random.*|bernoulli|multinomial|"
    "is.*|not|and|or|xor|logical.*|(not)?equal|(greater|less|lesser)(or)?(equal)?)$",
}
"""Family -> pattern for the names of its operations, in lower case and without underscores. The first match counts."""

CUSTOM, OTHER = "custom", "other"
"""Families of the user's operations, and of operations that are in no family."""

_PATTERNS = {family: re.compile(pattern) for family, pattern in FAMILIES.items()}


def family_of(name: str) -> str:
    """The family of an operation.

    >>> family_of("conv_transpose2d"), family_of("ConvTranspose"), family_of("LayerNormalization"), family_of("frobnicate")
    ('convolution', 'convolution', 'normalization', 'other')
    """
    word = name.replace("_", "").lower()
    return next((family for family, pattern in _PATTERNS.items() if pattern.search(word)), OTHER)
