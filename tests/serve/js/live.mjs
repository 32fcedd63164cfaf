// node live.mjs: what only a real server shows. It is at OPWEAVE_URL, with the device `cpu`; see test_node_live.py.

import assert from "node:assert/strict";
import http from "node:http";
import net from "node:net";
import { describe, test } from "node:test";

const SHIM = `${process.env.OPWEAVE_PACKAGE}/node.mjs`;
const { ml } = await import(SHIM);

const float32 = (...shape) => ({ dataType: "float32", shape });
const context = await ml.createContext();

async function doubling(on, length) {
  const builder = new MLGraphBuilder(on);
  const x = builder.input("x", float32(length));
  const graph = await builder.build({ y: builder.add(x, x) });
  const input = await on.createTensor({ ...float32(length), writable: true });
  const output = await on.createTensor({ ...float32(length), readable: true });
  return { graph, input, output };
}

test("payloads of all sizes arrive as they were when they were given", async () => {
  for (const length of [1, 3, 16_383, 16_384, 100_003, 1 << 22]) {
    const { graph, input, output } = await doubling(context, length);
    const data = Float32Array.from({ length }, (_, at) => at % 1000);
    context.writeTensor(input, data);
    data.fill(-1); // the tensor has a copy
    context.dispatch(graph, { x: input }, { y: output });
    const found = new Float32Array(await context.readTensor(output));
    assert.equal(found.length, length);
    assert.ok(
      found.every((value, at) => value === 2 * (at % 1000)),
      String(length),
    );
  }
});

test("many runs without waiting", async () => {
  const { graph, input, output } = await doubling(context, 256);
  const reads = [];
  for (let i = 0; i < 300; i++) {
    context.writeTensor(input, new Float32Array(256).fill(i));
    context.dispatch(graph, { x: input }, { y: output });
    reads.push(context.readTensor(output));
  }
  const found = await Promise.all(reads);
  assert.ok(found.every((buffer, i) => new Float32Array(buffer).every((value) => value === 2 * i)));
});

test("operations are validated while reads are under way", async () => {
  const { output } = await doubling(context, 1 << 20);
  const reading = context.readTensor(output);
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", float32(2, 3));
  assert.deepEqual(builder.transpose(x).shape, [3, 2]);
  assert.throws(
    () => builder.transpose(x, { permutation: [0, 0], label: "t" }),
    /^TypeError: \[t\] transpose 't': permutation/,
  );
  assert.deepEqual(
    builder.split(x, [1, 2], { axis: 1 }).map(({ shape }) => shape),
    [
      [2, 1],
      [2, 2],
    ],
  );
  assert.equal((await reading).byteLength, 1 << 22);
});

test("constants of all forms", async () => {
  const builder = new MLGraphBuilder(context);
  const tensor = await context.createConstantTensor(
    { dataType: "int64", shape: [2] },
    BigInt64Array.of(2n ** 62n, -1n),
  );
  const shared = new BigInt64Array(new SharedArrayBuffer(16));
  shared.set([1n, 2n]);
  const weights = builder.constant(tensor);
  tensor.destroy(); // the builder keeps what it needs
  const sum = builder.add(
    builder.add(weights, builder.constant({ dataType: "int64", shape: [2] }, shared)),
    builder.constant("int64", 2n ** 61n + 1n),
  );
  const graph = await builder.build({ sum });
  const output = await context.createTensor({ dataType: "int64", shape: [2], readable: true });
  context.dispatch(graph, {}, { sum: output });
  assert.deepEqual(
    [...new BigInt64Array(await context.readTensor(output))],
    [2n ** 62n + 2n ** 61n + 2n, 2n ** 61n + 2n],
  );
});

test("what is known without the server is what the server says", async () => {
  const SHAPES = [[], [3], [2, 3], [2, 1], [4, 1, 3], [2, 1, 1, 2, 1, 1, 1, 3]];
  const TYPES = ["float32", "int32", "int64", "uint8"];
  const limits = context.opSupportLimits();
  let asked = 0;
  const builder = new MLGraphBuilder(context);
  const operands = Object.fromEntries(
    TYPES.map((dataType) => [dataType, SHAPES.map((shape) => builder.input("x", { dataType, shape }))]),
  );
  // The server computes what follows from its own descriptors; it also says which calls are invalid.
  function compare(call) {
    let result;
    try {
      result = call();
    } catch (error) {
      return assert.equal(error.name, "TypeError");
    }
    const { dataType, shape } = result;
    const reversed = builder.transpose(result);
    assert.deepEqual([reversed.dataType, reversed.shape], [dataType, [...shape].reverse()]);
    asked += 1;
  }
  for (const name of Object.keys(limits).filter((name) => limits[name].output && typeof builder[name] === "function")) {
    const { a, b, input, ...rest } = limits[name];
    if (Object.keys(rest).length > 1 || builder[name].length > 2) continue;
    for (const list of Object.values(operands)) {
      for (const one of list) {
        if (a && b) for (const other of list) compare(() => builder[name](one, other));
        else if (a || builder[name].length === 1) compare(() => builder[name]((a ?? input) ? one : [one]));
        else if (name === "softmax") for (const axis of [0, 1, 7]) compare(() => builder.softmax(one, axis));
        else if (name === "cast") for (const type of Object.keys(operands)) compare(() => builder.cast(one, type));
        else if (name === "reshape")
          for (const shape of [[], [1], [6], [3, 2], [1, 1, 2, 3], Array(9).fill(1)])
            compare(() => builder.reshape(one, shape));
      }
    }
  }
  const wide = builder.input("w", { dataType: "uint8", shape: [2 ** 16, 1] });
  const tall = builder.input("t", { dataType: "uint8", shape: [2 ** 15] });
  assert.throws(() => builder.add(wide, tall), TypeError); // 2 ** 31 elements
  assert.throws(() => builder.cast(builder.input("b", { dataType: "uint8", shape: [2 ** 30] }), "float32"), TypeError);
  assert.throws(() => builder.add(operands.float32[0], operands.int8[0]), TypeError);
  assert.ok(asked > 2000, String(asked));
});

test("inputs of one name are refused by build()", async () => {
  const builder = new MLGraphBuilder(context);
  const [a, b] = [builder.input("x", float32(1)), builder.input("x", float32(1))];
  await assert.rejects(builder.build({ y: builder.add(a, b) }), TypeError);
});

test("contexts live on their own", async () => {
  const [one, two] = await Promise.all([
    ml.createContext({ powerPreference: "low-power" }),
    ml.createContext({ accelerated: false }),
  ]);
  assert.equal(typeof one.accelerated, "boolean");
  assert.ok(one.opSupportLimits().conv2d.input.dataTypes.includes("float32"));
  const { graph, input, output } = await doubling(two, 1);
  one.destroy();
  two.writeTensor(input, Float32Array.of(21));
  two.dispatch(graph, { x: input }, { y: output });
  assert.deepEqual(new Float32Array(await two.readTensor(output)), Float32Array.of(42));
  two.destroy();
  await assert.rejects(two.createTensor(float32(1)), { name: "InvalidStateError" });
});

describe("connections", () => {
  const { OPWEAVE_URL, OPWEAVE_TOKEN } = process.env;
  const fresh = (options) => {
    globalThis.opweaveOptions = { force: true, ...options };
    return import(`${SHIM}?${Math.random()}`).then((module) => module.ml);
  };

  test("no server", async () => {
    const gone = await fresh({ url: "http://127.0.0.1:1" });
    await assert.rejects(gone.createContext(), {
      name: "NotSupportedError",
      message: /no connection to Opweave at http:\/\/127\.0\.0\.1:1 .*ECONNREFUSED/,
    });
  });

  test("a wrong token", async () => {
    const refused = await fresh({ url: OPWEAVE_URL, token: "wrong" });
    await assert.rejects(refused.createContext(), {
      name: "NotSupportedError",
      message: /refuses the connection: 401 the token is wrong/,
    });
  });

  test("no token", async () => {
    await assert.rejects((await fresh({ url: OPWEAVE_URL })).createContext(), {
      message: /refuses the connection: 401 no token was sent; set OPWEAVE_TOKEN/,
    });
  });

  test("statistics", async () => {
    const { stats } = await import(`${process.env.OPWEAVE_PACKAGE}/playwright.mjs`);
    const before = await stats({ url: OPWEAVE_URL, token: OPWEAVE_TOKEN });
    const { graph, input, output } = await doubling(context, 1);
    context.dispatch(graph, { x: input }, { y: output });
    await context.readTensor(output);
    const local = process.env.OPWEAVE_SOCKET ? `unix:${process.env.OPWEAVE_SOCKET}` : OPWEAVE_URL;
    const after = await (await import(SHIM)).stats({ url: local, token: OPWEAVE_TOKEN });
    const counts = ["graphs", "dispatches", "sentBytes", "contexts"].map((name) => after[name] - before[name]);
    assert.deepEqual(counts, [1, 1, 4, 0]);
    assert.equal(after.messages.dispatch - before.messages.dispatch, 1);
    await assert.rejects(stats({ url: OPWEAVE_URL }), /401 no token was sent; set OPWEAVE_TOKEN/);
    await assert.rejects(stats({ url: OPWEAVE_URL, token: "wrong" }), /401 the token is wrong/);
    await assert.rejects(stats({ url: "http://127.0.0.1:1" }), /no answer from Opweave at .*ECONNREFUSED/);
    await assert.rejects(stats({}), /stats\(\) needs the server's url, got undefined/);
  });

  test("a server that is none", async (t) => {
    const server = http
      .createServer((_, response) => response.writeHead(200, { "Content-Length": 5 }).end("hello"))
      .listen(0, "127.0.0.1");
    t.after(() => server.close());
    await new Promise((resolve) => server.once("listening", resolve));
    const strange = await fresh({ url: `http://127.0.0.1:${server.address().port}` });
    await assert.rejects(strange.createContext(), {
      name: "NotSupportedError",
      message: /refuses the connection: 200 hello/,
    });
  });

  test("an address that is none", async () => {
    for (const url of ["https://example.org", "127.0.0.1:8911", "localhost:8911"]) {
      const message = `createContext: opweave: the URL must be http://… or unix:/…, got ${url}`;
      await assert.rejects((await fresh({ url })).createContext(), { message });
    }
  });

  test("a Unix socket", { skip: !process.env.OPWEAVE_SOCKET && "no Unix sockets" }, async () => {
    const local = await (
      await fresh({ url: `unix:${process.env.OPWEAVE_SOCKET}`, token: OPWEAVE_TOKEN })
    ).createContext();
    const { graph, input, output } = await doubling(local, 2);
    local.writeTensor(input, Float32Array.of(1, 2));
    local.dispatch(graph, { x: input }, { y: output });
    assert.deepEqual(new Float32Array(await local.readTensor(output)), Float32Array.of(2, 4));
  });

  test("the end of a connection", async (t) => {
    const sockets = [];
    const proxy = net.createServer((client) => {
      const upstream = net.connect(new URL(OPWEAVE_URL).port, "127.0.0.1");
      sockets.push(client.pipe(upstream), upstream.pipe(client));
    });
    await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
    t.after(() => proxy.close() && sockets.forEach((socket) => socket.destroy()));
    const remote = await fresh({ url: `http://127.0.0.1:${proxy.address().port}`, token: OPWEAVE_TOKEN });
    const doomed = await remote.createContext();
    const tensor = await doomed.createTensor({ ...float32(1), readable: true });
    for (const socket of sockets) socket.destroy();
    const { message } = await doomed.lost;
    assert.match(message, /the connection to Opweave at http:.* has ended/);
    await assert.rejects(doomed.readTensor(tensor), { name: "InvalidStateError" });
    assert.throws(() => new MLGraphBuilder(doomed), { name: "InvalidStateError" });
    assert.ok(await (await remote.createContext()).createTensor(float32(1)), "the next context connects again");
  });
});
