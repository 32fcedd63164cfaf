/// <reference path="./webnn.d.ts" />

/** `navigator.ml`. */
export const ml: ML;
export default ml;
export { stats } from "./server.mjs";
