/* Prometheus text to numbers: name -> sum over its label sets. Histogram buckets are left out, since
 * the page needs only sums and counts. */
export function parseMetrics(text) {
    const values = new Map();
    for (const line of text.split('\n')) {
        const m = /^([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)/.exec(line);
        if (!m || m[1].endsWith('_bucket')) continue;
        const value = Number(m[3]);
        if (Number.isFinite(value)) values.set(m[1], (values.get(m[1]) ?? 0) + value);
    }
    return values;
}
