// `hadal quantize` as a person runs it, on the embedded model: every type, what it says beforehand,
// patterns, importance measured by `hadal eval --save-imatrix`, refusals; and that what comes out runs.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { bin, done, folder, refuse, run, source, to } from './program.mjs';

const mini = path.join(source, 'models/mini/mini-bf16.gguf');
const v3 = path.join(source, 'tests/golden/families/v3');
const heldout = path.join(source, 'tests/golden/mini/heldout.txt');
const quantize = (...args) => JSON.parse(done('quantize', ...args, '--json'));
const evaluate = (...args) => JSON.parse(done('eval', ...args, '--json')).perplexity;
// (inspect fails on a file that is no model, after it has told everything)
const metadata = (file) => JSON.parse(run('inspect', file, '--metadata', '--no-hash', '--json').stdout).metadata;
const format = (report, name) => report.tensors.find((t) => t.name === name).to;

test('Q4_K_M: what each tensor gets, what it costs, and it runs', () => {
  const r = quantize('--type', 'Q4_K_M', mini, to('q4.gguf'));
  assert.equal(format(r, 'token_embd.weight'), 'Q4_K');
  assert.equal(format(r, 'output.weight'), 'Q6_K');
  assert.equal(format(r, 'output_norm.weight'), 'F32');
  assert.equal(format(r, 'blk.1.ffn_gate_inp.weight'), 'F32');
  assert.equal(format(r, 'blk.1.exp_probs_b.bias'), 'F32');
  assert.equal(format(r, 'blk.0.ffn_down.weight'), 'Q6_K'); // counts more
  assert.equal(format(r, 'blk.1.ffn_down_exps.weight'), 'Q4_K');
  assert.equal(format(r, 'blk.3.ffn_down_exps.weight'), 'Q6_K'); // every third
  assert.equal(format(r, 'blk.7.ffn_down_shexp.weight'), 'Q6_K');
  assert.equal(format(r, 'blk.1.ffn_up_exps.weight'), 'Q4_K');
  assert.equal(format(r, 'blk.1.attn_k_b.weight'), 'Q5_0'); // rows of 32
  assert.equal(format(r, 'blk.0.attn_v_b.weight'), 'Q8_0'); // rows of 128, Q6_K wanted
  assert.match(r.notes, /attn_q_b\.weight becomes Q5_0: rows of 128 are no multiple of 256, as Q4_K needs/);
  for (const t of r.tensors) {
    const limit = { F32: 0, Q4_K: 0.085, Q5_0: 0.05, Q6_K: 0.025, Q8_0: 0.008 }[t.to];
    assert.ok(t.rel_rms_error <= limit && (t.to === 'F32' || t.rel_rms_error > limit / 4), JSON.stringify(t));
  }
  const found = JSON.parse(done('inspect', to('q4.gguf'), '--tensors', '--json', '--no-hash'));
  assert.deepEqual(found.tensors.map((t) => [t.name, t.format, t.bytes]), r.tensors.map((t) => [t.name, t.to, t.bytes]));
  const keys = metadata(to('q4.gguf'));
  assert.equal(keys['general.file_type'], '15');
  assert.equal(keys['general.quantization_version'], '2');
  const text = ['--perplexity', heldout, '--limit', '500', '--context', '256'];
  // What quantised weights have lost is far more than what F16 loses, float weights have lost nothing;
  // only AMD's processors with AVX-512 are faster with F16.
  const processor = readFileSync('/proc/cpuinfo', 'utf8');
  const least = /AuthenticAMD/.test(processor) && /\bavx512f\b/.test(processor) ? 'F16' : 'F32';
  const kv = (...args) => JSON.parse(done('eval', ...args, '--perplexity', heldout, '--limit', '2', '--context', '64', '--json')).kv_cache_dtype;
  const cpu = ['--backend', 'cpu'], q4 = to('q4.gguf');
  assert.deepEqual([kv(mini, ...cpu), kv(q4, ...cpu), kv(q4, '--backend', 'ref'), kv(q4, ...cpu, '--kv-cache-dtype', 'f32')],
    ['F32', least, 'F32', 'F32']);
  const base = evaluate(mini, ...text, '--save-logits', to('base'));
  const small = evaluate(to('q4.gguf'), ...text, '--against', to('base'));
  assert.equal(small.base_perplexity.toFixed(4), base.perplexity.toFixed(4));
  assert.ok(small.perplexity_ratio > 0.95 && small.perplexity_ratio < 1.2, small.perplexity_ratio);
  assert.ok(small.kl_mean > 0.05 && small.kl_mean < 0.4, small.kl_mean);
  assert.ok(small.kl_median < small.kl_mean && small.kl_mean < small.kl_99 && small.kl_99 <= small.kl_max);
  assert.ok(small.top1_agreement > 0.65 && small.top5_agreement > 0.65 && small.dp_rms < 0.15);
});

test('the same bytes by any number of threads', () => {
  for (const t of ['1', '3']) done('quantize', '--type', 'Q4_K_S', mini, to(`t${t}.gguf`), '-t', t);
  assert.ok(readFileSync(to('t1.gguf')).equals(readFileSync(to('t3.gguf'))));
});

test('every type: told beforehand, in order of size, with its number', () => {
  const types = { Q8_0: 7, Q6_K: 18, Q5_K_M: 17, Q5_1: 9, Q5_K_S: 16, Q5_0: 8, Q4_1: 3, Q4_K_M: 15, Q4_K_S: 14, Q4_0: 2,
    IQ4_NL: 25, IQ4_XS: 30, MXFP4_MOE: 38, Q3_K_L: 13, Q3_K_M: 12, Q3_K_S: 11, Q2_K: 10, IQ2_XXS: 19 };
  const bits = {};
  for (const [type, number] of Object.entries(types)) {
    const beforehand = quantize('--type', type.toLowerCase(), v3, '--dry-run');
    assert.equal(beforehand.type, type);
    const after = quantize('--type', type, v3, to(`v3-${type}.gguf`));
    assert.equal(after.tensor_bytes, beforehand.tensor_bytes);
    assert.deepEqual(after.tensors.map((t) => t.to), beforehand.tensors.map((t) => t.to));
    assert.equal(metadata(to(`v3-${type}.gguf`))['general.file_type'], String(number));
    bits[type] = quantize('--type', type, mini, '--dry-run').bits_per_weight;
  }
  for (const [more, less] of [['Q8_0', 'Q6_K'], ['Q6_K', 'Q5_K_M'], ['Q5_K_M', 'Q5_K_S'], ['Q5_K_S', 'Q4_K_M'],
    ['Q4_K_M', 'Q4_K_S'], ['Q4_K_S', 'Q3_K_L'], ['Q3_K_L', 'Q3_K_M'], ['Q3_K_M', 'Q3_K_S'], ['Q3_K_S', 'Q2_K'],
    ['Q2_K', 'IQ2_XXS']])
    assert.ok(bits[more] > bits[less], `${more} ${bits[more]}, ${less} ${bits[less]}`);
  assert.deepEqual(readdirSync(folder).filter((f) => f.includes('.gguf.')), []);
});

test('names of mixes, pure ones, and patterns', () => {
  assert.equal(quantize('--type', 'q4_k', v3, '--dry-run').type, 'Q4_K_M');
  assert.equal(quantize('--type', 'mxfp4', v3, '--dry-run').type, 'MXFP4_MOE');
  const pure = quantize('--type', 'Q4_K', '--pure', mini, '--dry-run');
  assert.equal(format(pure, 'output.weight'), 'Q4_K');
  const own = quantize('--type', 'Q4_K_M', mini, '--dry-run', '--tensor-type', 'blk\\.[12]\\.ffn_down=Q5_K',
    '--tensor-type', '^output\\.=keep', '--tensor-type', 'ffn_down=F16');
  assert.equal(format(own, 'blk.2.ffn_down_exps.weight'), 'Q5_K');
  assert.equal(format(own, 'blk.3.ffn_down_exps.weight'), 'F16');
  assert.equal(format(own, 'output.weight'), 'BF16');
  refuse(2, /--tensor-type ffn_dwn=Q5_K: expected a pattern of some weight matrix's name, found none/,
    'quantize', '--type', 'Q4_K_M', mini, '--dry-run', '--tensor-type', 'ffn_dwn=Q5_K');
  refuse(2, /--tensor-type norm=Q4_0: .* \(norms, biases and the router stay F32\)/,
    'quantize', '--type', 'Q4_K_M', mini, '--dry-run', '--tensor-type', 'norm=Q4_0');
  refuse(2, /expected PATTERN=TYPE, found ffn=/,
    'quantize', '--type', 'Q4_K_M', mini, '--dry-run', '--tensor-type', 'ffn=');
  refuse(1, /--tensor-type x=Q9: tensor format Q9 is not supported/,
    'quantize', '--type', 'Q4_K_M', mini, '--dry-run', '--tensor-type', 'x=Q9');
  refuse(2, /expected a regular expression, found \(:/,
    'quantize', '--type', 'Q4_K_M', mini, '--dry-run', '--tensor-type', '(=Q5_K');
  refuse(2, /expected PATTERN=TYPE, found Q5_K/,
    'quantize', '--type', 'Q4_K_M', mini, '--dry-run', '--tensor-type', 'Q5_K');
});

test('importance: measured, the same on both backends, and heeded', () => {
  const text = ['--perplexity', heldout, '--limit', '400', '--context', '64'];
  evaluate(mini, ...text, '--save-imatrix', to('im.gguf'));
  evaluate(mini, ...text, '--backend', 'ref', '--save-imatrix', to('im-ref.gguf'));
  const keys = metadata(to('im.gguf'));
  assert.equal(keys['general.type'], '"imatrix"');
  assert.equal(keys['imatrix.chunk_count'], String(Math.ceil(400 / 63)));
  assert.equal(keys['imatrix.chunk_size'], '64');
  const r = quantize('--type', 'Q3_K_M', mini, to('q3i.gguf'), '--imatrix', to('im.gguf'));
  assert.deepEqual(r.tensors.filter((t) => !t.has_importance && t.to !== 'F32').map((t) => t.name), ['token_embd.weight']);
  const written = metadata(to('q3i.gguf'));
  assert.match(written['quantize.imatrix.file'], /im\.gguf/);
  assert.match(written['quantize.imatrix.dataset'], /heldout/);
  assert.equal(written['quantize.imatrix.entries_count'], '101');
  // The bytes of both backends' importance give the same errors but for a code here and there.
  const ref = quantize('--type', 'Q3_K_M', mini, to('q3r.gguf'), '--imatrix', to('im-ref.gguf'));
  for (const [i, t] of r.tensors.entries())
    assert.ok(Math.abs(t.rel_rms_error - ref.tensors[i].rel_rms_error) < 1e-4, t.name);
  const without = quantize('--type', 'Q3_K_M', mini, to('q3.gguf'));
  assert.ok(r.tensors.every((t, i) => t.to !== 'Q3_K' || t.rel_rms_error !== without.tensors[i].rel_rms_error || !t.has_importance));
});

test('importance: what is missing is told, what belongs to another model is refused', () => {
  evaluate(mini, '--perplexity', heldout, '--limit', '2', '--context', '64', '--save-imatrix', to('few.gguf'));
  const r = quantize('--type', 'Q4_0', mini, to('few-q4.gguf'), '--imatrix', to('few.gguf'));
  assert.match(r.notes, /importance: blk\.1\.ffn_up_exps\.weight: \d of 8 matrices were never used by the text/);
  refuse(1, /importance of output\.weight: expected 64 columns of 1 matrices, found 256 of 1/,
    'quantize', '--type', 'Q8_0', v3, '--dry-run', '--imatrix', to('few.gguf'));
  refuse(1, /mini-bf16\.gguf: general\.type: expected imatrix, found/,
    'quantize', '--type', 'Q4_0', mini, '--dry-run', '--imatrix', mini);
  writeFileSync(to('text.gguf'), 'no matrix at all, but a text that is long enough to be looked at');
  refuse(1, /text\.gguf: expected an importance matrix/, 'quantize', '--type', 'Q4_0', mini, '--dry-run', '--imatrix', to('text.gguf'));
  refuse(2, /few\.gguf: expected another file than what is read/, 'quantize', '--type', 'Q4_0', mini, to('few.gguf'), '--force', '--imatrix', to('few.gguf'));
  refuse(1, /mini-bf16\.gguf: exists, and is no importance matrix/, 'eval', mini, '--perplexity', heldout, '--limit', '2', '--save-imatrix', mini);
  refuse(1, /none\/im\.gguf: cannot create a file there: No such file/, 'eval', mini, '--perplexity', heldout, '--save-imatrix', to('none/im.gguf')); // before the work
  evaluate(mini, '--perplexity', heldout, '--limit', '2', '--context', '64', '--save-imatrix', to('few.gguf')); // again
  refuse(2, /--save-imatrix needs --perplexity/, 'eval', mini, '--save-imatrix', to('x.gguf'), '--plan');
});

test('a quantised source is refused unless it is asked for', () => {
  done('quantize', '--type', 'Q8_0', mini, to('q8.gguf'));
  refuse(2, /q8\.gguf: tensor token_embd\.weight: expected weights that are not quantised, found Q8_0 \(--allow-requantize/,
    'quantize', '--type', 'Q4_K', to('q8.gguf'), to('again.gguf'));
  assert.ok(!existsSync(to('again.gguf')));
  done('quantize', '--type', 'Q4_K', to('q8.gguf'), to('again.gguf'), '--allow-requantize');
  assert.equal(quantize('--type', 'Q8_0', to('q8.gguf'), '--dry-run').bits_per_weight.toFixed(2), '8.53');
  // Decoded and encoded again a Q8_0 file is the same weights.
  done('convert', to('q8.gguf'), to('f32.gguf'), '--outtype', 'f32');
  done('quantize', '--type', 'Q8_0', to('f32.gguf'), to('q8-again.gguf'));
  const hash = (f) => JSON.parse(done('inspect', to(f), '--json')).hash;
  assert.equal(hash('q8-again.gguf'), hash('q8.gguf'));
});

test('the table of docs/precision.md can be made again', () => {
  const r = spawnSync(process.execPath, [path.join(source, 'tools/format_table.mjs'), '--bin', bin, '--types', 'Q4_0,Q3_K_S',
    '--limit', '40', '--ref-limit', '10', '--calibration-limit', '40', '--json', to('table.json')], { encoding: 'utf8' });
  assert.equal(r.status, 0, r.stderr);
  const table = JSON.parse(readFileSync(to('table.json')));
  assert.deepEqual(table.tables.map((t) => t.rows.map((x) => x.type)), [['Q4_0'], ['Q3_K_S']]);
  assert.match(r.stdout, /\| Q4_0 \| 4\.53 \| 9\.7 MB \| Q4_0 100 % \| /);
  assert.match(r.stdout, /\| Q3_K_S \| 3\.\d\d \| \d\.\d MB \| Q3_K \d\d %, Q6_K 6 %, Q4_0 \d+ % \| /);
  for (const { rows } of table.tables) // ref against cpu: activations of 8 bits cost less than the weights' own rounding
    for (const row of rows) assert.ok(row.ref.at(-1).kl_mean < 0.5 * Math.min(row.plain.kl_mean, row.weighted.kl_mean), JSON.stringify(row));
});

test('usage', () => {
  refuse(2, /expected --type/, 'quantize', mini, to('x.gguf'));
  refuse(2, /expected MODEL and TARGET, found 1/, 'quantize', '--type', 'Q4_K', mini);
  for (const name of ['q9_z', ''])
    refuse(1, new RegExp(`quantisation type "${name}": expected one of Q8_0, Q6_K, .*Q2_K`),
      'quantize', '--type', name, mini, to('x.gguf'));
  writeFileSync(to('kept.gguf'), 'precious');
  refuse(2, /kept\.gguf: exists already/, 'quantize', '--type', 'Q4_K', v3, to('kept.gguf'));
  assert.equal(readFileSync(to('kept.gguf'), 'utf8'), 'precious');
});
