// A graph for each count of numbers, on one context.
let context;
const graphs = new Map();

async function graphOf(count) {
  if (!navigator.ml) throw new Error("this browser has no WebNN: set OPWEAVE_TOKEN, and run `opweave serve`");
  context ??= navigator.ml.createContext();
  const place = await context;
  const descriptor = { dataType: "float32", shape: [1, count] };
  const builder = new MLGraphBuilder(place);
  const graph = await builder.build({ y: builder.softmax(builder.input("x", descriptor), 1) });
  const input = await place.createTensor({ ...descriptor, writable: true });
  const output = await place.createTensor({ ...descriptor, readable: true });
  return { graph, input, output };
}

export async function softmax(values) {
  const count = values.length;
  if (!graphs.has(count)) graphs.set(count, graphOf(count));
  try {
    const [place, { graph, input, output }] = await Promise.all([context, graphs.get(count)]);
    place.writeTensor(input, values);
    place.dispatch(graph, { x: input }, { y: output });
    return new Float32Array(await place.readTensor(output));
  } catch (error) {
    context = undefined; // the next call begins anew
    graphs.clear();
    throw error;
  }
}
