// Variants of small Hugging Face folders for comparisons with llama.cpp (docs/peers.md).
//   node tools/peers/variant.mjs pad FROM TO COUNT
//     adds layers that change nothing: the last one's with the projections back into the stream zero.
//     llama.cpp takes a deepseek2 model for one without q-LoRA by its layer count (26, 27 or 48).
//   node tools/peers/variant.mjs v1 LLAMA V2 TO
//     deepseek v1, which transformers has no class for: the attention of a llama folder with the MoE
//     of a V2 folder of the same hidden size and vocabulary.
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';

function read(folder) {
  const config = JSON.parse(readFileSync(path.join(folder, 'config.json'), 'utf8'));
  const bytes = readFileSync(path.join(folder, 'model.safetensors'));
  const start = 8 + Number(bytes.readBigUInt64LE(0)), tensors = new Map();
  for (const [name, t] of Object.entries(JSON.parse(bytes.subarray(8, start).toString('utf8'))))
    if (name !== '__metadata__')
      tensors.set(name, { ...t, data: bytes.subarray(start + t.data_offsets[0], start + t.data_offsets[1]) });
  return { config, tensors };
}

function write(folder, { config, tensors }) {
  const head = {}, size = Buffer.alloc(8);
  let at = 0;
  for (const [name, { dtype, shape, data }] of tensors)
    head[name] = { dtype, shape, data_offsets: [at, (at += data.length)] };
  const text = Buffer.from(JSON.stringify(head));
  size.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path.join(folder, 'model.safetensors'),
    Buffer.concat([size, text, ...[...tensors.values()].map((t) => t.data)]));
  writeFileSync(path.join(folder, 'config.json'), JSON.stringify(config));
}

function pad(from, to, count) {
  const { config, tensors } = read(from), last = config.num_hidden_layers - 1;
  for (const [name, t] of [...tensors]) {
    if (!name.startsWith(`model.layers.${last}.`)) continue;
    const data = /o_proj|down_proj/.test(name) ? Buffer.alloc(t.data.length) : t.data;
    for (let layer = last + 1; layer < Number(count); layer++)
      tensors.set(name.replace(`.${last}.`, `.${layer}.`), { ...t, data });
  }
  cpSync(from, to, { recursive: true });
  write(to, { config: { ...config, num_hidden_layers: Number(count) }, tensors });
}

function v1(llama, v2, to) {
  const a = read(llama), b = read(v2), n = Math.min(a.config.num_hidden_layers, b.config.num_hidden_layers);
  const isWanted = (name) => !/layers\.(\d+)\./.test(name) || Number(/layers\.(\d+)\./.exec(name)[1]) < n;
  const take = (from, isMlp) =>
    [...from.tensors].filter(([name]) => isWanted(name) && name.includes('.mlp.') === isMlp);
  const copied = ['intermediate_size', 'moe_intermediate_size', 'n_shared_experts', 'n_routed_experts',
    'num_experts_per_tok', 'first_k_dense_replace', 'moe_layer_freq', 'norm_topk_prob', 'scoring_func'];
  const config = { ...a.config, ...Object.fromEntries(copied.map((k) => [k, b.config[k]])),
    model_type: 'deepseek', num_hidden_layers: n };
  mkdirSync(to, { recursive: true });
  cpSync(path.join(v2, 'cases.json'), path.join(to, 'cases.json')); // for its prompts
  write(to, { config, tensors: new Map([...take(a, false), ...take(b, true)]) });
}

const [way, ...args] = process.argv.slice(2);
({ pad, v1 })[way](...args);
