// The cases of tests/data/wpt in one page, in one context.
import {parseCases, runAll} from "/js/wpt_cases.mjs";

const {kind, files} = JSON.parse(document.getElementById("task").textContent);
const texts = await Promise.all(files.map(async file => (await fetch(`/data/wpt/${kind}/${file}`)).text()));
const cases = texts.flatMap(parseCases);
report({ran: cases.length, failures: await runAll(kind, cases, await navigator.ml.createContext())});
