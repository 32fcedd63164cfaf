// How the script finds the server in a page, and speaks to it: in a realm with a WebSocket and an XMLHttpRequest that record.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import vm from "node:vm";


const { OPWEAVE_PACKAGE } = process.env;
const { install, script } = await import(`${OPWEAVE_PACKAGE}/playwright.mjs`);
const SHIM = readFileSync(new URL(`${OPWEAVE_PACKAGE}/webnn.js`), "utf8");
const any = { dataTypes: ["float32"], rankRange: { min: 0, max: 8 } };
const BUILT = { inputs: {}, outputs: {}, devices: [] };
const HELLO = { session: "key", accelerated: false, limits: { maxTensorByteLength: 1e9, input: any, constant: any } };

// A realm as a page has it; `answer` gives status and text of synchronous requests.
function page({
  options,
  source,
  isSecure = true,
  ml,
  refuse = false,
  isService = false,
  isJoined = true,
  answer = () => [200, '{"operands": []}'],
  fetched = null,
  isLate = false, // whether contents that were not asked for follow in a frame
  filename = "inline.js",
} = {}) {
  const log = { sockets: [], requests: [], messages: [], payloads: [], frames: [], warnings: [] };
  class WebSocket {
    constructor(url, protocols) {
      log.sockets.push({ url, protocols, socket: this });
      this.bufferedAmount = 0;
      queueMicrotask(() => {
        if (!refuse) return this.onopen();
        this.onerror();
        if (refuse !== "policy") this.onclose({ code: 1006, reason: "" });
      });
    }

    // A stream of messages, each with its size and its payload, which frames divide anywhere.
    send(frame) {
      const kinds = [];
      log.frames.push({ size: frame.length, kinds });
      this.stream = Buffer.concat([this.stream ?? Buffer.alloc(0), frame]);
      while (this.stream.length >= 4) {
        const end = 4 + this.stream.readUInt32LE();
        const message = end <= this.stream.length && JSON.parse(this.stream.toString("utf8", 4, end));
        const { m, r, bin = 0 } = message || {};
        if (!m || this.stream.length < end + bin) return;
        log.messages.push(message);
        kinds.push(m);
        if (bin) log.payloads.push([...this.stream.subarray(end, end + bin)]);
        this.stream = this.stream.subarray(end + bin);
        if (r) setTimeout(() => this.answer(m, r), 0);
      }
    }

    answer(m, r) {
      if (m === "read" && fetched) {
        const isApart = log.messages.find((message) => message.r === r).apart;
        const say = (fields) => {
          const text = Buffer.from(`    ${JSON.stringify({ r, bin: LARGE_BYTES, ...fields })}`);
          text.writeUInt32LE(text.length - 4);
          this.onmessage({ data: new Uint8Array(text).buffer });
        };
        if (isApart) say({ key: "abc" });
        const late = () => {
          say({});
          const data = new Uint8Array(LARGE_BYTES);
          data[LARGE_BYTES - 1] = 8;
          this.onmessage({ data: data.buffer });
        };
        if (!isApart) late();
        else if (isLate) setTimeout(late, 20);
        return;
      }
      const text = JSON.stringify({ r, ...(m === "hello" ? HELLO : m === "read" ? { bin: 4 } : BUILT) });
      const data = Buffer.alloc(4 + text.length + 4);
      data.writeUInt32LE(text.length);
      data.write(text, 4);
      data.writeUInt32LE(r, 4 + text.length);
      const { buffer } = new Uint8Array(data);
      const end = m === "read" && isJoined ? data.length : 4 + text.length;
      this.onmessage({ data: buffer.slice(0, end) });
      if (m === "read" && !isJoined) this.onmessage({ data: buffer.slice(end) });
    }
  }
  class XMLHttpRequest {
    open(...given) {
      this.given = given;
    }

    setRequestHeader(...header) {
      this.header = header;
    }

    send(body) {
      log.requests.push({ given: this.given, header: this.header, body: JSON.parse(body) });
      const [status, text] = answer(JSON.parse(body));
      if (status === 0) throw new Error("NetworkError");
      Object.assign(this, { status, responseText: text });
    }
  }
  class Navigator {}
  if (ml) Object.defineProperty(Navigator.prototype, "ml", { value: ml, configurable: true });
  const console = { warn: (text) => log.warnings.push(text), info: (text) => log.warnings.push(text) };
  const scope = vm.createContext({
    WebSocket,
    ...(!isService && { XMLHttpRequest }),
    console,
    navigator: new Navigator(),
    isSecureContext: isSecure,
    origin: "http://localhost:5173",
    URL,
    structuredClone,
    DOMException,
    setTimeout,
    queueMicrotask,
    TextEncoder,
    TextDecoder,
    document: { currentScript: source ? { src: source } : null },
    ...(options && { opweaveOptions: options }),
    ...(fetched && {
      ReadableStreamBYOBReader,
      fetch: async (url, { method, body }) => {
        log.requests.push({ url, method, body });
        return fetched();
      },
    }),
  });
  vm.runInContext(SHIM, scope, { filename });
  return { scope, log, run: (code) => vm.runInContext(code, scope) };
}

const LARGE_BYTES = 8 * 2 ** 20;

const RUN = `(async () => {
  const context = await navigator.ml.createContext();
  const builder = new MLGraphBuilder(context);
  const graph = await builder.build({ y: builder.relu(builder.input("x", { dataType: "float32", shape: [1] })) });
  const tensor = await context.createTensor({ dataType: "float32", shape: [1], readable: true, writable: true });
  const data = new Uint8Array(4).fill(7);
  for (let k = 0; k < 3; k++) {
    context.writeTensor(tensor, data);
    data[0] += 1;
  }
  const [found, again] = await Promise.all([context.readTensor(tensor), context.readTensor(tensor)]);
  const large = await context.createTensor({ dataType: "float32", shape: [2 ** 18 + 1], writable: true });
  context.writeTensor(large, Uint8Array.from({ length: 2 ** 20 + 4 }, (_, k) => k % 251));
  context.writeTensor(tensor, data);
  await null; // the end of the task's microtasks
  return [found, again].map((buffer) => [...new Uint8Array(buffer)]);
})()`;

const RELU = `navigator.ml.createContext().then((context) => {
  const builder = new MLGraphBuilder(context);
  return builder.transpose(builder.input("x", { dataType: "float32", shape: [] }));
})`;

for (const [what, given, url, protocols] of [
  [
    "its own address",
    { source: "http://127.0.0.1:9000/webnn.js?token=a_B-c" },
    "ws://127.0.0.1:9000",
    ["opweave.webnn.1", "token.a_B-c"],
  ],
  [
    "options",
    { options: { url: "http://[::1]:9000/", token: "t" }, source: "http://127.0.0.1:1/webnn.js" },
    "ws://[::1]:9000",
    ["opweave.webnn.1", "token.t"],
  ],
  [
    "a stack trace",
    { filename: "http://127.0.0.1:9001/webnn.js?token=abc&mode=lazy" },
    "ws://127.0.0.1:9001",
    ["opweave.webnn.1", "token.abc"],
  ],
  ["nothing", {}, "ws://127.0.0.1:8801", ["opweave.webnn.1"]],
]) {
  test(`the server is found by ${what}`, async () => {
    const { run, log } = page(given);
    await run("navigator.ml.createContext()");
    assert.deepEqual(
      log.sockets.map(({ url, protocols }) => [url, [...protocols]]),
      [[url, protocols]],
    );
  });
}

test("operations are validated by synchronous requests without a preflight", async () => {
  const { run, log } = page({
    source: "http://127.0.0.1:9000/webnn.js",
    answer: () => [200, '{"operands": [[], [{"dataType": "float32", "shape": []}]]}'],
  });
  await run(RELU);
  const [{ given, header, body }] = log.requests;
  assert.deepEqual(
    [given, header],
    [
      ["POST", "http://127.0.0.1:9000/sync", false],
      ["Content-Type", "text/plain"],
    ],
  );
  assert.deepEqual([body.session, body.log.map(([op]) => op)], ["key", ["input", "transpose"]]);
});

for (const isJoined of [true, false])
  test(`what is sent in one task leaves in one frame; payloads ${isJoined ? "with" : "after"} their answers`, async () => {
    const { run, log } = page({ isJoined, answer: () => [200, '{"operands": [[{"dataType": "float32", "shape": [1]}]]}'] });
    const [[first], [second]] = await run(RUN);
    assert.equal(second, first + 1);
    assert.ok(log.frames.some(({ kinds }) => String(kinds) === "write,write,write,read,read"));
    assert.deepEqual(log.payloads.slice(0, 3), [
      [7, 7, 7, 7],
      [8, 7, 7, 7],
      [9, 7, 7, 7],
    ]);
    const [large, last] = log.payloads.slice(3);
    assert.equal(large.length, 2 ** 20 + 4);
    assert.ok(large.every((value, k) => value === k % 251));
    assert.deepEqual(last, [10, 7, 7, 7]);
    const [announced, { size }, { kinds }] = log.frames.slice(-3);
    assert.ok(announced.size < 100);
    assert.equal(size, 2 ** 20 + 4); // a large payload alone, which is not copied
    assert.deepEqual(kinds, ["write"]); // and what came next
  });

test("errors of synchronous requests", async () => {
  await assert.rejects(page({ answer: () => [403, "no such session"] }).run(RELU), {
    name: "OperationError",
    message: /8801: 403 no such session/,
  });
  await assert.rejects(page({ answer: () => [0] }).run(RELU), {
    name: "OperationError",
    message: /no answer from Opweave at http:\/\/127\.0\.0\.1:8801; it has ended, or a Content-Security-Policy/,
  });
});

test("service workers, which cannot wait, build graphs in the lazy mode", async () => {
  const cannot = { name: "NotSupportedError", message: /service workers have no synchronous requests/ };
  await assert.rejects(page({ isService: true }).run(RELU), cannot);
  const { run, log } = page({ isService: true, options: { mode: "lazy" } });
  await assert.rejects(run(`${RELU}.then(({ shape }) => shape)`), cannot);
  const build = `${RELU.replace("return", "const y =").replace("\n})", "\n  try { y.shape; } catch {}\n  return builder.build({ y });\n})")}`;
  assert.equal(await run(`${build}.then(String)`), "[object MLGraph]");
  const [{ log: entries }] = log.messages.filter(({ m }) => m === "build");
  assert.deepEqual(
    entries.map(([op]) => op),
    ["input", "transpose"],
  );
});

test("no connection", async () => {
  for (const [options, text] of [
    [{ token: "t" }, "allow http://localhost:5173 with this token?"],
    [{}, "allow http://localhost:5173 without a token?"],
  ]) {
    const { run } = page({ refuse: true, options });
    await assert.rejects(run("navigator.ml.createContext()"), {
      name: "NotSupportedError",
      message: `createContext: no connection to Opweave at http://127.0.0.1:8801 (1006); is \`opweave serve\` running, and does it ${text}`,
    });
  }
});

test("a connection that the page's policy forbids", async () => {
  const { run } = page({ refuse: "policy" });
  await assert.rejects(run("navigator.ml.createContext()"), {
    name: "NotSupportedError",
    message:
      "createContext: the browser blocked the connection to http://127.0.0.1:8801; a Content-Security-Policy must allow " +
      "ws://127.0.0.1:8801 and http://127.0.0.1:8801 in connect-src",
  });
});

test("a URL without a scheme", async () => {
  const { run } = page({ options: { url: "127.0.0.1:8911" } });
  await assert.rejects(run("navigator.ml.createContext()"), /the URL must be http:\/\/… \(in Node\.js also unix:\/…\), got 127\.0\.0\.1:8911/);
});

test("the end of a connection", async () => {
  const { run, log } = page();
  const lost = run("navigator.ml.createContext().then((context) => ({ lost: context.lost }))");
  const found = await lost;
  log.sockets[0].socket.onclose({ code: 1001, reason: "the server ends" });
  assert.match((await found.lost).message, /has ended \(1001, the server ends\)/);
});

test("insecure contexts have no navigator.ml", () => {
  const { run, log } = page({ isSecure: false });
  assert.equal(run("typeof navigator.ml + typeof MLContext"), "undefinedundefined");
  assert.match(log.warnings[0], /secure contexts only/);
});

test("a browser's own navigator.ml stays, unless force is set", () => {
  const own = { own: true };
  const { run, log } = page({ ml: own });
  assert.equal(run("navigator.ml"), own);
  assert.match(log.warnings[0], /set force/);
  assert.equal(page({ ml: own, options: { force: true } }).run("String(navigator.ml)"), "[object ML]");
  assert.equal(
    page({ ml: own, source: "http://127.0.0.1:8801/webnn.js?force" }).run("String(navigator.ml)"),
    "[object ML]",
  );
});

test("Playwright and Puppeteer get the script with its options", async () => {
  const given = [];
  await install(
    { addInitScript: async ({ content }) => given.push(content) },
    { url: "http://127.0.0.1:7", token: "x" },
  );
  await install(
    { evaluateOnNewDocument: async (content) => given.push(content) },
    { url: "http://127.0.0.1:7", token: "x" },
  );
  assert.equal(given[0], given[1]);
  assert.equal(given[0], script({ url: "http://127.0.0.1:7", token: "x" }));
  assert.equal(given[0], `globalThis.opweaveOptions = {"url":"http://127.0.0.1:7","token":"x"};\n${SHIM}`);
  for (const wrong of [undefined, {}]) {
    await assert.rejects(install(wrong, { url: "http://127.0.0.1:7" }), /takes a page or context of Playwright/);
  }
  const target = { addInitScript: async () => assert.fail("must not be called") };
  await assert.rejects(install(target, { url: undefined }), /needs the url of `opweave serve`, got undefined/);
  await assert.rejects(install(target, { url: "127.0.0.1:8911" }), /the URL must be http:.*, got 127.0.0.1:8911/);
  await assert.rejects(install(target, { url: "unix:/s" }), /pages cannot connect to a Unix socket/);
});

const READ = `(async () => {
  const context = await navigator.ml.createContext();
  const descriptor = { dataType: "float32", shape: [${LARGE_BYTES / 4}], readable: true };
  const tensor = await context.createTensor(descriptor);
  const target = new Uint8Array(${LARGE_BYTES});
  const whole = new Uint8Array(await context.readTensor(tensor));
  await context.readTensor(tensor, target);
  return [whole.length, target.length, ...whole.subarray(-2), ...target.subarray(-2)];
})()`;

const bytes = (count) => {
  const data = new Uint8Array(count);
  data[count - 1] = 9;
  return new Response(new ReadableStream({ type: "bytes", start: (stream) => (stream.enqueue(data), stream.close()) }));
};

test("a large tensor is read by a request", async () => {
  const made = page({ options: { url: "http://127.0.0.1:9" }, fetched: () => bytes(LARGE_BYTES) });
  assert.deepEqual([...(await made.run(READ))], [LARGE_BYTES, LARGE_BYTES, 0, 9, 0, 9]);
  assert.deepEqual(made.log.requests[1], { url: "http://127.0.0.1:9/payload", method: "POST", body: "abc" });
  assert.deepEqual(made.log.messages.filter(({ m }) => m === "read").map(({ apart }) => apart), [true, true]);
});

test("a payload that ends early rejects, and its request is cancelled", async () => {
  let isCancelled = false;
  const short = () => {
    const data = new Uint8Array(LARGE_BYTES - 1);
    const end = (stream) => (stream.enqueue(data), stream.close());
    return new Response(new ReadableStream({ type: "bytes", start: end }));
  };
  const broken = () => {
    const start = (stream) => stream.enqueue(new Uint8Array(8));
    const cancel = () => void (isCancelled = true);
    const response = new Response(new ReadableStream({ type: "bytes", start, cancel }));
    const reader = response.body.getReader({ mode: "byob" });
    const read = async () => ({ done: true, value: undefined });
    return { ok: true, body: { getReader: () => ({ read, cancel: () => reader.cancel() }) } };
  };
  for (const [fetched, message] of [
    [short, /ended early|closed/], // in Chromium, in Node.js 20
    [broken, /ended early/],
  ]) {
    const made = page({ options: { url: "http://127.0.0.1:9" }, fetched });
    await assert.rejects(made.run(READ), { name: "OperationError", message });
  }
  assert.equal(isCancelled, true);
});

test("contents follow in a frame if they cannot be asked for", async () => {
  for (const fetched of [
    () => new Response("there is no such payload", { status: 403 }),
    () => Promise.reject(new TypeError("Failed to fetch")),
  ]) {
    const made = page({ options: { url: "http://127.0.0.1:9" }, fetched, isLate: true });
    assert.deepEqual([...(await made.run(READ))], [LARGE_BYTES, LARGE_BYTES, 0, 8, 0, 8]);
    const asked = made.log.messages.filter(({ m }) => m === "read").map(({ apart }) => apart);
    assert.deepEqual(asked, [true, undefined]); // once is enough to know
  }
});

test("several reads that cannot be asked for follow in frames", async () => {
  const fetched = () => Promise.reject(new TypeError("Failed to fetch"));
  const made = page({ options: { url: "http://127.0.0.1:9" }, fetched, isLate: true });
  const read = READ.replace(/const whole[^]*return/, `
    const all = await Promise.all([1, 2, 3].map(() => context.readTensor(tensor)));
    return all.map((buffer) => new Uint8Array(buffer).at(-1)); return`);
  assert.deepEqual([...(await made.run(read))], [8, 8, 8]);
});

test("engines give less at a time than was asked for", async () => {
  const parts = () => {
    let left = LARGE_BYTES;
    const read = async (view) => {
      const count = Math.min(view.length, left, 100_000);
      left -= count;
      const value = new Uint8Array(view.buffer, view.byteOffset, count).fill(9, count - 1);
      return { done: false, value };
    };
    return { ok: true, body: { getReader: () => ({ read, cancel: async () => {} }) } };
  };
  const made = page({ options: { url: "http://127.0.0.1:9" }, fetched: parts });
  const [whole, target, , last, , lastOfTarget] = await made.run(READ);
  assert.deepEqual([whole, target, last, lastOfTarget], [LARGE_BYTES, LARGE_BYTES, 9, 9]);
});

test("contents are unwanted once their read was rejected", async () => {
  const made = page({ options: { url: "http://127.0.0.1:9" }, fetched: () => new Response(null, { status: 204 }) });
  const name = await made.run(`(async () => {
    const context = await navigator.ml.createContext();
    const tensor = await context.createTensor({ dataType: "float32", shape: [${LARGE_BYTES / 4}], readable: true });
    const read = context.readTensor(tensor).catch(({ name }) => name);
    tensor.destroy();
    return read;
  })()`);
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(name, "InvalidStateError");
  assert.deepEqual(made.log.requests.map(({ body }) => body), ["abc unwanted"]);
});

test("an array is not written once its read was rejected", async () => {
  let proceed;
  const response = new Promise((resolve) => (proceed = resolve));
  const made = page({ options: { url: "http://127.0.0.1:9" }, fetched: () => response });
  const found = await made.run(`(async () => {
    const context = await navigator.ml.createContext();
    const tensor = await context.createTensor({ dataType: "float32", shape: [${LARGE_BYTES / 4}], readable: true });
    const target = new Uint8Array(${LARGE_BYTES});
    const read = context.readTensor(tensor, target).catch(({ name }) => name);
    await new Promise((resolve) => setTimeout(resolve, 20));
    tensor.destroy();
    return { name: await read, target };
  })()`);
  proceed(bytes(LARGE_BYTES));
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(found.name, "InvalidStateError");
  assert.equal(found.target[LARGE_BYTES - 1], 0);
});
