// What is sent when: logs of messages, errors and the order in which things are checked.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { fake, limits, ml, started } from "./fake.mjs";

const float32 = (...shape) => ({ dataType: "float32", shape });
const InvalidState = { name: "InvalidStateError" };
const tick = () => new Promise((resolve) => setTimeout(resolve, 1));
let context, builder, x;

beforeEach(async () => {
  await tick();
  Object.assign(fake, { answers: {}, refused: {}, silent: false, inputs: [], queued: 0 });
  ({ context, builder, x } = await started());
  await tick();
  fake.messages.length = 0;
});

async function compiled() {
  const graph = await builder.build({ y: builder.relu(x) });
  const input = await context.createTensor({ ...float32(2, 3), writable: true });
  const output = await context.createTensor({ ...float32(2, 3), readable: true });
  await tick();
  fake.messages.length = 0;
  return { graph, input, output };
}

test("inputs and constants go along with the next operation", () => {
  const c = builder.constant("float32", 2);
  const y = builder.mul(x, c, { label: "twice" });
  builder.relu(y);
  const { c: number } = fake.syncs[0];
  assert.deepEqual(fake.syncs, [
    {
      session: "key",
      c: number,
      b: 1,
      log: [
        ["input", 2, ["x", float32(2, 3)], {}],
        ["constantNumber", 3, ["float32", 2], {}],
        ["mul", 4, [{ $: 2 }, { $: 3 }], { label: "twice" }],
      ],
    },
    { session: "key", c: number, b: 1, log: [["relu", 5, [{ $: 4 }], {}]] },
  ]);
  assert.deepEqual([y.dataType, y.shape], ["float32", [2, 3]]);
});

test("operations whose results are known wait for the next one", async () => {
  fake.answers.hello = {
    session: "key",
    accelerated: false,
    limits: {
      ...limits,
      relu: { input: limits.input, output: limits.output },
      add: { a: limits.input, b: limits.input, output: limits.output },
      equal: { a: limits.input, b: limits.input, output: { ...limits.output, dataTypes: ["uint8"] } },
    },
  };
  const own = new MLGraphBuilder(await ml.createContext());
  const [wide, tall] = [own.input("w", float32(4, 1, 3)), own.input("t", float32(2, 1))];
  const sum = own.add(own.relu(wide), tall);
  const same = own.equal(sum, tall);
  assert.deepEqual([sum.shape, sum.dataType, same.shape, same.dataType], [[4, 2, 3], "float32", [4, 2, 3], "uint8"]);
  assert.deepEqual(fake.syncs, []);
  fake.refused = { add: { name: "TypeError", message: "add: no" } };
  assert.throws(() => own.add(sum, own.input("u", float32(5))), { message: "add: no" }); // the server says why
  assert.deepEqual(
    fake.syncs.map(({ log }) => log.map(([op]) => op)),
    [["input", "input", "relu", "add", "equal", "input", "add"]],
  );
});

test("several results take the numbers that follow", async () => {
  const [, second] = builder.split(x, 2);
  builder.relu(second);
  const [first, next] = fake.syncs.map(({ log }) => log.at(-1));
  assert.equal(first[1] + 1, next[2][0].$);
  assert.ok(next[1] > first[1] + 1);
});

test("a run: build, tensors, write, dispatch, read", async () => {
  const { graph, input, output } = await compiled();
  assert.deepEqual(graph.devices, ["fake"]);
  assert.ok(Object.isFrozen(graph.devices));
  fake.answers.read = { payload: new Float32Array([1, 2, 3, 4, 5, 6]).buffer };
  context.writeTensor(input, new Float32Array(6));
  context.dispatch(graph, { x: input }, { y: output });
  const result = await context.readTensor(output);
  assert.deepEqual([...new Float32Array(result)], [1, 2, 3, 4, 5, 6]);
  const target = new Float32Array(6);
  assert.equal(await context.readTensor(output, target), undefined);
  assert.deepEqual([...target], [1, 2, 3, 4, 5, 6]);
  const larger = new Uint8Array(25).fill(9);
  await context.readTensor(output, larger);
  assert.deepEqual([...larger.subarray(20)], [0, 0, 192, 64, 9]);
  const moved = new ArrayBuffer(24);
  const reading = context.readTensor(output, moved);
  structuredClone(moved, { transfer: [moved] });
  await assert.rejects(reading, /outputData was detached meanwhile/);
  const [write, payload, dispatch, read] = fake.messages;
  assert.deepEqual(write, { m: "write", c: write.c, id: 5, bin: 24 });
  assert.deepEqual(payload, Array(24).fill(0));
  assert.deepEqual(dispatch, { m: "dispatch", c: write.c, g: 4, inputs: { x: 5 }, outputs: { y: 6 } });
  assert.deepEqual([read.m, read.id, typeof read.r], ["read", 6, "number"]);
});

test("a builder is freed once it is built, and cannot be used again", async () => {
  const y = builder.relu(x);
  const building = builder.build({ y });
  assert.throws(() => builder.relu(x), InvalidState);
  assert.throws(() => builder.input("z", float32()), InvalidState);
  assert.throws(() => builder.constant("int8", 1), InvalidState);
  await assert.rejects(builder.build({ y }), InvalidState);
  await building;
  await tick();
  assert.deepEqual(
    fake.of("free").map(({ builders }) => builders),
    [[1]],
  );
  assert.deepEqual(
    fake.of("build").map(({ b, log, outs }) => [b, log, outs]),
    [[1, [], { y: 3 }]],
  );
});

test("what build() refuses leaves the builder as it is", async () => {
  const y = builder.relu(x);
  const foreign = new MLGraphBuilder(context);
  const other = foreign.relu(foreign.input("x", float32(1)));
  for (const wrong of [
    {},
    { y: x },
    { y: builder.constant("int8", 1) },
    { "": y },
    { y: other },
    { y: 1 },
    null,
    undefined,
    "y",
  ]) {
    await assert.rejects(builder.build(wrong), TypeError);
  }
  await builder.build({ y });
});

test("an error of build() rejects", async () => {
  fake.answers.build = { error: { name: "OperationError", message: "no memory" } };
  await assert.rejects(builder.build({ y: builder.relu(x) }), { name: "OperationError", message: "no memory" });
});

test("build() takes named operands", async () => {
  const refused = (given) => ({ name: "TypeError", message: `build: outputs must be an object of named operands, got ${given}` });
  await assert.rejects(builder.build(builder.relu(x)), refused("an MLOperand"));
  await assert.rejects(builder.build({}), refused("none"));
});

test("a refused operation throws at once, with its label, and the builder stays usable", () => {
  fake.refused = { softmax: { name: "TypeError", message: "softmax: axis must be in [0, 2), got 9" } };
  assert.throws(() => builder.softmax(x, 9, { label: "last" }), {
    name: "TypeError",
    message: "[last] softmax: axis must be in [0, 2), got 9",
  });
  fake.refused = { matmul: { name: "InvalidStateError", message: "lost" } };
  assert.throws(() => builder.matmul(x, x), { name: "InvalidStateError", message: "lost" });
  fake.refused = {};
  assert.deepEqual(builder.relu(x).shape, [2, 3]);
});

test("dispatch() checks graph, tensors and names", async () => {
  const { graph, input, output } = await compiled();
  const other = await context.createTensor({ ...float32(3, 2), writable: true });
  const whole = await context.createTensor({ dataType: "int32", shape: [2, 3] });
  const constant = await context.createConstantTensor(float32(2, 3), new Float32Array(6));
  const stranger = await ml.createContext();
  const foreign = await stranger.createTensor(float32(2, 3));
  const [ins, outs] = [{ x: input }, { y: output }];
  fake.messages.length = 0;
  const refuse = (g, i, o, expected) =>
    assert.throws(() => context.dispatch(g, i, o), { name: "TypeError", message: expected });
  refuse(graph, {}, outs, /dispatch: inputs must be "x", got nothing/);
  refuse(graph, { z: input }, outs, /inputs must be "x", got "z"/);
  refuse(graph, { x: input, z: other }, outs, /inputs must be "x", got "x", "z"/);
  refuse(graph, { x: other }, outs, /inputs\["x"\] must be float32 \[2,3\], got float32 \[3,2\]/);
  refuse(graph, { x: whole }, outs, /must be float32 \[2,3\], got int32/);
  refuse(graph, { x: constant }, outs, /constant tensor/);
  refuse(graph, { x: foreign }, outs, /inputs\["x"\] belongs to another context/);
  refuse(graph, { x: output }, outs, /inputs\["x"\] and outputs\["y"\] are the same tensor/);
  refuse(graph, { x: null }, outs, /inputs\["x"\] must be an MLTensor, got null/);
  refuse(graph, [input], outs, /inputs must be "x", got "0"/);
  refuse(graph, ins, {}, /outputs must be "y", got nothing/);
  refuse({}, ins, outs, /graph must be an MLGraph/);
  assert.throws(() => stranger.dispatch(graph, ins, outs), /graph belongs to another context/);
  input.destroy();
  refuse(graph, ins, outs, /inputs\["x"\] is destroyed/);
  graph.destroy();
  assert.throws(() => context.dispatch(graph, ins, outs), InvalidState);
  assert.deepEqual(fake.of("dispatch"), []);
});

test("tensors are checked, and freed", async () => {
  const { input, output } = await compiled();
  assert.throws(() => context.writeTensor(output, new Float32Array(6)), /not writable \(createTensor\({ …, writable: true }\)\)/);
  assert.throws(() => context.writeTensor(input, new Float32Array(5)), /must have 24 bytes/);
  context.writeTensor(input, new Int32Array(6)); // any view of the right length
  await assert.rejects(context.readTensor(input), /not readable \(createTensor\({ …, readable: true }\)\)/);
  await assert.rejects(context.readTensor(output, new Float32Array(5)), /must have 24 bytes/);
  await assert.rejects(context.readTensor(output, undefined), /must be an ArrayBuffer/);
  await assert.rejects(context.createTensor(float32(0)), TypeError);
  await assert.rejects(context.createConstantTensor(float32(2), new Float32Array(1)), TypeError);
  output.destroy();
  output.destroy();
  await assert.rejects(context.readTensor(output), InvalidState);
  input.destroy();
  assert.throws(() => context.writeTensor(input, new Float32Array(6)), InvalidState);
  await tick();
  assert.deepEqual(
    fake.of("free").map(({ tensors }) => tensors),
    [[6, 5]],
  );
});

test("what cannot be sent in time is refused, before memory runs out", async () => {
  const { input } = await compiled();
  fake.queued = 2 ** 31 - 23;
  const full = { name: "OperationError", message: /2147483625 bytes wait to be sent/ };
  assert.throws(() => context.writeTensor(input, new Float32Array(6)), full);
  await assert.rejects(context.createConstantTensor(float32(6), new Float32Array(6)), full);
  const own = new MLGraphBuilder(context);
  assert.throws(() => own.constant(float32(6), new Float32Array(6)), full);
  fake.queued -= 1;
  context.writeTensor(input, new Float32Array(6));
  const sum = own.relu(own.constant(float32(6), new Float32Array(6)));
  assert.equal(fake.of("const")[0].id, fake.syncs.at(-1).log[0][1]); // the refused one has left nothing
  assert.deepEqual(sum.shape, [6]);
});

test("destroy() of a tensor rejects what reads it", async () => {
  const { output } = await compiled();
  fake.silent = true;
  const reading = context.readTensor(output);
  output.destroy();
  await assert.rejects(reading, InvalidState);
});

test("a context that is destroyed takes all with it", async () => {
  const { graph, input, output } = await compiled();
  fake.silent = true;
  const reading = context.readTensor(output);
  const making = context.createTensor(float32(1));
  const again = new MLGraphBuilder(context);
  const building = again.build({ y: again.relu(again.input("x", float32(1))) });
  context.destroy();
  context.destroy();
  for (const promise of [reading, making, building, context.createTensor(float32(1))])
    await assert.rejects(promise, InvalidState);
  assert.deepEqual(await context.lost, { message: "destroy() was called" });
  assert.throws(() => context.dispatch(graph, { x: input }, { y: output }), InvalidState);
  assert.throws(() => context.writeTensor(input, new Float32Array(6)), InvalidState);
  assert.equal(fake.of("destroy").length, 1);
});

test("the server loses a context; others live", async () => {
  const other = await ml.createContext();
  const { c } = fake.of("hello").at(-1);
  fake.handlers.text(JSON.stringify({ c, lost: "the device is gone" }));
  assert.deepEqual(await other.lost, { message: "the device is gone" });
  await assert.rejects(other.createTensor(float32(1)), InvalidState);
  await context.createTensor(float32(1));
});

test("the end of the connection loses all contexts; the next one connects again", async () => {
  const before = fake.connections;
  const { graph, input, output } = await compiled();
  const unfinished = new MLGraphBuilder(context);
  const x = unfinished.input("x", float32(1));
  fake.silent = true;
  const making = context.createTensor(float32(1));
  fake.handlers.closed("the server has ended");
  const isLost = { ...InvalidState, message: /the context is lost: the server has ended$/ };
  await assert.rejects(making, isLost);
  assert.deepEqual(await context.lost, { message: "the server has ended" });
  await assert.rejects(context.createTensor(float32(1)), isLost);
  await assert.rejects(context.createConstantTensor(float32(1), new Float32Array(1)), isLost);
  await assert.rejects(context.readTensor(output), isLost);
  assert.throws(() => context.writeTensor(input, new Float32Array(6)), isLost);
  assert.throws(() => context.dispatch(graph, { x: input }, { y: output }), isLost);
  assert.throws(() => new MLGraphBuilder(context), isLost);
  assert.throws(() => unfinished.relu(x), isLost);
  fake.silent = false;
  await ml.createContext();
  assert.equal(fake.connections, before + 1);
});

test("a server that refuses a context", async () => {
  fake.answers.hello = { error: { name: "NotSupportedError", message: "at most 16 contexts" } };
  await assert.rejects(ml.createContext(), { name: "NotSupportedError", message: "at most 16 contexts" });
});

test("contexts share a connection", async () => {
  const before = fake.connections;
  await Promise.all([ml.createContext(), ml.createContext(), ml.createContext()]);
  assert.equal(fake.connections, before);
  assert.equal(new Set(fake.of("hello").map(({ c }) => c)).size, 3);
});

test("the process stays alive for answers only", async () => {
  fake.holds.length = 0;
  await Promise.all([context.createTensor(float32(1)), context.createTensor(float32(1))]);
  assert.deepEqual(fake.holds, [true, true, true, false]);
});

test("memory follows the garbage collection", { skip: !globalThis.gc && "needs node --expose-gc" }, async () => {
  await (async () => {
    await compiled();
    for (let i = 0; i < 21; i++) await context.createTensor(float32(1));
  })();
  const { c } = fake.of("tensor")[0];
  const freed = (kind) =>
    fake
      .of("free")
      .filter((message) => message.c === c)
      .flatMap((message) => message[kind]).length;
  builder = x = null;
  const until = async (done) => {
    for (let i = 0; i < 50 && !done(); i++) {
      globalThis.gc();
      await tick();
    }
  };
  await until(() => freed("tensors") >= 20 && freed("graphs") === 1);
  assert.ok(freed("tensors") >= 20, "all but the last, which the engine may still have in a register");
  assert.equal(freed("graphs"), 1);
  assert.deepEqual(
    fake.of("destroy").filter((message) => message.c === c),
    [],
  );
  context = null;
  await until(() => fake.of("destroy").some((message) => message.c === c));
  assert.equal(fake.of("destroy").filter((message) => message.c === c).length, 1);
});
