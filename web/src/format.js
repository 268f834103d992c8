/* Numbers for people. */
const plain = new Intl.NumberFormat('en');

export const formatCount = (n) => plain.format(Math.round(n));

/** 0 -> "0", 3.21 -> "3.2", 118.4 -> "118", 12345 -> "12.3k" */
export function formatRate(n) {
    if (!Number.isFinite(n) || n <= 0) return '0';
    if (n < 10) return n.toFixed(1);
    if (n < 10000) return String(Math.round(n));
    return (n / 1000).toFixed(n < 100000 ? 1 : 0) + 'k';
}

/** Milliseconds -> "35 ms", "1.2 s", "2 min 5 s" */
export function formatMs(ms) {
    if (!Number.isFinite(ms)) return '–';
    if (ms < 995) return `${Math.round(ms)} ms`;
    if (ms < 59950) return `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;
    const s = Math.round(ms / 1000);
    return `${Math.floor(s / 60)} min ${s % 60} s`;
}

export const formatShare = (x) => (Number.isFinite(x) ? `${+(x * 100).toFixed(x > 0 && x < 0.0995 ? 1 : 0)} %` : '–');

/** 17_090_000 -> "17.1M" */
export function formatParams(n) {
    if (n >= 1e9) return `${(n / 1e9).toFixed(1)}B`;
    if (n >= 1e6) return `${(n / 1e6).toFixed(1)}M`;
    return formatCount(n);
}
