// Graphs by key: the page keeps one, or loads the one that another page of its origin has kept; a dedicated worker loads it, too.
const {script, key, keeps} = JSON.parse(document.getElementById("task").textContent);

async function run(key) {
  const context = await navigator.ml.createContext();
  const graph = await context.loadGraph(key);
  const {dataType, shape} = graph.inputs.x;
  const x = await context.createTensor({dataType, shape, writable: true});
  const y = await context.createTensor({...graph.outputs.y, readable: true});
  context.writeTensor(x, Float32Array.of(1, 2));
  context.dispatch(graph, {x}, {y});
  return [...new Float32Array(await context.readTensor(y))];
}

const context = await navigator.ml.createContext();
const before = await context.listGraphs();
if (keeps) {
  const builder = new MLGraphBuilder(context);
  const descriptor = {dataType: "float32", shape: [2]};
  const half = builder.constant(descriptor, Float32Array.of(0.5, 0.5));
  await context.saveGraph(key, await builder.build({y: builder.mul(builder.input("x", descriptor), half)}));
}
let page;
try {
  page = await run(key);
} catch (error) {
  page = String(error);
}
const text = `importScripts(${JSON.stringify(script)});
${run}
run(${JSON.stringify(key)}).then(postMessage, error => postMessage(String(error)));`;
const worker = new Worker(URL.createObjectURL(new Blob([text], {type: "text/javascript"})));
worker.onerror = event => report({failed: event.message});
worker.onmessage = ({data}) => report({before, page, worker: data});
