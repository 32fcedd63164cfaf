import ml from "opweave-webnn";
import { install, stats } from "opweave-webnn/playwright.mjs";

const context: MLContext = await navigator.ml.createContext({ deviceType: "cpu" });
await ml.createContext();
const builder = new MLGraphBuilder(context);
const x = builder.input("x", { dataType: "float32", shape: [2, 3] });
const [first] = builder.split(x, [1, 2], { axis: 1, label: "parts" });
const y: MLOperand = builder.clamp(builder.conv2d(first!, x, { padding: [1, 1, 1, 1], inputLayout: "nhwc" }), { minValue: 1n });
// @ts-expect-error: there is no such option
builder.conv2d(x, x, { pads: [1, 1, 1, 1] });
// @ts-expect-error: there is no such mode
builder.pad(x, [0], [1], { mode: "wrap" });
// @ts-expect-error: an operand is no number
builder.softmax(x, y);
const graph = await builder.build({ y });
const tensor = await context.createTensor({ dataType: "float32", shape: y.shape, readable: true });
context.writeTensor(tensor, new Float32Array(6));
context.dispatch(graph, { x: tensor }, { y: tensor });
console.log(new Float32Array(await context.readTensor(tensor)), context.opSupportLimits().conv2d.input, (await context.lost).message);
const { dispatches, messages } = await stats({ url: "http://127.0.0.1:8801" });
console.log(dispatches + (messages["dispatch"] ?? 0));
await install({ addInitScript: async ({ content }: { content: string }) => content.length }, { url: "http://127.0.0.1:8801", mode: "lazy" });
await install({ evaluateOnNewDocument: async (script: string) => script.length });
builder.input("z", { dataType: "float32", shape: ["n", { name: "m", maxSize: 8 }, 4] });
console.log(graph.computeShapes?.({ x: [2, 3] })["y"]?.length, y.shape.map((size) => size + 1));
await context.saveGraph?.("key", graph);
const kept: MLGraph | undefined = await context.loadGraph?.("key");
console.log(kept?.inputs?.["x"]?.shape.length, (await context.listGraphs?.())?.join(), await context.deleteGraph?.("key"));
// @ts-expect-error: a key is a string
await context.deleteGraph?.(7);
// @ts-expect-error: only inputs have names
await context.createTensor({ dataType: "float32", shape: ["n"] });
// @ts-expect-error: no page
await install({});
