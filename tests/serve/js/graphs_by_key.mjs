// node --test graphs_by_key.mjs: graphs by key, on a server with drafts at OPWEAVE_URL, which keeps at most 2 graphs and 1 MiB.

import assert from "node:assert/strict";
import { test } from "node:test";

const { ml } = await import(`${process.env.OPWEAVE_PACKAGE}/node.mjs`);

const METHODS = { saveGraph: 2, loadGraph: 1, listGraphs: 0, deleteGraph: 1 };
for (const name of Object.keys(METHODS)) assert.equal(name in MLContext.prototype, false); // until a server offers it
const context = await ml.createContext();

async function scaled(factor, size = 3, owner = context) {
  const builder = new MLGraphBuilder(owner);
  const x = builder.input("x", { dataType: "float32", shape: [size] });
  const weights = builder.constant({ dataType: "float32", shape: [size] }, new Float32Array(size).fill(factor));
  return builder.build({ y: builder.mul(x, weights) });
}

async function run(graph, values, owner = context) {
  const shape = [values.length];
  const x = await owner.createTensor({ dataType: "float32", shape, writable: true });
  const y = await owner.createTensor({ dataType: "float32", shape, readable: true });
  owner.writeTensor(x, Float32Array.from(values));
  owner.dispatch(graph, { x }, { y });
  return [...new Float32Array(await owner.readTensor(y))];
}

async function empty() {
  for (const key of await context.listGraphs()) await context.deleteGraph(key);
}

test("methods are as Web IDL has them", async () => {
  for (const [name, length] of Object.entries(METHODS)) {
    const { value, ...attributes } = Object.getOwnPropertyDescriptor(MLContext.prototype, name);
    assert.deepEqual([value.name, value.length], [name, length]);
    assert.deepEqual(attributes, { enumerable: true, writable: true, configurable: true });
    assert.throws(() => new value(), TypeError);
    await assert.rejects(value.call({}, "a", {}), TypeError);
    if (length) await assert.rejects(context[name](), /TypeError.*argument/);
  }
});

test("a graph comes back by its key, in another context too", async () => {
  const graph = await scaled(2);
  assert.equal(await context.saveGraph("double", graph), undefined);
  assert.deepEqual(await run(graph, [1, 2, 3]), [2, 4, 6]);
  assert.deepEqual(await context.listGraphs(), ["double"]);
  const other = await ml.createContext();
  const loaded = await other.loadGraph("double");
  assert.ok(loaded instanceof MLGraph);
  assert.deepEqual(loaded.devices, graph.devices);
  const described = { dataType: "float32", shape: [3] };
  assert.deepEqual([loaded.inputs, loaded.outputs], [{ x: described }, { y: described }]);
  assert.equal(loaded.inputs, loaded.inputs);
  assert.deepEqual(await run(loaded, [1, 2, 3], other), [2, 4, 6]);
  assert.equal(await other.deleteGraph("double"), undefined);
  await other.deleteGraph("double");
  assert.deepEqual(await run(loaded, [4, 5, 6], other), [8, 10, 12]);
  assert.deepEqual(await context.listGraphs(), []);
  loaded.destroy();
  assert.throws(() => other.dispatch(loaded, {}, {}), { name: "InvalidStateError" });
  other.destroy();
  await assert.rejects(other.loadGraph("double"), { name: "InvalidStateError" });
});

test("a graph with names in its shapes comes back", async () => {
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", { dataType: "float32", shape: ["n", 2] });
  await context.saveGraph("names", await builder.build({ y: builder.concat([x, x], 0) }));
  const graph = await context.loadGraph("names");
  assert.deepEqual(graph.inputs.x.shape, ["n", 2]);
  assert.deepEqual(graph.outputs.y.shape, ["2*n", 2]);
  assert.deepEqual(graph.computeShapes({ x: [3, 2] }), { y: [6, 2] });
  await empty();
});

test("keys are texts, and the last graph of a key is kept", async () => {
  for (const key of ["a/../b", "ключ", 7, null]) {
    await context.saveGraph(key, await scaled(2));
    await context.saveGraph(key, await scaled(3));
    assert.deepEqual(await context.listGraphs(), [`${key}`]);
    assert.deepEqual(await run(await context.loadGraph(key), [1, 1, 1]), [3, 3, 3]);
    await context.deleteGraph(key);
  }
});

test("errors say what is wrong", async () => {
  const graph = await scaled(2);
  await assert.rejects(context.loadGraph("missing"), { name: "DataError", message: "loadGraph: there is no graph 'missing'" });
  for (const call of [(key) => context.saveGraph(key, graph), (key) => context.loadGraph(key), (key) => context.deleteGraph(key)]) {
    await assert.rejects(call(""), /TypeError: \w+Graph: key must have 1 to 1024 characters, got 0/);
    await assert.rejects(call("k".repeat(1025)), /TypeError: .*got 1025/);
    await assert.rejects(call("\ud800"), /TypeError: .*UTF-8/);
    await assert.rejects(call(Symbol("s")), TypeError);
  }
  await assert.rejects(context.saveGraph("a", {}), /saveGraph: graph must be an MLGraph/);
  const other = await ml.createContext();
  await assert.rejects(context.saveGraph("a", await scaled(1, 3, other)), /saveGraph: the graph belongs to another context/);
  graph.destroy();
  await assert.rejects(context.saveGraph("a", graph), { name: "InvalidStateError" });
});

test("an origin has limits", async () => {
  await empty();
  const large = await scaled(1, 2 ** 17);
  await context.saveGraph("a", large);
  const room = /OperationError: saveGraph: the graph 'b' takes 1\.0 MiB, and 5\d\d\.?\d* KiB of 1\.0 MiB are free; deleteGraph\(key\)/;
  await assert.rejects(context.saveGraph("b", await scaled(2, 2 ** 18)), room);
  await context.saveGraph("a", large);
  await context.saveGraph("b", await scaled(2));
  await assert.rejects(context.saveGraph("c", await scaled(3)), {
    name: "OperationError",
    message: "saveGraph: an origin may keep 2 graphs here; deleteGraph(key) makes room",
  });
  assert.deepEqual(await context.listGraphs(), ["a", "b"]);
  await empty();
});
