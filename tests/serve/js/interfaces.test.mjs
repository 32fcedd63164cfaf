// The interfaces as idlharness checks them: constructors, prototypes, attributes of properties, brands.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { fake, ml, started } from "./fake.mjs";

const api = JSON.parse(readFileSync(new URL("../../data/webnn_api.json", import.meta.url)));
const { context, builder, x } = await started();
const tensor = await context.createTensor({ dataType: "float32", shape: [1], readable: true, writable: true });
const graph = await builder.build({ y: builder.relu(x) });
const OBJECTS = { ML: ml, MLContext: context, MLGraphBuilder: builder, MLOperand: x, MLTensor: tensor, MLGraph: graph };
const isPromise = ([{ returns }]) => returns?.startsWith("Promise<");

for (const [name, object] of Object.entries(OBJECTS)) {
  const Interface = globalThis[name];
  const { prototype } = Interface;
  const members = Object.entries(api.interfaces[name]).filter(([member]) => member !== "constructor");

  test(`${name}: the interface object`, () => {
    assert.deepEqual(Object.getOwnPropertyDescriptor(globalThis, name), {
      value: Interface,
      writable: true,
      enumerable: false,
      configurable: true,
    });
    assert.equal(Object.getOwnPropertyDescriptor(Interface, "prototype").writable, false);
    assert.equal(Interface.name, name);
    assert.equal(Interface.length, name === "MLGraphBuilder" ? 1 : 0);
    assert.throws(() => Interface(), TypeError);
    assert.throws(() => new Interface(), TypeError);
    assert.equal(Object.getPrototypeOf(prototype), Object.prototype);
    assert.equal(prototype.constructor, Interface);
    assert.ok(object instanceof Interface);
    assert.equal(String(object), `[object ${name}]`);
    assert.deepEqual(Object.getOwnPropertyDescriptor(prototype, Symbol.toStringTag), {
      value: name,
      writable: false,
      enumerable: false,
      configurable: true,
    });
    assert.deepEqual(Reflect.ownKeys(object), []);
  });

  for (const [member, forms] of members) {
    test(`${name}.${member}`, async () => {
      const property = Object.getOwnPropertyDescriptor(prototype, member);
      assert.ok(property.enumerable && property.configurable);
      if (forms[0].readonly_attribute) {
        assert.deepEqual([property.get.name, property.get.length, property.set], [`get ${member}`, 0, undefined]);
        if (isPromise(forms)) await assert.rejects(prototype[member], TypeError);
        else assert.throws(() => prototype[member], TypeError);
        assert.equal(object[member], object[member], "the same object each time");
        return;
      }
      const required = forms.map((form) => form.arguments.filter(({ optional }) => !optional).length);
      assert.deepEqual([property.value.name, property.value.length], [member, Math.min(...required)]);
      assert.ok(property.writable);
      assert.throws(() => new property.value(), TypeError);
      for (const wrong of [undefined, null, {}, prototype, name === "ML" ? context : ml]) {
        const call = () => property.value.call(wrong);
        if (isPromise(forms)) await assert.rejects(call(), TypeError);
        else assert.throws(call, TypeError);
      }
      if (property.value.length === 0) return;
      if (isPromise(forms)) await assert.rejects(object[member](), TypeError);
      else assert.throws(() => object[member](), /argument/);
    });
  }
}

test("all operations of the specification are there, in its order", () => {
  const own = ["constructor", "input", "constant", "build"];
  const wanted = Object.keys(api.interfaces.MLGraphBuilder).filter((name) => !own.includes(name));
  assert.deepEqual(
    Object.getOwnPropertyNames(MLGraphBuilder.prototype).filter((name) => !own.includes(name)),
    wanted,
  );
});

test("navigator.ml", () => {
  const prototype = Object.getPrototypeOf(navigator);
  const { get, set, enumerable, configurable } = Object.getOwnPropertyDescriptor(prototype, "ml");
  assert.deepEqual([get.name, set, enumerable, configurable], ["get ml", undefined, true, true]);
  assert.equal(navigator.ml, ml);
  assert.throws(() => prototype.ml, TypeError);
  assert.throws(() => get.call({}), TypeError);
});

test("navigator.ml that is there stays, unless its replacement is asked for", async () => {
  const { default: install } = await import(`${process.env.OPWEAVE_PACKAGE}/webnn.js`);
  assert.equal(install({}), ml);
  assert.notEqual(install({ force: true }, fake.transport), ml);
  assert.notEqual(navigator.ml, ml);
  assert.throws(() => install({ force: true, mode: "fast" }), /mode must be "strict" or "lazy", got "fast"/);
});

test("shapes are frozen", () => {
  assert.ok(Object.isFrozen(x.shape) && Object.isFrozen(tensor.shape));
  assert.throws(() => x.shape.push(1), TypeError);
});

test("a GPUDevice cannot be used", async () => {
  assert.throws(() => new GPUDevice(), TypeError);
  const device = Object.create(GPUDevice.prototype);
  await assert.rejects(ml.createContext(device), { name: "NotSupportedError", message: /another process/ });
  await assert.rejects(context.exportToGPU(tensor), { name: "NotSupportedError" });
});

test("options of contexts", async () => {
  for (const wrong of [1, "gpu", true, { powerPreference: "fast" }, { deviceType: "tpu" }]) {
    await assert.rejects(ml.createContext(wrong), TypeError);
  }
  fake.messages.length = 0;
  for (const right of [undefined, null, {}, { accelerated: 0, powerPreference: "low-power", deviceType: "npu" }])
    await ml.createContext(right);
  assert.deepEqual(
    fake.of("hello").map(({ options }) => options),
    [{}, {}, {}, { accelerated: false, deviceType: "npu", powerPreference: "low-power" }],
  );
});

test("limits are a copy", () => {
  const limits = context.opSupportLimits();
  assert.equal(limits.maxTensorByteLength, 2 ** 31 - 1);
  limits.input.dataTypes.length = 0;
  assert.equal(context.opSupportLimits().input.dataTypes.length, 8);
});
