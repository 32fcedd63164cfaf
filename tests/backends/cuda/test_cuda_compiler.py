"""NVRTC, which compiles kernels without a GPU, and the cache of what it has compiled. Run by `make test-cuda`."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from support import cuda_on_cpu, wpt
from support.cuda_cases import compiled, token
from support.cuda_driver import CpuDriver, context_on

import opweave as ow
import opweave.expr as ex
from benchmarks.decode_step import Sizes
from opweave.backends.cuda import compiler, cuda, devices, fork_server, nvidia, nvrtc, servers, triton_program
from opweave.context.graph import program_of
from opweave.core.graph import Desc
from opweave.expr import ir, trace
from opweave.expr.gpu import GpuKernel, kernels
from opweave.expr.gpu.cuda import OPTIONS
from opweave.saved.container import Container
from opweave.support import disk_cache

pytestmark = pytest.mark.skipif(not devices.is_installed(), reason="needs the extra cuda: make test-cuda")

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SAMPLED = 8
"""One of so many distinct kernels is compiled in each run, for one architecture; all of them with `--all`."""


def made(function: object = ex.sin, shape: tuple[int, ...] = (64,)) -> list[GpuKernel]:
    return kernels(trace(function, "sample", [Desc("float32", shape)]), cuda_on_cpu.FEATURES)  # type: ignore[arg-type]


def test_kernels_of_the_conformance_cases_compile(request: pytest.FixtureRequest, cache_folder: Path) -> None:
    whole = request.config.option.all
    found = {kernel.source: kernel for case in wpt.cases("conformance") for kernel in cases(case)}
    chosen = [found[source] for source in sorted(found)][:: 1 if whole else SAMPLED]
    assert len(chosen) > 100
    for architecture in ARCHITECTURES if whole else ("sm_90",):
        binaries = compiler.binaries(chosen, architecture)
        assert all(binary.image.startswith(b"\x7fELF") for binary in binaries)


def cases(case: wpt.Case) -> Sequence[GpuKernel]:
    return compiled(case, cuda_on_cpu.FEATURES).kernels


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_of_a_token_compile(architecture: str, cache_folder: Path) -> None:
    sizes = Sizes(layers=2, hidden=1024, heads=16, groups=4, size=64, inner=2048, past=1023)
    kernels = token(sizes, cuda_on_cpu.FEATURES).kernels
    assert any(" prefetch(" in kernel.source.partition("opweave_kernel(")[2] for kernel in kernels)
    assert all(binary.image.startswith(b"\x7fELF") for binary in compiler.binaries(kernels, architecture))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: str, cache_folder: Path) -> None:
    (binary,) = compiler.binaries(made(), architecture)
    assert binary.image.startswith(b"\x7fELF")


def test_compiled_kernels_are_cached(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler.binaries([*made(), *made()], "sm_90")
    assert first[0] == first[1]
    assert [(entry.kind, entry.path.suffix) for entry in disk_cache.entries()] == [("compiled kernel", ".cubin")]
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "result", lambda request: {"image": b"never"})
        assert compiler.binaries(made(), "sm_90") == first[:1]
        assert compiler.binaries(made(), "sm_80") == [replace(first[0], image=b"never")]  # another architecture
    assert len(disk_cache.clear()) == 2
    assert disk_cache.entries() == []


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_early_kernel_buffers_are_restricted_without_early_start(architecture: str, cache_folder: Path) -> None:
    (kernel,) = made()
    assert kernel.starts_early
    word = "* RESTRICT_UNLESS_EARLY "
    assert kernel.source.count(word) == 2
    others = [replace(kernel, source=kernel.source.replace(word, by)) for by in ("* __restrict__ ", "* ")]
    found, restricted, plain = compiler.binaries([kernel, *others], architecture)
    assert restricted != plain
    assert found == (plain if devices.has_early_starts(architecture) else restricted)


needs_fork = pytest.mark.skipif(not fork_server.IS_POSSIBLE, reason="processes cannot be forked here")


class Blocking:
    """A compiler in this process that compiles nothing until it is told to."""

    def __init__(self) -> None:
        self.asked, self.begun, self.event = 0, threading.Event(), threading.Event()

    def __call__(self, request: Any) -> compiler.Result:
        self.asked += 1
        self.begun.set()
        assert self.event.wait(60)
        return nvrtc.result(request)


@pytest.fixture
def blocking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocking]:
    made = Blocking()
    monkeypatch.setitem(compiler.COMPILERS, "", replace(compiler.COMPILERS[""], in_process=made))
    monkeypatch.setattr(compiler, "_jobs", compiler._Jobs())
    monkeypatch.setattr(compiler, "processors", lambda: 3)
    yield made
    made.event.set()


@needs_fork
def test_processes_compile_while_this_one_does(cache_folder: Path, blocking: Blocking) -> None:
    many = [kernel for size in range(3) for kernel in made(shape=(64 + size, 3))]
    (first,) = compiler.begin(many[:1], "sm_90")
    assert blocking.begun.wait(60)
    others = compiler.begin(many[1:], "sm_90")
    binaries = [job.result(60) for job in others]
    assert not first.done()
    blocking.event.set()
    assert blocking.asked == 1
    images = [nvrtc.compile_source(kernel.source, ("--gpu-architecture=sm_90", *OPTIONS))[0] for kernel in many]
    assert [binary.image for binary in [first.result(60), *binaries]] == images


def test_nvrtc_log_without_messages_changes_no_constant() -> None:
    """NVRTC writes into a bytes object, and Python has one object for all texts of the same single byte."""
    source = 'extern "C" __global__ void f(float* x) { x[0] = 1; }'
    assert nvrtc.compile_source(source, ("--gpu-architecture=sm_90",))[1] == ""
    assert list(b" " * 1) == [32]


@needs_fork
def test_kernel_in_compilation_is_shared(cache_folder: Path, blocking: Blocking) -> None:
    (one,) = compiler.begin(made(), "sm_90")
    (other,) = compiler.begin(made(), "sm_90")
    assert one is other
    blocking.event.set()
    again = compiler.binaries(made(), "sm_90")
    assert [one.result()] == again
    assert blocking.asked == 1


@pytest.fixture
def one_at_a_time(blocking: Blocking, monkeypatch: pytest.MonkeyPatch) -> Blocking:
    monkeypatch.setattr(compiler, "MAX_PROCESSES", 1)
    return blocking


@needs_fork
def test_interrupt_does_not_wait_for_queue(
    cache_folder: Path, one_at_a_time: Blocking, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [kernel for size in range(4) for kernel in made(shape=(64 + size, 3))]
    jobs = compiler.begin(many, "sm_90")
    assert one_at_a_time.begun.wait(60)
    other_waits = threading.Event()

    class Interrupted(SimpleQueue[Any]):
        def get(self, *given: Any, **options: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            other_waits.set()
            return super().get(*given, **options)

    monkeypatch.setattr(compiler, "SimpleQueue", Interrupted)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(compiler.binaries, many, "sm_90")  # in another thread, which nobody interrupts
        assert other_waits.wait(60)
        ending = threading.Timer(60, one_at_a_time.event.set)  # if the interrupt does wait
        ending.start()
        with pytest.raises(KeyboardInterrupt), compiler.stop_on_interrupt():
            compiler.binaries(many, "sm_90")
        assert [job.cancelled() for job in jobs] == [False, True, True, True]
        assert compiler.begin(many[:1], "sm_90") == jobs[:1]  # what is being compiled is not compiled again
        ending.cancel()
        one_at_a_time.event.set()
        assert all(binary.image.startswith(b"\x7fELF") for binary in other.result(60))


@pytest.mark.parametrize("method", ["upload", "functions"])
def test_interrupt_during_build_ends_it(
    cache_folder: Path, one_at_a_time: Blocking, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    jobs: list[Any] = []

    class Driver(CpuDriver):
        def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
            jobs.extend(compiler.begin(kernels, "sm_90"))
            return []

    def interrupted(*_: Any) -> None:
        assert one_at_a_time.begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(Driver, method, interrupted)
    builder = ow.MLGraphBuilder(context_on(Driver()))
    x = builder.add(builder.input("x", "float32", [40, 50]), builder.constant(np.ones((40, 50), np.float32)))
    sums = {f"y{axis}": builder.reduce_sum(x, axes=[axis]) for axis in range(2)}
    with pytest.raises(KeyboardInterrupt):
        builder.build(sums)
    assert len(jobs) > 1
    assert [job.cancelled() for job in jobs] == [False, *(True for _ in jobs[1:])]
    one_at_a_time.event.set()
    assert jobs[0].result(60)  # which is compiled before the test ends


@pytest.mark.parametrize("error", [KeyboardInterrupt, ow.OperationError("no memory")])
@pytest.mark.parametrize("is_model", [False, True])
def test_kernels_of_a_part_are_abandoned_if_another_one_fails(
    cache_folder: Path, one_at_a_time: Blocking, monkeypatch: pytest.MonkeyPatch, is_model: bool, error: Any
) -> None:
    jobs: list[Any] = []

    class Driver(CpuDriver):
        def begin(self, kernels: Sequence[GpuKernel]) -> list[Any]:
            begun = compiler.begin(kernels, "sm_90")
            jobs.extend(job for job in begun if job not in jobs)
            return begun

    def failing(*_: Any) -> None:
        assert one_at_a_time.begun.wait(60)
        raise error

    context = context_on(Driver())
    if is_model:
        parser = pytest.importorskip("onnx.parser", reason="onnx is not installed")
        monkeypatch.setattr("opweave.onnx.session.compiled.CompiledModel._compile_fallback", failing)
        # Dropout in training mode has no form on a device.
        text = """<ir_version: 8, opset_import: ["": 17]> g (float[2, 3, 3] x) => (float[2, 3, 3] y)
            <bool training = {1}, float ratio = {0.0}> {
            s = Softmax<axis=1>(x) t = Softmax<axis=0>(s) y = Dropout(t, ratio, training)
        }"""
        with pytest.raises(ow.OperationError if isinstance(error, Exception) else error):
            ow.InferenceSession(parser.parse_model(text), context=context)
    else:

        @ow.op
        def copied(self: Any, x: ow.MLOperand) -> Any:
            return x.desc

        copied.kernel("cpu")(lambda x, out: np.copyto(out, x))
        monkeypatch.setattr("opweave.compile.driver._prepare_kernel", failing)
        builder = ow.MLGraphBuilder(context)
        x = builder.input("x", "float32", [40, 50])
        with pytest.raises(ow.OperationError if isinstance(error, Exception) else error):
            builder.build({"y": copied(builder.softmax(builder.softmax(x, axis=1), axis=0))})
    assert len(jobs) > 1
    assert [job.cancelled() for job in jobs] == [False, *(True for _ in jobs[1:])]
    one_at_a_time.event.set()
    assert jobs[0].result(60)  # which is compiled before the test ends


PROGRAM = """
import os
import signal
import sys
import time

def prepare():
    time.sleep(0.1)
    print("a warning", file=sys.stderr)
    if os.environ.get("OPWEAVE_TEST") == "broken":
        raise ImportError("no compiler")

def result(request):
    if request == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if request == "raise":
        raise KeyError("surprise")
    if request == "niceness":
        return os.nice(0)
    return request, os.getpid(), os.getppid()
"""


@pytest.fixture
def server(tmp_path: Path) -> fork_server.ForkServer:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return fork_server.ForkServer(str(file))


@needs_fork
def test_fork_server_forks_for_each_kernel(server: fork_server.ForkServer) -> None:
    requests = [b"x" * 2**20, b"", *range(6)]
    with ThreadPoolExecutor(4) as pool:
        answers, pids, parents = zip(*pool.map(server.result, requests), strict=True)
    assert list(answers) == requests
    assert len(set(pids)) == len(pids)
    assert len(set(parents)) == 1


@needs_fork
def test_niceness_is_that_of_one_process(server: fork_server.ForkServer) -> None:
    before = os.nice(0)
    assert [server.result("niceness", more) - before for more in (0, 3, 0)] == [0, 3, 0]


@needs_fork
@pytest.mark.parametrize(
    ("request_", "reason"),
    [("crash", "^it crashed, or was killed; is there enough memory\\?$"), ("raise", "^KeyError: 'surprise'$")],
    ids=["crash", "raise"],
)
def test_fork_server_survives_crashed_child(server: fork_server.ForkServer, request_: str, reason: str) -> None:
    _, _, parent = server.result(1)
    with pytest.raises(fork_server.EndedError, match=reason):
        server.result(request_)
    assert server.result(1)[2] == parent


@needs_fork
def test_fork_server_restarts(server: fork_server.ForkServer) -> None:
    _, _, parent = server.result(1)
    os.kill(parent, signal.SIGTERM)
    assert server.result(1)[2] != parent


@needs_fork
def test_fork_server_restart_is_shared_by_threads(server: fork_server.ForkServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            _, _, parent = server.result(0)
            os.kill(parent, signal.SIGSTOP)
            jobs = [pool.submit(server.result, number) for number in range(8)]
            time.sleep(0.1)  # all have asked
            os.kill(parent, signal.SIGKILL)
            assert [job.result(60)[0] for job in jobs] == list(range(8))
            assert parent not in {job.result()[2] for job in jobs}


@needs_fork
def test_fork_server_failure_is_shared_by_threads(
    server: fork_server.ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWEAVE_TEST", "broken")
    with ThreadPoolExecutor(8) as pool:
        errors = [job.exception(60) for job in [pool.submit(server.result, number) for number in range(8)]]
    assert [str(error) for error in errors] == ["ImportError: no compiler"] * 8


@needs_fork
@pytest.mark.parametrize("request_", [1, "raise"])
def test_fork_server_answer_with_inherited_socket(
    server: fork_server.ForkServer, monkeypatch: pytest.MonkeyPatch, request_: object
) -> None:
    copies = []
    send = fork_server._Running.send

    def copying(running: fork_server._Running, job: socket.socket) -> None:
        copies.append(job.dup())  # as a process has that is forked now
        send(running, job)

    monkeypatch.setattr(fork_server._Running, "send", copying)
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(server.result(request_)[0])
        except fork_server.EndedError as error:
            answers.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(20)
    for copied in copies:
        copied.close()
    assert answers == [1 if request_ == 1 else "KeyError: 'surprise'"]


@needs_fork
def test_fork_server_without_compiler(
    server: fork_server.ForkServer, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPWEAVE_TEST", "broken")
    with pytest.raises(fork_server.EndedError, match="ImportError: no compiler"):
        server.result(1)
    broken = replace(compiler.COMPILERS[""], in_process=None, server=server)
    with monkeypatch.context() as patched:
        patched.setitem(compiler.COMPILERS, "", broken)
        jobs = compiler.begin(made(), "sm_90")  # which are held, as those of another build
        with pytest.raises(ow.OperationError, match="the process that compiles it ended: ImportError: no compiler"):
            compiler.binaries(made(), "sm_90")
    assert len(compiler.binaries(made(), "sm_90")) == len(jobs)


@needs_fork
def test_compilers_load_while_the_driver_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    control = tmp_path / "nvidiactl"
    monkeypatch.setattr(devices, "CONTROL", control)

    def trouble() -> str:
        order.append("driver")
        return "no device"

    monkeypatch.setattr(devices, "trouble", trouble)
    for server in (servers.NVRTC, servers.TRITON):
        name = Path(server._file).stem
        monkeypatch.setattr(server, "start", lambda name=name: order.append(name))
    compilers = ["triton_program", "nvrtc"] if servers.triton_version() else ["nvrtc"]
    for is_there, names in ((False, []), (True, compilers)):
        if is_there:
            control.touch()
        for device in ("cuda", "cuda:1"):
            order.clear()
            assert cuda.device_named(device) is None
            assert order == [*names, "driver"]
    order.clear()
    assert cuda.device_named("cpu") is None
    assert order == ["driver"]


@needs_fork
def test_servers_end_with_the_process(server: fork_server.ForkServer) -> None:
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from opweave.backends.cuda.fork_server import ForkServer
server = ForkServer({server._file!r})
print(server.result(1)[2], flush=True)
"""
    for end in ("", "import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"):
        done = subprocess.run([sys.executable, "-c", program + end], capture_output=True, text=True, check=False)
        assert not done.stderr
        assert _ends(int(done.stdout)), end


@needs_fork
def test_fork_server_after_fork(cache_folder: Path) -> None:
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from opweave.backends.cuda import compiler
server = compiler.COMPILERS[""].server
source = "extern \\"C\\" __global__ void f(float* x) {{ x[0] = NUMBER; }}"
request = lambda number: (source.replace("NUMBER", str(number)), ("--gpu-architecture=sm_90",))
server.start()
first = server._running.process.pid
pid = os.fork()
assert server.result(request(os.getpid()))["image"]
assert (server._running.process.pid == first) is (pid != 0)
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert server.result(request(1))["image"]
    assert server._running.process.pid == first
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_fork
def test_compile_after_fork_during_compilation(cache_folder: Path) -> None:
    program = f"""
import os, sys, threading
sys.path[:0] = {sys.path!r}
from opweave.backends.cuda import compiler
from opweave.expr.gpu import GpuKernel
kernel = GpuKernel("f", 'extern "C" __global__ void f(float* x) {{ x[0] = 1; }}', (), (), (1, 1, 1), "f")
entered, end = threading.Event(), threading.Event()
def here(request):
    entered.set()
    end.wait()  # in NVRTC, which holds a lock of its own
compiler.nvrtc.result = here
thread = threading.Thread(target=compiler.COMPILERS[""].result, args=(kernel, "sm_90"))
thread.start()
entered.wait()
pid = os.fork()
for known in ("", "cuda"):
    assert compiler.COMPILERS[known].result(kernel, "sm_90")["image"]
end.set()
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    # From 3.12 on Python warns of a fork while threads run, which is what happens here.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def _ends(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text():
            return True  # its parent has not noticed yet
        time.sleep(0.1)
    return False


def test_kernel_compile_error(cache_folder: Path) -> None:
    (kernel,) = made()
    wrong = replace(kernel, title="sin 's'", source=kernel.source.replace("let flat =", "let flat = undeclared +"))
    with pytest.raises(ow.OperationError) as caught:
        compiler.binaries([wrong], "sm_90")
    number = wrong.source.splitlines().index("    let flat = undeclared + global.x;") + 1
    assert str(caught.value) == (
        f"sin 's': line {number}: identifier \"undeclared\" is undefined: let flat = undeclared + global.x;"
    )
    assert disk_cache.entries() == []


def test_compile_rejects_unknown_architecture(cache_folder: Path) -> None:
    with pytest.raises(ow.OperationError, match="NVRTC_ERROR_INVALID_OPTION"):
        compiler.binaries(made(), "sm_1")


# ---------------------------------------------------------------------------------------------------------------------
# Triton

TRITON = """
import triton
import triton.language as tl

TYPES = {"x": "fp32", "y": "fp32"}


@triton.jit
def opweave_kernel(x, y):
    line, column = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    matrix = tl.load(x + line * 64 + column)
    tl.store(y + line * 64 + column, tl.dot(matrix, matrix, input_precision="tf32x3"))
"""

needs_triton = pytest.mark.skipif(not compiler.triton_version(), reason="needs triton: make test-cuda")


def product(source: str = TRITON, max_shared: int = 99 << 10) -> GpuKernel:
    buffers = tuple(ir.Input(k, Desc("float32", (64, 64))) for k in range(2))
    options = (("max_shared", max_shared), ("num_stages", 3), ("num_warps", 4))
    return GpuKernel(
        "a product",
        source,
        buffers,
        (False, True),
        (1, 1, 1),
        "opweave_kernel",
        invocations=(128,),
        compiler="triton",
        options=options,
    )


@needs_triton
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_triton(architecture: str, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = "triton" in sys.modules  # by another test
    (first, _) = compiler.binaries([product(), *made()], architecture)
    assert first.image.startswith(b"\x7fELF")
    assert b"debug_line" not in first.image
    assert (first.entry_point, first.invocations, first.trailing) == ("opweave_kernel", (128, 1, 1), 2)
    assert 0 < first.shared <= 99 << 10
    assert ("triton" in sys.modules) == imported
    monkeypatch.setattr(fork_server.ForkServer, "result", None)
    assert compiler.binaries([product()], architecture) == [first]


@needs_triton
def test_triton_compile_errors(cache_folder: Path) -> None:
    with pytest.raises(ow.OperationError, match=r"(?s)a product: CompilationError: .*undeclared is not defined"):
        compiler.binaries([product(TRITON.replace("line * 64", "undeclared * 64"))], "sm_90")
    with pytest.raises(ow.OperationError, match=r"a product: ValueError: \d+ bytes of shared memory, 64 are allowed"):
        compiler.binaries([product(max_shared=64)], "sm_90")
    assert disk_cache.entries() == []


def test_arguments_as_the_driver_takes_them() -> None:
    values, pointers = nvidia._arguments([0x1234, np.float32(1.5).tobytes(), b"0123456789abcdef", 2**63])
    address, count = values.buffer_info()
    assert address <= pointers[0] <= pointers[-1] <= address + count - 16
    assert not any(pointer % 16 for pointer in pointers)
    read = [
        bytes((ctypes.c_char * size).from_address(int(at))) for at, size in zip(pointers, (8, 4, 16, 8), strict=True)
    ]
    assert read == [
        (0x1234).to_bytes(8, sys.byteorder),
        np.float32(1.5).tobytes(),
        b"0123456789abcdef",
        (2**63).to_bytes(8, sys.byteorder),
    ]


@needs_triton
def test_patched_triton_names_exist() -> None:
    """Triton does not document these names. Without them, kernels compile as well, but take longer."""
    program = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("program", {triton_program.__file__!r})
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
from triton.backends.nvidia import compiler as nvidia
from triton.compiler import compiler
from triton import knobs
key, optimize = compiler.get_cache_key, nvidia.llvm.optimize_module
assert all(hasattr(knobs.nvidia, name) for name in ("ptxas", "ptxas_blackwell"))
program.prepare()
assert compiler.get_cache_key is not key
assert compiler.get_cache_key(1, name=2) != compiler.get_cache_key(1, name=2)
loaded = set(sys.modules)
for architecture in (100, 90):
    options = dict(architecture=architecture, arguments=2, max_shared=99 << 10, num_warps=4, num_stages=3, starts_early=False)
    assert program.result(({TRITON!r}, options))["image"][:4] == bytes([127]) + b"ELF"
    assert (nvidia.llvm.optimize_module is optimize) == (architecture == 100)
late = sorted(name for name in set(sys.modules) - loaded if name.startswith("triton."))
assert not late, late  # which each kernel would load again
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_fork
def test_quick_kernels_yield_to_slow_ones(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[bool, int]] = []
    end = threading.Event()

    def result(server: fork_server.ForkServer, request: Any, niceness: int = 0) -> dict[str, bytes]:
        is_slow = server is servers.TRITON
        given.append((is_slow, niceness))
        assert not is_slow or end.wait(60)
        return {"image": b"a binary"}

    monkeypatch.setattr(fork_server.ForkServer, "result", result)
    monkeypatch.setitem(compiler.COMPILERS, "", replace(compiler.COMPILERS[""], in_process=None))
    monkeypatch.setattr(compiler, "_jobs", compiler._Jobs())
    one, other = made(), made(shape=(65,))
    slow, *quick = compiler.begin([*one, product()], "sm_90")
    for job in quick:
        job.result(60)
    end.set()
    slow.result(60)
    compiler.binaries(other, "sm_90")
    assert sorted(given) == [(False, 0), (False, compiler.YIELDING), (True, 0)]


def test_saved_graphs_have_their_kernels(cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that loads the file compiles none of them."""
    cuda_on_cpu.compiler()
    context = context_on(CpuDriver())
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [4, 40])
    graph = builder.build({"y": builder.softmax(x.sin() * 2, 1), "z": builder.reduce_sum(x)})
    runner: Any = program_of(graph).steps[0].part
    launched = list(dict.fromkeys(step.kernel for step in runner.runner.steps))
    binaries = compiler.binaries(launched, "sm_90")
    path = tmp_path / "graph.opweave"
    graph.save(path)
    names = [name for name in Container.open(path).names if name.endswith(".cubin")]
    assert len(names) == len({kernel.source for kernel in launched})
    disk_cache.clear()
    compiler.stop()
    monkeypatch.setitem(
        compiler.COMPILERS, "", replace(compiler.COMPILERS[""], in_process=lambda request: pytest.fail("it compiles"))
    )
    loaded = context.load(path)
    assert compiler.binaries(launched, "sm_90") == binaries
    assert disk_cache.entries() == []  # what is compiled, here or by a server, would be kept
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 40)).astype("float32")}
    for name, array in context.compute(graph, feeds).items():
        np.testing.assert_array_equal(array, context.compute(loaded, feeds)[name])
    assert f"with {len(names)} of {len(names)} compiled parts" in loaded.explain()
