import * as ort from "onnxruntime-web";
import {compare} from "/pages/onnxruntime.mjs";

const task = JSON.parse(document.getElementById("task").textContent);
ort.env.wasm.wasmPaths = "/node_modules/onnxruntime-web/dist/";
ort.env.wasm.numThreads = 1;
const model = new Uint8Array(await (await fetch(task.model)).arrayBuffer());
report(await compare(ort, task, model));
