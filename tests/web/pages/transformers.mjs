// Sentence embeddings by Transformers.js, on WebAssembly and on navigator.ml.
import {env, pipeline} from "@huggingface/transformers";
import {difference} from "/pages/compare.mjs";

const task = JSON.parse(document.getElementById("task").textContent);
env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = "/models/";
env.backends.onnx.wasm.wasmPaths = "/node_modules/@huggingface/transformers/node_modules/onnxruntime-web/dist/";
env.backends.onnx.wasm.numThreads = 1;

const found = {};
for (const device of ["wasm", "webnn-cpu"]) {
  const embed = await pipeline("feature-extraction", task.model, {
    device,
    dtype: "fp32",
    session_options: {freeDimensionOverrides: task.overrides},
  });
  found[device] = await embed(task.sentence, {pooling: "mean", normalize: true});
}
const [apart, largest] = difference(found.wasm.data, found["webnn-cpu"].data);
report({differences: {vector: apart}, largest: {vector: largest}, dims: found.wasm.dims});
