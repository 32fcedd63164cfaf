// The worker of node.mjs: makes one request after the other, and wakes the thread that waits for the answer.

import http from "node:http";
import { workerData } from "node:worker_threads";

const { address, port, state } = workerData;
const agent = new http.Agent({ keepAlive: true, maxSockets: 1, noDelay: true });

port.on("message", (body) => {
  const headers = { "Content-Type": "text/plain", "Content-Length": Buffer.byteLength(body) };
  const request = http.request({ ...address, agent, path: "/sync", method: "POST", headers });
  request.on("error", ({ message }) => answer({ error: message }));
  request.on("response", (response) => {
    const chunks = [];
    response.on("data", (chunk) => chunks.push(chunk));
    response.on("end", () => answer({ status: response.statusCode, text: Buffer.concat(chunks).toString("utf8") }));
    response.on("error", ({ message }) => answer({ error: message }));
  });
  request.end(body);
});

function answer(message) {
  port.postMessage(message);
  Atomics.store(state, 0, 1);
  Atomics.notify(state, 0);
}
