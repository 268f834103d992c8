// Vercel's AI SDK against hadal, by its DeepSeek provider and its provider for anything compatible with
// OpenAI: text, reasoning, tools that are really executed, usage, errors. Every test runs with both.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createDeepSeek } from '@ai-sdk/deepseek';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { killServers, startServer } from './server.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;

const STORY = 'Tell me a story about a fox named Mia.';
let server;
before(async () => {
    server = await startServer('--exact'); // a stream is the whole answer, whatever was cached
});
after(async () => {
    try {
        await server?.idle();
        await server?.stop();
    } finally {
        killServers();
    }
});

/** While it thinks, the DeepSeek provider sends no temperature, and its paths ignore one; these tests want the likeliest answer. */
const greedy = (url, init) => fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), top_k: 1 }) });

/** [name, which is also the key of its options; how it makes a model] */
const providers = [
    ['deepseek', (id, base = '') => createDeepSeek({ baseURL: server.url + base, apiKey: 'unused', fetch: greedy })(id)],
    ['hadal', (id, base = '/v1') => createOpenAICompatible({ name: 'hadal', baseURL: server.url + base, includeUsage: true, fetch: greedy })(id)],
];
/** One test for each provider. */
function each(title, run) {
    for (const [name, model] of providers) {
        const thinking = (type) => ({ providerOptions: { [name]: { thinking: { type } } } });
        test(`${name}: ${title}`, () => {
            const on = { model: model('mini'), maxRetries: 0, maxOutputTokens: 200, ...thinking('enabled') };
            return run({ name, model, on, off: { ...on, ...thinking('disabled') } });
        });
    }
}

/** The same request whole and streamed; both must say the same. */
async function both(request) {
    const whole = await generateText(request);
    const s = streamText(request);
    const parts = [];
    for await (const p of s.fullStream) {
        if (p.type === 'error') throw p.error;
        parts.push(p);
    }
    assert.equal(await s.text, whole.text);
    assert.equal(await s.reasoningText, whole.reasoningText);
    assert.equal(await s.finishReason, whole.finishReason);
    const counts = ({ inputTokens, outputTokens, totalTokens, outputTokenDetails: d }) => [inputTokens, outputTokens, totalTokens, d.reasoningTokens];
    assert.deepEqual(counts(await s.totalUsage), counts(whole.totalUsage));
    return { whole, parts };
}

each('text, whole and streamed', async ({ off }) => {
    const { whole, parts } = await both({ ...off, prompt: 'What is 12 + 30?' });
    assert.equal(whole.text, '12 + 30 = 42');
    assert.equal(whole.finishReason, 'stop');
    assert.equal(whole.reasoningText, undefined);
    assert.equal(whole.response.modelId, 'mini');
    assert.deepEqual([whole.usage.inputTokens, whole.usage.outputTokens, whole.usage.totalTokens], [14, 11, 25]);
    assert.ok(parts.filter((p) => p.type === 'text-delta').length > 3, 'several deltas');
    assert.deepEqual(whole.warnings, []);
});

each('turns and the system prompt', async ({ off }) => {
    const named = await generateText({ ...off, system: 'You are Rosa, a baker.', prompt: 'What is your name?' });
    assert.equal(named.text, 'I am Rosa, a baker.');
    const messages = [{ role: 'user', content: 'My name is Ana.' }, { role: 'assistant', content: 'Hello, Ana! Nice to meet you.' },
        { role: 'user', content: 'What is my name?' }];
    assert.equal((await generateText({ ...off, messages })).text, 'Your name is Ana.');
});

each('cached tokens are counted', async ({ name, off }) => {
    const prompt = `${name}: ${'The code for red-fox is 1234. '.repeat(20)}\n\nWhat is the code for red-fox?`;
    const usage = async () => {
        const { inputTokens, inputTokenDetails: d } = (await generateText({ ...off, prompt })).usage;
        assert.equal(d.cacheReadTokens + d.noCacheTokens, inputTokens);
        return { inputTokens, ...d };
    };
    assert.ok((await usage()).cacheReadTokens < 32);
    const again = await usage();
    assert.ok(again.cacheReadTokens >= again.inputTokens - 17, JSON.stringify(again));
});

each('reasoning is apart from the text', async ({ model, on, off }) => {
    const prompt = 'What is 594 + 265?';
    for (const request of [on, { ...off, model: model('deepseek-reasoner'), providerOptions: {} }]) {
        const { whole, parts } = await both({ ...request, prompt });
        assert.match(whole.reasoningText, /ones: 4\+5=9, write 9/);
        assert.match(whole.text, /594 \+ 265 = 859$/);
        assert.ok(!/ones|think/.test(whole.text), whole.text);
        const { reasoningTokens, textTokens } = whole.usage.outputTokenDetails;
        assert.ok(reasoningTokens > 40 && textTokens > 5);
        assert.equal(reasoningTokens + textTokens, whole.usage.outputTokens);
        const deltas = parts.map((p) => p.type).filter((t) => t.endsWith('-delta'));
        assert.ok(deltas.lastIndexOf('reasoning-delta') < deltas.indexOf('text-delta'));
    }
});

/** The tools of a small assistant, which note what they were called with. */
function toolbox() {
    const seen = [];
    const note = (answer) => (input) => {
        seen.push(input);
        return answer(input);
    };
    const weather = { Paris: { temperature: 21, condition: 'sunny' }, Oslo: { temperature: 3, condition: 'snowy' } };
    const tools = {
        get_weather: tool({ description: 'Get the weather', inputSchema: z.object({ location: z.string().describe('The city') }), execute: note(({ location }) => weather[location]) }),
        add: tool({
            description: 'Add two numbers',
            inputSchema: jsonSchema({ type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] }),
            execute: note(({ a, b }) => String(a + b)),
        }),
    };
    return { seen, tools, stopWhen: stepCountIs(3) };
}

each('tools are called, executed and answered from', async ({ off }) => {
    for (const [prompt, toolName, input, answer] of [
        ['What is the weather in Paris?', 'get_weather', { location: 'Paris' }, 'It is 21 degrees and sunny in Paris.'],
        ['What is 12 + 30?', 'add', { a: 12, b: 30 }, '12 + 30 = 42'],
    ]) {
        const { seen, ...box } = toolbox();
        const { whole, parts } = await both({ ...off, ...box, system: 'You are a helpful assistant.', prompt });
        assert.deepEqual(seen, [input, input], 'once whole, once streamed');
        assert.equal(whole.text, answer);
        assert.deepEqual(whole.steps.map((s) => s.finishReason), ['tool-calls', 'stop']);
        assert.equal(whole.steps[0].text, '');
        assert.deepEqual(whole.steps[0].toolCalls.map((c) => [c.toolName, c.input]), [[toolName, input]]);
        const of = (type) => parts.filter((p) => p.type === type);
        assert.deepEqual(of('tool-call').map((p) => [p.toolName, p.input]), [[toolName, input]]);
        assert.deepEqual(of('tool-input-start').map((p) => p.toolName), [toolName]);
        const deltas = of('tool-input-delta').map((p) => p.delta);
        assert.deepEqual(JSON.parse(deltas.join('')), input);
        assert.ok(deltas.length > 3, 'arguments come as they are made');
        assert.ok(!of('text-delta').some((p) => p.text.includes('tool')));
    }
});

each('two calls at once, each with its answer', async ({ off }) => {
    const { seen, ...box } = toolbox();
    const { whole } = await both({ ...off, ...box, prompt: 'What is the weather in Oslo? And: What is the weather in Paris?' });
    const [first] = whole.steps;
    assert.deepEqual(first.toolCalls.map((c) => c.input.location), ['Oslo', 'Paris']);
    assert.equal(new Set(first.toolCalls.map((c) => c.toolCallId)).size, 2);
    assert.deepEqual(first.toolResults.map((r) => r.output.temperature), [3, 21]);
    assert.match(whole.text, /^It is 3 degrees and snowy in Oslo/);
    assert.equal(seen.length, 4);
});

each('reasoning, then a call, then the answer', async ({ on }) => {
    const { seen, ...box } = toolbox();
    const { whole } = await both({ ...on, ...box, prompt: 'What is 12 + 30?' });
    const [first, second] = whole.steps;
    assert.match(first.reasoningText, /add/);
    assert.equal(first.text.trim(), '');
    assert.deepEqual(first.toolCalls.map((c) => c.input), [{ a: 12, b: 30 }]);
    assert.ok(first.usage.outputTokenDetails.reasoningTokens > 3);
    assert.equal(second.text, '12 + 30 = 42');
    assert.equal(seen.length, 2);
});

each('tools that are not needed are not called', async ({ off }) => {
    const { seen, ...box } = toolbox();
    const { whole } = await both({ ...off, ...box, prompt: 'What is the capital of France?' });
    assert.equal(whole.text, 'The capital of France is Paris.');
    assert.equal(whole.finishReason, 'stop');
    assert.equal(seen.length, 0);
});

each('a tool can be asked for, left free, or forbidden', async ({ on, off }) => {
    const { tools } = toolbox();
    const names = async (toolChoice, prompt) => {
        const { whole } = await both({ ...off, tools, toolChoice, prompt });
        return whole.toolCalls.map((c) => c.toolName);
    };
    assert.deepEqual(await names('auto', 'What is 12 + 30?'), ['add']);
    assert.deepEqual(await names('none', 'What is 12 + 30?'), []);
    assert.deepEqual(await names('required', 'What is 12 + 30?'), ['add']);
    // What the model would not do by itself.
    assert.deepEqual(await names({ type: 'tool', toolName: 'get_weather' }, 'What is the capital of France?'), ['get_weather']);
    const error = await generateText({ ...on, tools, toolChoice: 'required', prompt: 'What is 12 + 30?' }).then(() => null, (e) => e);
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /tool_choice.*thinking/);
});

each('limits and stop strings end an answer', async ({ off }) => {
    const { whole } = await both({ ...off, prompt: STORY, maxOutputTokens: 7 });
    assert.equal(whole.finishReason, 'length');
    assert.equal(whole.usage.outputTokens, 7);
    const full = await generateText({ ...off, prompt: STORY });
    const stop = full.text.slice(40, 47);
    const cut = await both({ ...off, prompt: STORY, stopSequences: [stop] });
    assert.equal(cut.whole.text, full.text.slice(0, full.text.indexOf(stop)));
    assert.equal(cut.whole.finishReason, 'stop');
});

each('an aborted stream ends here and there', async ({ off }) => {
    const control = new AbortController();
    const s = streamText({ ...off, prompt: STORY, maxOutputTokens: 1500, abortSignal: control.signal, onError: () => {} });
    const seen = [];
    for await (const p of s.fullStream) {
        seen.push(p.type);
        if (p.type === 'text-delta') control.abort();
    }
    assert.equal(seen.at(-1), 'abort');
    assert.ok(!seen.includes('finish'));
    await server.idle();
    const whole = generateText({ ...off, prompt: STORY, abortSignal: AbortSignal.timeout(1) });
    await assert.rejects(whole, { name: 'TimeoutError' });
    await server.idle();
});

each('errors say what is wrong', async ({ model, off }) => {
    const refused = async (status, pattern, request) => {
        const error = await generateText({ ...off, prompt: 'Hello!', ...request }).then(() => null, (e) => e);
        assert.ok(APICallError.isInstance(error), String(error));
        assert.equal(error.statusCode, status);
        assert.match(error.message, pattern);
        const streamed = streamText({ ...off, prompt: 'Hello!', ...request, onError: () => {} });
        for await (const p of streamed.fullStream) if (p.type === 'error') assert.equal(p.error.message, error.message);
        return error;
    };
    const unknown = await refused(404, /no-such-model/, { model: model('no-such-model') });
    assert.equal(unknown.isRetryable, false);
    await refused(400, /3006 tokens.* 2048/, { prompt: 'word '.repeat(3000) });
    const bad = await refused(400, /top_p/, { topP: 7 });
    assert.equal(JSON.parse(bad.responseBody).error.param, 'top_p');
});

test('deepseek: what only its provider has', async () => {
    const deepseek = (base) => ({ model: createDeepSeek({ baseURL: server.url + base, apiKey: 'unused', fetch: greedy })('mini'), maxRetries: 0 });
    const options = (o) => ({ providerOptions: { deepseek: o } });
    const off = { thinking: { type: 'disabled' } };
    const asked = { role: 'user', content: 'What is 12 + 30?' };
    const continued = await both({ ...deepseek('/beta'), ...options(off), messages: [asked, { role: 'assistant', content: '12 + 30', ...options({ prefix: true }) }] });
    assert.equal(continued.whole.text, ' = 42');
    const private_ = await generateText({ ...deepseek(''), ...options({ ...off, userId: 'somebody-1' }), messages: [asked] });
    assert.equal(private_.text, '12 + 30 = 42');
    assert.equal(private_.usage.inputTokenDetails.cacheReadTokens, 0, 'pages are shared within a user only');
    const { whole, parts } = await both({ ...deepseek(''), ...options({ thinking: { type: 'enabled' }, reasoningEffort: 'high', topLogprobs: 2 }), messages: [asked] });
    const told = [whole.steps[0].providerMetadata.deepseek, parts.find((p) => p.type === 'finish-step').providerMetadata.deepseek];
    for (const { logprobs } of told) {
        const spelled = (list) => Buffer.from(list.flatMap((t) => t.bytes)).toString();
        assert.equal(spelled(logprobs.content), whole.text);
        assert.equal(spelled(logprobs.reasoning_content), whole.reasoningText);
        assert.ok(logprobs.content.every((t) => t.top_logprobs.length === 2));
    }
});
