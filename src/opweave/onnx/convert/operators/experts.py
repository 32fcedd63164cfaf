"""Mixtures of experts of ONNX Runtime (com.microsoft): all experts compute all tokens, and the shares add up their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from ....composites import fast_gelu, matmul_n_bits, top_k
from ....composites.packing import QuantizedConstant, unpack_rows
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ....core.sizes import is_same_size
from ...model.registry import MICROSOFT, Tensor, Unsupported, constant_of, converts, operand, unsupported_if
from .microsoft import apply_gate, float_type, silu
from .windows import reshape

_ACTIVATIONS = ("relu", "gelu", "silu", "identity", "swiglu")

Layer = Callable[[MLOperand], MLOperand]
"""A product of all experts: of operands [1 or experts, tokens, inputs], results [experts, tokens, outputs]."""


@dataclass(frozen=True)
class Mixture:
    """The attributes that mixtures of experts have in common."""

    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    activation_type: str = "relu"
    k: int = 1
    normalize_routing_weights: int = 0
    swiglu_fusion: int = 0
    swiglu_limit: float = inf
    swiglu_limit_after_activation: int = 0
    use_sparse_mixer: int = 0

    def shares(
        self, b: MLGraphBuilder, router_probs: MLOperand, weights: Tensor | None, tokens: int, experts: int
    ) -> MLOperand:
        """The share of each expert [experts, tokens, 1], 0 of those that are not chosen."""
        unsupported_if(not 0 < self.k <= experts, f"it takes {self.k} of {experts} experts")
        scores = b.cast(b.reshape(router_probs, [tokens, experts]), "float32")
        best, chosen = top_k(b, scores, self.k, 1)
        if weights is not None:
            whole = b.cast(reshape(b, operand(b, weights), [tokens, experts]), "float32")
            shares = b.gather_elements(whole, chosen, axis=1)
            if self.normalize_routing_weights:
                total = b.reduce_sum(shares, axes=[1], keep_dimensions=True)
                shares = b.where(b.greater(total, np.float32(0)), b.div(shares, total), shares)
        elif self.normalize_routing_weights:
            shares = b.softmax(best, axis=1)
        else:
            shares = b.gather_elements(b.softmax(scores, axis=1), chosen, axis=1)
        # [tokens, k, experts] -> [experts, tokens, 1]
        of_expert = b.equal(
            b.reshape(chosen, [tokens, self.k, 1]), b.constant(np.arange(experts, dtype=chosen.data_type))
        )
        share = b.reduce_sum(b.where(of_expert, b.reshape(shares, [tokens, self.k, 1]), np.float32(0)), axes=[1])
        return b.reshape(b.transpose(share), [experts, tokens, 1])

    def compute(
        self, b: MLGraphBuilder, input: MLOperand, share: MLOperand, first: Layer, last: Layer, gated: Layer | None
    ) -> MLOperand:
        """The sum of the results of the experts; `gated` computes the factors of the gate, if the first layer does not."""
        unsupported_if(self.activation_type not in _ACTIVATIONS, f"its activation is {self.activation_type!r}")
        is_foreign = self.use_sparse_mixer or self.swiglu_limit_after_activation
        unsupported_if(is_foreign, "it has attributes of CUDA's kernel alone")
        experts, tokens, _ = share.shape
        x = b.reshape(input, [1, tokens, input.shape[-1]])
        hidden = first(x)
        if self.activation_type == "swiglu":
            if self.swiglu_fusion:
                half, is_interleaved = hidden.shape[-1] // 2, self.swiglu_fusion == 1
                shape = [experts, tokens, *((half, 2) if is_interleaved else (2, half))]
                parts = b.split(b.reshape(hidden, shape), 2, axis=3 if is_interleaved else 2)
                gate, linear = (b.reshape(part, [experts, tokens, half]) for part in parts)
            elif gated is None:
                raise Unsupported("its swiglu has neither fc3 nor a fused fc1")
            else:
                gate, linear = hidden, gated(x)
            hidden = apply_gate(b, gate, linear, self.activation_alpha, self.activation_beta, self.swiglu_limit)
        else:
            unsupported_if(self.swiglu_fusion, "it fuses layers of swiglu")
            if self.activation_type == "silu":
                hidden = silu(b, hidden)
            elif self.activation_type != "identity":
                # ONNX Runtime's kernels approximate gelu here.
                hidden = b.relu(hidden) if self.activation_type == "relu" else fast_gelu(b, hidden)
            if gated is not None:
                hidden = b.mul(hidden, gated(x))
        y = b.mul(b.cast(last(hidden), "float32"), share)
        return b.reshape(b.cast(b.reduce_sum(y, axes=[0]), float_type(input)), input.shape)


PLAIN_MIXTURE = Mixture()


@converts("MoE", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    router_probs: MLOperand,
    fc1: MLOperand,
    fc1_bias: Tensor | None,
    fc2: MLOperand,
    fc2_bias: Tensor | None = None,
    fc3: Tensor | None = None,
    fc3_bias: Tensor | None = None,
    *,
    mixture: Mixture = PLAIN_MIXTURE,
) -> MLOperand:
    def layer(weight: Tensor, bias: Tensor | None) -> Layer:
        w = operand(b, weight)

        def multiply(x: MLOperand) -> MLOperand:
            y = b.matmul(x, b.transpose(w, permutation=[0, 2, 1]))
            return y if bias is None else b.add(y, reshape(b, bias, [w.shape[0], 1, w.shape[1]]))

        return multiply

    tokens = input.desc.element_count // input.shape[-1]
    share = mixture.shares(b, router_probs, None, tokens, router_probs.shape[-1])
    layers = layer(fc1, fc1_bias), layer(fc2, fc2_bias), None if fc3 is None else layer(fc3, fc3_bias)
    return mixture.compute(b, input, share, *layers)


@converts("QMoE", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    router_probs: MLOperand,
    fc1: Tensor,
    fc1_scales: Tensor | None,
    fc1_bias: Tensor | None,
    fc2: Tensor,
    fc2_scales: Tensor | None,
    fc2_bias: Tensor | None = None,
    fc3: Tensor | None = None,
    fc3_scales: Tensor | None = None,
    fc3_bias: Tensor | None = None,
    fc1_zero_points: Tensor | None = None,
    fc2_zero_points: Tensor | None = None,
    fc3_zero_points: Tensor | None = None,
    router_weights: Tensor | None = None,
    *,
    mixture: Mixture = PLAIN_MIXTURE,
    accuracy_level: int = 0,
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int = 0,
    fc2_expert_weight_bits: int = 0,
    fc3_expert_weight_bits: int = 0,
    quant_type: str = "int",
    weights_prepacked: int = -1,
) -> MLOperand:
    unsupported_if(quant_type != "int", f"its weights are {quant_type}")
    unsupported_if(weights_prepacked > 0, "its weights are in another order")
    experts = router_probs.shape[-1]
    own_bits = fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits
    bits = [width or expert_weight_bits for width in own_bits]

    def layer(position: int, weight: Tensor, scales: Tensor | None, zeros: Tensor | None, bias: Tensor | None) -> Layer:
        name = f"fc{position + 1}"
        packed, scale = constant_of(weight, name), constant_of(scales, f"{name}_scales")
        zero = None if zeros is None else constant_of(zeros, f"{name}_zero_points")
        unsupported_if(packed.ndim != 3 or packed.shape[0] != experts, f"{name} has the shape {list(packed.shape)}")
        columns = packed.shape[1]
        table = unpack_rows(packed, scale, zero, bits[position], block_size)

        def multiply(x: MLOperand) -> MLOperand:
            """The first layers read the same operand: one product for the columns of all experts."""
            _, tokens, inner = x.shape
            unsupported_if(inner != table.numbers.shape[1], f"{name} does not fit {inner} inputs")
            if is_same_size(x.shape[0], 1):
                y = b.reshape(product(b.reshape(x, [tokens, inner]), table), [tokens, experts, columns])
                y = b.transpose(y, permutation=[1, 0, 2])
            else:
                of_expert = [
                    b.reshape(
                        product(b.reshape(part, [tokens, inner]), table.rows(k * columns, columns)),
                        [1, tokens, columns],
                    )
                    for k, part in enumerate(b.split(x, experts, axis=0))
                ]
                y = b.concat(of_expert, 0)
            return y if bias is None else b.add(y, reshape(b, bias, [experts, 1, columns]))

        return multiply

    def product(x: MLOperand, table: QuantizedConstant) -> MLOperand:
        zeros = table.zero_points()
        operands = table.pack(), table.scales().astype(x.data_type)
        y: MLOperand = matmul_n_bits(
            b,
            x,
            *map(b.constant, operands),
            None if zeros is None else b.constant(zeros),
            accuracy="int8" if accuracy_level == 4 else "float32",
            **table.attributes,
        )
        return y

    tokens = input.desc.element_count // input.shape[-1]
    if router_weights is None:  # as ONNX Runtime's kernel, which normalises the weights in any case
        mixture = replace(mixture, normalize_routing_weights=1)
    share = mixture.shares(b, router_probs, router_weights, tokens, experts)
    first = layer(0, fc1, fc1_scales, fc1_zero_points, fc1_bias)
    last = layer(1, fc2, fc2_scales, fc2_zero_points, fc2_bias)
    gated = None if fc3 is None else layer(2, fc3, fc3_scales, fc3_zero_points, fc3_bias)
    return mixture.compute(b, input, share, first, last, gated)
