/* One turn of the conversation. */
import { Component } from 'preact';
import { useRef, useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { canGoOn } from './chat.js';
import { formatCount, formatMs, formatRate } from './format.js';
import { AgainIcon, AlertIcon, CheckIcon, ChevronIcon, CopyIcon, EditIcon } from './icons.js';
import { renderBlocks } from './markdown.js';

/** Works without navigator.clipboard too, which plain http from another machine does not have. */
async function copyText(text) {
    try {
        await navigator.clipboard.writeText(text);
        return;
    } catch {
        /* the old way */
    }
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'hidden';
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
}

export function CopyButton({ text, label }) {
    const [isCopied, setCopied] = useState(false);
    const onClick = async () => {
        await copyText(text);
        setCopied(true);
        setTimeout(() => setCopied(false), 1500);
    };
    return html`<button type="button" class="quiet" aria-label=${isCopied ? 'Copied' : label} title=${label} onClick=${onClick}>
        ${isCopied ? html`<${CheckIcon} />` : html`<${CopyIcon} />`}
    </button>`;
}

class Block extends Component {
    shouldComponentUpdate({ block }) {
        const old = this.props.block;
        return block.html !== old.html || block.text !== old.text || block.lang !== old.lang || block.kind !== old.kind;
    }

    render({ block }) {
        if (block.kind === 'code') {
            return html`<figure class="code">
                <figcaption><span>${block.lang || 'code'}</span><${CopyButton} text=${block.text} label="Copy code" /></figcaption>
                <pre tabindex="0"><code>${block.text}</code></pre>
            </figure>`;
        }
        const inner = { __html: block.html };
        return html`<div class=${block.kind === 'table' ? 'table' : 'block'} dangerouslySetInnerHTML=${inner} />`;
    }
}

function Markdown({ text }) {
    const cache = useRef(new Map());
    return renderBlocks(text, cache.current).map((block, i) => html`<${Block} key=${i} block=${block} />`);
}

/** Open while the model thinks, closed once it answers; after a click it stays as the user wants it. */
function Reasoning({ message }) {
    const [chosen, setChosen] = useState(null);
    const isThinking = message.state === 'reasoning';
    const isOpen = chosen ?? isThinking;
    const time = message.stats?.thoughtMs;
    const title = isThinking ? 'Thinking' : time == null ? 'Thoughts' : `Thought for ${formatMs(time)}`;
    return html`<div class="reasoning">
        <button type="button" aria-expanded=${isOpen} onClick=${() => setChosen(!isOpen)}>
            <${ChevronIcon} /><span class=${isThinking ? 'shimmer' : ''}>${title}</span>
        </button>
        ${isOpen && html`<div class="reasoning-text" role="region" aria-label="Reasoning">${message.reasoning.trim()}</div>`}
    </div>`;
}

const FINISH = { length: 'reached the token limit', content_filter: 'filtered', insufficient_system_resource: 'the server ran out of resources' };

function Stats({ message }) {
    const { stats, state } = message;
    if (!stats || stats.ttftMs === null) return null;
    const parts = [`${formatCount(stats.tokens)} token${stats.tokens === 1 ? '' : 's'}`];
    if (stats.rate) parts.push(`${formatRate(stats.rate)} tok/s`);
    parts.push(`first token ${formatMs(stats.ttftMs)}`);
    if (stats.cachedTokens) parts.push(`${formatCount(stats.cachedTokens)} of ${formatCount(stats.promptTokens)} prompt tokens cached`);
    if (state === 'stopped') parts.push('stopped');
    if (FINISH[stats.finish]) parts.push(FINISH[stats.finish]);
    return html`<span class="stats">${parts.map((p) => html`<span key=${p}>${p}</span>`)}</span>`;
}

function ErrorNote({ text, onAgain }) {
    return html`<div class="error" role="alert"><${AlertIcon} /><p>${text}</p>
        ${onAgain && html`<button type="button" onClick=${onAgain}>Try again</button>`}
    </div>`;
}

function Answer({ message, isLast, onAgain, onGoOn }) {
    const { state } = message;
    const isGrowing = ['waiting', 'reasoning', 'answering'].includes(state);
    const again = isLast && !isGrowing ? onAgain : null;
    return html`<article class="answer" data-state=${state} aria-label="Answer" aria-busy=${isGrowing}>
        ${message.reasoning && html`<${Reasoning} message=${message} />`}
        ${state === 'waiting' && html`<p class="waiting" aria-label="Waiting for the first token"><i /><i /><i /></p>`}
        <div class="prose"><${Markdown} text=${message.text} /></div>
        ${state === 'stopped' && !message.text && html`<p class="muted">Stopped before an answer.</p>`}
        ${state === 'done' && !message.text && html`<p class="muted">The model ended without an answer.</p>`}
        ${state === 'failed' && html`<${ErrorNote} text=${message.error} onAgain=${again} />`}
        <footer class=${isLast ? 'last' : ''}>
            ${!isGrowing && message.text && html`<${CopyButton} text=${message.text} label="Copy answer" />`}
            ${again && state !== 'failed' && html`<button type="button" class="quiet" aria-label="Answer again" title="Answer again" onClick=${again}><${AgainIcon} /></button>`}
            <${Stats} message=${message} />
            ${isLast && canGoOn(message) && html`<button type="button" class="plain go-on" onClick=${onGoOn}>Continue</button>`}
        </footer>
    </article>`;
}

function Question({ message, onEdit }) {
    return html`<article class="question" aria-label="You">
        ${onEdit && html`<button type="button" class="quiet" aria-label="Edit question" title="Edit and ask again" onClick=${() => onEdit(message.id)}><${EditIcon} /></button>`}
        <p>${message.text}</p>
    </article>`;
}

export class Message extends Component {
    shouldComponentUpdate(next) {
        return ['message', 'isLast', 'isBusy'].some((k) => next[k] !== this.props[k]);
    }

    render({ message, isLast, isBusy, onAgain, onGoOn, onEdit }) {
        return message.role === 'user'
            ? html`<${Question} message=${message} onEdit=${isBusy ? null : onEdit} />`
            : html`<${Answer} message=${message} isLast=${isLast} onAgain=${onAgain} onGoOn=${onGoOn} />`;
    }
}
