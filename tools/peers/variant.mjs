// Variants of small Hugging Face folders for comparisons with llama.cpp (docs/peers.md).
//   node tools/peers/variant.mjs pad FROM TO COUNT
//     adds layers that change nothing: the last one's with the projections back into the stream zero.
//     llama.cpp takes a deepseek2 model for one without q-LoRA by its layer count (26, 27 or 48).
//   node tools/peers/variant.mjs v1 LLAMA V2 TO
//     deepseek v1, which transformers has no class for: the attention of a llama folder with the MoE
//     of a V2 folder of the same hidden size and vocabulary.
//   node tools/peers/variant.mjs permute FROM.gguf TO.gguf SEED
//     the same model (F32 weights) with its residual channels in another order: the same function, other
//     blocks for an encoder, so that luck can be told from an encoder's quality.
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

// Where the tensors of a GGUF lie.
function ggufTensors(bytes) {
  const width = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
  let at = 8, align = 32;
  const u32 = () => bytes.readUInt32LE((at += 4) - 4);
  const u64 = () => Number(bytes.readBigUInt64LE((at += 8) - 8));
  const text = () => {
    const n = u64();
    return bytes.toString('utf8', at, (at += n));
  };
  const skip = (type) => {
    if (type === 8) text();
    else if (type === 9) for (let item = u32(), n = u64(); n > 0; n--) skip(item);
    else at += width[type];
  };
  const nTensor = u64(), tensors = [];
  for (let n = u64(); n > 0; n--) {
    const key = text(), type = u32();
    if (key === 'general.alignment') align = bytes.readUInt32LE(at);
    skip(type);
  }
  for (let i = 0; i < nTensor; i++) {
    const name = text(), ne = Array.from({ length: u32() }, u64), type = u32(), offset = u64();
    if (type !== 0) throw new Error(`${name}: expected F32, found GGML type ${type}`);
    tensors.push({ name, ne, offset });
  }
  const start = Math.ceil(at / align) * align;
  return tensors.map((t) => ({ ...t, at: start + t.offset }));
}

function permute(from, to, seed) {
  const bytes = readFileSync(from), tensors = ggufTensors(bytes);
  const d = tensors.find((t) => t.name === 'output_norm.weight').ne[0];
  const order = Array.from({ length: d }, (_, i) => i);
  let state = Number(seed);
  for (let i = d - 1; i > 0; i--) {
    state = (state * 1103515245 + 12345) % 2147483648;
    const k = Math.floor((state / 2147483648) * (i + 1));
    [order[i], order[k]] = [order[k], order[i]];
  }
  const writes = /(attn_output|ffn_down\w*)\.weight$/; // rows of these are channels, of the others columns
  const reads = /^(token_embd|output|output_norm)\.weight$|\.(attn_norm|ffn_norm|attn_q|attn_q_a|attn_kv_a_mqa|attn_k|attn_v|ffn_gate\w*|ffn_up\w*)\.weight$/;
  for (const { name, ne, at } of tensors) {
    const n = ne.reduce((a, b) => a * b), x = bytes.subarray(at, at + 4 * n), old = Buffer.from(x);
    const unit = writes.test(name) ? 4 * ne[0] : 4; // bytes of what is moved
    if (!writes.test(name) && !reads.test(name)) continue;
    for (let block = 0; block < x.length; block += unit * d)
      for (let i = 0; i < d; i++) old.copy(x, block + i * unit, block + order[i] * unit, block + (order[i] + 1) * unit);
  }
  writeFileSync(to, bytes);
}

const [way, ...args] = process.argv.slice(2);
({ pad, v1, permute })[way](...args);
