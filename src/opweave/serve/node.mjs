// navigator.ml for Node.js: `import "opweave-webnn/node.mjs"`.
//
// Where the server is: `globalThis.opweaveOptions` ({ url, token, mode, force }) if set before, or else the environment
// (OPWEAVE_URL, OPWEAVE_TOKEN, OPWEAVE_MODE). A URL is http://127.0.0.1:PORT, or unix:/path/of/a/socket.
//
// Messages go over one connection without the masks of WebSocket (`Upgrade: opweave`): a length (u32, little-endian), a kind
// (1 text, 2 binary, 8 close: a code as u16, big-endian, and a reason), the bytes. Synchronous requests are made by a worker, for whose answers this thread waits.

import http from "node:http";
import { text as textOf } from "node:stream/consumers";
import { MessageChannel, receiveMessageOnPort, Worker } from "node:worker_threads";

import install from "./webnn.js";

const PROTOCOL = "opweave.webnn.1";
const [TEXT, BINARY, CLOSE] = [1, 2, 8];
const HEADER_BYTES = 5;
const SYNC_TIMEOUT_MS = 600_000; // a server that is alive answers a validation in milliseconds
const START_TIMEOUT_MS = 30_000; // of the worker, which takes 50 ms on an idle machine

// What `http.request` takes for a server's URL.
export function address(url) {
  if (url.startsWith("unix:")) return { socketPath: url.slice("unix:".length), host: "localhost" };
  const { protocol, hostname, port } = new URL(url);
  if (protocol !== "http:") throw new TypeError(`opweave: the URL must be http://… or unix:/…, got ${url}`);
  return { host: hostname.replace(/^\[|\]$/g, ""), port: port || 80 };
}

const nodeTransport = ({ url, token }) => ({ text, binary, closed }) =>
  new Promise((resolve, reject) => {
    const protocols = token ? `${PROTOCOL}, token.${token}` : PROTOCOL;
    const headers = { Connection: "Upgrade", Upgrade: "opweave", "Sec-Opweave-Protocol": protocols };
    const request = http.request({ ...address(url), path: "/", headers, agent: false });
    request.on("error", (error) => {
      reject(new Error(`no connection to Opweave at ${url} (${error.message}); is \`opweave serve\` running?`));
    });
    request.on("response", (response) => {
      const refused = `Opweave at ${url} refuses the connection: ${response.statusCode}`;
      textOf(response).then((why) => reject(new Error(`${refused} ${why}`)), reject);
    });
    request.on("upgrade", (_, socket, head) => {
      socket.setNoDelay(true);
      socket.unref(); // an idle connection does not keep the process
      let why = "";
      const read = reader(text, binary, (code, reason) => (why = ` (${code}, ${reason})`));
      socket.on("data", read);
      socket.on("error", () => {}); // `close` follows
      socket.on("close", () => {
        stop();
        closed(`the connection to Opweave at ${url} has ended${why}`);
      });
      if (head.length) read(head);
      const { sync, stop } = synchronous(url);
      resolve({ send: sender(socket), sync, buffered: () => socket.writableLength, hold: (on) => (on ? socket.ref() : socket.unref()) });
    });
    request.end();
  });

// Write messages; those of one turn of the event loop leave together.
function sender(socket) {
  let corked = false;
  return (message, payload) => {
    if (!corked) {
      corked = true;
      socket.cork();
      process.nextTick(() => {
        corked = false;
        socket.uncork();
      });
    }
    const bytes = Buffer.from(message);
    socket.write(header(bytes.length, TEXT));
    socket.write(bytes);
    if (!payload) return;
    socket.write(header(payload.length, BINARY));
    socket.write(Uint8Array.prototype.slice.call(payload)); // the caller may change its memory at once
  };
}

function header(length, kind) {
  const bytes = Buffer.allocUnsafe(HEADER_BYTES);
  bytes.writeUInt32LE(length, 0);
  bytes[4] = kind;
  return bytes;
}

// Cut what arrives into messages. The bytes of a message are copied once, into the buffer that it is handed on in.
function reader(text, binary, close) {
  const head = Buffer.alloc(HEADER_BYTES);
  let [headed, kind, body, filled] = [0, 0, null, 0];
  return (chunk) => {
    let at = 0;
    while (at < chunk.length) {
      if (body === null) {
        const taken = chunk.copy(head, headed, at, at + HEADER_BYTES - headed);
        headed += taken;
        at += taken;
        if (headed < HEADER_BYTES) return;
        [kind, body, filled] = [head[4], new Uint8Array(head.readUInt32LE(0)), 0];
      }
      const taken = Math.min(body.length - filled, chunk.length - at);
      body.set(chunk.subarray(at, at + taken), filled);
      filled += taken;
      at += taken;
      if (filled < body.length) return;
      const done = body;
      [headed, body] = [0, null];
      if (kind === TEXT) text(Buffer.from(done.buffer).toString("utf8"));
      else if (kind === BINARY) binary(done.buffer);
      else if (kind === CLOSE) close(new DataView(done.buffer).getUint16(0), Buffer.from(done.buffer, 2).toString("utf8"));
    }
  };
}

// Requests that block: a worker makes them, this thread sleeps until the answer is there.
function synchronous(url) {
  const state = new Int32Array(new SharedArrayBuffer(8)); // whether the answer is there, whether the worker has started
  const { port1: port, port2 } = new MessageChannel();
  const workerData = { address: address(url), port: port2, state };
  const worker = new Worker(new URL("./node-sync.mjs", import.meta.url), {
    workerData, transferList: [port2], execArgv: [], // not those of this process, which may be for its main module
  });
  worker.unref();
  port.unref();

  function sync(body) {
    if (Atomics.wait(state, 1, 0, START_TIMEOUT_MS) === "timed-out") {
      throw new DOMException("the worker for synchronous requests has not started", "OperationError");
    }
    Atomics.store(state, 0, 0);
    port.postMessage(body);
    if (Atomics.wait(state, 0, 0, SYNC_TIMEOUT_MS) === "timed-out") {
      throw new DOMException(`no answer from Opweave at ${url} in ${SYNC_TIMEOUT_MS / 1000} s`, "OperationError");
    }
    const { status, text, error } = receiveMessageOnPort(port).message;
    if (status === 200) return text;
    throw new DOMException(`Opweave at ${url}: ${error ?? `${status} ${text}`}`, "OperationError");
  }

  return { sync, stop: () => worker.terminate() };
}

const { OPWEAVE_URL: url, OPWEAVE_TOKEN: token, OPWEAVE_MODE: mode } = process.env;
const given = Object.entries({ url, token, mode }).filter(([, value]) => value !== undefined);

export const ml = install(globalThis.opweaveOptions ?? Object.fromEntries(given), nodeTransport);
export default ml;
