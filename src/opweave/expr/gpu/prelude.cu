// The types, functions and words of WGSL that kernels use, in CUDA C++. Compiled with device code as the default.

#define let const auto
#define var auto
#define loop while (true)
// Lazy, unlike in WGSL: kernels use it to guard reads out of bounds, which WebGPU makes harmless.
#define select(no, yes, condition) ((condition) ? (yes) : (no))

namespace opweave {

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;

template <class T, class S> inline T bitcast(S from) {
    static_assert(sizeof(T) == sizeof(S), "bitcast between types of different sizes");
    T to;
    memcpy(&to, &from, sizeof(T));
    return to;
}

// float16 in memory; arithmetic is float32.
struct f16 {
    u16 bits;
    f16() = default;
#ifdef __CUDA_ARCH__
    explicit f16(f32 x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
    explicit operator f32() const {
        f32 x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
#else
    explicit f16(f32 x) : bits(bitcast<u16>((_Float16)x)) {}
    explicit operator f32() const { return (f32)bitcast<_Float16>(bits); }
#endif
};

template <class T, int N> struct array {
    T at[N];
    T& operator[](u32 i) { return at[i]; }
    const T& operator[](u32 i) const { return at[i]; }
};

template <class T> struct vec2 {
    T x, y;
    vec2() = default;
    vec2(T x, T y) : x(x), y(y) {}
};

template <class T> struct vec3 {
    T x, y, z;
    vec3() = default;
    vec3(T x, T y, T z) : x(x), y(y), z(z) {}
};

template <class T> struct alignas(4 * sizeof(T)) vec4 {
    T x, y, z, w;
    vec4() = default;
    vec4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
    explicit vec4(T x) : x(x), y(x), z(x), w(x) {}
    template <class S> explicit vec4(vec4<S> v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
    T& operator[](u32 i) { return (&x)[i]; }
    vec4& operator+=(vec4 v) {
        x += v.x, y += v.y, z += v.z, w += v.w;
        return *this;
    }
    vec4 operator+(vec4 v) const { return vec4(x + v.x, y + v.y, z + v.z, w + v.w); }
};

inline f32 min(f32 a, f32 b) { return ::fminf(a, b); }
inline f32 max(f32 a, f32 b) { return ::fmaxf(a, b); }
inline i32 min(i32 a, i32 b) { return a < b ? a : b; }
inline i32 max(i32 a, i32 b) { return a > b ? a : b; }
inline u32 min(u32 a, u32 b) { return a < b ? a : b; }
inline u32 max(u32 a, u32 b) { return a > b ? a : b; }
inline i64 min(i64 a, i64 b) { return a < b ? a : b; }
inline i64 max(i64 a, i64 b) { return a > b ? a : b; }
inline u64 min(u64 a, u64 b) { return a < b ? a : b; }
inline u64 max(u64 a, u64 b) { return a > b ? a : b; }
template <class T> inline T clamp(T x, T low, T high) { return min(max(x, low), high); }
inline f32 abs(f32 x) { return ::fabsf(x); }
inline i32 abs(i32 x) { return x < 0 ? -x : x; }
inline u32 abs(u32 x) { return x; }
inline u64 abs(u64 x) { return x; }
inline f32 floor(f32 x) { return ::floorf(x); }
inline f32 ceil(f32 x) { return ::ceilf(x); }
inline f32 trunc(f32 x) { return ::truncf(x); }
inline f32 round(f32 x) { return ::rintf(x); }
inline f32 sqrt(f32 x) { return ::sqrtf(x); }
inline f32 fma(f32 a, f32 b, f32 c) { return ::fmaf(a, b, c); }
inline vec4<f32> fma(vec4<f32> a, vec4<f32> b, vec4<f32> c) {
    return vec4<f32>(::fmaf(a.x, b.x, c.x), ::fmaf(a.y, b.y, c.y), ::fmaf(a.z, b.z, c.z), ::fmaf(a.w, b.w, c.w));
}
inline u32 extractBits(u32 x, u32 at, u32 count) { return (x >> at) & ((1u << count) - 1u); }
inline i32 extractBits(i32 x, u32 at, u32 count) { return i32(u32(x) << (32u - count - at)) >> (32u - count); }
inline void workgroupBarrier() { __syncthreads(); }
// The value of `x` in the lane of the warp whose number differs in `bits`. All lanes of the warp must call it.
template <class T> inline T subgroupShuffleXor(T x, u32 bits) {
    static_assert(sizeof(T) % 4 == 0, "words are exchanged");
    u32 words[sizeof(T) / 4];
    memcpy(words, &x, sizeof(T));
#pragma unroll
    for (u32 k = 0; k < sizeof(T) / 4; k++) words[k] = __shfl_xor_sync(0xffffffffu, words[k], bits);
    memcpy(&x, words, sizeof(T));
    return x;
}

// Signed integers wrap around in WGSL; in C++ compilers may assume that they do not.
inline i32 wrapped_add(i32 a, i32 b) { return i32(u32(a) + u32(b)); }
inline i32 wrapped_sub(i32 a, i32 b) { return i32(u32(a) - u32(b)); }
inline i32 wrapped_mul(i32 a, i32 b) { return i32(u32(a) * u32(b)); }
inline i64 wrapped_add(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
inline i64 wrapped_sub(i64 a, i64 b) { return i64(u64(a) - u64(b)); }
inline i64 wrapped_mul(i64 a, i64 b) { return i64(u64(a) * u64(b)); }

// Since Hopper, a kernel may start before the previous kernel ends. It must call this before it reads arrays that other kernels
// write, and before it writes. The next kernel may start when all workgroups have called it: if kernels started earlier, waiting
// kernels would leave few units to the running one. Compilers would move loads of restricted buffers across the call.
#if __CUDA_ARCH__ >= 900
#define RESTRICT_UNLESS_EARLY
inline void await_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
}
#else
#define RESTRICT_UNLESS_EARLY __restrict__
inline void await_previous() {}
#endif

// A constant in a register: compilers do not know that a workgroup has one invocation along its last axis. An instruction takes
// one constant; they would load the second one of `(x & mask) | number` again each time, 59 of 337 instructions that multiply 64
// numbers of 4 bits (sm_90).
inline u32 in_register(u32 number) {
    return number + (blockDim.z - 1u);
}

// A loaded value that the next repetition of a loop uses. Compilers would load it there instead, which has to wait.
template <typename T>
inline T carried(T x) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) == 4) {
        u32 bits = bitcast<u32>(x);
        asm volatile("" : "+r"(bits));
        return bitcast<T>(bits);
    }
#endif
    return x;
}

// Start to fetch bytes into the L2 cache: a multiple of 16, from an address that is one, too.
template <typename T>
inline void prefetch(const T& first, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(&first)), "r"(bytes) : "memory");
#endif
}
