// `hadal convert` and `hadal inspect` as a person runs them: what they say, what they refuse, and
// that a target never appears half-written.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { cpSync, existsSync, linkSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, symlinkSync,
  writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { bin, done, folder, refuse, run, source, to } from './program.mjs';

const v3 = path.join(source, 'tests/golden/families/v3');
const pair = path.join(source, 'tests/golden/families/v3-yarn-mscale-pair');
const mini = path.join(source, 'models/mini/mini-bf16.gguf');
const look = (...args) => JSON.parse(done('inspect', ...args, '--json'));

test('a folder becomes a GGUF of the same model', () => {
  const said = done('convert', pair, to('pair.gguf'));
  assert.match(said, /routed experts +9 +442 k +BF16 +BF16/);
  assert.match(said, /norms +17 +864 +BF16 +F32/);
  assert.match(said, /tokenizer: none/);
  assert.match(done('inspect', pair), /YaRN \d+ over \d+ \(mscale 0\.8, 1\.2\)/);
  assert.equal(look(to('pair.gguf'), '--metadata').metadata['tokenizer.ggml.model'], '"none"');
  refuse(1, /pair\.gguf: tokenizer\.ggml\.model: expected gpt2, found none/,
    'tokenize', '--tokenizer', to('pair.gguf'), 'x');
  const a = look(pair), b = look(to('pair.gguf'), '--tensors');
  assert.deepEqual(b.hparams, a.hparams);
  assert.equal(b.hparams.yarn.mscale, 0.800000012);
  assert.equal(b.hparams.yarn.mscale_all_dim, 1.20000005);
  assert.equal(b.name, 'v3-yarn-mscale-pair');
  assert.equal(b.weights.weights, a.weights.weights);
  assert.ok(b.tensors.every((t) => t.used));
  assert.deepEqual(b.tensors.find((t) => t.name === 'blk.1.attn_k_b.weight').ne, [24, 32, 4]);
});

test('the same command gives the same bytes, and the name can be chosen', () => {
  for (const name of ['a', 'b']) done('convert', v3, to(`${name}.gguf`), '--name', 'Small One');
  assert.ok(readFileSync(to('a.gguf')).equals(readFileSync(to('b.gguf'))));
  assert.equal(look(to('a.gguf')).name, 'Small One');
});

test('the embedded model can be written too', () => {
  done('convert', 'mini', to('embedded.gguf'));
  assert.equal(look(to('embedded.gguf')).hash, look('mini').hash);
  assert.match(done('quantize', '--type', 'Q4_K_M', 'mini', '--dry-run'), /Q4_K_M: 5\.01 bits/);
});

test('what becomes F16 is said once, with the reason', () => {
  const said = done('quantize', '--type', 'q8_0', v3, to('q8.gguf'));
  assert.equal(said.match(/attn_k_b\.weight becomes F16: rows of 24 are no multiple of 32/g).length, 1);
  const { formats } = look(to('q8.gguf'));
  assert.deepEqual(Object.keys(formats), ['F32', 'F16', 'Q8_0']);
});

test('tokenizer, template and sampling go along, from GGUF to GGUF too', () => {
  const metadata = (file) => look(file, '--metadata', '--no-hash').metadata;
  done('quantize', '--type', 'Q8_0', mini, to('mini-q8.gguf'));
  const a = metadata(mini), b = metadata(to('mini-q8.gguf'));
  assert.equal(a['general.sampling.temp'], '0.6');
  assert.equal(a['tokenizer.ggml.tokens'], '[4096 strings]');
  assert.match(a['tokenizer.chat_template'], /add_generation_prompt/);
  for (const key of Object.keys(a))
    if (key !== 'general.file_type') assert.equal(b[key], a[key], key);
  assert.equal(b['general.file_type'], '7');
  assert.equal(b['general.quantization_version'], '2');
  const ids = (file) => spawnSync(bin, ['tokenize', '--tokenizer', file, '--jsonl'],
    { input: '{"text": "Hello <｜User｜> 你好"}\n', encoding: 'utf8' }).stdout;
  assert.equal(ids(to('mini-q8.gguf')), ids(mini));
  assert.match(ids(mini), /ids/);
});

test('an existing target is kept unless --force says otherwise', () => {
  writeFileSync(to('kept.gguf'), 'precious');
  refuse(2, /kept\.gguf: exists already \(--force replaces it\)/, 'convert', v3, to('kept.gguf'));
  assert.equal(readFileSync(to('kept.gguf'), 'utf8'), 'precious');
  done('convert', v3, to('kept.gguf'), '--force');
  assert.equal(readFileSync(to('kept.gguf')).subarray(0, 4).toString(), 'GGUF');
  mkdirSync(to('folder'));
  refuse(2, /folder: expected the name of a file, found a folder/, 'convert', v3, to('folder'), '--force');
});

test('what is read is never replaced, by any name, --force or not', () => {
  const copy = to('source');
  cpSync(v3, copy, { recursive: true });
  done('convert', copy, to('own.gguf'));
  linkSync(to('own.gguf'), to('hard.gguf'));
  symlinkSync('own.gguf', to('soft.gguf'));
  const bytes = readFileSync(to('own.gguf'));
  for (const name of ['own.gguf', '../' + path.basename(folder) + '/own.gguf', 'hard.gguf', 'soft.gguf'])
    for (const force of [[], ['--force']]) {
      refuse(2, /expected another file than what is read, found .*own\.gguf itself/, 'convert', to('own.gguf'), folder + '/' + name, ...force);
      refuse(2, /expected another file than what is read/, 'quantize', '--type', 'q4_0', to('own.gguf'), folder + '/' + name, ...force);
    }
  assert.ok(bytes.equals(readFileSync(to('own.gguf'))));
  for (const name of ['model.safetensors', 'config.json'])
    refuse(2, new RegExp(`source/${name}: expected another file`), 'convert', copy, path.join(copy, name), '--force');
  done('convert', copy, path.join(copy, 'model.gguf'));
  done('convert', copy, path.join(copy, 'model.gguf'), '--force');
});

test('refusals are one line that names what is wrong', () => {
  refuse(1, /nothing-here: no such file or folder/, 'convert', to('nothing-here'), to('x.gguf'));
  refuse(1, /none\/x\.gguf: cannot create/, 'convert', v3, to('none/x.gguf'));
  refuse(2, /expected SOURCE and TARGET, found 1/, 'convert', v3);
  refuse(1, /mini-bf16|README\.md.*GGUF/, 'convert', path.join(source, 'README.md'), to('x.gguf'));
  const r = run('convert', v3, to('x.gguf'), '--outtype', 'q8_0'); // quantize's
  assert.equal(r.status, 2);
  assert.match(r.stderr, /outtype/);
  assert.ok(!existsSync(to('x.gguf')));
});

test('a source that fails half-way leaves nothing', () => {
  const bad = to('bad');
  cpSync(v3, bad, { recursive: true });
  const file = path.join(bad, 'model.safetensors');
  const bytes = readFileSync(file), n = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + n).toString());
  bytes.writeUInt16LE(0x7f80, 8 + n + header['model.layers.3.self_attn.o_proj.weight'].data_offsets[0]);
  writeFileSync(file, bytes);
  const before = readdirSync(folder);
  refuse(1, /tensor blk\.3\.attn_output\.weight: row 0: expected finite weights, found inf/,
    'convert', bad, to('half.gguf'), '--outtype', 'f32');
  refuse(1, /tensor blk\.3\.attn_output\.weight: row 0: expected finite weights, found inf/,
    'quantize', bad, to('half.gguf'), '--type', 'q8_0');
  assert.deepEqual(readdirSync(folder), before);
});

test('a limit of file sizes is told and leaves nothing', () => {
  const before = readdirSync(folder);
  for (const words of [['convert', mini, to('large.gguf')], ['eval', mini, '--perplexity',
    path.join(source, 'tests/golden/mini/heldout.txt'), '--limit', '200', '--save-logits', to('large.logits')]]) {
    const r = spawnSync('sh', ['-c', 'ulimit -f 2000; exec "$0" "$@"', bin, ...words], { encoding: 'utf8' });
    assert.equal(r.status, 1, r.stderr);
    assert.match(r.stderr, /^hadal \w+: .*large\.(gguf|logits): cannot write: File too large\n$/);
  }
  assert.deepEqual(readdirSync(folder), before);
});

test('an interrupted run leaves nothing', async () => {
  // A larger model of the same kind, so that there is time to interrupt: the vocabulary grown.
  const big = to('big');
  cpSync(v3, big, { recursive: true });
  const config = JSON.parse(readFileSync(path.join(big, 'config.json'), 'utf8'));
  const file = path.join(big, 'model.safetensors');
  const bytes = readFileSync(file), n = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + n).toString());
  config.vocab_size = 400000;
  const parts = [];
  let at = 0;
  for (const [name, t] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const [from, end] = t.data_offsets;
    let data = bytes.subarray(8 + n + from, 8 + n + end);
    if (t.shape[0] === 320) {
      data = Buffer.alloc(config.vocab_size * 64 * 2);
      t.shape[0] = config.vocab_size;
    }
    t.data_offsets = [at, at += data.length];
    parts.push(data);
  }
  const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(file, Buffer.concat([length, text, ...parts]));
  writeFileSync(path.join(big, 'config.json'), JSON.stringify(config));
  const before = readdirSync(folder);
  const child = spawn(bin, ['quantize', big, to('cut.gguf'), '--type', 'q4_k']);
  const ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve(signal ?? code)));
  const sees = () => readdirSync(folder).some((f) => f.startsWith('cut.gguf.'));
  while (!sees() && child.exitCode === null) await new Promise((r) => setTimeout(r, 1));
  child.kill('SIGINT');
  assert.equal(await ended, 'SIGINT');
  assert.deepEqual(readdirSync(folder), before);
});

test('inspect shows the embedded model', () => {
  const said = done('inspect');
  assert.match(said, /architecture +deepseek2: 17\.1 M weights, 7\.79 M of them read for a token/);
  assert.match(said, /KV in BF16 +2304 B a token/);
  assert.match(said, /content hash +[0-9a-f]{32}/);
  const j = look();
  assert.equal(j.weights.weights, 17092920);
  assert.equal(j.hash, look(mini).hash);
  assert.equal(look(mini, '--no-hash').hash, null);
  assert.equal(j.file_bytes + 200000 > statSync(mini).size, true);
  const { rank } = look('--tensor-parallel-size', '4', '--enable-expert-parallel', '--no-hash');
  assert.equal(rank.of, 4);
  assert.equal(rank.weight_bytes < j.weights.bytes / 2 && rank.weight_bytes > j.weights.bytes / 4, true);
  refuse(2, /7 ranks: 8 attention heads do not divide/, 'inspect', '--no-hash', '--tensor-parallel-size', '7');
});

// The nearest E4M3 code of a number up to 448.
function e4m3(x) {
  const a = Math.min(Math.abs(x), 448), e = Math.max(Math.floor(Math.log2(a || 1e-9)), -6);
  const m = Math.round(a / 2 ** (e - 3)); // 8 to 16, below 8 when subnormal
  const code = m < 8 ? m : Math.min(((e + 7) << 3) + (m - 8), 0x7e);
  return code | (x < 0 ? 0x80 : 0);
}

// A BF16 folder with its linear layers in FP8, a scale for each 128 by 128.
function toFp8(from, folderTo, { drop } = {}) {
  const file = readFileSync(path.join(from, 'model.safetensors')), n = Number(file.readBigUInt64LE(0));
  const old = JSON.parse(file.subarray(8, 8 + n)), header = {}, parts = [];
  let at = 0;
  const add = (name, dtype, shape, bytes) => {
    header[name] = { dtype, shape, data_offsets: [at, at += bytes.length] };
    parts.push(bytes);
  };
  for (const [name, t] of Object.entries(old)) {
    if (name === '__metadata__') continue;
    const bytes = file.subarray(8 + n + t.data_offsets[0], 8 + n + t.data_offsets[1]);
    if (!/_proj(_with_mqa)?\.weight$/.test(name)) {
      add(name, t.dtype, t.shape, bytes);
      continue;
    }
    const [rows, cols] = t.shape, grid = [Math.ceil(rows / 128), Math.ceil(cols / 128)];
    const value = (i) => new Float32Array(new Uint32Array([bytes.readUInt16LE(2 * i) << 16]).buffer)[0];
    const largest = new Float32Array(grid[0] * grid[1]);
    const block = (i) => Math.floor(Math.floor(i / cols) / 128) * grid[1] + Math.floor((i % cols) / 128);
    for (let i = 0; i < rows * cols; i++) largest[block(i)] = Math.max(largest[block(i)], Math.abs(value(i)));
    const scale = largest.map((a) => a / 448), code = Buffer.alloc(rows * cols);
    for (let i = 0; i < code.length; i++) code[i] = e4m3(value(i) / scale[block(i)]);
    add(name, 'F8_E4M3', t.shape, code);
    if (name !== drop) add(`${name}_scale_inv`, 'F32', grid, Buffer.from(scale.buffer));
  }
  const text = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  mkdirSync(folderTo);
  writeFileSync(path.join(folderTo, 'model.safetensors'), Buffer.concat([length, text, ...parts]));
  const config = JSON.parse(readFileSync(path.join(from, 'config.json')));
  config.quantization_config = { quant_method: 'fp8', fmt: 'e4m3', weight_block_size: [128, 128] };
  writeFileSync(path.join(folderTo, 'config.json'), JSON.stringify(config));
}

test('an FP8 folder: its weights, what becomes of them, what is missing', () => {
  toFp8(v3, to('fp8'));
  const score = (model) => JSON.parse(done('eval', model, '--backend', 'ref', '--cases',
    path.join(v3, 'cases.json'), '--json')).cases[0];
  const fp8 = score(to('fp8'));
  // of logits of deviation 1.6: three bits of a weight show in a random model; wrong scales give 1.8
  assert.ok(fp8.logit_mean_error > 0.01 && fp8.logit_mean_error < 0.6, JSON.stringify(fp8));
  assert.match(done('convert', to('fp8'), to('fp8.gguf')), /attention +\d+ +[\d.]+ k +F8_E4M3 +BF16/);
  done('convert', to('fp8'), to('fp8-f32.gguf'), '--outtype', 'f32');
  assert.equal(score(to('fp8-f32.gguf')).logits_hash, fp8.logits_hash); // every bit
  assert.notEqual(score(to('fp8.gguf')).logits_hash, fp8.logits_hash);
  assert.ok(look(to('fp8'), '--tensors').tensors.every((t) => t.used));
  const drop = 'model.layers.2.self_attn.o_proj.weight';
  toFp8(v3, to('half'), { drop });
  refuse(1, new RegExp(`model.safetensors: tensor ${drop}: F8_E4M3: expected its scales ${drop}_scale_inv \\[1, 1\\], found none`),
    'convert', to('half'), to('x.gguf'));
  assert.ok(!existsSync(to('x.gguf')));
});

test('a model of another content hash is refused with both', () => {
  const { hash } = look(v3);
  assert.equal(hash, '5193b2379613c0d744b7b904d05ed342'); // what operators have written down stays
  const other = '0123456789abcdef0123456789ABCDEF';
  const cases = path.join(v3, 'cases.json');
  const commands = [['inspect', v3], ['eval', v3, '--cases', cases], ['run', '-m', v3, '--raw', '-p', 'x'],
    ['serve', '-m', v3, '--port', '0', '--log-level', 'warn']];
  for (const command of commands)
    refuse(1, new RegExp(`v3: content hash: expected ${other}, found ${hash}$`, 'm'), ...command,
      '--expect-hash', other);
  refuse(2, /expected 32 hex digits, found "12"/, 'inspect', v3, '--expect-hash', '12');
  done('inspect', v3, '--no-hash', '--expect-hash', hash.toUpperCase());
  done('eval', v3, '--plan', '--expect-hash', hash);
});

test('inspect says which chat encoding a model has, and why', () => {
  assert.match(done('inspect', '--no-hash'), /chat encoding +deepseek_v3\.1, for V3\.1, .*: its template writes <\/think>/);
  assert.equal(look(v3, '--no-hash').chat_encoding, null);
  assert.equal(look(v3, '--no-hash').chat_encoding_why, 'the model has no tokenizer');
  const golden = (name) => path.join(source, 'tests/golden/tokenizer', name);
  const model = to('chat-model');
  mkdirSync(model);
  for (const name of ['config.json', 'model.safetensors']) cpSync(path.join(v3, name), path.join(model, name));
  cpSync(golden('mini_tokenizer.json'), path.join(model, 'tokenizer.json'));
  const found = (files) => {
    for (const [name, text] of Object.entries(files)) writeFileSync(path.join(model, name), text);
    const j = look(model, '--no-hash');
    for (const name of Object.keys(files)) rmSync(path.join(model, name));
    return [j.chat_encoding, j.chat_encoding_why];
  };
  const r1 = "{{'<\uff5cUser\uff5c>'}}{{'</think>'}}{{'```json'}}", v2 = "{{'User: '}}{{'Assistant:'}}";
  assert.deepEqual(found({}), ['deepseek_r1', 'no template; it has the token <think>']);
  assert.equal(found({ 'tokenizer_config.json': readFileSync(golden('mini_tokenizer_config.json')) })[0], 'deepseek_v3.1');
  assert.equal(found({ 'tokenizer_config.json': JSON.stringify({ chat_template: [{ name: 'tool', template: r1 }, { name: 'default', template: v2 }] }) })[0], 'deepseek_v2');
  assert.equal(found({ 'chat_template.json': JSON.stringify({ chat_template: r1 }) })[0], 'deepseek_r1');
  assert.equal(found({ 'chat_template.jinja': r1, 'tokenizer_config.json': JSON.stringify({ chat_template: v2 }) })[0], 'deepseek_r1');
  assert.deepEqual(found({ 'chat_template.jinja': '<|im_start|>' }), [null, "its chat template is none of DeepSeek's"]);
  assert.match(found({ 'chat_template.json': '{' })[1], /chat_template\.json/);
  // Released files have a length of 10^30, written out.
  const endless = `{"model_max_length": 1000000000000000019884624838656, "chat_template": "${v2}"}`;
  assert.equal(found({ 'tokenizer_config.json': endless })[0], 'deepseek_v2');
  rmSync(path.join(model, 'tokenizer.json'));
  writeFileSync(path.join(model, 'tokenizer_config.json'), endless);
  assert.match(done('convert', model, to('endless.gguf')), /chat template: from tokenizer_config\.json/);
});

test('inspect shows what it can of a model that is not built', () => {
  const other = to('other');
  mkdirSync(other);
  writeFileSync(path.join(other, 'config.json'), '{"model_type": "mixtral"}');
  const header = Buffer.from('{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}');
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(path.join(other, 'model.safetensors'), Buffer.concat([length, header, Buffer.alloc(24)]));
  const r = run('inspect', other);
  assert.equal(r.status, 1);
  assert.match(r.stdout, /w +F32 +\[2, 3\] +24/);
  assert.match(r.stderr, /model_type: "mixtral" is not supported/);
  const j = JSON.parse(run('inspect', other, '--json').stdout);
  assert.match(j.error, /mixtral/);
  refuse(1, /nothing: no such file or folder/, 'inspect', to('nothing'));
});
