"""What back ends of GPUs share: rules, the division of a graph into kernels, and what runs them.

A rule takes the op's own parameters, those it needs, by name: an `opweave.expr.Array` for an operand, a tuple of them for
a sequence, None for one that is absent, and attributes as they are:

    @gpu.lower(ops.transpose)
    def _(input: Array, permutation: Sequence[int]) -> Array: ...

It returns index expressions: what one element of the result is, as a function of its position. Some operations need more
than that: `rules.results` has what else a rule may return. Operations with a formula of their own (`Op.formula`) need no
rule. `schedule` visits the nodes of a graph, `fusion` decides what becomes one kernel and what is stored, `steps` has the
kernels and their memory, `expr.gpu` prints expressions as kernels, and `contraction` has the kernels of matrix products and
convolutions.
"""
