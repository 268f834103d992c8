/* A value that components can watch. State is replaced, never changed in place. */
import { useLayoutEffect, useReducer, useRef } from 'preact/hooks';

export class Store {
    #watchers = new Set();

    constructor(state) {
        this.state = state;
    }

    set(patch) {
        this.state = { ...this.state, ...patch };
        for (const watch of [...this.#watchers]) watch();
    }

    watch(fn) {
        this.#watchers.add(fn);
        return () => this.#watchers.delete(fn);
    }
}

/** The picked part of a store; the component is drawn again when that part changes. */
export function useStore(store, pick = (s) => s) {
    const [, redraw] = useReducer((n) => n + 1, 0);
    const now = useRef();
    now.current = { value: pick(store.state), pick };
    useLayoutEffect(() => {
        const check = () => {
            if (now.current.pick(store.state) !== now.current.value) redraw();
        };
        check();
        return store.watch(check);
    }, [store]);
    return now.current.value;
}

/** JSON kept in the browser; unreadable or forbidden storage counts as empty. */
export function load(storage, key, fallback) {
    try {
        return { ...fallback, ...JSON.parse(storage().getItem(key) ?? '{}') };
    } catch {
        return fallback;
    }
}

export function save(storage, key, value) {
    try {
        storage().setItem(key, JSON.stringify(value));
    } catch {
        /* private mode or full: the page works without */
    }
}

export const local = () => window.localStorage;
export const session = () => window.sessionStorage;
