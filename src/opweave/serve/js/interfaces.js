// Interfaces of objects with internal slots, which scripts cannot reach or forge.

const INTERNAL = Symbol("internal");
const slots = new WeakMap();

function slotsOf(object, Interface, what) {
  const found = isObject(object) ? slots.get(object) : undefined;
  if (found?.Interface !== Interface) fail(`${what} must be an ${Interface.name}, got ${shown(object)}`);
  return found;
}

const thisOf = (object, Interface) => slotsOf(object, Interface, "this");

function create(Interface, fields) {
  const object = new Interface(INTERNAL);
  slots.set(object, Object.assign(fields, { Interface }));
  return object;
}

function checkInternal(key, name) {
  if (key !== INTERNAL) fail(`Illegal constructor: objects of ${name} are made by the API`);
}

function needArguments(given, wanted, method) {
  if (given < wanted) fail(`${method}: ${wanted} argument${wanted === 1 ? "" : "s"} required, got ${given}`);
}

// Attributes of properties as Web IDL has them.
function expose(global, Interface) {
  const { prototype } = Interface;
  for (const name of Object.getOwnPropertyNames(prototype)) {
    if (name !== "constructor") Object.defineProperty(prototype, name, { enumerable: true });
  }
  Object.defineProperty(prototype, Symbol.toStringTag, { value: Interface.name, configurable: true });
  Object.defineProperty(global, Interface.name, { value: Interface, writable: true, configurable: true });
}

const invalidState = (message) => new DOMException(message, "InvalidStateError");

function errorFrom({ name, message }, label = "") {
  const text = label === "" ? message : `[${label}] ${message}`;
  return name === "TypeError" ? new TypeError(text) : new DOMException(text, name);
}
