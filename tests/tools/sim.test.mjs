// `hadal sim` as a person runs it: a profile measured here, a load, the report for people and as JSON,
// the largest load, a fleet, the picture; what is refused. No speed is judged.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import { refuse } from './program.mjs';

const bin = process.env.HADAL_BIN;
assert.ok(bin, 'HADAL_BIN names the program');
const folder = mkdtempSync(join(tmpdir(), 'hadal-sim-'));
after(() => rmSync(folder, { recursive: true, force: true }));
const cost = join(folder, 'mini.cost'), trace = join(folder, 'load.csv');
const run = (...args) => spawnSync(bin, args, { encoding: 'utf8' });
const sim = (...args) => run('sim', '--cost', cost, ...args);
const report = (...args) => {
  const r = sim(...args, '--json');
  assert.equal(r.status, 0, r.stderr);
  return JSON.parse(r.stdout);
};
const load = ['--num-prompts', '60', '--request-rate', '5', '--random-input-len', '40', '--random-output-len', '9', '--seed', '4'];

test('a profile is measured', () => {
  const r = run('bench', 'mini', '--save-cost', cost, '--seconds', '0', '--max-num-seqs', '4', '--max-num-batched-tokens', '40', '--max-model-len', '200', '--threads', '1');
  assert.equal(r.status, 0, r.stderr);
  assert.match(r.stdout, /error of the formula: mean/);
  const c = JSON.parse(readFileSync(cost, 'utf8'));
  assert.equal(c.kind, 'hadal cost profile');
  assert.equal(c.kv_bytes_per_token, 4608);
  assert.deepEqual(c.rows, [1, 2, 4, 8, 16, 32, 40]);
  assert.ok(c.points > 15 && c.other_points > 0);
});

test('a load is simulated, the same for a seed', () => {
  const r = report(...load, '--goodput', 'e2el:1e8', '--save-trace', trace, '--watts-busy', '100');
  assert.equal(r.completed, 60);
  assert.equal(r.good, 60);
  assert.equal(r.slo_attainment, 1);
  assert.ok(r.ttft_ms.p50 > 0 && r.energy_wh > 0 && r.kv_peak_bytes > 0 && r.timeline.at_s.length > 100);
  const again = report('--trace', trace, '--seed', '4');
  for (const key of ['duration_s', 'ttft_ms', 'itl_ms', 'steps']) assert.deepEqual(again[key], r[key], key);
  const text = sim(...load, '--plot', join(folder, 'p.svg'), '--save-result', join(folder, 'r.jsonl'));
  assert.match(text.stdout, /hadal-mini on cpu.*\n1 replica, router prefix/);
  assert.match(text.stdout, /machines: busy/);
  const picture = readFileSync(join(folder, 'p.svg'), 'utf8');
  assert.equal((picture.match(/<polyline/g) ?? []).length, 6);
  assert.equal((picture.match(/<svg/g) ?? []).length, (picture.match(/<\/svg>/g) ?? []).length);
  assert.equal(readFileSync(join(folder, 'r.jsonl'), 'utf8').trim().split('\n').length, 60);
});

test('the largest load keeps the bounds, and the search tells how near it came to one that does not', () => {
  const args = [...load, '--goodput', `e2el:${3 * report(...load, '--load-scale', '0.001').e2el_ms.max}`];
  const r = report(...args, '--find-max-load'), at = (scale) => report(...args, '--load-scale', String(scale)).slo_attainment;
  assert.ok(r.load_scale < r.load_scale_too_much && r.load_scale_too_much <= 1.01 * r.load_scale);
  assert.ok(r.slo_attainment >= 0.99 && r.slo_attainment_too_much < 0.99);
  assert.equal(at(r.load_scale), r.slo_attainment);
  assert.equal(at(r.load_scale_too_much), r.slo_attainment_too_much);
  assert.match(sim(...args, '--find-max-load').stdout, /^largest load: [\d.e+-]+ times .* is too much \([\d.]+ % good\)$/m);
});

test('a fleet shares the load, and classes have bounds of their own', () => {
  const one = report(...load, '--request-rate', '0'), ten = report(...load, '--request-rate', '0', '--replicas', '10');
  assert.equal(ten.replicas, 10);
  assert.ok(ten.e2el_ms.mean < one.e2el_ms.mean);
  const r = report(...load, '--class-mix', 'interactive:1,offline:1', '--goodput', 'interactive/ttft:0.0001', '--goodput', 'offline/ttft:1e8');
  const [a, b] = ['interactive', 'offline'].map((name) => r.classes.find((c) => c.class === name));
  assert.equal(a.good, 0);
  assert.equal(b.good, b.sent);
});

test('batching can be static', () => {
  const crowd = [...load, '--request-rate', '0', '--max-num-seqs', '8', '--random-range-ratio', '0.9'];
  const joined = report(...crowd), batch = report(...crowd, '--no-dynamic-batching');
  assert.equal(batch.completed, 60);
  assert.notEqual(batch.steps, joined.steps);
});

test('help shows how an option is turned off', () => {
  const help = sim('--help').stdout;
  assert.match(help, /^ +--\[no-\]dynamic-batching .*\(default true\)$/m);
  assert.match(help, /^ +--\[no-\]json +machine-readable output$/m);
});

test('what is wrong is refused', () => {
  const refused = [
    [/--cost: expected a cost profile/, run('sim')],
    [/--find-max-load: expected bounds by --goodput/, sim('--find-max-load')],
    [/--goodput: expected ttft:MS/, sim('--goodput', 'batch/x:1')],
    [/--goodput: .*interactive, standard, batch or offline .*found "bacth\/ttft:1"/, sim('--goodput', 'bacth/ttft:1')],
    [/--class-mix: expected class interactive, .* found "bacth"/, sim('--class-mix', 'bacth:1')],
    [/the bounds cannot be kept/, sim(...load, '--goodput', 'ttft:1e-6', '--find-max-load')],
    [/--watts-idle: expected at most --watts-busy/, sim('--watts-idle', '3')],
    [/--class-mix: expected at most 8 of NAME:SHARE/, sim('--class-mix', 'a')],
  ];
  for (const [what, r] of refused) {
    assert.equal(r.status, 2, r.stdout);
    assert.match(r.stderr, what);
  }
  refuse(1, /no such file/, 'sim', '--cost', join(folder, 'gone'));
  refuse(1, /not valid JSON/, 'sim', '--cost', trace, ...load);
  assert.equal(sim('more').status, 2);
});
