// `hadal run` as a person runs it: one answer, plain completion, JSON, a piped chat, Ctrl-C, and
// what it says when asked for something that cannot be.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import {
  closeSync, copyFileSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, statSync, truncateSync, utimesSync, writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';

const bin = process.env.HADAL_BIN, source = process.env.HADAL_SOURCE_DIR;
assert.ok(bin && source, 'HADAL_BIN and HADAL_SOURCE_DIR name the program and the checkout');
const golden = JSON.parse(readFileSync(path.join(source, 'tests/golden/mini/golden.json'), 'utf8'));

function run(args, input = '') {
  const r = spawnSync(bin, ['run', ...args], { encoding: 'utf8', input, timeout: 120000 });
  assert.equal(r.error, undefined);
  return r;
}
function done(args, input) {
  const r = run(args, input);
  assert.equal(r.status, 0, r.stdout + r.stderr);
  return r;
}

test('one answer on stdout, figures on stderr', () => {
  const r = done(['-p', 'What is 12 + 30?', '--temp', '0']);
  assert.equal(r.stdout, '12 + 30 = 42\n');
  assert.match(r.stderr, /^\[14 prompt tokens \(0 cached\), first token after \d+ ms; 11 generated, [\d.]+ tok\/s\]\n$/);
});

test('reasoning stands between its markers', () => {
  const r = done(['-p', 'What is 12 + 30?', '--temp', '0', '--thinking']);
  assert.match(r.stdout, /^<think>\n12 \+ 30\n[^]*<\/think>\n[^]*12 \+ 30 = 42\n$/);
});

test('raw completion gives the golden tokens', () => {
  const cases = golden.prompts.filter((p) => !/<｜(?!begin)/.test(p.prompt)).slice(0, 3);
  assert.equal(cases.length, 3);
  for (const c of cases) {
    const r = done(['--raw', '--json', '-p', c.prompt, '--temp', '0', '-n', String(c.greedy.length)]);
    const got = JSON.parse(r.stdout);
    assert.deepEqual(got.token_ids, c.greedy);
    assert.equal(got.prompt_tokens, c.ids.length); // the begin token is not doubled
    assert.equal(got.completion_tokens, c.greedy.length);
    const bare = c.prompt.replace('<｜begin▁of▁sentence｜>', '');
    const plain = done(['--raw', '-p', bare, '--temp', '0', '-n', String(c.greedy.length)]);
    assert.equal(plain.stdout, c.greedy_text.replace('<｜end▁of▁sentence｜>', '') + '\n');
  }
});

test('the middle is filled in', () => {
  assert.equal(done(['-p', 'def add(a, b):\n    ', '--suffix', '\n', '--temp', '0']).stdout, 'return a + b\n');
  assert.equal(done(['-p', 'def add(a, b):\n    ', '--suffix', '', '--temp', '0']).stdout, 'return a + b\n');
  const got = JSON.parse(done(['-p', 'for i in ', '--suffix', ':\n    print(i)\n', '--temp', '0', '--json']).stdout);
  assert.match(got.text, /^range\(\d+\)$/);
});

test('a prompt that begins with the begin marker is already encoded', () => {
  for (const c of golden.prompts.filter((p) => /<｜User｜>/.test(p.prompt)).slice(0, 3)) {
    const r = done(['-p', c.prompt, '--temp', '0', '-n', String(c.greedy.length)]);
    assert.equal(r.stdout, c.greedy_text.replace('<｜end▁of▁sentence｜>', '') + '\n');
  }
  const r = run(['-p', '<｜begin▁of▁sentence｜>x', '--system', 'y']);
  assert.equal(r.status, 2);
  assert.match(r.stderr, /begin-of-sentence marker/);
});

test('stop, limit, system message and seed', () => {
  const stopped = JSON.parse(done(['-p', 'Count from 1 to 20.', '--temp', '0', '--stop', '7', '--json']).stdout);
  assert.equal(stopped.text, '1, 2, 3, 4, 5, 6, ');
  assert.equal(stopped.finish_reason, 'stop');
  const limited = JSON.parse(done(['-p', 'Count from 1 to 20.', '-n', '3', '--json']).stdout);
  assert.equal(limited.finish_reason, 'length');
  assert.equal(limited.completion_tokens, 3);
  const sum = JSON.parse(done(['-p', 'What is 463 minus 2?', '--system', 'Give only the number.',
    '--temp', '0', '--json']).stdout);
  assert.equal(sum.text, '461');
  const story = () => done(['--raw', '-p', 'Once', '--temp', '1', '--seed', '7', '-n', '30']).stdout;
  assert.equal(story(), story());
});

test('a chat over a pipe', () => {
  const lines = ['What is 12 + 30?', '', '/think on', 'What is 3 + 4?', '/think off', '/clear',
    'Hello!', '/stats', '/nonsense', '/help', '/quit', 'never read'];
  const r = done(['--temp', '0'], lines.join('\n') + '\n');
  assert.match(r.stdout, /^12 \+ 30 = 42\n<think>\n3 \+ 4\n[^]*<\/think>\n[^]*3 \+ 4 = 7\nHello! How can I help you today\?\n$/);
  assert.match(r.stderr, /thinking is on/);
  assert.match(r.stderr, /model mini \(deepseek2/);
  assert.match(r.stderr, /no such command/);
  assert.match(r.stderr, /\/system TEXT/);
});

test('every chat encoding can be asked for', () => {
  const question = ['-p', 'What is 12 + 30?', '--temp', '0', '-n', '40'];
  const unknown = run([...question, '--chat-encoding', 'telegram']);
  assert.equal(unknown.status, 2);
  const names = /none is named "telegram"; there are (.*)\n/.exec(unknown.stderr)[1].split(', ');
  assert.equal(names.length, 10);
  for (const name of [...names, 'deepseek_v1', 'deepseek_v2.5']) {
    const r = run([...question, '--chat-encoding', name]);
    if (name === 'deepseek_v4.1') { // whose token the embedded model has not
      assert.match(r.stderr, /chat encoding deepseek_v4\.1: the tokenizer has no token <\uff5cSystem\uff5c>/);
      continue;
    }
    assert.equal(r.status, 0, r.stderr);
    assert.equal(/^<think>/.test(r.stdout), /_r1/.test(name), r.stdout); // these always think
  }
  const r = done(['--temp', '0', '-n', '20', '--chat-encoding', 'deepseek_r1'], '/think off\nHello!');
  assert.match(r.stderr, /this model always thinks\nthinking is on/);
  assert.match(r.stdout, /^<think>/);
});

test('a model whose chat template is of another maker cannot chat, until an encoding is named', () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'hadal-run-'));
  const question = ['--tokenizer', folder, '-p', 'What is 12 + 30?', '--temp', '0'];
  copyFileSync(path.join(source, 'tests/golden/tokenizer/mini_tokenizer.json'), path.join(folder, 'tokenizer.json'));
  writeFileSync(path.join(folder, 'chat_template.jinja'), "{{ '<|im_start|>' + message['role'] }}");
  const r = run(question);
  assert.equal(r.status, 1);
  assert.equal(r.stderr, "hadal run: model mini has no chat encoding: its chat template is none of DeepSeek's; --chat-encoding names one\n");
  assert.equal(done([...question, '--chat-encoding', 'deepseek_v3.1']).stdout, '12 + 30 = 42\n');
  assert.equal(done([...question.slice(0, 2), '--raw', '-p', 'Once', '-n', '1']).status, 0);
  rmSync(folder, { recursive: true });
});

test('the end of input ends the chat; a conversation that is too long says so and goes on', () => {
  const long = 'word '.repeat(3000);
  const r = run(['--temp', '0'], `${long}\n/clear\nHello!`);
  assert.match(r.stderr, /prompt: \d+ tokens, but the context holds 2048/);
  assert.equal(r.stdout, 'Hello! How can I help you today?\n');
  assert.equal(r.status, 1);
});

test('Ctrl-C ends the answer cleanly', async () => {
  const child = spawn(bin, ['run', '--raw', '-p', 'Once upon a time', '--temp', '1'], { stdio: ['ignore', 'pipe', 'pipe'] });
  let out = '', err = '';
  child.stderr.on('data', (d) => { err += d; });
  let asked = false;
  child.stdout.on('data', (d) => {
    out += d;
    if (out.length > 40 && !asked) asked = child.kill('SIGINT');
  });
  const code = await new Promise((resolve) => child.on('close', resolve));
  if (!/interrupted/.test(err)) { // the story may have ended by itself
    assert.equal(code, 0, err);
    return;
  }
  assert.equal(code, 130);
  assert.ok(out.endsWith('\n'));
  assert.match(err, /generated, interrupted, /);
});

test('refusals', () => {
  const refused = (args, status, pattern) => {
    const r = run(args);
    assert.equal(r.status, status, r.stderr);
    assert.match(r.stderr, pattern);
    assert.equal(r.stdout, '');
  };
  refused(['-p', 'a', '--model', '/nowhere.gguf'], 1, /hadal run: .*\/nowhere\.gguf/);
  refused(['a'], 2, /unexpected argument 'a'/);
  refused(['--raw'], 2, /need a prompt/);
  refused(['--json'], 2, /need a prompt/);
  refused(['--raw', '--thinking', '-p', 'a'], 2, /--raw has no chat/);
  refused(['--suffix', 'b', '--thinking', '-p', 'a'], 2, /--suffix has no chat/);
  refused(['--suffix', 'b'], 2, /--suffix .*need a prompt/);
  refused(['-p', 'a', '--temp', '-1'], 2, /temp/);
  refused(['-p', 'a', '--max-model-len', '4'], 1, /context holds 4/);
  refused(['-p', 'a', ...Array(17).fill(['--stop', 'x']).flat()], 2, /--stop: at most 16/);
});

test('an output that cannot be written is an error', () => {
  const full = openSync('/dev/full', 'w');
  for (const args of [['run', '-p', 'Hello!', '--temp', '0'], ['inspect', '--no-hash']]) {
    const r = spawnSync(bin, args, { stdio: ['ignore', full, 'pipe'], encoding: 'utf8' });
    assert.equal(r.status, 1, r.stderr);
    assert.match(r.stderr, /stdout cannot be written/);
  }
  closeSync(full);
});

test('repacked weights are kept, mapped again, and made anew when they are wrong', () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'hadal-repack-')), model = path.join(dir, 'q8.gguf');
  try {
    const made = spawnSync(bin, ['quantize', '--type', 'Q8_0', 'mini', model], { encoding: 'utf8' });
    assert.equal(made.status, 0, made.stderr);
    const cache = path.join(dir, 'cache');
    const args = ['-m', model, '--backend', 'cpu', '-p', 'What is 12 + 30?', '--temp', '0'];
    const plain = done(args).stdout;
    const cached = () => {
      const r = done([...args, '--repack-cache', cache]);
      assert.equal(r.stdout, plain);
      return r.stderr;
    };
    const images = () => readdirSync(cache).map((name) => path.join(cache, name));
    assert.doesNotMatch(cached(), /repacked/);
    assert.equal(images().length, 1);
    const [image] = images(), first = statSync(image);
    assert.match(path.basename(image), /^[0-9a-f]{32}-cpu\d+-\d+\.\d+\.\d+\.image$/);
    assert.doesNotMatch(cached(), /repacked/);
    assert.equal(statSync(image).ino, first.ino, 'it was read, not written again');
    truncateSync(image, first.size - 1);
    assert.match(cached(), /repacked image is made anew.*expected \d+ bytes, found \d+/);
    assert.equal(statSync(image).size, first.size);
    assert.doesNotMatch(cached(), /repacked/);
    writeFileSync(image, 'not an image');
    assert.match(cached(), /repacked image is made anew/);
    utimesSync(model, 1, 1); // another model, for all that is known without reading it
    assert.doesNotMatch(cached(), /repacked/);
    assert.equal(images().length, 2);
    const none = run([...args, '--repack-cache', '/dev/null/none']);
    assert.equal(none.status, 1);
    assert.match(none.stderr, /repack cache: \/dev\/null\/none: Not a directory/);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
