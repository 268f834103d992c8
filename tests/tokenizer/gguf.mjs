// The metadata of a GGUF file, as plain values.
import { readFileSync } from 'node:fs';

export function readMetadata(file) {
  const bytes = readFileSync(file);
  let at = 16; // magic, version, number of tensors
  const take = (n) => (at += n) - n;
  const u64 = () => Number(bytes.readBigUInt64LE(take(8)));
  const text = () => { const n = u64(); return bytes.toString('utf8', at, take(n) + n); };
  const list = () => { const type = bytes.readUInt32LE(take(4)); return Array.from({ length: u64() }, read[type]); };
  const read = {
    0: () => bytes.readUInt8(take(1)), 1: () => bytes.readInt8(take(1)), 2: () => bytes.readUInt16LE(take(2)),
    3: () => bytes.readInt16LE(take(2)), 4: () => bytes.readUInt32LE(take(4)), 5: () => bytes.readInt32LE(take(4)),
    6: () => bytes.readFloatLE(take(4)), 7: () => bytes.readUInt8(take(1)) !== 0, 8: text, 9: list, 10: u64,
    11: () => Number(bytes.readBigInt64LE(take(8))), 12: () => bytes.readDoubleLE(take(8)),
  };
  const out = {};
  for (let left = u64(); left > 0; left--) {
    const key = text();
    out[key] = read[bytes.readUInt32LE(take(4))]();
  }
  return out;
}
