'''WGSL kernels: compute shaders of your own, between Opweave's on the same device and in the same queue.

    @ow.op
    def swiglu(self, x: ow.MLOperand, gate: ow.MLOperand):
        return x.desc

    swiglu.kernel("webgpu", """
        fn main(i: u32) {
            out[i] = x[i] * gate[i] / (1.0 + exp(-gate[i]));
        }
    """)

Buffers are declared by Opweave, under the names of the operation's parameters; `x` being an operand, there are

    x              array<f32> (i32, u32, i64, u64, f16 by its data type), in C order; operands are read-only
    x_size         number of elements, a u32; x_rank
    x_shape[0]     a dimension, a u32; x_strides[0] in elements (neither for scalars)
    load_x(i)      element `i`, for all data types alike: f32 for floats, i32 or u32 for small integers
    out            the result, of the same kind; out0, out1, … where there are several
    store_out(i, value)    what `load_x` is to reading; load_out(i) reads it back
    xs0, xs1       the operands of a sequence `xs`
    k, axes[0]     attributes that are numbers, true or false, or tuples of numbers (as const, of no particular type)

Elements of int8 and uint8 share words of 32 bits, four each, and so do two of float16 on devices without `f16`. Of these
`x` itself is not declared: `load_x(i)` and `store_out(i, value)` take care (invocations may store into the same word), and
`x_words` are the words, those of results atomic. Kernels that load and store in these words run on every device, with
every data type that they can compute. Where WGSL reserves a name, an underscore ends it: `filter_[i]`, but `filter_size`.

A shader says what *one invocation* does, or what *workgroups* do:

- `fn main(i: u32)` is called for each element of the (first) result; with as many parameters as that has axes, for each
  position; `invocations=` says how many there are, or the extents, where it is not the result's. Opweave chooses the
  workgroups. There are no barriers here, as some invocations of the last workgroup have nothing to do.
- With an entry point of your own (`@compute @workgroup_size(…)`, under any name) nothing is added but the declarations, and
  `workgroups=` says how many to dispatch. Workgroup memory, barriers and all built-in values are yours.

What depends on shapes beyond these names takes a function, which is called once for each node with a `Buffer` for each
operand that it names (None if that is absent, a tuple for a sequence), attributes, `out` (a tuple where there are several
results), and `features`, what the device can do. It returns a `Shader`, text, or several of them for several passes:

    @row_sum.kernel("webgpu")
    def _(x, out):
        parts = min(64, x.shape[1])
        sums = {"sums": ow.Desc("float32", (x.shape[0], parts))}
        return (
            ow.wgsl.Shader(FIRST, invocations=(x.shape[0], parts), scratch=sums),
            ow.wgsl.Shader(SECOND, invocations=x.shape[0], scratch=sums),
        )

What is in `scratch` has the same names (`sums`, `sums_shape`, …), can be read and written, and is the same memory in
all passes of a node. It and results hold anything at first. Errors of the compiler show the line of your text, and where
that stands in your file; so do those about a bracket that is never closed, and about a missing entry point.
'''

from __future__ import annotations

from .kernel import WgslKernel as WgslKernel
from .shader import Buffer as Buffer, Shader as Shader

__all__ = ["Buffer", "Shader", "WgslKernel"]
