// Installation in a page or worker, and the WebSocket to the server.

// Messages of one task are joined to pieces of this size, because browsers need time for each frame, and Node.js for
// each system call; larger messages are not joined. 64 MiB in frames of 63 KiB take 1.4 to 1.6 times as long
// (in Chromium 156).
const FRAME_BYTES = 255 * 2 ** 10;

// A function that sends a message and its payload. `write(bytes)` returns whether it needs the bytes no longer;
// `large(bytes)`, for payloads that are not copied here, must not need them. `used()` tells how many bytes wait for the
// end of the task.
function joiner(write, large) {
  const encoder = new TextEncoder();
  const sizeAsBytes = (size) => new Uint8Array(Uint32Array.of(size).buffer);
  let [staged, used] = [new Uint8Array(FRAME_BYTES), 0];

  function send(message, payload) {
    if (!used) queueMicrotask(flush);
    const most = 4 + 3 * message.length; // bytes of UTF-8
    if (used + most > FRAME_BYTES) flush();
    if (most <= FRAME_BYTES) {
      const { written } = encoder.encodeInto(message, staged.subarray(used + 4));
      staged.set(sizeAsBytes(written), used);
      used += 4 + written;
    } else {
      const bytes = encoder.encode(message);
      put(sizeAsBytes(bytes.length));
      put(bytes);
    }
    if (payload) put(payload);
  }

  function put(bytes) {
    if (bytes.length > FRAME_BYTES - used) flush();
    if (bytes.length > FRAME_BYTES) {
      large(bytes);
      return;
    }
    staged.set(bytes, used);
    used += bytes.length;
  }

  function flush() {
    if (used && !write(staged.subarray(0, used))) staged = new Uint8Array(FRAME_BYTES);
    used = 0;
  }

  return { send, flush, used: () => used };
}

const PROTOCOL = "opweave.webnn.1";
const DEFAULT_URL = "http://127.0.0.1:8801";

// Tensors of this size and more are read by an HTTP request, where its response can be received into memory of the
// page. In Chromium 156, that is slower for tensors of less than half of this size, because a request takes longer than
// a message.
const APART_BYTES = 8 * 2 ** 20;
const PIECE_BYTES = 2 ** 20; // of a response that goes to an array of the page: fits the cache of a processor

// The transport of pages and workers: a WebSocket, and synchronous requests for what must be known at once.
const webTransport =
  ({ url, token }) =>
  ({ text, binary, closed }) =>
    new Promise((resolve, reject) => {
      if (!/^https?:/.test(url)) fail(`the URL must be http://… (in Node.js also unix:/…), got ${url}`);
      const address = url.replace(/^http/, "ws");
      const socket = new WebSocket(address, token ? [PROTOCOL, `token.${token}`] : [PROTOCOL]);
      socket.binaryType = "arraybuffer";
      socket.onmessage = ({ data }) => receive(data);
      socket.onclose = ({ code, reason }) => {
        const end = `(${code}${reason && `, ${reason}`})`;
        const why = `no connection to Opweave at ${url} ${end}; is \`opweave serve\` running,`;
        reject(new Error(`${why} and does it allow ${globalThis.origin} with${token ? " this" : "out a"} token?`));
        closed(`the connection to Opweave at ${url} has ended ${end}`);
      };
      // Chromium reports an error alone if a policy forbids the connection, and else closes it in the same task.
      socket.onerror = () => {
        const policy = `a Content-Security-Policy must allow ${address} and ${url} in connect-src`;
        setTimeout(() => reject(new Error(`the browser blocked the connection to ${url}; ${policy}`)), 0);
      };
      socket.onopen = () =>
        resolve({
          send,
          sync: globalThis.XMLHttpRequest && sync,
          buffered: () => socket.bufferedAmount + used(),
          hold() {},
          fetch: globalThis.ReadableStreamBYOBReader && fetchPayload,
        });
      const write = (bytes) => (socket.send(bytes), true); // it copies them
      const { send, flush, used } = joiner(write, write);
      const decoder = new TextDecoder();
      let awaited = 0; // bytes of the payload that comes next

      function receive(buffer) {
        if (awaited) {
          awaited = 0;
          binary(buffer); // a whole frame is not copied
          return;
        }
        const size = new DataView(buffer).getUint32(0, true);
        awaited = text(decoder.decode(new Uint8Array(buffer, 4, size)));
        if (buffer.byteLength === 4 + size) return;
        awaited = 0;
        binary(buffer.slice(4 + size));
      }

      // The contents of a payload, or nothing if they are in the array of the request that `request` returns, or if
      // there is no such request any more. Null if no response is possible, or it is too late: the contents follow in
      // a frame.
      async function fetchPayload(key, size, request) {
        const body = request() ? key : `${key} unwanted`; // none if the read was rejected meanwhile
        const response = await fetch(`${url}/payload`, { method: "POST", body }).catch(() => null);
        if (!response?.ok) return null;
        if (response.status === 204) return undefined;
        const reader = response.body.getReader({ mode: "byob" });
        // Fill a buffer: engines without the option `min` give less at a time.
        const fill = async (buffer, size) => {
          for (let at = 0; at < size; ) {
            const { value } = await reader.read(new Uint8Array(buffer, at, size - at), { min: size - at });
            if (!value?.length) throw new Error("the payload has ended early");
            at += value.length;
            ({ buffer } = value);
          }
          return buffer;
        };
        try {
          if (!request()?.target) return await fill(new ArrayBuffer(size), size);
          let buffer = new ArrayBuffer(PIECE_BYTES);
          for (let at = 0; at < size; at += PIECE_BYTES) {
            const count = Math.min(PIECE_BYTES, size - at);
            buffer = await fill(buffer, count);
            const array = request()?.target;
            if (array?.length) array.set(new Uint8Array(buffer, 0, count), at); // else it was detached
          }
          return undefined;
        } catch (error) {
          reader.cancel().catch(() => {}); // the server waits until it has sent all
          throw error;
        }
      }

      function sync(body) {
        flush();
        const request = new XMLHttpRequest();
        request.open("POST", `${url}/sync`, false);
        request.setRequestHeader("Content-Type", "text/plain"); // a type for which browsers send no preflight
        try {
          request.send(body);
        } catch {
          const why = `it has ended, or a Content-Security-Policy does not allow ${url} in connect-src`;
          throw new DOMException(`no answer from Opweave at ${url}; ${why}`, "OperationError");
        }
        if (request.status === 200) return request.responseText;
        throw new DOMException(`Opweave at ${url}: ${request.status} ${request.responseText}`, "OperationError");
      }
    });

// Define `navigator.ml` and the interfaces. Options: `url` and `token` as `opweave serve` prints them; `mode`: "strict"
// or "lazy"; `force`: replace a `navigator.ml` that is there.
function install(options = {}, transport = webTransport) {
  const { url = DEFAULT_URL, token = "", mode = "strict", force = false } = options;
  if (!["strict", "lazy"].includes(mode)) fail(`opweave: mode must be "strict" or "lazy", got ${shown(mode)}`);
  const global = globalThis;
  if (global.isSecureContext === false) {
    console.warn("opweave: navigator.ml exists in secure contexts only: use https, or http://localhost");
    return undefined;
  }
  if (global.navigator?.ml && !force) {
    if (!slots.has(global.navigator.ml))
      console.info("opweave: navigator.ml is there already; set force to replace it");
    return global.navigator.ml;
  }
  for (const Interface of [ML, MLContext, MLGraph, MLGraphBuilder, MLOperand, MLTensor]) expose(global, Interface);
  if (!global.GPUDevice) expose(global, GPUDevice); // libraries ask `device instanceof GPUDevice`
  if (!global.navigator) {
    class Navigator {}
    Object.defineProperty(global, "navigator", { value: new Navigator(), configurable: true, writable: true });
  }
  const { navigator } = global;
  const ml = create(ML, { mode, transport: transport({ url: url.replace(/\/$/, ""), token }), connecting: null });
  const attribute = {
    get ml() {
      if (this !== navigator) fail("navigator.ml: Illegal invocation");
      return ml;
    },
  };
  const { get } = Object.getOwnPropertyDescriptor(attribute, "ml");
  Object.defineProperty(Object.getPrototypeOf(navigator), "ml", { get, enumerable: true, configurable: true });
  return ml;
}

class GPUDevice {
  constructor() {
    checkInternal(arguments[0], "GPUDevice");
  }
}

// The address and options of the server: `opweaveOptions`, or those in the URL of this script (`/webnn.js?token=…`).
// Workers and modules know that URL from stack traces only.
function pageOptions() {
  if (globalThis.opweaveOptions) return globalThis.opweaveOptions;
  const [source] =
    /https?:[^\s"']+\/webnn\.js(\?[^\s:)]*)?/.exec(globalThis.document?.currentScript?.src ?? new Error().stack) ?? [];
  if (!source) return {};
  const { origin, searchParams } = new URL(source);
  const options = { url: origin, force: searchParams.has("force") };
  for (const name of ["token", "mode"]) if (searchParams.has(name)) options[name] = searchParams.get(name);
  return options;
}

if (typeof module === "object" && module.exports) module.exports = Object.assign(install, { joiner });
else install(pageOptions());
