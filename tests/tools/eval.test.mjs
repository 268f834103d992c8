// `hadal eval` as a person runs it: cases, the golden file, a text against itself, refusals; and the
// same bits from a safetensors folder and the GGUF made of it.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { bin, done, folder, refuse as refuseCommand, run, source, to } from './program.mjs';

const at = (name) => path.join(source, 'tests/golden', name);
const evaluate = (...args) => JSON.parse(done('eval', ...args, '--json'));
const refuse = (status, pattern, ...args) => refuseCommand(status, pattern, 'eval', ...args);

const families = readdirSync(at('families'), { withFileTypes: true })
  .filter((entry) => entry.isDirectory()).map((entry) => entry.name);
const sum = (list, length) => list.reduce((total, item) => total + length(item), 0);

test('a buffer that no model reads, of a type that is only listed, changes nothing', () => {
  const v3 = (name) => readFileSync(at(`families/v3/${name}`));
  const file = v3('model.safetensors'), n = Number(file.readBigUInt64LE(0)), end = file.length - 8 - n;
  const buffer = { 'a.position_ids': { dtype: 'I64', shape: [4], data_offsets: [end, end + 32] } };
  const header = Buffer.from(JSON.stringify({ ...buffer, ...JSON.parse(file.subarray(8, 8 + n)) })), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  mkdirSync(to('buffers'));
  writeFileSync(to('buffers/model.safetensors'), Buffer.concat([length, header, file.subarray(8 + n), Buffer.alloc(32)]));
  writeFileSync(to('buffers/config.json'), v3('config.json'));
  const [own, plain] = [to('buffers'), at('families/v3')].map((f) => evaluate(f, '--backend', 'cpu', '--cases', at('families/v3/cases.json')));
  assert.equal(own.kv_cache_dtype, 'F32');
  assert.deepEqual(own.cases.map((w) => w.logits_hash), plain.cases.map((w) => w.logits_hash));
});

for (const family of families) {
  const reference = JSON.parse(readFileSync(at(`families/${family}/cases.json`))).cases;
  const isLatent = /^v[23]/.test(family);
  // BF16 would round what E4M3 times an arbitrary scale gives.
  const outtype = family.includes('fp8') ? 'f32' : 'auto';
  const cases = ['--backend', 'ref', '--cases', at(`families/${family}/cases.json`)];

  test(`${family}: whole, in chunks and token by token are the reference`, () => {
    const { cases: ways } = evaluate(at(`families/${family}`), ...cases);
    assert.deepEqual(ways.map((w) => w.way), ['whole', 'chunks of 7', 'token by token']);
    for (const w of ways) {
      assert.ok(w.logit_max_error_over_std < 1e-4, `${w.way}: ${w.logit_max_error_over_std}`);
      assert.ok(w.kl_max >= 0 && w.kl_max < 1e-8, `${w.way}: divergence ${w.kl_max}`);
      assert.equal(w.arg_max_wrong + w.greedy_wrong, 0);
      assert.equal(w.arg_max, sum(reference, (c) => c.ids.length));
      assert.equal(w.greedy, sum(reference, (c) => c.greedy?.length ?? 0));
      assert.equal(w.rows_bit_equal, w.rows);
      assert.equal(w.logits_hash, ways[0].logits_hash);
    }
  });

  test(`${family}: a GGUF of the same weights gives the same bits`, () => {
    const gguf = to(`${family}.gguf`);
    const made = run('convert', at(`families/${family}`), gguf, '--outtype', outtype);
    assert.equal(made.status, 0, made.stderr);
    const hash = (model, form) => evaluate(model, ...cases, '--form', form).cases[0].logits_hash;
    const [absorbed, expanded] = ['absorbed', 'expanded'].map((form) => hash(gguf, form));
    assert.equal(absorbed, hash(at(`families/${family}`), 'absorbed'));
    if (!isLatent) return assert.equal(absorbed, expanded);
    assert.equal(expanded, hash(at(`families/${family}`), 'expanded'));
    assert.notEqual(absorbed, expanded);
  });
}

test('cases need no tokenizer; serving says in one line why it cannot', () => {
  const model = to('strange');
  cpSync(at('families/llama'), model, { recursive: true });
  writeFileSync(path.join(model, 'tokenizer.json'), '{"model":{"type":"Unigram"}}');
  const { cases } = evaluate(model, '--cases', path.join(model, 'cases.json'));
  assert.equal(cases[0].greedy, 24);
  const served = run('serve', '--model', model, '--port', '0');
  assert.notEqual(served.status, 0);
  assert.equal(served.stderr.match(/only BPE is supported/g).length, 1, served.stderr);
});

test('mini: golden file', () => {
  const { golden } = evaluate('mini', '--backend', 'ref', '--golden', at('mini/golden.json'));
  assert.ok(golden.logit_max_error < 1e-3, golden.logit_max_error);
  assert.ok(golden.kl_max < 1e-6, golden.kl_max);
  assert.equal(golden.prompts, 26);
  assert.equal(golden.greedy_prompts_equal, 26);
  assert.equal(golden.greedy_equal, golden.greedy);
  assert.equal(golden.texts, 36);
  assert.equal(golden.texts_equal, 36);
});

test('mini: perplexity, and divergence from kept logits', () => {
  const logits = to('logits');
  const text = ['mini', '--backend', 'ref', '--perplexity', at('mini/heldout.txt'), '--limit', '200',
    '--context', '128'];
  const first = evaluate(...text, '--save-logits', logits).perplexity;
  assert.equal(first.tokens, 200);
  assert.equal(first.stride, 64);
  assert.ok(Math.abs(first.perplexity - Math.exp(first.nll / 200)) < 1e-6);
  // Other batches and the other form: the same windows, next to the same numbers.
  const second = evaluate(...text, '--against', logits, '--max-num-batched-tokens', '37').perplexity;
  assert.equal(second.nll, first.nll);
  assert.equal(second.kl_mean, 0);
  const other = evaluate(...text, '--against', logits, '--form', 'absorbed').perplexity;
  assert.ok(other.kl_mean < 1e-9 && other.logit_max_error > 0 && other.logit_max_error < 1e-3);
  // Windows that overlap less know less.
  const apart = evaluate(...text, '--stride', '127').perplexity;
  assert.ok(apart.nll > first.nll && apart.nll < 1.2 * first.nll);
  refuse(1, /another text or setting.*stride 32/, ...text, '--against', logits, '--stride', '32');
  refuse(2, /stride 128: expected 1 <= stride < context/, ...text, '--stride', '128');
});

test('kept logits are whole or not there, and replace nothing but logits', async () => {
  const text = ['mini', '--perplexity', at('mini/heldout.txt'), '--limit', '100'], other = to('precious');
  const kept = to('kept'), first = evaluate(...text, '--save-logits', kept).perplexity;
  evaluate(...text, '--save-logits', kept, '--against', kept); // its own successor
  assert.equal(evaluate(...text, '--against', kept).perplexity.base_perplexity, first.perplexity);
  writeFileSync(other, 'precious');
  refuse(1, /precious: exists, and holds no saved logits/, ...text, '--save-logits', other);
  refuse(1, /precious: expected logits up to byte 32, found its end at 8/, ...text, '--against', other);
  refuse(1, /heldout\.txt: expected logits kept by --save-logits/, ...text, '--against', at('mini/heldout.txt'));
  refuse(2, /expected a regular file/, ...text, '--save-logits', '/dev/null');
  assert.equal(readFileSync(other, 'utf8'), 'precious');
  writeFileSync(other, readFileSync(kept).subarray(0, 5000));
  refuse(1, /precious: expected logits up to byte \d+, found its end at 5000/, ...text, '--against', other);
  const before = readdirSync(folder), bytes = readFileSync(kept);
  const child = spawn(bin, ['eval', 'mini', '--backend', 'ref', '--perplexity', at('mini/heldout.txt'), '--save-logits', kept]);
  const ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve(signal ?? code)));
  while (!readdirSync(folder).some((f) => f.startsWith('kept.')) && child.exitCode === null)
    await new Promise((r) => setTimeout(r, 1));
  child.kill('SIGINT');
  assert.equal(await ended, 'SIGINT');
  assert.deepEqual(readdirSync(folder), before);
  assert.ok(bytes.equals(readFileSync(kept)));
});

test('divergence is what its definition says', () => {
  // Two runs of one text that differ (another KV type), their kept logits compared here.
  const n = 60, files = ['a', 'b'].map(to);
  const text = ['mini', '--perplexity', at('mini/heldout.txt'), '--limit', String(n), '--context', '128'];
  evaluate(...text, '--save-logits', files[0]);
  const found = evaluate(...text, '--kv-cache-dtype', 'bf16', '--against', files[0], '--save-logits', files[1]).perplexity;
  const [a, b] = files.map((f) => {
    const bytes = readFileSync(f), width = bytes.readUInt32LE(8);
    assert.equal(bytes.readUInt32LE(12), n);
    const head = bytes.length - 4 * width * n;
    return Array.from({ length: n }, (_, i) => Array.from({ length: width }, (_, k) => bytes.readFloatLE(head + 4 * (i * width + k))));
  });
  const ids = JSON.parse(spawnSync(bin, ['tokenize', '--jsonl'], { encoding: 'utf8',
    input: `${JSON.stringify({ text: readFileSync(at('mini/heldout.txt'), 'utf8').slice(0, 2000) })}\n` }).stdout).ids;
  const logits = (row) => { const top = Math.max(...row), sum = Math.log(row.reduce((s, x) => s + Math.exp(x - top), 0)); return row.map((x) => x - top - sum); };
  const best = (row) => row.map((x, i) => [x, i]).sort((x, y) => y[0] - x[0]).slice(0, 5).map((x) => x[1]);
  const kl = [], dp = [];
  let top1 = 0, top5 = 0;
  for (let i = 0; i < n; i++) {
    const p = logits(a[i]), q = logits(b[i]);
    kl.push(p.reduce((s, x, k) => s + Math.exp(x) * (x - q[k]), 0));
    dp.push(Math.exp(q[ids[i]]) - Math.exp(p[ids[i]]));
    const [x, y] = [best(p), best(q)];
    top1 += x[0] === y[0];
    top5 += x.filter((t) => y.includes(t)).length / 5;
  }
  const near = (value, expected, what) => assert.ok(Math.abs(value - expected) <= 1e-6 * Math.abs(expected) + 1e-9, `${what}: ${value}, expected ${expected}`);
  const sum = (v) => v.reduce((s, x) => s + x, 0), sorted = [...kl].sort((x, y) => x - y);
  near(found.kl_mean, sum(kl) / n, 'mean');
  near(found.kl_mean_error, Math.sqrt((sum(kl.map((x) => x * x)) / n - (sum(kl) / n) ** 2) / (n - 1)), 'error of the mean');
  near(found.kl_median, (sorted[29] + sorted[30]) / 2, 'median');
  near(found.kl_99, sorted[58] + 0.41 * (sorted[59] - sorted[58]), '99 %');
  near(found.kl_max, sorted[59], 'max');
  near(found.dp_mean, sum(dp) / n, 'dp mean');
  near(found.dp_rms, Math.sqrt(sum(dp.map((x) => x * x)) / n), 'dp rms');
  near(found.top1_agreement, top1 / n, 'top 1');
  near(found.top5_agreement, top5 / n, 'top 5');
  near(Math.log(found.perplexity_ratio), sum(a.map((r, i) => logits(r)[ids[i]] - logits(b[i])[ids[i]])) / n, 'ratio');
  assert.ok(found.kl_max > 0);
});

test('what cannot be done is said', () => {
  const v3 = at('families/v3'), cases = at('families/v3/cases.json');
  refuse(2, /nothing to do/, v3);
  for (const option of ['--cases', '--golden', '--perplexity'])
    refuse(1, /^hadal eval: nothing-here: cannot be read: No such file or directory\n$/, v3, option, 'nothing-here');
  refuse(1, /expected a regular file, found a folder/, v3, '--cases', folder);
  writeFileSync(path.join(folder, 'none.json'), '{"cases": []}');
  refuse(1, /none\.json: cases: expected a list that is not empty, found a list of 0/, v3, '--cases', path.join(folder, 'none.json'));
  refuse(2, /--against needs --perplexity/, v3, '--against', 'x');
  refuse(2, /--save-logits needs --perplexity/, v3, '--save-logits', 'x', '--cases', cases);
  refuse(2, /one model/, v3, v3, '--plan');
  refuse(1, /no tokenizer/, v3, '--perplexity', at('mini/heldout.txt'));
  refuse(1, /context has 64/, v3, '--backend', 'ref', '--max-model-len', '64', '--cases', cases);
  refuse(1, /cases: expected a list/, v3, '--backend', 'ref', '--cases', at('mini/golden.json'));
  refuse(1, /heldout\.txt: not valid JSON: line 1/, v3, '--backend', 'ref', '--cases', at('mini/heldout.txt'));
  refuse(1, /golden\.json: prompts\[0\]\.ids\[1\]: expected a token id below 320, found 2160/, v3, '--backend', 'ref', '--golden', at('mini/golden.json'));
});

test('the plan names op, format and layers', () => {
  const r = run('eval', at('families/v3'), '--backend', 'ref', '--plan');
  assert.equal(r.status, 0, r.stderr);
  const plan = evaluate(at('families/v3'), '--backend', 'ref', '--plan', '--cases', at('families/v3/cases.json'));
  assert.ok(r.stdout.endsWith(plan.plan) && plan.cases.length === 3);
  assert.equal(r.stderr, '');
  assert.match(r.stdout, /^moe +1-3 +ffn_down_exps.weight +BF16 +16 x \[64, 48\] +ref$/m);
});

test('a golden file with wrong entries is refused: a comparison left out could not fail', () => {
  const file = to('wrong.json'), one = { ids: [0, 5], top: [[5, 1]], greedy: [5] };
  for (const [change, pattern] of [
    [{ ids: [99999] }, /wrong\.json: prompts\[0\]\.ids\[0\]: expected a token id below 4096, found 99999/],
    [{ ids: [4294967296] }, /found 4294967296/],
    [{ ids: ['a'] }, /found "a"/],
    [{ ids: [] }, /at least one/],
    [{ ids: 5 }, /expected a list of token ids, found 5/],
    [{ greedy: [1, -7] }, /greedy\[1\]: expected a token id/],
    [{ top: [[5, 1], [4096, 1]] }, /top\[1\]: expected \[token id below 4096, logit\]/],
    [{ top: [[5]] }, /top\[0\]/],
    [{ top: {} }, /top: expected a list/],
  ]) {
    writeFileSync(file, JSON.stringify({ prompts: [{ ...one, ...change }] }));
    refuse(1, pattern, '--golden', file);
  }
  writeFileSync(file, JSON.stringify({ cases: [{ ids: [0, 'a'] }] }));
  refuse(1, /case 0: ids/, '--cases', file);
  writeFileSync(file, JSON.stringify({ cases: [{ ids: [0, 5], nll: ['a'] }] }));
  refuse(1, /case 0: nll/, '--cases', file);
});
