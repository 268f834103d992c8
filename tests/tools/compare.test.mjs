// `hadal bench compare` as a person runs it, on the embedded model and in simulated time: every policy
// answers every request, and the JSON has its figures. No speed is judged, but what must follow from
// arithmetic is: padding and contiguous KV waste, pages hardly do.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

const bin = process.env.HADAL_BIN;
assert.ok(bin, 'HADAL_BIN names the program');
const cost = join(process.env.HADAL_SOURCE_DIR, 'tests/fuzz/corpus/fuzz_cost/mini.json');
const compare = (...args) => spawnSync(bin, ['bench', 'compare', ...args], { encoding: 'utf8' });
const report = (...args) => {
  const r = compare(...args, '--json');
  assert.equal(r.status, 0, r.stderr);
  return JSON.parse(r.stdout);
};
const load = ['--num-prompts', '12', '--request-rate', '40', '--random-input-len', '30', '--random-output-len', '6', '--random-range-ratio', '0.9', '--seed', '3'];

function check(p, n) {
  assert.equal(p.answered, n);
  for (const key of ['throughput_rps', 'latency_mean_ms', 'latency_p99_ms', 'ttft_mean_ms', 'kv_peak_bytes', 'concurrency_mean']) assert.ok(p[key] > 0, key);
  assert.ok(p.latency_p50_ms <= p.latency_p99_ms && p.ttft_mean_ms <= p.latency_mean_ms);
  assert.ok(p.kv_fragmentation >= 0 && p.kv_fragmentation < 1);
}

test('on the model, and against the simulation', () => {
  const r = report('mini', ...load, '--policies', 'static:4,paged:4,dynamic', '--threads', '1', '--runs', '2', '--check', cost);
  assert.deepEqual(Object.keys(r.policies), ['static:4', 'paged:4', 'dynamic']);
  assert.equal(r.simulated, false);
  for (const p of Object.values(r.policies)) {
    check(p, 12);
    check(p.simulated, 12);
    assert.ok(p.throughput_spread >= 0 && typeof p.simulated.within === 'boolean');
  }
  assert.ok(r.policies['static:4'].kv_fragmentation > r.policies.dynamic.kv_fragmentation);
});

test('the profile is measured between the runs, and good for later', () => {
  const folder = mkdtempSync(join(tmpdir(), 'hadal-compare-'));
  const file = join(folder, 'now.cost');
  const small = [...load, '--policies', 'dynamic', '--threads', '1', '--max-num-seqs', '4', '--max-num-batched-tokens', '40'];
  const r = report('mini', ...small, '--runs', '2', '--save-cost', file, '--seconds', '0').policies.dynamic;
  check(r.simulated, 12);
  assert.ok(r.steps_to_profile > 0 && typeof r.simulated.within === 'boolean');
  const again = report('--simulated', file, ...small).policies.dynamic;
  for (const key of ['throughput_rps', 'latency_mean_ms', 'latency_p99_ms', 'kv_peak_bytes']) {
    const [was, is] = [r.simulated[key], again[key]]; // a profile is written with nine digits
    assert.ok(Math.abs(is - was) <= 1e-6 * was, `${key}: ${was} as measured, ${is} from the file`);
  }
  rmSync(folder, { recursive: true });
});

test('in simulated time, the same for a seed', () => {
  const many = ['--simulated', cost, '--num-prompts', '300', '--request-rate', '0', '--random-range-ratio', '0.8', '--seed', '3'];
  const r = report(...many);
  assert.deepEqual(Object.keys(r.policies), ['static:32', 'dynamic']);
  for (const p of Object.values(r.policies)) check(p, 300);
  assert.deepEqual(report(...many), r);
  // A batch at a time has every request's longest prompt and answer reserved and computed.
  const { 'static:32': before, dynamic } = r.policies;
  assert.ok(dynamic.throughput_rps > before.throughput_rps && before.kv_fragmentation > 0.3 && dynamic.kv_fragmentation < 0.1);
});

test('a batch waits for the time or for its number', () => {
  const slow = ['--simulated', cost, '--num-prompts', '6', '--request-rate', '0.001', '--seed', '1', '--random-input-len', '20', '--random-output-len', '1'];
  const r = report(...slow, '--policies', 'static:2,static:1,dynamic');
  const of = (name) => r.policies[name].latency_mean_ms;
  assert.ok(Math.abs(of('static:2') - of('static:1') - 50) < 10, 'alone: 50 ms later');
  assert.ok(Math.abs(of('static:1') - of('dynamic')) < 10, 'a batch of one is full');
});

test('a load comes so many times as fast', () => {
  const at = (rate, ...more) => report('--simulated', cost, '--num-prompts', '20', '--request-rate', rate, '--seed', '2', '--policies', 'dynamic', ...more).policies.dynamic;
  const fast = at('8'), hastened = at('2', '--load-scale', '4');
  for (const key of ['throughput_rps', 'latency_p99_ms']) assert.ok(Math.abs(hastened[key] / fast[key] - 1) < 1e-6, key);
  assert.ok(at('2').throughput_rps < fast.throughput_rps);
});

test('KV that is bounded bounds the batch', () => {
  const r = report('--simulated', cost, '--num-prompts', '60', '--request-rate', '0', '--seed', '1', '--policies', 'static:32,paged:32,dynamic', '--random-range-ratio', '0.5', '--max-tokens-in-paged-kv-cache', '2048');
  for (const [name, p] of Object.entries(r.policies)) assert.ok(p.kv_peak_bytes <= 2048 * 4608, name);
  assert.ok(r.policies['static:32'].concurrency_mean < r.policies.dynamic.concurrency_mean);
});

test('for people', () => {
  const r = compare('--simulated', cost, ...load);
  assert.match(r.stdout, /hadal-mini, simulated: 12 requests/);
  assert.match(r.stdout, /dynamic \/ static:32: throughput [\d.]+x, mean latency [\d.]+x/);
});

test('what is wrong is refused', () => {
  for (const bad of ['', 'static', 'static:0', 'dynamic:3', 'static:3,', 'other:3', 'static:3x'])
    assert.match(compare('--policies', bad, ...load).stderr, /--policies: expected/, bad);
  assert.match(compare('--simulated', cost, '--check', cost).stderr, /--check: expected runs on the model/);
  for (const other of ['--simulated', '--check']) assert.match(compare(other, cost, '--save-cost', 'x').stderr, /--save-cost: expected runs on the model and no other profile/);
  assert.match(compare('--simulated', cost, '--random-output-len', '3000').stderr, /tokens of context: the model has 2048/);
  assert.match(compare('--clock', 'processor', '--threads', '2', ...load).stderr, /--clock processor: expected --threads 1/);
  assert.equal(compare('mini', 'other').status, 2);
});
