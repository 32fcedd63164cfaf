// Library functions of shaders; see mathematics.py.

var<private> infinity_bits: u32 = 0x7f800000u;

fn infinity() -> f32 {
    return bitcast<f32>(infinity_bits);
}

fn not_a_number() -> f32 {
    return bitcast<f32>(infinity_bits | 0x00400000u);
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn is_infinite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}

fn with_sign(size: f32, sign: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(size) | (bitcast<u32>(sign) & 0x80000000u));
}

// a / b. Division is accurate for divisors in [2^-126, 2^126]; larger ones are scaled down (NVIDIA's give 0 or NaN).
fn div_f32(a: f32, b: f32) -> f32 {
    let scale = select(1.0f, 5.9604644775390625e-8f, abs(b) > 8.5070592e37f);
    return (a * scale) / (b * scale);
}

// a / b for finite numbers, b in [1, 2^126].
fn ratio(a: f32, b: f32) -> f32 {
    return a / b;
}

// x / 0
fn over_zero(x: f32) -> f32 {
    return with_sign(select(infinity(), not_a_number(), x == 0.0f || is_nan(x)), x);
}

// 0 / x
fn zero_over(x: f32) -> f32 {
    return with_sign(select(0.0f, not_a_number(), x == 0.0f || is_nan(x)), x);
}

// x / x
fn over_itself(x: f32) -> f32 {
    return select(1.0f, not_a_number(), x == 0.0f || is_infinite(x) || is_nan(x));
}

// x * 0
fn times_zero(x: f32) -> f32 {
    return with_sign(select(0.0f, not_a_number(), is_infinite(x) || is_nan(x)), x);
}

// x. Compilers cannot rearrange it with the arithmetic around: 0xffffffff is a NaN, and so is 0xfffffffe.
fn kept(x: f32) -> f32 {
    return bitcast<f32>(min(bitcast<u32>(x), 0xfffffffeu));
}

fn max_f32(a: f32, b: f32) -> f32 {
    return select(select(max(a, b), b, is_nan(b)), a, is_nan(a));
}

fn min_f32(a: f32, b: f32) -> f32 {
    return select(select(min(a, b), b, is_nan(b)), a, is_nan(a));
}

// The maximum of x and a number that is not NaN.
fn at_least(x: f32, limit: f32) -> f32 {
    return select(max(x, limit), x, is_nan(x));
}

// The minimum of x and a number that is not NaN.
fn at_most(x: f32, limit: f32) -> f32 {
    return select(min(x, limit), x, is_nan(x));
}

fn sign_f32(x: f32) -> f32 {
    return select(select(0.0f, -1.0f, x < 0.0f), 1.0f, x > 0.0f);
}

// 2 to the power of an integer in [-126, 127].
fn power_of_two(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

// exp(rest) - 1 and the whole exponent of exp(x) = exp(rest) * 2^exponent, for x in [-104.5, 89].
fn exponential_parts(x: f32) -> vec2<f32> {
    let whole = round(x * 1.44269504f);
    // log(2) in parts, the product with the first one is exact; max keeps compilers from adding them up.
    let rest = max(x - whole * 0.693359375f, -2.0f) + whole * 2.12194440e-4f;
    var p = 1.9875691500e-4f;
    p = p * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    return vec2<f32>(p * (rest * rest) + rest, whole);
}

fn exp_f32(x: f32) -> f32 {
    let parts = exponential_parts(clamp(x, -104.5f, 89.0f));
    let exponent = i32(parts.y);
    let half = exponent >> 1u; // 2^128 and 2^-150 are no float32, their halves are
    let value = ((parts.x + 1.0f) * power_of_two(half)) * power_of_two(exponent - half);
    return select(value, x, is_nan(x));
}

// exp(x) for x in [-104.5, 0].
fn exponential_of_negative(x: f32) -> f32 {
    let parts = exponential_parts(x);
    return ((parts.x + 1.0f) * power_of_two(i32(parts.y) + 24)) * 5.9604645e-8f; // 2^-24
}

fn log_f32(x: f32) -> f32 {
    let tiny = x < 1.17549435e-38f;
    let shifted = bitcast<i32>(select(x, x * 8388608.0f, tiny)) - 0x3f3504f3; // sqrt(1 / 2)
    let exponent = f32(shifted >> 23u) - select(0.0f, 23.0f, tiny);
    let rest = bitcast<f32>((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f;
    var p = 7.0376836292e-2f;
    p = p * rest + -1.1514610310e-1f;
    p = p * rest + 1.1676998740e-1f;
    p = p * rest + -1.2420140846e-1f;
    p = p * rest + 1.4249322787e-1f;
    p = p * rest + -1.6668057665e-1f;
    p = p * rest + 2.0000714765e-1f;
    p = p * rest + -2.4999993993e-1f;
    p = p * rest + 3.3333331174e-1f;
    let square = rest * rest;
    let low = (rest * square) * p + exponent * -2.12194440e-4f - square * 0.5f;
    let value = (rest + low) + exponent * 0.693359375f;
    let pattern = bitcast<u32>(x);
    let unusual = select(select(not_a_number(), x, is_nan(x) || pattern == 0x7f800000u), -infinity(), x == 0.0f);
    return select(unusual, value, x > 0.0f && pattern < 0x7f800000u);
}

fn tanh_f32(x: f32) -> f32 {
    let limited = min(abs(x), 10.0f); // whose tangent is 1
    let parts = exponential_parts(limited + limited);
    let scale = power_of_two(i32(parts.y));
    let e = parts.x * scale + (scale - 1.0f); // exp(2 * x) - 1, accurate where x is small
    return select(with_sign(ratio(e, e + 2.0f), x), x, is_nan(x));
}

fn sigmoid_f32(x: f32) -> f32 {
    let e = exponential_of_negative(-min(abs(x), 104.5f));
    return select(ratio(select(1.0f, e, x < 0.0f), 1.0f + e), x, is_nan(x));
}

fn erf_f32(x: f32) -> f32 {
    let size = min(abs(x), 4.0f); // where it is 1
    let square = size * size;
    var p = -5.96761703e-4f;
    p = p * square + 4.99119423e-3f;
    p = p * square + -2.67681349e-2f;
    p = p * square + 1.12819925e-1f;
    p = p * square + -3.76125336e-1f;
    p = p * square + 1.28379166e-1f;
    let small = p * size + size;
    p = -1.72853470e-5f;
    p = p * size + 3.83197126e-4f;
    p = p * size + -3.88396438e-3f;
    p = p * size + 2.42546219e-2f;
    p = p * size + -1.06777877e-1f;
    p = p * size + -6.34846687e-1f;
    p = p * size + -1.28717512e-1f;
    let parts = exponential_parts(p * size - size);
    let scale = power_of_two(i32(parts.y));
    let large = (1.0f - scale) - parts.x * scale;
    return select(with_sign(select(small, large, size > 0.927734375f), x), x, is_nan(x));
}

// 2 / pi in words of 32 bits, preceded by its integer part, 0.
var<private> two_over_pi: array<u32, 9> = array<u32, 9>(
    0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u);

fn two_over_pi_from(bit: u32) -> u32 {
    let word = bit >> 5u;
    let shift = bit & 31u;
    return (two_over_pi[word] << shift) | select(0u, two_over_pi[word + 1u] >> ((32u - shift) & 31u), shift > 0u);
}

// The upper 32 bits of a product.
fn upper_product(a: u32, b: u32) -> u32 {
    let first = (a >> 16u) * (b & 0xffffu);
    let second = (a & 0xffffu) * (b >> 16u);
    let middle = (((a & 0xffffu) * (b & 0xffffu)) >> 16u) + (first & 0xffffu) + (second & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u) + (middle >> 16u);
}

// The angle |x| as rest + quadrant * pi / 2, with the rest in [-pi / 4, pi / 4], and the quadrant modulo 4.
fn quadrant_of(x: f32) -> vec2<f32> {
    let size = abs(x);
    if (size < 1000.0f) {
        let count = round(size * 0.636619772f);
        // pi / 2 in parts; the products of all but the last with the count are exact. max changes nothing here: without
        // it, compilers would add up the parts.
        var rest = max(size - count * 1.570556640625f, -2.0f);
        rest = max(rest - count * 2.396702766418457e-4f, -2.0f);
        rest = max(rest - count * 1.5890691429376602e-8f, -2.0f);
        return vec2<f32>(rest - count * 2.5633440682570896e-12f, f32(i32(count) & 3));
    }
    // The mantissa of x, times those 96 bits of 2 / pi that matter: bits further left are multiples of 4 quadrants, bits
    // further right are too small (Payne and Hanek).
    let pattern = bitcast<u32>(size);
    let mantissa = (pattern & 0x007fffffu) | 0x00800000u;
    let bit = (pattern >> 23u) - 120u;
    let second = two_over_pi_from(bit + 32u);
    let low = mantissa * second;
    let sum = low + upper_product(mantissa, two_over_pi_from(bit + 64u));
    let high = mantissa * two_over_pi_from(bit) + upper_product(mantissa, second) + select(0u, 1u, sum < low);
    let quadrant = (high + 0x20000000u) >> 30u;
    let rest = f32(bitcast<i32>(high - (quadrant << 30u))) * 9.3132257e-10f + f32(sum) * 2.1684043e-19f;
    return vec2<f32>(rest * 1.57079633f, f32(quadrant & 3u));
}

// The sine of an angle reduced by quadrant_of.
fn wave(rest: f32, quadrant: i32) -> f32 {
    let square = rest * rest;
    let odd = ((-1.9515295891e-4f * square + 8.3321608736e-3f) * square + -1.6666654611e-1f) * square * rest + rest;
    var p = 2.443315711809948e-5f;
    p = p * square + -1.388731625493765e-3f;
    p = p * square + 4.166664568298827e-2f;
    let even = p * (square * square) - square * 0.5f + 1.0f;
    let value = select(odd, even, (quadrant & 1) == 1);
    return select(value, -value, (quadrant & 2) == 2);
}

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u;
}

fn sin_f32(x: f32) -> f32 {
    let turned = quadrant_of(select(0.0f, x, is_finite(x)));
    let value = wave(turned.x, i32(turned.y));
    return select(not_a_number(), select(value, -value, x < 0.0f), is_finite(x));
}

fn cos_f32(x: f32) -> f32 {
    let turned = quadrant_of(select(0.0f, x, is_finite(x)));
    return select(not_a_number(), wave(turned.x, i32(turned.y) + 1), is_finite(x));
}

fn tan_f32(x: f32) -> f32 {
    let turned = quadrant_of(select(0.0f, x, is_finite(x)));
    let square = turned.x * turned.x;
    var p = 9.38540185543e-3f;
    p = p * square + 3.11992232697e-3f;
    p = p * square + 2.44301354525e-2f;
    p = p * square + 5.34112807005e-2f;
    p = p * square + 1.33387994085e-1f;
    p = p * square + 3.33331568548e-1f;
    let near = p * square * turned.x + turned.x;
    let value = select(near, -1.0f / near, (i32(turned.y) & 1) == 1);
    return select(not_a_number(), select(value, -value, x < 0.0f), is_finite(x));
}

// The upper half of the bits of x: products of two such numbers are exact.
fn upper(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// log2(x) as a sum of two numbers, the first one with few bits, for positive x (after fdlibm's powf).
fn binary_logarithm(x: f32) -> vec2<f32> {
    let tiny = x < 1.17549435e-38f;
    let pattern = bitcast<u32>(select(x, x * 16777216.0f, tiny));
    let digits = pattern & 0x007fffffu;
    let wide = digits >= 0x5db3d7u; // sqrt(3) and more: halved
    let middle = digits > 0x1cc471u && !wide; // sqrt(3 / 2) and more: compared with 1.5
    let exponent = f32(i32(pattern >> 23u) - 127 + select(0, 1, wide)) - select(0.0f, 24.0f, tiny);
    let mantissa = bitcast<f32>((digits | 0x3f800000u) - select(0u, 0x00800000u, wide));
    let near = select(1.0f, 1.5f, middle);
    let difference = mantissa - near;
    let inverse = 1.0f / (mantissa + near);
    let s = difference * inverse;
    let s_high = upper(s);
    let total_high = upper(mantissa + near);
    let total_low = mantissa - (total_high - near);
    let s_low = inverse * ((difference - s_high * total_high) - s_high * total_low);
    let square = s * s;
    var r = 2.0697501302e-1f;
    r = r * square + 2.3066075146e-1f;
    r = r * square + 2.7272811532e-1f;
    r = r * square + 3.3333334327e-1f;
    r = r * square + 4.2857143283e-1f;
    r = r * square + 6.0000002384e-1f;
    r = r * (square * square) + s_low * (s_high + s);
    let square_high = s_high * s_high;
    let t_high = upper(3.0f + square_high + r);
    let t_low = r - ((t_high - 3.0f) - square_high);
    let u = s_high * t_high;
    let v = s_low * t_high + t_low * s;
    let p_high = upper(u + v);
    let p_low = v - (p_high - u);
    let z_high = 9.6191406250e-1f * p_high; // 2 / (3 * log(2)), its upper part
    let z_low = -1.1736857402e-4f * p_high + p_low * 9.6179670095e-1f + select(0.0f, 1.56322085e-6f, middle);
    let offset = select(0.0f, 5.84960938e-1f, middle); // log2(1.5), its upper part
    let high = upper(((z_high + z_low) + offset) + exponent);
    return vec2<f32>(high, z_low - (((high - exponent) - offset) - z_high));
}

// 2 to the power of the sum of two numbers.
fn binary_power(high: f32, low: f32) -> f32 {
    let whole = round(clamp(high + low, -200.0f, 200.0f));
    let rest_high = high - whole;
    let t = bitcast<f32>(bitcast<u32>(rest_high + low) & 0xffff8000u);
    let u = t * 6.93145752e-1f;
    let v = (low - (t - rest_high)) * 6.9314718246e-1f + t * 1.42860654e-6f;
    let z = u + v;
    let w = v - (z - u);
    let square = z * z;
    var p = 4.1381369442e-8f;
    p = p * square + -1.6533901999e-6f;
    p = p * square + 6.6137559770e-5f;
    p = p * square + -2.7777778450e-3f;
    p = p * square + 1.6666667163e-1f;
    let q = z - square * p;
    let r = (z * q) / (q - 2.0f) - (w + z * w);
    let value = 1.0f - (r - z);
    let exponent = i32(whole);
    let half = exponent >> 1u;
    return (value * power_of_two(half)) * power_of_two(exponent - half);
}

fn square_f32(x: f32) -> f32 {
    return x * x;
}

// Within 2 ULP.
fn cube_f32(x: f32) -> f32 {
    return x * x * x;
}

fn pow_f32(a: f32, b: f32) -> f32 {
    let size = abs(a);
    let size_b = abs(b);
    let usual = is_finite(a) && size > 0.0f && is_finite(b);
    let exponents = binary_logarithm(select(1.0f, size, usual));
    let exponent = select(0.0f, clamp(b, -1e18f, 1e18f), usual);
    let exponent_high = upper(exponent);
    let low = (exponent - exponent_high) * exponents.x + exponent * exponents.y;
    let high = exponent_high * exponents.x;
    let sum = high + low;
    let limited = select(low, 0.0f, abs(sum) > 152.0f);
    var value = binary_power(select(high, clamp(sum, -152.0f, 152.0f), abs(sum) > 152.0f), limited);
    // 128 is also what the logarithm of the greatest float32 is rounded to.
    let beyond = sum > 128.0f || (sum == 128.0f && low + 4.2995665694e-8f > 128.0f - high);
    value = select(value, infinity(), usual && beyond);
    let grows = (size > 1.0f) == (b > 0.0f); // of 0 and infinities
    value = select(select(0.0f, infinity(), grows), value, usual || (size == 1.0f && is_infinite(b)));
    let whole = size_b >= 8388608.0f || floor(b) == b;
    let odd = whole && size_b < 16777216.0f && floor(b * 0.5f) * 2.0f != b;
    value = select(value, -value, odd && (bitcast<u32>(a) >> 31u) == 1u);
    value = select(value, not_a_number(), (a < 0.0f && is_finite(a) && !whole) || is_nan(a) || is_nan(b));
    return select(value, 1.0f, b == 0.0f || a == 1.0f);
}

// The exact remainder with the sign of a: a long division of the mantissas, eight binary digits at a time.
fn fmod_f32(a: f32, b: f32) -> f32 {
    let size = bitcast<u32>(a) & 0x7fffffffu;
    let size_b = bitcast<u32>(b) & 0x7fffffffu;
    if (size >= 0x7f800000u || size_b > 0x7f800000u || size_b == 0u) {
        return not_a_number();
    }
    if (size < size_b) {
        return a;
    }
    let low = max(size_b >> 23u, 1u);
    let unit = (size_b & 0x007fffffu) | select(0u, 0x00800000u, size_b >= 0x00800000u);
    let mantissa = (size & 0x007fffffu) | select(0u, 0x00800000u, size >= 0x00800000u);
    var rest = mantissa % unit;
    for (var left = max(size >> 23u, 1u) - low; left > 0u; left = left - min(left, 8u)) {
        rest = (rest << min(left, 8u)) % unit;
    }
    // The unit of the last place of b, 2^(low - 150), as a product of two normal numbers.
    let half = i32(low) / 2;
    return with_sign((f32(rest) * power_of_two(half - 75)) * power_of_two(i32(low) - half - 75), a);
}

// Converts to the bits of a float16, rounded to nearest, ties to even.
fn half_bits(x: f32) -> u32 {
    let size = bitcast<u32>(x) & 0x7fffffffu;
    let normal = (size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u;
    // Adding 0.5 rounds denormal results at the right place.
    let denormal = bitcast<u32>(bitcast<f32>(min(size, 0x38800000u)) + 0.5f) - 0x3f000000u;
    var pattern = select(normal, denormal, size < 0x38800000u);
    pattern = select(pattern, 0x7c00u, size >= 0x47800000u);
    pattern = select(pattern, 0x7e00u, size > 0x7f800000u);
    return pattern | ((bitcast<u32>(x) >> 16u) & 0x8000u);
}

// Converts the bits of a float16.
fn half_value(pattern: u32) -> f32 {
    let size = (pattern & 0x7fffu) << 13u;
    let tiny = bitcast<u32>(bitcast<f32>(size + 0x38800000u) - 6.1035156e-5f); // 2^-14
    var wide = select(size + 0x38000000u, tiny, size < 0x00800000u);
    wide = select(wide, size | 0x7f800000u, size >= 0x0f800000u);
    return bitcast<f32>(wide | ((pattern & 0x8000u) << 16u));
}

// x rounded to float16.
fn rounded_to_half(x: f32) -> f32 {
    return half_value(half_bits(x));
}

// The bits of the bfloat16 nearest to x, ties to even.
fn bfloat_bits(x: f32) -> u32 {
    let pattern = bitcast<u32>(x);
    let rounded = (pattern + 0x7fffu + ((pattern >> 16u) & 1u)) >> 16u;
    return select(rounded, (pattern >> 16u) | 0x40u, is_nan(x));
}

fn bfloat_value(pattern: u32) -> f32 {
    return bitcast<f32>(pattern << 16u);
}

fn rounded_to_bfloat(x: f32) -> f32 {
    return bfloat_value(bfloat_bits(x));
}

// i64(x), in two parts: Mesa's compiler (at least 22.3) folds `i64(x) < 2` to false.
fn widened(x: i32) -> i64 {
    return (i64(x >> 1u) << 1u) | i64(x & 1);
}

// The products of four int8 by four int8, added up, for each word of b.
fn products_of_bytes(a: u32, b: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(dot4I8Packed(a, b.x), dot4I8Packed(a, b.y), dot4I8Packed(a, b.z), dot4I8Packed(a, b.w));
}
