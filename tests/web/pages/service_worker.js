// A service worker that loads `navigator.ml` from the address in its own.
importScripts(new URL(location).searchParams.get("script"));

async function sum() {
  const context = await navigator.ml.createContext();
  const builder = new MLGraphBuilder(context);
  const descriptor = {dataType: "float32", shape: [3]};
  const x = builder.input("x", descriptor);
  const graph = await builder.build({y: builder.transpose(builder.add(x, x))});
  const input = await context.createTensor({...descriptor, writable: true});
  const output = await context.createTensor({...descriptor, readable: true});
  context.writeTensor(input, Float32Array.of(1, 2, 3));
  context.dispatch(graph, {x: input}, {y: output});
  return [...new Float32Array(await context.readTensor(output))];
}

onmessage = event => {
  const answer = value => event.ports[0].postMessage(value);
  event.waitUntil(sum().then(answer, ({name, message}) => answer({name, message})));
};
