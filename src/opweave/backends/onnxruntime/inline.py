"""Size limits of inline constants."""

INLINE_BYTES = 1024

INLINE_BYTES_OF_RULES = 8192 * 8
"""The same limit for constants of rules: shape inference must see the sizes of the largest possible Split."""
