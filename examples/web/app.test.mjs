// node --test app.test.mjs: the app computes on WebNN, and the same as on WebAssembly.
//
// APP_URL is where the app is served, OPWEAVE_URL and OPWEAVE_TOKEN are where `opweave serve` is; CHROMIUM is a browser's path.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { install, stats } from "opweave-webnn/playwright.mjs";
import { chromium } from "playwright-core";

const { APP_URL = "http://localhost:5173", OPWEAVE_URL: url, OPWEAVE_TOKEN: token, CHROMIUM: executablePath } = process.env;
const server = { url, token };
let browser;

before(async () => {
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
});

after(() => browser.close());

// What the page computes, and how many graphs it ran on WebNN.
async function result(query) {
  const before = await stats(server);
  const page = await browser.newPage();
  await install(page, server);
  await page.goto(`${APP_URL}/index.html?${query}`);
  await page.waitForFunction(() => document.getElementById("result").value !== "");
  const values = JSON.parse(await page.evaluate(() => document.getElementById("result").value));
  await page.close();
  return { values, dispatches: (await stats(server)).dispatches - before.dispatches };
}

test("WebNN computes what WebAssembly computes", async () => {
  const model = process.env.MODEL ?? "model.onnx";
  const { values: expected, dispatches: none } = await result(`provider=wasm&model=${model}`);
  const { values: actual, dispatches } = await result(`provider=webnn&model=${model}`);
  assert.equal(none, 0);
  assert.ok(dispatches > 0, "ONNX Runtime Web computed on WebAssembly, and said nothing");
  const largest = Math.max(...expected.map(Math.abs));
  assert.ok(largest > 0);
  expected.forEach((value, k) => assert.ok(Math.abs(value - actual[k]) <= 1e-5 * largest, `${k}: ${actual[k]}, not ${value}`));
});
