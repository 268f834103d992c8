// `hadal serve` with its embedded model over raw HTTP: clients that leave give everything back, text
// and logprobs line up, overload is refused, the end is graceful. Started by ctest.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { killServers, startServer, until } from '../clients/server.mjs';

const folder = mkdtempSync(join(tmpdir(), 'hadal-http-'));
after(() => {
    killServers();
    rmSync(folder, { recursive: true, force: true });
});

const user = (content) => [{ role: 'user', content }];
const STORY = user('Tell me a story about a fox named Mia.');
const LONG = user('word '.repeat(1500));

const post = (server, path, body, init = {}) =>
    fetch(server.url + path, { method: 'POST', body: JSON.stringify(body), ...init });
const chat = async (server, body) => {
    const r = await post(server, '/v1/chat/completions', { temperature: 0, ...body });
    const json = await r.json();
    assert.equal(r.status, 200, JSON.stringify(json));
    return json;
};
/** The events of a stream: parsed chunks, and whether it was ended by [DONE]. */
async function events(response) {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(await response.arrayBuffer());
    const data = text.split('\n\n').filter((e) => e.startsWith('data: ')).map((e) => e.slice(6));
    const done = data.at(-1) === '[DONE]';
    return { done, chunks: (done ? data.slice(0, -1) : data).map((d) => JSON.parse(d)) };
}
const streamed = async (server, path, body) => events(await post(server, path, { temperature: 0, ...body, stream: true }));

/** A request on a socket of its own; resolves when `text` has been seen. */
function raw(server, body, text) {
    const payload = JSON.stringify(body);
    const socket = connect(server.port, '127.0.0.1');
    socket.on('error', () => {});
    socket.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: ${Buffer.byteLength(payload)}\r\n\r\n${payload}`);
    let seen = '';
    const ready = text === undefined ? Promise.resolve() : new Promise((resolve) =>
        socket.on('data', (d) => (seen += d).includes(text) && resolve()));
    return { socket, ready };
}
const running = (s) => s.metric('vllm:num_requests_running');
const waiting = (s) => s.metric('vllm:num_requests_waiting');
const used = (s) => s.metric('hadal_kv_pages', 'state="used"');

test('clients that leave give back their pages, and their neighbours notice nothing', async () => {
    const server = await startServer('--max-num-seqs', '2');
    const alone = (await chat(server, { messages: STORY, max_tokens: 300 })).choices[0].message.content;
    const neighbour = chat(server, { messages: STORY, max_tokens: 300 });
    const long = { messages: STORY, max_tokens: 1900, ignore_eos: true, temperature: 1 };
    for (const [name, body, text] of [
        ['streaming', { ...long, stream: true }, 'data: '],
        ['collected', long],
        ['prefill', { ...long, messages: LONG, max_tokens: 400, stream: true }],
    ]) {
        const gone = await server.metric('hadal_http_clients_gone_total');
        const admitted = await server.metric('vllm:prompt_tokens_total');
        const { socket, ready } = raw(server, body, text);
        await ready;
        await until(`${name}: admitted`, async () => (await server.metric('vllm:prompt_tokens_total')) > admitted);
        socket.destroy();
        await until(`${name}: client seen to leave`, async () => (await server.metric('hadal_http_clients_gone_total')) > gone, 5000);
        await until(`${name}: request ended`, async () => (await running(server)) + (await waiting(server)) <= 1, 5000);
    }
    assert.equal((await neighbour).choices[0].message.content, alone);

    const holders = [raw(server, { ...long, stream: true }, 'data: '), raw(server, { ...long, stream: true }, 'data: ')];
    await Promise.all(holders.map((h) => h.ready));
    const queued = raw(server, { ...long, stream: true });
    await until('one waits', async () => (await waiting(server)) === 1, 5000);
    queued.socket.destroy();
    await until('the queued one left', async () => (await waiting(server)) === 0, 5000);
    assert.equal(await running(server), 2);
    holders[0].socket.resetAndDestroy();
    holders[1].socket.destroy();
    await server.idle();
    assert.equal(await used(server), 0);
    await server.stop();
    assert.match(server.log, /"finish":"client_gone"/);
});

test('streams say what whole answers say, and logprobs line up with the text', async () => {
    const server = await startServer();
    const text = (c) => c.logprobs.content.map((t) => Buffer.from(t.bytes));
    for (const extra of [
        {}, { stop: ['fox', ' the'] }, { stop: ['a little'] }, { stop: ['little'], include_stop_str_in_output: true },
        { thinking: { type: 'enabled' } }, { model: 'deepseek-reasoner', stop: ['\n'] },
        { temperature: 1, seed: 5, n: 3 }, { temperature: 1.9, seed: 11, top_k: 0, ignore_eos: true, skip_special_tokens: false },
        { max_tokens: 1 }, { min_tokens: 30, stop: ['a'] },
    ]) {
        const body = { messages: STORY, max_tokens: 80, logprobs: true, top_logprobs: 3, ...extra };
        const whole = await chat(server, body);
        const { chunks, done } = await streamed(server, '/v1/chat/completions', { ...body, stream_options: { include_usage: true } });
        assert.ok(done);
        assert.deepEqual(chunks.at(-1).choices, []);
        assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
        const { prompt_tokens: n, prompt_cache_hit_tokens: hit, prompt_cache_miss_tokens: miss } = chunks.at(-1).usage;
        assert.equal(hit + miss, n);
        for (const c of whole.choices) {
            const own = chunks.flatMap((k) => k.choices).filter((k) => k.index === c.index);
            const joined = (f) => own.map((k) => k.delta[f] ?? '').join('');
            assert.equal(joined('content'), c.message.content);
            assert.equal(joined('reasoning_content'), c.message.reasoning_content ?? '');
            assert.deepEqual(own.map((k) => k.delta.role).filter(Boolean), ['assistant']);
            assert.deepEqual(own.map((k) => k.finish_reason).filter(Boolean), [c.finish_reason]);
            assert.deepEqual(own.flatMap((k) => k.logprobs?.content ?? []), c.logprobs.content);
            assert.deepEqual(own.flatMap((k) => k.logprobs?.reasoning_content ?? []), c.logprobs.reasoning_content ?? []);
            // The items spell the text; a stop string may cut the last one.
            const spelled = Buffer.concat(text(c)).toString();
            assert.ok(spelled.startsWith(c.message.content), `${spelled} <> ${c.message.content}`);
            const last = text(c).at(-1)?.length ?? 0;
            assert.ok(spelled === c.message.content || (extra.stop && Buffer.byteLength(c.message.content) > Buffer.concat(text(c)).length - last));
            for (const t of c.logprobs.content) {
                assert.ok(t.logprob <= 0 && t.top_logprobs.length === 3);
                assert.ok(t.top_logprobs[0].logprob >= t.top_logprobs[2].logprob);
            }
            if (extra.include_stop_str_in_output) assert.ok(c.message.content.endsWith('little'));
            if (extra.min_tokens) assert.ok(whole.usage.completion_tokens >= 30);
        }
    }
    // Completions: offsets count characters of the whole text, also in a stream.
    const body = { prompt: ['Once upon', 'The old man'], n: 2, max_tokens: 12, logprobs: 2, seed: 3, temperature: 1, return_token_ids: true };
    const whole = await (await post(server, '/v1/completions', body)).json();
    const { chunks } = await streamed(server, '/v1/completions', body);
    for (const c of whole.choices) {
        assert.equal(c.logprobs.tokens.join(''), c.text);
        c.logprobs.text_offset.forEach((at, i) => assert.equal([...c.text].slice(at, at + [...c.logprobs.tokens[i]].length).join(''), c.logprobs.tokens[i]));
        const own = chunks.map((k) => k.choices[0]).filter((k) => k.index === c.index);
        assert.equal(own.map((k) => k.text).join(''), c.text);
        assert.deepEqual(own.flatMap((k) => k.token_ids), c.token_ids);
        assert.deepEqual(own.flatMap((k) => k.logprobs?.text_offset ?? []), c.logprobs.text_offset);
        assert.deepEqual(own[0].prompt_token_ids, c.prompt_token_ids);
        const back = await (await post(server, '/detokenize', { tokens: c.token_ids })).json();
        assert.equal(back.prompt, c.text);
        const again = await (await post(server, '/v1/completions', { prompt: c.prompt_token_ids, max_tokens: 1, echo: true })).json();
        assert.ok(again.choices[0].text.startsWith(c.index < 2 ? 'Once upon' : 'The old man'));
    }
    await server.idle();
    assert.equal(await used(server), 0);
    await server.stop();
});

test('tokenize and chat agree, prompts too long are named, overload is refused at once', async () => {
    const server = await startServer('--max-num-seqs', '1', '--max-num-queued-reqs', '1', '--api-key', 'k1', '--api-key', 'k2');
    server.headers = { authorization: 'Bearer k2' };
    const init = { headers: server.headers };
    const tokens = await (await post(server, '/tokenize', { messages: STORY }, init)).json();
    const answer = await (await post(server, '/v1/chat/completions', { messages: STORY, max_tokens: 1, return_token_ids: true }, init)).json();
    assert.deepEqual(answer.prompt_token_ids, tokens.tokens);
    assert.equal(answer.usage.prompt_tokens, tokens.count);
    const bare = await (await post(server, '/tokenize', { messages: STORY, add_generation_prompt: false }, init)).json();
    assert.deepEqual(bare.tokens, tokens.tokens.slice(0, -2)); // without <｜Assistant｜></think>
    const begun = [...STORY, { role: 'assistant', content: 'Once upon' }];
    const open = await (await post(server, '/tokenize', { messages: begun, continue_final_message: true }, init)).json();
    const prefix = [...STORY, { role: 'assistant', content: 'Once upon', prefix: true }];
    const continued = await (await post(server, '/v1/chat/completions', { messages: prefix, max_tokens: 4, temperature: 0, return_token_ids: true }, init)).json();
    assert.deepEqual(continued.prompt_token_ids, open.tokens);
    assert.equal(continued.choices[0].message.content, ' a time, in');
    const long = await post(server, '/v1/chat/completions', { messages: user('word '.repeat(4000)) }, init);
    assert.equal(long.status, 400);
    assert.equal((await long.json()).error.code, 'context_length_exceeded');
    assert.equal((await post(server, '/v1/chat/completions', { messages: STORY })).status, 401);

    const stop = new AbortController();
    const body = { messages: STORY, max_tokens: 1900, ignore_eos: true, stream: true };
    const busy = [];
    let refused;
    for (let i = 0; i < 8 && !refused; i++) {
        const r = await post(server, '/v1/chat/completions', body, { ...init, signal: stop.signal });
        if (r.status === 429) refused = r;
        else busy.push(r);
    }
    assert.ok(refused, 'one of eight long requests must find a queue of one full');
    assert.match(refused.headers.get('retry-after'), /^[1-9]\d*$/); // by the predicted wait
    assert.equal((await refused.json()).error.type, 'rate_limit_error');
    assert.ok(busy.length >= 1);
    stop.abort();
    await server.idle();
    assert.equal((await fetch(`${server.url}/v1/models`, init)).status, 200); // and is itself again
    await server.stop();
});

// The slow backend holds its request for longer than any may wait.
test('a request whose turn does not come is told so: 503, a stream by an event, a begun body by its missing end', async () => {
    const patient = ['--slo', 'standard:wait:3600000']; // else the predicted wait is refused at once
    const server = await startServer('--backend', 'ref', '--max-num-seqs', '1', '--queue-timeout', '0.6', '--stream-keep-alive', '0.2', ...patient);
    const holder = raw(server, { messages: STORY, max_tokens: 1900, ignore_eos: true, stream: true }, 'data: ');
    await holder.ready;
    const body = { messages: STORY, max_tokens: 4 };
    const [stream, whole] = await Promise.all([
        post(server, '/v1/chat/completions', { ...body, stream: true }).then((r) => r.text()),
        post(server, '/v1/chat/completions', body).then((r) => r.text()).catch((e) => e), // its keep-alive has begun it
    ]);
    assert.match(stream, /: keep-alive\n\n/);
    assert.match(stream, /data: \{"error":\{"message":"the request has waited 0\.6 s, and its turn has not come","type":"server_error"/);
    assert.ok(!stream.includes('[DONE]'));
    assert.ok(whole instanceof Error, `ended as if it were whole: ${whole}`);
    holder.socket.destroy();
    await server.idle();
    await server.stop();

    const quiet = await startServer('--backend', 'ref', '--max-num-seqs', '1', '--queue-timeout', '0.3', ...patient);
    const other = raw(quiet, { messages: STORY, max_tokens: 1900, ignore_eos: true, stream: true }, 'data: ');
    await other.ready;
    const refused = await post(quiet, '/v1/chat/completions', body);
    assert.equal(refused.status, 503);
    assert.equal(refused.headers.get('retry-after'), '1');
    assert.match((await refused.json()).error.message, /waited 0\.3 s/);
    other.socket.destroy();
    await quiet.stop();
});

test('SIGTERM: streams finish, new work is refused, exit 0', async () => {
    const server = await startServer('--shutdown-timeout', '300');
    const body = { messages: STORY, max_tokens: 300, ignore_eos: true, stream: true };
    const streams = await Promise.all([1, 2, 3, 4].map(() => post(server, '/v1/chat/completions', body)));
    const ends = streams.map(events);
    const ended = server.terminate();
    await until('not ready', async () => (await fetch(`${server.url}/ready`).catch(() => ({ status: 503 }))).status === 503, 5000);
    const late = await post(server, '/v1/chat/completions', body).catch(() => null);
    if (late) assert.equal(late.status, 503);
    for (const { done, chunks } of await Promise.all(ends)) {
        assert.ok(done, 'a stream was cut');
        assert.equal(chunks.at(-1).choices[0].finish_reason, 'length');
    }
    assert.deepEqual(await ended, { code: 0, signal: null });
});

test('SIGTERM with little time: an error event, still exit 0; a second signal ends at once', async () => {
    const server = await startServer('--shutdown-timeout', '0.2');
    const body = { messages: STORY, max_tokens: 2000, ignore_eos: true, stream: true, n: 16 };
    const stream = events(await post(server, '/v1/chat/completions', body));
    const ended = server.terminate();
    const { done, chunks } = await stream;
    if (!done) assert.equal(chunks.at(-1).error?.code, 'shutting_down', JSON.stringify(chunks.at(-1)));
    assert.deepEqual(await ended, { code: 0, signal: null });

    const other = await startServer('--shutdown-timeout', '60');
    const { ready, socket } = raw(other, body, 'data: ');
    await ready;
    other.terminate();
    await until('draining', async () => other.log.includes('"draining"'), 5000);
    await sleep(50);
    assert.equal((await other.terminate()).code, 143);
    socket.destroy();
});

test('SIGTERM while the model loads: exit 0', async () => {
    for (let ms = 0; ms < 120; ms += 30) {
        const child = spawn(process.env.HADAL_BIN, ['serve', '--port', '0'], { stdio: ['ignore', 'pipe', 'pipe'] });
        const closed = new Promise((resolve) => child.on('close', (code, signal) => resolve({ code, signal })));
        await new Promise((resolve) => child.stdout.once('data', resolve)); // listening: signals are waited for
        await sleep(ms);
        child.kill('SIGTERM');
        assert.deepEqual(await closed, { code: 0, signal: null });
    }
});

const run = (...args) => new Promise((resolve) => {
    const child = spawn(process.env.HADAL_BIN, ['serve', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    let out = '';
    child.stdout.on('data', (d) => (out += d));
    child.stderr.on('data', (d) => (out += d));
    child.on('close', (code) => resolve({ code, out }));
});

test('what cannot be started says why', async () => {
    const server = await startServer();
    const inUse = await run('--port', String(server.port));
    assert.equal(inUse.code, 1);
    assert.match(inUse.out, new RegExp(`cannot listen on 127.0.0.1 port ${server.port}: .*another program has it`));
    await server.stop();
    const nowhere = await run('--port', '0', '--host', 'no.such.host.invalid');
    assert.equal(nowhere.code, 1);
    assert.match(nowhere.out, /no\.such\.host\.invalid/);
    writeFileSync(join(folder, 'keys'), '# none\n\n');
    const keyless = await run('--port', '0', '--api-key-file', join(folder, 'keys'));
    assert.equal(keyless.code, 1);
    assert.match(keyless.out, /expected at least one key/);
    const model = await run('--port', '0', '--model', join(folder, 'nothing.gguf'));
    assert.equal(model.code, 1);
    assert.match(model.out, /nothing\.gguf/);
    const port = await run('--port', '70000');
    assert.equal(port.code, 2);
    const extra = await run('something');
    assert.equal(extra.code, 2);
});

test('keys come from a file too; the port file holds the port', async () => {
    writeFileSync(join(folder, 'keys'), '# ours\r\nfrom-file\r\n');
    const server = await startServer('--api-key-file', join(folder, 'keys'), '--cors-origin', '*');
    assert.equal(Number(readFileSync(join(server.folder, 'port'), 'utf8')), server.port);
    const get = (key) => fetch(`${server.url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
    assert.equal((await get('from-file')).status, 200);
    assert.equal((await get('# ours')).status, 401);
    assert.equal((await get('from-file')).headers.get('access-control-allow-origin'), '*');
    await server.stop();
});

test('a model without tokenizer answers ids with ids', async () => {
    const family = join(process.env.HADAL_SOURCE_DIR, 'tests/golden/families/llama');
    const { cases } = JSON.parse(readFileSync(join(family, 'cases.json'), 'utf8'));
    const { ids: prompt } = cases.at(-1);
    const server = await startServer('--model', family, '--backend', 'ref');
    const ask = { prompt, temperature: 0, max_tokens: 4, return_token_ids: true };
    const whole = await (await post(server, '/v1/completions', ask)).json();
    const [choice] = whole.choices;
    assert.equal(choice.text, '');
    assert.equal(choice.finish_reason, 'length');
    assert.equal(choice.token_ids.length, 4);
    assert.equal(choice.token_ids[0], cases.at(-1).last_logits.indexOf(Math.max(...cases.at(-1).last_logits)));
    assert.equal(whole.usage.total_tokens, prompt.length + 4);
    const pieces = await streamed(server, '/v1/completions', ask);
    assert.ok(pieces.done);
    assert.deepEqual(pieces.chunks.flatMap((c) => c.choices[0].token_ids), choice.token_ids);
    assert.equal(pieces.chunks.filter((c) => c.choices[0].token_ids.length === 1).length, 4); // each as it comes
    for (const body of [{ ...ask, stop: 'a' }, { prompt: 'a' }]) {
        const refused = await post(server, '/v1/completions', body);
        assert.equal(refused.status, 501);
        assert.match((await refused.json()).error.message, /has no tokenizer: only token ids/);
    }
    await server.stop();
});

test('tools: whole and streamed are the same call; its answer goes back', async () => {
    const server = await startServer();
    const tools = [{ type: 'function', function: { name: 'get_weather', description: 'Get the weather',
        parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } } }];
    const ask = { tools, messages: user('What is the weather in Paris?') };
    const { choices: [{ message, finish_reason }] } = await chat(server, ask);
    assert.equal(finish_reason, 'tool_calls');
    assert.deepEqual(message.tool_calls.map((c) => [c.type, c.function.name, JSON.parse(c.function.arguments)]),
        [['function', 'get_weather', { city: 'Paris' }]]);
    for (const more of [{}, { tool_choice: { type: 'function', function: { name: 'get_weather' } } }]) {
        const { chunks, done } = await streamed(server, '/v1/chat/completions', { ...ask, ...more });
        const calls = chunks.flatMap((c) => c.choices[0].delta.tool_calls ?? []);
        assert.ok(done && calls.every((c) => c.index === 0));
        assert.equal(calls[0].function.name, 'get_weather');
        assert.equal(calls.map((c) => c.function.arguments).join(''), message.tool_calls[0].function.arguments);
        assert.equal(chunks.at(-1).choices[0].finish_reason, 'tool_calls');
    }
    assert.equal(await server.metric('vllm:request_success_total', 'finished_reason="abort"'), 0); // ended early, and counted as stopped
    const next = [...ask.messages, message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: '7 degrees' }];
    const answer = (await chat(server, { tools, messages: next })).choices[0];
    assert.equal(answer.finish_reason, 'stop');
    assert.ok(answer.message.content.length > 0 && !('tool_calls' in answer.message));
    const { prompt } = await (await post(server, '/apply-template', { tools, messages: next })).json();
    const { tokens } = await (await post(server, '/tokenize', { tools, messages: next })).json();
    assert.equal((await (await post(server, '/detokenize', { tokens })).json()).prompt, prompt);
    assert.ok(prompt.includes(`get_weather<｜tool▁sep｜>${message.tool_calls[0].function.arguments}<｜tool▁call▁end｜>`));
    await server.stop();
});

test('thinking, prefixes, tools and stops: every text in its field, streamed as whole', async () => {
    const server = await startServer();
    const tools = [{ type: 'function', function: { name: 'get_weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } }];
    const begun = { none: [], content: [{ role: 'assistant', content: 'The', prefix: true }],
        reasoning: [{ role: 'assistant', content: '', reasoning_content: 'I', prefix: true }] };
    for (const type of ['enabled', 'disabled']) for (const [from, last] of Object.entries(begun)) for (const offered of [[], tools]) for (const stop of [null, '.']) {
        const ask = { thinking: { type }, tools: offered, stop, max_tokens: 100, messages: [...user('What is the weather in Paris?'), ...last] };
        const name = JSON.stringify({ type, from, tools: offered.length, stop });
        const { choices: [{ message, finish_reason }] } = await chat(server, ask);
        const { chunks, done } = await streamed(server, '/v1/chat/completions', ask);
        const join = (pick) => chunks.map((c) => pick(c.choices[0].delta) ?? '').join('');
        assert.ok(done, name);
        assert.equal(join((d) => d.content), message.content ?? '', name);
        assert.equal(join((d) => d.reasoning_content), message.reasoning_content ?? '', name);
        assert.equal(join((d) => d.tool_calls?.[0].function.arguments), (message.tool_calls ?? []).map((c) => c.function.arguments).join(''), name);
        assert.equal(chunks.at(-1).choices[0].finish_reason, finish_reason, name);
        const thinks = from === 'reasoning' || (from === 'none' && type === 'enabled');
        assert.equal(Boolean(message.reasoning_content), thinks, `${name}: ${JSON.stringify(message)}`);
        assert.doesNotMatch(`${message.content}${message.reasoning_content}`, /think>|<｜/, name);
        if (stop) assert.doesNotMatch(`${message.content}${message.reasoning_content}`, /\./, name);
        if (offered.length === 0) assert.equal(message.tool_calls, undefined, name);
    }
    await server.stop();
});
