// `hadal doctor fatbin` as a person and a script run it.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { done, refuse, run, source, to } from './program.mjs';

const many = path.join(source, 'tests/golden/fatbin/many.fatbin');

test('a table of targets and GPUs', () => {
  const text = done('doctor', 'fatbin', many);
  assert.match(text, /sm_90a +SASS, 1 entry/);
  assert.match(text, /9\.0 +H100, H200 +loads sm_90a/);
  assert.match(text, /7\.0 +V100 +does not load: sm_75 is newer than this GPU/);
});

test('one target: the exit code tells', () => {
  const { gpus } = JSON.parse(done('doctor', 'fatbin', many, '--json', '--target', '8.6'));
  assert.deepEqual(gpus, [{ compute_capability: 8.6, loads: true, target: 'sm_80' }]);
  const r = run('doctor', 'fatbin', many, '--target', 'sm_61', '--json');
  assert.equal(r.status, 1);
  assert.equal(JSON.parse(r.stdout).gpus[0].loads, false);
});

test('what is not right is named', () => {
  writeFileSync(to('text'), 'no GPU code, and long enough to hold a header');
  writeFileSync(to('cut'), readFileSync(many).subarray(0, 5000));
  refuse(1, /text: no CUDA code inside/, 'doctor', 'fatbin', to('text'));
  refuse(1, /cut: CUDA code at byte 0: /, 'doctor', 'fatbin', to('cut'));
  refuse(1, /absent/, 'doctor', 'fatbin', to('absent'));
  refuse(2, /sm_90 or 9\.0/, 'doctor', 'fatbin', many, '--target', 'hopper');
  refuse(2, /one file/, 'doctor', 'fatbin');
  refuse(2, /expected fatbin, found "cat"/, 'doctor', 'cat', many);
});
