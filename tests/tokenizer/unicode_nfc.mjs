// What the reference tokenizer engine's NFC knows, found by asking it. Run by itself it writes
// tools/unicode_nfc.json:
//     node unicode_nfc.mjs > .../tools/unicode_nfc.json
//
// split: [character, its complete decomposition]; pairs: [first, second, what they become]; order:
// [first, last, k] ranges of characters with a combining class, where k counts the classes upwards.
// (Only the order of the classes matters, so their usual numbers are not needed.)
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import engine from '@anush008/tokenizers';

const nfc = engine.nfcNormalizer();
const nfd = engine.nfdNormalizer();
export const toNfc = (s) => (s === '' ? '' : nfc.normalizeString(s));
const toNfd = (s) => nfd.normalizeString(s);
export const cpEnd = 0x110000;
export const isScalar = (cp) => cp < 0xD800 || (cp > 0xDFFF && cp < cpEnd);
const isHangul = (cp) => cp >= 0xAC00 && cp <= 0xD7A3;
const codes = (s) => Array.from(s, (c) => c.codePointAt(0));

// How two marks stand in canonical order: -1, 0 (a starter, or the same class), 1.
function compareMarks(a, b) {
  if (toNfd(`a${b}${a}`) !== `a${b}${a}`) return -1;
  return toNfd(`a${a}${b}`) !== `a${a}${b}` ? 1 : 0;
}

function findOrders(marks) {
  const classes = [['\u0327'], ['\u0301']]; // below, above: two that differ
  for (const mark of marks) {
    const results = classes.map(([other]) => compareMarks(mark, other));
    if (results.every((r) => r === 0)) continue; // a starter
    const same = results.indexOf(0);
    if (same >= 0) classes[same].push(mark);
    else classes.splice(results.filter((r) => r > 0).length, 0, [mark]);
  }
  const order = new Map();
  classes.forEach((list, k) => list.forEach((mark) => order.set(mark.codePointAt(0), k + 1)));
  return order;
}

function ranges(order) {
  const out = [];
  for (const cp of [...order.keys()].sort((a, b) => a - b)) {
    const last = out.at(-1);
    if (last && last[1] === cp - 1 && last[2] === order.get(cp)) last[1] = cp;
    else out.push([cp, cp, order.get(cp)]);
  }
  return out;
}

export function derive() {
  const split = [];
  const pairs = [];
  const marks = [];
  for (let cp = 0x80; cp < cpEnd; cp++) {
    if (!isScalar(cp) || isHangul(cp)) continue;
    const c = String.fromCodePoint(cp);
    const parts = toNfd(c);
    if (parts === c) {
      if (/\p{M}/u.test(c)) marks.push(c);
      continue;
    }
    split.push([cp, ...codes(parts)]);
    if (toNfc(c) !== c) continue; // never composed
    const list = codes(parts);
    const first = codes(toNfc(String.fromCodePoint(...list.slice(0, -1))));
    if (first.length !== 1) throw new Error(`U+${cp.toString(16)}: not a pair`);
    pairs.push([first[0], list.at(-1), cp]);
  }
  return { split, pairs: pairs.sort((a, b) => a[0] - b[0] || a[1] - b[1]), order: ranges(findOrders(marks)) };
}

if (process.argv[1] && path.resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const { split, pairs, order } = derive();
  const lines = (list) => `[\n${list.map((x) => JSON.stringify(x)).join(',\n')}\n]`;
  process.stdout.write(`{"source":"tokenizers 0.22.2 via @anush008/tokenizers 0.6.0, every code point asked (unicode_nfc.mjs)",
"split":${lines(split)},\n"pairs":${lines(pairs)},\n"order":${lines(order)}}\n`);
}
