// The server, for programs of Node.js: its address, and what its clients have done.

import http from "node:http";
import { text } from "node:stream/consumers";

// The options of `http.request` for a server's URL; `net.connect` has another name for the path of a socket.
export function address(url) {
  if (url.startsWith("unix:")) return { socketPath: url.slice("unix:".length), host: "localhost" };
  if (!/^http:\/\//.test(url)) throw new TypeError(`opweave: the URL must be http://… or unix:/…, got ${url}`);
  const { hostname, port } = new URL(url);
  return { host: hostname.replace(/^\[|\]$/g, ""), port: Number(port || 80) };
}

// The counts of all clients since the server started: { connections, contexts, graphs, dispatches, receivedBytes,
// sentBytes, messages: { dispatch, … } }. Counts of one test are differences of two calls. Options: `url` and `token`
// as `opweave serve` prints them.
export async function stats({ url, token } = {}) {
  if (typeof url !== "string") throw new TypeError(`opweave: stats() needs the server's url, got ${url}`);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await new Promise((resolve, reject) => {
    const failed = ({ message }) => reject(new Error(`no answer from Opweave at ${url} (${message})`));
    http.get({ ...address(url), path: "/stats", headers, agent: false }, resolve).on("error", failed);
  });
  const body = await text(response);
  if (response.statusCode !== 200) throw new Error(`Opweave at ${url}: ${response.statusCode} ${body}`);
  return JSON.parse(body);
}
