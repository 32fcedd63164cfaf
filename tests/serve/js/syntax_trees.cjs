// Whether two scripts have the same syntax tree: node --expose-internals syntax_trees.cjs A B
const { readFileSync } = require("node:fs");

let acorn;
try {
  acorn = require("internal/deps/acorn/acorn/dist/acorn");
} catch {
  console.log("no parser");
  process.exit();
}

const isPosition = (key) => key === "start" || key === "end";
const plain = (key, value) => {
  if (isPosition(key)) return undefined;
  return typeof value === "bigint" || value instanceof RegExp ? String(value) : value;
};
const [first, second] = process.argv
  .slice(2)
  .map((file) => JSON.stringify(acorn.parse(readFileSync(file, "utf8"), { ecmaVersion: "latest" }), plain));
console.log(first === second ? `the same, ${first.length} characters` : "different");
