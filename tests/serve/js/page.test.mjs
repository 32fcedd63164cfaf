// How the script finds the server in a page, and speaks to it: in a realm with a WebSocket and an XMLHttpRequest that record.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import vm from "node:vm";


const { OPWEAVE_PACKAGE } = process.env;
const { install, script } = await import(`${OPWEAVE_PACKAGE}/playwright.mjs`);
const SHIM = readFileSync(new URL(`${OPWEAVE_PACKAGE}/webnn.js`), "utf8");
const any = { dataTypes: ["float32"], rankRange: { min: 0, max: 8 } };
const HELLO = { session: "key", accelerated: false, limits: { maxTensorByteLength: 1e9, input: any, constant: any } };

// A realm as a page has it; `answer` gives status and text of synchronous requests.
function page({
  options,
  source,
  isSecure = true,
  ml,
  refuse = false,
  isService = false,
  answer = () => [200, '{"operands": []}'],
  filename = "inline.js",
} = {}) {
  const log = { sockets: [], requests: [], messages: [], warnings: [] };
  class WebSocket {
    constructor(url, protocols) {
      log.sockets.push({ url, protocols, socket: this });
      this.bufferedAmount = 0;
      queueMicrotask(() => (refuse ? this.onclose({ code: 1006, reason: "" }) : this.onopen()));
    }

    send(data) {
      if (typeof data !== "string") return;
      log.messages.push(JSON.parse(data));
      const { m, r } = JSON.parse(data);
      if (r)
        queueMicrotask(() =>
          this.onmessage({
            data: JSON.stringify({ r, ...(m === "hello" ? HELLO : { inputs: {}, outputs: {}, devices: [] }) }),
          }),
        );
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
    URL,
    structuredClone,
    DOMException,
    setTimeout,
    document: { currentScript: source ? { src: source } : null },
    ...(options && { opweaveOptions: options }),
  });
  vm.runInContext(SHIM, scope, { filename });
  return { scope, log, run: (code) => vm.runInContext(code, scope) };
}

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

test("errors of synchronous requests", async () => {
  await assert.rejects(page({ answer: () => [403, "no such session"] }).run(RELU), {
    name: "OperationError",
    message: /8801: 403 no such session/,
  });
  await assert.rejects(page({ answer: () => [0] }).run(RELU), {
    name: "OperationError",
    message: /no answer from Opweave at http:\/\/127\.0\.0\.1:8801/,
  });
});

test("service workers, which cannot wait, build graphs in the lazy mode", async () => {
  const cannot = { name: "NotSupportedError", message: /service workers have no synchronous requests/ };
  await assert.rejects(page({ isService: true }).run(RELU), cannot);
  const { run, log } = page({ isService: true, options: { mode: "lazy" } });
  await assert.rejects(run(`${RELU}.then(({ shape }) => shape)`), cannot);
  const build = `${RELU.replace("return", "const y =").replace("\n})", "\n  return builder.build({ y });\n})")}`;
  assert.equal(await run(`${build}.then(String)`), "[object MLGraph]");
  const [{ log: entries }] = log.messages.filter(({ m }) => m === "build");
  assert.deepEqual(
    entries.map(([op]) => op),
    ["input", "transpose"],
  );
});

test("no connection", async () => {
  const { run } = page({ refuse: true });
  await assert.rejects(run("navigator.ml.createContext()"), {
    name: "NotSupportedError",
    message: /no connection to Opweave at .* is `opweave serve` running, and are this page's origin/,
  });
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
  await assert.rejects(install({}), /takes a page or context of Playwright/);
});
