// The OpenAI SDK with tools, and with what DeepSeek's API adds under /beta: prefix completion and
// filling the middle. The embedded model knows such questions well enough to be asked for exact answers.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { killServers, startServer } from './server.mjs';

const off = { thinking: { type: 'disabled' } };
const on = { thinking: { type: 'enabled' } };
const user = (content) => [{ role: 'user', content }];
const weather = {
    type: 'function',
    function: {
        name: 'get_weather', description: 'Get the weather',
        parameters: { type: 'object', properties: { location: { type: 'string', description: 'The city' } }, required: ['location'] },
    },
};
const add = {
    type: 'function',
    function: {
        name: 'add', description: 'Add two numbers',
        parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] },
    },
};
const tools = [weather, add];

let server, client, beta;
before(async () => {
    server = await startServer('--exact'); // a stream is the whole answer, whatever was cached
    const connect = (base) => new OpenAI({ baseURL: server.url + base, apiKey: 'unused', maxRetries: 0, timeout: 120_000 });
    [client, beta] = ['/v1', '/beta'].map(connect);
});
after(async () => {
    try {
        await server?.idle();
        await server?.stop();
    } finally {
        killServers();
    }
});

const ask = (messages, extra = {}, c = client) => c.chat.completions.create({ model: 'mini', messages, temperature: 0, max_tokens: 200, ...off, ...extra });
const calls = (r) => (r.choices[0].message.tool_calls ?? []).map((c) => [c.function.name, JSON.parse(c.function.arguments)]);

/** The message that a stream tells, checked delta by delta. */
async function streamed(messages, extra = {}) {
    const m = { content: '', reasoning_content: '', tool_calls: [] };
    let finish = null, n = 0;
    for await (const { choices: [c] } of await ask(messages, { stream: true, ...extra })) {
        assert.equal(finish, null, 'nothing after the finish reason');
        finish = c.finish_reason;
        if (c.delta.reasoning_content) assert.ok(!m.content && !m.tool_calls.length, 'reasoning first');
        if (c.delta.content) assert.ok(!m.tool_calls.length, 'content before calls');
        m.content += c.delta.content ?? '';
        m.reasoning_content += c.delta.reasoning_content ?? '';
        for (const d of c.delta.tool_calls ?? []) {
            n++;
            if (d.index === m.tool_calls.length) {
                assert.match(d.id, /^call_\w+$/);
                assert.equal(d.type, 'function');
                m.tool_calls.push({ name: d.function.name, arguments: '' });
            } else {
                assert.equal(d.index, m.tool_calls.length - 1, 'one call after the other');
                assert.ok(d.id === undefined && d.function.name === undefined, 'id and name once');
            }
            m.tool_calls[d.index].arguments += d.function.arguments;
        }
    }
    return { m, finish, n };
}

test('a call, whole and streamed', async () => {
    const r = await ask(user('What is the weather in Paris?'), { tools });
    const { message, finish_reason: finish } = r.choices[0];
    assert.equal(finish, 'tool_calls');
    assert.equal(message.content, null);
    assert.equal(message.tool_calls.length, 1);
    assert.match(message.tool_calls[0].id, /^call_\w+$/);
    assert.equal(message.tool_calls[0].type, 'function');
    assert.equal(typeof message.tool_calls[0].function.arguments, 'string');
    assert.deepEqual(calls(r), [['get_weather', { location: 'Paris' }]]);
    const s = await streamed(user('What is the weather in Paris?'), { tools });
    assert.equal(s.finish, 'tool_calls');
    assert.equal(s.m.content, '');
    assert.deepEqual(s.m.tool_calls, message.tool_calls.map((c) => c.function));
    assert.ok(s.n > 3, 'arguments come as they are made');
});

test('the SDK runs the tools until there is an answer', async () => {
    for (const stream of [false, true]) {
        const seen = [];
        const runner = client.chat.completions.runTools({
            model: 'mini', temperature: 0, max_tokens: 200, stream, ...off,
            messages: user('What is the weather in Oslo?'),
            tools: [{ type: 'function', function: { ...weather.function, parse: JSON.parse,
                function: ({ location }) => {
                    seen.push(location);
                    return '{"temperature": 3, "condition": "snowy"}';
                } } }],
        });
        assert.equal(await runner.finalContent(), 'It is 3 degrees and snowy in Oslo.');
        assert.deepEqual(seen, ['Oslo']);
    }
});

test('a conversation goes on after calls and answers', async () => {
    const messages = [{ role: 'system', content: 'You are a helpful assistant.' }, ...user('What time is it in Lima? Also: What time is it in Cairo?')];
    const time = { type: 'function', function: { name: 'get_time', description: 'Get the current time in a city',
        parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } } };
    const r = await ask(messages, { tools: [time, add] });
    assert.deepEqual(calls(r), [['get_time', { city: 'Lima' }], ['get_time', { city: 'Cairo' }]]);
    messages.push(r.choices[0].message);
    for (const [i, content] of ['12:30', '18:45'].entries()) messages.push({ role: 'tool', tool_call_id: r.choices[0].message.tool_calls[i].id, content });
    const answer = await ask(messages, { tools: [time, add] });
    assert.match(answer.choices[0].message.content, /^It is 12:30 in Lima\./);
    assert.equal(answer.choices[0].finish_reason, 'stop');
    messages.push(answer.choices[0].message, ...user('What is 12 + 30?'));
    assert.deepEqual(calls(await ask(messages, { tools: [time, add] })), [['add', { a: 12, b: 30 }]]);
});

test('tool_choice and parallel_tool_calls', async () => {
    const both = user('What is the weather in Oslo? And: What is the weather in Rome?');
    assert.equal(calls(await ask(both, { tools })).length, 2);
    const one = await ask(both, { tools, parallel_tool_calls: false });
    assert.deepEqual(calls(one), [['get_weather', { location: 'Oslo' }]]);
    assert.equal(one.choices[0].finish_reason, 'tool_calls');
    const names = async (tool_choice, content) => {
        const r = await ask(user(content), { tools, tool_choice });
        const s = await streamed(user(content), { tools, tool_choice });
        assert.deepEqual(s.m.tool_calls, (r.choices[0].message.tool_calls ?? []).map((c) => c.function));
        assert.equal(s.finish, r.choices[0].finish_reason);
        return calls(r).map(([name]) => name);
    };
    assert.deepEqual(await names('none', 'What is 12 + 30?'), []);
    assert.deepEqual(await names('auto', 'What is 12 + 30?'), ['add']);
    assert.deepEqual(await names('required', 'What is 12 + 30?'), ['add']);
    assert.deepEqual(await names({ type: 'function', function: { name: 'get_weather' } }, 'What is 12 + 30?'), ['get_weather']);
    for (const [extra, field] of [[{ tool_choice: { type: 'function', function: { name: 'nothing' } } }, 'tool_choice.function.name'], [{ tool_choice: 'required', ...on }, 'tool_choice'],
        [{ tools: [{ type: 'function', function: {} }] }, 'tools[0].function.name']]) {
        const e = await ask(user('What is 12 + 30?'), { tools, ...extra }).then(() => null, (x) => x);
        assert.ok(e instanceof OpenAI.BadRequestError, `${field}: ${e}`);
        assert.equal(e.param, field);
    }
});

test('reasoning before a call', async () => {
    const r = await ask(user('What is the weather in Paris?'), { tools, ...on });
    const { message: m, finish_reason: finish } = r.choices[0];
    assert.match(m.reasoning_content, /get_weather/);
    assert.ok(!m.content?.trim());
    assert.equal(finish, 'tool_calls');
    assert.deepEqual(calls(r), [['get_weather', { location: 'Paris' }]]);
    const s = await streamed(user('What is the weather in Paris?'), { tools, ...on });
    assert.equal(s.m.reasoning_content, m.reasoning_content);
    assert.deepEqual(s.m.tool_calls, m.tool_calls.map((c) => c.function));
    const next = [...user('What is the weather in Paris?'), m, { role: 'tool', tool_call_id: m.tool_calls[0].id, content: '{"temperature": 21, "condition": "sunny"}' }];
    assert.equal((await ask(next, { tools, ...on })).choices[0].message.content, 'It is 21 degrees and sunny in Paris.');
});

test('an answer cut at any token is the beginning of the whole one', async () => {
    for (const [content, mode] of [['What is the weather in Oslo? And: What is the weather in Rome?', off], ['What is the weather in Paris?', on]]) {
        const spelled = (m) => (m.reasoning_content ?? '') + (m.content ?? '') + m.tool_calls.map((c) => `\n${c.name}(${c.arguments}`).join('');
        const full = await streamed(user(content), { tools, ...mode });
        const ends = new Set();
        await Promise.all(Array.from({ length: 24 }, async (_, i) => {
            const request = { tools, max_tokens: i + 1, ...mode };
            const whole = await ask(user(content), request);
            const { m, finish } = await streamed(user(content), request);
            const { message, finish_reason } = whole.choices[0];
            assert.equal(finish, finish_reason);
            assert.equal(finish, whole.usage.completion_tokens === i + 1 ? 'length' : 'tool_calls');
            assert.equal(spelled(m), spelled({ ...message, tool_calls: (message.tool_calls ?? []).map((c) => c.function) }));
            const shown = spelled({ ...m, content: m.content.trimEnd() }); // space is dropped when a call follows
            assert.ok(spelled(full.m).startsWith(shown), `${i + 1}: ${shown}`);
            ends.add(spelled(m));
        }));
        assert.ok(ends.size > 12, 'most tokens show');
    }
});

test('an answer is continued from its beginning', async () => {
    for (const c of [client, beta]) {
        const r = await ask([...user('What is 12 + 30?'), { role: 'assistant', content: '12 + 30', prefix: true }], {}, c);
        assert.equal(r.choices[0].message.content, ' = 42');
    }
    const reasoning_content = '\n594 + 265\nones: 4+5=9, write 9\n';
    const r = await ask([...user('What is 594 + 265?'), { role: 'assistant', content: '', reasoning_content, prefix: true }], on, beta);
    assert.match(r.choices[0].message.reasoning_content, /^tens: 9\+6=15/);
    assert.match(r.choices[0].message.content, /594 \+ 265 = 859$/);
});

test('a hole is filled', async () => {
    for (const [prompt, suffix, middle] of [['int add(int a, int b) {\n    ', ';\n}\n', 'return a + b'], ['def square(x):\n    ', '\n', 'return x * x'],
        ['for i in ', ':\n    print(i)\n', null]]) {
        const r = await beta.completions.create({ model: 'mini', prompt, suffix, temperature: 0 });
        if (middle) assert.equal(r.choices[0].text, middle);
        else assert.match(r.choices[0].text, /^range\(\d+\)$/);
        assert.equal(r.choices[0].finish_reason, 'stop');
        let text = '';
        for await (const { choices: [c] } of await beta.completions.create({ model: 'mini', prompt, suffix, temperature: 0, stream: true })) text += c.text;
        assert.equal(text, r.choices[0].text);
    }
});
