// A scene of shining balls, and what becomes of its small and its large frame. Pixels are three bytes, red, green, blue, one
// after the other, as in an array uint8 [height, width, 3]: four pixels are three words.

struct Frame {
    width: u32,
    height: u32,
    seconds: f32,
    divider: f32,  // of the composed picture: the large frame is shown to its right, 0 to 1
}

struct Ball {
    centre: vec3f,
    radius: f32,
    colour: vec3f,
    mirror: f32,
}

struct Hit {
    distance: f32,  // negative: nothing
    normal: vec3f,
    colour: vec3f,
    mirror: f32,
}

const SAMPLES = 4u;  // along each side of a pixel
const SUN = vec3f(0.48, 0.62, -0.62);
const BALLS = 6u;

@group(0) @binding(0) var<uniform> frame: Frame;
@group(0) @binding(1) var<storage, read_write> drawn: array<u32>;

fn ball(k: u32) -> Ball {
    let turn = frame.seconds * 0.5 + f32(k) * 1.2566 - 0.45;
    let hop = abs(sin(frame.seconds * 2.1 + f32(k) * 1.7)) * 0.55;
    switch k {
        case 0u: { return Ball(vec3f(0.0, 1.05, 0.0), 1.05, vec3f(0.95, 0.95, 0.97), 0.72); }
        case 1u: { return Ball(vec3f(2.1 * cos(turn), 0.5 + hop, 2.1 * sin(turn)), 0.5, vec3f(0.93, 0.26, 0.21), 0.16); }
        case 2u: { return Ball(vec3f(2.1 * cos(turn), 0.5 + hop, 2.1 * sin(turn)), 0.5, vec3f(0.98, 0.72, 0.12), 0.16); }
        case 3u: { return Ball(vec3f(2.1 * cos(turn), 0.5 + hop, 2.1 * sin(turn)), 0.5, vec3f(0.16, 0.67, 0.45), 0.16); }
        case 4u: { return Ball(vec3f(2.1 * cos(turn), 0.5 + hop, 2.1 * sin(turn)), 0.5, vec3f(0.14, 0.47, 0.90), 0.16); }
        default: { return Ball(vec3f(2.1 * cos(turn), 0.5 + hop, 2.1 * sin(turn)), 0.5, vec3f(0.57, 0.32, 0.83), 0.16); }
    }
}

// Where a ray meets a ball; negative if it does not.
fn meets(origin: vec3f, towards: vec3f, centre: vec3f, radius: f32) -> f32 {
    let apart = origin - centre;
    let b = dot(apart, towards);
    let inside = b * b - dot(apart, apart) + radius * radius;
    if (inside < 0.0) { return -1.0; }
    return -b - sqrt(inside);
}

fn nearest(origin: vec3f, towards: vec3f) -> Hit {
    var hit = Hit(-1.0, vec3f(), vec3f(), 0.0);
    if (towards.y < -1e-4) {
        let distance = -origin.y / towards.y;
        let at = origin + distance * towards;
        let square = i32(floor(at.x * 1.25)) + i32(floor(at.z * 1.25));
        let colour = select(vec3f(0.83, 0.85, 0.88), vec3f(0.17, 0.21, 0.29), (square & 1) == 0);
        hit = Hit(distance, vec3f(0.0, 1.0, 0.0), colour, 0.12);
    }
    for (var k = 0u; k < BALLS; k++) {
        let its = ball(k);
        let distance = meets(origin, towards, its.centre, its.radius);
        if (distance > 1e-3 && (hit.distance < 0.0 || distance < hit.distance)) {
            let normal = (origin + distance * towards - its.centre) / its.radius;
            var colour = its.colour;
            if (k > 0u) {  // beach balls
                let along = atan2(normal.z, normal.x) + frame.seconds * 1.4;
                let stripe = fract(along * 6.0 / 6.2831853) < 0.5 && abs(normal.y) < 0.93;
                colour = select(vec3f(0.97, 0.96, 0.92), colour, stripe);
            }
            hit = Hit(distance, normal, colour, its.mirror);
        }
    }
    return hit;
}

fn sky(towards: vec3f) -> vec3f {
    let high = clamp(towards.y, 0.0, 1.0);
    let sun = pow(max(dot(towards, normalize(SUN)), 0.0), 350.0);
    return mix(vec3f(0.84, 0.89, 0.95), vec3f(0.16, 0.38, 0.76), sqrt(high)) + sun * vec3f(1.2, 1.0, 0.7);
}

// Whether something stands between a place and the sun.
fn shadowed(at: vec3f) -> bool {
    for (var k = 0u; k < BALLS; k++) {
        let its = ball(k);
        if (meets(at, normalize(SUN), its.centre, its.radius) > 0.0) { return true; }
    }
    return false;
}

// The light that comes along a ray, with two mirrored rays.
fn light(start: vec3f, along: vec3f) -> vec3f {
    var origin = start;
    var towards = along;
    var seen = vec3f(0.0);
    var share = vec3f(1.0);
    for (var bounce = 0; bounce < 3; bounce++) {
        let hit = nearest(origin, towards);
        if (hit.distance < 0.0) { return seen + share * sky(towards); }
        let at = origin + hit.distance * towards + hit.normal * 1e-3;
        let lit = select(max(dot(hit.normal, normalize(SUN)), 0.0), 0.0, shadowed(at));
        let ambient = 0.33 + 0.14 * hit.normal.y;
        let shine = pow(max(dot(reflect(towards, hit.normal), normalize(SUN)), 0.0), 60.0) * select(0.0, 0.7, lit > 0.0);
        let haze = exp(-0.03 * hit.distance);
        let own = hit.colour * (ambient + 0.85 * lit) + shine;
        seen += share * mix(sky(vec3f(towards.x, 0.0, towards.z)), own * (1.0 - hit.mirror), haze);
        let edge = pow(1.0 - max(dot(-towards, hit.normal), 0.0), 5.0);
        share *= (hit.mirror + (1.0 - hit.mirror) * 0.6 * edge) * haze;
        origin = at;
        towards = reflect(towards, hit.normal);
    }
    return seen;
}

fn scene(column: u32, row: u32) -> vec3f {
    let size = vec2f(f32(frame.width), f32(frame.height));
    let turn = 0.35 * sin(frame.seconds * 0.3);
    let eye = vec3f(6.3 * sin(turn), 2.35, -6.3 * cos(turn));
    let ahead = normalize(vec3f(0.0, 1.0, 0.0) - eye);
    let right = normalize(cross(vec3f(0.0, 1.0, 0.0), ahead));
    let up = cross(ahead, right);
    var sum = vec3f(0.0);
    for (var k = 0u; k < SAMPLES * SAMPLES; k++) {
        let within = (vec2f(f32(k % SAMPLES), f32(k / SAMPLES)) + 0.5) / f32(SAMPLES);
        let at = (vec2f(f32(column), f32(row)) + within - 0.5 * size) / size.y;
        sum += min(light(eye, normalize(1.75 * ahead + at.x * right - at.y * up)), vec3f(1.0));
    }
    return pow(sum / f32(SAMPLES * SAMPLES), vec3f(1.1));
}

// Four pixels of the scene.
@compute @workgroup_size(8, 8)
fn draw(@builtin(global_invocation_id) id: vec3u) {
    if (4u * id.x >= frame.width || id.y >= frame.height) { return; }
    let a = scene(4u * id.x, id.y);
    let b = scene(4u * id.x + 1u, id.y);
    let c = scene(4u * id.x + 2u, id.y);
    let d = scene(4u * id.x + 3u, id.y);
    let word = 3u * (id.y * frame.width / 4u + id.x);
    drawn[word] = pack4x8unorm(vec4f(a, b.x));
    drawn[word + 1u] = pack4x8unorm(vec4f(b.yz, c.xy));
    drawn[word + 2u] = pack4x8unorm(vec4f(c.z, d));
}

// Composing: the small frame on the left of a divider, the large one on its right, and both through a lens.

@group(0) @binding(2) var<storage, read> small: array<u32>;
@group(0) @binding(3) var<storage, read> large: array<u32>;
@group(0) @binding(4) var<storage, read_write> picture: array<u32>;  // red, green, blue and 255 in a word

fn small_pixel(at: vec2u) -> vec3f {
    let byte = 3u * (at.y * (frame.width / 3u) + at.x);
    return vec3f(level(small[byte / 4u], byte), level(small[(byte + 1u) / 4u], byte + 1u), level(small[(byte + 2u) / 4u], byte + 2u));
}

fn large_pixel(at: vec2u) -> vec3f {
    let byte = 3u * (at.y * frame.width + at.x);
    return vec3f(level(large[byte / 4u], byte), level(large[(byte + 1u) / 4u], byte + 1u), level(large[(byte + 2u) / 4u], byte + 2u));
}

fn level(word: u32, byte: u32) -> f32 {
    return f32((word >> (8u * (byte % 4u))) & 255u) / 255.0;
}

@compute @workgroup_size(8, 8)
fn compose(@builtin(global_invocation_id) id: vec3u) {
    if (id.x >= frame.width || id.y >= frame.height) { return; }
    let size = vec2f(f32(frame.width), f32(frame.height));
    let here = vec2f(id.xy) + 0.5;
    let lens = vec2f(frame.divider * size.x, 0.70 * size.y);
    let radius = 0.25 * size.y;
    let apart = length(here - lens);
    // Through the lens all is three times as large.
    let seen = select(here, lens + (here - lens) / 3.0, apart < radius);
    let at = vec2u(clamp(seen, vec2f(0.0), size - 1.0));
    var colour: vec3f;
    if (here.x < lens.x) { colour = small_pixel(at / 3u); } else { colour = large_pixel(at); }
    let thick = max(1.0, size.y / 400.0);
    let line = min(abs(apart - radius), abs(here.x - lens.x));
    colour = mix(vec3f(1.0), colour, clamp(line - 0.5 * thick, 0.0, 1.0));
    picture[id.y * frame.width + id.x] = pack4x8unorm(vec4f(colour, 1.0));
}
