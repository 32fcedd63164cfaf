"""The WebGPU back end: graphs as compute shaders on any vendor's GPU, through wgpu (https://wgpu-py.readthedocs.io).

Rules, and the partition of graphs into kernels, are shared by all GPUs (`backends.gpu`). `adapters` finds devices, `engine`
holds their memory and pipelines, and `executable` runs kernels.
"""

from .backend import WebGPU as WebGPU, webgpu as webgpu
