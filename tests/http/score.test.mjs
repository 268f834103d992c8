// The embedded model's held-out tasks through the HTTP API, scored as its trainer scored them: greedy,
// right only when the whole answer is the expected one. Prints a table beside the trainer's scores
// (tests/golden/mini/README.md); a family may differ by two items.
//   api:    messages and tools to /v1/chat/completions, prompt and suffix to /beta/completions; whole and streamed
//   text:   the trainer's own prompts. Where the API writes the same ids the answer is the API's, else it
//           comes from /v1/completions
//   differ: items that the trainer wrote in a form that is no DeepSeek generation's
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import { killServers, SOURCE_DIR, startServer } from '../clients/server.mjs';

const AT_ONCE = 48;
const ALLOWED = 2; // items of 40
const at = (name) => readFileSync(`${SOURCE_DIR}/tests/golden/mini/${name}`);
const items = gunzipSync(at('eval_items.jsonl.gz')).toString().trimEnd().split('\n').map((l) => JSON.parse(l));
const scores = JSON.parse(at('eval_scores.json'));

const servers = {}; // by chat encoding
before(async () => {
    // --exact: a streamed answer is the whole one, whatever was cached
    for (const name of ['deepseek_v3.1', 'deepseek_v3']) servers[name] = await startServer('--exact', '--chat-encoding', name);
});
after(async () => {
    try {
        for (const server of Object.values(servers)) await server.stop();
    } finally {
        killServers();
    }
});

async function post({ encoding = 'deepseek_v3.1' }, path, body) {
    const r = await fetch(servers[encoding].url + path, {
        method: 'POST', headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ model: 'mini', temperature: 0, max_tokens: 400, return_token_ids: true, ...body }),
    });
    if (!r.ok) throw new Error(`${path}: ${r.status} ${await r.text()}\n${JSON.stringify(body)}`);
    return r;
}
async function* chunks(item, path) {
    const text = await (await post(item, path, { ...item.request, stream: true })).text();
    const data = text.split('\n\n').filter((e) => e.startsWith('data: ')).map((e) => e.slice(6));
    assert.equal(data.pop(), '[DONE]');
    for (const d of data) yield JSON.parse(d);
}

/** What a client sees of an answer, whole and streamed alike. */
const answer = (finish, text, reasoning = '', calls = []) => ({ finish, text, reasoning, calls });
const called = (list) => list.map((c) => ({ name: c.function.name, arguments: c.function.arguments }));

const ways = {
    async text(item) {
        const body = { prompt: item.rendered.prompt, skip_special_tokens: false };
        const { choices: [c] } = await (await post(item, '/v1/completions', body)).json();
        return answer(c.finish_reason, c.text);
    },
    async chat(item) {
        const r = await (await post(item, '/v1/chat/completions', item.request)).json();
        const { message: m, finish_reason: finish } = r.choices[0];
        return { ids: r.prompt_token_ids, got: answer(finish, m.content ?? '', m.reasoning_content, called(m.tool_calls ?? [])) };
    },
    async chatStream(item) {
        const a = answer(null, '');
        for await (const { choices: [c] } of chunks(item, '/v1/chat/completions')) {
            const d = c.delta;
            a.text += d.content ?? '';
            a.reasoning += d.reasoning_content ?? '';
            for (const t of d.tool_calls ?? []) {
                const call = (a.calls[t.index] ??= { name: '', arguments: '' });
                call.name += t.function.name ?? '';
                call.arguments += t.function.arguments ?? '';
            }
            a.finish = c.finish_reason ?? a.finish;
        }
        return a;
    },
    async fim(item) {
        const { choices: [c] } = await (await post(item, '/beta/completions', item.request)).json();
        return { ids: c.prompt_token_ids, got: answer(c.finish_reason, c.text) };
    },
    async fimStream(item) {
        const a = answer(null, '');
        for await (const { choices: [c] } of chunks(item, '/beta/completions')) {
            a.text += c.text;
            a.finish = c.finish_reason ?? a.finish;
        }
        return a;
    },
};

const equal = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const asText = (item) => answer('stop', item.rendered.answer);
const asApi = ({ expected: e }) => answer(e.calls ? 'tool_calls' : 'stop', e.text ?? e.content, e.reasoning ?? '', e.calls ?? []);
/** Without the newlines that the model writes around its reasoning. */
function bare(a) {
    if (!a.reasoning) return a;
    return { ...a, reasoning: a.reasoning.replace(/^\n|\n$/g, ''), text: a.text.replace(/^\n\n/, '') };
}

async function score(item, row) {
    const kind = item.request.suffix === undefined ? 'chat' : 'fim';
    const { ids, got } = await ways[kind](item);
    const isRight = equal(bare(got), asApi(item));
    row.api += isRight;
    assert.deepEqual(await ways[`${kind}Stream`](item), got, `streamed, ${JSON.stringify(item.request)}`);
    if (item.differs) {
        const asTrained = await ways.text(item);
        row.differ++;
        row.text += equal(asTrained, asText(item));
        return;
    }
    const { tokens } = await (await post(item, '/tokenize', { prompt: item.rendered.prompt, add_special_tokens: false })).json();
    assert.deepEqual(ids, tokens, `ids of the prompt of ${JSON.stringify(item.request)}`);
    row.text += isRight;
}

test('every family scores what its trainer measured', async () => {
    const rows = new Map(Object.entries(scores).map(([family, s]) => [family, { family, ...s, n: 0, api: 0, text: 0, differ: 0 }]));
    const queue = [...items];
    await Promise.all(Array.from({ length: AT_ONCE }, async () => {
        for (let item; (item = queue.shift());) {
            const row = rows.get(item.family);
            row.n++;
            await score(item, row);
        }
    }));
    console.log('family               trainer    api   text differ');
    for (const r of rows.values())
        console.log(r.family.padEnd(20) + [`${r.right}/${r.of}`, r.api, r.text, r.differ].map((v) => String(v).padStart(7)).join(''));
    for (const r of rows.values()) {
        assert.equal(r.n, r.of, r.family);
        for (const way of ['api', 'text'])
            assert.ok(Math.abs(r[way] - r.right) <= ALLOWED, `${r.family}: ${r[way]} of ${r.of} (${way}), the trainer has ${r.right}`);
    }
});
