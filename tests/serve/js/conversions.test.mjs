// Conversions of arguments as Web IDL has them: what is sent for what is given, and what is refused.

import assert from "node:assert/strict";
import { test } from "node:test";

import { fake, started } from "./fake.mjs";

const { context, builder, x } = await started();
const other = new MLGraphBuilder(context);
const sent = () => fake.syncs.at(-1).log.at(-1);
const throwing = {
  [Symbol.toPrimitive]() {
    throw new RangeError("mine");
  },
};
const two = {
  *[Symbol.iterator]() {
    yield 2;
    yield "3";
  },
};

// [what, call, arguments without operands and options as they are sent]
const ACCEPTED = [
  ["an integer from a string", () => builder.softmax(x, " 1 "), [{ $: 1 }, 1], {}],
  ["an integer is cut", () => builder.softmax(x, 1.9), [1], {}],
  ["an integer from below zero", () => builder.softmax(x, -0.5), [0], {}],
  ["an integer from true", () => builder.softmax(x, true), [1], {}],
  ["an integer from null", () => builder.softmax(x, null), [0], {}],
  ["an integer from an empty list", () => builder.softmax(x, []), [0], {}],
  ["the largest integer", () => builder.softmax(x, 2 ** 32 - 1), [2 ** 32 - 1], {}],
  [
    "a long",
    () => builder.triangular(x, { diagonal: -(2 ** 31), upper: 0 }),
    [],
    { diagonal: -(2 ** 31), upper: false },
  ],
  ["a double", () => builder.elu(x, { alpha: "0.5" }), [], { alpha: 0.5 }],
  ["a double of minus zero", () => builder.elu(x, { alpha: -0 }), [], { alpha: { n: "-0" } }],
  ["a float is rounded", () => builder.resample2d(x, { scales: [0.1] }), [], { scales: [Math.fround(0.1)] }],
  ["a number may be a bigint", () => builder.clamp(x, { minValue: -12n }), [], { minValue: { n: "-12n" } }],
  [
    "a number may be an object of a bigint",
    () => builder.clamp(x, { minValue: Object(7n) }),
    [],
    { minValue: { n: "7n" } },
  ],
  ["a number may be NaN", () => builder.clamp(x, { maxValue: "x" }), [], { maxValue: { n: "NaN" } }],
  [
    "a number may be infinite",
    () => builder.clamp(x, { maxValue: Infinity, minValue: -Infinity }),
    [],
    { maxValue: { n: "Infinity" }, minValue: { n: "-Infinity" } },
  ],
  ["a number of minus zero", () => builder.clamp(x, { maxValue: -0 }), [], { maxValue: { n: "-0" } }],
  ["a large number", () => builder.clamp(x, { maxValue: 1e300 }), [], { maxValue: 1e300 }],
  ["a boolean from a string", () => builder.reduceSum(x, { keepDimensions: "no" }), [], { keepDimensions: true }],
  ["an enumeration from an object", () => builder.cast(x, { toString: () => "int8" }), ["int8"], {}],
  ["a sequence of any iterable", () => builder.reshape(x, two), [[2, 3]], {}],
  ["a sequence of a typed array", () => builder.reshape(x, Uint32Array.of(3, 2)), [[3, 2]], {}],
  ["a sequence of a set", () => builder.reshape(x, new Set([6])), [[6]], {}],
  ["a string object is a sequence", () => builder.reshape(x, new String("32")), [[3, 2]], {}],
  ["a count of parts", () => builder.split(x, 2), [2], {}],
  ["a count of an object without an iterator", () => builder.split(x, { valueOf: () => 2 }), [2], {}],
  ["sizes of parts", () => builder.split(x, [1, 1], { axis: 0 }), [[1, 1]], { axis: 0 }],
  ["options that are null", () => builder.relu(x, null), [], {}],
  ["options that are a function", () => builder.relu(x, () => 0), [], {}],
  ["members that are undefined", () => builder.softmax(x, 1, { label: undefined }), [1], {}],
  ["members that are inherited", () => builder.relu(x, Object.create({ label: "above" })), [], { label: "above" }],
  ["unknown members", () => builder.relu(x, { nonsense: 1 }), [], {}],
  ["a label of another type", () => builder.relu(x, { label: 12 }), [], { label: "12" }],
  ["a label with half a pair", () => builder.relu(x, { label: "a\ud800b" }), [], { label: "a\ufffdb" }],
  ["operands in a sequence", () => builder.concat([x, x], 0), [[{ $: "x" }, { $: "x" }], 0], {}],
  [
    "the old name of a rounding",
    () => builder.maxPool2d(x, { roundingType: "ceil" }),
    [],
    { outputShapeRounding: "ceil" },
  ],
  [
    "both names of a rounding",
    () => builder.maxPool2d(x, { outputShapeRounding: "floor", roundingType: "ceil" }),
    [],
    { outputShapeRounding: "floor" },
  ],
  [
    "activations",
    () => builder.gruCell(x, x, x, x, 4, { activations: ["relu", "tanh"] }),
    [4],
    { activations: ["relu", "tanh"] },
  ],
];

const plain = (args) =>
  args.filter((arg) => arg.$ === undefined).map((arg) => (arg[0]?.$ ? arg.map(() => ({ $: "x" })) : arg));

for (const [what, call, args, options] of ACCEPTED) {
  test(`accepted: ${what}`, () => {
    call();
    assert.deepEqual(plain(sent()[2]), plain(args));
    assert.deepEqual(sent()[3], options);
  });
}

const REFUSED = [
  ["no argument", () => builder.relu(), /relu: 1 argument required, got 0/],
  ["too few arguments", () => builder.softmax(x), /softmax: 2 arguments required, got 1/],
  ["no operand", () => builder.relu({}), /relu: input must be an MLOperand, got \[object Object\]/],
  ["the prototype of operands", () => builder.relu(MLOperand.prototype), /relu: input must be an MLOperand/],
  ["what inherits from an operand", () => builder.relu(Object.create(x)), /relu: input must be an MLOperand/],
  ["an operand of another builder", () => other.relu(x), /relu: an operand belongs to another builder/],
  [
    "one of another builder, with a label",
    () => other.relu(x, { label: "mine" }),
    /^TypeError: \[mine\] relu: an operand/,
  ],
  ["one of another builder in a sequence", () => other.concat([x], 0), /another builder/],
  [
    "one of another builder in options",
    () => builder.gemm(x, x, { c: other.input("c", { dataType: "float32", shape: [] }) }),
    /another builder/,
  ],
  [
    "an integer that is too large",
    () => builder.softmax(x, 2 ** 32),
    /softmax: axis must be an integer in \[0, 4294967295\], got 4294967296/,
  ],
  ["a negative axis", () => builder.softmax(x, -1), /axis must be .*, got -1; WebNN has no negative axes/],
  ["a negative axis of several", () => builder.reduceSum(x, { axes: [0, -1] }), /axes\[1\] must be .*, got -1; WebNN has no neg/],
  ["a negative integer", () => builder.slice(x, [-1], [1]), /got -1$/],
  ["an integer of NaN", () => builder.softmax(x, NaN), /got NaN/],
  ["an infinite integer", () => builder.softmax(x, Infinity), /got Infinity/],
  ["an integer that is undefined", () => builder.softmax(x, undefined), /got undefined/],
  ["an integer of a bigint", () => builder.softmax(x, 1n), /BigInt/],
  ["an integer of a symbol", () => builder.softmax(x, Symbol()), /Symbol/],
  ["a long that is NaN", () => builder.triangular(x, { diagonal: NaN }), /triangular: options.diagonal .* got NaN/],
  [
    "a long that is too small",
    () => builder.triangular(x, { diagonal: -(2 ** 31) - 1 }),
    /triangular: options.diagonal must be an integer in/,
  ],
  [
    "an infinite double",
    () => builder.elu(x, { alpha: Infinity }),
    /elu: options.alpha must be a finite number, got Infinity/,
  ],
  ["a double of a bigint", () => builder.elu(x, { alpha: 1n }), /BigInt/],
  [
    "a float that single precision lacks",
    () => builder.resample2d(x, { scales: [1, 1e39] }),
    /resample2d: options.scales\[1\]/,
  ],
  ["a number of a symbol", () => builder.clamp(x, { minValue: Symbol() }), /Symbol/],
  [
    "no value of an enumeration",
    () => builder.cast(x, "float64"),
    /cast: dataType must be one of float32, .*, got "float64"/,
  ],
  [
    "one with other capitals",
    () => builder.conv2d(x, x, { inputLayout: "NCHW" }),
    /conv2d: options.inputLayout must be one of nchw, nhwc/,
  ],
  ["an enumeration of a symbol", () => builder.cast(x, Symbol()), /Symbol/],
  ["a string for a sequence", () => builder.reshape(x, "6"), /reshape: newShape must be a sequence, got "6"/],
  ["a number for a sequence", () => builder.reshape(x, 6), /must be a sequence, got 6/],
  ["an object for a sequence", () => builder.reshape(x, { length: 1, 0: 6 }), /must be a sequence/],
  ["null for a sequence", () => builder.reshape(x, null), /must be a sequence, got null/],
  ["an item of a sequence", () => builder.reshape(x, [1, -6]), /reshape: newShape\[1\] must be an integer/],
  ["a hole of a sequence", () => builder.reshape(x, [, 6]), /newShape\[0\] must be an integer .* got undefined/],
  [
    "an iterator that is none",
    () => builder.split(x, { [Symbol.iterator]: 3 }),
    /split: splits must be an integer or a sequence/,
  ],
  ["too many parts", () => builder.split(x, 8193), /split: at most 8192 results, got 8193/],
  ["options that are a number", () => builder.relu(x, 1), /relu: options must be an object, got 1/],
  ["options that are a string", () => builder.relu(x, "label"), /relu: options must be an object/],
  ["a label of a symbol", () => builder.relu(x, { label: Symbol() }), /Symbol/],
  [
    "a descriptor without a shape",
    () => builder.input("y", { dataType: "int8" }),
    /input: descriptor.shape is missing \(older drafts call it dimensions\)/,
  ],
  [
    "a descriptor without a data type",
    () => builder.input("y", { type: "int8", dimensions: [] }),
    /input: descriptor.dataType is missing \(older drafts call it type\)/,
  ],
  ["no descriptor", () => builder.input("y", undefined), /input: descriptor.dataType is missing/],
  ["an empty name", () => builder.input("", { dataType: "int8", shape: [] }), /input: name must not be empty/],
  [
    "a dimension of zero",
    () => builder.input("y", { dataType: "int8", shape: [2, 0] }),
    /input "y": descriptor must have dimensions in \[1, 2147483647\], got int8 \[2,0\]/,
  ],
  ["too many dimensions", () => builder.input("y", { dataType: "int8", shape: Array(9).fill(1) }), /0 to 8 dimensions/],
  [
    "too many elements",
    () => builder.input("y", { dataType: "int8", shape: [2 ** 31 - 1, 2] }),
    /at most 2147483647 elements/,
  ],
  ["too many bytes", () => builder.input("y", { dataType: "float32", shape: [2 ** 30] }), /at most 2147483647 bytes/],
];

for (const [what, call, message] of REFUSED) {
  test(`refused: ${what}`, () => {
    const before = fake.syncs.length;
    assert.throws(
      call,
      (error) => (error instanceof TypeError && message.test(String(error))) || assert.fail(String(error)),
    );
    assert.equal(fake.syncs.length, before, "nothing is sent");
  });
}

test("names that are like those of members are told once", (t) => {
  const warn = t.mock.method(console, "warn", () => {});
  for (let k = 0; k < 2; k++) {
    builder.relu(x, { labels: "r", other: 1 });
    builder.averagePool2d(x, { pads: [1, 1, 1, 1], padding: [0, 0, 0, 0], stride: 1 });
  }
  assert.deepEqual(
    warn.mock.calls.map(({ arguments: [text] }) => text),
    [
      "opweave: relu: options.labels is ignored; did you mean label?",
      "opweave: averagePool2d: options.pads is ignored; did you mean padding?",
      "opweave: averagePool2d: options.stride is ignored; did you mean strides?",
    ],
  );
});

test("errors of the caller's own methods pass", () => {
  assert.throws(() => builder.softmax(x, throwing), RangeError);
  assert.throws(
    () =>
      builder.relu(x, {
        get label() {
          throw new RangeError("mine");
        },
      }),
    RangeError,
  );
});

test("members are read in inheritance's order, then by name, each once", () => {
  const read = [];
  const options = new Proxy({}, { get: (_, name) => void read.push(name) });
  builder.gemm(x, x, options);
  assert.deepEqual(read, ["label", "aTranspose", "alpha", "bTranspose", "beta", "c"]);
  read.length = 0;
  const descriptor = { dataType: "int8", shape: [] };
  builder.input("y", new Proxy(descriptor, { get: (_, name) => (read.push(name), descriptor[name]) }));
  assert.deepEqual(read, ["dataType", "shape"]);
});

test("arguments are converted from left to right, before the state is looked at", async () => {
  const order = [];
  const log = (name, value) => ({
    valueOf() {
      order.push(name);
      return value;
    },
  });
  builder.triangular(x, {
    upper: 1,
    diagonal: log("diagonal", 1),
    get label() {
      order.push("label");
      return "t";
    },
  });
  assert.deepEqual(order, ["label", "diagonal"]);
  const lost = await navigator.ml.createContext();
  const stale = new MLGraphBuilder(lost);
  const y = stale.input("y", { dataType: "float32", shape: [1] });
  lost.destroy();
  assert.throws(() => stale.softmax(y, -1), TypeError);
  assert.throws(() => stale.softmax(y, 0), { name: "InvalidStateError" });
  assert.throws(() => stale.relu(), TypeError);
  assert.throws(() => stale.relu(x), { name: "InvalidStateError" }); // the state before the operand's builder
  assert.throws(() => new MLGraphBuilder(lost), { name: "InvalidStateError" });
});

const BUFFERS = [
  ["float32", [1], new Float32Array([1]), [0, 0, 128, 63]],
  ["float32", [1], new Uint8Array([1, 2, 3, 4]), [1, 2, 3, 4]],
  ["float32", [1], new DataView(new ArrayBuffer(6), 1, 4), [0, 0, 0, 0]],
  ["float32", [1], new ArrayBuffer(4), [0, 0, 0, 0]],
  ["float32", [1], new SharedArrayBuffer(4), [0, 0, 0, 0]],
  ["float32", [1], new Float32Array(new SharedArrayBuffer(8), 4, 1), [0, 0, 0, 0]],
  ["float16", [2], new Uint16Array([15360, 1]), [0, 60, 1, 0]],
  ["int64", [1], BigInt64Array.of(-1n), Array(8).fill(255)],
  ["uint64", [1], BigUint64Array.of(1n), [1, 0, 0, 0, 0, 0, 0, 0]],
  ["int8", [2], Int8Array.of(-1, 1), [255, 1]],
  [
    "float32",
    [1],
    new Int32Array(1),
    /constant: buffer must be a Float32Array or a Uint8Array for float32, got a Int32Array/,
  ],
  ["int32", [1], new Uint32Array(1), /must be a Int32Array/],
  ["float16", [1], new Int16Array(1), /must be a Float16Array/],
  ["uint8", [1], new Uint8ClampedArray(1), /must be a Uint8Array/],
  ["int8", [1], new Float64Array(1), /must have 1 bytes for int8 \[1\], got 8/],
  ["float32", [2], new ArrayBuffer(4), /must have 8 bytes for float32 \[2\], got 4/],
  ["float32", [1], [1], /must be an ArrayBuffer, a SharedArrayBuffer or a view of one, got \[object Array\]/],
  ["float32", [1], undefined, /got undefined/],
  ["float32", [1], new ArrayBuffer(4, { maxByteLength: 8 }), /must not be resizable/],
];

for (const [dataType, shape, buffer, wanted] of BUFFERS) {
  const what = `${dataType} of ${Object.prototype.toString.call(buffer)}`;
  test(`${Array.isArray(wanted) ? "accepted" : "refused"}: a constant ${what}`, () => {
    const make = () => builder.constant({ dataType, shape }, buffer);
    if (!Array.isArray(wanted))
      return assert.throws(make, (error) => error instanceof TypeError && wanted.test(error.message));
    const made = make();
    assert.deepEqual([made.dataType, made.shape], [dataType, shape]);
    const [message, payload] = fake.messages.slice(-2);
    assert.deepEqual(
      [message.m, message.dataType, message.shape, message.bin],
      ["const", dataType, shape, wanted.length],
    );
    assert.deepEqual(payload, wanted);
  });
}

test("a detached buffer has no bytes", () => {
  const buffer = new ArrayBuffer(4);
  structuredClone(buffer, { transfer: [buffer] });
  assert.throws(() => builder.constant({ dataType: "float32", shape: [1] }, buffer), /must have 4 bytes .* got 0/);
});

test("constant() has three forms", async () => {
  const entry = () => (builder.relu(x), fake.syncs.at(-1).log.at(-2));
  builder.constant("int64", 9007199254740993n);
  assert.deepEqual(
    [entry()[0], fake.syncs.at(-1).log.at(-2)[2]],
    ["constantNumber", ["int64", { n: "9007199254740993n" }]],
  );
  builder.constant("float32", NaN);
  assert.deepEqual(entry()[2], ["float32", { n: "NaN" }]);
  const tensor = await context.createConstantTensor({ dataType: "int8", shape: [2] }, Int8Array.of(1, 2));
  const made = builder.constant(tensor);
  assert.deepEqual([made.dataType, made.shape, entry()[0]], ["int8", [2], "constantTensor"]);
  assert.throws(() => builder.constant(), /constant: 1 argument required, got 0/);
  assert.throws(() => builder.constant(7), /constant: tensor must be an MLTensor, got 7/);
  assert.throws(() => builder.constant("float64", 1), /constant: dataType must be one of/);
  assert.throws(() => builder.constant(null, new ArrayBuffer(4)), /constant: descriptor.dataType is missing/);
  const plain = await context.createTensor({ dataType: "int8", shape: [2] });
  assert.throws(() => builder.constant(plain), /was not made by createConstantTensor/);
  assert.throws(() => new MLGraphBuilder(context).constant({}), TypeError);
});
