"""Export architectures of Transformers, torchvision and timm at their usual sizes, with random weights from a fixed seed.

    pip install torch torchvision timm transformers onnxscript
    python tools/export_architectures.py --list
    python tools/export_architectures.py FOLDER --only bert --only resnet

Nothing is downloaded. `NAME.onnx` has its inputs in `NAME.npz`. `python -m benchmarks cuda_networks` measures the same
networks beside PyTorch.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SEED = 0

SIDE = 224
"""Pixels of each side of an image, where an architecture has no size of its own."""

TOKENS = 128

SAMPLES = 16_000
"""Samples of a second of sound."""


class Tensors(nn.Module):
    """A network that takes and returns only tensors: the outputs of a model that are tensors, in their order.

    Args:
        model: what runs.
        names: the names of the arguments by which the model takes the inputs.
        options: further arguments of the model.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.options = model, tuple(names), dict(options)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = {name: value for name, value in zip(self.names, inputs, strict=True) if name}
        plain = [value for name, value in zip(self.names, inputs, strict=True) if not name]
        result = self.model(*plain, **named, **self.options)
        if isinstance(result, Mapping):
            result = tuple(result.values())
        if isinstance(result, Tensor):
            return (result,)
        return tuple(value for value in result if isinstance(value, Tensor))


@dataclass(frozen=True)
class Architecture:
    """A network, its source and its inputs.

    Attributes:
        source: "transformers", "torchvision" or "timm".
        kind: the model type of Transformers, or the name of a function or model of the others.
        inputs: the shapes of images and sounds, or a number of tokens, by the name of the argument; "" is positional.
        options: of the configuration, or of the function.
        call: further arguments of each call.
        head: the class of Transformers that is made; AutoModel makes the network without a head.
    """

    source: str
    kind: str
    inputs: Mapping[str, tuple[int, ...] | int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    head: str = "AutoModel"

    def make(self) -> nn.Module:
        """Return the network for inference, on the processor; its weights are those of the seed."""
        torch.manual_seed(SEED)
        model: nn.Module = getattr(self, f"_{self.source}")()
        for weight in model.parameters():
            if weight.ndim > 1 and not weight.any():  # the heads of some networks are zeros before they are trained
                nn.init.normal_(weight, std=0.02)
        return Tensors(model, list(self.inputs), self.call).eval()

    def _transformers(self) -> nn.Module:
        import transformers

        config = transformers.AutoConfig.for_model(self.kind, **self.options)
        config._attn_implementation = "sdpa"
        head = getattr(transformers, self.head)
        made: nn.Module
        try:
            made = head.from_config(config) if self.head.startswith("Auto") else head(config)
        except ValueError:  # an architecture without this attention
            config._attn_implementation = "eager"
            made = head.from_config(config) if self.head.startswith("Auto") else head(config)
        return made

    def _torchvision(self) -> nn.Module:
        from torchvision import models

        made: nn.Module = models.get_model(self.kind, weights=None, **self.options)
        return made

    def _timm(self) -> nn.Module:
        import timm

        made: nn.Module = timm.create_model(self.kind, pretrained=False, **self.options)
        return made

    def arguments(self) -> tuple[Tensor, ...]:
        """Return the inputs, of the seed: numbers from -1 to 1, or tokens from 3 to 99."""
        random = np.random.default_rng(SEED)
        arguments = []
        for what in self.inputs.values():
            if isinstance(what, int):
                arguments.append(torch.from_numpy(random.integers(3, 100, (1, what))))
            else:
                arguments.append(torch.from_numpy(random.uniform(-1, 1, what).astype("float32")))
        return tuple(arguments)


def _image(side: int = SIDE, name: str = "") -> dict[str, tuple[int, ...]]:
    return {name: (1, 3, side, side)}


def _vision(kind: str, side: int = SIDE, **options: Any) -> Architecture:
    return Architecture("torchvision", kind, _image(side), options)


def _timm(kind: str, side: int = SIDE, **options: Any) -> Architecture:
    return Architecture("timm", kind, _image(side), options)


def _text(kind: str, tokens: int = TOKENS, **options: Any) -> Architecture:
    return Architecture("transformers", kind, {"input_ids": tokens}, options)


def _decoder(kind: str, **options: Any) -> Architecture:
    """A decoder without a cache: the scores of a prompt."""
    options = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | options
    return Architecture("transformers", kind, {"input_ids": TOKENS}, options, {"use_cache": False})


def _sight(kind: str, side: int = SIDE, head: str = "AutoModel", **options: Any) -> Architecture:
    return Architecture("transformers", kind, _image(side, "pixel_values"), options, head=head)


def _width(hidden: int, inner: int, heads: int, groups: int, layers: int = 4) -> dict[str, int]:
    """The sizes of a decoder that is large in width only."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
    }


CATALOG: dict[str, Architecture] = {
    # Images: classes.
    "resnet50": _vision("resnet50"),
    "resnext50": _vision("resnext50_32x4d"),
    "wide_resnet50": _vision("wide_resnet50_2"),
    "densenet121": _vision("densenet121"),
    "efficientnet_v2_s": _vision("efficientnet_v2_s"),
    "mobilenet_v3_large": _vision("mobilenet_v3_large"),
    "mnasnet": _vision("mnasnet1_0"),
    "shufflenet_v2": _vision("shufflenet_v2_x1_0"),
    "squeezenet": _vision("squeezenet1_1"),
    "regnet_y_3_2gf": _vision("regnet_y_3_2gf"),
    "inception_v3": _vision("inception_v3", 299, aux_logits=False, init_weights=False),
    "convnext_tiny": _vision("convnext_tiny"),
    "vit_b_16": _vision("vit_b_16"),
    "swin_t": _vision("swin_t"),
    "maxvit_t": _vision("maxvit_t"),
    "vgg16": _vision("vgg16"),
    "mixer_b16": _timm("mixer_b16_224"),
    "coatnet_0": _timm("coatnet_0_rw_224"),
    "poolformer_s12": _timm("poolformer_s12"),
    "ghostnet": _timm("ghostnet_100"),
    "nfnet_l0": _timm("nfnet_l0"),
    "levit_256": _timm("levit_256"),
    "edgenext_small": _timm("edgenext_small"),
    "xcit_tiny": _timm("xcit_tiny_12_p16_224"),
    "hrnet_w18": _timm("hrnet_w18"),
    # Images: segments, depth, points, larger images.
    "deeplabv3_resnet50": _vision("deeplabv3_resnet50", weights_backbone=None),
    "lraspp_mobilenet": _vision("lraspp_mobilenet_v3_large", weights_backbone=None),
    "segformer": _sight("segformer", 256, "AutoModelForSemanticSegmentation"),
    "depth_anything": Architecture(
        "transformers", "depth_anything", _image(252, "pixel_values"), head="AutoModelForDepthEstimation"
    ),
    "dpt": _sight("dpt", 384, "AutoModelForDepthEstimation", num_hidden_layers=12),
    "swin2sr": _sight("swin2sr", 64, "AutoModelForImageToImage"),
    # Images: boxes.
    "detr": _sight(
        "detr",
        320,
        "AutoModelForObjectDetection",
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config={"model_type": "resnet", "out_features": ["stage4"]},
    ),
    "rt_detr": _sight("rt_detr", 320, "AutoModelForObjectDetection"),
    "yolos": _sight("yolos", 512, "AutoModelForObjectDetection", num_hidden_layers=6),
    # Several frames.
    "r3d_18": Architecture("torchvision", "r3d_18", {"": (1, 3, 8, 112, 112)}),
    "mc3_18": Architecture("torchvision", "mc3_18", {"": (1, 3, 8, 112, 112)}),
    "s3d": Architecture("torchvision", "s3d", {"": (1, 3, 16, 224, 224)}),
    "raft_small": Architecture(
        "torchvision", "raft_small", {"image1": (1, 3, 128, 192), "image2": (1, 3, 128, 192)}, call={"num_flow_updates": 4}
    ),
    # Images beside texts.
    "clip_vision": _sight("clip_vision_model"),
    "siglip_vision": _sight("siglip_vision_model"),
    "dinov2": _sight("dinov2"),
    "beit": _sight("beit"),
    # Texts.
    "bert": _text("bert"),
    "roberta": _text("roberta"),
    "distilbert": _text("distilbert"),
    "albert": _text("albert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    "electra": _text("electra"),
    "mpnet": _text("mpnet"),
    "deberta_v2": _text("deberta-v2", hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072),
    "squeezebert": _text("squeezebert"),
    "fnet": _text("fnet", num_hidden_layers=6),
    "t5_encoder": Architecture("transformers", "t5", {"input_ids": TOKENS}, head="T5EncoderModel"),
    "gpt2": _decoder("gpt2"),
    "llama": _decoder("llama", **_width(2048, 5632, 32, 4)),
    "qwen3": _decoder("qwen3", **_width(1024, 3072, 16, 8)),
    "gemma2": _decoder("gemma2", **_width(1152, 4608, 4, 2)),
    "phi3": _decoder("phi3", **_width(2048, 5632, 32, 32)),
    "gpt_neox": _decoder("gpt_neox", num_hidden_layers=4, hidden_size=1024, num_attention_heads=16, intermediate_size=4096),
    "opt": _decoder("opt"),
    # Sound.
    "whisper_encoder": Architecture(
        "transformers", "whisper", {"input_features": (1, 80, 3000)}, head="WhisperForAudioClassification"
    ),
    "wav2vec2": Architecture("transformers", "wav2vec2", {"input_values": (1, SAMPLES)}),
    "audio_spectrogram": Architecture(
        "transformers", "audio-spectrogram-transformer", {"input_values": (1, 1024, 128)}, {"num_hidden_layers": 6}
    ),
}  # fmt: skip
"""The architectures by name."""


def export(name: str, model: nn.Module, arguments: tuple[Tensor, ...], folder: Path) -> Path:
    """Write a network as `NAME.onnx`, with the weights in a file beside it where they need one, and its inputs.

    PyTorch's exporter by tracing a program comes first; where it fails, the older one by TorchScript.

    Returns:
        The path of the model.
    """
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(model, arguments, path, dynamo=True, verbose=False)
        except Exception as error:  # exporters raise whatever they meet
            print(f"{name}: exported by TorchScript, since {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            torch.onnx.export(model, arguments, path, dynamo=False, opset_version=17)
    return path


def save_inputs(path: Path, arguments: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Write the inputs of a model, by the model's names, beside it, and return them."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    constants = {constant.name for constant in graph.initializer}
    names = [value.name for value in graph.input if value.name not in constants]
    feed = dict(zip(names, (argument.numpy() for argument in arguments), strict=True))
    np.savez(path.with_suffix(".npz"), **feed)
    return feed


def main() -> None:
    """Export the architectures that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where models are written")
    parser.add_argument("--only", action="append", help="an architecture; default: all")
    parser.add_argument("--list", action="store_true", help="print the names of the architectures")
    arguments = parser.parse_args()
    if arguments.list or arguments.folder is None:
        print("\n".join(f"{name:20} {a.source} {a.kind}" for name, a in CATALOG.items()))
        return
    names = arguments.only or list(CATALOG)
    if unknown := [name for name in names if name not in CATALOG]:
        parser.error(f"there is no architecture {', '.join(unknown)}; --list lists them")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            inputs = CATALOG[name].arguments()
            path = export(name, CATALOG[name].make(), inputs, arguments.folder)
            save_inputs(path, inputs)
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB")
        except Exception as error:  # the other architectures are still exported
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")


if __name__ == "__main__":
    main()
