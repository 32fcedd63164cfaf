import {measure} from "./measure.mjs";

report(await measure());
