// The page in Debian's Chromium, against a real server: what a person does with it. Screenshots of
// the last run are kept in the build folder, in browser/.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { chromium } from 'playwright-core';
import { BUILD_DIR, killServers, startServer, until } from '../clients/server.mjs';

const STORY = 'Tell me a story about a fox named Mia.';
const SHOTS = join(BUILD_DIR, 'browser');
const CHROMIUM = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);
const ARGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'];

let server, browser;

before(async () => {
    assert.ok(CHROMIUM, 'Chromium is not installed: apt-get install chromium');
    mkdirSync(SHOTS, { recursive: true });
    browser = await chromium.launch({ executablePath: CHROMIUM, args: ARGS }); // with a new profile
    server = await startServer();
    const page = await (await fetch(server.url)).text();
    assert.match(page, /app\.js/, 'the server was built without the page (its build log says why)');
});
after(async () => {
    await browser?.close();
    try {
        await server?.idle();
        await server?.stop();
    } finally {
        killServers();
    }
});

/** Opens the page with empty storage, runs act, and fails on what no page may do. */
async function withPage(url, { expected, ...options }, act) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    try {
        const page = await context.newPage();
        page.setDefaultTimeout(30_000);
        const faults = [];
        // Chromium logs every HTTP error itself; pages that provoke one name its status.
        const isExpected = (text) => expected && text.includes(`status of ${expected}`);
        page.on('console', (m) => ['error', 'warning'].includes(m.type()) && !isExpected(m.text()) && faults.push(`console: ${m.text()}`));
        page.on('pageerror', (e) => faults.push(`exception: ${e.message}`));
        page.on('dialog', (d) => (faults.push(`dialog: ${d.message()}`), d.dismiss()));
        context.on('request', (r) => /^(data|blob):/.test(r.url()) || new URL(r.url()).origin === url || faults.push(`request to ${r.url()}`));
        await page.goto(url);
        await act(page);
        assert.deepEqual(faults, []);
    } finally {
        await context.close();
    }
}

const shot = (page, name) => page.screenshot({ path: join(SHOTS, `${name}.png`) });
const button = (page, name) => page.getByRole('button', { name, exact: true });
const answer = (page, state) => page.locator(`.answer[data-state=${state}]`);

async function ask(page, text) {
    await page.getByLabel('Your question').fill(text);
    await page.keyboard.press('Enter');
}

async function makeGreedy(page, maxTokens = 200) {
    await button(page, 'Settings').click();
    await page.getByLabel('Temperature', { exact: true }).fill('0');
    await page.getByLabel('Longest answer').fill(String(maxTokens));
    await page.keyboard.press('Tab');
    await button(page, 'Close').click();
}

async function answerOfApi(content, thinking = false) {
    const r = await fetch(`${server.url}/v1/chat/completions`, { method: 'POST', headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ messages: [{ role: 'user', content }], temperature: 0, top_p: 0.95, max_tokens: 200,
            thinking: { type: thinking ? 'enabled' : 'disabled' } }) });
    return (await r.json()).choices[0].message;
}

const words = (s) => s.replace(/\s+/g, ' ').trim();

/** Pixels of a chart's canvas that are painted in more than the grid's and labels' colours. */
const inkOf = (page, name) => page.getByRole('img', { name }).locator('canvas').evaluate((canvas) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    let n = 0;
    for (let i = 0; i < data.length; i += 4) {
        const [r, g, b, a] = data.slice(i, i + 4);
        if (a > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 60) n++;
    }
    return n;
});

test('a question is answered with the API\'s words, and the charts draw it', async () => {
    await withPage(server.url, {}, async (page) => {
        await page.getByRole('heading', { name: 'What shall we try?' }).waitFor();
        await page.getByText('mini answers here').waitFor();
        await shot(page, 'welcome');
        await makeGreedy(page);
        await ask(page, STORY);
        await answer(page, 'done').waitFor();
        const expected = await answerOfApi(STORY);
        assert.equal(words(await page.locator('.answer .prose').innerText()), words(expected.content));
        // No rate where the whole answer came at once: this machine may be fast, or busy.
        assert.match(await page.locator('.stats').innerText(), /^\d+ tokens\n([\d.,]+k? tok\/s\n)?first token \d/);
        await until('the charts to draw', async () => (await inkOf(page, /^Tokens per second/)) > 50 && (await inkOf(page, /^Requests and KV/)) > 20);
        await page.getByText('2,048 tokens', { exact: true }).waitFor();
        await page.getByText(/^cpu, /).waitFor();
        await shot(page, 'story');
        // A second turn, by the send button, knows of the first.
        await page.getByLabel('Your question').fill('What is 12 + 30?');
        await button(page, 'Send').click();
        await answer(page, 'done').nth(1).waitFor();
        assert.equal(await page.locator('.answer .prose').nth(1).innerText(), '12 + 30 = 42');
    });
});

test('thinking is shown apart, folds, and is kept out of the answer', async () => {
    await withPage(server.url, { colorScheme: 'dark' }, async (page) => {
        await makeGreedy(page);
        const think = button(page, 'Think');
        await think.click();
        assert.equal(await think.getAttribute('aria-pressed'), 'true');
        await ask(page, 'What is 457 + 389?');
        await answer(page, 'done').waitFor();
        const expected = await answerOfApi('What is 457 + 389?', true);
        assert.equal(await page.locator('.answer .prose').innerText(), expected.content.trim());
        const fold = page.getByRole('button', { name: /^Thought for/ });
        assert.equal(await page.getByRole('region', { name: 'Reasoning' }).count(), 0, 'folded once the answer is there');
        await fold.click();
        assert.equal(words(await page.getByRole('region', { name: 'Reasoning' }).innerText()), words(expected.reasoning_content));
        await shot(page, 'thinking-dark');
    });
});

test('an answer can be stopped, asked again, copied, and its question edited', async () => {
    // The oracle takes ten seconds for so many tokens: there is something to stop, however slow the browser is.
    const slow = await startServer('--backend', 'ref');
    await withPage(slow.url, { permissions: ['clipboard-read', 'clipboard-write'] }, async (page) => {
        await makeGreedy(page, 1500);
        const isRunning = () => slow.metric('vllm:num_requests_running');
        await page.getByLabel('Your question').fill('Count from 1 to 100.');
        await page.keyboard.press('Shift+Enter');
        await page.keyboard.type('Write the numbers.');
        assert.match(await page.getByLabel('Your question').inputValue(), /100\.\nWrite/);
        await page.keyboard.press('Enter');
        await answer(page, 'answering').waitFor();
        await shot(page, 'streaming');
        await button(page, 'Stop').click();
        await answer(page, 'stopped').waitFor();
        await until('the server to stop too', async () => (await isRunning()) === 0);
        assert.match(await page.locator('.stats').innerText(), /stopped/);
        await button(page, 'New chat').click();
        await makeGreedy(page);
        await ask(page, 'What is 12 + 30?');
        await answer(page, 'done').waitFor();
        await button(page, 'Copy answer').click();
        await button(page, 'Copied').waitFor();
        assert.equal(await page.evaluate(() => navigator.clipboard.readText()), '12 + 30 = 42');
        await button(page, 'Answer again').click();
        await answer(page, 'done').waitFor();
        assert.equal(await page.locator('.answer').count(), 1);
        await button(page, 'Edit question').click();
        assert.equal(await page.getByLabel('Your question').inputValue(), 'What is 12 + 30?');
        assert.equal(await page.locator('.question').count(), 0);
        await ask(page, 'What is 27 + 15?');
        await answer(page, 'done').waitFor();
        await page.reload();
        assert.equal(await page.locator('.answer .prose').innerText(), '27 + 15 = 42', 'kept over a reload');
    });
    await slow.stop();
});

test('an answer cut at the limit goes on where it was', async () => {
    await withPage(server.url, {}, async (page) => {
        await makeGreedy(page, 7);
        await ask(page, 'Count from 1 to 20.');
        const go = button(page, 'Continue');
        const prose = page.locator('.answer .prose');
        const texts = [];
        for (let i = 0; i < 3; i++) {
            await go.waitFor();
            await answer(page, 'done').waitFor();
            texts.push(await prose.innerText());
            await go.click();
            await until('it grows', async () => (await prose.innerText()).length > texts.at(-1).length);
        }
        assert.equal(await page.locator('.answer').count(), 1);
        assert.ok('1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12'.startsWith(texts.at(-1)), texts.at(-1));
        assert.ok(texts.at(-1).length > 2 * texts[0].length);
    });
});

test('every example is answered', async () => {
    await withPage(server.url, {}, async (page) => {
        const n = await page.locator('.examples button').count();
        assert.ok(n >= 4);
        for (let i = 0; i < n; i++) {
            await page.locator('.examples button').nth(i).click();
            await answer(page, 'done').waitFor();
            assert.ok((await page.locator('.answer .prose').innerText()).length > 0);
            await button(page, 'New chat').click();
        }
    });
});

/** Lets the page see this answer instead of the server's. */
const serveAnswer = (page, content) => page.route('**/v1/chat/completions', (route) => {
    const chunk = (delta, finish = null) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`;
    const body = [...content].map((c) => chunk({ content: c })).join('') + chunk({}, 'stop') + 'data: [DONE]\n\n';
    return route.fulfill({ contentType: 'text/event-stream', body });
});

test('hostile text is only text', async () => {
    const hostile = [
        '<img src=x onerror="window.pwned=1">', '<script>window.pwned=2</script>', '<svg onload="window.pwned=3">', '[link](javascript:window.pwned=4)',
        '<a href="javascript:window.pwned=5">a</a>', '![picture](https://example.com/leak.png)', '<iframe srcdoc="<script>parent.pwned=6</script>"></iframe>',
        '[x](data:text/html,<script>opener.pwned=7</script>)', '<style>body{display:none}</style>', '`<b>`', '| <img src=x onerror="window.pwned=8"> | b |\n|---|---|\n| 1 | 2 |',
        '```html\n<img src=x onerror="window.pwned=9">\n```',
    ].join('\n\n');
    await withPage(server.url, {}, async (page) => {
        await serveAnswer(page, hostile);
        await ask(page, hostile);
        await answer(page, 'done').waitFor();
        await shot(page, 'hostile');
        for (const link of await page.locator('.answer a[href]').all()) {
            assert.match(await link.getAttribute('href'), /^https:/);
            assert.equal(await link.getAttribute('rel'), 'noopener noreferrer nofollow');
        }
        assert.equal(await page.locator('.thread :is(img, script, iframe, style, [onerror], [onload])').count(), 0);
        assert.equal(await page.locator('.question p').innerText(), hostile);
        assert.match(await page.locator('.answer .prose').innerText(), /<script>window\.pwned=2<\/script>/);
        assert.equal(await page.evaluate(() => window.pwned), undefined);
        // The same text in the wild: a policy stands behind the page's own care.
        const policy = await page.locator('meta[http-equiv=Content-Security-Policy]').getAttribute('content');
        assert.match(policy, /default-src 'none'; script-src 'self'; style-src 'self'/);
    });
});

test('markdown is drawn', async () => {
    await withPage(server.url, {}, async (page) => {
        await serveAnswer(page, '# Title\n\nSome **bold** and `code`.\n\n1. one\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```c\nint x;\n```\n\n> quote');
        await ask(page, 'Show me');
        await answer(page, 'done').waitFor();
        for (const [selector, text] of [['h3', 'Title'], ['strong', 'bold'], ['p code', 'code'], ['ol li >> nth=1', 'two'], ['td >> nth=1', '2'],
            ['figure.code figcaption span', 'c'], ['figure.code pre', 'int x;'], ['blockquote', 'quote']])
            assert.equal((await page.locator(`.answer .prose`).locator(selector).innerText()).trim(), text, selector);
        await shot(page, 'markdown');
    });
});

test('the server\'s errors are shown in its words, and can be tried again', async () => {
    await withPage(server.url, { expected: 400 }, async (page) => {
        await makeGreedy(page);
        await ask(page, 'word '.repeat(3000));
        const note = page.getByRole('alert');
        await note.waitFor();
        assert.match(await note.innerText(), /2048/);
        assert.doesNotMatch(await note.innerText(), /object Object/);
        await shot(page, 'error');
        await button(page, 'Try again').click();
        await answer(page, 'failed').waitFor();
        await ask(page, 'What is 12 + 30?');
        await answer(page, 'done').waitFor();
        assert.equal(await page.locator('.answer[data-state=done] .prose').innerText(), '12 + 30 = 42', 'the failed turn is not sent along');
    });
    await withPage(server.url, {}, async (page) => {
        await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream',
            body: 'data: {"choices":[{"index":0,"delta":{"content":"Half an"}}]}\n\ndata: {"error":{"message":"the engine stopped","type":"server_error"}}\n\n' }));
        await ask(page, 'Hello!');
        assert.equal(await page.getByRole('alert').locator('p').innerText(), 'the engine stopped');
        assert.equal(await page.locator('.answer .prose').innerText(), 'Half an');
    });
});

test('a key is asked for, refused, taken, and forgotten with the tab', async () => {
    const locked = await startServer('--api-key', 'open sesame');
    try {
        await withPage(locked.url, { expected: 401 }, async (page) => {
            const key = page.getByLabel('Key', { exact: true });
            await key.waitFor();
            await shot(page, 'key');
            await key.fill('wrong');
            await button(page, 'Save').click();
            await page.getByText('The server did not accept the key.').waitFor();
            await key.fill('open sesame');
            await button(page, 'Save').click();
            await page.getByText('mini answers here').waitFor();
            await ask(page, 'Hello!');
            await answer(page, 'done').waitFor();
            const kept = await page.evaluate(() => [sessionStorage, localStorage].map((s) => JSON.stringify({ ...s }).includes('open sesame')));
            assert.deepEqual(kept, [true, false]);
        });
    } finally {
        await locked.stop();
    }
});

test('a phone gets it all in one column', async () => {
    await withPage(server.url, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 }, async (page) => {
        await page.getByText('mini answers here').waitFor();
        await shot(page, 'phone-welcome');
        assert.equal(await page.getByRole('complementary', { name: 'Live figures' }).count(), 0, 'the panel waits to be asked for');
        await makeGreedy(page);
        await page.getByLabel('Your question').fill(STORY);
        await button(page, 'Send').tap();
        await answer(page, 'done').waitFor();
        await shot(page, 'phone-story');
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `${overflow} px wider than the screen`);
        await button(page, 'Live figures').tap();
        await until('the chart to draw', async () => (await inkOf(page, /^Tokens per second/)) > 50);
        await shot(page, 'phone-live');
        await button(page, 'Close live figures').tap();
        assert.equal(await page.getByRole('complementary', { name: 'Live figures' }).count(), 0);
    });
});

test('the keyboard is enough, and polling rests while the page is hidden', async () => {
    await withPage(server.url, {}, async (page) => {
        await page.getByText('mini answers here').waitFor();
        await page.keyboard.press('Tab'); // from the question, where the page starts, to Think
        assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Think');
        await page.keyboard.press('/');
        assert.equal(await page.evaluate(() => document.activeElement.id), 'question');
        const names = await page.locator('button, input, textarea, select, a').evaluateAll((all) =>
            all.filter((e) => !(e.getAttribute('aria-label') ?? e.textContent.trim()) && !e.labels?.length).map((e) => e.outerHTML));
        assert.deepEqual(names, [], 'controls without a name');
        let polls = 0;
        page.on('request', (r) => r.url().endsWith('/metrics') && polls++);
        await until('polls', () => polls >= 2);
        await page.evaluate(() => {
            Object.defineProperty(document, 'hidden', { value: true, configurable: true });
            document.dispatchEvent(new Event('visibilitychange'));
        });
        await page.waitForTimeout(300);
        const before = polls;
        await page.waitForTimeout(2500);
        assert.equal(polls, before, 'no poll while hidden');
        await page.evaluate(() => {
            delete document.hidden;
            document.dispatchEvent(new Event('visibilitychange'));
        });
        await until('polls again', () => polls >= before + 2);
    });
});
