"""The dialect of NVIDIA's GPUs: CUDA C++, for NVRTC.

Differences from WGSL:
- `select` evaluates only the value that it returns, and reads out of bounds are errors;
- buffers have elements of 8 and 16 bits, so nothing is packed; float16 becomes float32 when loaded, and back when stored;
- int64 always exists; functions make signed integers wrap around, because C++ leaves overflow undefined;
- division is exact, so quotients need no scaling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib.resources import files
from types import MappingProxyType

from .dialect import Dialect, DialectFunction, DialectSource, Variable, statements

OPTIONS = ("--device-as-default-execution-space", "--std=c++17", "--fmad=false", "--minimal")
"""Options of NVRTC that kernels need. Products and sums are fused only where a kernel says `fma`, so that library functions
have the same results as on other devices. Kernels compile faster without textures and the device's runtime."""

USER_OPTIONS = ("--device-as-default-execution-space", "--std=c++17")
"""Options of NVRTC for kernels that users write in CUDA C++."""

PRELUDE: str = files(__package__).joinpath("prelude.cu").read_text("utf-8")
"""Declarations that precede each kernel."""

MIN_RESIDENT = 1024
"""Minimum number of resident invocations of large workgroups on a multiprocessor: it limits each to 64 registers. Otherwise,
workgroups of 512 that multiply a few vectors (GEMV) take 74 registers, so only one is resident."""

_IDS = {
    "global": (
        "vec3<u32>",
        "(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, "
        "blockIdx.z * blockDim.z + threadIdx.z)",
    ),
    "group": ("vec3<u32>", "(blockIdx.x, blockIdx.y, blockIdx.z)"),
    "local": ("vec3<u32>", "(threadIdx.x, threadIdx.y, threadIdx.z)"),
    "lane": ("u32", "((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x)"),
}

_SIGNED = """
inline {T} natural_power_{T}({T} a, {T} b) {{
    {U} result = 1, square = {U}(a);
    for ({U} rest = {U}(b); rest != 0; rest >>= 1) {{
        result = (rest & 1) ? result * square : result;
        square *= square;
    }}
    return {T}(result);
}}

// Toward zero; the lowest number divided by -1 is itself.
inline {T} div_{T}({T} a, {T} b) {{
    return b == 0 ? 0 : b == -1 ? wrapped_sub({T}(0), a) : a / b;
}}

inline {T} abs_{T}({T} a) {{
    return a < 0 ? wrapped_sub({T}(0), a) : a;
}}
"""

_PRODUCTS_OF_BYTES = """
inline vec4<i32> products_of_bytes(u32 a, vec4<u32> b) {
    return vec4<i32>(__dp4a(i32(a), i32(b.x), 0), __dp4a(i32(a), i32(b.y), 0), __dp4a(i32(a), i32(b.z), 0),
                     __dp4a(i32(a), i32(b.w), 0));
}
"""

_EXTREME = """
inline f32 {name}_f32(f32 a, f32 b) {{
#if __CUDA_ARCH__ >= 800
    f32 x;
    asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
#else
    return is_nan(a) ? a : is_nan(b) ? b : {name}(a, b);
#endif
}}
"""
"""Chips since sm_80 have instructions whose result is NaN if an operand is."""


def _overrides() -> Iterator[tuple[str, str]]:
    for name in ("max", "min"):
        yield f"{name}_f32", _EXTREME.format(name=name).strip()
    yield "kept", "inline f32 kept(f32 x) {\n    return x;\n}"
    yield "div_f32", "inline f32 div_f32(f32 a, f32 b) {\n    return a / b;\n}"
    # CUDA's function is within 1 ULP, and has half the instructions of the common one; exp dominates a selective scan.
    yield "exp_f32", "inline f32 exp_f32(f32 x) {\n    return ::expf(x);\n}"
    yield "products_of_bytes", _PRODUCTS_OF_BYTES.strip()
    yield "rounded_to_half", "inline f32 rounded_to_half(f32 x) {\n    return f32(f16(x));\n}"
    for signed, unsigned in (("i32", "u32"), ("i64", "u64")):
        texts = _SIGNED.format(T=signed, U=unsigned).strip().split("\n\n")
        yield from zip((f"natural_power_{signed}", f"div_{signed}", f"abs_{signed}"), texts, strict=True)


class Cuda(Dialect):
    name = "cuda"
    entry_point = "opweave_kernel"
    suffixes = MappingProxyType({"f32": "f", "i32": "", "u32": "u", "i64": "ll", "u64": "ull"})
    has_bytes = True
    wraps = False
    is_lazy = True
    casts_halves = True
    multiplies = True
    unrolling = "#pragma unroll {}"
    warp = 32
    kept = 8
    await_previous = "await_previous"
    prefetch = "prefetch"
    overrides = MappingProxyType(dict(_overrides()))

    def four(self, place: str, element: str) -> str:
        # The largest load has 16 bytes, and so has the alignment of arrays.
        return "" if element in ("i64", "u64") else f"*(const vec4<{element}>*)&{place}"

    def in_register(self, number: str) -> str:
        return f"in_register({number})"

    def carried(self, value: str) -> str:
        return f"carried({value})"

    def wide(self, index: str) -> str:
        return f"u64({index})"

    def library_function(self, comments: Sequence[str], function: DialectFunction) -> str:
        head = f"inline {function.result or 'void'} {function.name}({_parameters(function)}) {{"
        return "\n".join([*comments, head]) + f"\n{statements(function.lines)}}}"

    def library_constant(self, text: str, constant: Variable) -> str:
        """A constant of the library; arrays are in constant memory."""
        if not constant.type.startswith("array<"):
            return f"constexpr {constant.type} {constant.name} = {constant.value};"
        values = constant.value.removeprefix(f"{constant.type}(").removesuffix(")")
        return f"__constant__ const {constant.type} {constant.name} = {{{{{values}}}}};"

    def module(self, source: DialectSource, words: Collection[str]) -> str:
        """The complete text of a module: functions are lambdas inside of the kernel, so that they capture its buffers."""
        entry = source.entry
        restrict = "RESTRICT_UNLESS_EARLY" if source.starts_early else "__restrict__"
        parameters = [f"{'' if b.writes else 'const '}{b.element}* {restrict} {b.name}" for b in source.bindings]
        if source.sizes:
            parameters.append("const Sizes sizes")
        lines = [f"const {_IDS[name][0]} {name}{_IDS[name][1]};" for name in entry.ids]
        if source.starts_early and self.await_previous not in words:
            lines.append(f"{self.await_previous}();")
        shared = [*source.shared, *(part for part in source.parts if isinstance(part, Variable))]
        lines += [f"__shared__ {variable.type} {variable.name};" for variable in shared]
        for part in source.parts:
            if isinstance(part, DialectFunction):
                head = f"const auto {part.name} = [&]({_parameters(part)}) -> {part.result or 'void'} {{"
                lines += [head, *statements(part.lines).splitlines(), "};"]
        constants = [f"constexpr {c.type} {c.name} = {c.value};" for c in source.constants]
        head = f'extern "C" __global__ void {_bounds(entry.invocations)} {self.entry_point}({", ".join(parameters)}) {{'
        kernel = f"{head}\n{statements([*lines, *entry.lines])}}}"
        sizes = _sizes(source.sizes, source.divisors) if source.sizes else ""
        declared = [*source.library, "\n".join(constants), sizes, kernel]
        comments = [_comment(line) for line in source.comments]
        return "\n".join([*comments, PRELUDE, *(f"{text}\n" for text in declared if text), "}  // namespace opweave\n"])


DIVISOR = """
// A positive number by which numbers below 2**31 are divided: n / value == n * multiplier >> shift.
struct Divisor { u32 value, multiplier, shift; };
inline u32 operator/(u32 n, Divisor d) { return u32(u64(n) * d.multiplier >> d.shift); }
inline u32 operator%(u32 n, Divisor d) { return n - n / d * d.value; }
""".lstrip()
"""Division of integers takes about 20 instructions."""


def _sizes(sizes: Sequence[str], divisors: Sequence[str]) -> str:
    members = f"i32 {', '.join(sizes)};"
    if not divisors:
        return f"struct Sizes {{ {members} }};"
    return f"{DIVISOR}\nstruct Sizes {{ {members} Divisor {', '.join(divisors)}; }};"


def _bounds(invocations: int) -> str:
    """The launch bounds: the size of a workgroup, and the minimum number of resident workgroups if they are large."""
    is_large = 256 < invocations < MIN_RESIDENT
    return f"__launch_bounds__({invocations}{f', {MIN_RESIDENT // invocations}' if is_large else ''})"


def _parameters(function: DialectFunction) -> str:
    return ", ".join(f"{parameter.type} {parameter.name}" for parameter in function.parameters)


def _comment(line: str) -> str:
    """Replace backslashes in a comment: in C++, a backslash at the end continues the comment."""
    return line.replace("\\", "/")


CUDA = Cuda()
