// Writes tests/golden/tokenizer/chat_v31.jsonl: random conversations and their ids.
//     cd build/release/npm/tokenizer    (after ctest -R npm_tokenizer has installed the packages)
//     HADAL_SOURCE_DIR=../../../.. node make_chat_golden.mjs > chat_v31.jsonl
// The official Jinja template of tokenizer_config.json is rendered by @huggingface/jinja with a
// placeholder for each message's text. Markers then become their added tokens, and the joined texts
// between them are encoded by the reference engine without added tokens, so that markup in a
// message is plain text; where no message holds markup the ids are also compared with the engine's
// own of the plainly rendered template.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Template } from '@huggingface/jinja';
import engine from '@anush008/tokenizers';

const golden = path.join(process.env.HADAL_SOURCE_DIR, 'tests/golden/tokenizer');
const read = (name) => JSON.parse(readFileSync(path.join(golden, name), 'utf8'));
const json = read('mini_tokenizer.json');
const config = read('mini_tokenizer_config.json');
const template = new Template(config.chat_template);
const withAdded = engine.Tokenizer.fromString(JSON.stringify(json));
const plain = engine.Tokenizer.fromString(JSON.stringify({ ...json, added_tokens: [] }));
const idOf = new Map(json.added_tokens.map((t) => [t.content, t.id]));

let state = 20251129;
const below = (n) => {
  state = (state * 1103515245 + 12345) % 2147483648;
  return Math.floor((state / 2147483648) * n);
};
const pick = (list) => list[below(list.length)];

const words = ['Hello', ' world', ' 12345', '\n', '\n\n', '  ', '!', ' don\'t', ' \u4f60\u597d', '\u3001', ' caf\u00e9', '\ud83d\ude00',
  '\t', ' {"a": 1}', '<', '>', ' <b>', '\u0301', 'def f(x):\n    return x', '\u0000', '\u200b'];
const markup = ['<\uff5cUser\uff5c>', '<\uff5cAssistant\uff5c>', '<think>', '</think>', '<\uff5cend\u2581of\u2581sentence\uff5c>',
  '<\uff5ctool\u2581output\u2581begin\uff5c>', '<\uff5cbegin\u2581of\u2581sentence\uff5c>'];

function text(withMarkup) {
  let s = '';
  for (let n = below(8); n > 0; n--) s += withMarkup && below(4) === 0 ? pick(markup) : pick(words);
  return s;
}

function conversation(withMarkup) {
  const messages = [];
  for (let n = 1 + below(7); n > 0; n--) {
    const role = pick(['system', 'user', 'user', 'user', 'assistant', 'assistant', 'tool']);
    let content = text(withMarkup);
    if (role === 'assistant' && below(3) === 0) content = `${pick(['', '<think>'])}${text(false)}</think>${content}`;
    messages.push({ role, content });
  }
  return messages;
}

const render = (messages, thinking) =>
  template.render({ messages, thinking, add_generation_prompt: true, bos_token: config.bos_token });
const encode = async (t, s) => [...(await t.encode(s, null, { addSpecialTokens: false })).getIds()];

const escaped = (s) => s.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
const parts = new RegExp(`(\uE000\\d+\uE000|${[...idOf.keys()].map(escaped).join('|')})`);

// What the template does to a text happens before the placeholder stands for it.
const kept = (m) => (m.role === 'assistant' && m.content.includes('</think>') ? m.content.slice(m.content.indexOf('</think>') + 8) : m.content);

async function idsOf(messages, thinking, continueFinal) {
  let rendered = render(messages.map((m, i) => ({ ...m, content: `\uE000${i}\uE000` })), thinking);
  if (continueFinal) {
    assert(rendered.endsWith(config.eos_token));
    rendered = rendered.slice(0, -config.eos_token.length);
  }
  const ids = [];
  let gathered = '';
  const flush = async () => {
    if (gathered) ids.push(...(await encode(plain, gathered)));
    gathered = '';
  };
  for (const part of rendered.split(parts)) {
    if (idOf.has(part)) {
      await flush();
      ids.push(idOf.get(part));
    } else if (/^\uE000\d+\uE000$/.test(part)) {
      gathered += kept(messages[Number(part.slice(1, -1))]);
    } else {
      gathered += part;
    }
  }
  await flush();
  return ids;
}

let nCompared = 0;
for (let i = 0; i < 400; ) {
  const withMarkup = i % 2 === 1;
  const thinking = below(2) === 1;
  const messages = conversation(withMarkup);
  const continueFinal = messages.at(-1).role === 'assistant';
  const ids = await idsOf(messages, thinking, continueFinal);
  if (!withMarkup) {
    const whole = await encode(withAdded, render(messages, thinking));
    assert.deepEqual(ids, continueFinal ? whole.slice(0, -1) : whole);
    nCompared++;
  }
  console.log(JSON.stringify({ messages, thinking, continue_final: continueFinal, ids }));
  i++;
}
console.error(`${nCompared} conversations equal the engine's ids of the rendered template`);
