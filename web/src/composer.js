/* Where a question is written. */
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { html } from 'htm/preact';
import { SendIcon, StopIcon, ThinkIcon } from './icons.js';
import { change, settings, thinkingOf } from './settings.js';
import { useStore } from './store.js';

export function Composer({ text, onText, isBusy, onSend, onStop, meta }) {
    const area = useRef();
    const wish = useStore(settings, (s) => s.thinking);
    const thinking = thinkingOf(meta, wish);
    const title = thinking.isFree ? 'Let the model reason before it answers' : thinking.on ? 'This model always reasons' : 'This model does not reason';
    // As tall as its text, within what the stylesheet allows.
    useLayoutEffect(() => {
        area.current.style.height = 'auto';
        area.current.style.height = `${area.current.scrollHeight}px`;
    }, [text]);
    useEffect(() => {
        if (matchMedia('(hover: hover)').matches) area.current.focus();
    }, []);
    const submit = (e) => {
        e?.preventDefault();
        if (!isBusy && text.trim()) onSend(text);
    };
    const onKeyDown = (e) => {
        // Enter that ends an input method's composition is not a send.
        if (e.key === 'Enter' && !e.shiftKey && !e.isComposing && e.keyCode !== 229) submit(e);
    };
    return html`<form class="composer" onSubmit=${submit}>
        <textarea ref=${area} id="question" rows="1" placeholder="Ask something" aria-label="Your question" autocomplete="off"
            value=${text} onInput=${(e) => onText(e.target.value)} onKeyDown=${onKeyDown} />
        <div class="composer-row">
            <button type="button" class="pill" aria-pressed=${thinking.on} disabled=${!thinking.isFree} title=${title}
                onClick=${() => change({ thinking: !wish })}><${ThinkIcon} />Think</button>
            <span class="hint" aria-hidden="true"><kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> new line</span>
            ${isBusy
                ? html`<button type="button" class="send stop" key="stop" aria-label="Stop" title="Stop (Esc)" onClick=${onStop}><${StopIcon} /></button>`
                : html`<button type="submit" class="send" key="send" aria-label="Send" title="Send" disabled=${!text.trim()}><${SendIcon} /></button>`}
        </div>
    </form>`;
}
