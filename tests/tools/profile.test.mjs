// `hadal profile` as a person and a script run it, on the CPU.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { done, refuse, to } from './program.mjs';

const steps = ['mini', '--backend', 'cpu', '--steps', '3'];
const count = (ops) => Object.fromEntries(ops.map((o) => [o.name, o.count_per_step]));

test('every op of a step, and nothing else', () => {
  const p = JSON.parse(done('profile', ...steps, '--batch-size', '3', '--json'));
  // 8 layers, the first of them dense.
  assert.deepEqual(count(p.ops), { embed: 1, mla_qkv: 8, mla_attn: 8, proj_add: 8, ffn: 1, route: 7,
    moe: 7, head: 1, sample: 1, 'outside of ops': 0 });
  const sum = p.ops.reduce((us, o) => us + o.us_per_step, 0);
  assert.ok(Math.abs(sum - p.step_mean_us) < 1e-6 * sum, `ops and what is outside of them, ${sum}, are the step`);
  assert.equal(p.steps, 3);
  assert.equal(p.spans_lost, 0);
  assert.ok(p.host_us_per_step <= p.step_mean_us);
});

test('a prompt in chunks: each chunk calls every op, the last one the head', () => {
  const p = JSON.parse(done('profile', ...steps, '--prompt-length', '30', '--max-num-batched-tokens', '10',
    '--json'));
  assert.equal(count(p.ops).mla_attn, 24);
  assert.equal(count(p.ops).head, 1);
});

test('the trace: a span for each call, in order, none inside of another', () => {
  const file = to('trace.json');
  assert.match(done('profile', ...steps, '--chrome-trace', file), /mla_attn .*\n(.*\n)*.*outside of ops/);
  const { traceEvents } = JSON.parse(readFileSync(file, 'utf8'));
  const calls = traceEvents.filter((e) => e.ph === 'X');
  assert.equal(calls.length, 3 * 42);
  for (let i = 1; i < calls.length; i++)
    assert.ok(calls[i].ts >= calls[i - 1].ts + calls[i - 1].dur - 0.01, `span ${i}`);
  assert.equal(traceEvents.filter((e) => e.name === 'thread_name').length, 1);
});

test('what is wrong is named', () => {
  refuse(1, /absent/, 'profile', 'absent');
  refuse(1, /context/, 'profile', 'mini', '--profile-context', '100000');
  refuse(2, /one model/, 'profile', 'a', 'b');
});
