// ML, MLContext and MLTensor.

class ML {
  constructor() {
    checkInternal(arguments[0], "ML");
  }

  async createContext(options = undefined) {
    const ml = thisOf(this, ML);
    if (isObject(options) && globalThis.GPUDevice && options instanceof globalThis.GPUDevice) {
      throw new DOMException(
        "createContext: a GPUDevice cannot be shared with Opweave, which is another process",
        "NotSupportedError",
      );
    }
    return openContext(ml, dictionary(options, CONTEXT_OPTIONS, "createContext: options"));
  }
}

async function openContext(ml, options) {
  ml.connecting ??= Connection.open(ml.transport);
  let connection;
  try {
    connection = await ml.connecting;
  } catch (error) {
    ml.connecting = null;
    throw new DOMException(`createContext: ${error.message}`, "NotSupportedError");
  }
  if (connection.ended) {
    ml.connecting = null;
    return openContext(ml, options);
  }
  const context = { connection, mode: ml.mode, c: ++connection.numbers.context, lastId: 0, isLost: false };
  context.lost = new Promise((resolve) => (context.resolveLost = resolve));
  const [answer] = await connection.request(context, { m: "hello", options });
  connection.session = answer.session;
  Object.assign(context, { limits: answer.limits, accelerated: answer.accelerated, drafts: Boolean(answer.drafts) });
  if (context.drafts) defineDrafts();
  connection.contexts.set(context.c, new WeakRef(context));
  track(context, "context");
  return create(MLContext, context);
}

class MLContext {
  constructor() {
    checkInternal(arguments[0], "MLContext");
  }

  get accelerated() {
    return thisOf(this, MLContext).accelerated;
  }

  get lost() {
    try {
      return thisOf(this, MLContext).lost;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  opSupportLimits() {
    return structuredClone(thisOf(this, MLContext).limits);
  }

  destroy() {
    const context = thisOf(this, MLContext);
    if (context.isLost) return;
    context.connection.send({ m: "destroy", c: context.c });
    lose(context, "destroy() was called");
  }

  async createTensor(descriptor) {
    const context = thisOf(this, MLContext);
    needArguments(arguments.length, 1, "createTensor");
    const {
      dataType,
      shape,
      readable = false,
      writable = false,
    } = dictionary(descriptor, TENSOR_DESCRIPTOR, "createTensor: descriptor");
    checkAlive(context, "createTensor");
    checkDescriptor({ dataType, shape }, context.limits, context.limits.input, "createTensor: descriptor");
    return newTensor(context, { dataType, shape, readable, writable });
  }

  async createConstantTensor(descriptor, inputData) {
    const context = thisOf(this, MLContext);
    needArguments(arguments.length, 2, "createConstantTensor");
    const { dataType, shape } = dictionary(descriptor, OPERAND_DESCRIPTOR, "createConstantTensor: descriptor");
    const source = bufferSource(inputData, "createConstantTensor: inputData");
    checkAlive(context, "createConstantTensor");
    checkDescriptor({ dataType, shape }, context.limits, context.limits.constant, "createConstantTensor: descriptor");
    checkBuffer(source, { dataType, shape }, "createConstantTensor: inputData");
    return newTensor(context, { dataType, shape, constant: true, bin: source.bytes.length }, unshared(source));
  }

  async readTensor(tensor) {
    const context = thisOf(this, MLContext);
    needArguments(arguments.length, 1, "readTensor");
    const fields = slotsOf(tensor, MLTensor, "readTensor: tensor");
    const target = arguments.length > 1 ? bufferSource(arguments[1], "readTensor: outputData") : null;
    checkTensor(context, fields, "readTensor");
    if (!fields.readable) fail("readTensor: the tensor is not readable (createTensor({ …, readable: true }))");
    const wanted = byteLength(fields); // a larger buffer is taken, as Chromium and the Web Platform Tests have it
    if (target && target.bytes.length < wanted)
      fail(`readTensor: outputData must have ${wanted} bytes, got ${target.bytes.length}`);
    const message = { m: "read", id: fields.id };
    if (wanted >= APART_BYTES && context.connection.isApart) message.apart = true;
    const reader = { tensor: fields, target: target?.bytes };
    const [, payload] = await context.connection.request(context, message, undefined, reader);
    if (!target) return payload;
    if (target.bytes.length < wanted) fail("readTensor: outputData was detached meanwhile");
    return undefined;
  }

  writeTensor(tensor, inputData) {
    const context = thisOf(this, MLContext);
    needArguments(arguments.length, 2, "writeTensor");
    const fields = slotsOf(tensor, MLTensor, "writeTensor: tensor");
    const source = bufferSource(inputData, "writeTensor: inputData");
    checkTensor(context, fields, "writeTensor");
    if (!fields.writable) fail("writeTensor: the tensor is not writable (createTensor({ …, writable: true }))");
    checkLength(source, fields, "writeTensor: inputData");
    const message = { m: "write", c: context.c, id: fields.id, bin: source.bytes.length };
    context.connection.send(message, unshared(source));
  }

  dispatch(graph, inputs, outputs) {
    const context = thisOf(this, MLContext);
    needArguments(arguments.length, 3, "dispatch");
    const compiled = slotsOf(graph, MLGraph, "dispatch: graph");
    const tensor = (value, what) => slotsOf(value, MLTensor, what);
    const given = record(inputs, tensor, "dispatch: inputs");
    const taken = record(outputs, tensor, "dispatch: outputs");
    if (compiled.context !== context) fail("dispatch: the graph belongs to another context");
    checkAlive(context, "dispatch");
    if (isDestroyed(compiled)) throw invalidState("dispatch: the graph is destroyed");
    const all = [...given.values(), ...taken.values()];
    if (new Set(all).size !== all.length) {
      const twice = all.find((one, at) => all.indexOf(one) !== at);
      fail(`dispatch: ${placesOf(twice, given, taken)} are the same tensor`);
    }
    for (const one of all) {
      if (one.context !== context) fail(`dispatch: ${placesOf(one, given, taken)} belongs to another context`);
      if (isDestroyed(one)) fail(`dispatch: ${placesOf(one, given, taken)} is destroyed`);
    }
    checkTensors(given, compiled.inputs, "dispatch: inputs");
    checkTensors(taken, outputsFor(compiled, given), "dispatch: outputs");
    const ids = (named) => Object.fromEntries([...named].map(([name, { id }]) => [name, id]));
    const message = { m: "dispatch", c: context.c, g: compiled.id, inputs: ids(given), outputs: ids(taken) };
    context.connection.send(message);
  }

  async createExportableTensor(descriptor, device) {
    thisOf(this, MLContext);
    needArguments(arguments.length, 2, "createExportableTensor");
    throw new DOMException(
      "createExportableTensor: tensors cannot be shared with another process",
      "NotSupportedError",
    );
  }

  async exportToGPU(tensor) {
    thisOf(this, MLContext);
    needArguments(arguments.length, 1, "exportToGPU");
    throw new DOMException("exportToGPU: tensors cannot be shared with another process", "NotSupportedError");
  }
}

async function newTensor(context, fields, payload) {
  const id = nextId(context);
  await context.connection.request(context, { m: "tensor", id, ...fields }, payload);
  const { dataType, shape, readable = false, writable = false, constant = false } = fields;
  const tensor = { context, id, dataType, shape: Object.freeze(shape), readable, writable, constant };
  Object.assign(tensor, { isDestroyed: false, claims: 0 });
  track(tensor, "tensors");
  return create(MLTensor, tensor);
}

// The name of an argument of dispatch() in messages: `inputs["x"]`.
function placesOf(tensor, inputs, outputs) {
  const places = (what, named) =>
    [...named].filter(([, one]) => one === tensor).map(([name]) => `${what}[${shown(name)}]`);
  return [...places("inputs", inputs), ...places("outputs", outputs)].join(" and ");
}

function checkTensor(context, tensor, method) {
  if (tensor.context !== context) fail(`${method}: the tensor belongs to another context`);
  checkAlive(context, method);
  if (isDestroyed(tensor)) throw invalidState(`${method}: the tensor is destroyed`);
}

// https://www.w3.org/TR/webnn/#validate-tensors-with-descriptors
function checkTensors(tensors, descriptors, what) {
  const names = (map) => [...map.keys()].map(shown).join(", ") || "nothing";
  if (tensors.size !== descriptors.size) fail(`${what} must be ${names(descriptors)}, got ${names(tensors)}`);
  const sizes = new Map(); // by name: the same name is the same size
  const fits = (size, wanted) => {
    if (isNumber(wanted)) return size === wanted;
    if (!sizes.has(wanted)) sizes.set(wanted, size);
    return sizes.get(wanted) === size;
  };
  const equal = (a, b) => a.length === b.length && a.every((size, k) => fits(size, b[k]));
  for (const [name, tensor] of tensors) {
    const wanted = descriptors.get(name);
    if (!wanted) fail(`${what} must be ${names(descriptors)}, got ${names(tensors)}`);
    if (tensor.constant) fail(`${what}[${shown(name)}] is a constant tensor`);
    if (tensor.dataType !== wanted.dataType || !equal(tensor.shape, wanted.shape)) {
      const got = `${tensor.dataType} [${tensor.shape}]`;
      fail(`${what}[${shown(name)}] must be ${wanted.dataType} [${wanted.shape}], got ${got}`);
    }
  }
}

// The descriptors of a graph's outputs for its inputs. Service workers cannot ask for sizes that are known only now: there,
// an error of the server loses the context.
function outputsFor(graph, inputs) {
  const { outputs } = graph;
  const hasNames = [...graph.inputs.values()].some(({ shape }) => !isStatic(shape));
  if (!hasNames || !graph.context.connection.link.sync) return outputs;
  const shapes = shapesOfOutputs(graph, Object.fromEntries([...inputs].map(([name, { shape }]) => [name, shape])));
  return new Map([...outputs].map(([name, { dataType }]) => [name, { dataType, shape: shapes[name] }]));
}

class MLTensor {
  constructor() {
    checkInternal(arguments[0], "MLTensor");
  }

  get dataType() {
    return thisOf(this, MLTensor).dataType;
  }

  get shape() {
    return thisOf(this, MLTensor).shape;
  }

  get readable() {
    return thisOf(this, MLTensor).readable;
  }

  get writable() {
    return thisOf(this, MLTensor).writable;
  }

  get constant() {
    return thisOf(this, MLTensor).constant;
  }

  destroy() {
    const tensor = thisOf(this, MLTensor);
    if (isDestroyed(tensor)) return;
    tensor.isDestroyed = true;
    tensor.context.connection.abandon(tensor, "the tensor was destroyed before it was read");
    if (tensor.claims === 0) release(tensor, "tensors"); // else once the builders have sent their constants
  }
}
