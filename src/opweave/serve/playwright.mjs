// For tests of web code: define navigator.ml in a page before its own scripts, with Playwright or Puppeteer.
//
//   import { install } from "opweave-webnn/playwright.mjs";
//   await install(page, { url, token });
//   await page.goto(…);

import { readFileSync } from "node:fs";

import { address, stats } from "./server.mjs";

export { stats };

const SHIM = readFileSync(new URL("./webnn.js", import.meta.url), "utf8");

// The script that a page must run first. Options: `url` and `token` as `opweave serve` prints them; `mode`: "strict" or
// "lazy"; `force`: replace the browser's own navigator.ml.
export function script(options = {}) {
  return `globalThis.opweaveOptions = ${JSON.stringify(options)};\n${SHIM}`;
}

// Install it in a page or a browser context of Playwright, or in a page of Puppeteer; before `goto`. The page's workers
// are not covered: they need `importScripts("<url>/webnn.js")`.
export async function install(page, options = {}) {
  const isPage = typeof (page?.addInitScript ?? page?.evaluateOnNewDocument) === "function";
  if (!isPage) throw new TypeError("opweave: install() takes a page or context of Playwright, or a page of Puppeteer");
  if ("url" in options) checkUrl(options.url);
  const content = script(options);
  if (page.addInitScript) await page.addInitScript({ content });
  else await page.evaluateOnNewDocument(content);
}

// A URL that is undefined is mostly a variable of the environment that is not set.
function checkUrl(url) {
  if (typeof url !== "string") throw new TypeError(`opweave: install() needs the url of \`opweave serve\`, got ${url}`);
  if ("socketPath" in address(url)) throw new TypeError(`opweave: pages cannot connect to a Unix socket, ${url}`);
}
