"""Modules of transformers, timm, torchvision and torchao with random weights: what `opweave.from_torch` is measured on.

    pip install .[torch-tests]
    pip install --no-deps --target FOLDER -r tools/torch_modules.txt
    PYTHONPATH=FOLDER python tools/torch_modules.py            # the operators of all modules, by count
    PYTHONPATH=FOLDER python tools/torch_modules.py resnet18   # of one

Architectures are real; widths and depths are reduced where the network would take more than a second to run. Detectors have
fixed sizes, decoders have a cache in buffers or as arguments.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SEED = 0

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 256, 64, 4, 2, 32
"""The vocabulary, width, heads, layers and sequence length of reduced language models."""


@dataclass(frozen=True)
class Module:
    """A module, and the arguments that it is called with.

    Attributes:
        package: the package that the module comes from.
        kind: "vision", "text", "audio", "detection", "decoder", "multimodal", "series" or "quantised".
        make: returns the module with its positional arguments.
        is_strict: whether `torch.export` must follow Python's code, as for tensors that are buffers and attributes of others.
    """

    name: str
    package: str
    kind: str
    make: Callable[[], tuple[nn.Module, tuple[Any, ...]]] = field(repr=False)
    is_strict: bool = False

    def build(self) -> tuple[nn.Module, tuple[Any, ...]]:
        """Return the module and its arguments; the weights and arguments depend on `SEED` only."""
        declare_operators()
        torch.manual_seed(SEED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module, arguments = self.make()
        for parameter in module.parameters():
            # Quantised ones are of classes of torchao, which do not have `any()`.
            is_plain = type(parameter) is nn.Parameter and parameter.is_floating_point()
            if is_plain and parameter.dim() > 1 and not parameter.any():
                # Heads that start at zero give results that hide all differences.
                nn.init.normal_(parameter, std=0.02)
        return module.eval().requires_grad_(False), arguments


class Outputs(nn.Module):
    """A module of transformers, called with named arguments; returns the tensors among its results."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], constants: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.constants = model, names, dict(constants)

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        result = self.model(**dict(zip(self.names, arguments, strict=True)), **self.constants)
        values = result.to_tuple() if hasattr(result, "to_tuple") else result
        values = values if isinstance(values, tuple) else (values,)
        return tuple(value for value in values if isinstance(value, Tensor))


def declare_operators() -> None:
    """Declare the operators that importing torchvision needs, where its compiled part is for another build of PyTorch.

    No module here calls them. transformers and timm import torchvision where it is installed.
    """
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or "torchvision" in sys.modules:
        return
    try:
        torch.ops.load_library(Path(spec.origin).parent / "_C.so")
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def words(*shape: int) -> Tensor:
    """Random numbers of words."""
    return torch.randint(3, WORDS, shape or (1, LENGTH))


def ones(*shape: int) -> Tensor:
    """A mask that hides nothing."""
    return torch.ones(shape or (1, LENGTH), dtype=torch.int64)


def image(size: int = 64, channels: int = 3) -> Tensor:
    """A random image."""
    return torch.randn(1, channels, size, size)


# --- transformers -----------------------------------------------------------------------------------------------------


TEXT: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 2 * WIDTH, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""The configuration of most language models."""


def transformers_module(
    config: str, model: str, options: Mapping[str, Any], inputs: Mapping[str, Callable[[], Tensor]], **constants: Any
) -> tuple[nn.Module, tuple[Any, ...]]:
    """Build a model of transformers from its configuration's options."""
    import transformers

    settings = getattr(transformers, config)(**options)
    module = getattr(transformers, model)(settings)
    return Outputs(module, tuple(inputs), constants), tuple(make() for make in inputs.values())


def text_inputs() -> dict[str, Callable[[], Tensor]]:
    return {"input_ids": words, "attention_mask": ones}


def of_transformers(
    name: str,
    kind: str,
    config: str,
    model: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, Callable[[], Tensor]] | None = None,
    **constants: Any,
) -> Module:
    make = partial(
        transformers_module, config, model, options, text_inputs() if inputs is None else inputs, **constants
    )
    return Module(name, "transformers", kind, make)


ENCODERS = [
    of_transformers("bert", "text", "BertConfig", "BertModel", TEXT),
    of_transformers("roberta", "text", "RobertaConfig", "RobertaForSequenceClassification", TEXT),
    of_transformers("electra", "text", "ElectraConfig", "ElectraModel", {**TEXT, "embedding_size": 32}),
    of_transformers("albert", "text", "AlbertConfig", "AlbertModel", {**TEXT, "embedding_size": 32}),
    of_transformers(
        "distilbert", "text", "DistilBertConfig", "DistilBertForMaskedLM",
        {"vocab_size": WORDS, "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 128, "pad_token_id": 0},
    ),
    of_transformers("mpnet", "text", "MPNetConfig", "MPNetModel", TEXT),
    of_transformers("deberta-v2", "text", "DebertaV2Config", "DebertaV2Model", {
        **TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "type_vocab_size": 0}),
    of_transformers("modernbert", "text", "ModernBertConfig", "ModernBertModel", {
        **TEXT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 16}),
    of_transformers("squeezebert", "text", "SqueezeBertConfig", "SqueezeBertModel", {**TEXT, "embedding_size": WIDTH}),
    of_transformers("convbert", "text", "ConvBertConfig", "ConvBertModel", {**TEXT, "embedding_size": 32}),
    of_transformers("fnet", "text", "FNetConfig", "FNetModel", TEXT, {"input_ids": words}),
    of_transformers("mobilebert", "text", "MobileBertConfig", "MobileBertModel", {
        **TEXT, "embedding_size": 32, "intra_bottleneck_size": 32}),
]  # fmt: skip

CAUSAL: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
ARGUMENTS: dict[str, Any] = {"use_cache": False}

DECODERS = [
    of_transformers("gpt2", "text", "GPT2Config", "GPT2LMHeadModel", {
        "vocab_size": WORDS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 128}, **ARGUMENTS),
    of_transformers("llama", "text", "LlamaConfig", "LlamaForCausalLM", CAUSAL, **ARGUMENTS),
    of_transformers("qwen3", "text", "Qwen3Config", "Qwen3ForCausalLM", {**CAUSAL, "head_dim": 16}, **ARGUMENTS),
    of_transformers("gemma2", "text", "Gemma2Config", "Gemma2ForCausalLM", {**CAUSAL, "head_dim": 16}, **ARGUMENTS),
    of_transformers("phi3", "text", "Phi3Config", "Phi3ForCausalLM", CAUSAL, **ARGUMENTS),
    of_transformers("mistral", "text", "MistralConfig", "MistralForCausalLM", {**CAUSAL, "sliding_window": 16}, **ARGUMENTS),
    of_transformers("gpt-neox", "text", "GPTNeoXConfig", "GPTNeoXForCausalLM", TEXT, **ARGUMENTS),
    of_transformers("opt", "text", "OPTConfig", "OPTForCausalLM", {
        **TEXT, "ffn_dim": 128, "word_embed_proj_dim": WIDTH}, **ARGUMENTS),
    of_transformers("bloom", "text", "BloomConfig", "BloomForCausalLM", {
        "vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}, **ARGUMENTS),
    of_transformers("falcon", "text", "FalconConfig", "FalconForCausalLM", TEXT, **ARGUMENTS),
    of_transformers("granite", "text", "GraniteConfig", "GraniteForCausalLM", CAUSAL, **ARGUMENTS),
    of_transformers("olmo2", "text", "Olmo2Config", "Olmo2ForCausalLM", CAUSAL, **ARGUMENTS),
    of_transformers("t5", "text", "T5Config", "T5ForConditionalGeneration", {
        "vocab_size": WORDS, "d_model": WIDTH, "d_kv": 16, "d_ff": 128, "num_layers": LAYERS, "num_heads": HEADS},
        {"input_ids": words, "decoder_input_ids": partial(words, 1, 8)}, **ARGUMENTS),
    of_transformers("bart", "text", "BartConfig", "BartForConditionalGeneration", {
        "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        "max_position_embeddings": 128}, {"input_ids": words, "decoder_input_ids": partial(words, 1, 8)}, **ARGUMENTS),
    of_transformers("mamba", "text", "MambaConfig", "MambaForCausalLM", {
        "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 8},
        {"input_ids": partial(words, 1, 8)}, **ARGUMENTS),
]  # fmt: skip


class CachedDecoder(nn.Module):
    """A decoder of transformers whose cache of fixed size is in buffers, which each step updates."""

    def __init__(self, model: nn.Module, length: int) -> None:
        super().__init__()
        from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

        self.step = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=length)

    def forward(self, input_ids: Tensor, cache_position: Tensor) -> Tensor:
        result: Tensor = self.step.forward(input_ids=input_ids, cache_position=cache_position)
        return result


def cached(config: str, model: str, options: Mapping[str, Any]) -> tuple[nn.Module, tuple[Any, ...]]:
    """A step of a decoder, after five others."""
    import transformers

    settings = getattr(transformers, config)(**options)
    settings.use_cache = True
    module = getattr(transformers, model)(settings).eval()
    module.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=LENGTH,
        cache_config={"batch_size": 1, "max_cache_len": LENGTH, "device": "cpu"},
    )  # fmt: skip
    return CachedDecoder(module, LENGTH), (words(1, 1), torch.tensor([5]))


CACHED = [
    Module("llama-cached", "transformers", "decoder", partial(cached, "LlamaConfig", "LlamaForCausalLM", CAUSAL), True),
    Module(
        "qwen3-cached", "transformers", "decoder",
        partial(cached, "Qwen3Config", "Qwen3ForCausalLM", {**CAUSAL, "head_dim": 16}), True,
    ),
]  # fmt: skip

VIT: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 128,
    "image_size": 64, "patch_size": 16,
}  # fmt: skip

PIXELS: dict[str, Callable[[], Tensor]] = {"pixel_values": image}
SPECTRUM = partial(torch.randn, 1, 80, 100)
WAVE = partial(torch.randn, 1, 4000)
WAV2VEC2: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 128,
    "vocab_size": 32, "conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "feat_proj_dropout": 0.0,
}  # fmt: skip


def detr(config: str, model: str, **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=options.pop("features", ["stage4"]),
    )  # fmt: skip
    settings = getattr(transformers, config)(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32,
        encoder_layers=1, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_attention_heads=4,
        decoder_attention_heads=4, num_queries=10, num_labels=5, **options,
    )  # fmt: skip
    mask = torch.ones(1, 128, 128, dtype=torch.int64)
    return Outputs(getattr(transformers, model)(settings), ("pixel_values", "pixel_mask"), {}), (image(128), mask)


OTHERS = [
    Module("conditional-detr", "transformers", "detection", partial(
        detr, "ConditionalDetrConfig", "ConditionalDetrForObjectDetection")),
    of_transformers("levit", "vision", "LevitConfig", "LevitForImageClassification", {
        "image_size": 64, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1],
        "key_dim": [8, 8, 8]}, PIXELS),
    of_transformers("poolformer", "vision", "PoolFormerConfig", "PoolFormerForImageClassification", {
        "depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}, PIXELS),
    of_transformers("vit", "vision", "ViTConfig", "ViTForImageClassification", VIT, PIXELS),
    of_transformers("beit", "vision", "BeitConfig", "BeitForImageClassification", {
        **VIT, "use_relative_position_bias": True}, PIXELS),
    of_transformers("dinov2", "vision", "Dinov2Config", "Dinov2Model", {**VIT, "patch_size": 8}, PIXELS),
    of_transformers("segformer", "vision", "SegformerConfig", "SegformerForSemanticSegmentation", {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [4, 2], "hidden_sizes": [16, 32], "patch_sizes": [7, 3],
        "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 32}, PIXELS),
    of_transformers("dpt", "vision", "DPTConfig", "DPTForDepthEstimation", {
        **VIT, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [16, 16, 32, 32],
        "fusion_hidden_size": 32, "reassemble_factors": [4, 2, 1, 0.5]}, PIXELS),
    of_transformers("swin2sr", "vision", "Swin2SRConfig", "Swin2SRForImageSuperResolution", {
        "image_size": 32, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 2], "window_size": 8, "upscale": 2},
        {"pixel_values": partial(image, 32)}),
    of_transformers("mobilevit", "vision", "MobileViTConfig", "MobileViTForImageClassification", {
        "image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 16, 16, 24, 32, 40, 64]}, PIXELS),
    of_transformers("videomae", "vision", "VideoMAEConfig", "VideoMAEModel", {**VIT, "num_frames": 4},
        {"pixel_values": partial(torch.randn, 1, 4, 3, 64, 64)}),
    of_transformers("yolos", "detection", "YolosConfig", "YolosForObjectDetection", {
        **VIT, "image_size": [64, 64], "num_detection_tokens": 10}, PIXELS),
    Module("detr", "transformers", "detection", partial(detr, "DetrConfig", "DetrForObjectDetection")),
    Module("deformable-detr", "transformers", "detection", partial(
        detr, "DeformableDetrConfig", "DeformableDetrForObjectDetection", features=["stage2", "stage3", "stage4"],
        num_feature_levels=4)),
    of_transformers("clip", "multimodal", "CLIPConfig", "CLIPModel", {
        "text_config": {**TEXT, "eos_token_id": 2}, "vision_config": VIT, "projection_dim": 32},
        {"input_ids": words, "pixel_values": image, "attention_mask": ones}),
    of_transformers("siglip", "multimodal", "SiglipConfig", "SiglipModel", {
        "text_config": {**TEXT, "max_position_embeddings": 64}, "vision_config": VIT},
        {"input_ids": words, "pixel_values": image}),
    of_transformers("whisper-encoder", "audio", "WhisperConfig", "WhisperModel", {
        "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 50,
        "max_target_positions": 32, "vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1}, {"input_features": SPECTRUM, "decoder_input_ids": partial(words, 1, 8)}, **ARGUMENTS),
    of_transformers("wav2vec2", "audio", "Wav2Vec2Config", "Wav2Vec2ForCTC", WAV2VEC2, {"input_values": WAVE}),
    of_transformers("hubert", "audio", "HubertConfig", "HubertModel", WAV2VEC2, {"input_values": WAVE}),
    of_transformers("ast", "audio", "ASTConfig", "ASTForAudioClassification", {
        **VIT, "max_length": 64, "num_mel_bins": 32}, {"input_values": partial(torch.randn, 1, 64, 32)}),
    of_transformers("dac", "audio", "DacConfig", "DacModel", {
        "encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32, "n_codebooks": 2,
        "codebook_size": 16, "codebook_dim": 4, "hop_length": 8}, {"input_values": partial(torch.randn, 1, 1, 800)}),
    of_transformers("univnet", "audio", "UnivNetConfig", "UnivNetModel", {
        "model_hidden_channels": 16, "model_in_channels": 16, "num_mel_bins": 20, "kernel_predictor_hidden_channels": 16},
        {"input_features": partial(torch.randn, 1, 12, 20), "noise_sequence": partial(torch.randn, 1, 12, 16)}),
]  # fmt: skip

MORE: dict[str, Any] = {**CAUSAL, "head_dim": 16}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
SERIES: dict[str, Any] = {
    "prediction_length": 4, "context_length": 16, "lags_sequence": [1, 2, 3], "num_time_features": 2, "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip
PATCHES: dict[str, Any] = {
    "num_input_channels": 3, "context_length": 32, "patch_length": 4, "patch_stride": 4, "d_model": 16,
    "prediction_length": 8,
}  # fmt: skip
PAST: dict[str, Callable[[], Tensor]] = {"past_values": partial(torch.rand, 1, 32, 3)}


def time_series() -> dict[str, Callable[[], Tensor]]:
    return {
        "past_values": partial(torch.rand, 1, 19), "past_time_features": partial(torch.rand, 1, 19, 2),
        "past_observed_mask": partial(torch.ones, 1, 19), "future_values": partial(torch.rand, 1, 4),
        "future_time_features": partial(torch.rand, 1, 4, 2),
    }  # fmt: skip


FURTHER = [
    of_transformers("xlnet", "text", "XLNetConfig", "XLNetModel", {
        "vocab_size": WORDS, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 128}),
    of_transformers("funnel", "text", "FunnelConfig", "FunnelModel", {
        "vocab_size": WORDS, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": WIDTH, "n_head": HEADS, "d_head": 16,
        "d_inner": 128}),
    of_transformers("canine", "text", "CanineConfig", "CanineModel", {
        **TEXT, "max_position_embeddings": 256, "downsampling_rate": 4, "num_hash_buckets": 64,
        "local_transformer_stride": 16}),
    of_transformers("mixtral", "text", "MixtralConfig", "MixtralForCausalLM", {**CAUSAL, **EXPERTS}, **ARGUMENTS),
    of_transformers("deepseek-v3", "text", "DeepseekV3Config", "DeepseekV3ForCausalLM", {
        **TEXT, "num_key_value_heads": HEADS, "moe_intermediate_size": 32, "n_routed_experts": 8, "n_group": 2,
        "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 24,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}, **ARGUMENTS),
    of_transformers("gpt-oss", "text", "GptOssConfig", "GptOssForCausalLM", {
        **MORE, **EXPERTS, "sliding_window": 16}, **ARGUMENTS),
    of_transformers("gemma3", "text", "Gemma3TextConfig", "Gemma3ForCausalLM", {**MORE, "sliding_window": 16}, **ARGUMENTS),
    of_transformers("mamba2", "text", "Mamba2Config", "Mamba2ForCausalLM", {
        "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 8, "num_heads": 8,
        "head_dim": 16, "n_groups": 2, "chunk_size": 8}, {"input_ids": words}, **ARGUMENTS),
    of_transformers("rwkv", "text", "RwkvConfig", "RwkvForCausalLM", {
        "vocab_size": WORDS, "hidden_size": WIDTH, "attention_hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "context_length": 64}, {"input_ids": partial(words, 1, 8)}, **ARGUMENTS),
    of_transformers("recurrent-gemma", "text", "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", {
        **CAUSAL, "num_hidden_layers": 3, "lru_width": WIDTH, "attention_window_size": 16}, **ARGUMENTS),
    of_transformers("lfm2", "text", "Lfm2Config", "Lfm2ForCausalLM", {
        **CAUSAL, "layer_types": ["conv", "full_attention"], "block_ff_dim": 128}, **ARGUMENTS),
    of_transformers("codegen", "text", "CodeGenConfig", "CodeGenForCausalLM", {
        "vocab_size": WORDS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "rotary_dim": 8, "n_positions": 128},
        **ARGUMENTS),
    of_transformers("layoutlm", "text", "LayoutLMConfig", "LayoutLMModel", {**TEXT, "max_2d_position_embeddings": 128}, {
        **text_inputs(), "bbox": partial(torch.full, (1, LENGTH, 4), 7)}),
    of_transformers("swin", "vision", "SwinConfig", "SwinForImageClassification", {
        "image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}, PIXELS),
    of_transformers("pvt-v2", "vision", "PvtV2Config", "PvtV2ForImageClassification", {
        "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 3, 4]}, PIXELS),
    of_transformers("dinov3", "vision", "DINOv3ViTConfig", "DINOv3ViTModel", {**VIT, "num_register_tokens": 2}, PIXELS),
    of_transformers("sam-vision", "vision", "SamVisionConfig", "SamVisionModel", {
        **VIT, "output_channels": 32, "window_size": 3, "global_attn_indexes": [1], "num_pos_feats": 16, "mlp_dim": 128},
        PIXELS),
    of_transformers("focalnet", "vision", "FocalNetConfig", "FocalNetForImageClassification", {
        "image_size": 64, "embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2],
        "focal_windows": [3, 3]}, PIXELS),
    of_transformers("wavlm", "audio", "WavLMConfig", "WavLMModel", {
        **WAV2VEC2, "num_buckets": 32, "max_bucket_distance": 64}, {"input_values": WAVE}),
    of_transformers("sew", "audio", "SEWConfig", "SEWModel", {**WAV2VEC2, "squeeze_factor": 2}, {"input_values": WAVE}),
    of_transformers("wav2vec2-conformer", "audio", "Wav2Vec2ConformerConfig", "Wav2Vec2ConformerModel", {
        **WAV2VEC2, "position_embeddings_type": "relative"}, {"input_values": WAVE}),
    of_transformers("speecht5-hifigan", "audio", "SpeechT5HifiGanConfig", "SpeechT5HifiGan", {
        "model_in_dim": 20, "upsample_initial_channel": 32, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4],
        "resblock_kernel_sizes": [3, 7]}, {"spectrogram": partial(torch.randn, 1, 12, 20)}),
    of_transformers("time-series", "series", "TimeSeriesTransformerConfig", "TimeSeriesTransformerModel", SERIES,
        time_series(), **ARGUMENTS),
    of_transformers("patchtst", "series", "PatchTSTConfig", "PatchTSTForPrediction", {
        **PATCHES, "num_attention_heads": 2, "ffn_dim": 32, "num_hidden_layers": 2}, PAST),
    of_transformers("patchtsmixer", "series", "PatchTSMixerConfig", "PatchTSMixerForPrediction", {
        **PATCHES, "num_layers": 2}, PAST),
]  # fmt: skip

# --- timm and torchvision ---------------------------------------------------------------------------------------------


def timm_module(name: str, size: int, **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    import timm

    return timm.create_model(name, pretrained=False, **options), (image(size),)


def of_timm(name: str, size: int = 96, **options: Any) -> Module:
    return Module(name, "timm", "vision", partial(timm_module, name, size, **options))


TIMM = [
    of_timm("efficientnet_b0"),
    of_timm("mobilenetv3_small_050"),
    of_timm("mobilenetv4_conv_small"),
    of_timm("convnext_atto"),
    of_timm("convnextv2_atto"),
    of_timm("regnety_002"),
    of_timm("ghostnet_050"),
    of_timm("repvgg_a0"),
    of_timm("mobileone_s0"),
    of_timm("dla34"),
    of_timm("hrnet_w18_small"),
    of_timm("res2net50_14w_8s"),
    of_timm("skresnet18"),
    of_timm("inception_next_atto"),
    of_timm("vit_tiny_patch16_224", 96, img_size=96, depth=2),
    of_timm("deit_tiny_distilled_patch16_224", 96, img_size=96, depth=2),
    of_timm("swin_tiny_patch4_window7_224", 224, depths=(1, 1, 1, 1), embed_dim=24),
    of_timm("maxvit_nano_rw_256", 64, img_size=64),
    of_timm("coatnet_nano_rw_224", 64, img_size=64),
    of_timm("edgenext_xx_small"),
    of_timm("mobilevitv2_050"),
    of_timm("poolformer_s12"),
    of_timm("mixer_s32_224", 64, img_size=64),
    of_timm("xcit_nano_12_p16_224", 96, depth=2),
    of_timm("levit_128s", 224),
    of_timm("efficientvit_b0"),
    of_timm("fastvit_t8"),
    of_timm("mambaout_femto"),
    of_timm("cait_xxs24_224", 64, img_size=64, depth=2),
    of_timm("eva02_tiny_patch14_224", 56, img_size=56, depth=2),
    of_timm("sequencer2d_s", 64, img_size=64, layers=(1, 1, 1, 1)),
    of_timm("lambda_resnet26t", 128),
]


def torchvision_module(name: str, size: int, **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    from torchvision import models

    return models.get_model(name, weights=None, **options), (image(size),)


class DetectorHead(nn.Module):
    """The network of a detector without the selection of boxes, whose number depends on the image."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        features = list(self.backbone(image).values())
        return tuple(self.head(features).values())


def detector(name: str, size: int) -> tuple[nn.Module, tuple[Any, ...]]:
    module, arguments = torchvision_module(name, size, weights_backbone=None, num_classes=5)
    return DetectorHead(module), arguments


class Segmentation(nn.Module):
    """A network whose results are in a dictionary."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.network(image)["out"]
        return result


def segmentation(name: str, size: int) -> tuple[nn.Module, tuple[Any, ...]]:
    module, arguments = torchvision_module(name, size, weights_backbone=None, num_classes=5)
    return Segmentation(module), arguments


def video(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    from torchvision import models

    return models.get_model(name, weights=None), (torch.randn(1, 3, 4, 32, 32),)


def of_torchvision(name: str, size: int = 96, **options: Any) -> Module:
    return Module(name, "torchvision", "vision", partial(torchvision_module, name, size, **options))


TORCHVISION = [
    of_torchvision("resnet18", 224),
    of_torchvision("mobilenet_v2", 224),
    of_torchvision("squeezenet1_1"),
    of_torchvision("shufflenet_v2_x0_5"),
    of_torchvision("densenet121", 64),
    of_torchvision("mnasnet0_5"),
    of_torchvision("alexnet"),
    of_torchvision("googlenet", 96, init_weights=False, aux_logits=False),
    of_torchvision("efficientnet_v2_s", 64),
    of_torchvision("swin_v2_t", 64),
    Module("r3d_18", "torchvision", "vision", partial(video, "r3d_18")),
    Module("lraspp_mobilenet_v3_large", "torchvision", "vision", partial(segmentation, "lraspp_mobilenet_v3_large", 96)),
    Module("deeplabv3_mobilenet_v3_large", "torchvision", "vision", partial(segmentation, "deeplabv3_mobilenet_v3_large", 96)),
    Module("ssdlite320", "torchvision", "detection", partial(detector, "ssdlite320_mobilenet_v3_large", 160)),
    Module("retinanet_resnet50_fpn", "torchvision", "detection", partial(detector, "retinanet_resnet50_fpn", 64)),
]  # fmt: skip

# --- torchao ----------------------------------------------------------------------------------------------------------


def weights_quantised(config: str, **options: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """A reduced Llama whose matrices torchao quantises."""
    from torchao import quantization

    module, arguments = transformers_module(
        "LlamaConfig", "LlamaForCausalLM", CAUSAL, text_inputs(), use_cache=False
    )  # fmt: skip
    quantization.quantize_(module.eval(), getattr(quantization, config)(**options))
    return module, arguments


def statically_quantised(name: str, size: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """A network with quantised activations and weights, calibrated on one image."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    module, arguments = torchvision_module(name, size)
    program = torch.export.export(module.eval(), arguments).module()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(program, quantizer)
    prepared(*arguments)
    return Evaluated(convert_pt2e(prepared)), arguments


class Evaluated(nn.Module):
    """A module of a graph, which has no `eval()`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "graph_module", module)
        for name, value in {**dict(module.named_buffers()), **dict(module.named_parameters())}.items():
            self.register_buffer(name.replace(".", "_"), value.detach())

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.graph_module(image)
        return result


TORCHAO = [
    Module("llama-int8-weights", "torchao", "quantised", partial(weights_quantised, "Int8WeightOnlyConfig")),
    Module("llama-int4-weights", "torchao", "quantised", partial(
        weights_quantised, "IntxWeightOnlyConfig", weight_dtype=torch.int4)),
    Module("llama-int8-dynamic", "torchao", "quantised", partial(
        weights_quantised, "Int8DynamicActivationInt8WeightConfig")),
    Module("resnet18-int8", "torchao", "quantised", partial(statically_quantised, "resnet18", 64)),
]  # fmt: skip

MODULES = {
    module.name: module
    for module in [*ENCODERS, *DECODERS, *CACHED, *OTHERS, *FURTHER, *TIMM, *TORCHVISION, *TORCHAO]
}  # fmt: skip


def export(module: Module) -> torch.export.ExportedProgram:
    """Build and export a module."""
    return export_network(module, *module.build())


def export_network(module: Module, network: nn.Module, arguments: tuple[Any, ...]) -> torch.export.ExportedProgram:
    """Export what a module has built."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(network, arguments, strict=module.is_strict)


def operators_of(program: torch.export.ExportedProgram) -> Counter[str]:
    """Count the operators of a program."""
    return Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="modules; default: all")
    names = parser.parse_args().names
    total: Counter[str] = Counter()
    for name in names or MODULES:
        try:
            program = export(MODULES[name]).run_decompositions()
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}", flush=True)
            continue
        count = operators_of(program)
        total += count
        print(f"{name}: {sum(count.values())} operations, {len(count)} operators", flush=True)
    for operator, times in total.most_common():
        print(f"{times:6} {operator}")


if __name__ == "__main__":
    main()
