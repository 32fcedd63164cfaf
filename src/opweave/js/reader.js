/** Return a function that makes a constant by its name in the bytes of a .safetensors file. */
function reader(builder, file) {
  let bytes = ArrayBuffer.isView(file) ? new Uint8Array(file.buffer, file.byteOffset, file.byteLength) : new Uint8Array(file);
  if (bytes.byteOffset % 8) bytes = bytes.slice(); // views of numbers must be aligned
  const size = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const table = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  return (name) => {
    if (!(name in table)) throw new Error(`the weights have no tensor ${name}`);
    const { dtype, shape, data_offsets: [begin, end] } = table[name];
    const [dataType, View] = types[dtype];
    const view = new View(bytes.buffer, bytes.byteOffset + 8 + size + begin, (end - begin) / View.BYTES_PER_ELEMENT);
    return builder.constant({ dataType, shape }, view);
  };
}
