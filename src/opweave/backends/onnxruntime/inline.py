"""How large constants may be that are written into models."""

INLINE_BYTES = 1024
"""Constants up to this size lie inside the model."""

INLINE_BYTES_OF_RULES = 8192 * 8
"""The same for constants made by rules: shape inference must see the sizes of the largest possible Split."""
