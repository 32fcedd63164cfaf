// A graph whose sizes have names, in the page and in a dedicated worker.
const {script} = JSON.parse(document.getElementById("task").textContent);

async function run() {
  const context = await navigator.ml.createContext();
  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", {dataType: "float32", shape: ["n", 2]});
  const y = builder.concat([x, x], 0);
  const graph = await builder.build({y});
  const tensor = rows => context.createTensor({dataType: "float32", shape: [rows, 2], readable: true, writable: true});
  const shapes = [x.shape, y.shape, graph.computeShapes({x: [3, 2]}).y];
  const results = [];
  for (const rows of [1, 2]) {
    const [source, target] = [await tensor(rows), await tensor(2 * rows)];
    context.writeTensor(source, Float32Array.from({length: 2 * rows}, (_, at) => at + 1));
    context.dispatch(graph, {x: source}, {y: target});
    results.push([...new Float32Array(await context.readTensor(target))]);
  }
  return {context, graph, tensor, shapes, results};
}

const {context, graph, tensor, ...page} = await run();
let refused;
try {
  context.dispatch(graph, {x: await tensor(1)}, {y: await tensor(4)});
} catch (error) {
  refused = String(error);
}

const text = `importScripts(${JSON.stringify(script)});
${run}
run().then(({shapes, results}) => postMessage({shapes, results})).catch(error => postMessage(String(error)));`;
const worker = new Worker(URL.createObjectURL(new Blob([text], {type: "text/javascript"})));
worker.onerror = event => report({failed: event.message});
worker.onmessage = ({data}) => report({page, refused, worker: data});
