"use strict";

// What a model's outputs look like in text: some values are enough.
const SHOWN = 64;
const KINDS = { npy: "application/x-npy", npz: "application/x-npz", png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg" };

const element = (root, selector) => root.querySelector(selector);

function fill(table, tensors) {
  for (const { name, datatype, shape } of tensors) {
    const row = table.tBodies[0].insertRow();
    for (const text of [name, datatype, `[${shape.map((size) => (size < 0 ? "any" : size)).join(", ")}]`]) {
      row.insertCell().textContent = text;
    }
  }
}

function zeros(model) {
  const inputs = model.inputs.map(({ name, datatype }) => {
    const shape = model.example[name];
    const count = shape.reduce((a, b) => a * b, 1);
    const zero = datatype === "BYTES" ? "" : datatype === "BOOL" ? false : 0;
    return { name, datatype, shape, data: Array(count).fill(zero) };
  });
  return { inputs };
}

function describe({ name, datatype, shape, data }) {
  let text = `${name}: ${datatype} [${shape.join(", ")}]`;
  if (["BYTES", "BOOL"].includes(datatype) || data.length < 2) {
    return `${text}\n${JSON.stringify(data.slice(0, SHOWN))}`;
  }
  let best = 0;
  data.forEach((value, index) => { if (value > data[best]) best = index; });
  text += `, largest value ${Number(data[best].toPrecision(6))} at ${best}`;
  const values = data.slice(0, SHOWN).map((value) => Number(value.toPrecision(6)));
  return `${text}\n${values.join(" ")}${data.length > SHOWN ? " …" : ""}`;
}

// Whether a shape is that of a picture: at least 8 by 8 pixels with 1, 3 or 4 channels, first or last.
function isPicture({ shape }) {
  const sizes = shape.filter((size, axis) => axis >= shape.length - 3);
  if (shape.length < 3 || shape.length > 4 || (shape.length === 4 && shape[0] !== 1)) return false;
  const channels = (size) => [1, 3, 4].includes(size);
  const [a, b, c] = sizes;
  return (channels(a) && b > 7 && c > 7) || (channels(c) && a > 7 && b > 7);
}

async function post(url, body, type, accept = "application/json") {
  const response = await fetch(url, { method: "POST", body, headers: { "Content-Type": type, Accept: accept } });
  if (!response.ok) {
    const text = await response.text();
    let message = text;
    try { message = JSON.parse(text).error; } catch { /* not of this server */ }
    throw new Error(message || `status ${response.status}`);
  }
  return response;
}

async function run(model, root) {
  const file = element(root, "input[type=file]").files[0];
  const options = element(root, "input[type=text]").value.trim().replace(/^\?/, "");
  let body, type;
  if (file) {
    type = KINDS[file.name.split(".").pop().toLowerCase()] || file.type;
    body = file;
  } else {
    type = "application/json";
    body = JSON.stringify(zeros(model));
  }
  const isImage = type.startsWith("image/");
  const query = isImage && options ? `?${options}` : "";
  const begin = performance.now();
  const response = await post(`${model.url}/infer${query}`, body, type);
  const { outputs } = await response.json();
  const seconds = performance.now() - begin;
  element(root, ".time").textContent = `${file ? file.name : "zeros"}: ${seconds.toFixed(1)} ms`;
  element(root, "pre").textContent = outputs.map(describe).join("\n\n");
  element(root, ".result").hidden = false;
  const picture = outputs.find(isPicture);
  const preview = element(root, ".preview");
  preview.hidden = true;
  // JSON requests name outputs in their body, which stays as it is: files name them in the URL.
  if (picture && file) {
    const more = `${query ? `${query}&` : "?"}output=${encodeURIComponent(picture.name)}`;
    const drawn = await post(`${model.url}/infer${more}`, body, type, "image/png");
    URL.revokeObjectURL(preview.src);
    preview.src = URL.createObjectURL(await drawn.blob());
    preview.hidden = false;
  }
}

function show(model) {
  const root = element(document, "#model").content.cloneNode(true).firstElementChild;
  const version = model.versions[0];
  model.url = `v2/models/${encodeURIComponent(model.name)}/versions/${encodeURIComponent(version)}`;
  element(root, "h2").textContent = model.several ? `${model.name}, version ${version}` : model.name;
  fill(element(root, ".inputs"), model.inputs);
  fill(element(root, ".outputs"), model.outputs);
  const error = element(root, ".error"), button = element(root, "button"), details = element(root, "details");
  element(root, "form").addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    error.hidden = true;
    try {
      await run(model, root);
    } catch (reason) {
      error.textContent = reason.message;
      error.hidden = false;
    } finally {
      button.disabled = false;
    }
  });
  details.addEventListener("toggle", async () => {
    const place = element(details, ".drawing"), failure = element(details, ".error");
    if (!details.open || place.firstChild) return;
    failure.hidden = true;
    try {
      const response = await fetch(`${model.url}/picture`);
      if (!response.ok) throw new Error((await response.json()).error);
      const image = new Image();
      image.alt = `The operations of ${model.name}`;
      image.src = URL.createObjectURL(await response.blob());
      place.append(image);
    } catch (reason) {
      failure.textContent = reason.message;
      failure.hidden = false;
    }
  });
  return root;
}

async function start() {
  const status = element(document, "#status");
  try {
    const response = await fetch("v2/models");
    const { models, language_models: chats } = await response.json();
    const counts = new Map();
    for (const { name } of models) counts.set(name, (counts.get(name) || 0) + 1);
    for (const model of models) {
      model.several = counts.get(model.name) > 1;
      element(document, "#models").append(show(model));
    }
    const parts = models.length || !chats.length ? [`${counts.size} ${counts.size === 1 ? "model" : "models"}`] : [];
    if (chats.length) parts.push(`language models at /v1: ${chats.join(", ")}`);
    status.textContent = parts.join("; ");
  } catch (reason) {
    status.textContent = reason.message;
  }
}

start();
