// What benchmarks/serve.py measures in Node.js and in a page: milliseconds by name, through navigator.ml alone.

export const LARGE = 2 ** 24; // elements of float32: 64 MiB

// The median of milliseconds a call, over batches of calls.
export async function perCall(call, count, batches = 9) {
  const found = [];
  for (let batch = 0; batch < batches; batch++) {
    const start = performance.now();
    for (let k = 0; k < count; k++) await call();
    found.push((performance.now() - start) / count);
  }
  return found.sort((a, b) => a - b)[batches >> 1];
}

export async function measure() {
  const context = await navigator.ml.createContext();
  const tensor = (length) => context.createTensor({ dataType: "float32", shape: [length], readable: true, writable: true });
  const tiny = await tensor(1);
  const settle = () => context.readTensor(tiny); // answered after all that was sent before
  const results = {};
  await perCall(settle, 100);
  results.roundTrip = await perCall(settle, 100);

  const builder = new MLGraphBuilder(context);
  const x = builder.input("x", { dataType: "float32", shape: [4] });
  results.operation = await perCall(() => builder.reduceSum(x), 50); // one whose result the script leaves to the server

  for (const [name, length] of [["run30", 7500], ["run602", 150528]]) {
    const builder = new MLGraphBuilder(context);
    const x = builder.input("x", { dataType: "float32", shape: [length] });
    const graph = await builder.build({ y: builder.slice(x, [0], [1000]) });
    const [input, output] = [await tensor(length), await tensor(1000)];
    const data = new Float32Array(length);
    const run = () => {
      context.writeTensor(input, data);
      context.dispatch(graph, { x: input }, { y: output });
      return context.readTensor(output);
    };
    await perCall(run, 20);
    results[name] = await perCall(run, 50);
  }

  const large = await tensor(LARGE);
  const data = new Float32Array(LARGE).fill(1);
  const write = () => {
    context.writeTensor(large, data);
    return settle();
  };
  await write();
  results.write = await perCall(write, 1);
  results.read = await perCall(() => context.readTensor(large), 1);
  const target = new Float32Array(LARGE).fill(1);
  results.readInto = await perCall(() => context.readTensor(large, target), 1);
  large.destroy();

  const weights = new Float32Array(250_000); // 1 MB
  results.constants = await perCall(
    async () => {
      const builder = new MLGraphBuilder(context);
      for (let k = 0; k < 100; k++) builder.constant({ dataType: "float32", shape: [250_000] }, weights);
      await settle();
    },
    1,
    5,
  );
  context.destroy();
  return results;
}
