"""Every operation as an index expression: what one element of its result is, as a function of its position.

    @rule(ops.transpose)
    def _(input: Array, permutation: Sequence[int]) -> Array: ...

A rule takes the op's own parameters, those it needs, by name: an `Array` for an operand, a tuple of them for a sequence, None
for one that is absent, and attributes as they are. It returns the result, or a tuple of results. What is computed once, where
several elements need it (the sum of a softmax), is for the kernels to decide, and what is computed together for the schedule.
Operations with a formula of their own (`Op.formula`) need no rule, and the recurrent ones are decomposed.

Positions are written as the mathematics says them; `opweave.expr.simplify` takes away what they do not need.
"""

from . import (  # the rules register themselves
    convolution as convolution,
    indexing as indexing,
    matrix as matrix,
    movement as movement,
    normalization as normalization,
    pooling as pooling,
    quantization as quantization,
    reduction as reduction,
)
from .registry import RULES as RULES, Scatter as Scatter, lower as lower, rule as rule
