// The program as the scripts of this folder run it, and a folder of theirs that is gone afterwards.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

export const bin = process.env.HADAL_BIN, source = process.env.HADAL_SOURCE_DIR;
assert.ok(bin && source, 'HADAL_BIN and HADAL_SOURCE_DIR name the program and the checkout');
export const folder = mkdtempSync(path.join(tmpdir(), 'hadal-tools-'));
process.on('exit', () => rmSync(folder, { recursive: true }));

export const to = (name) => path.join(folder, name);
export const run = (...args) => spawnSync(bin, args, { encoding: 'utf8' });
export function done(...args) {
  const r = run(...args);
  assert.equal(r.status, 0, r.stdout + r.stderr);
  return r.stdout;
}
// One line says what is wrong; after a wrong usage (2), however late it was found, come the usage
// and where help is.
export function refuse(status, pattern, ...args) {
  const r = run(...args);
  assert.equal(r.status, status, r.stdout + r.stderr);
  assert.match(r.stderr, pattern);
  assert.equal(r.stderr.trim().split('\n').length, status === 2 ? 3 : 1, r.stderr);
}
