"""Expressions compiled with Halide: the extra `halide`."""

from .kernel import HalideKernel as HalideKernel, compile as compile
from .runtime import set_threads as set_threads, threads as threads
