// conv2d, add and relu of TensorFlow.js' WebAssembly back end, timed on request: a line "conv 0.1" or "all 0.1" on standard
// input is answered with the milliseconds of one call, measured for about 0.1 seconds; "chain 0" is one call.
//
// Arguments: a folder with node_modules, a folder with the data (see tfjs.py), the number of channels and the size.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [modules, data, channels, size] = process.argv.slice(2);
const require = createRequire(join(modules, "package.json"));
const tf = require("@tensorflow/tfjs-core");
const wasm = require("@tensorflow/tfjs-backend-wasm");

wasm.setWasmPaths(join(modules, "node_modules/@tensorflow/tfjs-backend-wasm/dist/"));
if (!(await tf.setBackend("wasm")) || tf.getBackend() !== "wasm") throw new Error("TensorFlow.js has no wasm back end here");

const c = Number(channels), n = Number(size);
const load = (name, shape) => tf.tensor(new Float32Array(new Uint8Array(readFileSync(join(data, name))).buffer), shape);
const input = load("input", [1, n, n, c]), filter = load("filter", [3, 3, c, c]), bias = load("bias", [c]);

// Its kernels are synchronous: when a call returns, the result is there (in the heap; it is not copied out).
const functions = {
  conv: () => tf.conv2d(input, filter, 1, "same"),
  all: () => tf.relu(tf.add(tf.conv2d(input, filter, 1, "same"), bias)),
  chain: () => { // three convolutions, and the result copied out
    const convolved = [1, 2, 3].reduce((x) => tf.conv2d(x, filter, 1, "same"), input);
    convolved.dataSync();
    return convolved;
  },
};

const result = functions.all();
writeFileSync(join(data, "result"), new Uint8Array(result.dataSync().buffer));
result.dispose();
const simd = await tf.env().getAsync("WASM_HAS_SIMD_SUPPORT");
console.log(JSON.stringify({ version: tf.version_core, node: process.version, simd, threads: wasm.getThreadsCount() }));

for await (const line of createInterface({ input: process.stdin })) {
  const [name, seconds] = line.split(" ");
  const timed = (count) => {
    const start = performance.now();
    for (let i = 0; i < count; i++) tf.tidy(() => void functions[name]());
    return (performance.now() - start) / count;
  };
  const once = timed(1);
  console.log(Number(seconds) ? timed(Math.max(1, Math.round((Number(seconds) * 1e3) / once))) : once);
}
