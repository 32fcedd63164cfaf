// A .tflite model by LiteRT.js, on WebAssembly and on navigator.ml.
import {loadAndCompile, loadLiteRt, Tensor} from "@litertjs/core";
import {difference, random} from "/pages/compare.mjs";

const task = JSON.parse(document.getElementById("task").textContent);
await loadLiteRt("/node_modules/@litertjs/core/wasm/", {jspi: true});

const found = {};
const whole = {};
for (const accelerator of ["wasm", "webnn"]) {
  const model = await loadAndCompile(task.model, {accelerator, webNNOptions: {devicePreference: "cpu"}});
  const inputs = model.getInputDetails().map(({shape}, k) =>
    new Tensor(random(shape.reduce((a, b) => a * b, 1), k + 1, 0, 1), [...shape]));
  const outputs = await model.run(inputs);
  found[accelerator] = await Promise.all(outputs.map(async output => (await output.moveTo("wasm")).toTypedArray().slice()));
  whole[accelerator] = model.isFullyAccelerated;
}
const names = found.wasm.map((_, k) => `output ${k}`);
const pairs = found.wasm.map((expected, k) => difference(expected, found.webnn[k]));
report({
  differences: Object.fromEntries(names.map((name, k) => [name, pairs[k][0]])),
  largest: Object.fromEntries(names.map((name, k) => [name, pairs[k][1]])),
  whole: whole.webnn,
});
