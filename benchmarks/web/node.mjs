// node --import PATH/node.mjs node.mjs: the figures as JSON.
import {measure} from "./measure.mjs";

console.log(JSON.stringify(await measure()));
