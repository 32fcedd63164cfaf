// navigator.ml on Opweave. Made by tools/write_webnn.py from the parts in js/, which have the comments; do not edit.
(() => {
"use strict";
const ENUMS = {
  PowerPreference: ["default", "high-performance", "low-power"],
  OperandDataType: ["float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8"],
  InputOperandLayout: ["nchw", "nhwc"],
  Conv2dFilterOperandLayout: ["oihw", "hwio", "ohwi", "ihwo"],
  ConvTranspose2dFilterOperandLayout: ["iohw", "hwoi", "ohwi"],
  RecurrentNetworkDirection: ["forward", "backward", "both"],
  GruWeightLayout: ["zrn", "rzn"],
  RecurrentNetworkActivation: ["relu", "sigmoid", "tanh"],
  LstmWeightLayout: ["iofg", "ifgo"],
  PaddingMode: ["constant", "edge", "reflection"],
  RoundingType: ["floor", "ceil"],
  InterpolationMode: ["nearest-neighbor", "linear"],
};

const OPERATIONS = `
  argMin argMax;input:o axis:u;keepDimensions:b outputDataType:OperandDataType
  batchNormalization;input:o mean:o variance:o;axis:u bias:o epsilon:d scale:o
  cast;input:o dataType:OperandDataType;
  clamp;input:o;maxValue:n minValue:n
  concat;inputs:o[] axis:u;
  conv2d;input:o filter:o;bias:o dilations:u[] filterLayout:Conv2dFilterOperandLayout groups:u inputLayout:InputOperandLayout padding:u[] strides:u[]
  convTranspose2d;input:o filter:o;bias:o dilations:u[] filterLayout:ConvTranspose2dFilterOperandLayout groups:u inputLayout:InputOperandLayout outputPadding:u[] outputSizes:u[] padding:u[] strides:u[]
  cumulativeSum;input:o axis:u;exclusive:b reversed:b
  add sub mul div max min pow equal notEqual greater greaterOrEqual lesser lesserOrEqual;a:o b:o;
  logicalNot;a:o;
  logicalAnd logicalOr logicalXor;a:o b:o;
  isNaN isInfinite;a:o;
  abs ceil cos erf exp floor identity log neg reciprocal roundEven sin sign sqrt tan;input:o;
  dequantizeLinear quantizeLinear;input:o scale:o zeroPoint:o;
  elu;input:o;alpha:d
  expand;input:o newShape:u[];
  gather gatherElements;input:o indices:o;axis:u
  gatherND;input:o indices:o;
  gelu;input:o;
  gemm;a:o b:o;aTranspose:b alpha:d bTranspose:b beta:d c:o
  gru;input:o weight:o recurrentWeight:o steps:u hiddenSize:u;activations:RecurrentNetworkActivation[] bias:o direction:RecurrentNetworkDirection initialHiddenState:o layout:GruWeightLayout recurrentBias:o resetAfter:b returnSequence:b;[]
  gruCell;input:o weight:o recurrentWeight:o hiddenState:o hiddenSize:u;activations:RecurrentNetworkActivation[] bias:o layout:GruWeightLayout recurrentBias:o resetAfter:b
  hardSigmoid;input:o;alpha:d beta:d
  hardSwish;input:o;
  instanceNormalization;input:o;bias:o epsilon:d layout:InputOperandLayout scale:o
  layerNormalization;input:o;axes:u[] bias:o epsilon:d scale:o
  leakyRelu;input:o;alpha:d
  linear;input:o;alpha:d beta:d
  lstm;input:o weight:o recurrentWeight:o steps:u hiddenSize:u;activations:RecurrentNetworkActivation[] bias:o direction:RecurrentNetworkDirection initialCellState:o initialHiddenState:o layout:LstmWeightLayout peepholeWeight:o recurrentBias:o returnSequence:b;[]
  lstmCell;input:o weight:o recurrentWeight:o hiddenState:o cellState:o hiddenSize:u;activations:RecurrentNetworkActivation[] bias:o layout:LstmWeightLayout peepholeWeight:o recurrentBias:o;[]
  matmul;a:o b:o;
  pad;input:o beginningPadding:u[] endingPadding:u[];mode:PaddingMode value:n
  averagePool2d l2Pool2d maxPool2d;input:o;dilations:u[] layout:InputOperandLayout outputShapeRounding:RoundingType outputSizes:u[] padding:u[] strides:u[] windowDimensions:u[]
  prelu;input:o slope:o;
  reduceL1 reduceL2 reduceLogSum reduceLogSumExp reduceMax reduceMean reduceMin reduceProduct reduceSum reduceSumSquare;input:o;axes:u[] keepDimensions:b
  relu;input:o;
  resample2d;input:o;axes:u[] mode:InterpolationMode scales:f[] sizes:u[]
  reshape;input:o newShape:u[];
  reverse;input:o;axes:u[]
  scatterElements;input:o indices:o updates:o;axis:u
  scatterND;input:o indices:o updates:o;
  sigmoid;input:o;
  slice;input:o starts:u[] sizes:u[];strides:u[]
  softmax;input:o axis:u;
  softplus softsign;input:o;
  split;input:o splits:u|u[];axis:u;[]
  tanh;input:o;
  tile;input:o repetitions:u[];
  transpose;input:o;permutation:u[]
  triangular;input:o;diagonal:i upper:b
  where;condition:o trueValue:o falseValue:o;
`;

const LARGEST_DIMENSION = 2 ** 31 - 1;
const MAX_TENSOR_COUNT = 8192; // https://www.w3.org/TR/webnn/#valid-tensor-count
const ELEMENT_BYTES = { float32: 4, float16: 2, int32: 4, uint32: 4, int64: 8, uint64: 8, int8: 1, uint8: 1 };
const VIEWS = {
float32: ["Float32Array"],
float16: ["Float16Array", "Uint16Array"],
int32: ["Int32Array"],
uint32: ["Uint32Array"],
int64: ["BigInt64Array"],
uint64: ["BigUint64Array"],
int8: ["Int8Array"],
uint8: ["Uint8Array"],
};
function fail(message) {
throw new TypeError(message);
}
const isObject = (value) => (typeof value === "object" && value !== null) || typeof value === "function";
function shown(value) {
if (typeof value === "string") return JSON.stringify(value.slice(0, 80));
if (typeof value === "bigint") return `${value}n`;
if (typeof value === "function") return "a function";
return isObject(value) ? Object.prototype.toString.call(value) : String(value); // without calls of its own methods
}
const integer = (low, high) => (value, what) => {
const number = Math.trunc(+value) + 0; // + refuses bigints and symbols; + 0 turns -0 into 0
if (!(number >= low && number <= high)) fail(`${what} must be an integer in [${low}, ${high}], got ${shown(value)}`);
return number;
};
const unsignedLong = integer(0, 2 ** 32 - 1);
function double(value, what) {
const number = +value;
if (!Number.isFinite(number)) fail(`${what} must be a finite number, got ${shown(value)}`);
return number;
}
function float(value, what) {
const number = Math.fround(+value);
if (!Number.isFinite(number)) fail(`${what} must be a finite number of single precision, got ${shown(value)}`);
return number;
}
const boolean = (value) => Boolean(value);
const numeric = (value) => -(-value); // ToNumeric: a bigint stays one, all else becomes a number
function usvString(value) {
const text = `${value}`; // refuses symbols, unlike String(value)
return text.toWellFormed ? text.toWellFormed() : text.replace(/\p{Surrogate}/gu, "\ufffd");
}
const enumeration = (values) => (value, what) => {
const text = `${value}`;
if (!values.includes(text)) fail(`${what} must be one of ${values.join(", ")}, got ${shown(value)}`);
return text;
};
const sequence = (convert) => (value, what) => {
const iterate = isObject(value) ? value[Symbol.iterator] : undefined;
if (typeof iterate !== "function") fail(`${what} must be a sequence, got ${shown(value)}`);
return items(iterate, value, convert, what);
};
function items(iterate, value, convert, what) {
const found = [];
for (const item of { [Symbol.iterator]: () => iterate.call(value) })
found.push(convert(item, `${what}[${found.length}]`));
return found;
}
function lengthOrSequence(value, what) {
const iterate = isObject(value) ? value[Symbol.iterator] : undefined;
if (iterate === undefined || iterate === null) return unsignedLong(value, what);
if (typeof iterate !== "function") fail(`${what} must be an integer or a sequence, got ${shown(value)}`);
return items(iterate, value, unsignedLong, what);
}
function dictionary(value, members, what) {
if (value !== undefined && value !== null && !isObject(value)) fail(`${what} must be an object, got ${shown(value)}`);
const found = {};
for (const [name, convert, required] of members) {
const member = value === undefined || value === null ? undefined : value[name];
if (member !== undefined) found[name] = convert(member, `${what}.${name}`);
else if (required) fail(`${what}.${name} is missing`);
}
return found;
}
function record(value, convert, what) {
if (!isObject(value)) fail(`${what} must be an object, got ${shown(value)}`);
const found = new Map();
for (const key of Reflect.ownKeys(value)) {
if (!Reflect.getOwnPropertyDescriptor(value, key)?.enumerable) continue;
const name = usvString(key);
found.set(name, convert(value[key], `${what}[${shown(name)}]`));
}
return found;
}
const getter = (prototype, name) => {
const get = Object.getOwnPropertyDescriptor(prototype, name)?.get;
return (value) => {
try {
return get?.call(value);
} catch {
return undefined; // another kind of object; `instanceof` would not know buffers of other realms
}
};
};
const lengthOfBuffer = getter(ArrayBuffer.prototype, "byteLength");
const SharedBuffer = globalThis.SharedArrayBuffer ?? class {};
const lengthOfShared = getter(SharedBuffer.prototype, "byteLength");
const kindOfView = getter(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag);
function bufferSource(value, what) {
const isView = ArrayBuffer.isView(value);
const buffer = isView ? value.buffer : value;
const shared = lengthOfShared(buffer) !== undefined;
if (!isObject(buffer) || (!shared && lengthOfBuffer(buffer) === undefined)) {
fail(`${what} must be an ArrayBuffer, a SharedArrayBuffer or a view of one, got ${shown(value)}`);
}
if (buffer.resizable || buffer.growable) fail(`${what} must not be resizable`);
return { bytes: bytesOf(value, buffer, isView), view: isView ? (kindOfView(value) ?? "DataView") : null, shared };
}
function bytesOf(value, buffer, isView) {
try {
return isView ? new Uint8Array(buffer, value.byteOffset, value.byteLength) : new Uint8Array(buffer);
} catch {
return new Uint8Array(0); // a detached buffer has no bytes, which is an error where their number is checked
}
}
const byteLength = ({ dataType, shape }) => shape.reduce((count, size) => count * size, ELEMENT_BYTES[dataType]);
function checkLength({ bytes }, { dataType, shape }, what) {
const wanted = byteLength({ dataType, shape });
if (bytes.length !== wanted)
fail(`${what} must have ${wanted} bytes for ${dataType} [${shape}], got ${bytes.length}`);
}
function checkBuffer(source, { dataType, shape }, what) {
checkLength(source, { dataType, shape }, what);
const { view } = source;
if (view !== null && ![...VIEWS[dataType], "Uint8Array", "DataView"].includes(view)) {
fail(`${what} must be a ${VIEWS[dataType][0]} or a Uint8Array for ${dataType}, got a ${view}`);
}
}
const unshared = ({ bytes, shared }) => (shared ? new Uint8Array(bytes) : bytes);
const KINDS = {
o: operand,
u: unsignedLong,
i: integer(-(2 ** 31), 2 ** 31 - 1),
d: double,
f: float,
b: boolean,
n: numeric,
};
KINDS["u|u[]"] = lengthOrSequence;
function conversion(kind) {
if (Object.hasOwn(KINDS, kind)) return KINDS[kind];
if (kind.endsWith("[]")) return sequence(conversion(kind.slice(0, -2)));
return enumeration(ENUMS[kind]);
}
const OPERAND_DESCRIPTOR = [
["dataType", enumeration(ENUMS.OperandDataType), true],
["shape", sequence(unsignedLong), true],
];
const TENSOR_DESCRIPTOR = [...OPERAND_DESCRIPTOR, ["readable", boolean], ["writable", boolean]];
const CONTEXT_OPTIONS = [
["accelerated", boolean],
["deviceType", enumeration(["cpu", "gpu", "npu"])], // of earlier drafts; Chromium and libraries still have it
["powerPreference", enumeration(ENUMS.PowerPreference)],
];
function checkDescriptor({ dataType, shape }, limits, allowed, what) {
const refuse = (rule) => fail(`${what} must ${rule}, got ${dataType} [${shape}]`);
const { min, max } = allowed.rankRange;
if (!allowed.dataTypes.includes(dataType)) refuse(`be of a supported data type (${allowed.dataTypes.join(", ")})`);
if (shape.length < min || shape.length > max) refuse(`have ${min} to ${max} dimensions`);
if (!shape.every((size) => size > 0 && size <= LARGEST_DIMENSION)) {
refuse(`have dimensions in [1, ${LARGEST_DIMENSION}]`);
}
const count = shape.reduce((product, size) => product * size, 1);
if (count > LARGEST_DIMENSION) refuse(`have at most ${LARGEST_DIMENSION} elements`);
const bytes = count * ELEMENT_BYTES[dataType];
if (bytes > limits.maxTensorByteLength) refuse(`take at most ${limits.maxTensorByteLength} bytes`);
}
const INTERNAL = Symbol("internal");
const slots = new WeakMap();
function slotsOf(object, Interface, what) {
const found = isObject(object) ? slots.get(object) : undefined;
if (found?.Interface !== Interface) fail(`${what} must be an ${Interface.name}, got ${shown(object)}`);
return found;
}
const thisOf = (object, Interface) => slotsOf(object, Interface, "this");
function create(Interface, fields) {
const object = new Interface(INTERNAL);
slots.set(object, Object.assign(fields, { Interface }));
return object;
}
function checkInternal(key, name) {
if (key !== INTERNAL) fail(`Illegal constructor: objects of ${name} are made by the API`);
}
function needArguments(given, wanted, method) {
if (given < wanted) fail(`${method}: ${wanted} argument${wanted === 1 ? "" : "s"} required, got ${given}`);
}
function expose(global, Interface) {
const { prototype } = Interface;
for (const name of Object.getOwnPropertyNames(prototype)) {
if (name !== "constructor") Object.defineProperty(prototype, name, { enumerable: true });
}
Object.defineProperty(prototype, Symbol.toStringTag, { value: Interface.name, configurable: true });
Object.defineProperty(global, Interface.name, { value: Interface, writable: true, configurable: true });
}
const invalidState = (message) => new DOMException(message, "InvalidStateError");
function errorFrom({ name, message }, label = "") {
const text = label === "" ? message : `[${label}] ${message}`;
return name === "TypeError" ? new TypeError(text) : new DOMException(text, name);
}
const MAX_QUEUED_BYTES = 2 ** 31;
class Connection {
constructor() {
this.requests = new Map(); // number -> { context, resolve, reject }
this.contexts = new Map(); // number -> weak reference to the slots of the context
this.frees = new Map(); // context -> { tensors, graphs, builders }: what is freed before the next message
this.numbers = { request: 0, context: 0 };
this.header = null; // the answer whose payload is the next binary message
this.session = "";
this.ended = false;
}
static async open(transport) {
const connection = new Connection();
connection.link = await transport({
text: (text) => connection.receive(JSON.parse(text)),
binary: (buffer) => connection.settle(connection.header, buffer),
closed: (reason) => connection.end(reason),
});
return connection;
}
send(message, payload) {
if (payload && this.link.buffered() + payload.length > MAX_QUEUED_BYTES) {
const waiting = `${this.link.buffered()} bytes wait to be sent; await readTensor() between writes`;
throw new DOMException(`${message.m}: ${waiting}`, "OperationError");
}
this.sendFrees();
this.link.send(JSON.stringify(message), payload);
}
request(context, message, payload) {
const r = ++this.numbers.request;
return new Promise((resolve, reject) => {
this.send({ ...message, c: context.c, r }, payload);
this.requests.set(r, { context, resolve, reject });
this.link.hold(true);
});
}
receive(message) {
if (message.bin) this.header = message;
else this.settle(message);
}
settle(message, payload) {
if (message.r === undefined) {
const context = this.contexts.get(message.c)?.deref();
if (context) lose(context, message.lost);
return;
}
const request = this.requests.get(message.r); // none if its context was lost meanwhile
this.requests.delete(message.r);
this.link.hold(this.requests.size > 0);
if (message.error) request?.reject(errorFrom(message.error));
else request?.resolve([message, payload]);
}
sync(context, body) {
if (!this.link.sync) {
const why = "service workers have no synchronous requests; in the mode lazy, build() works if no shape is read";
throw new DOMException(`the server cannot be asked here: ${why}`, "NotSupportedError");
}
this.sendFrees();
return JSON.parse(this.link.sync(JSON.stringify({ session: this.session, c: context.c, ...body })));
}
free(c, kind, id) {
if (!this.contexts.has(c)) return;
if (kind === "context") {
this.contexts.delete(c);
this.frees.delete(c);
this.send({ m: "destroy", c });
return;
}
if (this.frees.size === 0) setTimeout(() => this.sendFrees(), 0);
if (!this.frees.has(c)) this.frees.set(c, { tensors: [], graphs: [], builders: [] });
this.frees.get(c)[kind].push(id);
}
sendFrees() {
if (this.ended) return;
for (const [c, { tensors, graphs, builders }] of this.frees) {
this.frees.delete(c);
this.link.send(JSON.stringify({ m: "free", c, tensors, graphs, builders }));
}
}
abandon(context, message) {
for (const [r, request] of this.requests) {
if (request.context !== context) continue;
this.requests.delete(r);
request.reject(invalidState(message));
}
this.contexts.delete(context.c);
this.frees.delete(context.c);
this.link.hold(this.requests.size > 0);
}
end(reason) {
if (this.ended) return;
this.ended = true;
const { requests } = this;
for (const reference of [...this.contexts.values()]) {
const context = reference.deref();
if (context) lose(context, reason);
}
for (const { reject } of requests.values()) reject(new DOMException(reason, "NotSupportedError")); // hello
requests.clear();
}
}
const registry = new FinalizationRegistry(({ connection, c, kind, id }) => connection.free(c, kind, id));
function track(fields, kind) {
const { connection, c } = fields.context ?? fields;
registry.register(fields, { connection, c, kind, id: fields.id }, fields);
}
function release(fields, kind) {
registry.unregister(fields);
fields.context.connection.free(fields.context.c, kind, fields.id);
}
function lose(context, message) {
if (context.isLost) return;
context.isLost = true;
registry.unregister(context);
context.resolveLost({ message });
context.connection.abandon(context, `the context is lost: ${message}`);
}
const isDestroyed = (fields) => fields.isDestroyed || fields.context.isLost;
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
if (owner.isLost) throw invalidState("MLGraphBuilder: the context is lost");
const fields = {
Interface: MLGraphBuilder,
context: owner,
id: nextId(owner),
pending: [],
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
const { dataType, shape } = dictionary(descriptor, OPERAND_DESCRIPTOR, "input: descriptor");
checkCanBuild(builder, "input");
if (text === "") fail("input: name must not be empty");
const { limits } = builder.context;
checkDescriptor({ dataType, shape }, limits, limits.input, `input ${shown(text)}: descriptor`);
return note(builder, "input", [text, { dataType, shape }], { dataType, shape });
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
if (named.size === 0) fail("build: outputs must not be empty");
for (const [name, output] of named) checkOutput(builder, name, output);
} catch (error) {
return Promise.reject(error);
}
const { mode, connection } = builder.context;
if (mode === "lazy" && connection.link.sync) flush(builder); // throws: libraries overlook rejections
return build(builder, named);
}
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
const graph = { context, id: nextId(context), isDestroyed: false };
const outs = Object.fromEntries([...named].map(([name, { id }]) => [name, id]));
const log = pending.map(({ entry }) => entry);
const message = { m: "build", b: builder.id, g: graph.id, log, outs };
try {
const [answer] = await context.connection.request(context, message);
graph.inputs = new Map(Object.entries(answer.inputs));
graph.outputs = new Map(Object.entries(answer.outputs));
graph.devices = Object.freeze(answer.devices);
} finally {
release(builder, "builders");
}
const made = create(MLGraph, graph);
track(graph, "graphs");
return made;
}
const nextId = (context, count = 1) => {
context.lastId += count;
return context.lastId - count + 1;
};
function checkCanBuild(builder, method) {
if (builder.context.isLost) throw invalidState(`${method}: the context is lost`);
if (builder.hasBuilt) throw invalidState(`${method}: the builder has built its graph; make another one`);
}
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
return note(builder, "constantTensor", [tensor.id], tensor);
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
return note(builder, "constant", [{ dataType, shape }], { dataType, shape });
}
function constantOfNumber(builder, type, value) {
const dataType = KIND_OF_DATA(type, "constant: dataType");
const number = numeric(value);
checkCanBuild(builder, "constant");
return note(builder, "constantNumber", [dataType, encoded(number)], { dataType, shape: [] });
}
const KIND_OF_DATA = enumeration(ENUMS.OperandDataType);
function encoded(value) {
if (Array.isArray(value)) return value.map(encoded);
if (typeof value === "bigint") return { n: `${value}n` };
if (Object.is(value, -0)) return { n: "-0" };
if (typeof value === "number" && !Number.isFinite(value)) return { n: String(value) };
return isObject(value) ? { $: value.id } : value;
}
function flush(builder) {
if (builder.failure) throw builder.failure;
const { context, pending } = builder;
if (pending.length === 0) return;
if (context.isLost) throw invalidState("the context is lost");
builder.pending = [];
const answer = context.connection.sync(context, { b: builder.id, log: pending.map(({ entry }) => entry) });
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
const size = (shape) => shape.reduce((count, dimension) => count * dimension, 1);
if (name === "reshape" && size(a.shape) !== size(b)) return undefined;
const bytes = size(result.shape) * ELEMENT_BYTES[result.dataType];
return size(result.shape) <= LARGEST_DIMENSION && bytes <= limits.maxTensorByteLength ? result : undefined;
}
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
const RESULTS = {
split: ([, splits]) => (typeof splits === "number" ? splits : splits.length),
gru: (_, { returnSequence }) => (returnSequence ? 2 : 1),
lstm: (_, { returnSequence }) => (returnSequence ? 3 : 2),
lstmCell: () => 2,
};
function operation(name, form, args, members, several) {
const method = {
[name](...given) {
const builder = thisOf(this, MLGraphBuilder);
needArguments(given.length, args.length, name);
const values = args.map(([argument, convert], at) => convert(given[at], `${name}: ${argument}`));
const options = dictionary(given[args.length], members, `${name}: options`);
if (options.roundingType !== undefined) {
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
const known = knownResult(name, form, values, builder.context.limits);
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
for (const line of OPERATIONS.trim().split("\n")) {
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
const value = operation(name, `${args};${options}`, read(args), members, Boolean(several));
Object.defineProperty(MLGraphBuilder.prototype, name, { value, writable: true, configurable: true });
}
}
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
Object.assign(context, { limits: answer.limits, accelerated: answer.accelerated });
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
if (context.isLost) throw invalidState("createTensor: the context is lost");
checkDescriptor({ dataType, shape }, context.limits, context.limits.input, "createTensor: descriptor");
return newTensor(context, { dataType, shape, readable, writable });
}
async createConstantTensor(descriptor, inputData) {
const context = thisOf(this, MLContext);
needArguments(arguments.length, 2, "createConstantTensor");
const { dataType, shape } = dictionary(descriptor, OPERAND_DESCRIPTOR, "createConstantTensor: descriptor");
const source = bufferSource(inputData, "createConstantTensor: inputData");
if (context.isLost) throw invalidState("createConstantTensor: the context is lost");
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
if (!fields.readable) fail("readTensor: the tensor is not readable");
const wanted = byteLength(fields); // a larger buffer is taken, as Chromium and the Web Platform Tests have it
if (target && target.bytes.length < wanted)
fail(`readTensor: outputData must have ${wanted} bytes, got ${target.bytes.length}`);
const payload = await readBytes(context, fields);
if (!target) return payload;
if (target.bytes.length < wanted) fail("readTensor: outputData was detached meanwhile");
target.bytes.set(new Uint8Array(payload));
return undefined;
}
writeTensor(tensor, inputData) {
const context = thisOf(this, MLContext);
needArguments(arguments.length, 2, "writeTensor");
const fields = slotsOf(tensor, MLTensor, "writeTensor: tensor");
const source = bufferSource(inputData, "writeTensor: inputData");
checkTensor(context, fields, "writeTensor");
if (!fields.writable) fail("writeTensor: the tensor is not writable");
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
if (isDestroyed(compiled)) throw invalidState("dispatch: the graph is destroyed");
const all = [...given.values(), ...taken.values()];
if (new Set(all).size !== all.length) fail("dispatch: a tensor is given twice");
for (const one of all) {
if (one.context !== context) fail("dispatch: a tensor belongs to another context");
if (isDestroyed(one)) fail("dispatch: a tensor is destroyed");
}
checkTensors(given, compiled.inputs, "dispatch: inputs");
checkTensors(taken, compiled.outputs, "dispatch: outputs");
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
Object.assign(tensor, { isDestroyed: false, reads: new Set() });
track(tensor, "tensors");
return create(MLTensor, tensor);
}
function readBytes(context, tensor) {
return new Promise((resolve, reject) => {
tensor.reads.add(reject);
context.connection
.request(context, { m: "read", id: tensor.id })
.then(([, payload]) => resolve(payload), reject)
.finally(() => tensor.reads.delete(reject));
});
}
function checkTensor(context, tensor, method) {
if (tensor.context !== context) fail(`${method}: the tensor belongs to another context`);
if (isDestroyed(tensor)) throw invalidState(`${method}: the tensor is destroyed`);
}
function checkTensors(tensors, descriptors, what) {
const names = (map) => [...map.keys()].map(shown).join(", ") || "nothing";
if (tensors.size !== descriptors.size) fail(`${what} must be ${names(descriptors)}, got ${names(tensors)}`);
for (const [name, tensor] of tensors) {
const wanted = descriptors.get(name);
if (!wanted) fail(`${what} must be ${names(descriptors)}, got ${names(tensors)}`);
if (tensor.constant) fail(`${what}[${shown(name)}] is a constant tensor`);
if (tensor.dataType !== wanted.dataType || String(tensor.shape) !== String(wanted.shape)) {
const got = `${tensor.dataType} [${tensor.shape}]`;
fail(`${what}[${shown(name)}] must be ${wanted.dataType} [${wanted.shape}], got ${got}`);
}
}
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
for (const reject of tensor.reads) reject(invalidState("the tensor was destroyed before it was read"));
release(tensor, "tensors");
}
}
const PROTOCOL = "opweave.webnn.1";
const DEFAULT_URL = "http://127.0.0.1:8801";
const webTransport =
({ url, token }) =>
({ text, binary, closed }) =>
new Promise((resolve, reject) => {
const socket = new WebSocket(url.replace(/^http/, "ws"), token ? [PROTOCOL, `token.${token}`] : [PROTOCOL]);
socket.binaryType = "arraybuffer";
socket.onmessage = ({ data }) => (typeof data === "string" ? text(data) : binary(data));
socket.onclose = ({ code, reason }) => {
const why = `no connection to Opweave at ${url} (${code}${reason && `, ${reason}`}); is \`opweave serve\` running,`;
reject(new Error(`${why} and are this page's origin and token allowed?`));
closed(`the connection to Opweave at ${url} has ended (${code}${reason && `, ${reason}`})`);
};
socket.onopen = () =>
resolve({ send, sync: globalThis.XMLHttpRequest && sync, buffered: () => socket.bufferedAmount, hold() {} });
function send(message, payload) {
socket.send(message);
if (payload) socket.send(payload);
}
function sync(body) {
const request = new XMLHttpRequest();
request.open("POST", `${url}/sync`, false);
request.setRequestHeader("Content-Type", "text/plain"); // a type for which browsers send no preflight
try {
request.send(body);
} catch {
throw new DOMException(`no answer from Opweave at ${url}`, "OperationError");
}
if (request.status === 200) return request.responseText;
throw new DOMException(`Opweave at ${url}: ${request.status} ${request.responseText}`, "OperationError");
}
});
function install(options = {}, transport = webTransport) {
const { url = DEFAULT_URL, token = "", mode = "strict", force = false } = options;
if (!["strict", "lazy"].includes(mode)) fail(`opweave: mode must be "strict" or "lazy", got ${shown(mode)}`);
const global = globalThis;
if (global.isSecureContext === false) {
console.warn("opweave: navigator.ml exists in secure contexts only: use https, or http://localhost");
return undefined;
}
if (global.navigator?.ml && !force) {
if (!slots.has(global.navigator.ml))
console.info("opweave: navigator.ml is there already; set force to replace it");
return global.navigator.ml;
}
for (const Interface of [ML, MLContext, MLGraph, MLGraphBuilder, MLOperand, MLTensor]) expose(global, Interface);
if (!global.GPUDevice) expose(global, GPUDevice); // libraries ask `device instanceof GPUDevice`
if (!global.navigator) {
class Navigator {}
Object.defineProperty(global, "navigator", { value: new Navigator(), configurable: true, writable: true });
}
const { navigator } = global;
const ml = create(ML, { mode, transport: transport({ url: url.replace(/\/$/, ""), token }), connecting: null });
const attribute = {
get ml() {
if (this !== navigator) fail("navigator.ml: Illegal invocation");
return ml;
},
};
const { get } = Object.getOwnPropertyDescriptor(attribute, "ml");
Object.defineProperty(Object.getPrototypeOf(navigator), "ml", { get, enumerable: true, configurable: true });
return ml;
}
class GPUDevice {
constructor() {
checkInternal(arguments[0], "GPUDevice");
}
}
function pageOptions() {
if (globalThis.opweaveOptions) return globalThis.opweaveOptions;
const [source] =
/https?:[^\s"']+\/webnn\.js(\?[^\s:)]*)?/.exec(globalThis.document?.currentScript?.src ?? new Error().stack) ?? [];
if (!source) return {};
const { origin, searchParams } = new URL(source);
const options = { url: origin, force: searchParams.has("force") };
for (const name of ["token", "mode"]) if (searchParams.has(name)) options[name] = searchParams.get(name);
return options;
}
if (typeof module === "object" && module.exports) module.exports = install;
else install(pageOptions());
})();
