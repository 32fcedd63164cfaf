// What Node.js takes to receive as many bytes as benchmarks/serve.mjs reads, from a bare socket and the server of
// benchmarks/floor.py: milliseconds, into new memory, and into memory that was used before.

import net from "node:net";

import { LARGE, perCall } from "./serve.mjs";

const BYTES = 4 * LARGE;

export async function measure(port) {
  const common = Buffer.allocUnsafeSlow(65_536); // for the head of the response, and what follows it in the same read
  let [target, at, received] = [null, BYTES, null]; // at -1, the head has not come yet
  const socket = net.connect({
    host: "127.0.0.1",
    port,
    noDelay: true,
    onread: {
      buffer: () => (at < 0 || at === BYTES ? common : target.subarray(at)),
      callback(length) {
        if (at < 0) {
          const start = common.indexOf("\r\n\r\n") + 4;
          target.set(common.subarray(start, length));
          at = length - start;
        } else at += length;
        if (at === BYTES) received();
        return true;
      },
    },
  });
  await new Promise((resolve, reject) => socket.on("connect", resolve).on("error", reject));

  function read(memory) {
    [target, at] = [memory, -1];
    const body = String(BYTES);
    socket.write(`POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    return new Promise((resolve) => (received = resolve));
  }

  const intoNew = () => read(new Uint8Array(BYTES));
  await perCall(intoNew, 1);
  const results = { new: await perCall(intoNew, 1) };
  const used = new Uint8Array(BYTES).fill(1);
  results.used = await perCall(() => read(used), 1);
  socket.destroy();
  return results;
}
