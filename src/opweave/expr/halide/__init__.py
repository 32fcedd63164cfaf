"""Expressions compiled with Halide: the extra `halide`."""

from .compiler import HalideKernel as HalideKernel, compile as compile
from .objects import set_threads as set_threads, threads as threads
