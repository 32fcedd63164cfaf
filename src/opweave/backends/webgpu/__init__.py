"""The WebGPU back end: graphs as compute shaders on any vendor's GPU, through wgpu (https://wgpu-py.readthedocs.io).

Its rules, and the division of graphs into kernels, are those of all GPUs (`backends.gpu`). `adapters` finds devices,
`engine` has their memory and pipelines, and `executable` runs kernels.
"""

from .backend import WebGPU as WebGPU, webgpu as webgpu
