// conv2d (3 x 3, padding 1), add and relu as a framework writes them today: an invocation makes one element.

override channels: u32 = 100;
override size: u32 = 100;  // height and width of an image

@group(0) @binding(0) var<storage, read> x: array<f32>;        // [channels, size, size]
@group(0) @binding(1) var<storage, read> weights: array<f32>;  // [channels, channels, 3, 3]; of add: [channels]
@group(0) @binding(2) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(256)
fn conv2d(@builtin(global_invocation_id) id: vec3u) {
    let area = size * size;
    if (id.x >= area) { return; }
    let edge = i32(size);
    let row = i32(id.x / size);
    let column = i32(id.x % size);
    var sum = 0.0;
    for (var c = 0u; c < channels; c++) {
        for (var i = 0; i < 3; i++) {
            for (var j = 0; j < 3; j++) {
                let y = row + i - 1;
                let z = column + j - 1;
                if (y >= 0 && y < edge && z >= 0 && z < edge) {
                    let weight = weights[((id.y * channels + c) * 3 + u32(i)) * 3 + u32(j)];
                    sum += x[c * area + u32(y * edge + z)] * weight;
                }
            }
        }
    }
    result[id.y * area + id.x] = sum;
}

@compute @workgroup_size(256)
fn add(@builtin(global_invocation_id) id: vec3u) {
    let area = size * size;
    if (id.x >= area) { return; }
    let at = id.y * area + id.x;
    result[at] = x[at] + weights[id.y];
}

@compute @workgroup_size(256)
fn relu(@builtin(global_invocation_id) id: vec3u) {
    let area = size * size;
    if (id.x >= area) { return; }
    let at = id.y * area + id.x;
    result[at] = max(x[at], 0.0);
}

@compute @workgroup_size(256)
fn add_relu(@builtin(global_invocation_id) id: vec3u) {
    let area = size * size;
    if (id.x >= area) { return; }
    let at = id.y * area + id.x;
    result[at] = max(x[at] + weights[id.y], 0.0);
}
