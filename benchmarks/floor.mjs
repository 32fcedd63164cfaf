// What benchmarks/serve.mjs measures, with the server of benchmarks/floor.py at `globalThis.floorPort`: the same bytes, and nothing
// but the browser. A message begins with the size of its answer, or 1 for none; the body of a request is that of its response.

import { LARGE, perCall } from "/serve.mjs";

const FRAME_BYTES = 255 * 2 ** 10; // that of src/opweave/serve/js/install.js
const PIECE_BYTES = 2 ** 20; // as there
const ASK_BYTES = 40; // about what a message without a payload has

export async function measure() {
  const address = `127.0.0.1:${globalThis.floorPort}`;
  const socket = new WebSocket(`ws://${address}/`);
  socket.binaryType = "arraybuffer";
  await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));

  function message(size, wanted) {
    const bytes = new Uint8Array(size);
    new DataView(bytes.buffer).setUint32(0, wanted, true);
    return bytes;
  }

  // Messages of `size` bytes together, as the script sends them, the last of which asks for an answer.
  function messages(size, wanted) {
    if (size <= FRAME_BYTES) return [message(size, wanted)];
    const whole = [message(ASK_BYTES, 1), message(size - ASK_BYTES, 1)];
    return wanted > 1 ? [...whole, message(ASK_BYTES, wanted)] : whole;
  }

  function ask(...messages) {
    const answered = new Promise((resolve) => (socket.onmessage = resolve));
    for (const one of messages) socket.send(one);
    return answered;
  }

  function post() {
    const request = new XMLHttpRequest();
    request.open("POST", `http://${address}/`, false);
    request.setRequestHeader("Content-Type", "text/plain");
    request.send("2".padStart(200, "0")); // the size of the answer
    return request.responseText;
  }

  const results = {};
  const tiny = message(ASK_BYTES, ASK_BYTES);
  await perCall(() => ask(tiny), 100);
  results.roundTrip = await perCall(() => ask(tiny), 100);
  results.operation = await perCall(post, 50);
  for (const [name, length] of [["run30", 7500], ["run602", 150528]]) {
    const run = messages(4 * length + 3 * ASK_BYTES, 4000 + ASK_BYTES);
    await perCall(() => ask(...run), 20);
    results[name] = await perCall(() => ask(...run), 50);
  }
  const write = messages(4 * LARGE, ASK_BYTES);
  await ask(...write);
  results.write = await perCall(() => ask(...write), 1);
  async function reader() {
    const response = await fetch(`http://${address}/`, { method: "POST", body: String(4 * LARGE) });
    return response.body.getReader({ mode: "byob" });
  }

  results.read = await perCall(async () => {
    const from = await reader();
    await from.read(new Uint8Array(4 * LARGE), { min: 4 * LARGE });
  }, 1);
  const target = new Uint8Array(4 * LARGE).fill(1);
  results.readInto = await perCall(async () => {
    const from = await reader();
    let buffer = new ArrayBuffer(PIECE_BYTES);
    for (let at = 0; at < target.length; at += PIECE_BYTES) {
      const { value } = await from.read(new Uint8Array(buffer), { min: PIECE_BYTES });
      target.set(value, at);
      ({ buffer } = value);
    }
  }, 1);
  const weights = messages(1_000_000, 1);
  results.constants = await perCall(() => ask(...Array(100).fill(weights).flat(), tiny), 1, 5);
  socket.close();
  return results;
}
