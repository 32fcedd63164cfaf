// What navigator.ml on Opweave costs beyond the work of a graph; a page and Node share it. Times are medians, in milliseconds.

const MIB = 2 ** 20;

function median(values) {
  return values.sort((a, b) => a - b)[values.length >> 1];
}

async function time(runs, body) {
  const times = [];
  for (let run = 0; run < runs + 3; run++) {  // the first three warm up
    const start = performance.now();
    await body();
    if (run >= 3) times.push(performance.now() - start);
  }
  return median(times);
}

/** All figures.
 *
 * @returns {
 *   roundTrip: a read of one number,
 *   operation: an operation that waits for its checks (strict mode),
 *   small, image: a run with 30 KB or 602 KB in and 4 KB out, whose graph only copies the latter,
 *   write, read: of a tensor of 64 MiB,
 *   constants: 100 constants of 1 MB }
 */
export async function measure() {
  const context = await navigator.ml.createContext({accelerated: false});
  return {
    roundTrip: await roundTrip(context),
    operation: await operation(context),
    small: await run(context, [1, 3, 50, 50]),
    image: await run(context, [1, 3, 224, 224]),
    ...await transfers(context),
    constants: await constants(context),
  };
}

async function roundTrip(context) {
  const tensor = await context.createTensor({dataType: "float32", shape: [1], readable: true});
  const found = await time(200, () => context.readTensor(tensor));
  tensor.destroy();
  return found;
}

async function operation(context) {
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", {dataType: "float32", shape: [4, 4]});
  return time(100, () => builder.relu(x).shape);
}

async function run(context, shape) {
  const builder = new MLGraphBuilder(context);
  const count = shape.reduce((a, b) => a * b);
  const x = builder.input("x", {dataType: "float32", shape});
  const y = builder.slice(builder.reshape(x, [count]), [0], [1000]);
  const graph = await builder.build({y});
  const input = await context.createTensor({dataType: "float32", shape, writable: true});
  const output = await context.createTensor({dataType: "float32", shape: [1000], readable: true});
  const values = new Float32Array(count);
  const results = new Float32Array(1000);
  const found = await time(100, () => {
    values[0]++;
    context.writeTensor(input, values);
    context.dispatch(graph, {x: input}, {y: output});
    return context.readTensor(output, results);
  });
  if (results[0] !== values[0]) throw new Error(`the graph gives ${results[0]}, expected ${values[0]}`);
  for (const each of [input, output, graph]) each.destroy();
  return found;
}

async function transfers(context) {
  const descriptor = {dataType: "uint8", shape: [64 * MIB], readable: true, writable: true};
  const [large, small] = [await context.createTensor(descriptor), await context.createTensor({...descriptor, shape: [1]})];
  const bytes = new Uint8Array(64 * MIB).map((_, k) => k);
  const write = await time(7, () => {
    context.writeTensor(large, bytes);
    return context.readTensor(small);  // messages of a context keep their order: all has arrived
  });
  const found = new Uint8Array(64 * MIB);
  const read = await time(7, () => context.readTensor(large, found));
  if (found.some((value, k) => value !== bytes[k])) throw new Error("other bytes are read than were written");
  large.destroy();
  small.destroy();
  return {write, read};
}

async function constants(context) {
  const values = new Float32Array(250_000);
  const small = await context.createTensor({dataType: "uint8", shape: [1], readable: true});
  const found = await time(3, () => {
    const builder = new MLGraphBuilder(context);
    for (let k = 0; k < 100; k++) builder.constant({dataType: "float32", shape: [250_000]}, values);
    return context.readTensor(small);  // all have arrived
  });
  small.destroy();
  return found;
}
