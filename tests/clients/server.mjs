// Starts the built `hadal serve` for tests written in node, and reads what it says about itself.
// HADAL_BIN, HADAL_SOURCE_DIR and HADAL_BUILD_DIR come from ctest.
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const START_LIMIT_MS = 120_000; // sanitizer builds on a busy machine included
const STOP_LIMIT_MS = 60_000;

export const SOURCE_DIR = process.env.HADAL_SOURCE_DIR;
export const BUILD_DIR = process.env.HADAL_BUILD_DIR;
export const BIN = process.env.HADAL_BIN;
if (!BIN || !SOURCE_DIR || !BUILD_DIR) throw new Error('HADAL_BIN, HADAL_SOURCE_DIR and HADAL_BUILD_DIR must be set, as ctest does');

// So that servers are killed on the way out (Server below).
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(1));

/** Polls until ask() gives something true; fails with what it last gave. */
export async function until(what, ask, limitMs = 20_000) {
    const end = Date.now() + limitMs;
    for (;;) {
        const value = await ask();
        if (value) return value;
        if (Date.now() > end) throw new Error(`${what}: not within ${limitMs} ms (last: ${JSON.stringify(value)})`);
        await sleep(20);
    }
}

const alive = new Set();

/** For the after() of a test file: a server that a failed test left would keep the file from ending. */
export function killServers() {
    for (const server of alive) server.kill();
}

class Server {
    constructor(child, folder) {
        Object.assign(this, { child, folder, log: '', exit: null });
        child.stderr.setEncoding('utf8').on('data', (s) => (this.log += s));
        child.stdout.setEncoding('utf8').on('data', (s) => (this.log += s));
        alive.add(this);
        child.on('error', (e) => (this.log += `${e.message}\n`)); // no such program; 'close' follows
        this.ended = new Promise((resolve) => child.on('close', (code, signal) => {
            alive.delete(this);
            resolve((this.exit = { code, signal }));
        }));
        this.kill = () => child.kill('SIGKILL');
        process.on('exit', this.kill);
    }

    fail(why) {
        this.kill();
        return new Error(`${why}\nhadal's log:\n${this.log.slice(-4000)}`);
    }

    async ready() {
        const file = join(this.folder, 'port');
        const read = () => {
            try {
                return Number(readFileSync(file, 'utf8').trim());
            } catch {
                return 0;
            }
        };
        try {
            this.port = await until('port file', () => this.exit || read(), START_LIMIT_MS);
            if (this.exit) throw new Error(`hadal ended with ${JSON.stringify(this.exit)}`);
            this.url = `http://127.0.0.1:${this.port}`;
            await until('/ready', async () => this.exit || (await fetch(`${this.url}/ready`).catch(() => null))?.ok, START_LIMIT_MS);
            if (this.exit) throw new Error(`hadal ended with ${JSON.stringify(this.exit)}`);
        } catch (e) {
            throw this.fail(e.message);
        }
        return this;
    }

    /** Sum of a metric over its labels that contain `label`. */
    async metric(name, label = '') {
        const text = await (await fetch(`${this.url}/metrics`, { headers: this.headers })).text();
        const rows = text.split('\n').filter((l) => (l.startsWith(name + '{') || l.startsWith(name + ' ')) && l.includes(label));
        if (!rows.length) throw new Error(`no metric ${name} in:\n${text.slice(0, 2000)}`);
        return rows.reduce((sum, l) => sum + Number(l.slice(l.lastIndexOf(' ') + 1)), 0);
    }

    /** Nothing runs, nothing waits. */
    async idle(limitMs) {
        await until('running and waiting requests to end', async () =>
            (await this.metric('vllm:num_requests_running')) + (await this.metric('vllm:num_requests_waiting')) === 0, limitMs);
    }

    terminate() {
        this.child.kill('SIGTERM');
        return this.ended;
    }

    /** The end of every test file: a drain that succeeds. */
    async stop() {
        const end = await Promise.race([this.terminate(), sleep(STOP_LIMIT_MS, null, { ref: false })]);
        process.off('exit', this.kill);
        if (!end) throw this.fail('no exit after SIGTERM');
        rmSync(this.folder, { recursive: true, force: true });
        if (end.code !== 0) throw this.fail(`exit ${JSON.stringify(end)} after SIGTERM`);
    }
}

/** A server on a port of its own with the embedded model, ready to answer. */
export function startServer(...args) {
    const folder = mkdtempSync(join(tmpdir(), 'hadal-test-'));
    const child = spawn(BIN, ['serve', '--host', '127.0.0.1', '--port', '0', '--port-file', join(folder, 'port'),
        '--max-tokens-in-paged-kv-cache', '65536', ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    return new Server(child, folder).ready();
}
