/* The side panel: live figures, charts, and what the server is. */
import { html } from 'htm/preact';
import { Chart } from './charts.js';
import { formatCount, formatMs, formatParams, formatRate, formatShare } from './format.js';
import { CloseIcon } from './icons.js';
import { settings } from './settings.js';
import { useStore } from './store.js';

function Tile({ label, value, unit, series }) {
    return html`<div class="tile"><dt class=${series ? `key key-${series}` : ''}>${label}</dt>
        <dd>${value}${unit && html` <small>${unit}</small>`}</dd></div>`;
}

function Fact({ label, value }) {
    return value === null || value === undefined || value === '' ? null : html`<div><dt>${label}</dt><dd>${value}</dd></div>`;
}

const whole = (v) => (Number.isFinite(v) ? formatCount(v) : '–');

function Server({ model, version }) {
    const meta = model?.meta ?? {};
    return html`<section aria-labelledby="panel-server"><h3 id="panel-server">Server</h3>
        <dl class="facts">
            <${Fact} label="Model" value=${model?.id} />
            <${Fact} label="Parameters" value=${meta.n_params && formatParams(meta.n_params)} />
            <${Fact} label="Weights" value=${meta.weight_format} />
            <${Fact} label="Context" value=${model?.max_model_len && `${formatCount(model.max_model_len)} tokens`} />
            <${Fact} label="Device" value=${[meta.backend, meta.device].filter(Boolean).join(', ')} />
            <${Fact} label="hadal" value=${version} />
        </dl>
        <p class="links"><a href="v1/models">Models</a><a href="metrics">Metrics</a><a href="health">Health</a><a href="licenses.txt">Licences</a></p>
    </section>`;
}

export function Panel({ monitor, onClose }) {
    const { now, series, model, version, link, problem } = useStore(monitor);
    const theme = useStore(settings, (s) => s.theme);
    const n = now ?? {};
    return html`<aside class="panel" aria-label="Live figures">
        <header><h2>Live</h2>
            <button type="button" class="quiet" aria-label="Close live figures" onClick=${onClose}><${CloseIcon} /></button></header>
        ${link !== 'up' && problem && html`<p class="muted" role="status">${problem}</p>`}
        <section aria-labelledby="panel-throughput"><h3 id="panel-throughput">Throughput</h3>
            <dl class="tiles">
                <${Tile} label="Generated" series="1" value=${formatRate(n.generated)} unit="tok/s" />
                <${Tile} label="Prompt" series="2" value=${formatRate(n.prompt)} unit="tok/s" />
            </dl>
            <${Chart} kind="throughput" series=${series} theme=${theme} />
        </section>
        <section aria-labelledby="panel-load"><h3 id="panel-load">Load</h3>
            <dl class="tiles three">
                <${Tile} label="Running" series="1" value=${whole(n.running)} />
                <${Tile} label="Waiting" series="3" value=${whole(n.waiting)} />
                <${Tile} label="KV cache" series="4" value=${formatShare(n.kv)} />
            </dl>
            <${Chart} kind="load" series=${series} theme=${theme} />
        </section>
        <section aria-labelledby="panel-total"><h3 id="panel-total">Since the start</h3>
            <dl class="facts">
                <${Fact} label="Prefix cache hits" value=${formatShare(n.hits / n.queries)} />
                <${Fact} label="First token, mean" value=${formatMs((n.ttftSum / n.ttftCount) * 1000)} />
            </dl>
        </section>
        <${Server} model=${model} version=${version} />
    </aside>`;
}
