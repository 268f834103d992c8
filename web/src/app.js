/* The page: header, conversation, composer, side panel. */
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { Chat } from './chat.js';
import { Composer } from './composer.js';
import { KeyDialog, SettingsDialog } from './dialogs.js';
import { EXAMPLES } from './examples.js';
import { formatCount, formatRate } from './format.js';
import { DownIcon, Mark, PlusIcon, PulseIcon, SlidersIcon } from './icons.js';
import { Message } from './message.js';
import { Monitor } from './monitor.js';
import { Panel } from './panel.js';
import { change, requestFields, settings, thinkingOf } from './settings.js';
import { useStore } from './store.js';

const LINKS = { connecting: 'Connecting', up: 'Ready', loading: 'Loading the model', locked: 'API key needed', down: 'Server not reachable' };
const isNarrow = () => matchMedia('(max-width: 60rem)').matches;

function Header({ monitor, isPanelOpen, onNew, onSettings, onPanel, hasMessages }) {
    const link = useStore(monitor, (s) => s.link);
    const model = useStore(monitor, (s) => s.model);
    const rate = useStore(monitor, (s) => s.now?.generated ?? 0);
    return html`<header class="top">
        <h1><${Mark} /><span>hadal</span></h1>
        <p class="link" data-link=${link} title=${LINKS[link]}><i aria-hidden="true" /><span class="name">${model?.id ?? LINKS[link]}</span>
            <span class="hidden" role="status">${LINKS[link]}</span></p>
        <nav aria-label="Page">
            <button type="button" class="quiet wide" disabled=${!hasMessages} onClick=${onNew} aria-label="New chat"><${PlusIcon} /><span>New chat</span></button>
            <button type="button" class="quiet" aria-label="Settings" title="Settings" onClick=${onSettings}><${SlidersIcon} /></button>
            <button type="button" class="quiet wide" aria-label="Live figures" title="Live figures" aria-pressed=${isPanelOpen} onClick=${onPanel}>
                <${PulseIcon} />${rate > 0 && html`<span class="rate">${formatRate(rate)} tok/s</span>`}</button>
        </nav>
    </header>`;
}

function Welcome({ model, onExample }) {
    const context = model?.max_model_len;
    return html`<div class="welcome">
        <${Mark} />
        <h2>What shall we try?</h2>
        <p class="muted">${model ? `${model.id} answers here${context ? `, with ${formatCount(context)} tokens of context` : ''}.` : 'Looking for the server.'}</p>
        <ul class="examples">${EXAMPLES.map((x) => html`<li key=${x.title}><button type="button" onClick=${() => onExample(x)}>
            <strong>${x.title}</strong><span lang=${x.lang}>${x.prompt}</span></button></li>`)}</ul>
    </div>`;
}

/** Keeps the end in view while the reader is at the end. */
function useFollow(dependency) {
    const box = useRef();
    const isAtEnd = useRef(true);
    const [isAway, setAway] = useState(false);
    const toEnd = () => {
        isAtEnd.current = true;
        setAway(false);
        box.current.scrollTop = box.current.scrollHeight;
    };
    useLayoutEffect(() => {
        if (isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
    }, [dependency]);
    const onScroll = () => {
        const { scrollTop, scrollHeight, clientHeight } = box.current;
        isAtEnd.current = scrollHeight - scrollTop - clientHeight < 48;
        setAway(!isAtEnd.current);
    };
    return { box, onScroll, isAway, toEnd };
}

/** Said to screen readers once, when an answer ends; not token by token. */
function spoken(messages) {
    const last = messages.at(-1);
    if (last?.role !== 'assistant') return '';
    return { done: `Answer: ${last.text}`, stopped: 'Stopped.', waiting: 'Waiting for the answer.' }[last.state] ?? '';
}

function Conversation({ chat, monitor, onExample, onAgain, onGoOn, onEdit }) {
    const { messages, isBusy } = useStore(chat);
    const model = useStore(monitor, (s) => s.model);
    const { box, onScroll, isAway, toEnd } = useFollow(messages);
    const count = messages.length;
    useLayoutEffect(toEnd, [count]);
    return html`<div class="scroll" ref=${box} onScroll=${onScroll} tabindex="-1">
        ${count === 0
            ? html`<${Welcome} model=${model} onExample=${onExample} />`
            : html`<section class="thread" aria-label="Conversation">${messages.map((m, i) => html`<${Message} key=${m.id} message=${m}
                isLast=${i === count - 1} isBusy=${isBusy} onAgain=${onAgain} onGoOn=${onGoOn} onEdit=${onEdit} />`)}</section>`}
        ${isAway && count > 0 && html`<button type="button" class="to-end" aria-label="To the latest" onClick=${toEnd}><${DownIcon} /></button>`}
        <p class="hidden" role="status">${spoken(messages)}</p>
    </div>`;
}

function useShortcuts(onStop) {
    useEffect(() => {
        const onKey = (e) => {
            if (document.querySelector('dialog[open]')) return;
            const isTyping = /^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName);
            if (e.key === 'Escape') onStop();
            if (e.key === '/' && !isTyping) {
                e.preventDefault();
                document.getElementById('question').focus();
            }
        };
        addEventListener('keydown', onKey);
        return () => removeEventListener('keydown', onKey);
    }, []);
}

export function App() {
    const [dialog, setDialog] = useState(null); // 'settings' | 'key' | 'locked'
    const [text, setText] = useState('');
    const [isPanelOpen, setPanelOpen] = useState(() => settings.state.monitor && !isNarrow());
    const [chat] = useState(() => new Chat(() => setDialog('locked')));
    const [monitor] = useState(() => new Monitor(() => setDialog('locked')));
    const isBusy = useStore(chat, (s) => s.isBusy);
    const hasMessages = useStore(chat, (s) => s.messages.length > 0);
    const model = useStore(monitor, (s) => s.model);
    useEffect(() => monitor.start(), []);
    useShortcuts(() => chat.stop());

    const fields = () => {
        const s = settings.state;
        return requestFields({ ...s, thinking: thinkingOf(model?.meta, s.thinking).on });
    };
    const send = (question) => {
        setText('');
        chat.send(question, settings.state.system, fields());
    };
    const showPanel = (isOpen) => {
        setPanelOpen(isOpen);
        if (!isNarrow()) change({ monitor: isOpen });
    };
    const startNew = () => {
        chat.clear();
        document.getElementById('question').focus();
    };
    const edit = (id) => {
        setText(chat.takeBack(id) ?? '');
        document.getElementById('question').focus();
    };
    const onExample = (x) => {
        change({ thinking: !!x.thinking });
        send(x.prompt);
    };
    const onSaved = () => {
        setDialog(null);
        monitor.retry();
        if (chat.state.messages.at(-1)?.state === 'failed') chat.regenerate(settings.state.system, fields());
    };
    return html`<div class="page" data-panel=${isPanelOpen}>
        <${Header} monitor=${monitor} isPanelOpen=${isPanelOpen} hasMessages=${hasMessages} onNew=${startNew}
            onSettings=${() => setDialog('settings')} onPanel=${() => showPanel(!isPanelOpen)} />
        <main>
            <${Conversation} chat=${chat} monitor=${monitor} onExample=${onExample} onEdit=${edit}
                onAgain=${() => chat.regenerate(settings.state.system, fields())} onGoOn=${() => chat.goOn(settings.state.system, fields())} />
            <${Composer} text=${text} onText=${setText} isBusy=${isBusy} meta=${model?.meta} onSend=${send} onStop=${() => chat.stop()} />
        </main>
        ${isPanelOpen && html`<${Panel} monitor=${monitor} onClose=${() => showPanel(false)} />`}
        ${dialog === 'settings' && html`<${SettingsDialog} maxLength=${model?.max_model_len} onClose=${() => setDialog(null)} onKey=${() => setDialog('key')} />`}
        ${(dialog === 'key' || dialog === 'locked') && html`<${KeyDialog} isAsked=${dialog === 'locked'} onClose=${() => setDialog(null)} onSaved=${onSaved} />`}
    </div>`;
}
