/** Fetch the weights from the folder of this module. Node.js fetches no files: use readFileSync(). */
export async function loadWeights() {
  const url = new URL("WEIGHTS", import.meta.url);
  const response = await fetch(url).catch((cause) => {
    throw new Error(`${url} cannot be fetched; in Node.js: build(context, readFileSync(…))`, { cause });
  });
  if (!response.ok) throw new Error(`${response.url}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}
