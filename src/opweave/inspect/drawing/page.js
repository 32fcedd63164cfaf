// Draws the graph in the element "contents", and lets readers move in it, open groups, search, and look at operations.
// Every text of the contents comes from a model or a user: it is only ever written as text.
"use strict";

const contents = JSON.parse(document.getElementById("contents").textContent);
const {boxes, groups, values} = contents;
const ROOT = boxes.length; // Nodes are boxes, then groups.
const isGroup = (node) => node >= ROOT;
const groupOf = (node) => groups[node - ROOT];

const HEADER = 30; // Height of the title of an open group.
const SIDE = 16; // Space around the members of an open group.
const BEND = 40; // Height between two layers, in which lines bend.
const TIP = 6; // Height of the tip of a line.
const FIRST_NODES = 48; // Groups are open at first while there are at most so many nodes.
const [SMALLEST, LARGEST] = [0.004, 4]; // Range of the zoom.
const READABLE = 0.5; // Smallest zoom at first; a larger graph is not shown as a whole.
const [TEXT, TITLES] = [0.4, 0.22]; // Smallest zoom at which lines and titles of boxes are written.

const byId = (name) => document.getElementById(name);
const view = byId("view"), stage = byId("stage"), panel = byId("panel"), query = byId("query"), map = byId("map");

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function html(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") element.addEventListener("click", value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Structure ---------------------------------------------------------------------------------------------------------------

const parent = new Map();
groups.forEach((group, number) => group.members.forEach((member) => parent.set(member, ROOT + number)));

function ancestors(node) {
  const result = [];
  for (let group = parent.get(node); group !== undefined; group = parent.get(group)) result.push(group);
  return result;
}

function* leaves(node) {
  if (isGroup(node)) for (const member of groupOf(node).members) yield* leaves(member);
  else yield node;
}

const readers = values.map(() => []);
boxes.forEach((box, index) => box.reads.forEach((value) => readers[value].push(index)));

// Numbers of the operations in a group by family and by engine, and their time.
const totals = groups.map((_, number) => {
  const total = {family: new Map(), engine: new Map(), seconds: 0, operations: 0};
  for (const leaf of leaves(ROOT + number)) {
    const box = boxes[leaf];
    if (box.family === "end") continue;
    total.operations += 1;
    total.seconds += box.seconds ?? 0;
    for (const key of ["family", "engine"]) total[key].set(box[key], (total[key].get(box[key]) ?? 0) + 1);
  }
  return total;
});
const all = totals[0];
const longest = Math.max(...boxes.map((box) => box.seconds ?? 0), 1e-12);
const colourOf = {
  family: (family) => `var(--${family.replace(" ", "-")})`,
  engine: (engine) => `var(--engine-${engine % 6})`,
};
const secondsOf = (node) => isGroup(node) ? totals[node - ROOT].seconds : boxes[node].seconds ?? 0;

function duration(seconds) {
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(1)} µs`;
  return seconds < 1 ? `${(seconds * 1e3).toFixed(2)} ms` : `${seconds.toFixed(2)} s`;
}

const share = (seconds) => all.seconds ? `${(100 * seconds / all.seconds).toFixed(1)}%` : "0%";

// Arrangement -------------------------------------------------------------------------------------------------------------

const open = new Set([ROOT]);
const isOpen = (node) => isGroup(node) && open.has(node);
let shapes = new Map(); // Node -> its rectangle.
let edges = [];
let size = {width: 0, height: 0};

// The layout has closed groups only. This function makes room for open ones: it stretches the x axis where they are.
function stretch(spans) {
  const cuts = [...new Set(spans.flatMap(({from, to}) => [from, to]))].sort((a, b) => a - b);
  const starts = [], factors = [];
  let x = 0;
  cuts.forEach((cut, k) => {
    starts.push(k ? (x += (cut - cuts[k - 1]) * factors[k - 1]) : (x = cut));
    const next = cuts[k + 1];
    const over = spans.filter(({from, to}) => from <= cut && to >= next);
    factors.push(Math.max(1, ...over.map(({from, to, width}) => width / (to - from))));
  });
  return (place) => {
    if (!cuts.length || place <= cuts[0]) return place;
    let k = cuts.length - 1;
    while (cuts[k] > place) k -= 1;
    return starts[k] + (place - cuts[k]) * (k === cuts.length - 1 ? 1 : factors[k]);
  };
}

// Places of the members of an open group, relative to its corner.
function arrange(number) {
  const group = groups[number], shift = group.enters.length;
  const items = group.x.map((x, item) => {
    const member = group.members[item - shift];
    if (member === undefined) return {node: -1, x, width: 0, height: 0};
    const [width, height] = group.sizes[item - shift];
    return {node: member, x, width, height, inner: isOpen(member) ? arrange(member - ROOT) : null};
  });
  const place = stretch(items.filter(({inner}) => inner).map(({x, width, inner}) => (
    {from: x - width / 2, to: x + width / 2, width: inner.width}
  )));
  const heights = [];
  let right = 0;
  items.forEach((item, k) => {
    if (item.inner) {
      const [from, to] = [place(item.x - item.width / 2), place(item.x + item.width / 2)];
      [item.x, item.width, item.height] = [(from + to) / 2, item.inner.width, item.inner.height];
    } else {
      item.x = place(item.x);
    }
    const layer = group.layer[k];
    heights[layer] = Math.max(heights[layer] ?? 0, item.height);
    right = Math.max(right, item.x + item.width / 2);
  });
  for (const link of group.links) for (const x of link.slice(5)) right = Math.max(right, place(x));
  const tops = [];
  let y = number ? HEADER : SIDE;
  for (const height of heights) {
    tops.push(y);
    y += height + BEND;
  }
  const least = number ? group.width + 40 : 0; // room for the title
  const width = Math.max(right + 2 * SIDE, least);
  const left = SIDE + Math.max(0, least - right - 2 * SIDE) / 2;
  return {items, place, heights, tops, left, width, height: y - BEND + SIDE};
}

function layOut() {
  shapes = new Map();
  edges = [];
  const root = arrange(0);
  size = {width: root.width, height: root.height};
  put(0, root, 0, 0, 0);
}

// Turn the places of a group into shapes and edges with absolute coordinates.
function put(number, {items, place, heights, tops, left, width, height}, x0, y0, depth) {
  const group = groups[number];
  shapes.set(ROOT + number, {node: ROOT + number, x: x0, y: y0, width, height, depth, isOpen: true});
  const shift = group.enters.length;
  const tall = (item) => y0 + tops[group.layer[item]];
  items.forEach((item, k) => {
    const x = x0 + left + item.x - item.width / 2, y = tall(k);
    if (item.inner) {
      put(item.node - ROOT, item.inner, x, y, depth + 1);
    } else if (item.node >= 0) {
      const [, , title, lines] = group.sizes[k - shift];
      shapes.set(item.node, {node: item.node, x, y, width: item.width, height: item.height, title, lines, isOpen: false});
    }
  });
  for (const [source, value, target, port, end, ...route] of group.links) {
    const [from, to] = [items[source], items[target]];
    let x = x0 + left + from.x + port;
    if (from.inner) x = portOf(from, "leaves", value, x0 + left);
    let y = tall(source) + from.height;
    const parts = [`M${x.toFixed(1)} ${y.toFixed(1)}`];
    const bounds = [x, y, x, y];
    const first = group.layer[source];
    y = y0 + tops[first] + heights[first];
    parts.push(`V${y.toFixed(1)}`);
    const bend = (toX, toY) => {
      const middle = (y + toY) / 2;
      parts.push(`C${x.toFixed(1)} ${middle.toFixed(1)} ${toX.toFixed(1)} ${middle.toFixed(1)} ${toX.toFixed(1)} ${toY.toFixed(1)}`);
      [x, y] = [toX, toY];
      bounds[0] = Math.min(bounds[0], x);
      bounds[2] = Math.max(bounds[2], x);
    };
    route.forEach((crossed, k) => {
      const layer = first + 1 + k;
      bend(x0 + left + place(crossed), y0 + tops[layer]);
      y += heights[layer];
      parts.push(`V${y.toFixed(1)}`);
    });
    let endX = x0 + left + to.x + (to.node < 0 ? 0 : end);
    if (to.inner) endX = portOf(to, "enters", value, x0 + left);
    const hasTip = to.node >= 0 && !to.inner;
    bend(endX, tall(target) - (hasTip ? TIP - 1 : 0));
    bounds[3] = tall(target);
    const tip = hasTip ? `M${(x - 4).toFixed(1)} ${(y - 1).toFixed(1)}h8l-4 ${TIP}z` : "";
    edges.push({path: parts.join(""), tip, bounds, value, target: to.node});
  }
  if (number) {
    // Lines go on from the edge of the group to its first layer, and from its last layer to the edge.
    group.enters.forEach((value, k) => {
      const x = x0 + left + items[k].x;
      edges.push({path: `M${x.toFixed(1)} ${y0}V${tall(k)}`, tip: "", bounds: [x, y0, x, tall(k)], value, target: ROOT + number});
    });
    group.leaves.forEach((value, k) => {
      const item = shift + group.members.length + k, x = x0 + left + items[item].x;
      const bounds = [x, tall(item), x, y0 + height];
      edges.push({path: `M${x.toFixed(1)} ${tall(item)}V${y0 + height}`, tip: "", bounds, value, target: -1});
    });
  }
}

// The x at which a value enters or leaves an open group.
function portOf({node, inner, x, width}, side, value, left) {
  const group = groupOf(node), at = group[side].indexOf(value);
  const item = side === "enters" ? at : group.enters.length + group.members.length + at;
  return left + x - width / 2 + inner.left + inner.items[item].x;
}

// Painting ----------------------------------------------------------------------------------------------------------------

const camera = {x: 0, y: 0, zoom: 1};
let colouring = "family", selected = -1, painted = null, isDue = false;
let hits = [], hit = -1, isHit = new Set(), hasHits = new Map();

function visibleRectangle(margin) {
  const {clientWidth: width, clientHeight: height} = view;
  const [w, h] = [width / camera.zoom, height / camera.zoom];
  const [x, y] = [-camera.x / camera.zoom, -camera.y / camera.zoom];
  return {left: x - margin * w, top: y - margin * h, right: x + (1 + margin) * w, bottom: y + (1 + margin) * h};
}

const detail = () => camera.zoom >= TEXT ? 2 : camera.zoom >= TITLES ? 1 : 0;

// Move what is painted, and paint again if the reader comes to the border of what is painted.
function refresh(isStale = false) {
  stage.setAttribute("transform", `translate(${camera.x} ${camera.y}) scale(${camera.zoom})`);
  const {left, top, right, bottom} = visibleRectangle(0);
  const p = painted;
  const covers = p && p.left <= left && p.top <= top && p.right >= right && p.bottom >= bottom && p.detail === detail()
    && (right - left) * 4 > p.right - p.left;
  if (isStale || !covers) painted = null;
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    if (!painted) paint();
    paintMap();
  });
}

function paint() {
  const area = visibleRectangle(0.5);
  painted = {...area, detail: detail()};
  const isSeen = (left, top, right, bottom) => (
    left <= area.right && right >= area.left && top <= area.bottom && bottom >= area.top
  );
  const focused = document.activeElement?.closest?.("[data-node]")?.dataset;
  const toggled = document.activeElement?.hasAttribute?.("data-toggle");
  const frames = [], nodes = [], lines = [], lit = [], heads = [];
  for (const shape of shapes.values()) {
    if (shape.node === ROOT || !isSeen(shape.x, shape.y, shape.x + shape.width, shape.y + shape.height)) continue;
    if (shape.isOpen) {
      frames.push(frame(shape));
      if (painted.detail) heads.push(textAt("head", shape.x + 30, shape.y + 20, groupOf(shape.node).title));
    }
    else nodes.push(isGroup(shape.node) ? closed(shape) : leaf(shape));
  }
  const isLit = litEdges(), distant = [];
  for (const edge of edges) {
    if (!isSeen(...edge.bounds)) continue;
    const kind = isLit(edge) ? " lit" : "";
    if (!kind && !painted.detail) {
      distant.push(edge.path);
      continue;
    }
    const path = svg("path", {class: `edge${kind}`, d: edge.path}, svg("title", {}, values[edge.value][1]));
    (kind ? lit : lines).push(path);
    if (edge.tip && painted.detail) (kind ? lit : lines).push(svg("path", {class: `tip${kind}`, d: edge.tip}));
  }
  if (distant.length) lines.push(svg("path", {class: "edge", d: distant.join("")}));
  stage.classList.toggle("far", !painted.detail);
  stage.replaceChildren(...frames, ...lines, ...lit, ...heads, ...nodes);
  if (focused) {
    const again = stage.querySelector(`[data-node="${focused.node}"]`);
    (toggled ? again?.querySelector("[data-toggle]") : again)?.focus({preventScroll: true});
  }
}

// Edges of the selected node: all that carry a value it computes, and those that lead to it.
function litEdges() {
  if (selected < 0) return () => false;
  const inside = new Set(leaves(selected));
  const written = new Set([...inside].flatMap((leaf) => boxes[leaf].writes));
  const read = new Set([...inside].flatMap((leaf) => boxes[leaf].reads));
  const around = new Set([selected, ...ancestors(selected), ...inside]);
  return ({value, target}) => written.has(value) || (read.has(value) && (target < 0 || around.has(target)));
}

function classes(node, ...names) {
  if (node === selected) names.push("selected");
  if (isHit.has(node) || (hasHits.has(node) && !isOpen(node))) names.push("hit");
  if (hits[hit] === node) names.push("current");
  return names.join(" ");
}

function textAt(kind, x, y, text) {
  return svg("text", {class: kind, x: x.toFixed(1), y: y.toFixed(1)}, text);
}

function texts({x, y, width, title, lines}, node) {
  if (!painted.detail) return [];
  const middle = x + width / 2;
  const result = [textAt("title", middle, y + 19, title)];
  if (painted.detail < 2) return result;
  const shown = [...lines];
  const seconds = secondsOf(node);
  if (colouring === "time" && seconds && shown.length) shown[shown.length - 1] = `${duration(seconds)}, ${share(seconds)}`;
  shown.forEach((line, k) => result.push(textAt("line", middle, y + 34 + 15 * k, line)));
  return result;
}

function rectangle(x, y, width, height, radius, kind = "") {
  return svg("rect", {class: kind, x: x.toFixed(1), y: y.toFixed(1), width: Math.max(0, width).toFixed(1), height, rx: radius});
}

function leaf(shape) {
  const {node, x, y, width, height} = shape, box = boxes[node];
  const isEnd = box.family === "end";
  const kind = isEnd ? "end" : colouring === "time" ? "timed" : box.style === "custom" ? "custom" : "";
  const colour = isEnd || colouring === "time" ? "" : colourOf[colouring](box[colouring]);
  const element = svg(
    "g",
    {class: classes(node, "node", kind), "data-node": node, tabindex: 0, role: "button", "aria-label": labelOf(node)},
    svg("title", {}, box.name || box.note || box.title),
    rectangle(x, y, width, height, isEnd ? Math.min(height / 2, 18) : 7),
    ...texts(shape, node),
  );
  element.style.setProperty("--colour", colour);
  if (colouring === "time") element.style.setProperty("--heat", `${(60 * Math.sqrt((box.seconds ?? 0) / longest)).toFixed(1)}%`);
  return element;
}

function closed(shape) {
  const {node, x, y, width, height} = shape, total = totals[node - ROOT];
  const element = svg(
    "g",
    {class: classes(node, "node closed", colouring === "time" ? "timed" : ""), "data-node": node, tabindex: 0, role: "button",
      "aria-expanded": "false", "aria-label": labelOf(node)},
    svg("title", {}, groupOf(node).path + groupOf(node).title),
    rectangle(x + 4, y + 4, width, height, 9, "sheet"),
    rectangle(x, y, width, height, 9),
    ...texts(shape, node),
  );
  if (colouring === "time") {
    const heat = Math.min(1, Math.sqrt(total.seconds / (all.seconds || 1)));
    element.style.setProperty("--heat", `${(60 * heat).toFixed(1)}%`);
  } else {
    let from = x + 9;
    for (const [key, count] of [...total[colouring]].sort((a, b) => b[1] - a[1])) {
      const part = (width - 18) * count / total.operations;
      const bar = rectangle(from, y + height - 9, part, 4, 0, "share");
      bar.style.setProperty("--colour", colourOf[colouring](key));
      element.append(bar);
      from += part;
    }
  }
  if (painted.detail) element.append(toggle(x + width - 20, y + 5, true, node));
  if (hasHits.has(node) && painted.detail) element.append(textAt("count", x + 4, y - 5, `${hasHits.get(node)} found`));
  return element;
}

function frame({node, x, y, width, height}) {
  const group = groupOf(node);
  const element = svg(
    "g",
    {class: classes(node, "frame"), "data-node": node, tabindex: 0, role: "button", "aria-expanded": "true", "aria-label": labelOf(node)},
    svg("title", {}, group.path + group.title),
    rectangle(x, y, width, height, 12),
  );
  if (painted.detail) element.append(toggle(x + 8, y + 8, false, node));
  return element;
}

function toggle(x, y, isPlus, node) {
  const cross = `M${x + 3.5} ${y + 7.5}h8` + (isPlus ? `M${x + 7.5} ${y + 3.5}v8` : "");
  const label = `${isPlus ? "Open" : "Close"} ${groupOf(node).title}`;
  return svg(
    "g",
    {class: "toggle", "data-toggle": "", tabindex: 0, role: "button", "aria-label": label},
    rectangle(x - 4, y - 4, 23, 23, 0, "area"),
    rectangle(x, y, 15, 15, 4),
    svg("path", {d: cross}),
  );
}

function labelOf(node) {
  if (isGroup(node)) return `Group ${groupOf(node).title}, ${totals[node - ROOT].operations} operations`;
  const box = boxes[node];
  return [box.title, box.name, box.note].filter(Boolean).join(", ");
}

// Minimap -----------------------------------------------------------------------------------------------------------------

function paintMap() {
  const most = Math.min(170, view.clientHeight * 0.4, view.clientWidth * 0.3), scale = Math.min(most / size.width, most / size.height);
  const [width, height] = [Math.max(size.width * scale, 24), Math.max(size.height * scale, 24)];
  map.setAttribute("width", width);
  map.setAttribute("height", height);
  map.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  const [path, rect] = map.children;
  if (map.painted !== shapes) {
    map.painted = shapes;
    const parts = [];
    for (const {isOpen, x, y, width, height} of shapes.values()) {
      if (!isOpen) parts.push(`M${x | 0} ${y | 0}h${width | 0}v${height | 0}h${-width | 0}z`);
    }
    path.setAttribute("d", parts.join(""));
  }
  const {left, top, right, bottom} = visibleRectangle(0);
  map.style.visibility = left <= 0 && top <= 0 && right >= size.width && bottom >= size.height ? "hidden" : "";
  const [x, y] = [Math.max(left, 0), Math.max(top, 0)];
  rect.setAttribute("x", x);
  rect.setAttribute("y", y);
  rect.setAttribute("width", Math.max(0, Math.min(right, size.width) - x));
  rect.setAttribute("height", Math.max(0, Math.min(bottom, size.height) - y));
  rect.setAttribute("stroke-width", 1.5 / scale);
}

function goToMap(event) {
  const box = map.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width * size.width, y = (event.clientY - box.top) / box.height * size.height;
  centre(x, y);
}
map.addEventListener("pointerdown", (event) => {
  map.setPointerCapture(event.pointerId);
  goToMap(event);
});
map.addEventListener("pointermove", (event) => map.hasPointerCapture(event.pointerId) && goToMap(event));

// Camera ------------------------------------------------------------------------------------------------------------------

function centre(x, y) {
  const covered = document.body.classList.contains("with-panel") ? panel.getBoundingClientRect() : {width: 0, height: 0};
  const isBelow = covered.width >= view.clientWidth;
  camera.x = (view.clientWidth - (isBelow ? 0 : covered.width)) / 2 - x * camera.zoom;
  camera.y = (view.clientHeight - (isBelow ? covered.height : 0)) / 2 - y * camera.zoom;
  refresh();
}

function zoomBy(factor, x = view.clientWidth / 2, y = view.clientHeight / 2) {
  const zoom = Math.min(LARGEST, Math.max(SMALLEST, camera.zoom * factor)), ratio = zoom / camera.zoom;
  camera.x = x - (x - camera.x) * ratio;
  camera.y = y - (y - camera.y) * ratio;
  camera.zoom = zoom;
  refresh();
}

function fit() {
  const {clientWidth: width, clientHeight: height} = view;
  camera.zoom = Math.max(SMALLEST, Math.min(1.25, (width - 24) / size.width, (height - 24) / size.height));
  camera.x = (width - size.width * camera.zoom) / 2;
  camera.y = (height - size.height * camera.zoom) / 2;
  refresh();
}

// Show the whole graph if its texts can be read, else its beginning.
function begin() {
  fit();
  if (camera.zoom >= READABLE) return;
  camera.zoom = Math.min(1, Math.max(READABLE, (view.clientWidth - 24) / size.width));
  const first = [...shapes.values()].filter(({node, isOpen}) => node !== ROOT && !isOpen).sort((a, b) => a.y - b.y)[0];
  const middle = size.width * camera.zoom <= view.clientWidth ? size.width / 2 : first.x + first.width / 2;
  camera.x = view.clientWidth / 2 - middle * camera.zoom;
  camera.y = 0;
  refresh();
}

function show(node) {
  const {x, y, width, height} = shapes.get(node);
  camera.zoom = Math.max(camera.zoom, 0.75);
  centre(x + width / 2, y + Math.min(height, view.clientHeight / camera.zoom) / 2);
}

// Groups ------------------------------------------------------------------------------------------------------------------

// Open or close a group; its upper edge stays where it is on the screen.
function flip(node) {
  const before = shapes.get(node);
  if (open.has(node)) open.delete(node);
  else open.add(node);
  layOut();
  const after = shapes.get(node);
  camera.x += (before.x + before.width / 2 - after.x - after.width / 2) * camera.zoom;
  camera.y += (before.y - after.y) * camera.zoom;
  if (!shapes.has(selected)) select(-1);
  else if (selected === node) select(node);
  refresh(true);
}

function reveal(node) {
  const closedOnes = ancestors(node).filter((group) => !open.has(group));
  closedOnes.forEach((group) => open.add(group));
  if (closedOnes.length) layOut();
  if (closedOnes.length) painted = null;
}

function openFirst() {
  let level = [ROOT], count = 0;
  while (level.length) {
    const members = level.flatMap((group) => groupOf(group).members);
    if (level[0] !== ROOT && count - level.length + members.length > FIRST_NODES) return;
    count += members.length - (level[0] === ROOT ? 0 : level.length);
    level.forEach((group) => open.add(group));
    level = members.filter(isGroup);
  }
}

byId("open-all").addEventListener("click", () => {
  groups.forEach((_, number) => open.add(ROOT + number));
  layOut();
  painted = null;
  begin();
});
byId("close-all").addEventListener("click", () => {
  open.clear();
  open.add(ROOT);
  layOut();
  if (!shapes.has(selected)) select(-1);
  painted = null;
  begin();
});

// Details -----------------------------------------------------------------------------------------------------------------

function select(node) {
  selected = node;
  panel.hidden = node < 0;
  document.body.classList.toggle("with-panel", node >= 0);
  if (node >= 0) {
    panel.lastElementChild.replaceChildren(...(isGroup(node) ? groupDetails(node) : boxDetails(node)));
    panel.scrollTop = 0;
  }
  refresh(true);
}

function jump(node) {
  reveal(node);
  select(node);
  show(node);
}

function path(node) {
  const around = ancestors(node).filter((group) => group !== ROOT).reverse();
  const buttons = around.flatMap((group) => [
    html("button", {type: "button", onclick: () => jump(group)}, groupOf(group).title), " › ",
  ]);
  return around.length ? [html("p", {class: "path"}, ...buttons)] : [];
}

function list(rows) {
  return html("dl", {}, ...rows.filter(([, text]) => text).flatMap(([name, text]) => [html("dt", {}, name), html("dd", {}, text)]));
}

function section(title, rows, kind = "") {
  if (!rows.length) return [];
  const lines = rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", {}, cell))));
  return [html("h3", {}, title), html("table", {class: kind}, html("tbody", {}, ...lines))];
}

function neighbours(title, rows) {
  if (!rows.length) return [];
  const most = 40, items = rows.slice(0, most).map(([node, type]) => {
    const box = boxes[node], about = [box.name, type].filter(Boolean).join(" · ");
    return html("li", {}, html("button", {type: "button", onclick: () => jump(node)}, box.title, html("small", {}, about)));
  });
  if (rows.length > most) items.push(html("li", {}, `and ${rows.length - most} more`));
  return [html("h3", {}, title), html("ul", {}, ...items)];
}

function tag(colour, text) {
  const swatch = html("span", {class: "swatch"});
  swatch.style.setProperty("--colour", colour);
  return html("span", {class: "tag"}, swatch, text);
}

function boxDetails(node) {
  const box = boxes[node];
  const before = box.reads.map((value) => [values[value][0], values[value][1]]);
  const after = box.writes.flatMap((value) => readers[value].map((reader) => [reader, values[value][1]]));
  const ends = [...neighbours("Computed by", before), ...neighbours("Read by", after)];
  if (box.family === "end") return [html("h2", {}, box.title), html("p", {class: "name"}, box.note), ...ends];
  const time = box.seconds === undefined ? "" : `${duration(box.seconds)}, ${share(box.seconds)} of all`;
  return [
    html("h2", {}, box.title),
    ...(box.name ? [html("p", {class: "name"}, box.name)] : []),
    ...path(node),
    tag(colourOf.family(box.family), box.family),
    list([
      ["runs on", contents.engines[box.engine]],
      ["why", contents.reasons[box.reason]],
      ["time", time],
      ["shared by", box.shared],
      ["constants", box.weights],
    ]),
    ...section("Inputs", box.operands.map(([parameter, name, text]) => [[parameter, name].filter(Boolean).join(" "), text])),
    ...section("Outputs", box.results.map(([name, text]) => [name || "result", text])),
    ...section("Attributes", box.attributes),
    ...ends,
  ];
}

function groupDetails(node) {
  const group = groupOf(node), total = totals[node - ROOT];
  const counts = new Map();
  for (const leaf of leaves(node)) {
    if (boxes[leaf].family !== "end") counts.set(boxes[leaf].title, (counts.get(boxes[leaf].title) ?? 0) + 1);
  }
  const sorted = (map) => [...map].sort((a, b) => b[1] - a[1]);
  return [
    html("h2", {}, group.title),
    ...path(node),
    html("button", {type: "button", onclick: () => flip(node)}, isOpen(node) ? "Close this group" : "Open this group"),
    list([
      ["operations", String(total.operations)],
      ["time", contents.timed ? `${duration(total.seconds)}, ${share(total.seconds)} of all` : ""],
    ]),
    ...section("Runs on", sorted(total.engine).map(([engine, count]) => [contents.engines[engine], String(count)]), "counts"),
    ...section("Operations", sorted(counts).map(([name, count]) => [name, String(count)]), "counts"),
    ...section("Enter", group.enters.map((value) => [boxes[values[value][0]].title, values[value][1]])),
    ...section("Leave", group.leaves.map((value) => [boxes[values[value][0]].title, values[value][1]])),
  ];
}

byId("close").addEventListener("click", () => {
  select(-1);
  view.focus();
});

// Search ------------------------------------------------------------------------------------------------------------------

const searched = boxes.map((box) => [
  box.title, box.name, box.family, ...(box.operands ?? []).map((row) => row[1]), ...(box.results ?? []).map((row) => row[0]),
].filter(Boolean).join("\n").toLowerCase());

function search() {
  const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  hits = words.length ? boxes.map((_, index) => index).filter((index) => words.every((word) => searched[index].includes(word))) : [];
  hit = -1;
  isHit = new Set(hits);
  hasHits = new Map();
  for (const node of hits) for (const group of ancestors(node)) hasHits.set(group, (hasHits.get(group) ?? 0) + 1);
  tell();
  refresh(true);
}

function tell() {
  const count = hits.length;
  byId("matches").textContent = !query.value.trim() ? "" : hit < 0 ? `${count} found` : `${hit + 1} of ${count}`;
}

function step(by) {
  if (!hits.length) return;
  hit = hit < 0 ? (by > 0 ? 0 : hits.length - 1) : (hit + by + hits.length) % hits.length;
  tell();
  jump(hits[hit]);
}

query.addEventListener("input", search);
query.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.shiftKey) {
    event.preventDefault();
    step(-1);
  } else if (event.key === "Escape") {
    query.value = "";
    search();
    view.focus();
  }
});
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  step(1);
});
byId("previous").addEventListener("click", () => step(-1));

// Colours -----------------------------------------------------------------------------------------------------------------

function explainColours() {
  const rows = [];
  if (colouring === "time") {
    rows.push(html("li", {}, html("span", {class: "swatch heat"}), `up to ${duration(longest)}`));
    rows.push(html("li", {}, `${duration(all.seconds)} in all`));
  } else {
    for (const [key, count] of [...all[colouring]].sort((a, b) => b[1] - a[1])) {
      const name = colouring === "engine" ? contents.engines[key] : key;
      rows.push(html("li", {}, tag(colourOf[colouring](key), name), html("span", {class: "count"}, String(count))));
    }
  }
  byId("legend").lastElementChild.replaceChildren(...rows);
}

for (const [value, text] of [["family", "by kind"], ["engine", "by engine"], ["time", "by time"]]) {
  if (value !== "time" || contents.timed) byId("colours").append(html("option", {value}, text));
}
byId("colours").addEventListener("change", (event) => {
  colouring = event.target.value;
  explainColours();
  refresh(true);
});

// Pointers and keys -------------------------------------------------------------------------------------------------------

const pointers = new Map();
let moved = 0;

view.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  pointers.set(event.pointerId, {x: event.offsetX, y: event.offsetY});
  if (pointers.size === 1) moved = 0;
});
view.addEventListener("pointermove", (event) => {
  const last = pointers.get(event.pointerId);
  if (!last) return;
  const point = {x: event.offsetX, y: event.offsetY};
  const [dx, dy] = [point.x - last.x, point.y - last.y];
  moved += Math.abs(dx) + Math.abs(dy);
  if (moved > 4 && !view.hasPointerCapture(event.pointerId)) {
    view.setPointerCapture(event.pointerId);
    view.classList.add("dragged");
  }
  const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
  pointers.set(event.pointerId, point);
  if (other) {
    const ratio = Math.hypot(point.x - other.x, point.y - other.y) / (Math.hypot(last.x - other.x, last.y - other.y) || 1);
    camera.x += dx / 2;
    camera.y += dy / 2;
    zoomBy(ratio, (point.x + other.x) / 2, (point.y + other.y) / 2);
  } else if (moved > 4) {
    camera.x += dx;
    camera.y += dy;
    refresh();
  }
});
for (const end of ["pointerup", "pointercancel"]) {
  view.addEventListener(end, (event) => {
    pointers.delete(event.pointerId);
    if (!pointers.size) view.classList.remove("dragged");
  });
}
view.addEventListener("click", (event) => {
  if (moved > 4) return;
  const node = Number(event.target.closest("[data-node]")?.dataset.node ?? -1);
  if (event.target.closest("[data-toggle]")) flip(node);
  else select(node);
});
view.addEventListener("dblclick", (event) => {
  const node = Number(event.target.closest("[data-node]")?.dataset.node ?? -1);
  if (isGroup(node) && !event.target.closest("[data-toggle]")) flip(node);
});
view.addEventListener("wheel", (event) => {
  event.preventDefault();
  const lines = event.deltaMode === 1 ? 24 : 1;
  zoomBy(Math.exp(-Math.max(-300, Math.min(300, event.deltaY * lines)) * 0.0018), event.offsetX, event.offsetY);
}, {passive: false});
view.addEventListener("focusin", (event) => {
  const shape = shapes.get(Number(event.target.closest("[data-node]")?.dataset.node ?? -1));
  if (!shape || !event.target.matches(":focus-visible")) return;
  const {left, top, right, bottom} = visibleRectangle(-0.04);
  if (shape.x > right || shape.y > bottom || shape.x + shape.width < left || shape.y + Math.min(shape.height, 40) < top) {
    centre(shape.x + shape.width / 2, shape.y + Math.min(shape.height, 200) / 2);
  }
});
view.addEventListener("keydown", (event) => {
  const node = Number(event.target.closest("[data-node]")?.dataset.node ?? -1);
  if (event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  if (isGroup(node)) flip(node);
  else if (node >= 0) select(node);
});

const STEP = 90;
const MOVES = {ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP],
  PageUp: [0, 6 * STEP], PageDown: [0, -6 * STEP]};
const KEYS = {"+": () => zoomBy(1.25), "=": () => zoomBy(1.25), "-": () => zoomBy(0.8), "0": fit,
  "/": () => query.focus(), Escape: () => select(-1)};
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, #panel") && event.key !== "Escape") return;
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (MOVES[event.key]) {
    camera.x += MOVES[event.key][0];
    camera.y += MOVES[event.key][1];
    refresh();
  } else if (KEYS[event.key]) {
    KEYS[event.key]();
  } else {
    return;
  }
  event.preventDefault();
});
byId("zoom-in").addEventListener("click", () => zoomBy(1.25));
byId("zoom-out").addEventListener("click", () => zoomBy(0.8));
byId("fit").addEventListener("click", fit);
// Until the reader moves, the graph fits a window that changes its size.
let isMoved = false;
for (const type of ["pointerdown", "wheel", "keydown"]) addEventListener(type, () => (isMoved = true), {capture: true, passive: true});
new ResizeObserver(() => isMoved ? refresh() : begin()).observe(view);

byId("title").textContent = contents.title;
byId("title").title = contents.title;
if (innerWidth <= 640) byId("legend").open = false;
explainColours();
openFirst();
layOut();
begin();

// An address that ends with #softmax begins with a search.
const [, wanted] = decodeURI(location.hash.replace(/%(?![0-9A-Fa-f]{2})/g, "%25")).match(/^#(.+)/) ?? [];
if (wanted) {
  query.value = wanted;
  search();
  step(1);
  isMoved = true;
}
