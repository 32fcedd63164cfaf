"""`replacing_onnxruntime`: what is replaced, for whom and how long, and the errors that come then."""

from __future__ import annotations

import pickle
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime import InferenceSession as ImportedBefore
from onnxruntime.capi import (
    _pybind_state,
    onnxruntime_inference_collection as collection,
    onnxruntime_pybind11_state as theirs,
)
from support.onnx import model, node

import opweave as ow

X = np.float32([[1, -2, 3]])
ORIGINAL = dict(vars(collection.InferenceSession))


def a_model(op_type: str = "Relu", x: str = "x") -> bytes:
    return model([node(op_type, x, "y")], {"x": "float32[n, 3]"}, {"y": "float32[n, 3]"}, opset=17).SerializeToString()


MODEL = a_model()


def on_opweave(session: Any) -> bool:
    assert session.run(None, {"x": X})[0].tolist() == np.maximum(X, 0).tolist()
    return isinstance(session, ow.InferenceSession)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    before = {name: vars(onnxruntime)[name] for name in ("get_available_providers", "get_device", "InferenceSession")}
    yield
    assert dict(vars(collection.InferenceSession)) == ORIGINAL
    assert {name: vars(onnxruntime)[name] for name in before} == before


# What is replaced ----------------------------------------------------------------------------------------------------


def test_replacing_all_import_paths() -> None:
    def ways() -> list[Any]:
        from onnxruntime import InferenceSession as ImportedWithin
        from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as Deep

        return [onnxruntime.InferenceSession, ImportedBefore, ImportedWithin, Deep, collection.InferenceSession]

    with ow.onnx.replacing_onnxruntime():
        for cls in ways():
            session = cls(MODEL, providers=["CPUExecutionProvider"])
            assert on_opweave(session)
            assert isinstance(session, onnxruntime.InferenceSession)
    assert not any(on_opweave(cls(MODEL)) for cls in ways())


def test_sessions_keep_engine_after_replacing() -> None:
    before = ImportedBefore(MODEL)
    with ow.onnx.replacing_onnxruntime():
        within = ImportedBefore(MODEL)
        assert not on_opweave(before)
        before.set_providers(["CPUExecutionProvider"])
        assert not on_opweave(before)
    assert on_opweave(within)


class Derived(ImportedBefore):  # type: ignore[misc]
    """A class of a library that was loaded before."""

    def __init__(self, model: bytes, factor: float, **options: Any) -> None:
        self.factor = factor
        super().__init__(model, **options)

    def run(self, names: Any, feed: Any, options: Any = None) -> Any:
        return [self.factor * result for result in super().run(names, feed, options)]


class Explicit(ImportedBefore):  # type: ignore[misc]
    """A class that calls its base by its name, and has slots."""

    __slots__ = ("model",)

    def __init__(self, model: bytes) -> None:
        self.model = model
        ImportedBefore.__init__(self, model)

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model"])  # type: ignore[misc]


def test_derived_classes_run_on_opweave() -> None:
    with ow.onnx.replacing_onnxruntime():

        class DerivedWithin(onnxruntime.InferenceSession):  # type: ignore[misc]
            pass

        first, second = Derived(MODEL, 2), Derived(MODEL, factor=3)
        assert type(first) is type(second)
        explicit, within = Explicit(MODEL), DerivedWithin(MODEL)
    for session, factor, cls in (
        (first, 2, Derived),
        (second, 3, Derived),
        (explicit, 1, Explicit),
        (within, 1, DerivedWithin),
    ):
        assert isinstance(session, (ow.InferenceSession, cls))
        assert isinstance(session, cls)
        assert type(session).__name__ == cls.__name__
        assert session.run(None, {"x": X})[0].tolist() == (factor * np.maximum(X, 0)).tolist()
    assert not isinstance(Derived(MODEL, 2), ow.InferenceSession)
    assert not isinstance(DerivedWithin(MODEL), ow.InferenceSession)


class Reduced(ImportedBefore):  # type: ignore[misc]
    """A class that says by `__reduce__` how it is pickled."""

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        self.model = model

    def __reduce__(self) -> Any:
        return type(self), (self.model,)


@pytest.mark.parametrize("cls", [Explicit, Reduced])
def test_derived_session_pickles_by_its_class(cls: Any) -> None:
    with ow.onnx.replacing_onnxruntime():
        session = cls(MODEL)
        data = pickle.dumps(session)
        assert on_opweave(pickle.loads(data))
    assert not on_opweave(pickle.loads(data))


def test_bindings_follow_their_session() -> None:
    def runs(session: Any) -> bool:
        binding = onnxruntime.IOBinding(session)
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == np.maximum(X, 0).tolist()
        assert isinstance(binding, onnxruntime.IOBinding)
        return type(binding).__module__.startswith("opweave")

    before = ImportedBefore(MODEL)
    with ow.onnx.replacing_onnxruntime():
        within = ImportedBefore(MODEL)
        assert runs(within)
        assert not runs(before)
        assert isinstance(within.io_binding(), onnxruntime.IOBinding)
    assert not runs(before)


def test_replacing_in_library_imported_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        import onnxruntime as ort
        from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions, get_available_providers
        from onnxruntime.capi import _pybind_state as C

        class Model:
            def __init__(self, model: bytes) -> None:
                options = SessionOptions()
                options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
                options.intra_op_num_threads = 1
                providers = [name for name in get_available_providers() if name in C.get_available_providers()]
                self.session: InferenceSession = ort.InferenceSession(model, sess_options=options, providers=providers)
                self.name = self.session.get_inputs()[0].name

            def __call__(self, x):
                return self.session.run(None, {self.name: x})[0]
    """
    (tmp_path / "a_library.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    with ow.onnx.replacing_onnxruntime(context=ow.ml.create_context(device="cpu")):
        import a_library  # type: ignore[import-not-found]

        model = a_library.Model(MODEL)
    assert isinstance(model.session, ow.InferenceSession)
    assert model(X).tolist() == np.maximum(X, 0).tolist()
    del sys.modules["a_library"]


# How long, and where -------------------------------------------------------------------------------------------------


def test_blocks_may_be_nested_and_end_with_errors() -> None:
    replacing = ow.onnx.replacing_onnxruntime()
    with replacing:
        with pytest.raises(ow.DataError), replacing, ow.onnx.replacing_onnxruntime():
            ImportedBefore(b"no model")
        assert on_opweave(ImportedBefore(MODEL))
    assert not on_opweave(ImportedBefore(MODEL))


def test_start_and_stop() -> None:
    replacing = ow.onnx.replacing_onnxruntime()
    replacing.start()
    replacing.start()
    replacing.stop()
    assert on_opweave(ImportedBefore(MODEL))
    replacing.stop()
    assert not on_opweave(ImportedBefore(MODEL))
    with pytest.raises(ow.ValidationError, match=r"stop\(\) without start\(\)"):
        replacing.stop()


def test_functions_are_decorated() -> None:
    @ow.onnx.replacing_onnxruntime()
    def made() -> Any:
        return ImportedBefore(MODEL)

    assert [on_opweave(made()), on_opweave(ImportedBefore(MODEL)), on_opweave(made())] == [True, False, True]


def test_threads_enter_and_leave_at_any_time() -> None:
    barrier = Barrier(8)

    def work(number: int) -> bool:
        barrier.wait()
        found = []
        for _ in range(number % 3 + 1):
            with ow.onnx.replacing_onnxruntime():
                found.append(on_opweave(onnxruntime.InferenceSession(MODEL)))
        return all(found)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert not on_opweave(ImportedBefore(MODEL))


def test_replacing_in_threads_started_within() -> None:
    with ow.onnx.replacing_onnxruntime(), ThreadPoolExecutor(1) as pool:
        assert on_opweave(pool.submit(ImportedBefore, MODEL).result())


def test_replacing_with_context() -> None:
    context, other = ow.ml.create_context(device="reference"), ow.ml.create_context(device="cpu")
    with ow.onnx.replacing_onnxruntime(context=context):
        assert ImportedBefore(MODEL, providers=["CPUExecutionProvider"]).context is context
        with ow.onnx.replacing_onnxruntime(context=other):
            assert ImportedBefore(MODEL).context is other
        assert ImportedBefore(MODEL).context is context
    with pytest.raises(ow.ValidationError, match="context must be an MLContext, got str"):
        ow.onnx.replacing_onnxruntime(context="cpu")  # type: ignore[arg-type]


def test_replacing_with_options_makes_one_context() -> None:
    replacing = ow.onnx.replacing_onnxruntime(device="reference", precision="ieee", threads=1)
    with replacing:
        sessions = [ImportedBefore(MODEL, providers=["CPUExecutionProvider"]), ImportedBefore(MODEL)]
    assert {session.context for session in sessions} == {replacing.context}
    assert (sessions[0].context.device.name, sessions[0].context.precision) == ("reference", "ieee")
    assert all(map(on_opweave, sessions))


def test_replacing_with_threads_is_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    create = type(ow.ml).create_context

    def create_context(self: Any, **options: Any) -> ow.MLContext:
        calls.append(options)
        return create(self, **options)

    monkeypatch.setattr(type(ow.ml), "create_context", create_context)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    with ow.onnx.replacing_onnxruntime(threads=1):
        assert calls == []
        assert on_opweave(ImportedBefore(MODEL, options, providers=["WebGpuExecutionProvider"]))
    assert calls == [{"device": "cpu", "threads": 1}]


def test_replacing_with_missing_device_fails_in_the_session() -> None:
    replacing = ow.onnx.replacing_onnxruntime(device="abacus")
    with replacing, pytest.raises(theirs.NotImplemented, match="there is no device 'abacus'; available: 'cpu'"):
        ImportedBefore(MODEL)


WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "device": ({"device": 3}, r"device must be a name of opweave\.devices\(\), got 3"),
    "no device": ({"device": ""}, "device must be a name of .*, got ''"),
    "precision": ({"precision": "half"}, "precision must be one of 'float32', .*'float16', got 'half'"),
    "list": ({"precision": ["ieee"]}, r"precision must be one of .*, got \['ieee'\]"),
    "no threads": ({"threads": 0}, "threads must be a positive integer or None, got 0"),
    "flag": ({"threads": True}, "threads must be a positive integer or None, got True"),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_replacing_rejects_wrong_options(name: str) -> None:
    options, message = WRONG_OPTIONS[name]
    with pytest.raises(ow.ValidationError, match=message):
        ow.onnx.replacing_onnxruntime(**options)


def test_replacing_rejects_context_with_options() -> None:
    context = ow.ml.create_context(device="reference")
    with pytest.raises(ow.ValidationError, match="context and device and threads must not be given together"):
        ow.onnx.replacing_onnxruntime(context=context, device="cpu", threads=1)


def test_replacing_without_providers_runs_on_cpu() -> None:
    with ow.onnx.replacing_onnxruntime():
        assert ImportedBefore(MODEL).context.device.name == "cpu"


def test_replacing_lists_providers_of_the_machine() -> None:
    gpus = [device for device in ow.devices() if device.available and device.kind == "gpu"]
    with ow.onnx.replacing_onnxruntime():
        for module in (onnxruntime, _pybind_state):
            wanted = ["WebGpuExecutionProvider"] * bool(gpus) + ["CPUExecutionProvider"]
            assert module.get_available_providers() == wanted
            assert module.get_device() == ("GPU" if gpus else "CPU")
    assert "AzureExecutionProvider" in onnxruntime.get_available_providers()


def test_replacing_rejects_unreadable_options() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(X)
    with ow.onnx.replacing_onnxruntime():
        options = onnxruntime.SessionOptions()
        options.add_initializer("w", value)
        with pytest.raises(
            ow.NotSupportedError, match=r"SessionOptions\.add_initializer cannot be read by Opweave: weights"
        ):
            ImportedBefore(MODEL, options)
        options = onnxruntime.SessionOptions()
        with pytest.raises(theirs.Fail):
            options.register_custom_ops_library("no_such_library.so")
        with pytest.raises(theirs.NotImplemented, match=r"declare operators by `ow\.register_onnx`"):
            ImportedBefore(MODEL, options)
        assert on_opweave(ImportedBefore(MODEL, onnxruntime.SessionOptions()))
    assert onnxruntime.SessionOptions.add_initializer.__doc__


def test_methods_of_options_are_as_before() -> None:
    before = dict(vars(onnxruntime.SessionOptions))
    with ow.onnx.replacing_onnxruntime():
        assert dict(vars(onnxruntime.SessionOptions)) != before
    assert dict(vars(onnxruntime.SessionOptions)) == before


# Opweave's own sessions ----------------------------------------------------------------------------------------------


def test_replacement_is_not_used_by_opweave(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnOpweave(ImportedBefore):  # type: ignore[misc]
        """A replacement by hand: it derives from the class, and calls Opweave."""

        def __init__(self, model: Any, *_: Any, **__: Any) -> None:
            self._inner = ow.InferenceSession(model)

        def run(self, names: Any, feed: Any, options: Any = None) -> Any:
            return self._inner.run(names, feed)

    monkeypatch.setattr(onnxruntime, "InferenceSession", OnOpweave)
    assert onnxruntime.InferenceSession(MODEL).run(None, {"x": X})[0].tolist() == np.maximum(X, 0).tolist()
    with ow.onnx.replacing_onnxruntime():
        shape, constants = {"x": "float32[n, 3]"}, {"p": np.float32(0), "t": np.bool_(True)}
        dropout = model([node("Dropout", "x p t", "y")], shape, {"y": "float32[n, 3]"}, constants, opset=17)
        session = ow.InferenceSession(dropout, specialise="always")
        assert session.run(None, {"x": X})[0].shape == X.shape
        assert "fallback" in session.explain()  # a session of ONNX Runtime runs that node


# Errors --------------------------------------------------------------------------------------------------------------


def a_session() -> Any:
    return onnxruntime.InferenceSession(MODEL)


FAILURES: dict[str, tuple[Callable[[Path], Any], type[Exception], type[Exception]]] = {
    "no such file": (lambda p: onnxruntime.InferenceSession(str(p / "no.onnx")), theirs.NoSuchFile, ow.DataError),
    "no model": (lambda p: onnxruntime.InferenceSession(b"abc"), theirs.InvalidProtobuf, ow.DataError),
    "no path": (lambda p: onnxruntime.InferenceSession(3), TypeError, ow.DataError),
    "unknown value": (lambda p: onnxruntime.InferenceSession(a_model(x="q")), Exception, ow.DataError),
    "no operator": (lambda p: onnxruntime.InferenceSession(a_model("Nope")).run(None, {"x": X}), Exception, ow.MLError),
    "missing input": (lambda p: a_session().run(None, {}), ValueError, ow.ValidationError),
    "unknown input": (lambda p: a_session().run(None, {"x": X, "q": X}), theirs.InvalidArgument, ow.ValidationError),
    "unknown output": (lambda p: a_session().run(["q"], {"x": X}), theirs.InvalidArgument, ow.ValidationError),
    "other type": (lambda p: a_session().run(None, {"x": X.astype("f8")}), theirs.InvalidArgument, ow.ValidationError),
    "other rank": (lambda p: a_session().run(None, {"x": X[0]}), theirs.InvalidArgument, ow.ValidationError),
    "other size": (lambda p: a_session().run(None, {"x": X[:, :2]}), theirs.InvalidArgument, ow.ValidationError),
    "no names": (lambda p: a_session().run("y", {"x": X}), TypeError, ow.ValidationError),
    "binding": (lambda p: a_session().io_binding().bind_cpu_input("q", X), RuntimeError, ow.ValidationError),
    "empty binding": (
        lambda p: (s := a_session()).run_with_iobinding(s.io_binding()),
        RuntimeError,
        ow.ValidationError,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_replacing_errors_are_caught_as_both(name: str, tmp_path: Path) -> None:
    fail, other, ours = FAILURES[name]
    with pytest.raises(other):
        fail(tmp_path)
    with ow.onnx.replacing_onnxruntime(), pytest.raises(other) as caught:
        fail(tmp_path)
    assert isinstance(caught.value, ours)
    assert type(caught.value).__name__ == ours.__name__ or ours is ow.MLError


def test_replaced_session_private_attributes() -> None:
    with ow.onnx.replacing_onnxruntime():
        session = a_session()
    with pytest.raises(AttributeError, match="private to ONNX Runtime, and this session runs on Opweave"):
        _ = session._sess
    assert not hasattr(session, "anything")


def test_loading_onnxruntime_is_left_to_the_first_use() -> None:
    import subprocess

    code = (
        "import sys, opweave as ow; ow.onnx.replacing_onnxruntime(threads=1); assert 'onnxruntime' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
