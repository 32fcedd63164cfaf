// MLOperand, MLGraph and MLGraphBuilder. Operations are entries of a log, which the server validates: one by one
// (strict), or when a shape is read and in build() (lazy). What is checked here goes along with the next entry: inputs,
// constants, and operations for which `knownResult` says that they are valid.

class MLOperand {
  constructor() {
    checkInternal(arguments[0], "MLOperand");
  }

  get dataType() {
    return described(thisOf(this, MLOperand)).dataType;
  }

  get shape() {
    return described(thisOf(this, MLOperand)).shape;
  }
}

function operand(value, what) {
  return slotsOf(value, MLOperand, what);
}

function described(fields) {
  if (fields.shape === undefined) flush(fields.builder);
  return fields;
}

class MLGraph {
  constructor() {
    checkInternal(arguments[0], "MLGraph");
  }

  // Not in the specification; Chromium has it, and LiteRT.js needs it.
  get devices() {
    return thisOf(this, MLGraph).devices;
  }

  destroy() {
    const graph = thisOf(this, MLGraph);
    if (isDestroyed(graph)) return;
    graph.isDestroyed = true;
    release(graph, "graphs");
  }
}

class MLGraphBuilder {
  constructor(context) {
    needArguments(arguments.length, 1, "MLGraphBuilder");
    const owner = slotsOf(context, MLContext, "MLGraphBuilder: context");
    checkAlive(owner, "MLGraphBuilder");
    const fields = {
      Interface: MLGraphBuilder,
      context: owner,
      id: nextId(owner),
      pending: [],
      claimed: [], // constant tensors of pending entries
      hasBuilt: false,
      failure: null,
    };
    slots.set(this, fields);
    track(fields, "builders");
  }

  input(name, descriptor) {
    const builder = thisOf(this, MLGraphBuilder);
    needArguments(arguments.length, 2, "input");
    const text = usvString(name);
    const members = builder.context.drafts ? INPUT_DESCRIPTOR : OPERAND_DESCRIPTOR;
    const { dataType, shape } = dictionary(descriptor, members, "input: descriptor");
    checkCanBuild(builder, "input");
    if (text === "") fail("input: name must not be empty");
    const { limits } = builder.context;
    const names = shape.map((size) => size.name ?? size);
    checkDescriptor({ dataType, shape: names }, limits, limits.input, `input ${shown(text)}: descriptor`);
    return note(builder, "input", [text, { dataType, shape }], { dataType, shape: names });
  }

  constant(first) {
    const builder = thisOf(this, MLGraphBuilder);
    needArguments(arguments.length, 1, "constant");
    if (arguments.length === 1) return constantOfTensor(builder, first);
    if (isObject(first) || first === undefined || first === null) return constantOfBuffer(builder, first, arguments[1]);
    return constantOfNumber(builder, first, arguments[1]);
  }

  build(outputs) {
    let named;
    let builder;
    try {
      builder = thisOf(this, MLGraphBuilder);
      needArguments(arguments.length, 1, "build");
      named = record(outputs, operand, "build: outputs");
      checkCanBuild(builder, "build");
      if (named.size === 0) {
        const given = slots.has(outputs) ? `an ${slots.get(outputs).Interface.name}` : "none";
        fail(`build: outputs must be an object of named operands, got ${given}`);
      }
      for (const [name, output] of named) checkOutput(builder, name, output);
    } catch (error) {
      return Promise.reject(error);
    }
    const { mode, connection } = builder.context;
    if (mode === "lazy" && connection.link.sync) flush(builder); // throws: libraries overlook rejections
    return build(builder, named);
  }
}

// Of contexts with drafts: the shape of each output for shapes of the inputs. The server infers them, in a synchronous
// request; sizes that recur are looked up here.
function computeShapes(inputShapes) {
  const graph = thisOf(this, MLGraph);
  needArguments(arguments.length, 1, "computeShapes");
  const shapes = record(inputShapes, sequence(unsignedLong), "computeShapes: inputShapes");
  if (isDestroyed(graph)) throw invalidState("computeShapes: the graph is destroyed");
  const outputs = shapesOfOutputs(graph, Object.fromEntries(shapes));
  return Object.fromEntries(Object.entries(outputs).map(([name, shape]) => [name, [...shape]]));
}

function shapesOfOutputs(graph, shapes) {
  const key = JSON.stringify(shapes);
  if (!graph.shapes.has(key)) {
    const answer = graph.context.connection.sync(graph.context, { g: graph.id, shapes });
    if (answer.error) throw errorFrom(answer.error);
    if (graph.shapes.size >= MAX_SHAPES) graph.shapes.delete(graph.shapes.keys().next().value);
    graph.shapes.set(key, answer.shapes);
  }
  return graph.shapes.get(key);
}

// Of contexts with drafts: graphs by key, which the server keeps for the origin of the page
// (https://github.com/webmachinelearning/webnn/blob/main/cache-explainer.md).
async function saveGraph(key, graph) {
  const context = thisOf(this, MLContext);
  needArguments(arguments.length, 2, "saveGraph");
  const text = `${key}`;
  const fields = slotsOf(graph, MLGraph, "saveGraph: graph");
  if (fields.context !== context) fail("saveGraph: the graph belongs to another context");
  checkAlive(context, "saveGraph");
  if (isDestroyed(fields)) throw invalidState("saveGraph: the graph is destroyed");
  await context.connection.request(context, { m: "save", g: fields.id, key: text });
}

async function loadGraph(key) {
  const context = thisOf(this, MLContext);
  needArguments(arguments.length, 1, "loadGraph");
  const text = `${key}`;
  checkAlive(context, "loadGraph");
  const graph = newGraph(context);
  return compiledGraph(graph, { m: "load", g: graph.id, key: text });
}

async function listGraphs() {
  const context = thisOf(this, MLContext);
  checkAlive(context, "listGraphs");
  const [{ keys }] = await context.connection.request(context, { m: "list" });
  return keys;
}

async function deleteGraph(key) {
  const context = thisOf(this, MLContext);
  needArguments(arguments.length, 1, "deleteGraph");
  const text = `${key}`;
  checkAlive(context, "deleteGraph");
  await context.connection.request(context, { m: "delete", key: text });
}

// The descriptors of a graph's inputs and outputs: a page that loads a graph by key has built none.
const DESCRIPTORS = {
  get inputs() {
    return descriptorsOf(thisOf(this, MLGraph), "inputs");
  },
  get outputs() {
    return descriptorsOf(thisOf(this, MLGraph), "outputs");
  },
};

function descriptorsOf(graph, side) {
  const frozen = ({ dataType, shape }) => Object.freeze({ dataType, shape: Object.freeze([...shape]) });
  graph.descriptors[side] ??= Object.freeze(
    Object.fromEntries([...graph[side]].map(([name, descriptor]) => [name, frozen(descriptor)])),
  );
  return graph.descriptors[side];
}

const MAX_SIZES_BYTES = 4096; // of a constant that may be sizes
const MAX_SHAPES = 1024; // combinations of sizes that a graph remembers

// What only drafts have is there once a server offers it.
function defineDrafts() {
  if ("computeShapes" in MLGraph.prototype) return;
  defineOperations(DRAFTS, true);
  const attributes = { enumerable: true, configurable: true };
  Object.defineProperty(MLGraph.prototype, "computeShapes", { value: computeShapes, writable: true, ...attributes });
  for (const side of ["inputs", "outputs"]) {
    const { get } = Object.getOwnPropertyDescriptor(DESCRIPTORS, side);
    Object.defineProperty(MLGraph.prototype, side, { get, ...attributes });
  }
  for (const value of [saveGraph, loadGraph, listGraphs, deleteGraph])
    Object.defineProperty(MLContext.prototype, value.name, { value, writable: true, ...attributes });
}

function checkOutput(builder, name, output) {
  if (name === "") fail("build: names of outputs must not be empty");
  if (output.builder !== builder) fail(`build: output ${shown(name)} is an operand of another builder`);
  if (!output.isResult)
    fail(`build: output ${shown(name)} must be the result of an operation, not an input or a constant`);
}

async function build(builder, named) {
  if (builder.failure) throw builder.failure;
  const { context, pending } = builder;
  builder.hasBuilt = true;
  builder.pending = [];
  const graph = newGraph(context);
  const outs = Object.fromEntries([...named].map(([name, { id }]) => [name, id]));
  const log = pending.map(({ entry }) => entry);
  const message = { m: "build", b: builder.id, g: graph.id, log, outs };
  const compiling = compiledGraph(graph, message);
  releaseClaims(builder);
  try {
    return await compiling;
  } finally {
    release(builder, "builders");
  }
}

// The graph that the server makes for a message.
async function compiledGraph(graph, message) {
  const { context } = graph;
  const [answer] = await context.connection.request(context, message);
  graph.inputs = new Map(Object.entries(answer.inputs));
  graph.outputs = new Map(Object.entries(answer.outputs));
  graph.devices = Object.freeze(answer.devices);
  const compiled = create(MLGraph, graph);
  track(graph, "graphs");
  return compiled;
}

const newGraph = (context) => ({ context, id: nextId(context), isDestroyed: false, shapes: new Map(), descriptors: {} });

const nextId = (context, count = 1) => {
  context.lastId += count;
  return context.lastId - count + 1;
};

function checkCanBuild(builder, method) {
  checkAlive(builder.context, method);
  if (builder.hasBuilt) throw invalidState(`${method}: the builder has built its graph; make another one`);
}

// An entry that needs no answer, because all of it was checked here.
function note(builder, op, args, { dataType, shape }) {
  const id = nextId(builder.context);
  builder.pending.push({ entry: [op, id, args, {}], label: "", results: [] });
  return create(MLOperand, { builder, id, isResult: false, dataType, shape: Object.freeze(shape) });
}

function constantOfTensor(builder, value) {
  const tensor = slotsOf(value, MLTensor, "constant: tensor");
  if (tensor.context !== builder.context) fail("constant: the tensor belongs to another context");
  if (isDestroyed(tensor) && !builder.context.isLost) fail("constant: the tensor is destroyed");
  if (!tensor.constant) fail("constant: the tensor was not made by createConstantTensor()");
  checkCanBuild(builder, "constant");
  tensor.claims += 1;
  builder.claimed.push(tensor);
  return note(builder, "constantTensor", [tensor.id], tensor);
}

// The server has the entries that name these tensors: it may free those that were destroyed meanwhile.
function releaseClaims(builder) {
  for (const tensor of builder.claimed.splice(0)) {
    tensor.claims -= 1;
    if (tensor.claims === 0 && tensor.isDestroyed) release(tensor, "tensors");
  }
}

function constantOfBuffer(builder, descriptor, buffer) {
  const { dataType, shape } = dictionary(descriptor, OPERAND_DESCRIPTOR, "constant: descriptor");
  const source = bufferSource(buffer, "constant: buffer");
  checkCanBuild(builder, "constant");
  const { context } = builder;
  checkDescriptor({ dataType, shape }, context.limits, context.limits.constant, "constant: descriptor");
  checkBuffer(source, { dataType, shape }, "constant: buffer");
  const message = { m: "const", c: context.c, b: builder.id, id: context.lastId + 1, dataType, shape };
  context.connection.send({ ...message, bin: source.bytes.length }, unshared(source));
  // Operations of drafts read small integers when they are validated, which may be before the payload has come.
  const isSize = context.drafts && !dataType.startsWith("float") && source.bytes.length <= MAX_SIZES_BYTES;
  const bytes = isSize ? { bytes: [...source.bytes] } : {};
  return note(builder, "constant", [{ dataType, shape, ...bytes }], { dataType, shape });
}

function constantOfNumber(builder, type, value) {
  const dataType = KIND_OF_DATA(type, "constant: dataType");
  const number = numeric(value);
  checkCanBuild(builder, "constant");
  return note(builder, "constantNumber", [dataType, encoded(number)], { dataType, shape: [] });
}

const KIND_OF_DATA = enumeration(ENUMS.OperandDataType);

// Values in a log: operands by number, and numbers that JSON has no form for.
function encoded(value) {
  if (Array.isArray(value)) return value.map(encoded);
  if (typeof value === "bigint") return { n: `${value}n` };
  if (Object.is(value, -0)) return { n: "-0" };
  if (typeof value === "number" && !Number.isFinite(value)) return { n: String(value) };
  return isObject(value) ? { $: value.id } : value;
}

// Send what is noted, and enter the answers. An error in an earlier entry than the last makes the builder useless, and so
// does a request without an answer: the server may have the entries. Where no request is possible, they stay noted.
function flush(builder) {
  if (builder.failure) throw builder.failure;
  const { context, pending } = builder;
  if (pending.length === 0) return;
  if (context.isLost) throw invalidState(context.loss);
  let answer;
  try {
    answer = context.connection.sync(context, { b: builder.id, log: pending.map(({ entry }) => entry) });
  } catch (error) {
    if (context.connection.link.sync) builder.failure = error;
    throw error;
  }
  builder.pending = [];
  releaseClaims(builder);
  answer.operands.forEach((described, at) => {
    pending[at].results.forEach((result, index) => {
      const { dataType, shape } = described[index];
      Object.assign(result, { dataType, shape: Object.freeze(shape) });
    });
  });
  if (!answer.error) return;
  const error = errorFrom(answer.error, pending[answer.at]?.label);
  if (context.mode === "lazy" || answer.at !== pending.length - 1) builder.failure = error;
  throw error;
}

// The result of an operation if it is certainly valid, and follows from the descriptors of its operands: element-wise
// operations, softmax, cast and reshape. Else undefined, and the server is asked; it also says what is wrong.
function knownResult(name, form, values, limits) {
  const [a, b] = values;
  const fits = (one, allowed) =>
    allowed.dataTypes.includes(one.dataType) &&
    one.shape.length >= allowed.rankRange.min &&
    one.shape.length <= allowed.rankRange.max;
  const allowed = limits[name];
  if (!allowed || a.shape === undefined) return undefined;
  let result;
  if (form === "input:o;") result = a;
  else if (name === "softmax" && b < a.shape.length) result = a;
  else if (name === "cast") result = { dataType: b, shape: a.shape };
  else if (name === "reshape") result = { dataType: a.dataType, shape: b };
  else if (form === "a:o b:o;" && name !== "matmul" && b.shape && a.dataType === b.dataType && fits(b, allowed.b)) {
    const { dataTypes } = allowed.output;
    const shape = broadcast(a.shape, b.shape);
    if (shape) result = { dataType: dataTypes.length === 1 ? dataTypes[0] : a.dataType, shape };
  }
  if (!result || !fits(a, allowed.a ?? allowed.input) || !fits(result, allowed.output)) return undefined;
  if (name === "reshape" && sizeOf(a.shape) !== sizeOf(b)) return undefined;
  const isSmall = sizeOf(result.shape) <= LARGEST_DIMENSION && byteLength(result) <= limits.maxTensorByteLength;
  return isSmall ? result : undefined;
}

// The shape that two broadcast to, or undefined.
function broadcast(a, b) {
  const rank = Math.max(a.length, b.length);
  const shape = [];
  for (let at = 1; at <= rank; at++) {
    const [m, n] = [a.at(-at) ?? 1, b.at(-at) ?? 1];
    if (at <= a.length && at <= b.length && m !== n && m !== 1 && n !== 1) return undefined;
    shape.unshift(m === 1 ? n : m);
  }
  return shape;
}

// The number of results of an operation: the first has the number of the entry, the others follow.
const RESULTS = {
  splitDynamic: ([, splits]) => described(splits).shape[0],
  split: ([, splits]) => (typeof splits === "number" ? splits : splits.length),
  gru: (_, { returnSequence }) => (returnSequence ? 2 : 1),
  lstm: (_, { returnSequence }) => (returnSequence ? 3 : 2),
  lstmCell: () => 2,
};

// A method of the builder from a line of the table.
function operation(name, form, args, members, several, isDraft) {
  const method = {
    [name](...given) {
      const builder = thisOf(this, MLGraphBuilder);
      needArguments(given.length, args.length, name);
      const values = args.map(([argument, convert], at) => convert(given[at], `${name}: ${argument}`));
      const options = dictionary(given[args.length], members, `${name}: options`);
      if (options.roundingType !== undefined) {
        // the old name
        options.outputShapeRounding ??= options.roundingType;
        delete options.roundingType;
      }
      checkCanBuild(builder, name);
      const label = options.label ?? "";
      for (const value of [...values.flat(), ...Object.values(options)]) {
        if (value?.Interface === MLOperand && value.builder !== builder) {
          throw errorFrom({ name: "TypeError", message: `${name}: an operand belongs to another builder` }, label);
        }
      }
      const count = several ? RESULTS[name](values, options) : 1;
      if (count > MAX_TENSOR_COUNT) {
        throw errorFrom(
          { name: "TypeError", message: `${name}: at most ${MAX_TENSOR_COUNT} results, got ${count}` },
          label,
        );
      }
      const id = nextId(builder.context, Math.max(count, 1));
      const made = Array.from({ length: count }, (_, at) =>
        create(MLOperand, { builder, id: id + at, isResult: true }),
      );
      const known = !isDraft && knownResult(name, form, values, builder.context.limits);
      if (known) Object.assign(slots.get(made[0]), { dataType: known.dataType, shape: Object.freeze(known.shape) });
      const chosen = Object.fromEntries(Object.entries(options).map(([key, value]) => [key, encoded(value)]));
      builder.pending.push({
        entry: [name, id, encoded(values), chosen],
        label,
        results: made.map((one) => slots.get(one)),
      });
      if (!known && builder.context.mode !== "lazy") flush(builder);
      return several ? made : made[0];
    },
  }[name];
  Object.defineProperty(method, "length", { value: args.length });
  return method;
}

function defineOperations(table, isDraft) {
  for (const line of table.trim().split("\n")) defineLine(line, isDraft);
}

function defineLine(line, isDraft) {
  const [names, args, options, several] = line.trim().split(";");
  const read = (part) =>
    part
      .split(" ")
      .filter(Boolean)
      .map((pair) => {
        const [name, kind] = pair.split(":");
        return [name, conversion(kind)];
      });
  const members = [["label", usvString], ...read(options)];
  if (options.includes("outputShapeRounding")) members.push(["roundingType", conversion("RoundingType")]);
  for (const name of names.split(" ")) {
    const value = operation(name, `${args};${options}`, read(args), members, Boolean(several), isDraft);
    Object.defineProperty(MLGraphBuilder.prototype, name, {
      value,
      writable: true,
      configurable: true,
      enumerable: isDraft, // `expose` makes the others enumerable
    });
  }
}

defineOperations(OPERATIONS, false);
