// `hadal bench serve` against the embedded model and against a server that misbehaves in every way it
// counts. No speed is judged: only counts, order, and waits that cannot be shorter. Started by ctest.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { killServers, startServer } from '../clients/server.mjs';

const folder = mkdtempSync(join(tmpdir(), 'hadal-load-'));
const stubs = [];
after(() => {
    killServers();
    for (const s of stubs) { s.closeAllConnections?.(); s.close(); }
    rmSync(folder, { recursive: true, force: true });
});

const HEADER = 'arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens,class';
let files = 0;
const file = (...lines) => {
    const path = join(folder, `f${files++}`);
    if (lines.length) writeFileSync(path, lines.join('\n') + '\n');
    return path;
};
const lines = (path) => readFileSync(path, 'utf8').trim().split('\n').map((l) => JSON.parse(l));

/** Runs the load; onStart gets the child, to interrupt it. */
function load(url, args, onStart = () => {}) {
    return new Promise((resolve) => {
        const child = spawn(process.env.HADAL_BIN, ['bench', 'serve', '--base-url', url, ...args]);
        let stdout = '', stderr = '';
        child.stdout.on('data', (d) => (stdout += d));
        child.stderr.on('data', (d) => (stderr += d));
        child.on('close', (code) => resolve({ code, stdout, stderr }));
        onStart(child);
    });
}
async function report(url, ...args) {
    const r = await load(url, [...args, '--json']);
    assert.equal(r.code, 0, r.stderr);
    return JSON.parse(r.stdout);
}
const ordered = (m) => assert.ok(0 <= m.p50 && m.p50 <= m.p90 && m.p90 <= m.p99 && m.p99 <= m.max && m.mean <= m.max * 1.0001, JSON.stringify(m));

/** answer(body, res, req) of every completion; the bodies are kept. */
async function stub(answer) {
    const bodies = [];
    const server = createServer(async (req, res) => {
        if (req.url === '/v1/models') return res.end('{"data":[{"id":"stub-model"}]}');
        let text = '';
        for await (const d of req) text += d;
        bodies.push({ ...JSON.parse(text), authorization: req.headers.authorization, path: req.url });
        answer(bodies.at(-1), res);
    });
    stubs.push(server);
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    return { url: `http://127.0.0.1:${server.address().port}`, bodies };
}
const event = (object) => `data: ${JSON.stringify(object)}\n\n`;
const token = (text = ' a') => event({ choices: [{ text, finish_reason: null }] });
const end = (n_prompt, n) => event({ choices: [{ text: '', finish_reason: 'length' }] }) +
    event({ choices: [], usage: { prompt_tokens: n_prompt, completion_tokens: n } }) + 'data: [DONE]\n\n';
const whole = (b, res) => res.end(token().repeat(b.max_tokens) + end(b.prompt.length, b.max_tokens));

test('the embedded model: everything is answered, lengths are exact', async () => {
    const server = await startServer();
    const save = file(), again = file();
    const args = ['--num-prompts', '12', '--request-rate', '40', '--random-input-len', '40', '--random-output-len', '6', '--random-prefix-len', '32'];
    const r = await report(server.url, ...args, '--seed', '5', '--save-result', save, '--goodput', 'ttft:1e8,tpot:1e8', '--goodput', 'e2el:1e8');
    assert.equal(r.prompts, 'ids');
    assert.deepEqual([r.num_prompts, r.completed, r.outcomes.ok, r.wrong_length, r.good], [12, 12, 12, 0, 12]);
    assert.deepEqual([r.total_input_tokens, r.total_output_tokens], [12 * 40, 12 * 6]);
    for (const name of ['ttft_ms', 'tpot_ms', 'e2el_ms', 'send_late_ms', 'itl_ms']) ordered(r[name]);
    assert.deepEqual([r.ttft_ms.n, r.tpot_ms.n, Math.round(r.itl_ms.n)], [12, 12, 12 * 5]);
    for (const q of ['mean', 'p50', 'p90', 'p99', 'max']) assert.ok(r.ttft_ms[q] > 0 && r.ttft_ms[q] < r.e2el_ms[q]);
    assert.ok(Math.abs(r.request_throughput * r.duration_s - 12) < 1e-3 && Math.abs(r.request_goodput - r.request_throughput) < 1e-3);
    assert.equal(await server.metric('vllm:generation_tokens_total'), 12 * 6 + 1, 'those of the load and of the first request');

    const plot = file();
    const text = await load(server.url, [...args, '--seed', '5', '--save-result', again, '--plot', plot, '--goodput', 'ttft:0.0001']);
    assert.equal(text.code, 0, text.stderr);
    assert.match(text.stdout, /12 ok/);
    assert.match(text.stdout, /0 of 12 are good/);
    assert.match(text.stdout, /inter-token +[\d.]+ +[\d.]+/);
    const svg = readFileSync(plot, 'utf8');
    assert.match(svg, /^<svg [^>]+>\n(<(\w+)[^<>]*(\/>|>[^<>]*<\/\2>)\n?)+<\/svg>\n$/);
    const curves = [...svg.matchAll(/points="([^"]+)"/g)].map(([, p]) => p.trim().split(' ').map((xy) => xy.split(',').map(Number)));
    assert.equal(curves.length, 3);
    for (const c of curves) {
        assert.deepEqual([c.length, c.at(-1)[1]], [12, 56], 'the last one is at 100 %');
        assert.ok(c.every(([x, y], i) => x >= 64 && x <= 712 && (i === 0 || (x >= c[i - 1][0] && y < c[i - 1][1]))), JSON.stringify(c));
    }
    assert.deepEqual(lines(again).map((l) => l.arrival_s), lines(save).map((l) => l.arrival_s));
    assert.ok(lines(save).every((l) => l.outcome === 'ok' && l.usage_prompt_tokens === 40 && l.usage_completion_tokens === 6));
    await server.stop();
});

test('a seed gives the same arrivals and prompts; the mean rate and the bursts are those asked for', async () => {
    const s = await stub(whole);
    const arrivals = async (...args) => {
        const save = file();
        await report(s.url, '--random-input-len', '8', '--random-output-len', '2', '--save-result', save, ...args);
        return lines(save).map((l) => l.arrival_s);
    };
    const gaps = (a) => a.slice(1).map((v, i) => v - a[i]);
    const spread = (g) => {
        const mean = g.reduce((x, y) => x + y) / g.length;
        return { mean, cv: Math.sqrt(g.reduce((x, y) => x + (y - mean) ** 2, 0) / g.length) / mean };
    };
    const poisson = await arrivals('--seed', '1', '--num-prompts', '1000', '--request-rate', '1000');
    const first = s.bodies.splice(0).map((b) => b.prompt.join());
    assert.deepEqual(await arrivals('--seed', '1', '--num-prompts', '1000', '--request-rate', '1000'), poisson);
    assert.deepEqual(s.bodies.splice(0).map((b) => b.prompt.join()).sort(), [...first].sort());
    const other = await arrivals('--seed', '2', '--num-prompts', '1000', '--request-rate', '1000', '--burstiness', '0.25');
    assert.notEqual(s.bodies[1].prompt.join(), first[1]);
    const p = spread(gaps(poisson)), b = spread(gaps(other)); // by the seed, not by time
    assert.ok(Math.abs(p.mean * 1000 - 1) < 0.15 && Math.abs(p.cv - 1) < 0.15, JSON.stringify(p));
    assert.ok(Math.abs(b.mean * 1000 - 1) < 0.3 && Math.abs(b.cv - 2) < 0.4, JSON.stringify(b));
});

test('every way to go wrong is counted apart', async () => {
    const ways = [
        null, whole, // by max_tokens; the first request asks for 1
        (b, res) => res.writeHead(429, { 'Retry-After': '1' }).end('{}'),
        (b, res) => res.writeHead(503).end(),
        (b, res) => res.writeHead(500).end('x'.repeat(100000)),
        (b, res) => { res.write(token()); setTimeout(() => res.destroy(), 20); },
        (b, res) => res.end('data: {"choices":[\n\n'),
        (b, res) => res.end(event({ error: { message: 'lost', code: 500 } }) + 'data: [DONE]\n\n'),
        (b, res) => res.write(token()), // and nothing more
        (b, res) => res.end('{"choices":[{"text":"not a stream"}]}'),
        (b, res) => res.destroy(),
        (b, res) => res.end(`data: "${'x'.repeat(1 << 21)}"\n\n`),
        (b, res) => { res.socket.write('not HTTP at all\r\n\r\n'); res.socket.end(); },
        (b, res) => { // two tokens an event, one of them the character 0, in pieces, CR LF, comments; 13 tokens in 7 events
            const all = (': hello\n\n' + token(' two \0 tokens').repeat(7) + end(4, 13)).replaceAll('\n', '\r\n');
            let at = 0;
            const step = () => at < all.length ? (res.write(all.slice(at, at += 100)), setTimeout(step, 2)) : res.end();
            step();
        },
        (b, res) => res.end(token().repeat(3) + end(4, 3)), // too short
        (b, res) => res.end('data: [1,2]\n\n'),
        (b, res) => res.end('data: {"choices":{"0":7},"usage":[-1]}\n\ndata: {"choices":[[]],"usage":{"completion_tokens":-5}}\n\ndata: [DONE]\n\n'),
        (b, res) => { res.flushHeaders(); setTimeout(() => res.destroy(), 20); },
        (b, res) => res.writeHead(404).end('{"error":{}}'),
    ];
    const expected = [null, 'ok', 'rejected', 'rejected', 'status', 'cut', 'malformed', 'error_event', 'timeout', 'malformed',
        'connection', 'malformed', 'malformed', 'ok', 'ok', 'malformed', 'ok', 'cut', 'status'];
    const s = await stub((b, res) => ways[b.max_tokens](b, res));
    const classes = ['interactive', 'standard', 'batch', 'offline', ''];
    const trace = file(HEADER, ...ways.slice(1).map((w, i) => `0,4,${i + 1},,,${classes[i % 5]}`)), save = file();
    const r = await report(s.url, '--trace', trace, '--save-result', save, '--request-timeout', '4', '--seed', '1', '--api-key', 'k1');
    const rows = lines(save);
    assert.deepEqual(rows.map((l) => l.outcome), expected.slice(1));
    assert.deepEqual(rows.map((l) => l.class), rows.map((_, i) => classes[i % 5]));
    assert.equal(Object.values(r.outcomes).reduce((a, b) => a + b), r.num_prompts);
    assert.deepEqual(r.http_status, { 404: 1, 429: 1, 500: 1, 503: 1 });
    assert.deepEqual([r.completed, r.wrong_length], [4, 2]);
    assert.deepEqual([rows[12].usage_completion_tokens, rows[12].events], [13, 7]);
    assert.ok(r.duration_s >= 3.99);
    assert.deepEqual([r.reject_ms.n, r.reject_sent_ms.n, r.send_late_ms.n], [2, 2, rows.length]);
    for (const l of rows.filter((one) => one.outcome === 'rejected')) // what the client was late by is not the server's
        assert.ok(Math.abs(l.reject_ms - l.reject_sent_ms - l.send_late_ms) < 1e-3, JSON.stringify(l));
    assert.ok(rows.every((l) => ('e2el_ms' in l) === (l.outcome === 'ok') && ('reject_ms' in l) === (l.outcome === 'rejected')));
    assert.ok(s.bodies.every((b) => b.authorization === 'Bearer k1' && b.model === 'stub-model' && b.ignore_eos && b.return_token_ids && b.path === '/v1/completions'));
});

test('a wait for a free place counts from the planned arrival', async () => {
    const s = await stub((b, res) => setTimeout(() => whole(b, res), 60));
    const r = await report(s.url + '/v1/', '--request-rate', '0', '--num-prompts', '5', '--max-concurrency', '1', '--random-output-len', '2');
    assert.equal(r.completed, 5);
    assert.ok(r.send_late_ms.max >= 4 * 55 && r.ttft_ms.max >= 5 * 55 && r.e2el_ms.max >= 5 * 55, JSON.stringify(r));
});

test('groups share their prefix; text where ids are refused', async () => {
    const trace = file(HEADER, '0,20,2,a,16,batch', '0,20,2,b,16,', '0.01,18,2,a,16,batch');
    const s = await stub(whole);
    const all = await report(s.url, '--trace', trace, '--seed', '3', '--goodput', 'e2el:1e8');
    assert.deepEqual(all.classes.map((c) => [c.class, c.sent, c.completed, c.good, c.e2el_ms.n]), [['batch', 2, 2, 2, 2], ['', 1, 1, 1, 1]]);
    const heads = s.bodies.slice(1).map((b) => [b.prompt.length, b.prompt.slice(0, 16).join()]);
    assert.deepEqual(heads.map(([n]) => n).sort(), [18, 20, 20]);
    assert.equal(new Set(heads.map(([, h]) => h)).size, 2);
    assert.equal(new Set(s.bodies.slice(1).map((b) => b.prompt.join())).size, 3);
    const tiers = await stub(whole);
    await report(tiers.url, '--trace', file(HEADER, '0,4,1,,,interactive', '0.3,4,1,,,offline', '0.6,4,1,,,'));
    assert.deepEqual(tiers.bodies.slice(1).map((b) => b.service_tier), ['interactive', 'offline', undefined]);
    const slow = file(HEADER, '0,4,1,,,', '400,4,1,,,');
    const hastened = await report(tiers.url, '--trace', slow, '--load-scale', '1000');
    assert.ok(hastened.completed === 2 && hastened.duration_s >= 0.4 && hastened.duration_s < 100, JSON.stringify(hastened));
    const picky = await stub((b, res) => Array.isArray(b.prompt) ? res.writeHead(422).end('{}') : whole(b, res));
    const r = await report(picky.url, '--num-prompts', '3', '--request-rate', '0', '--random-input-len', '7', '--random-output-len', '2');
    assert.deepEqual([r.prompts, r.completed], ['text', 3]);
    assert.ok(picky.bodies.slice(2).every((b) => /^( \w{3}){7}$/.test(b.prompt) && !('return_token_ids' in b)));
});

test('Ctrl-C reports what was measured', async () => {
    let interrupt, n = 0;
    const s = await stub((b, res) => { // three are answered, after the first request; the others stay open
        if (++n <= 4) whole(b, res);
        if (n === 10) interrupt();
    });
    const r = await load(s.url, ['--request-rate', '20', '--num-prompts', '1000', '--random-output-len', '3', '--json'],
        (child) => (interrupt = () => child.kill('SIGINT')));
    assert.equal(r.code, 130, r.stderr);
    const report = JSON.parse(r.stdout);
    assert.ok(report.interrupted && report.completed <= 3 && report.completed > 0 && report.outcomes.unfinished >= 6 && report.outcomes.unsent > 0);
    assert.equal(Object.values(report.outcomes).reduce((a, b) => a + b), 1000);
});

test('wrong use and servers that are not there', async () => {
    const s = await stub(whole), refusing = await stub((b, res) => res.writeHead(401).end('{"error":"who?"}'));
    const dead = await stub((b, res) => res.writeHead(b.max_tokens === 1 ? 200 : 500).end());
    const none = await stub(whole);
    await new Promise((resolve) => stubs.at(-1).close(resolve));
    for (const [code, url, pattern, ...args] of [ // 2: the usage is wrong; 1: a server or a file
        [1, none.url, /no answer to a first request/],
        [1, refusing.url, /expected 200 for a first request, found 401: \{"error":"who\?"\}/],
        [1, dead.url, /none of the requests was answered/, '--num-prompts', '2', '--request-rate', '0'],
        [2, 'https://127.0.0.1', /--base-url: expected http:\/\/HOST:PORT, found "https:/],
        [2, 'http://', /--base-url/],
        [2, s.url, /--goodput: expected ttft:MS/, '--goodput', 'ttft'],
        [2, s.url, /--goodput: expected ttft:MS/, '--goodput', 'ttft:5,'],
        [2, s.url, /--goodput: expected ttft:MS/, '--goodput', 'tbt:5'],
        [2, s.url, /--random-prefix-len: expected at most the input's 256, found 300/, '--random-prefix-len', '300'],
        [1, s.url, /line 1: expected "arrival_s,/, '--trace', file('a,b')],
        [1, s.url, /expected requests, found none/, '--trace', file(HEADER)],
        [1, s.url, /line 2, column 1: expected 6 fields, found 3/, '--trace', file(HEADER, '0,1,1')],
        [1, s.url, /line 2, column 1: expected 6 fields, found 7/, '--trace', file(HEADER, '0,1,1,,,a,b')],
        [1, s.url, /line 3, column 1 \(arrival_s\): expected no earlier arrival than in the line before, found "1"/, '--trace', file(HEADER, '2,1,1,,,', '1,1,1,,,')],
        [1, s.url, /line 2, column 1 \(arrival_s\): expected seconds/, '--trace', file(HEADER, 'nan,1,1,,,')],
        [1, s.url, /line 2, column 3 \(prompt_tokens\): expected a number from 1/, '--trace', file(HEADER, '0,0,1,,,')],
        [1, s.url, /line 2, column 9 \(prefix_tokens\): expected at most prompt_tokens, found "5"/, '--trace', file(HEADER, '0,4,1,a,5,')],
        [1, s.url, /trace: .*gone/, '--trace', join(folder, 'gone')],
        [1, s.url, /cannot create/, '--save-result', join(folder, 'no', 'file')],
        [1, s.url, /cannot create/, '--plot', join(folder, 'no', 'file')],
        [2, s.url, /expected two files/, '--plot', join(folder, 'same'), '--save-result', join(folder, 'same')],
    ]) {
        const r = await load(url, args);
        assert.equal(r.code, code, `${args}: ${r.stdout}${r.stderr}`);
        assert.match(r.stderr, pattern);
    }
    assert.equal(s.bodies.length, 0, 'what is wrong is found before the first request');
});
