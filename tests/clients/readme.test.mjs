// The examples of README.md and docs/api.md, run as a reader would: each shell example that calls the server, and each
// script, with only the address changed.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { BIN, killServers, SOURCE_DIR, startServer } from './server.mjs';

const run = promisify(execFile);
const ADDRESS = 'http://127.0.0.1:8080';
const text = ['README.md', 'docs/api.md'].map((f) => readFileSync(`${SOURCE_DIR}/${f}`, 'utf8')).join('\n');
const allBlocks = [...text.matchAll(/^```(\w*)\n([^]*?)^```$/gm)].map(([, language, text]) => ({ language, text }));
const blocks = allBlocks.filter(({ text }) => text.includes(ADDRESS));

let server;
before(async () => {
    server = await startServer();
});
after(async () => {
    try {
        await server?.stop();
    } finally {
        killServers();
    }
});
const here = (text) => text.replaceAll(ADDRESS, server.url);

test('the shell examples', async () => {
    const commands = blocks.flatMap((b) => b.text.split(/^(?=curl )/m)).filter((c) => c.startsWith('curl '));
    const said = [];
    for (const command of commands) {
        const { stdout } = await run('bash', ['-c', here(command)]);
        const { error, choices: [c] = [] } = JSON.parse(stdout);
        assert.ok(!error, `${command}\n${stdout}`);
        said.push(c.text ?? [c.message.reasoning_content, c.message.content, ...(c.message.tool_calls ?? []).map((t) => t.function.arguments)].join('|'));
    }
    for (const expected of [/27 \+ 15 = 42$/, /\{"location": "Paris"\}$/, /It is 21 degrees and sunny in Paris\.$/, /ones: 4\+5=9[^]*\|\s*594 \+ 265 = 859$/,
        /^return a \+ b$/, /\| = 42$/])
        assert.ok(said.some((s) => expected.test(s)), `${expected} in ${JSON.stringify(said)}`);
    assert.equal(said.length, 10);
});

test('the commands', async () => {
    const folder = await mkdtemp(path.join(tmpdir(), 'hadal-readme-'));
    const commands = allBlocks.flatMap((b) => b.text.split('\n')).filter((line) => line.startsWith('hadal '));
    const said = [];
    try {
        for (const command of commands)
            said.push((await run('bash', ['-c', command.replaceAll('/tmp/', `${folder}/`)],
                { cwd: SOURCE_DIR, env: { ...process.env, PATH: `${path.dirname(BIN)}:${process.env.PATH}` } })).stdout);
    } finally {
        await rm(folder, { recursive: true });
    }
    for (const expected of [/^mini\n/, /wrote .*small\.gguf[^]*Q4_K_M/, /perplexity/, /KL divergence: mean 0\.\d/, /^27 \+ 15 = 42\n$/])
        assert.ok(said.some((s) => expected.test(s)), `${expected} in ${JSON.stringify(said)}`);
});

test('the scripts', async () => {
    const scripts = blocks.filter((b) => b.language === 'js');
    assert.ok(scripts.length >= 2);
    const said = [];
    for (const { text } of scripts) said.push((await run(process.execPath, ['--input-type=module', '-e', here(text)])).stdout);
    assert.ok(said.some((s) => /Mia/.test(s)), JSON.stringify(said));
    assert.ok(said.includes('It is 21 degrees and sunny in Paris.\n'), JSON.stringify(said));
});
