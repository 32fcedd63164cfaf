// navigator.ml for Node.js: `import "opweave-webnn/node.mjs"`.
//
// The address of the server: `globalThis.opweaveOptions` ({ url, token, mode, force }) if set before, or else the
// environment (OPWEAVE_URL, OPWEAVE_TOKEN, OPWEAVE_MODE). A URL is http://127.0.0.1:PORT, or unix:/path/of/a/socket.
//
// Messages go over one connection without the frames of WebSocket (`Upgrade: opweave`): the size of a text (u32,
// little-endian), the text, and the payload that it announces. The last one may be { end: code, reason }. Synchronous
// requests are made by a worker, for whose answers this thread waits.

import net from "node:net";
import { MessageChannel, receiveMessageOnPort, Worker } from "node:worker_threads";

import { address, stats } from "./server.mjs";
import install from "./webnn.js";

const PROTOCOL = "opweave.webnn.1";
const HEADER_BYTES = 4;
const COMMON_BYTES = 65_536; // what libuv offers for a read, too
const MAX_SPARE_BYTES = 64 * 2 ** 20; // what an idle connection may keep
const EMPTY = Buffer.alloc(0);
const REFUSAL_TIMEOUT_MS = 1_000; // for a server that keeps the connection after a refusal
const SYNC_TIMEOUT_MS = 600_000; // a server that is alive answers a validation in milliseconds
const START_TIMEOUT_MS = 30_000; // of the worker, which takes 50 ms on an idle machine

const nodeTransport =
  ({ url, token }) =>
  ({ text, isCopied, binary, closed }) =>
    new Promise((resolve, reject) => {
      const { socketPath, host, port } = address(url);
      const reader = new Reader({ text, isCopied, binary, close, response });
      const onread = { buffer: () => reader.space(), callback: (length) => reader.filled(length) };
      const socket = net.connect({ ...(socketPath ? { path: socketPath } : { host, port }), noDelay: true, onread });
      let why = "";
      let stop = () => {};
      socket.on("error", ({ message }) => {
        reject(new Error(`no connection to Opweave at ${url} (${message}); is \`opweave serve\` running?`));
      });
      socket.on("close", () => {
        reject(new Error(`Opweave at ${url} refuses the connection: ${reader.refusal}`));
        stop();
        closed(`the connection to Opweave at ${url} has ended${why}`);
      });
      const protocols = token ? `${PROTOCOL}, token.${token}` : PROTOCOL;
      const authority = host.includes(":") ? `[${host}]` : host;
      const lines = [
        "GET / HTTP/1.1",
        `Host: ${authority}${port ? `:${port}` : ""}`,
        "Connection: Upgrade",
        "Upgrade: opweave",
      ];
      socket.write([...lines, `Sec-Opweave-Protocol: ${protocols}`, "", ""].join("\r\n"));

      function response(status) {
        if (status !== "101") {
          socket.setTimeout(REFUSAL_TIMEOUT_MS, () => socket.destroy()); // the reason follows, then the end
          return;
        }
        socket.unref(); // an idle connection does not keep the process
        const synchronously = synchronous(url);
        stop = synchronously.stop;
        const hold = (on) => (on ? socket.ref() : socket.unref());
        const { send, used } = install.joiner(write, copies(socket));
        resolve({ send, sync: synchronously.sync, buffered: () => socket.writableLength + used(), hold });
      }

      function write(bytes) {
        socket.write(bytes);
        return socket.writableLength === 0; // else the system has not taken all of them
      }

      function close({ end, reason }) {
        why = ` (${end}, ${reason})`;
      }
    });

// Write copies of large payloads, since the caller may change its memory at once.
function copies(socket) {
  const spare = new Spare();
  return (payload) => {
    const memory = spare.take(payload.length);
    memory.set(payload);
    socket.write(memory, () => spare.keep(memory));
  };
}

// The memory of the last large copy, to be used again: fresh pages cost more than the copy.
class Spare {
  memory = null;

  take(size) {
    const { memory } = this;
    if (memory === null || memory.length < size || memory.length > 2 * size) return Buffer.allocUnsafeSlow(size);
    this.memory = null;
    return memory.subarray(0, size);
  }

  keep({ buffer }) {
    if (buffer.byteLength <= MAX_SPARE_BYTES) this.memory = Buffer.from(buffer);
  }
}

// Cuts what arrives into the response to the upgrade, and messages. Large ones are received into the buffer that they
// are handed on in; for others there is a common buffer.
class Reader {
  constructor(handlers) {
    Object.assign(this, {
      handlers,
      handshake: "",
      isUpgraded: false,
      isPayload: false,
      body: null,
      at: 0,
      isDirect: false,
    });
    this.common = Buffer.allocUnsafeSlow(COMMON_BYTES);
    this.header = Buffer.alloc(HEADER_BYTES);
    this.headed = 0;
    this.spare = new Spare(); // for payloads that the handler copies
  }

  get refusal() {
    const [head, ...body] = this.handshake.split("\r\n\r\n");
    return `${head.split(" ", 2)[1] ?? "no answer"} ${body.join(" ").trim()}`;
  }

  // The memory to receive into.
  space() {
    this.isDirect = this.body !== null && this.body.length - this.at >= COMMON_BYTES;
    return this.isDirect ? this.body.subarray(this.at) : this.common;
  }

  filled(length) {
    if (this.isDirect) {
      this.at += length;
      this.finish();
      return true;
    }
    let rest = this.common.subarray(0, length);
    if (!this.isUpgraded) rest = this.shakeHands(rest);
    while (rest.length > 0) rest = this.body === null ? this.readHeader(rest) : this.readBody(rest);
    return true;
  }

  shakeHands(chunk) {
    const before = this.handshake.length;
    this.handshake += chunk.toString("latin1");
    const end = this.handshake.indexOf("\r\n\r\n");
    const [, status] = this.handshake.split(" ", 2);
    if (end < 0 || (status !== "101" && before > 0)) return EMPTY;
    this.isUpgraded = status === "101";
    this.handlers.response(status);
    return this.isUpgraded ? chunk.subarray(end + 4 - before) : EMPTY;
  }

  readHeader(chunk) {
    const taken = chunk.copy(this.header, this.headed);
    this.headed += taken;
    if (this.headed === HEADER_BYTES) {
      [this.headed, this.at] = [0, 0];
      const end = taken + this.header.readUInt32LE(0);
      if (end <= chunk.length) {
        this.text(chunk.toString("utf8", taken, end));
        return chunk.subarray(end);
      }
      this.body = new Uint8Array(end - taken);
    }
    return chunk.subarray(taken);
  }

  readBody(chunk) {
    const part = chunk.subarray(0, this.body.length - this.at);
    this.body.set(part, this.at);
    this.at += part.length;
    this.finish();
    return chunk.subarray(part.length);
  }

  finish() {
    if (this.at < this.body.length) return;
    const { body, handlers, isPayload } = this;
    this.isPayload = false;
    this.body = null;
    if (isPayload) {
      const isCopied = handlers.isCopied();
      handlers.binary(isCopied ? body : body.buffer);
      if (isCopied) this.spare.keep(body);
      return;
    }
    this.text(Buffer.from(body.buffer).toString("utf8"));
  }

  text(text) {
    const { handlers } = this;
    if (text.startsWith('{"end":')) {
      handlers.close(JSON.parse(text));
      return;
    }
    const size = handlers.text(text);
    if (size === 0) return;
    const memory = handlers.isCopied() ? this.spare.take(size) : new Uint8Array(size);
    [this.isPayload, this.body, this.at] = [true, memory, 0];
  }
}

// Requests that block: a worker makes them, this thread sleeps until the answer is there.
function synchronous(url) {
  const state = new Int32Array(new SharedArrayBuffer(8)); // whether the answer is there, whether the worker has started
  const { port1: port, port2 } = new MessageChannel();
  const workerData = { address: address(url), port: port2, state };
  const worker = new Worker(new URL("./node-sync.mjs", import.meta.url), {
    workerData,
    transferList: [port2],
    execArgv: [], // not those of this process, which may be for its main module
  });
  worker.unref();
  port.unref();

  let number = 0;

  // The answer to the last request. One that came late, or twice, is that of an earlier request.
  function answer() {
    for (;;) {
      const received = receiveMessageOnPort(port);
      if (received?.message.number === number) return received.message;
      if (received !== undefined) continue;
      if (Atomics.wait(state, 0, 0, SYNC_TIMEOUT_MS) === "timed-out") {
        throw new DOMException(`no answer from Opweave at ${url} in ${SYNC_TIMEOUT_MS / 1000} s`, "OperationError");
      }
      Atomics.store(state, 0, 0);
    }
  }

  function sync(body) {
    if (Atomics.wait(state, 1, 0, START_TIMEOUT_MS) === "timed-out") {
      throw new DOMException("the worker for synchronous requests has not started", "OperationError");
    }
    number += 1;
    port.postMessage({ number, body });
    const { status, text, error } = answer();
    if (status === 200) return text;
    throw new DOMException(`Opweave at ${url}: ${error ?? `${status} ${text}`}`, "OperationError");
  }

  return { sync, stop: () => worker.terminate() };
}

const { OPWEAVE_URL: url, OPWEAVE_TOKEN: token, OPWEAVE_MODE: mode } = process.env;
const given = Object.entries({ url, token, mode }).filter(([, value]) => value !== undefined);

export const ml = install(globalThis.opweaveOptions ?? Object.fromEntries(given), nodeTransport);
export default ml;
export { stats };
