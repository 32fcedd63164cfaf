"""The CUDA back end: graphs as kernels on NVIDIA's GPUs, through the driver and NVRTC.

Its rules, and the division of graphs into kernels, are those of all GPUs (`backends.gpu`). `nvrtc` and `compiler`
compile, `driver` has all calls of NVIDIA's driver, `engine` the memory of tensors, and `executable` runs a graph as one
CUDA graph.
"""

from .backend import CudaBackend as CudaBackend, cuda as cuda
