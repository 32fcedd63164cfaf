// The sum of two tensors in a dedicated worker, while the page has a context of its own.
const {script} = JSON.parse(document.getElementById("task").textContent);
const context = await navigator.ml.createContext();

const text = `importScripts(${JSON.stringify(script)});
(async () => {
  const context = await navigator.ml.createContext();
  const builder = new MLGraphBuilder(context);
  const descriptor = {dataType: "float32", shape: [3]};
  const graph = await builder.build({c: builder.add(builder.input("a", descriptor), builder.input("b", descriptor))});
  const a = await context.createTensor({...descriptor, writable: true});
  const b = await context.createTensor({...descriptor, writable: true});
  const c = await context.createTensor({...descriptor, readable: true});
  context.writeTensor(a, Float32Array.of(1, 2, 3));
  context.writeTensor(b, Float32Array.of(1, 2, 3));
  context.dispatch(graph, {a, b}, {c});
  postMessage([...new Float32Array(await context.readTensor(c))]);
})().catch(error => postMessage(String(error)));`;
const worker = new Worker(URL.createObjectURL(new Blob([text], {type: "text/javascript"})));
worker.onerror = event => report({failed: event.message});
worker.onmessage = ({data}) => report({sum: data, context: String(context)});
