"""The CUDA back end: graphs as kernels on NVIDIA's GPUs, through the driver and NVRTC.

Rules, and the partition of graphs into kernels, are shared by all GPUs (`backends.gpu`). `nvrtc` and `compiler` compile,
`driver` wraps NVIDIA's driver, `engine` holds the memory of tensors, and `executable` runs a graph as one CUDA graph.
"""

from .backend import CudaBackend as CudaBackend, cuda as cuda
