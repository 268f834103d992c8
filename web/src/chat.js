/* The conversation: messages, and the one answer that may be growing. No DOM in here.
 *
 * A message is replaced when it changes, so views may compare by identity:
 *   user:      {id, role, text}
 *   assistant: {id, role, text, reasoning, state, error, stats}
 *              state: 'waiting' | 'reasoning' | 'answering' | 'done' | 'stopped' | 'failed' */
import { ApiError, streamChat } from './api.js';
import { load, save, session, Store } from './store.js';

export const canGoOn = (m) => m?.role === 'assistant' && m.state === 'done' && m.stats?.finish === 'length' && m.text !== '';
const isGrowing = (m) => ['waiting', 'reasoning', 'answering'].includes(m?.state);

/** What the model is told: the turns that were answered, and the question being asked. */
export function requestMessages(system, messages) {
    const out = system.trim() ? [{ role: 'system', content: system.trim() }] : [];
    for (let i = 0; i < messages.length; i++) {
        const [m, next] = [messages[i], messages[i + 1]];
        if (m.role !== 'user') continue;
        const isLast = !next || isGrowing(next);
        if (!isLast && (next.state === 'failed' || !next.text)) continue;
        out.push({ role: 'user', content: m.text });
        if (!isLast) out.push({ role: 'assistant', content: next.text });
    }
    return out;
}

// Pieces that arrived together say nothing about the pace they were made at.
const RATE_MIN_MS = 15;

/** Figures of one answer, from the clock here and the usage that the server reports. */
class Stopwatch {
    /** nBefore: tokens that the answer had already, when it is continued. */
    constructor(now, nBefore) {
        this.start = now;
        this.nBefore = nBefore;
        this.first = this.last = this.answer = null;
        this.chunks = 0;
    }

    piece(now, isReasoning) {
        this.first ??= now;
        if (!isReasoning) this.answer ??= now;
        this.last = now;
        this.chunks++;
    }

    stats(usage, finish) {
        const n = usage?.completion_tokens ?? this.chunks;
        const ms = this.last - this.first;
        const hasRate = n > 1 && ms >= RATE_MIN_MS;
        return {
            ttftMs: this.first === null ? null : this.first - this.start,
            thoughtMs: this.first === null ? null : (this.answer ?? this.last) - this.first,
            tokens: this.nBefore + n,
            rate: hasRate ? ((n - 1) * 1000) / ms : null,
            promptTokens: usage?.prompt_tokens ?? null,
            cachedTokens: usage?.prompt_cache_hit_tokens ?? usage?.prompt_tokens_details?.cached_tokens ?? null,
            finish: finish ?? null,
        };
    }
}

/** Calls fn at most once a frame; in a hidden tab, where frames stop, four times a second. */
function everyFrame(fn) {
    let isAsked = false;
    const run = () => {
        if (!isAsked) return;
        isAsked = false;
        fn();
    };
    return () => {
        if (isAsked) return;
        isAsked = true;
        if (document.hidden) setTimeout(run, 250);
        else requestAnimationFrame(run);
        // A tab hidden after the frame was asked for never gets it.
        setTimeout(run, 500);
    };
}

export class Chat extends Store {
    #abort = null;
    #nextId = 1;

    /** onLocked: called when the server wants a key. */
    constructor(onLocked) {
        // An answer that was growing when the page was left was stopped by that.
        const kept = load(session, 'hadal.chat', { messages: [] }).messages.map((m) =>
            isGrowing(m) ? { ...m, state: 'stopped' } : m);
        super({ messages: kept, isBusy: false });
        this.onLocked = onLocked;
        this.#nextId = Math.max(0, ...kept.map((m) => m.id)) + 1;
    }

    #keep() {
        save(session, 'hadal.chat', { messages: this.state.messages });
    }

    #replaceLast(message) {
        this.set({ messages: [...this.state.messages.slice(0, -1), message] });
    }

    send(text, system, fields) {
        if (this.state.isBusy || !text.trim()) return;
        this.set({ messages: [...this.state.messages, { id: this.#nextId++, role: 'user', text: text.trim() }] });
        return this.#answer(system, fields);
    }

    /** Asks the last question again, in place of its answer. */
    regenerate(system, fields) {
        if (this.state.isBusy || this.state.messages.at(-1)?.role !== 'assistant') return;
        this.set({ messages: this.state.messages.slice(0, -1) });
        return this.#answer(system, fields);
    }

    /** Goes on with an answer that was cut at the token limit. */
    goOn(system, fields) {
        const last = this.state.messages.at(-1);
        if (this.state.isBusy || !canGoOn(last)) return;
        return this.#answer(system, { ...fields, thinking: { type: 'disabled' } }, last);
    }

    /** Takes back a question and all that followed; returns its text. */
    takeBack(id) {
        if (this.state.isBusy) return null;
        const at = this.state.messages.findIndex((m) => m.id === id);
        if (at < 0) return null;
        const { text } = this.state.messages[at];
        this.set({ messages: this.state.messages.slice(0, at) });
        this.#keep();
        return text;
    }

    stop() {
        this.#abort?.abort();
    }

    clear() {
        this.stop();
        this.set({ messages: [] });
        this.#keep();
    }

    /** from: the answer to go on with, the last message; null: a new one. */
    async #answer(system, fields, from = null) {
        const abort = (this.#abort = new AbortController());
        const watch = new Stopwatch(performance.now(), from?.stats?.tokens ?? 0);
        const before = from ? this.state.messages.slice(0, -1) : this.state.messages;
        const messages = requestMessages(system, before);
        if (from) messages.push({ role: 'assistant', content: from.text, prefix: true });
        const body = { messages, ...fields };
        let message = from
            ? { ...from, state: 'answering' }
            : { id: this.#nextId++, role: 'assistant', text: '', reasoning: '', state: 'waiting', error: null, stats: null };
        let usage = null;
        let finish = null;
        const isCurrent = () => this.#abort === abort && this.state.messages.at(-1)?.id === message.id;
        const show = everyFrame(() => isCurrent() && isGrowing(message) && this.#replaceLast(message));
        this.set({ messages: [...before, message], isBusy: true });
        this.#keep();
        const onChunk = (chunk) => {
            usage = chunk.usage ?? usage;
            const choice = chunk.choices?.[0];
            finish = choice?.finish_reason ?? finish;
            const { content, reasoning_content: reasoning } = choice?.delta ?? {};
            if (!content && !reasoning) return;
            watch.piece(performance.now(), !content);
            message = {
                ...message,
                text: message.text + (content ?? ''),
                reasoning: message.reasoning + (reasoning ?? ''),
                state: content || message.text ? 'answering' : 'reasoning',
                stats: watch.stats(null, null),
            };
            show();
        };
        let state = 'done';
        let error = null;
        try {
            await streamChat(body, { signal: abort.signal, onChunk });
        } catch (e) {
            if (e.name === 'AbortError') state = 'stopped';
            else [state, error] = ['failed', e instanceof ApiError ? e : new ApiError(String(e.message ?? e))];
        }
        message = { ...message, state, error: error?.message ?? null, stats: watch.stats(usage, finish) };
        if (isCurrent()) this.#replaceLast(message);
        if (this.#abort === abort) this.set({ isBusy: false });
        this.#keep();
        if (error?.status === 401) this.onLocked();
    }
}
