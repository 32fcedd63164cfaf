// ONNX Runtime Web in Node, on WebAssembly and on navigator.ml: node --import PATH/node.mjs onnxruntime_node.mjs TASK
import {readFile} from "node:fs/promises";
import * as ort from "onnxruntime-web/all";
import {compare} from "./pages/onnxruntime.mjs";

const task = JSON.parse(process.argv[2]);
ort.env.wasm.numThreads = 1;
console.log(JSON.stringify(await compare(ort, task, new Uint8Array(await readFile(task.model)))));
