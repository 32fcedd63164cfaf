// Run modules that `opweave.js.save` has written, on the server in OPWEAVE_URL.
//
// node run_module.mjs NODE_MJS FOLDER...: in each folder, reads the bytes of the k-th input of model.mjs from in_k, and writes
// those of the k-th output to out_k; names.json has the names in order, as objects put names like "12" first.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [shim, ...folders] = process.argv.slice(2);
await import(pathToFileURL(shim));
const context = await navigator.ml.createContext();

for (const folder of folders) {
  const module = await import(pathToFileURL(`${folder}/model.mjs`));
  const weights = `${folder}/model.safetensors`;
  const graph = await module.build(context, ...(existsSync(weights) ? [readFileSync(weights)] : []));
  const names = JSON.parse(readFileSync(`${folder}/names.json`));
  const inputs = Object.create(null);
  for (const [k, name] of names.inputs.entries()) {
    inputs[name] = await context.createTensor({ ...module.inputs[name], writable: true });
    context.writeTensor(inputs[name], readFileSync(`${folder}/in_${k}`));
  }
  const outputs = Object.create(null);
  for (const name of names.outputs) {
    outputs[name] = await context.createTensor({ ...module.outputs[name], readable: true });
  }
  context.dispatch(graph, inputs, outputs);
  for (const [k, name] of names.outputs.entries()) {
    writeFileSync(`${folder}/out_${k}`, Buffer.from(await context.readTensor(outputs[name])));
  }
  for (const tensor of [...Object.values(inputs), ...Object.values(outputs)]) tensor.destroy();
  graph.destroy();
}
context.destroy();
