// The worker of node.mjs: makes one request after the other, and wakes the thread that waits for the answer.

import http from "node:http";
import { text } from "node:stream/consumers";
import { workerData } from "node:worker_threads";

const { address, port, state } = workerData;
const agent = new http.Agent({ keepAlive: true, maxSockets: 1, noDelay: true });

port.on("message", post);

function post({ number, body }) {
  const headers = { "Content-Type": "text/plain", "Content-Length": Buffer.byteLength(body) };
  const request = http.request({ ...address, agent, path: "/sync", method: "POST", headers });
  const failed = ({ message }) => answer({ number, error: message });
  let isAnswered = false;
  request.on("error", (error) => {
    if (isAnswered) return; // the connection ended after the response, which is what counts
    // The server has ended an idle connection in the moment in which it was used again: it has not read the request.
    if (request.reusedSocket && error.code === "ECONNRESET") post({ number, body });
    else failed(error);
  });
  request.on("response", (response) => {
    isAnswered = true;
    text(response).then((found) => answer({ number, status: response.statusCode, text: found }), failed);
  });
  request.end(body);
}

function answer(message) {
  port.postMessage(message);
  wake(0);
}

function wake(at) {
  Atomics.store(state, at, 1);
  Atomics.notify(state, at);
}

wake(1);
