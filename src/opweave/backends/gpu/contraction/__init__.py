"""Kernels for matrix products and convolutions, fused with element-wise epilogues.

`problem` describes contractions as matrix products, `tiles` chooses the tile, `tiled` and `direct` write the kernels,
`epilogue` writes the element-wise operations, and `kernels` assembles the parts.
"""
