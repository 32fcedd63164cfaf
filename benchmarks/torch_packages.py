"""Import PyTorch and the packages of modules, in the process that `benchmarks.torch` forks for each module."""

from importlib import import_module

from .measure import script

script("torch_modules").declare_operators()  # without which torchvision may refuse to be imported

for name in (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._inductor.cudagraph_trees",
    "torchvision",
    "timm",
    "transformers",
):
    import_module(name)
