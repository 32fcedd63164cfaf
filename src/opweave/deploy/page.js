"use strict";

// What a model's outputs look like in text: some values are enough.
const SHOWN = 64;
const MAX_PIXELS = 1 << 24;
const KINDS = { npy: "application/x-npy", npz: "application/x-npz", png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg" };
const ARRAYS = {
  BOOL: Uint8Array, INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, INT64: BigInt64Array, UINT8: Uint8Array,
  UINT16: Uint16Array, UINT32: Uint32Array, UINT64: BigUint64Array, FP16: Uint16Array, BF16: Uint16Array, FP32: Float32Array,
  FP64: Float64Array,
};

const element = (root, selector) => root.querySelector(selector);

function show(place, error) {
  place.textContent = error ? error.message || String(error) : "";
  place.hidden = !error;
}

// Models -----------------------------------------------------------------------------------------------------------------

function fill(table, tensors) {
  for (const { name, datatype, shape } of tensors) {
    const row = table.tBodies[0].insertRow();
    for (const text of [name, datatype, `[${shape.map((size) => (size < 0 ? "any" : size)).join(", ")}]`]) {
      row.insertCell().textContent = text;
    }
  }
}

const hasChannels = (size) => [1, 3, 4].includes(size);

// Whether the server reads a picture for the only input of a model: the rule of its errors.
function takesPictures({ inputs }) {
  const [{ datatype, shape }] = inputs.length === 1 ? inputs : [{ datatype: "", shape: [] }];
  const isRow = shape.length === 3 || (shape.length === 4 && [-1, 1].includes(shape[0]));
  return isRow && /^(UINT8|FP..)$/.test(datatype) && (hasChannels(shape.at(-3)) || hasChannels(shape.at(-1)));
}

function zeros(model, shapes) {
  const inputs = model.inputs.map(({ name, datatype }) => {
    const count = shapes[name].reduce((a, b) => a * b, 1);
    const zero = datatype === "BYTES" ? "" : datatype === "BOOL" ? false : 0;
    return { name, datatype, shape: shapes[name], data: Array(count).fill(zero) };
  });
  return JSON.stringify({ inputs });
}

async function post(url, body, type, accept) {
  const response = await fetch(url, { method: "POST", body, headers: { "Content-Type": type, Accept: accept } });
  if (!response.ok) {
    const text = await response.text();
    let message = text;
    try { message = JSON.parse(text).error; } catch { /* not of this server */ }
    throw Object.assign(new Error(message.message || message || `status ${response.status}`), { status: response.status });
  }
  return response;
}

function half(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const size = exponent === 31 ? (fraction ? NaN : Infinity)
    : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
  return bits >> 15 ? -size : size;
}

function floats(bits, datatype) {
  if (datatype === "FP16") return Float32Array.from(bits, half);
  return new Float32Array(Uint32Array.from(bits, (value) => value << 16).buffer);
}

// The arrays of an .npz file as the server writes it: a ZIP file without compression, of .npy files in the order of C.
function readArchive(buffer, datatypes) {
  const view = new DataView(buffer), decoder = new TextDecoder(), tensors = [];
  const end = buffer.byteLength - 22;
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    const [nameSize, extraSize, commentSize] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
    const name = decoder.decode(new Uint8Array(buffer, at + 46, nameSize)).replace(/\.npy$/, "");
    const size = view.getUint32(at + 24, true), local = view.getUint32(at + 42, true);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const header = start + 10 + view.getUint16(start + 8, true);
    const [, sizes] = /'shape': \(([^)]*)\)/.exec(decoder.decode(new Uint8Array(buffer, start + 10, header - start - 10)));
    const shape = sizes.split(",").filter((text) => text.trim()).map(Number);
    const datatype = datatypes[name];
    let data = new ARRAYS[datatype](buffer.slice(header, start + size));
    if (datatype === "FP16" || datatype === "BF16") data = floats(data, datatype);
    tensors.push({ name, datatype, shape, data });
    at += 46 + nameSize + extraSize + commentSize;
  }
  return tensors;
}

const digits = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value));

function describe({ name, datatype, shape, data }) {
  let text = `${name}: ${datatype} [${shape.join(", ")}]`;
  if (datatype === "BYTES" || datatype === "BOOL") {
    const values = Array.from(data.slice(0, SHOWN), (value) => (datatype === "BOOL" ? Boolean(value) : value));
    return `${text}\n${JSON.stringify(values)}${data.length > SHOWN ? " …" : ""}`;
  }
  if (data.length > 1) {
    let best = -1, undefinedCount = 0;
    data.forEach((value, index) => {
      if (value !== value) undefinedCount++;
      else if (best < 0 || value > data[best]) best = index;
    });
    if (best >= 0) {
      const place = [];
      for (let axis = shape.length - 1, rest = best; axis >= 0; axis--) {
        place.unshift(rest % shape[axis]);
        rest = Math.floor(rest / shape[axis]);
      }
      text += `, largest value ${digits(data[best])} at [${place.join(", ")}]`;
    }
    if (undefinedCount) text += `, ${undefinedCount} NaN`;
  }
  return `${text}\n${Array.from(data.slice(0, SHOWN), digits).join(" ")}${data.length > SHOWN ? " …" : ""}`;
}

// The layout of a picture: at least 8 by 8 pixels with 1, 3 or 4 channels, first or last, or without channels. Else undefined.
function layoutOf({ shape, datatype }) {
  if (datatype !== "UINT8" && !/^(FP|BF)/.test(datatype)) return undefined;
  let sizes = [...shape];
  while (sizes.length > 2 && sizes[0] === 1) sizes.shift();
  if (sizes.length === 2) sizes.unshift(1);
  if (sizes.length !== 3) return undefined;
  const isFirst = hasChannels(sizes[0]);
  if (!isFirst && !hasChannels(sizes[2])) return undefined;
  const [channels, height, width] = isFirst ? sizes : [sizes[2], sizes[0], sizes[1]];
  const fits = height > 7 && width > 7 && height * width <= MAX_PIXELS && Math.max(height, width) / Math.min(height, width) <= 16;
  return fits ? { isFirst, channels, height, width } : undefined;
}

function figure(content, text) {
  const root = document.createElement("figure"), caption = document.createElement("figcaption");
  caption.textContent = text;
  root.append(content, caption);
  return root;
}

// Draw an output: bytes as they are, floats from 0 to 1, and others from their smallest to their largest value.
function draw(tensor, { isFirst, channels, height, width }) {
  const { data, datatype } = tensor, pixels = height * width;
  let low = 0, high = datatype === "UINT8" ? 255 : 1, note = "";
  if (datatype !== "UINT8") {
    let least = Infinity, most = -Infinity;
    for (const value of data) if (Number.isFinite(value)) [least, most] = [Math.min(least, value), Math.max(most, value)];
    if (least < -0.05 || most > 1.05) {
      [low, high] = [least, most];
      note = `, from ${digits(least)} (black) to ${digits(most)}`;
    }
  }
  const image = new ImageData(width, height), scale = 255 / (high - low || 1);
  for (let pixel = 0; pixel < pixels; pixel++) {
    for (let channel = 0; channel < 4; channel++) {
      const source = channels === 1 ? (channel < 3 ? 0 : -1) : channel < channels ? channel : -1;
      image.data[pixel * 4 + channel] = source < 0 ? 255
        : Math.round((data[isFirst ? source * pixels + pixel : pixel * channels + source] - low) * scale);
    }
  }
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${tensor.name} as a picture`);
  return figure(canvas, `${tensor.name}, ${width} × ${height}${note}`);
}

function typeOf(file) {
  return KINDS[file.name.split(".").pop().toLowerCase()] || file.type || "application/octet-stream";
}

async function infer(model, file, query) {
  const datatypes = Object.fromEntries(model.outputs.map(({ name, datatype }) => [name, datatype]));
  const isText = Object.values(datatypes).includes("BYTES");
  const accept = isText ? "application/json" : KINDS.npz;
  const url = `${model.url}/infer${query}`;
  let response, begin = performance.now();
  if (file) {
    response = await post(url, file, typeOf(file), accept);
  } else {
    // Which sizes of dynamic dimensions fit is known to the model alone.
    for (const [index, shapes] of model.examples.entries()) {
      const body = zeros(model, shapes);
      begin = performance.now();
      try {
        response = await post(url, body, "application/json", accept);
        break;
      } catch (reason) {
        if (reason.status !== 400 || index + 1 === model.examples.length) throw reason;
      }
    }
  }
  const outputs = isText ? (await response.json()).outputs : readArchive(await response.arrayBuffer(), datatypes);
  return { outputs, time: performance.now() - begin };
}

async function run(model, root) {
  const file = element(root, "input[type=file]").files[0];
  const isPicture = file && typeOf(file).startsWith("image/");
  const options = new URLSearchParams();
  for (const { name, value } of root.querySelectorAll(".options [name]")) if (value.trim()) options.set(name, value.trim());
  const { outputs, time } = await infer(model, file, isPicture && options.size ? `?${options}` : "");
  element(root, ".time").textContent = `${file ? file.name : "zeros"}: ${time.toFixed(1)} ms`;
  const pictures = element(root, ".pictures");
  for (const image of pictures.querySelectorAll("img")) URL.revokeObjectURL(image.src);
  pictures.replaceChildren();
  if (isPicture) {
    const image = new Image();
    image.alt = "The picture that was sent";
    image.src = URL.createObjectURL(file);
    pictures.append(figure(image, file.name));
  }
  for (const tensor of file ? outputs : []) {
    const layout = layoutOf(tensor);
    if (layout) pictures.append(draw(tensor, layout));
  }
  element(root, "pre").textContent = outputs.map(describe).join("\n\n");
  element(root, ".result").hidden = false;
}

function modelArticle(model) {
  const root = element(document, "#model").content.cloneNode(true).firstElementChild;
  const version = model.versions[0];
  model.url = `v2/models/${encodeURIComponent(model.name)}/versions/${encodeURIComponent(version)}`;
  model.title = model.several ? `${model.name}, version ${version}` : model.name;
  element(root, "h2").textContent = model.title;
  fill(element(root, ".inputs"), model.inputs);
  fill(element(root, ".outputs"), model.outputs);
  const hasPictures = takesPictures(model), isSingle = model.inputs.length === 1;
  const chooser = element(root, "input[type=file]"), clear = element(root, ".clear");
  chooser.accept = `${hasPictures ? "image/png,image/jpeg," : ""}${isSingle ? ".npy," : ""}.npz`;
  element(root, ".file span").textContent =
    hasPictures ? "A picture, or an .npy or .npz file" : isSingle ? "An .npy or .npz file" : "An .npz file with all inputs";
  const [{ datatype, shape }] = model.inputs.length ? model.inputs : [{ datatype: "", shape: [] }];
  const [height, width] = hasChannels(shape.at(-3)) ? shape.slice(-2) : shape.slice(-3, -1);
  for (const [name, isUsed] of Object.entries({ width: width < 0, height: height < 0 })) {
    element(root, `.options [name=${name}]`).parentElement.hidden = !isUsed;
  }
  for (const name of ["scale", "mean", "std"]) element(root, `.options [name=${name}]`).parentElement.hidden = datatype === "UINT8";
  element(root, "legend").hidden = datatype === "UINT8";
  const error = element(root, ".error"), button = element(root, "button"), details = element(root, "details");
  const choose = () => {
    const file = chooser.files[0];
    button.textContent = file ? "Run" : "Run on zeros";
    clear.hidden = !file;
    element(root, ".options").hidden = !(file && hasPictures && typeOf(file).startsWith("image/"));
  };
  chooser.addEventListener("change", choose);
  clear.addEventListener("click", () => { chooser.value = ""; choose(); });
  choose(); // browsers keep a file when the page is loaded again
  element(root, "form").addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    show(error);
    try {
      await run(model, root);
    } catch (reason) {
      element(root, ".result").hidden = true;
      element(root, ".time").textContent = "";
      show(error, reason);
    } finally {
      button.disabled = false;
    }
  });
  element(details, ".alone a").href = `${model.url}/picture`;
  details.addEventListener("toggle", async () => {
    const place = element(details, ".drawing"), failure = element(details, ".error");
    if (!details.open || place.firstChild) return;
    show(failure);
    try {
      const response = await fetch(`${model.url}/picture`);
      if (!response.ok) throw new Error((await response.json()).error);
      const image = new Image();
      image.alt = `The operations of ${model.name}`;
      image.src = URL.createObjectURL(await response.blob());
      await image.decode();
      place.replaceChildren(image);
      // Shrunk to the width of the page, as far as its texts can be read; beyond that it scrolls.
      image.style.maxWidth = `${Math.max(place.clientWidth, 0.7 * image.naturalWidth)}px`;
      place.scrollLeft = (place.scrollWidth - place.clientWidth) / 2;
    } catch (reason) {
      show(failure, reason);
    }
  });
  return root;
}

// Language models --------------------------------------------------------------------------------------------------------

// Yield the parts of a reply, which come as events of a stream, and whether its maximum length ends it.
async function* partsOf(model, messages, signal) {
  const body = JSON.stringify({ model, messages, stream: true });
  const response = await fetch("v1/chat/completions", { method: "POST", body, signal, headers: { "Content-Type": "application/json" } });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server has ended the reply");
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const { error, choices } = JSON.parse(data);
      if (error) throw new Error(error.message);
      const part = choices[0]?.delta?.content;
      if (part || choices[0]?.finish_reason) yield [part || "", choices[0].finish_reason === "length"];
    }
  }
}

function chatArticle(name) {
  const root = element(document, "#chat").content.cloneNode(true).firstElementChild;
  const [talk, form, input, error, time] = [".talk", "form", "textarea", ".error", ".time"].map((s) => element(root, s));
  const [send, stop, clear] = ["button", ".stop", ".clear"].map((s) => element(root, s));
  let messages = [], control = new AbortController();
  element(root, "h2").textContent = name;
  const say = (role, text) => {
    const line = Object.assign(document.createElement("p"), { className: role, textContent: text });
    talk.append(line);
    talk.scrollTop = talk.scrollHeight;
    return line;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text || send.disabled) return;
    control = new AbortController();
    send.disabled = clear.hidden = true;
    stop.hidden = false;
    show(error);
    time.textContent = input.value = "";
    const question = say("user", text), line = say("assistant", "");
    const asked = [...messages, { role: "user", content: text }], begin = performance.now();
    try {
      let isCut = false;
      for await (const [part, isEnd] of partsOf(name, asked, control.signal)) {
        isCut ||= isEnd;
        const isAtEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
        line.textContent += part;
        if (isAtEnd) talk.scrollTop = talk.scrollHeight;
      }
      time.textContent = `${((performance.now() - begin) / 1000).toFixed(1)} s${isCut ? ", ended at the maximum length" : ""}`;
    } catch (reason) {
      if (reason.name !== "AbortError") show(error, reason);
    }
    if (line.textContent) {
      messages = [...asked, { role: "assistant", content: line.textContent }];
    } else { // as if it had not been sent
      input.value = text;
      question.remove();
      line.remove();
    }
    send.disabled = false;
    stop.hidden = true;
    clear.hidden = !messages.length;
    input.focus();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  stop.addEventListener("click", () => control.abort());
  clear.addEventListener("click", () => {
    messages = [];
    talk.replaceChildren();
    time.textContent = "";
    clear.hidden = true;
    show(error);
  });
  return root;
}

// ------------------------------------------------------------------------------------------------------------------------

async function start() {
  const status = element(document, "#status"), contents = element(document, "#contents");
  try {
    const response = await fetch("v2/models");
    const { models, language_models: chats } = await response.json();
    const counts = new Map();
    for (const { name } of models) counts.set(name, (counts.get(name) || 0) + 1);
    const articles = chats.map((name) => [name, chatArticle(name)]);
    for (const model of models) {
      model.several = counts.get(model.name) > 1;
      const article = modelArticle(model);
      articles.push([model.title, article]);
    }
    for (const [index, [title, article]] of articles.entries()) {
      article.id = `model-${index + 1}`;
      element(document, "#models").append(article);
      contents.append(Object.assign(document.createElement("a"), { href: `#${article.id}`, textContent: title }));
    }
    contents.hidden = articles.length < 4;
    const parts = models.length || !chats.length ? [`${counts.size} ${counts.size === 1 ? "model" : "models"}`] : [];
    if (chats.length) parts.push(`${chats.length} language ${chats.length === 1 ? "model" : "models"}, for clients of OpenAI's API at /v1`);
    status.textContent = parts.join(", and ");
  } catch (reason) {
    status.textContent = `The models cannot be listed: ${reason.message}`;
  }
}

start();
