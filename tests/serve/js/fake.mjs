// A server that records what it gets, and answers that all is well, or what a test says.

const { default: install } = await import(`${process.env.OPWEAVE_PACKAGE}/webnn.js`);

const ALL = ["float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8"];
const any = { dataTypes: ALL, rankRange: { min: 0, max: 8 } };
export const limits = { maxTensorByteLength: 2 ** 31 - 1, input: any, constant: any, output: any };

export class Fake {
  constructor() {
    this.messages = []; // what came over the connection, a payload behind its message
    this.syncs = []; // the logs of synchronous requests
    this.answers = {}; // by kind of message: what is answered, or a function of the message
    this.refused = {}; // by operation: { name, message }
    this.holds = [];
    this.connections = 0;
    this.queued = 0; // bytes that wait to be sent
    this.silent = false; // whether requests stay unanswered
    this.shapes = new Map();
  }

  transport = () => async (handlers) => {
    this.connections += 1;
    this.handlers = handlers;
    return {
      send: (text, payload) => this.receive(JSON.parse(text), payload),
      sync: (text) => this.sync(JSON.parse(text)),
      buffered: () => this.queued,
      hold: (on) => this.holds.push(on),
    };
  };

  receive(message, payload) {
    this.messages.push(message);
    if (payload) this.messages.push([...payload]);
    if (message.r === undefined || this.silent) return;
    const given = this.answers[message.m];
    const answer = typeof given === "function" ? given(message) : (given ?? this.default(message));
    queueMicrotask(() => {
      const { payload: bytes, ...rest } = answer;
      this.handlers.text(JSON.stringify({ r: message.r, ...rest, ...(bytes && { bin: bytes.byteLength }) }));
      if (bytes) this.handlers.binary(bytes);
    });
  }

  default({ m, outs }) {
    if (m === "hello") return { session: "key", device: "fake", accelerated: false, limits };
    if (m !== "build") return {};
    const outputs = Object.fromEntries(Object.entries(outs).map(([name, id]) => [name, this.shapes.get(id)]));
    return { inputs: Object.fromEntries(this.inputs ?? []), outputs, devices: ["fake"] };
  }

  sync({ session, c, b, log }) {
    this.syncs.push({ session, c, b, log });
    const operands = [];
    for (const [op, id, args] of log) {
      const error = this.refused[op];
      if (error) return JSON.stringify({ operands, at: operands.length, error });
      const own = args.find((arg) => arg?.shape) ?? this.shapes.get(args.flat().find((arg) => arg?.$)?.$);
      const descriptor = own ?? { dataType: "float32", shape: [] };
      if (op === "input") this.inputs = [...(this.inputs ?? []), [args[0], descriptor]];
      const results = Array.from({ length: op === "split" ? 2 : 1 }, () => descriptor);
      results.forEach((result, at) => this.shapes.set(id + at, result));
      operands.push(results);
    }
    return JSON.stringify({ operands });
  }

  // The messages of a kind.
  of(kind) {
    return this.messages.filter(({ m }) => m === kind);
  }
}

export const fake = new Fake();
export const ml = install({ mode: process.env.OPWEAVE_TEST_MODE ?? "strict" }, fake.transport);

// A new context, a builder, and an operand of it.
export async function started() {
  const context = await ml.createContext();
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", { dataType: "float32", shape: [2, 3] });
  fake.messages.length = fake.syncs.length = 0;
  return { context, builder, x };
}
