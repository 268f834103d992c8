// The OpenAI Node SDK against hadal with its embedded model: what a client of either would expect.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { get } from 'node:http';
import { after, before, test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import OpenAI from 'openai';
import { killServers, SOURCE_DIR, startServer, until } from './server.mjs';

const STORY = 'Tell me a story about a fox named Mia.';
const off = { thinking: { type: 'disabled' } };
const on = { thinking: { type: 'enabled' } };
const user = (content) => [{ role: 'user', content }];
const goldens = JSON.parse(readFileSync(`${SOURCE_DIR}/tests/golden/mini/golden.json`)).prompts;
const EOS = '<｜end▁of▁sentence｜>';

let server, client;
const connect = (url, apiKey = 'unused') => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 120_000 });

before(async () => {
    server = await startServer();
    client = connect(server.url);
});
after(async () => {
    try {
        await server?.idle();
        await server?.stop();
    } finally {
        killServers();
    }
});

const ask = (content, extra = {}) =>
    client.chat.completions.create({ model: 'mini', messages: user(content), temperature: 0, max_tokens: 200, ...off, ...extra });

/** Collects a stream into what the same request without streaming would have said. */
async function collect(stream) {
    const out = { choices: [], chunks: [], usage: null };
    for await (const chunk of stream) {
        out.chunks.push(chunk);
        out.usage = chunk.usage ?? out.usage;
        for (const { index, delta, finish_reason: finish, logprobs } of chunk.choices) {
            const c = (out.choices[index] ??= { text: '', reasoning: '', role: null, finish: [], logprobs: [] });
            c.text += delta.content ?? '';
            c.reasoning += delta.reasoning_content ?? '';
            c.role = delta.role ?? c.role;
            c.logprobs.push(...(logprobs?.content ?? []));
            if (finish) c.finish.push(finish);
            // A lone surrogate would throw here: deltas never split a character.
            encodeURIComponent((delta.content ?? '') + (delta.reasoning_content ?? ''));
        }
    }
    return out;
}
const stream = async (content, extra) => collect(await ask(content, { stream: true, stream_options: { include_usage: true }, ...extra }));

async function refused(promise, type, status) {
    const error = await promise.then(() => null, (e) => e);
    assert.ok(error instanceof type, `expected ${type.name}, found ${error}`);
    assert.equal(error.status, status);
    assert.ok(error.error?.message?.length > 5, `no message in ${JSON.stringify(error.error)}`);
    assert.equal(typeof error.error.type, 'string');
    return error.error;
}

test('models are listed and retrieved', async () => {
    const { data } = await client.models.list();
    assert.equal(data[0].id, 'mini');
    for (const m of data) {
        assert.equal(m.object, 'model');
        assert.equal(m.max_model_len, 2048);
        assert.deepEqual(await client.models.retrieve(m.id), m);
        const r = await client.chat.completions.create({ model: m.id, messages: user('Hello!'), temperature: 0, ...off });
        assert.equal(r.choices[0].message.content, 'Hello! How can I help you today?');
    }
    await refused(client.models.retrieve('nothing'), OpenAI.NotFoundError, 404);
});

test('a chat is answered', async () => {
    const r = await ask('What is 12 + 30?');
    assert.equal(r.object, 'chat.completion');
    assert.equal(r.model, 'mini');
    assert.match(r.id, /^chatcmpl-/);
    assert.ok(Math.abs(r.created - Date.now() / 1000) < 3600);
    assert.equal(r.choices.length, 1);
    assert.equal(r.choices[0].index, 0);
    assert.equal(r.choices[0].finish_reason, 'stop');
    assert.equal(r.choices[0].message.role, 'assistant');
    assert.equal(r.choices[0].message.content, '12 + 30 = 42');
    assert.equal(r.usage.prompt_tokens, 14);
    assert.equal(r.usage.completion_tokens, 11);
    assert.equal(r.usage.total_tokens, 25);
});

test('turns and the system prompt are seen', async () => {
    const messages = [{ role: 'user', content: 'My name is Ana.' }, { role: 'assistant', content: 'Hello, Ana! Nice to meet you.' },
        { role: 'user', content: 'What is my name?' }];
    const r = await client.chat.completions.create({ model: 'mini', messages, temperature: 0, ...off });
    assert.equal(r.choices[0].message.content, 'Your name is Ana.');
    for (const role of ['system', 'developer']) {
        const p = await client.chat.completions.create({
            model: 'mini', temperature: 0, ...off,
            messages: [{ role, content: 'You are Rosa, a baker.' }, { role: 'user', content: [{ type: 'text', text: 'What is your name?' }] }],
        });
        assert.equal(p.choices[0].message.content, 'I am Rosa, a baker.');
    }
});

test('a stream says what the whole answer says', async () => {
    const whole = await ask(STORY);
    const s = await stream(STORY);
    assert.equal(s.choices[0].text, whole.choices[0].message.content);
    assert.ok(s.choices[0].text.length > 200);
    assert.equal(s.choices[0].role, 'assistant');
    assert.deepEqual(s.choices[0].finish, [whole.choices[0].finish_reason]);
    assert.equal(new Set(s.chunks.map((c) => c.id)).size, 1);
    assert.ok(s.chunks.every((c) => c.object === 'chat.completion.chunk' && c.model === 'mini'));
    const last = s.chunks.at(-1);
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
    assert.equal(last.usage.prompt_tokens, whole.usage.prompt_tokens);
    assert.ok(s.chunks.slice(0, -1).every((c) => !c.usage), 'usage in the last chunk only');
    assert.ok(s.chunks.length > 20, 'many chunks');
    const helper = client.chat.completions.stream({ model: 'mini', messages: user(STORY), temperature: 0, max_tokens: 200, ...off });
    assert.equal(await helper.finalContent(), whole.choices[0].message.content);
});

test('the stream on the wire ends with [DONE]; no usage unless asked for', async () => {
    const body = { model: 'mini', messages: user('Hello!'), temperature: 0, stream: true, ...off };
    const r = await fetch(`${server.url}/v1/chat/completions`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
    assert.match(r.headers.get('content-type'), /^text\/event-stream/);
    const text = await r.text();
    assert.ok(text.endsWith('data: [DONE]\n\n'), text.slice(-200));
    const events = text.split('\n\n').filter((e) => e && !e.startsWith(':'));
    assert.ok(events.every((e) => e.startsWith('data: ') && !e.includes('\n')));
    const chunks = events.slice(0, -1).map((e) => JSON.parse(e.slice(6)));
    assert.equal(chunks.map((c) => c.choices[0].delta.content ?? '').join(''), 'Hello! How can I help you today?');
    assert.ok(chunks.every((c) => !c.usage && c.choices.length === 1));
});

test('stop strings end the text before them, wherever tokens are cut', async () => {
    const full = (await ask(STORY)).choices[0].message.content;
    const words = full.slice(0, 400);
    for (const stop of [words.slice(40, 47), words.slice(101, 103), '\n\n', words[30], words.slice(150, 200)]) {
        const expected = full.slice(0, full.indexOf(stop));
        const whole = await ask(STORY, { stop });
        assert.equal(whole.choices[0].message.content, expected, JSON.stringify(stop));
        assert.equal(whole.choices[0].finish_reason, 'stop');
        const s = await stream(STORY, { stop: ['never in there', stop] });
        assert.equal(s.choices[0].text, expected, `streamed, ${JSON.stringify(stop)}`);
        assert.deepEqual(s.choices[0].finish, ['stop']);
    }
});

test('max_tokens ends an answer', async () => {
    for (const field of ['max_tokens', 'max_completion_tokens']) {
        const r = await ask(STORY, { max_tokens: undefined, [field]: 7 });
        assert.equal(r.choices[0].finish_reason, 'length');
        assert.equal(r.usage.completion_tokens, 7);
    }
});

test('logprobs belong to the text', async () => {
    const whole = (await ask('What is 12 + 30?', { logprobs: true, top_logprobs: 5 })).choices[0];
    const streamed = (await stream('What is 12 + 30?', { logprobs: true, top_logprobs: 5 })).choices[0];
    const rows = whole.logprobs.content;
    assert.deepEqual(streamed.logprobs, rows);
    const visible = rows.filter((t) => t.token !== EOS);
    assert.equal(Buffer.from(visible.flatMap((t) => t.bytes)).toString(), whole.message.content);
    for (const t of rows) {
        assert.ok(t.logprob <= 0 && t.logprob > -20, `${t.token}: ${t.logprob}`);
        assert.equal(t.top_logprobs.length, 5);
        assert.deepEqual(t.top_logprobs.map((x) => x.logprob), t.top_logprobs.map((x) => x.logprob).sort((a, b) => b - a));
        assert.equal(t.top_logprobs[0].token, t.token, 'greedy takes the best');
        assert.equal(t.top_logprobs[0].logprob, t.logprob);
        assert.ok(t.top_logprobs.reduce((sum, x) => sum + Math.exp(x.logprob), 0) <= 1.0001);
    }
    const none = await ask('What is 12 + 30?');
    assert.ok(!none.choices[0].logprobs);
    const zero = await ask('What is 12 + 30?', { logprobs: true });
    assert.deepEqual(zero.choices[0].logprobs.content[0].top_logprobs, []);
});

test('text_offset counts the characters of the text, also where its bytes are no UTF-8', async () => {
    const bytes = [175, 256, 249, 225]; // f0 9f 98 80
    for (const bias of [[175], [256], [225], bytes]) {
        const r = await client.completions.create({ model: 'mini', prompt: 'x', max_tokens: 12, temperature: 1, seed: 3,
            logprobs: 0, logit_bias: Object.fromEntries(bias.map((id, i) => [id, 90 + i])) });
        const { text, logprobs } = r.choices[0];
        const seen = logprobs.tokens.map((t) => Buffer.from(t.replace(/^bytes:|\\x/g, ''), 'hex'));
        assert.equal(seen.length, 12);
        assert.equal(new TextDecoder().decode(Buffer.concat(seen)), text);
        logprobs.text_offset.forEach((offset, i) => {
            const before = new TextDecoder().decode(Buffer.concat(seen.slice(0, i)));
            assert.equal(offset, [...before].length, `token ${i} of ${text}`);
        });
    }
});

test('n gives as many answers, whole and streamed alike', async () => {
    const warm = { n: 3, temperature: 1, seed: 7, max_tokens: 40 };
    const whole = await ask(STORY, warm);
    assert.deepEqual(whole.choices.map((c) => c.index), [0, 1, 2]);
    const texts = whole.choices.map((c) => c.message.content);
    assert.equal(new Set(texts).size, 3, 'answers differ');
    assert.equal(whole.usage.completion_tokens, 120);
    const s = await stream(STORY, warm);
    assert.deepEqual(s.choices.map((c) => c.text), texts);
    const greedy = await ask('What is 12 + 30?', { n: 2 });
    assert.deepEqual(greedy.choices.map((c) => c.message.content), ['12 + 30 = 42', '12 + 30 = 42']);
});

test('a seed makes an answer repeatable', async () => {
    const draw = async (seed) => (await ask(STORY, { temperature: 1.2, max_tokens: 60, seed })).choices[0].message.content;
    const first = await draw(11);
    assert.equal(await draw(11), first);
    assert.notEqual(await draw(12), first);
    assert.notEqual(await draw(undefined), await draw(undefined));
});

test('an aborted stream frees its slot', async () => {
    const aborted = await server.metric('vllm:request_success_total', 'finished_reason="abort"');
    const s = await ask(STORY, { stream: true, max_tokens: 1800, ignore_eos: true });
    let n = 0;
    for await (const _ of s) if (++n === 5) break; // leaving the loop aborts
    await server.idle();
    assert.equal(await server.metric('vllm:request_success_total', 'finished_reason="abort"'), aborted + 1);
    const generated = await server.metric('vllm:generation_tokens_total');
    assert.equal((await ask('What is 12 + 30?')).choices[0].message.content, '12 + 30 = 42');
    assert.equal(await server.metric('vllm:generation_tokens_total'), generated + 11, 'nothing else was generated');
});

test('an abandoned request without a stream frees its slot too', async () => {
    const aborted = await server.metric('vllm:request_success_total', 'finished_reason="abort"');
    const stop = new AbortController();
    const r = client.chat.completions.create({ model: 'mini', messages: user(STORY), max_tokens: 1800, ignore_eos: true, ...off }, { signal: stop.signal });
    await until('it runs', async () => (await server.metric('vllm:num_requests_running')) === 1);
    stop.abort();
    await assert.rejects(r, OpenAI.APIUserAbortError);
    await server.idle();
    assert.equal(await server.metric('vllm:request_success_total', 'finished_reason="abort"'), aborted + 1);
});

test('errors are the SDK\'s own kinds', async () => {
    const unknown = await refused(ask('Hi', { model: 'gpt-0' }), OpenAI.NotFoundError, 404);
    assert.equal(unknown.code, 'model_not_found');
    assert.equal((await refused(ask('Hi', { temperature: 3 }), OpenAI.BadRequestError, 400)).param, 'temperature');
    assert.equal((await refused(ask('Hi', { top_logprobs: 2 }), OpenAI.BadRequestError, 400)).param, 'top_logprobs');
    assert.equal((await refused(ask('Hi', { max_tokens: 'many' }), OpenAI.BadRequestError, 400)).param, 'max_tokens');
    await refused(ask('Hi', { messages: [] }), OpenAI.BadRequestError, 400);
    await refused(ask('Hi', { messages: [{ role: 'wizard', content: 'x' }] }), OpenAI.BadRequestError, 400);
    const tools = [{ type: 'function', function: { name: 'f', strict: true, parameters: { type: 'object', properties: {} } } }];
    const unsupported = await refused(ask('Hi', { tools }), OpenAI.InternalServerError, 501);
    assert.match(unsupported.message, /tools\[0\]\.function\.strict/);
    await refused(ask('Hi', { response_format: { type: 'json_object' } }), OpenAI.InternalServerError, 501);
    let n = 0;
    const counted = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'unused', fetch: (...args) => (n++, fetch(...args)) });
    await refused(counted.chat.completions.create({ model: 'mini', messages: user('Hi'), tools }), OpenAI.InternalServerError, 501);
    assert.equal(n, 1, 'what will never work is asked once');
    await refused(ask('Hi', { stream: true, temperature: -1 }), OpenAI.BadRequestError, 400);
    const long = await refused(ask('word '.repeat(3000)), OpenAI.BadRequestError, 400);
    assert.match(long.message, /2048/);
    await refused(client.embeddings.create({ model: 'mini', input: 'x' }), OpenAI.NotFoundError, 404);
});

test('keys: none and a wrong one are refused, each right one is taken', async () => {
    const locked = await startServer('--api-key', 'alpha', '--api-key', 'beta');
    try {
        const hello = (key) => connect(locked.url, key).chat.completions.create({ model: 'mini', messages: user('Hello!'), temperature: 0, ...off });
        await refused(hello('wrong'), OpenAI.AuthenticationError, 401);
        await refused(hello('alph'), OpenAI.AuthenticationError, 401);
        for (const key of ['alpha', 'beta']) assert.equal((await hello(key)).choices[0].message.content, 'Hello! How can I help you today?');
        const bare = await fetch(`${locked.url}/v1/models`);
        assert.equal(bare.status, 401);
        assert.equal(typeof (await bare.json()).error.message, 'string');
        assert.equal((await fetch(`${locked.url}/health`)).status, 200, 'health needs no key');
        assert.equal((await fetch(`${locked.url}/`)).status, 200, 'the page needs no key');
        locked.headers = { Authorization: 'Bearer alpha' };
        await locked.idle();
    } finally {
        await locked.stop();
    }
});

test('thinking is split from the answer', async () => {
    const think = (await ask('What is 457 + 389?', on)).choices[0];
    assert.match(think.message.reasoning_content, /ones: 7\+9=16, write 6, carry 1/);
    assert.equal(think.message.content.trim(), '457 + 389 = 846');
    assert.ok(!think.message.content.includes('think>'));
    const s = (await stream('What is 457 + 389?', on)).choices[0];
    assert.equal(s.text, think.message.content);
    assert.equal(s.reasoning, think.message.reasoning_content);
    for (const spelled of [{ chat_template_kwargs: { thinking: true } }, { chat_template_kwargs: { enable_thinking: true } }]) {
        const r = (await ask('What is 457 + 389?', { thinking: undefined, ...spelled })).choices[0];
        assert.equal(r.message.reasoning_content, think.message.reasoning_content);
    }
    const plain = (await ask('What is 12 + 30?', off)).choices[0];
    assert.ok(!plain.message.reasoning_content);
    const usage = (await ask('What is 457 + 389?', on)).usage;
    const n = usage.completion_tokens_details.reasoning_tokens;
    assert.ok(n > 10 && n < usage.completion_tokens, `${n} of ${usage.completion_tokens}`);
});

test('completions of token ids are the reference\'s greedy ones', async () => {
    for (const g of goldens) {
        const r = await client.completions.create({ model: 'mini', prompt: g.ids, max_tokens: 32, temperature: 0, return_token_ids: true, skip_special_tokens: false });
        const ended = g.greedy.at(-1) === 1;
        const expected = ended ? g.greedy_text.slice(0, -EOS.length) : g.greedy_text;
        assert.equal(r.object, 'text_completion');
        assert.equal(r.choices[0].text, expected, g.prompt);
        assert.equal(r.choices[0].finish_reason, ended ? 'stop' : 'length');
        assert.deepEqual(r.choices[0].token_ids, g.greedy);
        assert.deepEqual(r.choices[0].prompt_token_ids ?? r.prompt_token_ids, g.ids);
        assert.equal(r.usage.prompt_tokens, g.ids.length);
        assert.equal(r.usage.completion_tokens, g.greedy.length);
    }
});

test('completions of text continue it, whole and streamed, several at once', async () => {
    const BOS = '<｜begin▁of▁sentence｜>';
    const plain = goldens.filter((g) => !g.prompt.slice(BOS.length).includes('<｜'));
    assert.ok(plain.length >= 4);
    const prompt = plain.map((g) => g.prompt.slice(BOS.length));
    const expected = plain.map((g) => g.greedy_text.replace(EOS, ''));
    const r = await client.completions.create({ model: 'mini', prompt, max_tokens: 32, temperature: 0 });
    assert.deepEqual(r.choices.map((c) => c.text), expected);
    const texts = prompt.map(() => '');
    for await (const chunk of await client.completions.create({ model: 'mini', prompt, max_tokens: 32, temperature: 0, stream: true }))
        for (const c of chunk.choices) texts[c.index] += c.text;
    assert.deepEqual(texts, expected);
});

test('a repeated prompt is found in the cache', async () => {
    const text = `${'The code for red-fox is 1234. '.repeat(20)}\n\nWhat is the code for red-fox?`;
    const counts = async () => {
        const { usage } = await ask(text);
        assert.equal(usage.prompt_cache_hit_tokens + usage.prompt_cache_miss_tokens, usage.prompt_tokens);
        assert.equal(usage.prompt_tokens_details.cached_tokens, usage.prompt_cache_hit_tokens);
        return usage;
    };
    const first = await counts();
    const second = await counts();
    assert.ok(first.prompt_cache_hit_tokens < 32, `new: ${first.prompt_cache_hit_tokens} hits`);
    // Whole pages of 16 tokens, and at least one token is always computed.
    assert.ok(second.prompt_cache_hit_tokens >= second.prompt_tokens - 17, `${second.prompt_cache_hit_tokens} of ${second.prompt_tokens}`);
    assert.ok(second.prompt_cache_hit_tokens < second.prompt_tokens);
});

test('32 streams at once equal the same requests one by one', async () => {
    const animals = ['fox', 'owl', 'bear', 'mouse', 'frog', 'hen', 'wolf', 'duck'];
    const names = ['Mia', 'Tom', 'Rosa', 'Ben'];
    const questions = animals.flatMap((a) => names.map((n) => `Tell me a story about a ${a} named ${n}.`));
    const options = (i) => ({ max_tokens: 48, ...(i % 2 ? { temperature: 0.8, seed: i } : {}) });
    const together = await Promise.all(questions.map((q, i) => stream(q, options(i))));
    for (const [i, q] of questions.entries()) {
        const alone = await ask(q, options(i));
        assert.equal(together[i].choices[0].text, alone.choices[0].message.content, q);
        assert.equal(together[i].usage.completion_tokens, alone.usage.completion_tokens);
    }
});

test('characters beyond ASCII come whole', async () => {
    const golden = goldens.find((g) => g.prompt.includes('小猫'));
    const whole = golden.greedy_text.replace(EOS, '');
    let text = '';
    for await (const chunk of await client.completions.create({ model: 'mini', prompt: golden.ids, max_tokens: 64, temperature: 0, stream: true })) {
        encodeURIComponent(chunk.choices[0]?.text ?? '');
        assert.ok(!chunk.choices[0]?.text.includes('\ufffd'));
        text += chunk.choices[0]?.text ?? '';
    }
    assert.equal(text, whole);
    const zh = await stream('讲一个小猫的故事。');
    assert.equal(zh.choices[0].text, (await ask('讲一个小猫的故事。')).choices[0].message.content);
    assert.match(zh.choices[0].text, /^[^\ufffd]*小猫[^\ufffd]*$/);
    const odd = 'naïve café ☃ 😀👩‍👩‍👧 你好，世界！ \u001f "\\/\u2028';
    const echo = await client.completions.create({ model: 'mini', prompt: odd, max_tokens: 1, temperature: 0, echo: true });
    assert.ok(echo.choices[0].text.startsWith(odd), JSON.stringify(echo.choices[0].text));
    const post = async (path, body) => (await fetch(server.url + path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })).json();
    const { tokens } = await post('/tokenize', { prompt: '😀👩‍👩‍👧 你好', add_special_tokens: false });
    assert.equal((await post('/detokenize', { tokens })).prompt, '😀👩‍👩‍👧 你好');
});

/** A file as it comes over the wire. */
const file = (path, headers) => new Promise((resolve, reject) => {
    get(server.url + path, { headers, agent: false }, (r) => {
        const parts = [];
        r.on('data', (d) => parts.push(d)).on('end', () => resolve({ status: r.statusCode, headers: r.headers, body: Buffer.concat(parts) }));
    }).on('error', reject);
});

test('the page\'s files come plain, compressed, and not at all when unchanged', async () => {
    const page = await file('/', {});
    assert.equal(page.status, 200);
    assert.equal(page.headers['content-type'], 'text/html; charset=utf-8');
    assert.match(page.headers['content-security-policy'], /default-src 'none'/);
    const used = [...page.body.toString().matchAll(/(?:src|href)="([\w.]+\.(?:js|css|svg))"/g)].map((m) => `/${m[1]}`);
    for (const path of ['/', ...used]) {
        const plain = await file(path, {});
        assert.equal(plain.status, 200, path);
        assert.equal(plain.headers['content-encoding'], undefined);
        const packed = await file(path, { 'Accept-Encoding': 'br, gzip' });
        if (packed.headers['content-encoding']) {
            assert.equal(packed.headers['content-encoding'], 'gzip');
            assert.deepEqual(gunzipSync(packed.body), plain.body, path);
            assert.notEqual(packed.headers.etag, plain.headers.etag);
        } else {
            assert.deepEqual(packed.body, plain.body);
        }
        const again = await file(path, { 'If-None-Match': plain.headers.etag });
        assert.deepEqual([again.status, again.body.length], [304, 0], path);
    }
    assert.equal((await file('/no-such-file.js', {})).status, 404);
});

test('SIGTERM lets a running stream end', async () => {
    const leaving = await startServer();
    const c = connect(leaving.url);
    const s = await c.chat.completions.create({ model: 'mini', messages: user(STORY), temperature: 0, max_tokens: 200, stream: true, ...off });
    let ended = null, text = '', finish = null;
    for await (const chunk of s) {
        ended ??= leaving.terminate();
        text += chunk.choices[0]?.delta.content ?? '';
        finish = chunk.choices[0]?.finish_reason ?? finish;
    }
    const r = await ask(STORY);
    assert.equal(text, r.choices[0].message.content);
    assert.equal(finish, r.choices[0].finish_reason);
    assert.deepEqual(await ended, { code: 0, signal: null });
});
