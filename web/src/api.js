/* hadal's HTTP API, as the page uses it. Paths are relative to the page, so that it also works behind
 * a proxy that serves it below a prefix. Every failure is an ApiError with text fit to be shown. */
import { SseParser } from './sse.js';
import { load, save, session } from './store.js';

export class ApiError extends Error {
    constructor(message, status = 0, code = null) {
        super(message);
        this.name = 'ApiError';
        this.status = status; // 0: no answer, or an error inside a stream
        this.code = code;
    }
}

let key = load(session, 'hadal.key', { value: '' }).value;
export const apiKey = () => key;
export function setApiKey(value) {
    key = value.trim();
    save(session, 'hadal.key', { value: key });
}

/** The server's own words, whatever shape they came in. */
export function errorText(body, status) {
    const e = body?.error ?? body;
    const text = typeof e === 'string' ? e : (e?.message ?? body?.message ?? body?.detail);
    if (typeof text === 'string' && text.trim()) return text.trim();
    return status ? `The server answered ${status} without saying why.` : 'The server reported an error without saying why.';
}

async function failure(response) {
    const text = await response.text().catch(() => '');
    let body = text.length < 2000 && !text.trimStart().startsWith('<') ? text : null;
    try {
        body = JSON.parse(text);
    } catch {
        /* not JSON: the text itself, if it is short and no page */
    }
    return new ApiError(errorText(body, response.status), response.status, body?.error?.code ?? null);
}

async function call(path, options = {}) {
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
        response = await fetch(path, { ...options, headers, cache: 'no-store' });
    } catch (e) {
        if (e.name === 'AbortError') throw e;
        throw new ApiError('The server cannot be reached.');
    }
    if (!response.ok) throw await failure(response);
    return response;
}

export const getJson = async (path) => (await call(path)).json();
export const getText = async (path, signal) => (await call(path, { signal })).text();

/** Streams a chat completion; calls onChunk with each parsed chunk. */
export async function streamChat(body, { signal, onChunk }) {
    const response = await call('v1/chat/completions', {
        method: 'POST',
        signal,
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser();
    let isDone = false;
    for (;;) {
        let piece;
        try {
            piece = await reader.read();
        } catch (e) {
            if (e.name === 'AbortError') throw e;
            throw new ApiError('The connection was lost before the answer ended.');
        }
        if (piece.done) break;
        for (const data of parser.feed(piece.value)) {
            if (data === '[DONE]') {
                isDone = true;
                continue;
            }
            const chunk = JSON.parse(data);
            if (chunk.error) throw new ApiError(errorText(chunk, 0), 0, chunk.error.code ?? null);
            onChunk(chunk);
        }
    }
    if (!isDone) throw new ApiError('The connection was closed before the answer ended.');
}
