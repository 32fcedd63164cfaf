// During development, pages get navigator.ml from `opweave serve` if OPWEAVE_TOKEN is set. What `vite build` writes does not have it.
import { defineConfig } from "vite";

const { OPWEAVE_URL: url = "http://127.0.0.1:8801", OPWEAVE_TOKEN: token, PORT = "5173" } = process.env;

const webnn = {
  name: "opweave-webnn",
  apply: "serve",
  transformIndexHtml: () =>
    token ? [{ tag: "script", attrs: { src: `${url}/webnn.js?token=${encodeURIComponent(token)}` }, injectTo: "head-prepend" }] : [],
};

export default defineConfig({ plugins: [webnn], server: { host: "localhost", port: Number(PORT), strictPort: true } });
