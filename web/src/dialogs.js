/* The settings and the API key, each in a native modal dialog. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { apiKey, setApiKey } from './api.js';
import { CloseIcon } from './icons.js';
import { change, DEFAULTS, settings } from './settings.js';
import { useStore } from './store.js';

function Dialog({ title, onClose, children }) {
    const dialog = useRef();
    useEffect(() => {
        dialog.current.showModal();
    }, []);
    // By close(), so that the focus goes back to where it was.
    const close = () => dialog.current.close();
    const onClick = (e) => e.target === dialog.current && close(); // the backdrop
    return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onClose=${onClose} onClick=${onClick}>
        <div class="sheet">
            <header><h2 id="dialog-title">${title}</h2>
                <button type="button" class="quiet" aria-label="Close" onClick=${close}><${CloseIcon} /></button></header>
            ${children}
        </div>
    </dialog>`;
}

function Slider({ id, label, hint, value, min, max, step, onChange }) {
    const clamp = (v) => Math.min(max, Math.max(min, v));
    const set = (e) => e.target.value !== '' && Number.isFinite(+e.target.value) && onChange(clamp(+e.target.value));
    return html`<div class="field">
        <label for=${id}>${label}</label>
        <div class="slider">
            <input type="range" min=${min} max=${max} step=${step} value=${value} onInput=${set} aria-label=${`${label}, slider`} />
            <input id=${id} type="number" min=${min} max=${max} step=${step} value=${value} onChange=${set} />
        </div>
        <p class="muted">${hint}</p>
    </div>`;
}

export function SettingsDialog({ maxLength, onClose, onKey }) {
    const s = useStore(settings);
    const onMaxTokens = (e) => {
        const n = Math.round(+e.target.value);
        if (n >= 1) change({ maxTokens: n });
        else e.target.value = s.maxTokens;
    };
    const onSeed = (e) => {
        const v = e.target.value.trim();
        if (v === '' || /^\d{1,15}$/.test(v)) change({ seed: v });
        else e.target.value = s.seed;
    };
    const { theme, monitor, ...rest } = DEFAULTS;
    return html`<${Dialog} title="Settings" onClose=${onClose}>
        <div class="field"><label for="system">System prompt</label>
            <textarea id="system" rows="3" placeholder="None" value=${s.system} onInput=${(e) => change({ system: e.target.value })} /></div>
        <${Slider} id="temperature" label="Temperature" hint="0 always takes the likeliest token." min=${0} max=${2} step=${0.05}
            value=${s.temperature} onChange=${(v) => change({ temperature: v })} />
        <${Slider} id="top-p" label="Top-p" hint="Draws only from the likeliest tokens that make up this share." min=${0.05} max=${1} step=${0.05}
            value=${s.topP} onChange=${(v) => change({ topP: v })} />
        <div class="pair">
            <div class="field"><label for="max-tokens">Longest answer</label>
                <input id="max-tokens" type="number" min="1" max=${maxLength ?? undefined} step="1" value=${s.maxTokens} onChange=${onMaxTokens} />
                <p class="muted">tokens${maxLength ? `, of a context of ${maxLength}` : ''}</p></div>
            <div class="field"><label for="seed">Seed</label>
                <input id="seed" inputmode="numeric" placeholder="Random" value=${s.seed} onChange=${onSeed} />
                <p class="muted">same seed, same answer</p></div>
        </div>
        <fieldset class="field segmented"><legend>Theme</legend>
            ${['system', 'light', 'dark'].map((t) => html`<label key=${t}><input type="radio" name="theme" value=${t} checked=${s.theme === t}
                onChange=${() => change({ theme: t })} /><span>${t[0].toUpperCase() + t.slice(1)}</span></label>`)}
        </fieldset>
        <footer>
            <button type="button" class="plain" onClick=${onKey}>${apiKey() ? 'Change API key' : 'Enter an API key'}</button>
            <button type="button" class="plain" onClick=${() => change(rest)}>Reset</button>
        </footer>
    </${Dialog}>`;
}

export function KeyDialog({ isAsked, onClose, onSaved }) {
    const [value, setValue] = useState('');
    const hadKey = apiKey() !== '';
    const submit = (e) => {
        e.preventDefault();
        setApiKey(value);
        onSaved();
    };
    const why = !isAsked ? '' : hadKey ? 'The server did not accept the key.' : 'This server asks for a key.';
    return html`<${Dialog} title="API key" onClose=${onClose}>
        <form class="key" onSubmit=${submit}>
            ${why && html`<p role="status">${why}</p>`}
            <div class="field"><label for="api-key">Key</label>
                <input id="api-key" type="password" autofocus autocomplete="off" spellcheck=${false} value=${value} onInput=${(e) => setValue(e.target.value)} />
                <p class="muted">Kept in this tab only, until it is closed.</p></div>
            <footer><button type="submit" class="primary">Save</button></footer>
        </form>
    </${Dialog}>`;
}
