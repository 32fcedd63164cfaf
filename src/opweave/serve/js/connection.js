// The connection to the server: one for all contexts of a window, worker or process.

// Maximum of bytes that wait to be sent: the server's default limit for all of a connection's tensors and constants.
// Waiting for less is not possible: browsers send nothing while a page waits in a synchronous request (measured in
// Chromium).
const MAX_QUEUED_BYTES = 2 ** 31;

class Connection {
  constructor() {
    this.requests = new Map(); // number -> { context, tensor, target, resolve, reject }
    this.contexts = new Map(); // number -> weak reference to the slots of the context
    this.frees = new Map(); // context -> { tensors, graphs, builders }: what is freed before the next message
    this.numbers = { request: 0, context: 0 };
    this.header = null; // the answer whose payload follows
    this.session = "";
    this.ended = false;
    this.isApart = false; // whether large contents come by requests
  }

  // `transport(handlers)` promises { send(text, payload), sync(text) -> text (or none), buffered(), hold(whether to
  // stay alive), fetch(key, size, request) -> a payload, or null if it comes in a frame (or none) }. It calls `text`,
  // which returns the size of the payload that follows, `isCopied`, whether `binary` copies it, `binary` with it, and
  // `closed`.
  static async open(transport) {
    const connection = new Connection();
    connection.link = await transport({
      text: (text) => connection.receive(JSON.parse(text)),
      isCopied: () => Boolean(connection.requests.get(connection.header.r)?.target),
      binary: (buffer) => connection.settle(connection.header, buffer),
      closed: (reason) => connection.end(reason),
    });
    connection.isApart = Boolean(connection.link.fetch);
    return connection;
  }

  send(message, payload) {
    if (payload && this.link.buffered() + payload.length > MAX_QUEUED_BYTES) {
      const waiting = `${this.link.buffered()} bytes wait to be sent; await readTensor() between writes`;
      throw new DOMException(`${message.m}: ${waiting}`, "OperationError");
    }
    this.sendFrees();
    this.link.send(JSON.stringify(message), payload);
  }

  // Send a message and promise its answer: [message, payload]. It is rejected if the context is lost, or `tensor`
  // destroyed. If there is a `target`, the payload is copied there.
  request(context, message, payload, { tensor, target } = {}) {
    const r = ++this.numbers.request;
    Object.assign(message, { c: context.c, r });
    return new Promise((resolve, reject) => {
      this.send(message, payload);
      this.requests.set(r, { context, tensor, target, resolve, reject });
      this.link.hold(true);
    });
  }

  receive(message) {
    const { r, bin = 0, key } = message;
    if (key) {
      this.link
        .fetch(key, bin, () => this.requests.get(r))
        .then(
          (payload) => (payload === null ? (this.isApart = false) : this.settle(message, payload)), // a frame follows
          (error) => this.settle({ r, error: { name: "OperationError", message: error.message } }),
        );
      return 0;
    }
    if (bin) this.header = message;
    else this.settle(message);
    return bin;
  }

  settle(message, payload) {
    if (message.r === undefined) {
      const context = this.contexts.get(message.c)?.deref();
      if (context) lose(context, message.lost);
      return;
    }
    const request = this.requests.get(message.r); // none if its context was lost meanwhile
    this.requests.delete(message.r);
    this.link.hold(this.requests.size > 0);
    if (message.error) request?.reject(errorFrom(message.error));
    else {
      if (payload && request?.target?.length)
        request.target.set(ArrayBuffer.isView(payload) ? payload : new Uint8Array(payload));
      request?.resolve([message, payload]);
    }
  }

  // Validate operations at once, and get their results' descriptors.
  sync(context, body) {
    if (!this.link.sync) {
      const why = "service workers have no synchronous requests; in the mode lazy, build() works if no shape is read";
      throw new DOMException(`the server cannot be asked here: ${why}`, "NotSupportedError");
    }
    this.sendFrees();
    return JSON.parse(this.link.sync(JSON.stringify({ session: this.session, c: context.c, ...body })));
  }

  free(c, kind, id) {
    if (!this.contexts.has(c)) return;
    if (kind === "context") {
      this.contexts.delete(c);
      this.frees.delete(c);
      this.send({ m: "destroy", c });
      return;
    }
    if (this.frees.size === 0) setTimeout(() => this.sendFrees(), 0);
    if (!this.frees.has(c)) this.frees.set(c, { tensors: [], graphs: [], builders: [] });
    this.frees.get(c)[kind].push(id);
  }

  sendFrees() {
    if (this.ended) return;
    for (const [c, { tensors, graphs, builders }] of this.frees) {
      this.frees.delete(c);
      this.link.send(JSON.stringify({ m: "free", c, tensors, graphs, builders }));
    }
  }

  // Reject what is under way for a context, or for a tensor.
  abandon(owner, message) {
    for (const [r, request] of this.requests) {
      if (request.context !== owner && request.tensor !== owner) continue;
      this.requests.delete(r);
      request.reject(invalidState(message));
    }
    this.link.hold(this.requests.size > 0);
  }

  end(reason) {
    if (this.ended) return;
    this.ended = true;
    const { requests } = this;
    for (const reference of [...this.contexts.values()]) {
      const context = reference.deref();
      if (context) lose(context, reason);
    }
    for (const { reject } of requests.values()) reject(new DOMException(reason, "NotSupportedError")); // hello
    requests.clear();
  }
}

// Memory on the server follows the objects here.
const registry = new FinalizationRegistry(({ connection, c, kind, id }) => connection.free(c, kind, id));

function track(fields, kind) {
  const { connection, c } = fields.context ?? fields;
  registry.register(fields, { connection, c, kind, id: fields.id }, fields);
}

function release(fields, kind) {
  registry.unregister(fields);
  fields.context.connection.free(fields.context.c, kind, fields.id);
}

// https://www.w3.org/TR/webnn/#mlcontext-lose; graphs and tensors ask whether their context is lost.
function lose(context, message) {
  if (context.isLost) return;
  context.isLost = true;
  context.loss = `the context is lost: ${message}`;
  registry.unregister(context);
  context.resolveLost({ message });
  const { c, connection } = context;
  connection.abandon(context, context.loss);
  connection.contexts.delete(c);
  connection.frees.delete(c);
}

function checkAlive({ isLost, loss }, method) {
  if (isLost) throw invalidState(`${method}: ${loss}`);
}

const isDestroyed = (fields) => fields.isDestroyed || fields.context.isLost;
