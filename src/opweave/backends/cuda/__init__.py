"""Kernels for NVIDIA's GPUs, compiled by NVRTC."""
