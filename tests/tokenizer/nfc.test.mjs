// hadal's normalization against the reference engine's, by a tokenizer whose tokens are the 256 bytes:
// every code point, with marks around it; every pair of marks; random text. Then against node's: the
// same but for what Unicode got after the engine's version 9.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { nLines, ours, randomTexts, readJson, seed, source } from './support.mjs';
import { byteTokenizer } from './build.mjs';
import { cpEnd, derive, isScalar, toNfc } from './unicode_nfc.mjs';

const folder = mkdtempSync(path.join(tmpdir(), 'hadal-nfc-'));
after(() => rmSync(folder, { recursive: true }));
const tokenizer = path.join(folder, 'tokenizer.json');
writeFileSync(tokenizer, JSON.stringify(byteTokenizer('qwen2')));

const inHadal = (texts) => ours(texts, ['--tokenizer', tokenizer]).map((ids) => Buffer.from(ids).toString('utf8'));
const points = Array.from({ length: cpEnd }, (_, cp) => cp).filter(isScalar).map((cp) => String.fromCodePoint(cp));
const inBatches = (list, n) => Array.from({ length: Math.ceil(list.length / n) }, (_, i) => list.slice(i * n, (i + 1) * n).join(' '));

function check(texts, normalize) {
  inHadal(texts).forEach((found, i) => {
    const expected = normalize(texts[i]);
    if (found !== expected) assert.fail(`seed ${seed}, ${JSON.stringify(texts[i])}: expected ${JSON.stringify(expected)}, found ${JSON.stringify(found)}`);
  });
}

const { split, order } = readJson(path.join(source, 'tools/unicode_nfc.json'));
const marks = order.flatMap(([a, b]) => Array.from({ length: b - a + 1 }, (_, i) => String.fromCodePoint(a + i)));

test('the committed table is what the engine answers', () => {
  const { source: _, ...committed } = readJson(path.join(source, 'tools/unicode_nfc.json'));
  assert.deepEqual(committed, derive());
});

test('every code point, alone and between marks', () => {
  const around = (c) => `${c}x${c}\u0301\u0327x${c.normalize('NFD')}x\u0323${c}\u0338`;
  check(inBatches(points.map(around), 64), toNfc);
});

test('every pair of marks after letters that compose', () => {
  const texts = marks.map((a) => marks.map((b) => `a${a}${b}`).join(''));
  check(texts, toNfc);
});

test('random texts', () => {
  check(randomTexts(nLines, ['e\u0301', '\u212b']), toNfc);
});

// What the engine knows to move or change; and what node, with a later Unicode, leaves alone too.
test("node's normalization, but for later characters", () => {
  const known = new Set([...split.map(([cp]) => String.fromCodePoint(cp)), ...marks]);
  const isInert = (c) => c.normalize('NFD') === c && !/\p{M}/u.test(c);
  const same = points.filter((c) => known.has(c) || isInert(c) || (c >= '\uac00' && c <= '\ud7a3'));
  assert.ok(same.length > cpEnd - 2048 - 2000, `${same.length} characters`);
  check(inBatches(same.map((c) => `${c}|a${c}\u0301|${c.normalize('NFD')}`), 64), (s) => s.normalize('NFC'));
});
