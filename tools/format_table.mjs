// What each tensor format and each mix costs the embedded model: size, perplexity and divergence from its
// BF16 weights on held-out text, without and with an importance matrix, and what the cpu backend adds to ref, with
// activations of 16 bits (--dtype float32) and as it is by default.
// Usage: node tools/format_table.mjs [--bin build/release/hadal] [--limit N] [--ref-limit N] [--types A,B] [--json FILE]
// Prints the tables of docs/precision.md. Importance is measured on the rendered items of eval_items.jsonl.gz,
// which are none of heldout.txt. All windows: context 512, stride 511.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { gunzipSync } from 'node:zlib';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const pure = ['Q8_0', 'Q6_K', 'Q5_K', 'Q5_1', 'Q5_0', 'Q4_K', 'Q4_1', 'Q4_0', 'IQ4_NL', 'IQ4_XS', 'MXFP4', 'Q3_K', 'Q2_K', 'IQ2_XXS'];
const mixes = ['Q5_K_M', 'Q5_K_S', 'Q4_K_M', 'Q4_K_S', 'IQ4_NL', 'IQ4_XS', 'MXFP4_MOE', 'Q3_K_L', 'Q3_K_M', 'Q3_K_S', 'Q2_K', 'IQ2_XXS'];
const { values: o } = parseArgs({ options: {
  bin: { type: 'string', default: path.join(root, 'build/release/hadal') },
  limit: { type: 'string', default: '6000' },
  'ref-limit': { type: 'string', default: '200' },
  'calibration-limit': { type: 'string', default: '30000' },
  types: { type: 'string' },
  json: { type: 'string' },
} });
const mini = path.join(root, 'models/mini/mini-bf16.gguf');
const golden = (name) => path.join(root, 'tests/golden/mini', name);
const folder = mkdtempSync(path.join(tmpdir(), 'hadal-formats-'));
const at = (name) => path.join(folder, name);
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
process.on('SIGINT', () => process.exit(1));

const hadal = (...args) =>
  JSON.parse(execFileSync(o.bin, [...args, '--json'], { encoding: 'utf8', maxBuffer: 1 << 26, stdio: ['ignore', 'pipe', 'inherit'] }));
const score = (model, limit, ...args) => hadal('eval', model, '--perplexity', golden('heldout.txt'), '--context', '512',
  '--stride', '511', '--limit', limit, '--kv-cache-dtype', 'f32', ...args).perplexity;

// The items as their model sees them.
const items = gunzipSync(readFileSync(golden('eval_items.jsonl.gz'))).toString().trim().split('\n').map((l) => JSON.parse(l));
writeFileSync(at('calibration.txt'), items.map((i) => i.rendered.prompt + i.rendered.answer).join('\n'));
hadal('eval', mini, '--perplexity', at('calibration.txt'), '--context', '512', '--limit', o['calibration-limit'],
  '--save-imatrix', at('imatrix.gguf'));
const base = score(mini, o.limit, '--save-logits', at('base'));

// "Q4_K 87 %, Q5_0 9 %": shares of the weights, F32 left out.
function formats(tensors) {
  const n = {};
  let all = 0;
  for (const t of tensors.filter((x) => x.to !== 'F32')) {
    n[t.to] = (n[t.to] ?? 0) + t.weights;
    all += t.weights;
  }
  return Object.entries(n).sort((a, b) => b[1] - a[1]).map(([f, k]) => `${f} ${Math.round(100 * k / all)} %`).join(', ');
}

function measure(type, ...args) {
  const one = (...more) => {
    const made = hadal('quantize', '--type', type, ...args, ...more, '--force', mini, at('model.gguf'));
    return { made, scored: score(at('model.gguf'), o.limit, '--against', at('base')) };
  };
  const weighted = one('--imatrix', at('imatrix.gguf')), plain = one();
  const exact = score(at('model.gguf'), o.limit, '--dtype', 'float32');
  score(at('model.gguf'), o['ref-limit'], '--backend', 'ref', '--save-logits', at('ref'));
  const ref = ['float32', 'auto'].map((dtype) => score(at('model.gguf'), o['ref-limit'], '--dtype', dtype, '--against', at('ref')));
  process.stderr.write(`${type} ${args.join(' ')}: ${plain.scored.kl_mean}, ${weighted.scored.kl_mean}\n`);
  return { type, bits_per_weight: plain.made.bits_per_weight, tensor_bytes: plain.made.tensor_bytes,
    formats: formats(plain.made.tensors), plain: plain.scored, weighted: weighted.scored, exact, ref };
}

const kl = (s) => `${s.kl_mean.toFixed(3)} ± ${s.kl_mean_error.toFixed(3)}`;
const percent = (x) => `${(100 * x).toFixed(1)} %`;
const row = (r) => `| ${r.type} | ${r.bits_per_weight.toFixed(2)} | ${(r.tensor_bytes / 1e6).toFixed(1)} MB | ${r.formats} | ${
  r.plain.perplexity.toFixed(2)} | ${kl(r.plain)} | ${r.plain.kl_median.toFixed(3)} | ${r.plain.kl_99.toFixed(2)} | ${percent(r.plain.top1_agreement)} | ${
  r.weighted.perplexity.toFixed(2)} | ${kl(r.weighted)} | ${percent(r.weighted.top1_agreement)} | ${
  r.exact.perplexity.toFixed(2)} (x ${(r.plain.perplexity / r.exact.perplexity).toFixed(4)}) | ${r.ref.map((x) => x.kl_mean.toExponential(0)).join(' | ')} |`;
const head = ['type', 'bits a weight', 'tensors', 'formats used', 'perplexity', 'mean KL', 'median', '99 %', 'same best token',
  'with importance: perplexity', 'mean KL', 'same best token', '`--dtype float32`: perplexity (x what auto makes of it)',
  '`ref` against it: mean KL', '`ref` against auto'];

const chosen = o.types?.split(',');
const tables = [['One format for every matrix (`--pure`)', pure, ['--pure']], ['Mixes', mixes, []]];
const results = { base, tables: [] };
console.log(`BF16 weights: perplexity ${base.perplexity.toFixed(2)} over ${base.tokens} tokens; ref against cpu over ${o['ref-limit']}.`);
for (const [title, types, args] of tables) {
  const rows = types.filter((t) => !chosen || chosen.includes(t)).map((t) => measure(t, ...args));
  console.log(`\n${title}\n\n| ${head.join(' | ')} |\n|${'---|'.repeat(head.length)}\n${rows.map(row).join('\n')}`);
  results.tables.push({ title, rows });
}
if (o.json) writeFileSync(o.json, JSON.stringify(results, null, 1));
