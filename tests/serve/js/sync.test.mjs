// The worker that makes synchronous requests, with a server whose connections end.

import assert from "node:assert/strict";
import { once } from "node:events";
import net from "node:net";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { MessageChannel, Worker } from "node:worker_threads";

const LATE_MS = 50; // how long a second answer may take

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
  let number = 0;
  return async (body) => {
    number += 1;
    const answers = [];
    const note = (message) => answers.push(message.data ?? message);
    port1.on("message", note);
    port1.postMessage({ number, body });
    await once(port1, "message");
    await setTimeout(LATE_MS);
    port1.off("message", note);
    assert.equal(answers.length, 1); // a second one would be taken for that of the next request
    const { number: answered, ...answer } = answers[0];
    assert.equal(answered, number);
    return answer;
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

test("a connection that ends after the response gives one answer", async (t) => {
  const ask = await started(t, (socket, text) => {
    respond(socket, text.split("\r\n\r\n")[1]);
    socket.end(() => socket.resetAndDestroy());
  });
  for (const text of ["one", "two", "three"]) assert.deepEqual(await ask(text), { status: 200, text });
});

test("a response that is cut off gives one answer", async (t) => {
  const ask = await started(t, (socket) => {
    socket.write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut", () => socket.resetAndDestroy());
  });
  assert.match((await ask("one")).error, /aborted|ECONNRESET|socket hang up/);
});

test("a server that never answers is an error", async (t) => {
  const ask = await started(t, (socket) => socket.resetAndDestroy());
  assert.match((await ask("one")).error, /ECONNRESET|socket hang up/);
});
