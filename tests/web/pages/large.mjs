// Tensors so large that they are read by HTTP requests: several at once, into arrays, and while the page waits for /sync.
const LENGTH = 2 ** 21 + 3; // of float32: more than 8 MiB, and no multiple of the pieces
const context = await navigator.ml.createContext();
const other = await navigator.ml.createContext();
const builder = new MLGraphBuilder(context);
const x = builder.input("x", {dataType: "float32", shape: [LENGTH]});
const graph = await builder.build({y: builder.neg(x)});
const tensor = (owner) => owner.createTensor({dataType: "float32", shape: [LENGTH], readable: true, writable: true});
const [a, b, c] = [await tensor(context), await tensor(context), await tensor(other)];
const data = Float32Array.from({length: LENGTH}, (_, k) => k);
context.writeTensor(a, data);
other.writeTensor(c, data);
context.dispatch(graph, {x: a}, {y: b});
const target = new Float32Array(LENGTH + 2).fill(7);
const detached = new Float32Array(LENGTH);
const reads = [context.readTensor(a), context.readTensor(b, target), other.readTensor(c), context.readTensor(b)];
const failed = context.readTensor(b, detached).then(() => "", ({name}) => name);
detached.buffer.transfer();
context.writeTensor(a, data.fill(1)); // after the reads
const later = context.readTensor(a);
const gone = await tensor(context);
const rejected = context.readTensor(gone).then(() => "", ({name}) => name);
gone.destroy();
const further = new MLGraphBuilder(context);
const operand = further.reduceSum(further.input("x", {dataType: "float32", shape: [4]}));
const wrong = (values, expected) => values.reduce((count, value, k) => count + (value !== expected(k)), 0);
const [first, nothing, second, third] = await Promise.all(reads);
const errors = [await failed, await rejected];
const last = new Float32Array(await later);
await context.createTensor({dataType: "float32", shape: [1]}); // once the contents of rejected reads have come, too
report({
  shape: operand.shape,
  nothing: nothing === undefined,
  wrong: [
    wrong(new Float32Array(first), (k) => k),
    wrong(target, (k) => (k < LENGTH ? -k : 7)),
    wrong(new Float32Array(second), (k) => k),
    wrong(new Float32Array(third), (k) => -k),
    wrong(last, () => 1),
  ],
  errors,
});
