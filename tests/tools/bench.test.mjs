// `hadal bench`: its report, for people and as JSON; bad lists are refused. No speed is judged.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';

const bin = process.env.HADAL_BIN;
assert.ok(bin, 'HADAL_BIN names the program');
const bench = (...args) => spawnSync(bin, ['bench', ...args], { encoding: 'utf8' });
const small = ['--prompt-lengths', '5,70', '--batch-sizes', '1,3', '--contexts', '7,40', '--seconds', '0'];

test('every point is told, with its share of the machine', () => {
  const r = bench(...small, '--json', '--max-num-batched-tokens', '32', '--threads', '2');
  assert.equal(r.status, 0, r.stderr);
  const report = JSON.parse(r.stdout);
  assert.equal(report.backend, 'cpu');
  assert.ok(report.machine.fma_gflops_s > 0 && report.machine.read_gb_s > 0);
  assert.deepEqual(report.prompts.map((p) => p.tokens), [5, 70]);
  assert.deepEqual(report.steps.map((p) => [p.tokens, p.context]), [[1, 7], [3, 7], [1, 40], [3, 40]]);
  for (const p of [...report.prompts, ...report.steps]) {
    assert.ok(p.runs >= 3 && p.tokens_per_s > 0 && p.tokens_per_s_best >= p.tokens_per_s);
    assert.ok(p.share_of_fma > 0 && p.share_of_read > 0);
  }
});

test('for people', () => {
  const r = bench(...small, '--isa', 'scalar', '--kv-cache-dtype', 'bf16');
  assert.equal(r.status, 0, r.stderr);
  assert.match(r.stdout, /portable C; KV BF16/);
  assert.match(r.stdout, /GFLOP\/s float32 multiply-add/);
});

test('products alone', () => {
  const r = bench('--products', '--seconds', '0', '--json');
  assert.equal(r.status, 0, r.stderr);
  const { products } = JSON.parse(r.stdout);
  assert.equal(products.length, 3 * 4 * 5);
  for (const p of products) assert.ok(p.gflops_s > 0 && ['F32', 'F16', 'BF16', 'Q8_0'].includes(p.format));
  assert.match(bench('--products', '--seconds', '0', '--isa', 'scalar').stdout, /Q8_0 {2}\[2048, 2048\]/);
});

test('bad lists and contexts are refused', () => {
  for (const bad of ['', '0', '1,,2', '3x', '1,2,', '99999999999'])
    assert.match(bench('--batch-sizes', bad).stderr, /--batch-sizes: expected/);
  const r = bench('--contexts', '4096');
  assert.equal(r.status, 1);
  assert.match(r.stderr, /4096 tokens of context: the model has 2048/);
});

test('the matrix of attention switches', () => {
  const r = bench('matrix', 'mini', ...small, '--json');
  assert.equal(r.status, 0, r.stderr);
  const { cells } = JSON.parse(r.stdout);
  assert.deepEqual(cells.map((c) => [c['context-fmha'], c['multi-block']]), [[false, false], [true, false], [false, true], [true, true]]);
  for (const c of cells) {
    assert.ok(c.prompt_tokens_per_s > 0 && c.decode_few_tokens_per_s > 0 && c.decode_many_tokens_per_s > 0);
    assert.equal(c.difference, 0, 'the cpu has one way');
  }
  assert.match(bench('matrix', 'mini', ...small).stdout, /context-fmha {2}multi-block .*prompt of 70.*1 at context 40.*3 at context 40/);
  assert.equal(bench('matrix', 'mini', 'other').status, 2);
});
