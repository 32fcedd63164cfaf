// Runs the conformance and validation cases of tests/data/wpt through `navigator.ml`. For pages and for Node.js: no imports.

const OPERAND_OPTIONS = [
  "bias",
  "recurrentBias",
  "peepholeWeight",
  "initialHiddenState",
  "initialCellState",
  "c",
  "scale",
];
const OPERAND_ARGUMENTS = /^(?!.*dataType$|type$|options$)/; // `dataType` of cast is a string, too
const VIEWS = {
  float32: Float32Array,
  float16: Uint16Array, // bits; Float16Array is newer than the oldest engines
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  int8: Int8Array,
  uint8: Uint8Array,
};

/** The cases of a file, one a line. Integers that numbers of JavaScript cannot hold become strings. */
export function parseCases(text) {
  const quoted = text.replace(/(?<=[[,:])-?\d{16,}(?=[,\]}])/g, '"$&"');
  return quoted
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));
}

/** Build the graph of a case, run it, and throw where a result is not within the tolerance. */
export async function runConformance(context, { inputs, operators, expected, tolerance }) {
  const builder = new MLGraphBuilder(context);
  const operands = {};
  for (const [name, { dataType, shape, constant, data }] of Object.entries(inputs)) {
    const descriptor = { dataType, shape };
    operands[name] = constant ? builder.constant(descriptor, typed(data, descriptor)) : builder.input(name, descriptor);
  }
  for (const { name, arguments: given, outputs } of operators) {
    const values = given.map((pair) => argument(...Object.entries(pair)[0], operands));
    const result = builder[name](...values);
    if (typeof outputs === "string") operands[outputs] = result;
    else outputs.forEach((output, at) => (operands[output] = result[at]));
  }
  const wanted = Object.entries(expected);
  for (const [name, { dataType, shape }] of wanted) {
    const got = `${operands[name].dataType} [${operands[name].shape}]`;
    if (got !== `${dataType} [${shape}]`) throw new Error(`${name}: ${got}, expected ${dataType} [${shape}]`);
  }
  const graph = await builder.build(Object.fromEntries(wanted.map(([name]) => [name, operands[name]])));
  const [taken, given] = [{}, {}];
  for (const [name, { dataType, shape, constant, data }] of Object.entries(inputs)) {
    if (constant) continue;
    given[name] = await context.createTensor({ dataType, shape, writable: true });
    context.writeTensor(given[name], typed(data, { dataType, shape }));
  }
  for (const [name, { dataType, shape }] of wanted) {
    taken[name] = await context.createTensor({ dataType, shape, readable: true });
  }
  try {
    context.dispatch(graph, given, taken);
    for (const [name, tensor] of wanted) {
      compare(name, new VIEWS[tensor.dataType](await context.readTensor(taken[name])), tensor, tolerance);
    }
  } finally {
    graph.destroy();
    for (const tensor of [...Object.values(given), ...Object.values(taken)]) tensor.destroy();
  }
}

function argument(name, value, operands) {
  if (name === "options")
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, option(key, item, operands)]));
  if (OPERAND_ARGUMENTS.test(name) && typeof value === "string" && Object.hasOwn(operands, value))
    return operands[value];
  if (Array.isArray(value) && value.every((item) => typeof item === "string" && Object.hasOwn(operands, item))) {
    return value.map((item) => operands[item]);
  }
  return number(value);
}

function option(name, value, operands) {
  return OPERAND_OPTIONS.includes(name) && typeof value === "string" ? operands[value] : number(value);
}

function number(value) {
  if (typeof value !== "string") return value;
  if (/^-?\d+$/.test(value)) return BigInt(value);
  return ["NaN", "Infinity", "-Infinity", "-0"].includes(value) ? Number(value) : value;
}

/** The data of a tensor, in the memory that WebNN takes. */
function typed(data, { dataType, shape }) {
  const convert = dataType.endsWith("64") ? BigInt : dataType === "float16" ? (value) => half(Number(value)) : Number;
  if (Array.isArray(data)) return VIEWS[dataType].from(data, convert);
  return new VIEWS[dataType](shape.reduce((count, size) => count * size, 1)).fill(convert(data));
}

/** The bits of a float16; the numbers of the cases are exactly representable. */
function half(value) {
  const bits = new Uint32Array(new Float32Array([value]).buffer)[0];
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 255) - 112;
  const fraction = bits & 0x7fffff;
  if (exponent >= 31) return sign | (Number.isNaN(value) ? 0x7e00 : 0x7c00);
  if (exponent <= 0) return sign | Math.round(Math.abs(value) * 2 ** 24);
  return sign | (exponent << 10) | (fraction >>> 13);
}

function fromHalf(bits) {
  const [exponent, fraction] = [(bits >>> 10) & 31, bits & 1023];
  const size =
    exponent === 31
      ? fraction
        ? NaN
        : Infinity
      : exponent === 0
        ? fraction * 2 ** -24
        : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

const floats = { float32: { bits: Int32Array, value: Number }, float16: { bits: Int16Array, value: fromHalf } };

function compare(name, got, { dataType, shape, data }, tolerance) {
  const wanted = typed(data, { dataType, shape });
  const float = floats[dataType];
  const value = float?.value ?? Number;
  const [a, b] = float && tolerance.metric === "ULP" ? [new float.bits(got.buffer), new float.bits(wanted.buffer)] : [];
  const lowest = dataType === "float16" ? -(2 ** 15) : -(2 ** 31);
  const ordered = (bits) => (bits < 0 ? lowest - bits : bits);
  for (let i = 0; i < wanted.length; i++) {
    if (got[i] === wanted[i]) continue;
    const [x, y] = [value(got[i]), value(wanted[i])];
    if (Number.isNaN(x) && Number.isNaN(y)) continue;
    let distance, limit;
    if (tolerance.metric === "ULP") {
      distance = float
        ? Number.isNaN(x) || Number.isNaN(y)
          ? Infinity
          : Math.abs(ordered(a[i]) - ordered(b[i]))
        : difference(got[i], wanted[i]);
      limit = tolerance.value;
    } else {
      distance = x === y ? 0 : Math.abs(x - y);
      limit = tolerance.metric === "ATOL" ? tolerance.value : tolerance.atol + tolerance.rtol * Math.abs(y);
    }
    if (!(distance <= limit))
      throw new Error(
        `${name}[${i}] is ${x}, expected ${y}; they differ by ${distance}, more than ${JSON.stringify(tolerance)}`,
      );
  }
}

const difference = (a, b) => Math.abs(Number(a - b)); // of bigints, too

/** Run the steps of a case, and throw where one does not do as it should. */
export async function runValidation(context, { steps }) {
  const builders = [];
  const results = {};
  async function call({ call: method, args, builder = 0, result }) {
    builders[builder] ??= new MLGraphBuilder(context);
    const made = await builders[builder][method](...args.map((arg) => decoded(arg, results)));
    if (typeof result === "string") results[result] = made;
    else result?.forEach((name, at) => (results[name] = made[at]));
  }
  for (const step of steps) {
    if (step.throws) {
      const error = await (async () => {
        for (const inner of step.steps) await call(inner);
      })().then(
        () => null,
        (caught) => caught,
      );
      const got =
        error === null ? "nothing" : error instanceof DOMException ? `DOMException:${error.name}` : error.name;
      if (got !== step.throws)
        throw new Error(`expected ${step.throws} of ${JSON.stringify(step.steps)}, got ${got} ${error}`);
    } else if (step.check) {
      const { dataType, shape } = results[step.check];
      if ((step.dataType ?? dataType) !== dataType || String(step.shape ?? shape) !== String(shape)) {
        throw new Error(`${JSON.stringify(step)}: got ${dataType} [${shape}]`);
      }
    } else {
      await call(step);
    }
  }
}

function decoded(value, results) {
  if (Array.isArray(value)) return value.map((item) => decoded(item, results));
  if (typeof value === "string" && /^-?\d{16,}$/.test(value)) return Number(value); // as `parseCases` has quoted it
  if (typeof value !== "object" || value === null) return value;
  if (value.$ref) return results[value.$ref];
  if (value.$number) return Number(value.$number);
  if (value.$bigint) return BigInt(value.$bigint);
  if (value.$undefined) return undefined;
  if (!value.$buffer)
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, decoded(item, results)]));
  const Buffer =
    globalThis[value.$buffer === "Float16Array" && !globalThis.Float16Array ? "Uint16Array" : value.$buffer];
  if (value.byteLength !== undefined) return new Buffer(value.byteLength);
  const data = decoded(value.data ?? Array(value.length).fill(0), results);
  return Buffer.from(data, Buffer.name.startsWith("Big") ? BigInt : Number);
}

/** Run cases one after the other; returns the messages of those that fail, by id. */
export async function runAll(kind, cases, context) {
  const run = { conformance: runConformance, validation: runValidation }[kind];
  const failures = {};
  for (const one of cases) {
    try {
      await run(context, one);
    } catch (error) {
      failures[one.id] = String(error);
    }
  }
  return failures;
}
