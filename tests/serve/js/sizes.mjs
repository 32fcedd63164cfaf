// node --test sizes.mjs: sizes with names, on a server with drafts at OPWEAVE_URL.

import assert from "node:assert/strict";
import { test } from "node:test";

const { ml } = await import(`${process.env.OPWEAVE_PACKAGE}/node.mjs`);

const DRAFTS = [
  [MLGraph, "computeShapes"],
  [MLGraphBuilder, "reshapeDynamic"],
];
for (const [Interface, name] of DRAFTS) assert.equal(name in Interface.prototype, false); // until a server offers it
const context = await ml.createContext();
const float32 = (...shape) => ({ dataType: "float32", shape });
const tensor = (...shape) => context.createTensor({ ...float32(...shape), readable: true, writable: true });

// s: x above y; r: the sums of the columns of x.
async function joined() {
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", float32("n", 4));
  const y = builder.input("y", float32({ name: "m", minSize: 1, maxSize: 8 }, 4));
  return builder.build({ s: builder.concat([x, y], 0), r: builder.reduceSum(x, { axes: [0] }) });
}

test("shapes of operands have names and formulas", () => {
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", float32("n", 4));
  assert.deepEqual(x.shape, ["n", 4]);
  assert.deepEqual(builder.relu(x).shape, ["n", 4]);
  assert.deepEqual(builder.concat([x, x], 0).shape, ["2*n", 4]);
  assert.deepEqual(builder.input("a name", float32("a name")).shape, ["a name"]);
});

test("build() refuses what no sizes make valid", () => {
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", float32("n", 4));
  assert.throws(() => builder.reshape(x, [7], { label: "r" }), /^TypeError: \[r\] reshape 'r': newShape must have the 4\*n/);
  assert.throws(() => builder.add(x, builder.input("y", float32("n", 5))), /do not broadcast: \[n, 4\] and \[n, 5\]/);
});

test("input() refuses other dimensions", () => {
  const builder = new MLGraphBuilder(context);
  for (const [size, rule] of [
    ["", /descriptor.shape\[0\] must be a size or a name that is not empty, got ""/],
    [{}, /must be a size or a name that is not empty/],
    [{ name: "n", minSize: 4, maxSize: 2 }, /shape\[0\]\.maxSize must be at least minSize, 4, got 2/],
    [{ name: "n", minSize: -1 }, /shape\[0\]\.minSize must be an integer in \[0, 4294967295\], got -1/],
    [null, /must have dimensions in \[1, 2147483647\]/],
    [2 ** 32, /must be an integer in \[0, 4294967295\]/],
    [1n, /TypeError/],
  ])
    assert.throws(() => builder.input("x", float32(size)), (error) => error instanceof TypeError && rule.test(String(error)));
});

test("constants and tensors have no names", async () => {
  const builder = new MLGraphBuilder(context);
  assert.throws(() => builder.constant(float32("n"), new Float32Array(1)), /shape\[0\] must be an integer in .*, got "n"/);
  await assert.rejects(tensor("n"), /shape\[0\] must be an integer in .*, got "n"/);
});

test("dispatch() runs each combination of sizes", async () => {
  const graph = await joined();
  assert.deepEqual(graph.devices, ["cpu"]);
  for (const [n, m] of [
    [3, 2],
    [1, 5],
    [3, 2],
  ]) {
    const [x, y, s, r] = await Promise.all([tensor(n, 4), tensor(m, 4), tensor(n + m, 4), tensor(4)]);
    const data = Float32Array.from({ length: 4 * n }, (_, at) => at);
    context.writeTensor(x, data);
    context.writeTensor(y, new Float32Array(4 * m).fill(7));
    context.dispatch(graph, { x, y }, { s, r });
    assert.deepEqual([...new Float32Array(await context.readTensor(s))], [...data, ...new Array(4 * m).fill(7)]);
    const sums = [0, 1, 2, 3].map((column) => (4 * n * (n - 1)) / 2 + n * column);
    assert.deepEqual([...new Float32Array(await context.readTensor(r))], sums);
  }
});

test("dispatch() refuses tensors that do not fit each other, and keeps the context", async () => {
  const builder = new MLGraphBuilder(context);
  const [a, b] = ["a", "b"].map((name) => builder.input(name, float32("n", "k")));
  const graph = await builder.build({ c: builder.matmul(a, builder.transpose(b)) });
  const [x, y, z] = await Promise.all([tensor(2, 3), tensor(2, 3), tensor(2, 2)]);
  const other = await tensor(2, 4);
  assert.throws(() => context.dispatch(graph, { a: x, b: other }, { c: z }), /inputs\["b"\] must be float32 \[n,k\], got float32 \[2,4\]/);
  assert.throws(() => context.dispatch(graph, { a: x, b: y }, { c: other }), /outputs\["c"\] must be float32 \[2,2\]/);
  context.dispatch(graph, { a: x, b: y }, { c: z });
  assert.equal((await context.readTensor(z)).byteLength, 16);
});

test("dispatch() refuses sizes that an operation does not accept", async () => {
  const builder = new MLGraphBuilder(context);
  const [a, b] = ["n", "m"].map((name) => builder.input(name, float32(name)));
  const graph = await builder.build({ c: builder.add(a, b, { label: "sum" }) });
  const [two, three, result] = await Promise.all([tensor(2), tensor(3), tensor(3)]);
  assert.throws(
    () => context.dispatch(graph, { n: two, m: three }, { c: result }),
    /add 'sum': the shapes of a and b do not broadcast: \[2\] and \[3\]; the sizes are n = 2, m = 3/,
  );
});

test("computeShapes() gives shapes, and says what does not fit", async () => {
  const graph = await joined();
  const shapes = graph.computeShapes({ x: [3, 4], y: [2, 4] });
  assert.deepEqual(shapes, { s: [5, 4], r: [4] });
  shapes.s.push(1);
  assert.deepEqual(graph.computeShapes({ x: [3, 4], y: [2, 4] }).s, [5, 4]);
  assert.equal(MLGraph.prototype.computeShapes.length, 1);
  assert.throws(() => graph.computeShapes(), TypeError);
  assert.throws(() => graph.computeShapes({ x: [3, 4] }), /computeShapes: inputShapes must hold \['x', 'y'\]; missing: \['y'\]/);
  assert.throws(() => graph.computeShapes({ x: [3, 5], y: [2, 4] }), /input 'x' must be float32\[n, 4\], got the shape \[3, 5\]/);
  assert.throws(() => graph.computeShapes({ x: ["n", 4], y: [2, 4] }), /inputShapes\["x"\]\[0\] must be an integer/);
  graph.destroy();
  assert.throws(() => graph.computeShapes({ x: [3, 4], y: [2, 4] }), { name: "InvalidStateError" });
});

test("static graphs have computeShapes(), too", async () => {
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", float32(2, 3));
  const graph = await builder.build({ y: builder.transpose(x) });
  assert.deepEqual(graph.computeShapes({ x: [2, 3] }), { y: [3, 2] });
});

test("operations of the draft compute shapes", async () => {
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", float32("n", 4));
  const sizes = builder.shape(x, { label: "sizes" });
  assert.deepEqual([sizes.dataType, sizes.shape], ["uint32", [2]]);
  const flat = builder.reshapeDynamic(x, builder.reduceProduct(sizes, { keepDimensions: true }));
  assert.deepEqual(flat.shape, ["4*n"]);
  const halves = builder.constant({ dataType: "uint32", shape: [2] }, Uint32Array.of(1, 3));
  const parts = builder.splitDynamic(x, halves, { axis: 1 });
  assert.deepEqual(
    parts.map(({ shape }) => shape),
    [
      ["n", 1],
      ["n", 3],
    ],
  );
  const graph = await builder.build({ flat, last: parts[1] });
  const [input, flattened, last] = await Promise.all([tensor(2, 4), tensor(8), tensor(2, 3)]);
  context.writeTensor(input, Float32Array.from({ length: 8 }, (_, at) => at));
  context.dispatch(graph, { x: input }, { flat: flattened, last });
  assert.deepEqual([...new Float32Array(await context.readTensor(flattened))], [0, 1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual([...new Float32Array(await context.readTensor(last))], [1, 2, 3, 5, 6, 7]);
});
