// A graph for each count of numbers, on one context.
let context;
const graphs = new Map();

async function graphOf(count) {
  if (!navigator.ml) throw new Error("this browser has no WebNN: set OPWEAVE_TOKEN, and run `opweave serve`");
  context ??= await navigator.ml.createContext();
  const descriptor = { dataType: "float32", shape: [1, count] };
  const builder = new MLGraphBuilder(context);
  const graph = await builder.build({ y: builder.softmax(builder.input("x", descriptor), 1) });
  const input = await context.createTensor({ ...descriptor, writable: true });
  const output = await context.createTensor({ ...descriptor, readable: true });
  return { graph, input, output };
}

export async function softmax(values) {
  if (!graphs.has(values.length)) graphs.set(values.length, graphOf(values.length));
  const { graph, input, output } = await graphs.get(values.length);
  context.writeTensor(input, values);
  context.dispatch(graph, { x: input }, { y: output });
  return new Float32Array(await context.readTensor(output));
}
