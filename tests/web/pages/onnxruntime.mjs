// An ONNX model by ONNX Runtime Web, on WebAssembly and on navigator.ml. The page and Node share it.
import {difference, random} from "./compare.mjs";

const ARRAYS = {float32: Float32Array, int32: Int32Array, int64: BigInt64Array};

/** The results of both, compared.
 *
 * @param ort the module onnxruntime-web
 * @param task {inputs: {name: {type, dims, low, high} or {type, dims, value}}, overrides: {dimension: size}, runs,
 *   warmUpSeconds: how long each session runs before its time is taken}
 * @param model its bytes
 * @returns {differences: {output: difference}, largest: {output: value}, milliseconds: {wasm, webnn}}
 */
export async function compare(ort, task, model) {
  const feeds = Object.fromEntries(Object.entries(task.inputs).map(([name, input], k) => [name, tensor(ort, input, k + 1)]));
  const found = {};
  const milliseconds = {};
  for (const provider of [{name: "wasm"}, {name: "webnn", deviceType: "cpu"}]) {
    const session = await ort.InferenceSession.create(model, {
      executionProviders: [provider],
      freeDimensionOverrides: task.overrides,
      logSeverityLevel: task.severity ?? 3,
    });
    const warm = performance.now() + 1e3 * (task.warmUpSeconds ?? 0);
    while (performance.now() < warm) await session.run(feeds);
    const times = [];
    for (let run = 0; run < (task.runs ?? 2); run++) {
      const start = performance.now();
      found[provider.name] = await session.run(feeds);
      times.push(performance.now() - start);
    }
    milliseconds[provider.name] = times.sort((a, b) => a - b)[times.length >> 1];
    await session.release();
  }
  const differences = {};
  const largest = {};
  for (const [output, expected] of Object.entries(found.wasm)) {
    const actual = found.webnn[output];
    if (`${actual.dims}` !== `${expected.dims}`) throw new Error(`${output} has the shape ${actual.dims}, expected ${expected.dims}`);
    [differences[output], largest[output]] = difference(expected.data, actual.data);
  }
  return {differences, largest, milliseconds};
}

function tensor(ort, {type, dims, low = 0, high = 1, value}, seed) {
  const count = dims.reduce((a, b) => a * b, 1);
  const values = value === undefined ? random(count, seed, low, high) : new Array(count).fill(value);
  const convert = {float32: Number, int32: Math.floor, int64: number => BigInt(Math.floor(number))}[type];
  return new ort.Tensor(type, ARRAYS[type].from(values, convert), dims);
}
