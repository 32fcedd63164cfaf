"""Operations of users: host kernels, composites, shape rules, in graphs, on arrays and tensors, and inside of ONNX models."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import re
import threading
import weakref
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import opweave as ow
from opweave.errors import require

CPU = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")
BOTH = pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
rng = np.random.default_rng(0)


@ow.op
def top_k(self: Any, x: ow.MLOperand, k: int) -> tuple[ow.Desc, ow.Desc]:
    """The k greatest elements of each row, and where they are."""
    require(0 < k <= x.shape[-1], f"k must be in [1, {x.shape[-1]}], got {k}")
    shape = (*x.shape[:-1], k)
    return ow.Desc(x.data_type, shape), ow.Desc("int32", shape)


@top_k.kernel("cpu")
def _(x: np.ndarray, k: int, *, out: tuple[np.ndarray, np.ndarray]) -> None:
    values, indices = out
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    indices[...] = order
    values[...] = np.take_along_axis(x, order, -1)


@ow.composite
def rms_norm(b: Any, x: Any, weight: Any, *, epsilon: float = 1e-6) -> Any:
    mean = b.reduce_mean(x * x, axes=[x.rank - 1], keep_dimensions=True)
    return x / b.sqrt(mean + epsilon) * weight


@ow.op
def add_one(self, x):  # type: ignore[no-untyped-def]
    return x.desc


@add_one.kernel("cpu")
def _(x: np.ndarray, out: np.ndarray) -> None:
    np.add(x, 1, out=out)


def message(error: BaseException) -> str:
    return re.sub(r"line \d+", "line N", str(error))


# ---------------------------------------------------------------------------------------------------------------------
# Calls


def test_on_arrays_it_computes() -> None:
    values, indices = top_k(np.float32([[1, 3, 2], [5, 4, 6]]), 2)
    assert values.tolist() == [[3, 2], [6, 5]]
    assert indices.tolist() == [[1, 2], [2, 0]]
    assert indices.dtype == np.int32


def test_on_tensors_it_computes_a_tensor_of_their_context() -> None:
    x = REFERENCE.tensor_from(np.float32([1, 2]))
    y = add_one(x)
    assert isinstance(y, ow.MLTensor)
    assert y.context is REFERENCE
    assert y.numpy().tolist() == [2, 3]
    with pytest.raises(ow.ValidationError, match="rms_norm: the operands belong to several contexts"):
        rms_norm(x, CPU.tensor_from(np.float32([1, 2])))


@BOTH
def test_on_operands_it_adds_a_node(context: ow.MLContext) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 4])
    y = rms_norm(add_one(x, label="mine"), np.ones(4, "float32"), epsilon=0.5)
    assert y.node is not None
    assert y.node.op is rms_norm
    assert y.node.attributes == {"epsilon": 0.5}
    graph = builder.build({"y": y})
    data = rng.standard_normal((2, 4)).astype("float32")
    moved = data + 1
    wanted = moved / np.sqrt((moved**2).mean(-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(context.compute(graph, {"x": data})["y"], wanted, rtol=1e-6)


def test_called_again_it_is_compiled_once() -> None:
    calls = []

    @ow.op
    def counted(self, x, *, mode: str = "a"):  # type: ignore[no-untyped-def]
        calls.append(x.shape)
        return x.desc

    counted.kernel("cpu", lambda x, out: np.copyto(out, x))
    for _ in range(3):
        counted(np.float32([1, 2]))
        counted(np.float32([1, 2]), mode="b")
        counted(np.float32([1, 2, 3]))
    assert calls == [(2,), (2,), (3,)]


def test_numbers_are_operands_of_the_type_of_the_others() -> None:
    @ow.composite
    def scaled(b, x, y):  # type: ignore[no-untyped-def]
        return x * y

    assert scaled(np.float32([1, 2]), 3).tolist() == [3, 6]
    with pytest.raises(ow.ValidationError, match=r"scaled: .*2\.5 is not a value of int32"):
        scaled(np.int32([1, 2]), 2.5)
    with pytest.raises(ow.ValidationError, match="scaled: at least one operand must be an array"):
        scaled(1, 2)


def test_a_tensor_may_be_several_operands() -> None:
    @ow.expression
    def product(a, b):  # type: ignore[no-untyped-def]
        return a * b

    three, four = (CPU.tensor_from(np.float32([number])) for number in (3, 4))
    assert product(three, three).numpy().tolist() == [9]
    assert product(three, four).numpy().tolist() == [12]
    assert product(three, three).numpy().tolist() == [9]


@pytest.mark.parametrize("attribute", [False, True])
def test_values_that_are_equal_and_not_the_same(attribute: bool) -> None:
    @ow.expression
    def product(x, y):  # type: ignore[no-untyped-def]
        return x * y

    @ow.expression
    def scaled(x, *, by: float):  # type: ignore[no-untyped-def]
        return x * by

    one = np.float32([1])
    signs = [np.signbit(scaled(one, by=y) if attribute else product(one, y)).tolist() for y in (0.0, -0.0, 0.0)]
    assert signs == [[False], [True], [False]]

    @ow.expression
    def first(x, *, of):  # type: ignore[no-untyped-def]
        return ow.expr.cast(x, "float32") * 0 + (2 if isinstance(of[0], bool) else of[0])

    assert [first(one, of=of).tolist() for of in ((1,), (True,), (1,))] == [[1], [2], [1]]


@pytest.mark.parametrize("form", ["decompose", "expression", "kernel"])
def test_what_is_declared_again_counts_from_then_on(form: str) -> None:
    @ow.op
    def changing(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    def declare(number: int) -> None:
        if form == "decompose":
            changing.decompose(lambda b, x: x + number)
        elif form == "expression":
            changing.expression(lambda x: x + number)
        else:
            changing.kernel("cpu", lambda x, out: np.copyto(out, x + number))

    one = np.float32([1])
    for number in (1, 2, 3):
        declare(number)
        assert [changing(one).tolist() for _ in range(2)] == [[1 + number]] * 2
        assert changing(CPU.tensor_from(one)).numpy().tolist() == [1 + number]


def test_operations_are_pickled_and_copied_by_name() -> None:
    assert pickle.loads(pickle.dumps([top_k, rms_norm])) == [top_k, rms_norm]
    assert copy.deepcopy({"op": top_k})["op"] is top_k
    assert copy.copy(rms_norm) is rms_norm


def test_operations_that_are_forgotten_go() -> None:
    def used() -> weakref.ref[Any]:
        @ow.op
        def passing(self, x):  # type: ignore[no-untyped-def]
            return x.desc

        passing.kernel("cpu", lambda x, out: np.copyto(out, x))
        assert passing(np.float32([1])).tolist() == [1]
        return weakref.ref(passing)

    before = used()
    for number in range(1024):  # back ends remember the limits of this many operations
        CPU.backend.limits(ow.op(eval("lambda self, x: x.desc", {"number": number})))
    gc.collect()
    assert before() is None


def test_sequences_and_absent_operands() -> None:
    @ow.op
    def total(self, parts: list[ow.MLOperand], scale: ow.MLOperand | None = None):  # type: ignore[no-untyped-def]
        return parts[0].desc

    @total.kernel("cpu")
    def _(parts: tuple[np.ndarray, ...], scale: np.ndarray | None, out: np.ndarray) -> None:
        np.copyto(out, sum(parts))
        if scale is not None:
            np.multiply(out, scale, out=out)

    ones = np.ones(2, "float32")
    assert total([ones, ones, ones]).tolist() == [3, 3]
    assert total([ones, ones], ones * 2).tolist() == [4, 4]
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [2])
    graph = builder.build({"y": total([x, x, ones], scale=x)})
    assert CPU.compute(graph, {"x": ones * 3})["y"].tolist() == [21, 21]


def test_attributes_are_converted_by_their_annotation() -> None:
    @ow.op
    def typed(  # type: ignore[no-untyped-def]
        self, x, *, count: int = 1, scale: float = 1.0, flag: bool = False, mode: Literal["a", "b"] = "a", pads=(0, 0)
    ):
        seen.append((count, scale, flag, mode, pads))
        return x.desc

    seen: list[Any] = []
    typed.kernel("cpu", lambda x, out: np.copyto(out, x))
    x = np.float32([1])
    typed(x, count=np.int64(-3), scale=2, flag=True, mode="b", pads=[1, 2])
    assert seen == [(-3, 2.0, True, "b", (1, 2))]
    for wrong, rule in [
        ({"count": 2.5}, "count must be of type int, got 2.5"),
        ({"count": True}, "count must be of type int, got True"),
        ({"scale": "x"}, "scale must be of type float, got 'x'"),
        ({"flag": 1}, "flag must be of type bool, got 1"),
        ({"mode": "c"}, "mode must be 'a' or 'b', got 'c'"),
        ({"nonsense": 1}, "has no argument 'nonsense'; it takes x, count, scale, flag, mode, pads, label"),
    ]:
        with pytest.raises(ow.ValidationError) as caught:
            typed(x, **wrong, label="l")
        assert str(caught.value) == f"typed 'l': {rule}"


def test_annotations_are_read_as_they_are_meant() -> None:
    alias = ow.MLOperand
    choice = Literal["v1.0", "v2.0"]

    def rule(self, x, kind="v1.0", count=1):  # type: ignore[no-untyped-def]
        return x.desc

    rule.__annotations__ = {"x": alias, "kind": choice, "count": Literal[1, 2]}
    versioned = ow.op(rule)
    versioned.kernel("cpu", lambda x, kind, count, out: np.copyto(out, x * float(kind[1:]) * count))
    assert versioned.operands == ("x",)
    assert versioned(np.float32([3]), "v2.0", count=2).tolist() == [12]
    with pytest.raises(ow.ValidationError, match=r"rule 'l': kind must be 'v1.0' or 'v2.0', got 'v3.0'"):
        versioned(np.float32([1]), "v3.0", label="l")
    with pytest.raises(ow.ValidationError, match="rule: count must be 1 or 2, got True"):
        versioned(np.float32([1]), count=True)
    assert str(inspect.signature(add_one)) == "(self, /, x, *, label: 'str' = '') -> 'MLOperand'"


def test_limits_are_checked() -> None:
    @ow.op(x=ow.Limits(("float32",), ranks=(2, 2)))
    def matrix_only(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    with pytest.raises(ow.ValidationError, match=r"matrix_only 'm': x must have rank 2, got float32\[3\]"):
        matrix_only(np.float32([1, 2, 3]), label="m")
    with pytest.raises(ow.ValidationError, match=r"matrix_only: x must be float32, got int32\[1, 1\]"):
        matrix_only(np.int32([[1]]))


# ---------------------------------------------------------------------------------------------------------------------
# Weaving


def test_it_weaves_between_built_in_operations_without_a_copy() -> None:
    pointers: dict[str, int] = {}

    @ow.op
    def spy(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    @spy.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        pointers["in"], pointers["out"] = x.ctypes.data, out.ctypes.data
        assert not x.flags.writeable
        np.negative(x, out=out)

    weight = CPU.create_constant_tensor("float32", [8, 8, 3, 3], rng.standard_normal((8, 8, 3, 3)).astype("float32"))
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [1, 8, 16, 16])
    middle = builder.conv2d(x, builder.constant(weight), padding=[1, 1, 1, 1])
    after = spy(middle)
    y = builder.conv2d(after, builder.constant(weight), padding=[1, 1, 1, 1])
    graph = builder.build({"y": y, "middle": middle, "after": after})
    image = CPU.create_tensor("float32", [1, 8, 16, 16], writable=True)
    results = {name: CPU.create_tensor("float32", [1, 8, 16, 16], readable=True) for name in graph.outputs}
    data = rng.standard_normal((1, 8, 16, 16)).astype("float32")
    CPU.write_tensor(image, data)
    ow.memory.copies.reset()
    CPU.dispatch(graph, {"x": image}, results)
    assert ow.memory.copies.count == 0
    assert pointers == {
        "in": results["middle"].numpy().ctypes.data,
        "out": results["after"].numpy().ctypes.data,
    }
    np.testing.assert_array_equal(results["after"].numpy(), -results["middle"].numpy())
    np.testing.assert_allclose(
        results["y"].numpy(), REFERENCE.compute(_rebuilt(graph, weight), {"x": data})["y"], rtol=1e-3, atol=1e-3
    )


def _rebuilt(graph: ow.MLGraph, weight: ow.MLTensor) -> ow.MLGraph:
    """The same network on the reference back end."""
    builder = ow.MLGraphBuilder(REFERENCE)
    x = builder.input("x", "float32", graph.inputs["x"].shape)
    w = builder.constant(weight.memory())
    y = builder.conv2d(-builder.conv2d(x, w, padding=[1, 1, 1, 1]), w, padding=[1, 1, 1, 1])
    return builder.build({"y": y})


def test_what_runs_where_is_told() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [2, 4])
    values, _ = top_k(rms_norm(x.relu(), np.ones(4, "float32"), label="norm"), 2, label="best")
    graph = builder.build({"v": values})
    assert [(p.node, p.how, p.segment) for p in graph.placements()] == [
        ("relu", "native", 0),
        ("rms_norm 'norm'", "decomposed", 0),
        ("top_k 'best'", "kernel", 1),
    ]
    assert re.fullmatch(r"Python kernel, test_custom\.py:\d+", graph.placements()[-1].detail)
    assert "%1 = rms_norm(%0, const float32[4])  # 'norm'" in str(graph.explain())


def test_two_threads_share_a_graph() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [64])
    graph = builder.build({"y": add_one(add_one(x * 2) * 3)})
    wrong: list[Any] = []

    def work(seed: int) -> None:
        data = np.full(64, seed, "float32")
        for _ in range(200):
            y = CPU.compute(graph, {"x": data})["y"]
            if not (y == (seed * 2 + 1) * 3 + 1).all():
                wrong.append(y)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_composites_hold_constants() -> None:
    @ow.composite
    def weighted(b, x):  # type: ignore[no-untyped-def]
        return b.mul(x, b.constant(np.float32([2, 3]))) + b.constant("float32", 1)

    assert weighted(np.float32([1, 1])).tolist() == [3, 4]

    @ow.composite
    def wrong(b, x):  # type: ignore[no-untyped-def]
        return x + b.constant([1, 2])

    with pytest.raises(
        ow.ValidationError, match=r"wrong 'w': constant: takes \(array\) or .* got \(list\) \(test_custom"
    ):
        wrong(np.float32([1, 1]), label="w")


def test_contexts_are_kept_for_a_few_calls_only() -> None:
    @ow.composite
    def plain(b, x):  # type: ignore[no-untyped-def]
        return x + 1

    def used() -> weakref.ref[Any]:
        context = ow.ml.create_context(device="reference")
        assert plain(context.tensor_from(np.float32([1]))).numpy().tolist() == [2]
        return weakref.ref(context)

    contexts = [used() for _ in range(8)]
    gc.collect()
    assert sum(context() is not None for context in contexts) <= 4


def test_composites_hold_composites_and_kernels() -> None:
    @ow.composite
    def outer(b, x):  # type: ignore[no-untyped-def]
        values, _ = top_k(rms_norm(x, np.ones(4, "float32")), 1)
        return add_one(values), b.relu(x)

    first, second = outer(np.float32([[3, 4, 0, 0]]), label="o")
    assert first.shape == (1, 1)
    np.testing.assert_allclose(first, [[4 / 2.5 + 1]], rtol=1e-6)
    assert second.tolist() == [[3, 4, 0, 0]]


def test_a_kernel_of_numba() -> None:
    numba = pytest.importorskip("numba", reason="the extra numba is not installed")

    @ow.op
    def clipped_sum(self, x, *, limit: float = 1.0):  # type: ignore[no-untyped-def]
        return ow.Desc("float32", x.shape[:1])

    @clipped_sum.kernel("cpu")
    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def _(x: np.ndarray, limit: float, out: np.ndarray) -> None:
        for i in range(x.shape[0]):
            total = np.float32(0)
            for j in range(x.shape[1]):
                total += min(x[i, j], limit)
            out[i] = total

    assert clipped_sum(np.float32([[0.5, 3], [2, 2]])).tolist() == [1.5, 2]
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": clipped_sum(builder.input("x", "float32", [2, 2]))})
    assert graph.placements()[0].detail.startswith("Numba kernel")


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def faulty(kind: str) -> Any:
    @ow.op
    def faulty(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    @faulty.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> Any:
        if x[0] > 0:
            np.copyto(out, x)
        elif kind == "raises":
            np.zeros(3)[7] = 1
        elif kind == "returns":
            np.copyto(out, x)
            return x
        elif kind == "rebinds":
            out = x + 1
        elif kind == "writes in place":
            x[0] = 1
        return None

    return faulty


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (
            "raises",
            "the kernel raised IndexError: index 7 is out of bounds for axis 0 with size 3 "
            "(test_custom.py, line N: np.zeros(3)[7] = 1)",
        ),
        ("returns", "a kernel fills out and returns None, got ndarray"),
        (
            "rebinds",
            "the kernel did not write to out; assign to its elements (out[...] = …), an array that is only bound to the name "
            "is lost",
        ),
        (
            "writes in place",
            "the kernel raised ValueError: assignment destination is read-only (test_custom.py, line N: x[0] = 1)",
        ),
    ],
)
def test_a_faulty_kernel_is_told_and_the_graph_goes_on(kind: str, rule: str) -> None:
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": faulty(kind)(builder.input("x", "float32", [2]) * 1, label="f").relu()})
    with pytest.raises(ow.OperationError) as caught:
        CPU.compute(graph, {"x": np.float32([-1, 2])})
    assert message(caught.value) == f"faulty 'f': {rule}"
    assert CPU.compute(graph, {"x": np.float32([1, 2])})["y"].tolist() == [1, 2]


@pytest.mark.parametrize("byte", [0xA5, 0x5A])
def test_results_may_hold_any_bytes(byte: int) -> None:
    @ow.op
    def passing(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    passing.kernel("cpu", lambda x, out: np.copyto(out, x))
    assert passing(np.uint8([byte, byte])).tolist() == [byte, byte]


def test_kernels_that_are_no_plain_functions() -> None:
    class Scale:
        def __call__(self, x: np.ndarray, out: np.ndarray) -> None:
            np.multiply(x, 2, out=out)

        def negate(self, x: np.ndarray, out: np.ndarray) -> None:
            np.negative(x, out=out)

    def power(exponent: int, x: np.ndarray, out: np.ndarray) -> None:
        np.power(x, exponent, out=out)

    for kernel, expected in ((Scale(), 6), (Scale().negate, -3), (functools.partial(power, 2), 9)):

        @ow.op
        def any_kernel(self, x):  # type: ignore[no-untyped-def]
            return x.desc

        any_kernel.kernel("cpu", kernel)
        builder = ow.MLGraphBuilder(CPU)
        graph = builder.build({"y": any_kernel(builder.input("x", "float32", [1]))})
        assert CPU.compute(graph, {"x": np.float32([3])})["y"].tolist() == [expected]
        assert "Python kernel, test_custom.py:" in graph.explain()


def test_a_kernel_that_dispatches_its_own_graph() -> None:
    @ow.op
    def again(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    again.kernel("cpu", lambda x, out: CPU.compute(graph, {"x": np.float32([1, 2])}))  # type: ignore[call-overload,has-type]
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": again(builder.input("x", "float32", [2])) + 1})
    with pytest.raises(ow.OperationError, match="again: the graph is dispatched by one of its own kernels"):
        CPU.compute(graph, {"x": np.float32([1, 2])})


def test_declarations_that_are_wrong() -> None:
    with pytest.raises(ow.ValidationError, match="top_k: kernels are for 'cpu', 'wasm', 'webgpu', 'cuda', got 'gpu'"):
        top_k.kernel("gpu", lambda x, k, out: None)  # type: ignore[call-overload]
    with pytest.raises(
        ow.ValidationError, match=r"top_k: a kernel takes the operation's parameters and out, got \(x, k\)"
    ):
        top_k.kernel("cpu", lambda x, k: None)
    with pytest.raises(ow.NotSupportedError, match="top_k: no back end here runs kernels for 'cuda'"):
        top_k.kernel("cuda", "source")  # type: ignore[call-overload]

    @ow.op
    def misnamed(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    with pytest.raises(ow.ValidationError, match="misnamed: a kernel is a function, got None"):
        misnamed.kernel("cpu", None)  # type: ignore[call-overload]
    with pytest.raises(ow.ValidationError, match=r"misnamed: the function takes \['z'\]; the operation has \['x'\]"):
        misnamed.decompose(lambda b, z: z)
    with pytest.raises(ow.ValidationError, match=r"misnamed: the function takes \['z'\]; the operation has \['x'\]"):
        misnamed.expression(lambda z: z)
    misnamed.kernel("cpu", lambda y, out: None)
    with pytest.raises(
        ow.ValidationError, match=r"misnamed: the kernel takes \['y'\]; the operation has \['x', 'out'\]"
    ):
        misnamed(np.float32([1]))
    with pytest.raises(ow.ValidationError, match=r"varied: parameters must be named, got \*x; annotate several"):

        @ow.op
        def varied(self, *x):  # type: ignore[no-untyped-def]
            return x[0].desc


@pytest.mark.parametrize("declare", [ow.op, ow.expression, ow.composite])
def test_declarations_that_are_no_functions(declare: Any) -> None:
    for what in (functools.partial(print, 1), None, add_one, ow.Limits()):
        with pytest.raises(ow.ValidationError, match="an operation is declared by a function with a name, got"):
            declare(what) if what is not None else declare(3)


def test_rules_and_limits_that_are_wrong() -> None:
    with pytest.raises(ow.ValidationError, match=r"unbound: the first parameter is the builder, got x: .*MLOperand"):

        @ow.op
        def unbound(x: ow.MLOperand):  # type: ignore[no-untyped-def]
            return x.desc

    @ow.op
    def empty(self, x):  # type: ignore[no-untyped-def]
        return ()

    with pytest.raises(
        ow.ValidationError, match=r"empty 'e': the shape rule must return a Desc, or a tuple of them, got \(\)"
    ):
        empty(np.float32([1]), label="e")
    for wrong in (ow.Desc("float31", (2,)), ow.Desc("float32", (2.5,)), ow.Desc("float32", [2])):

        @ow.op
        def shaped(self, x: ow.MLOperand, *, desc=wrong):  # type: ignore[no-untyped-def]
            return desc

        with pytest.raises(ow.ValidationError) as refused:
            shaped(np.float32([1]), label="s")
        assert (
            f"shaped 's': the shape rule must return a data type of WebNN and a tuple of integers, got {wrong!r}"
            in str(refused.value)
        )
    for limits, rule in (
        ({"z": ow.Limits()}, r"limits are for the operands \['x'\], got 'z'"),
        ({"x": ("float32",)}, r"x must be opweave.Limits, got \('float32',\)"),
        (
            {"x": ow.Limits("float32")},
            "data_types of x must be a tuple of data types, or the name of an operand, got 'float32'",
        ),
        (
            {"x": ow.Limits(ranks=2)},
            "ranks of x must be the smallest and the largest rank, or the name of an operand, got 2",
        ),
    ):
        with pytest.raises(ow.ValidationError, match=f"limited: {rule}"):

            @ow.op(**limits)
            def limited(self, x):  # type: ignore[no-untyped-def]
                return x.desc


def test_attributes_by_name_may_leave_out_those_before() -> None:
    @ow.op
    def affine(self, x: ow.MLOperand, scale: int = 2, offset: int = 3):  # type: ignore[no-untyped-def]
        return x.desc

    affine.kernel("cpu", lambda x, scale, offset, out: np.copyto(out, x * scale + offset))
    assert affine(np.float32([1]), offset=7).tolist() == [9]


def test_calls_that_are_wrong() -> None:
    one = np.float32([1])
    for call, rule in (
        (lambda: add_one(one, one, label="a"), "takes 1 positional arguments, got 2"),
        (lambda: add_one(one, x=one, label="a"), "x is given twice"),
        (lambda: add_one(np.zeros(0, "float32"), label="a"), r"x must have dimensions in \[1, 2147483647\], got \[0\]"),
        (lambda: add_one(np.float64([1]), label="a"), "x: float64 is not a data type of WebNN"),
        (lambda: add_one(3, label="a"), "at least one operand must be an array"),
    ):
        with pytest.raises(ow.ValidationError, match=f"^add_one 'a': {rule}"):
            call()  # type: ignore[no-untyped-call]


def test_an_operation_that_nothing_computes() -> None:
    @ow.op
    def nothing(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    with pytest.raises(
        ow.NotSupportedError, match=r"nothing 'n': .* has no rule for float32\[1\], and the operation has no"
    ):
        nothing(np.float32([1]), label="n")
    assert repr(nothing) == "<CustomOp nothing: nothing that computes it>"


def test_errors_in_rules_and_composites_show_the_line() -> None:
    with pytest.raises(ow.ValidationError) as caught:
        rms_norm(np.ones((2, 4), "float32"), np.ones(3, "float32"), label="rn")
    assert message(caught.value) == (
        "rms_norm 'rn': mul: the shapes of a and b do not broadcast: [2, 4] and [3] "
        "(test_custom.py, line N: return x / b.sqrt(mean + epsilon) * weight)"
    )
    with pytest.raises(ow.ValidationError) as caught:
        top_k(np.float32([1, 2]), 3, label="t")
    assert message(caught.value).startswith("top_k 't': k must be in [1, 2], got 3 (test_custom.py, line N: require(")

    @ow.op
    def broken(self, x):  # type: ignore[no-untyped-def]
        return x.shape[5]

    with pytest.raises(IndexError) as found:
        broken(np.float32([1]))
    assert message(ValueError(found.value.__notes__[0])) == (
        "in the shape rule of broken (test_custom.py, line N: return x.shape[5])"
    )

    @ow.op
    def shape_only(self, x):  # type: ignore[no-untyped-def]
        return x.shape

    with pytest.raises(
        ow.ValidationError, match="shape_only: the shape rule must return a Desc, or a tuple of them, got 1"
    ):
        shape_only(np.float32([1]))

    @ow.composite
    def stray(b, x):  # type: ignore[no-untyped-def]
        return 3

    with pytest.raises(ow.ValidationError, match="stray: a composite must return operands that it built, got 3"):
        stray(np.float32([1]))


# ---------------------------------------------------------------------------------------------------------------------
# Inside of ONNX models


def model(**attributes: Any) -> bytes:
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("TopK2", ["a"], ["v", "i"], domain="com.example", name="best", **attributes),
        helper.make_node("Neg", ["v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, ["n", 4])],
        [info("y", TensorProto.FLOAT, ["n", 2]), info("i", TensorProto.INT32, ["n", 2])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=imports)
    return made.SerializeToString()


def test_in_an_onnx_model() -> None:
    ow.register_onnx("com.example", "TopK2", top_k, attributes={"count": "k"})
    session = ow.InferenceSession(model(count=2), fallback="error")
    ow.memory.copies.reset()
    y, i = session.run(None, {"x": np.float32([[1, 3, 2, -1], [5, 4, 6, 9]])})
    assert ow.memory.copies.count == 0
    assert y.tolist() == [[-3, -2], [-9, -6]]
    assert i.tolist() == [[1, 2], [3, 2]]
    explained = session.explain()
    assert "  TopK2 'best'\n" in explained
    assert "  custom: top_k 'best', kernel, Python kernel, test_custom.py:" in explained
    with pytest.raises(ow.NotSupportedError, match=r"TopK2 'best': .*top_k 'best': k must be in \[1, 4\], got 9"):
        ow.InferenceSession(model(count=9)).run(None, {"x": np.zeros((1, 4), "float32")})
    with pytest.raises(ow.NotSupportedError, match="TopK2 'best': its attribute nonsense is not supported"):
        ow.InferenceSession(model(count=2, nonsense=1)).run(None, {"x": np.zeros((1, 4), "float32")})


def test_tensors_as_attributes_of_onnx_nodes_are_arrays() -> None:
    @ow.op
    def shifted(self: Any, x: ow.MLOperand, *, by: Any) -> ow.Desc:
        return x.desc

    shifted.kernel("cpu", lambda x, by, out: np.copyto(out, x + by))
    ow.register_onnx("test.tensors", "Shifted", shifted)
    by = helper.make_tensor("by", TensorProto.FLOAT, [2], [1, 2])
    node = helper.make_node("Shifted", ["x"], ["y"], domain="test.tensors", by=by)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.tensors", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8)
    (result,) = ow.onnx.InferenceSession(model.SerializeToString()).run(None, {"x": np.float32([1, 1])})
    assert result.tolist() == [2, 3]


def test_a_composite_in_an_onnx_model() -> None:
    ow.register_onnx("com.example", "RmsNorm", rms_norm)
    info = helper.make_tensor_value_info
    node = helper.make_node("RmsNorm", ["x", "w"], ["y"], domain="com.example", name="norm", epsilon=0.5)
    graph = helper.make_graph(
        [node], "g", [info("x", TensorProto.FLOAT, [2, 4]), info("w", TensorProto.FLOAT, [4])], [info("y", 1, [2, 4])]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    session = ow.InferenceSession(helper.make_model(graph, opset_imports=imports), fallback="error")
    x, w = rng.standard_normal((2, 4)).astype("float32"), rng.standard_normal(4).astype("float32")
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5) * w
    np.testing.assert_allclose(session.run(None, {"x": x, "w": w})[0], wanted, rtol=1e-5)
    assert "  custom: rms_norm 'norm', decomposed, " in session.explain()


def test_registrations_that_are_wrong() -> None:
    with pytest.raises(ow.ValidationError, match=r"top_k has the attributes \['k'\], not 'n'"):
        ow.register_onnx("com.example", "TopK2", top_k, attributes={"count": "n"})
    with pytest.raises(ow.ValidationError, match="register_onnx: X needs an operation"):
        ow.register_onnx("com.example", "X", print)
    with pytest.raises(ow.ValidationError, match="register_onnx: op_type must not be empty"):
        ow.register_onnx("com.example", "", top_k)
