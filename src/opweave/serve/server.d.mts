/** Where `opweave serve` is; its token. */
export interface ServerOptions {
  /** http://127.0.0.1:PORT; in Node.js also unix:/path/of/a/socket. */
  url: string;
  token?: string;
}

/** What all clients of a server have done since it started. */
export interface Stats {
  connections: number;
  contexts: number;
  graphs: number;
  dispatches: number;
  receivedBytes: number;
  sentBytes: number;
  /** By kind: "dispatch", "build", "sync", … */
  messages: Record<string, number>;
}

export function stats(options: ServerOptions): Promise<Stats>;
