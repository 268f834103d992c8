// Vercel's AI SDK against hadal, by its DeepSeek provider and its provider for anything compatible with
// OpenAI: text, reasoning, tools that are really executed, usage, errors. Every test runs with both.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createDeepSeek } from '@ai-sdk/deepseek';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, streamText } from 'ai';
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

/** The DeepSeek provider sends no temperature when it thinks; these tests want the likeliest answer. */
const greedy = (url, init) => fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), temperature: 0 }) });

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
