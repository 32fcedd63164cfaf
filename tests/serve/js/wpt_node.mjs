// node wpt_node.mjs NODE_MJS KIND FOLDER STRIDE: runs every STRIDE-th case of a folder, prints { ran, failures } as JSON.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { parseCases, runAll } from "./wpt_cases.mjs";

const [shim, kind, folder, stride] = process.argv.slice(2);
const { ml } = await import(pathToFileURL(shim));
const files = readdirSync(folder)
  .filter((name) => name.endsWith(".jsonl"))
  .sort();
const cases = files.flatMap((name) => parseCases(readFileSync(join(folder, name), "utf8")));
const chosen = cases.filter((_, at) => at % Number(stride) === 0);
const failures = await runAll(kind, chosen, await ml.createContext());
console.log(JSON.stringify({ ran: chosen.length, failures }));
