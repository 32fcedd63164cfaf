"""Import PyTorch and the packages of modules, in the process that `benchmarks.torch` forks for each module."""

from importlib import import_module

from .measure import script

script("torch_modules").declare_operators()  # without which torchvision may refuse to be imported

for name in ("torch._dynamo", "torchvision", "timm", "transformers"):
    import_module(name)
