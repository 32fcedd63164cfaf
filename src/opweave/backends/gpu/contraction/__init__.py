"""Compute shaders for matrix products and convolutions, fused with the element-wise operations that follow.

`problem` describes them all as matrix products, `tiles` chooses how the work is divided, `tiled` and `direct` write the
shaders, `epilogue` writes the operations that follow, and `kernels` puts these together.
"""
