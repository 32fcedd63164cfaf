// What the pages of several libraries share; they and Node import it.

/** [the largest difference of two arrays, relative to the largest value of the first; that value]; NaN if either has one. */
export function difference(expected, actual) {
  if (expected.length !== actual.length) throw new Error(`${actual.length} values, expected ${expected.length}`);
  let largest = 0;
  let apart = 0;
  for (let k = 0; k < expected.length; k++) {
    const value = Number(expected[k]);
    largest = Math.max(largest, Math.abs(value));
    apart = Math.max(apart, Math.abs(value - Number(actual[k])));
  }
  return [largest === 0 ? apart : apart / largest, largest];
}

/** Pseudo-random values between `low` and `high`, the same in each environment for the same seed. */
export function random(count, seed, low, high) {
  const values = new Float32Array(count);
  let state = Math.imul(seed, 2654435761) >>> 0;
  for (let k = 0; k < count; k++) {  // mulberry32
    state = state + 0x6d2b79f5 >>> 0;
    let mixed = Math.imul(state ^ state >>> 15, state | 1);
    mixed ^= mixed + Math.imul(mixed ^ mixed >>> 7, mixed | 61);
    values[k] = low + (high - low) * ((mixed ^ mixed >>> 14) >>> 0) / 2 ** 32;
  }
  return values;
}
