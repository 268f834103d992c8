/* uPlot in a component: follows its box's width and the theme, and says values under the pointer. */
import { useEffect, useRef } from 'preact/hooks';
import { html } from 'htm/preact';
import uPlot from 'uplot';
import { formatRate, formatShare } from './format.js';
import { WINDOW_S } from './monitor.js';

const HEIGHT_PX = 132;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axisTime() {
    return {
        stroke: css('--muted'),
        font: '11px system-ui, sans-serif',
        size: 24,
        gap: 4,
        grid: { show: false },
        ticks: { show: false },
        splits: (u) => [45, 30, 15].map((s) => u.scales.x.max - s),
        values: (u, splits) => splits.map((t) => `−${Math.round(u.scales.x.max - t)} s`),
    };
}

function axisValue(scale, side, format, isGrid) {
    return {
        scale,
        side,
        stroke: css('--muted'),
        font: '11px system-ui, sans-serif',
        size: 38,
        gap: 6,
        space: 36,
        grid: { show: isGrid, stroke: css('--line'), width: 1 },
        ticks: { show: false },
        values: (u, splits) => splits.map((v) => (v === null ? '' : format(v))),
    };
}

function line(label, scale, color, fill, isStepped) {
    return {
        label,
        scale,
        stroke: css(color),
        width: 1.5,
        fill: fill ? css(fill) : undefined,
        points: { show: false },
        paths: isStepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    };
}

const fromZero = (least) => (u, lo, hi) => [0, Math.max(least, (hi ?? 0) * 1.1)];
const whole = (v) => (Number.isInteger(v) ? String(v) : '');

const KINDS = {
    throughput: {
        label: 'Tokens per second over the last minute',
        ids: ['generated', 'prompt'],
        formats: [(v) => `${formatRate(v)} tok/s generated`, (v) => `${formatRate(v)} tok/s prompt`],
        scales: () => ({ y: { range: fromZero(10) } }),
        axes: () => [axisTime(), axisValue('y', 3, formatRate, true)],
        series: () => [{}, line('generated', 'y', '--series-1', '--series-1-fill'), line('prompt', 'y', '--series-2')],
    },
    load: {
        label: 'Requests and KV cache over the last minute',
        ids: ['running', 'waiting', 'kv'],
        formats: [(v) => `${v} running`, (v) => `${v} waiting`, (v) => `${formatShare(v)} of KV cache`],
        scales: () => ({ y: { range: fromZero(4) }, share: { range: [0, 1] } }),
        axes: () => [axisTime(), axisValue('y', 3, whole, true), axisValue('share', 1, formatShare, false)],
        series: () => [
            {},
            line('running', 'y', '--series-1', '--series-1-fill', true),
            line('waiting', 'y', '--series-3', null, true),
            line('kv', 'share', '--series-4'),
        ],
    },
};

function tooltip(kind) {
    const box = document.createElement('div');
    box.className = 'chart-tip';
    const place = (u) => {
        const i = u.cursor.idx;
        const rows = i == null ? [] : kind.formats.flatMap((f, k) => (u.data[k + 1][i] == null ? [] : [f(u.data[k + 1][i])]));
        box.hidden = !rows.length || u.cursor.left < 0;
        if (box.hidden) return;
        box.replaceChildren(...rows.map((text) => Object.assign(document.createElement('div'), { textContent: text })));
        const isRight = u.cursor.left > u.over.clientWidth / 2;
        box.style.left = isRight ? '' : `${u.cursor.left + 10}px`;
        box.style.right = isRight ? `${u.over.clientWidth - u.cursor.left + 10}px` : '';
    };
    return { hooks: { init: (u) => u.over.append(box), setCursor: place, setData: place } };
}

function draw(kind, element, data) {
    const options = {
        width: Math.max(200, element.clientWidth),
        height: HEIGHT_PX,
        padding: [8, 8, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: { x: { time: false, range: (u, lo, hi) => [(hi ?? 0) - WINDOW_S, hi ?? 0] }, ...kind.scales() },
        axes: kind.axes(),
        series: kind.series(),
        plugins: [tooltip(kind)],
    };
    return new uPlot(options, data, element);
}

/** kind: 'throughput' or 'load'; series: Monitor's. */
export function Chart({ kind: name, series, theme }) {
    const kind = KINDS[name];
    const element = useRef();
    const plot = useRef();
    const data = [series.at, ...kind.ids.map((id) => series[id])];
    const shown = useRef();
    shown.current = data;
    useEffect(() => {
        const box = element.current;
        const make = () => {
            plot.current?.destroy();
            plot.current = draw(kind, box, shown.current);
        };
        make();
        const dark = matchMedia('(prefers-color-scheme: dark)');
        dark.addEventListener('change', make);
        const sizes = new ResizeObserver(() =>
            plot.current?.setSize({ width: Math.max(200, box.clientWidth), height: HEIGHT_PX }));
        sizes.observe(box);
        return () => {
            dark.removeEventListener('change', make);
            sizes.disconnect();
            plot.current.destroy();
            plot.current = null;
        };
    }, [theme]);
    useEffect(() => plot.current?.setData(data), [series]);
    return html`<div class="chart" role="img" aria-label=${kind.label} ref=${element} />`;
}
