// The lazy mode: operations are noted, and sent when a shape is read and in build(), which throws.

import assert from "node:assert/strict";
import { test } from "node:test";

process.env.OPWEAVE_TEST_MODE = "lazy";
const { fake, started } = await import("./fake.mjs");

test("operations are sent together, when a shape is read", async () => {
  const { builder, x } = await started();
  const y = builder.relu(builder.abs(x));
  const [, second] = builder.split(y, [1, 1]);
  assert.deepEqual(fake.syncs, []);
  assert.deepEqual(second.shape, [2, 3]);
  assert.deepEqual(
    fake.syncs.map(({ log }) => log.map(([op]) => op)),
    [["input", "abs", "relu", "split"]],
  );
  assert.equal(y.dataType, "float32");
  await builder.build({ y: builder.tanh(second) });
  assert.deepEqual(
    fake.syncs.map(({ log }) => log.length),
    [4, 1],
  );
  assert.deepEqual(fake.of("build")[0].log, []);
});

test("build() throws what an operation is refused for", async () => {
  const { builder, x } = await started();
  fake.refused = { softmax: { name: "TypeError", message: "softmax: no" } };
  const y = builder.relu(builder.softmax(x, 9, { label: "s" }));
  assert.throws(() => builder.build({ y }), { name: "TypeError", message: "[s] softmax: no" });
  fake.refused = {};
  assert.throws(() => builder.build({ y }), { message: "[s] softmax: no" }); // the log has a hole
  assert.throws(() => y.shape, { message: "[s] softmax: no" });
});

test("what needs no server is refused at once, and as a rejection", async () => {
  const { builder, x } = await started();
  assert.throws(() => builder.softmax(x, -1), TypeError);
  await assert.rejects(builder.build({ y: x }), TypeError);
  assert.deepEqual(fake.syncs, []);
});

test("a request without an answer makes the builder useless", async () => {
  const { builder, x } = await started();
  const y = builder.matmul(x, x);
  const { sync } = fake;
  fake.sync = () => {
    throw new DOMException("no answer", "OperationError");
  };
  assert.throws(() => y.shape, { message: "no answer" });
  fake.sync = sync;
  assert.throws(() => builder.build({ y }), { message: "no answer" }); // the server may lack the operations
  assert.deepEqual([fake.syncs, fake.messages], [[], []]);
});
