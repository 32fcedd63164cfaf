"""Shared parts of GPU back ends: rules, the schedule of a graph as kernels, and the runner.

A rule names the parameters of the operation that it needs. An operand is an `opweave.expr.Traced`, a sequence of operands is a
tuple of arrays, an absent operand is None, and attributes are passed unchanged:

    @gpu.lower(ops.transpose)
    def _(input: Traced, permutation: Sequence[int]) -> Traced: ...

A rule returns index expressions: an element of the result as a function of its position. `rules.results` defines the other
results that a rule may return. An operation with a formula (`Op.formula`) needs no rule.

`schedule` visits the nodes of a graph, `fusion` decides which values are inlined and which are stored, `steps` holds the
kernels and their memory, `expr.gpu` prints expressions as kernels, and `contraction` has the kernels of matrix products and
convolutions. `device` holds memory and errors, `runner` runs the kernels.
"""
