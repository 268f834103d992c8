/* What the user set, kept in the browser; and the request fields that follow from it. */
import { load, local, save, Store } from './store.js';

export const DEFAULTS = {
    system: '',
    thinking: false,
    temperature: 0.6,
    topP: 0.95,
    maxTokens: 512,
    seed: '',
    theme: 'system',
    monitor: true,
};

export const settings = new Store(load(local, 'hadal.settings', DEFAULTS));

export function change(patch) {
    settings.set(patch);
    save(local, 'hadal.settings', settings.state);
    applyTheme();
}

export function applyTheme() {
    const { theme } = settings.state;
    if (theme === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
}

/** What comes of the wish to think, by the model's own description (meta; absent while unknown): whether it will, and whether that
 *  can be chosen. */
export function thinkingOf(meta, wish) {
    const can = meta?.can_think ?? true;
    const always = meta?.always_thinks ?? false;
    return { on: always || (can && wish), isFree: can && !always };
}

/** Sampling fields of a request. A blank seed means a fresh one each time. */
export function requestFields(s) {
    const fields = {
        temperature: s.temperature,
        top_p: s.topP,
        max_tokens: s.maxTokens,
        thinking: { type: s.thinking ? 'enabled' : 'disabled' },
    };
    if (s.seed !== '') fields.seed = Number(s.seed);
    return fields;
}
