// node --test app.test.mjs: the app computes on WebNN what it computes on WebAssembly.
//
// APP_URL is where the app is served, OPWEAVE_URL and OPWEAVE_TOKEN are where `opweave serve` is; CHROMIUM is a browser's path.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { install } from "opweave-webnn/playwright.mjs";
import { chromium } from "playwright-core";

const { APP_URL = "http://localhost:5173", OPWEAVE_URL: url, OPWEAVE_TOKEN: token, CHROMIUM: executablePath } = process.env;
let browser;

before(async () => {
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
});

after(() => browser.close());

async function result(query) {
  const page = await browser.newPage();
  await install(page, { url, token });
  await page.goto(`${APP_URL}/index.html?${query}`);
  await page.waitForFunction(() => document.getElementById("result").value !== "");
  const values = JSON.parse(await page.evaluate(() => document.getElementById("result").value));
  await page.close();
  return values;
}

test("WebNN computes what WebAssembly computes", async () => {
  const model = process.env.MODEL ?? "model.onnx";
  const [expected, actual] = [await result(`provider=wasm&model=${model}`), await result(`provider=webnn&model=${model}`)];
  const largest = Math.max(...expected.map(Math.abs));
  assert.ok(largest > 0);
  expected.forEach((value, k) => assert.ok(Math.abs(value - actual[k]) <= 1e-5 * largest, `${k}: ${actual[k]}, not ${value}`));
});
