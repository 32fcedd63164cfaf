// For tests of web code: define navigator.ml in a page before its own scripts, with Playwright or Puppeteer.
//
//   import { install } from "opweave-webnn/playwright.mjs";
//   await install(page, { url, token });
//   await page.goto(…);

import { readFileSync } from "node:fs";

const SHIM = readFileSync(new URL("./webnn.js", import.meta.url), "utf8");

// The script that a page must run first. Options: `url` and `token` as `opweave serve` prints them; `mode`: "strict" or
// "lazy"; `force`: replace the browser's own navigator.ml.
export function script(options = {}) {
  return `globalThis.opweaveOptions = ${JSON.stringify(options)};\n${SHIM}`;
}

// Install it in a page or a browser context of Playwright, or in a page of Puppeteer; before `goto`. The page's workers are
// not covered: they need `importScripts("<url>/webnn.js")`.
export async function install(page, options = {}) {
  const content = script(options);
  if (page.addInitScript) await page.addInitScript({ content });
  else if (page.evaluateOnNewDocument) await page.evaluateOnNewDocument(content);
  else throw new TypeError("opweave: install() takes a page or context of Playwright, or a page of Puppeteer");
}
