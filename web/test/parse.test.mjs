// The page's parsers and formats, without a browser.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { errorText } from '../src/api.js';
import { requestMessages } from '../src/chat.js';
import { formatCount, formatMs, formatParams, formatRate, formatShare } from '../src/format.js';
import { ratesBetween, readSample } from '../src/monitor.js';
import { parseMetrics } from '../src/prom.js';
import { requestFields, thinkingOf } from '../src/settings.js';
import { SseParser } from '../src/sse.js';

const STREAM = 'data: {"a":1}\n\n: keep-alive\n\ndata: one\ndata: two\r\n\r\nevent: x\rdata:tight\r\rid: 7\n\ndata: [DONE]\n\ndata: cut off';
const EVENTS = ['{"a":1}', 'one\ntwo', 'tight', '[DONE]'];

test('server-sent events, whole', () => {
    assert.deepEqual(new SseParser().feed(STREAM), EVENTS);
});

test('server-sent events, cut at every pair of places', () => {
    for (let i = 0; i <= STREAM.length; i++) {
        for (let j = i; j <= STREAM.length; j++) {
            const parser = new SseParser();
            const got = [STREAM.slice(0, i), STREAM.slice(i, j), STREAM.slice(j)].flatMap((s) => parser.feed(s));
            assert.deepEqual(got, EVENTS, `cut at ${i} and ${j}`);
        }
    }
});

test('metrics are summed over labels, buckets left out', () => {
    const values = parseMetrics('# HELP x y\nx_total{a="1"} 3\nx_total{a="}"} 4.5\nh_bucket{le="1"} 9\nh_sum 2e-3\nbad\ny NaN\n');
    assert.deepEqual([...values], [['x_total', 7.5], ['h_sum', 0.002]]);
});

test('rates follow the counters, and survive a restart of the server', () => {
    const sample = (at, n) => readSample(`vllm:generation_tokens_total{m="a"} ${n}\nvllm:prompt_tokens_total ${2 * n}\n`, at);
    assert.deepEqual(ratesBetween(sample(10, 100), sample(12, 150)), { generated: 25, prompt: 50 });
    assert.deepEqual(ratesBetween(sample(10, 100), sample(12, 20)), { generated: 10, prompt: 20 });
    assert.deepEqual(ratesBetween(sample(10, 100), readSample('', 12)), { generated: 0, prompt: 0 });
    assert.ok(Number.isNaN(readSample('', 1).kv));
});

test('the model is told only turns that were answered', () => {
    const user = (text) => ({ role: 'user', text });
    const answer = (text, state) => ({ role: 'assistant', text, state });
    const turns = [user('a'), answer('A', 'done'), user('b'), answer('', 'failed'), user('c'), answer('half', 'failed'),
        user('d'), answer('D', 'stopped'), user('e'), answer('', 'stopped'), user('f')];
    const expected = [['user', 'a'], ['assistant', 'A'], ['user', 'd'], ['assistant', 'D'], ['user', 'f']];
    assert.deepEqual(requestMessages(' ', turns).map((m) => [m.role, m.content]), expected);
    assert.deepEqual(requestMessages(' be kind ', turns)[0], { role: 'system', content: 'be kind' });
});

test('request fields', () => {
    const base = { temperature: 0, topP: 1, maxTokens: 9, thinking: true, seed: '' };
    assert.deepEqual(requestFields(base), { temperature: 0, top_p: 1, max_tokens: 9, thinking: { type: 'enabled' } });
    assert.equal(requestFields({ ...base, seed: '0' }).seed, 0);
    assert.equal(requestFields({ ...base, thinking: false }).thinking.type, 'disabled');
});

test('thinking: the wish counts where the model leaves a choice', () => {
    assert.deepEqual(thinkingOf(undefined, true), { on: true, isFree: true });
    assert.deepEqual(thinkingOf({ can_think: true, always_thinks: false }, false), { on: false, isFree: true });
    assert.deepEqual(thinkingOf({ can_think: true, always_thinks: true }, false), { on: true, isFree: false });
    assert.deepEqual(thinkingOf({ can_think: false, always_thinks: false }, true), { on: false, isFree: false });
});

test('an error is always text', () => {
    assert.equal(errorText({ error: { message: 'why' } }, 400), 'why');
    assert.equal(errorText({ error: 'why' }, 400), 'why');
    assert.equal(errorText('why', 400), 'why');
    for (const body of [null, {}, { error: {} }, { error: { message: {} } }, '  ']) {
        assert.match(errorText(body, 502), /answered 502/);
    }
});

test('numbers for people', () => {
    assert.deepEqual([0, -1, NaN, 3.21, 118.4, 12345, 250000].map(formatRate), ['0', '0', '0', '3.2', '118', '12.3k', '250k']);
    assert.deepEqual([0.4, 35, 994, 996, 1234, 59000, 125000].map(formatMs), ['0 ms', '35 ms', '994 ms', '1.0 s', '1.2 s', '59 s', '2 min 5 s']);
    assert.deepEqual([0, 0.004, 0.5, 1, NaN].map(formatShare), ['0 %', '0.4 %', '50 %', '100 %', '–']);
    assert.deepEqual([formatParams(17090000), formatParams(671e9), formatCount(2048)], ['17.1M', '671.0B', '2,048']);
});
