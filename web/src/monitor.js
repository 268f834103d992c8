/* The server's pulse: /metrics once a second while the page is visible, as rates over time; and what
 * /v1/models and /version say, once. */
import { ApiError, getJson, getText } from './api.js';
import { parseMetrics } from './prom.js';
import { Store } from './store.js';

export const WINDOW_S = 60;
const PERIOD_MS = 1000;
const LEAST_S = 0.5; // samples closer than this would turn jitter into rates
const GAP_S = 3; // a longer silence is drawn as a gap

const NAMES = {
    generated: 'vllm:generation_tokens_total',
    prompt: 'vllm:prompt_tokens_total',
    running: 'vllm:num_requests_running',
    waiting: 'vllm:num_requests_waiting',
    kv: 'vllm:kv_cache_usage_perc',
    hits: 'vllm:prefix_cache_hits_total',
    queries: 'vllm:prefix_cache_queries_total',
    ttftSum: 'vllm:time_to_first_token_seconds_sum',
    ttftCount: 'vllm:time_to_first_token_seconds_count',
};

/** One sample: the named values, absent ones NaN. */
export function readSample(text, at) {
    const values = parseMetrics(text);
    const sample = { at };
    for (const [id, name] of Object.entries(NAMES)) sample[id] = values.get(name) ?? NaN;
    return sample;
}

/** Rates between two samples; a counter that went back (the server was restarted) counts from zero. */
export function ratesBetween(a, b) {
    const s = b.at - a.at;
    const rate = (id) => (s > 0 ? (b[id] >= a[id] ? b[id] - a[id] : b[id]) / s : 0) || 0;
    return { generated: rate('generated'), prompt: rate('prompt') };
}

const emptySeries = () => ({ at: [], generated: [], prompt: [], running: [], waiting: [], kv: [] });

export class Monitor extends Store {
    #last = null;
    #timer = null;

    constructor(onLocked) {
        // link: 'connecting' | 'up' | 'loading' | 'locked' | 'down'
        super({ link: 'connecting', problem: null, model: null, version: null, now: null, series: emptySeries() });
        this.onLocked = onLocked;
    }

    start() {
        document.addEventListener('visibilitychange', () => (document.hidden ? this.#pause() : this.#tick()));
        if (!document.hidden) this.#tick();
    }

    /** Ask everything again: after a key was entered. */
    retry() {
        this.set({ model: null, link: 'connecting' });
        this.#tick();
    }

    #pause() {
        clearTimeout(this.#timer);
        this.#timer = null;
    }

    async #tick() {
        this.#pause();
        try {
            if (!this.state.model) await this.#identify();
            const text = await getText('metrics', AbortSignal.timeout?.(5000));
            this.#add(readSample(text, Date.now() / 1000));
            this.set({ link: 'up', problem: null });
        } catch (e) {
            this.#fail(e);
        }
        if (document.hidden) return;
        this.#pause();
        this.#timer = setTimeout(() => this.#tick(), PERIOD_MS);
    }

    async #identify() {
        const models = await getJson('v1/models');
        const version = await getJson('version').catch(() => null);
        this.set({ model: models.data?.[0] ?? null, version: version?.version ?? null });
    }

    #fail(e) {
        const status = e instanceof ApiError ? e.status : 0;
        const link = status === 401 || status === 403 ? 'locked' : status === 503 ? 'loading' : 'down';
        const isNew = link !== this.state.link;
        // A restarted server may have another model.
        this.set({ link, problem: e.message, model: link === 'down' ? null : this.state.model });
        if (link === 'locked' && isNew) this.onLocked();
    }

    #add(sample) {
        const last = this.#last;
        if (last && sample.at - last.at < LEAST_S) return;
        this.#last = sample;
        if (!last) return this.set({ now: { ...sample, generated: 0, prompt: 0 } });
        const old = this.state.series;
        const keep = old.at.findIndex((t) => t >= sample.at - WINDOW_S - 2);
        const series = {};
        const isGap = sample.at - last.at > GAP_S;
        const rates = ratesBetween(last, sample);
        const point = { ...sample, ...rates, at: sample.at };
        for (const id of Object.keys(old)) {
            series[id] = keep < 0 ? [] : old[id].slice(keep);
            if (isGap) series[id].push(id === 'at' ? sample.at - 0.5 : null);
            series[id].push(isGap && id in rates ? null : point[id]);
        }
        this.set({ series, now: { ...sample, ...(isGap ? { generated: 0, prompt: 0 } : rates) } });
    }
}
