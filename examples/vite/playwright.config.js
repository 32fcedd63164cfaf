// `npx playwright test` starts `opweave serve` and Vite, and ends both. CHROMIUM is the path of a browser of the system.
import { randomUUID } from "node:crypto";
import { defineConfig } from "@playwright/test";

// Playwright reads this file in each of its processes: they get the token of the first one.
process.env.OPWEAVE_TOKEN ??= randomUUID();
process.env.OPWEAVE_URL ??= "http://127.0.0.1:8801";
const { OPWEAVE_URL, CHROMIUM, PORT = "5173" } = process.env;
const app = `http://localhost:${PORT}`;

export default defineConfig({
  testDir: "tests",
  use: {
    baseURL: app,
    launchOptions: CHROMIUM ? { executablePath: CHROMIUM, args: ["--no-sandbox"] } : {},
  },
  webServer: [
    {
      command: `opweave serve --port ${new URL(OPWEAVE_URL).port} --origin ${app}`,
      url: `${OPWEAVE_URL}/health`,
    },
    { command: "npx vite", url: app },
  ],
});
