// `hadal bench`: its report, for people and as JSON; bad lists are refused. No speed is judged.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';

const bin = process.env.HADAL_BIN;
assert.ok(bin, 'HADAL_BIN names the program');
const bench = (...args) => spawnSync(bin, ['bench', ...args], { encoding: 'utf8' });
const small = ['--prompt', '5,70', '--gen', '4', '--batch', '1,3', '--depth', '0,40', '--seconds', '0'];

test('every point is told, with its share of the machine', () => {
  const r = bench(...small, '--json', '--max-num-batched-tokens', '32', '--threads', '2');
  assert.equal(r.status, 0, r.stderr);
  const report = JSON.parse(r.stdout);
  assert.equal(report.backend, 'cpu');
  for (const m of [report, report.machine_before, report.machine_after]) assert.ok(m.bandwidth_gbs > 0 && m.int8_gops > 0);
  assert.deepEqual(report.prompts.map((p) => p.tokens), [5, 70]);
  assert.deepEqual(report.steps.map((p) => [p.batch, p.depth, p.tokens]), [[1, 0, 4], [3, 0, 4], [1, 40, 4], [3, 40, 4]]);
  for (const p of [...report.prompts, ...report.steps]) {
    assert.ok(p.runs >= 1 && p.tok_s > 0 && p.tok_s_best >= p.tok_s);
    assert.ok(p.share_of_ops > 0 && p.share_of_read > 0);
    assert.equal(p.share_of_roof, Math.max(p.share_of_ops, p.share_of_read));
  }
  assert.equal(report.prompt_tok_s, report.prompts[0].tok_s);
  assert.equal(report.decode_tok_s, report.steps[0].tok_s);
  assert.deepEqual(report.batch_tok_s, { 1: report.steps[0].tok_s, 3: report.steps[1].tok_s });
  assert.ok(report.load.first_token_s > report.load.load_s && report.load.peak_rss_bytes > 1e6);
  assert.ok(report.pool.threads === 2 && report.pool.empty_run_ns > 0 && report.pool.idle_core_share < 1);
});

test('what must be read is counted from the tensors', () => {
  const r = bench('mini', '--gen', '1', '--batch', '1,8', '--prompt', '5', '--seconds', '0', '--json');
  const { steps, load } = JSON.parse(r.stdout);
  const table = 4096 * 256 * 2, experts = 7 * 8 * 3 * 256 * 256 * 2, cached = 4608; // bytes of the embedded model
  for (const { batch, gb_s, tok_s } of steps) {
    const step = (gb_s / tok_s) * batch * 1e9, hit = 1 - (1 - 2 / 8) ** batch;
    const expected = load.weight_bytes - table - experts + experts * hit + batch * cached;
    assert.ok(Math.abs(step / expected - 1) < 1e-6, `${batch}: ${step}, expected ${expected}`);
  }
});

test('runs are lines of JSON', () => {
  const r = bench('mini', ...small, '--json', '--runs', '2');
  assert.equal(r.status, 0, r.stderr);
  const lines = r.stdout.trim().split('\n').map((line) => JSON.parse(line));
  assert.equal(lines.length, 2);
  assert.deepEqual(lines[1].machine_before, lines[0].machine_after);
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
  const formats = ['F32', 'F16', 'BF16', 'F8_B128', 'Q8_0', 'Q5_0', 'Q4_K', 'Q6_K', 'IQ2_XXS'];
  assert.equal(products.length, formats.length * (3 * 5 + 3)); // the largest shape has no 64 and 256 rows
  for (const p of products) assert.ok(p.gflops_s > 0 && formats.includes(p.format));
  assert.match(bench('--products', '--seconds', '0', '--isa', 'scalar').stdout, /Q8_0 {4}\[2048, 2048\]/);
});

test('attention alone', () => {
  const some = ['--attention', '--seconds', '0', '--depth', '0,70', '--batch', '1,3', '--prompt', '2'];
  const r = bench(...some, '--kv-cache-dtype', 'int8', '--json');
  assert.equal(r.status, 0, r.stderr);
  const { attention } = JSON.parse(r.stdout);
  // 3 numbers of heads, 2 depths: one sequence, on scattered pages, three, that share pages, on scattered ones, a prompt
  assert.equal(attention.length, 3 * 2 * 6);
  assert.deepEqual(attention.slice(6, 12).map((p) => [p.form, p.sequences, p.tokens, p.behind, p.shared, p.scattered]),
    [['decode', 1, 1, 70, 0, 0], ['decode', 1, 1, 70, 0, 1], ['decode', 3, 1, 70, 0, 0], ['decode', 3, 1, 70, 1, 0], ['decode', 3, 1, 70, 0, 1], ['prompt', 1, 2, 70, 0, 0]]);
  assert.match(bench(...some).stdout, /decode {3}16 heads, {2}3 x {5}1 tokens behind {4}70, shared: .*GFLOP/);
  const large = bench('--attention', '--batch', '1048576', '--depth', '1048576');
  assert.equal(large.status, 1);
  assert.match(large.stderr, /--attention: a cache and queries of [\d.]+ GB, found [\d.]+ GB/);
});

test('bad lists and contexts are refused', () => {
  for (const bad of ['', '0', '1,,2', '3x', '1,2,', '99999999999'])
    assert.match(bench('--batch', bad).stderr, /--batch: expected/);
  const r = bench('--depth', '4000', '--gen', '96');
  assert.equal(r.status, 1);
  assert.match(r.stderr, /4096 tokens of context: the model has 2048/);
  assert.match(bench('--batch', '1000000', '--gen', '2000').stderr, /1000000 sequences of 2000 tokens: a KV cache of [0-9.]+ GB, found/);
  assert.match(bench('compare', '--runs', '17').stderr, /--runs: expected at most 16, found 17/);
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
  assert.match(bench('matrix', 'mini', ...small).stdout, /context-fmha {2}multi-block .*prompt of 70.*1 at depth 40.*3 at depth 40/);
  assert.equal(bench('matrix', 'mini', 'other').status, 2);
});
