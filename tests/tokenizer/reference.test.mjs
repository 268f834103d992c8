// `hadal tokenize --jsonl` against the reference engine (Hugging Face tokenizers, @anush008/tokenizers)
// on DeepSeek-V3's real tokenizer.json and on the embedded model's: the golden texts, and fresh random
// ones. HADAL_TEST_SEED repeats a run; HADAL_TEST_LINES sets the number of random texts.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { below, compare, golden, hadal, lenml, nLines, ours, pick, randomTexts, readJson, readLines, theirs, wellFormed } from './support.mjs';

const v3Path = lenml('deepseek_v3');
const miniPath = path.join(golden, 'mini_tokenizer.json');
const added = (json) => readJson(json).added_tokens.map((t) => t.content);
const specials = [...added(miniPath), ...added(v3Path).slice(0, 3), '<\uff5cplace\u2581holder\u2581no\u25817\uff5c>'];

test('golden texts of DeepSeek-V3', () => {
  const cases = readLines(path.join(golden, 'golden_v3.jsonl'));
  const texts = cases.map((c) => c.text);
  assert.equal(cases.length, 582);
  compare(texts, ours(texts, ['--tokenizer', v3Path]), cases.map((c) => c.ids));
});

test('golden texts of the embedded model, its tokenizer read from its own file', () => {
  const cases = readLines(path.join(golden, 'golden_mini.jsonl'));
  const texts = cases.map((c) => c.text);
  compare(texts, ours(texts, []), cases.map((c) => c.ids));
  compare(texts, ours(texts, ['--tokenizer', miniPath]), cases.map((c) => c.ids));
});

test('random texts, DeepSeek-V3', async () => {
  const texts = randomTexts(nLines, specials);
  compare(texts, ours(texts, ['--tokenizer', v3Path]), await theirs(texts, readFileSync(v3Path, 'utf8')));
});

test('random texts, the embedded model', async () => {
  const texts = randomTexts(Math.ceil(nLines / 3), specials);
  const expected = await theirs(texts, readFileSync(miniPath, 'utf8'));
  compare(texts, ours(texts, ['--tokenizer', miniPath]), expected);
  compare(texts, ours(texts, []), expected);
});

test('random texts as plain text: markup is not matched', async () => {
  const texts = randomTexts(Math.ceil(nLines / 6), specials).map((s) => wellFormed(s.slice(0, below(s.length))) + pick(specials) + s);
  for (const json of [v3Path, miniPath]) {
    const plain = JSON.stringify({ ...readJson(json), added_tokens: [] });
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
