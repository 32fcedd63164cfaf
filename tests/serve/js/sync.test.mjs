// The worker that makes synchronous requests, with a server whose connections end.

import assert from "node:assert/strict";
import { once } from "node:events";
import net from "node:net";
import { test } from "node:test";
import { MessageChannel, Worker } from "node:worker_threads";

async function started(t, answer) {
  const server = net.createServer((socket) => {
    socket.on("error", () => {});
    socket.on("data", (data) => answer(socket, data.toString()));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port1, port2 } = new MessageChannel();
  const state = new Int32Array(new SharedArrayBuffer(8));
  const address = { host: "127.0.0.1", port: server.address().port };
  const file = new URL(`${process.env.OPWEAVE_PACKAGE}/node-sync.mjs`);
  const worker = new Worker(file, { workerData: { address, port: port2, state }, transferList: [port2] });
  t.after(() => {
    port1.close();
    server.close();
    return worker.terminate();
  });
  return async (body) => {
    port1.postMessage(body);
    const [message] = await once(port1, "message");
    return message.data ?? message;
  };
}

const respond = (socket, text) => socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`);

test("a connection that ends when it is used again is made anew", async (t) => {
  const sockets = new Map(); // socket -> how many requests it had
  const ask = await started(t, (socket, text) => {
    const before = sockets.get(socket) ?? 0;
    sockets.set(socket, before + 1);
    if (before === 0) respond(socket, text.split("\r\n\r\n")[1]);
    else socket.resetAndDestroy();
  });
  assert.deepEqual(await ask("one"), { status: 200, text: "one" });
  assert.deepEqual(await ask("two"), { status: 200, text: "two" });
  assert.deepEqual([...sockets.values()], [2, 1]);
});

test("a server that never answers is an error", async (t) => {
  const ask = await started(t, (socket) => socket.resetAndDestroy());
  assert.match((await ask("one")).error, /ECONNRESET|socket hang up/);
});
