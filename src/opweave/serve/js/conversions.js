// Conversions as in Web IDL (https://webidl.spec.whatwg.org/#js-type-mapping); `what` is how errors call the value.

const LARGEST_DIMENSION = 2 ** 31 - 1;
const MAX_TENSOR_COUNT = 8192; // https://www.w3.org/TR/webnn/#valid-tensor-count

const ELEMENT_BYTES = { float32: 4, float16: 2, int32: 4, uint32: 4, int64: 8, uint64: 8, int8: 1, uint8: 1 };

// The views of each data type. Uint8Array and DataView are taken for all: slices of WebAssembly's memory come as these.
// Uint16Array stands for Float16Array, which older engines lack.
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

function refuse(what, rule, value) {
  fail(`${what} must ${rule}, got ${shown(value)}`);
}

const integer = (low, high) => (value, what) => {
  const number = Math.trunc(+value) + 0; // + refuses bigints and symbols; + 0 turns -0 into 0
  if (!(number >= low && number <= high)) {
    const hint = number < 0 && /ax[ie]s\b/.test(what) ? "; WebNN has no negative axes" : "";
    fail(`${what} must be an integer in [${low}, ${high}], got ${shown(value)}${hint}`);
  }
  return number;
};

const unsignedLong = integer(0, 2 ** 32 - 1);

function double(value, what) {
  const number = +value;
  if (!Number.isFinite(number)) refuse(what, "be a finite number", value);
  return number;
}

function float(value, what) {
  const number = Math.fround(+value);
  if (!Number.isFinite(number)) refuse(what, "be a finite number of single precision", value);
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
  if (!values.includes(text)) refuse(what, `be one of ${values.join(", ")}`, value);
  return text;
};

const sequence = (convert) => (value, what) => {
  const iterate = isObject(value) ? value[Symbol.iterator] : undefined;
  if (typeof iterate !== "function") refuse(what, "be a sequence", value);
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
  if (typeof iterate !== "function") refuse(what, "be an integer or a sequence", value);
  return items(iterate, value, unsignedLong, what);
}

// `members`: [name, conversion, the name in older drafts if it is required], in the order in which they are read. What
// is absent stays so.
function dictionary(value, members, what) {
  if (value !== undefined && value !== null && !isObject(value)) refuse(what, "be an object", value);
  if (isObject(value)) warnOfNames(Object.keys(value), members, what);
  const found = {};
  for (const [name, convert, oldName] of members) {
    const member = value === undefined || value === null ? undefined : value[name];
    if (member !== undefined) found[name] = convert(member, `${what}.${name}`);
    else if (oldName) fail(`${what}.${name} is missing (older drafts call it ${oldName})`);
  }
  return found;
}

// Web IDL ignores unknown members, such as `pads` for `padding`. Warn of each once.
const warned = new Set();
function warnOfNames(keys, members, what) {
  for (const key of keys) {
    if (members.some(([name]) => name === key) || warned.has(what + key)) continue;
    const [like] = members.find(([name]) => name.slice(0, 3) === key.slice(0, 3)) ?? [];
    if (!like) continue;
    warned.add(what + key);
    console.warn(`opweave: ${what}.${key} is ignored; did you mean ${like}?`);
  }
}

// A record, as a map: names may be those of members that all objects have.
function record(value, convert, what) {
  if (!isObject(value)) refuse(what, "be an object", value);
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

// The bytes of an AllowSharedBufferSource, not copied: { bytes, view: the kind of view or null, shared }.
function bufferSource(value, what) {
  const isView = ArrayBuffer.isView(value);
  const buffer = isView ? value.buffer : value;
  const own = lengthOfBuffer(buffer) !== undefined;
  const shared = !own && lengthOfShared(buffer) !== undefined; // second: throwing is slow
  if (!own && !shared) {
    refuse(what, "be an ArrayBuffer, a SharedArrayBuffer or a view of one", value);
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

const sizeOf = (shape) => shape.reduce((count, size) => count * size, 1);
const byteLength = ({ dataType, shape }) => sizeOf(shape) * ELEMENT_BYTES[dataType];

function checkLength({ bytes }, { dataType, shape }, what) {
  const wanted = byteLength({ dataType, shape });
  if (bytes.length !== wanted)
    fail(`${what} must have ${wanted} bytes for ${dataType} [${shape}], got ${bytes.length}`);
}

// https://www.w3.org/TR/webnn/#validate-buffer-with-descriptor; readTensor() and writeTensor() check the length only,
// since Chromium does, and web code depends on it.
function checkBuffer(source, { dataType, shape }, what) {
  checkLength(source, { dataType, shape }, what);
  const { view } = source;
  if (view !== null && ![...VIEWS[dataType], "Uint8Array", "DataView"].includes(view)) {
    fail(`${what} must be a ${VIEWS[dataType][0]} or a Uint8Array for ${dataType}, got a ${view}`);
  }
}

// The bytes to send; shared memory is copied, since other threads may change it.
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

// The conversion for a kind of argument in the table of operations.
function conversion(kind) {
  if (Object.hasOwn(KINDS, kind)) return KINDS[kind];
  if (kind.endsWith("[]")) return sequence(conversion(kind.slice(0, -2)));
  return enumeration(ENUMS[kind]);
}

// A dimension of an input in a context with drafts: a size, a name, or a name with the sizes to expect.
const DIMENSION = [
  ["name", usvString],
  ["minSize", unsignedLong],
  ["maxSize", unsignedLong],
];
function dimension(value, what) {
  if (typeof value !== "string" && !isObject(value)) return unsignedLong(value, what);
  const { name, ...sizes } = isObject(value) ? dictionary(value, DIMENSION, what) : { name: usvString(value) };
  if (!name) fail(`${what} must be a size or a name that is not empty, got ${shown(value)}`);
  const { minSize = 1, maxSize = Infinity } = sizes;
  if (maxSize < minSize) fail(`${what}.maxSize must be at least minSize, ${minSize}, got ${maxSize}`);
  return Object.keys(sizes).length ? { name, ...sizes } : name;
}

const isNumber = (size) => typeof size === "number";
const isStatic = (shape) => shape.every(isNumber);

const OPERAND_DESCRIPTOR = [
  ["dataType", enumeration(ENUMS.OperandDataType), "type"],
  ["shape", sequence(unsignedLong), "dimensions"],
];
const INPUT_DESCRIPTOR = [OPERAND_DESCRIPTOR[0], ["shape", sequence(dimension), "dimensions"]];
const TENSOR_DESCRIPTOR = [...OPERAND_DESCRIPTOR, ["readable", boolean], ["writable", boolean]];
const CONTEXT_OPTIONS = [
  ["accelerated", boolean],
  ["deviceType", enumeration(["cpu", "gpu", "npu"])], // of earlier drafts; Chromium and libraries still have it
  ["powerPreference", enumeration(ENUMS.PowerPreference)],
];

// As https://www.w3.org/TR/webnn/#mloperanddescriptor-check-dimensions, with the limits of the context.
function checkDescriptor({ dataType, shape }, limits, allowed, what) {
  const deny = (rule) => fail(`${what} must ${rule}, got ${dataType} [${shape}]`);
  const { min, max } = allowed.rankRange;
  if (!allowed.dataTypes.includes(dataType)) deny(`be of a supported data type (${allowed.dataTypes.join(", ")})`);
  if (shape.length < min || shape.length > max) deny(`have ${min} to ${max} dimensions`);
  const sizes = shape.filter(isNumber);
  if (!sizes.every((size) => size > 0 && size <= LARGEST_DIMENSION)) {
    deny(`have dimensions in [1, ${LARGEST_DIMENSION}]`);
  }
  if (sizeOf(sizes) > LARGEST_DIMENSION) deny(`have at most ${LARGEST_DIMENSION} elements`);
  if (byteLength({ dataType, shape: sizes }) > limits.maxTensorByteLength)
    deny(`take at most ${limits.maxTensorByteLength} bytes`);
}
