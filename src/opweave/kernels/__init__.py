"""Kernels: user functions that compute a custom operation.

A kernel is prepared once for each node, bound to the memory that the node reads and writes, and then called with views of the
tensors, never copies.
"""

from .base import Kernel as Kernel, KernelCall as KernelCall, PreparedKernel as PreparedKernel
