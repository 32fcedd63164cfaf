import type { ServerOptions } from "./server.mjs";

export { stats } from "./server.mjs";

export interface ScriptOptions extends Partial<ServerOptions> {
  mode?: "strict" | "lazy";
  /** Replace the browser's own `navigator.ml`. */
  force?: boolean;
}

/** A page or context of Playwright, or a page of Puppeteer. */
export type Target =
  | { addInitScript(script: { content: string }): Promise<unknown> }
  | { evaluateOnNewDocument(script: string): Promise<unknown> };

/** The script that a page must run first. */
export function script(options?: ScriptOptions): string;

/** Define `navigator.ml` in the page; before `goto`. */
export function install(page: Target, options?: ScriptOptions): Promise<void>;
