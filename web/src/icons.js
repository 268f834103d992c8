/* Line icons, drawn in the current colour; decoration only, the button carries the name. */
import { html } from 'htm/preact';

const icon = (body) => html`<svg viewBox="0 0 24 24" width="20" height="20" fill="none" stroke="currentColor"
    stroke-width="1.75" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">${body}</svg>`;

export const SendIcon = () => icon(html`<path d="M12 19V5M6 11l6-6 6 6" />`);
export const StopIcon = () => icon(html`<rect x="7" y="7" width="10" height="10" rx="2" fill="currentColor" stroke="none" />`);
export const PlusIcon = () => icon(html`<path d="M12 5v14M5 12h14" />`);
export const SlidersIcon = () => icon(html`<path d="M4 8h9M17 8h3M4 16h3M11 16h9" /><circle cx="15" cy="8" r="2" /><circle cx="9" cy="16" r="2" />`);
export const PulseIcon = () => icon(html`<path d="M3 12h4l3-7 4 14 3-7h4" />`);
export const CopyIcon = () => icon(html`<rect x="9" y="9" width="11" height="11" rx="2" /><path d="M5 15V6a2 2 0 0 1 2-2h8" />`);
export const CheckIcon = () => icon(html`<path d="M5 12.500l4.500 4.500L19 7.500" />`);
export const AgainIcon = () => icon(html`<path d="M19 12a7 7 0 1 1-2.100-5" /><path d="M19.500 3.500V8H15" />`);
export const EditIcon = () => icon(html`<path d="M4 20h4L19 9l-4-4L4 16zM13 7l4 4" />`);
export const ThinkIcon = () => icon(html`<path d="M9.500 18h5M10.500 21h3M12 3a6 6 0 0 1 3.600 10.800c-.700.500-1.100 1.200-1.100 2.200h-5c0-1-.400-1.700-1.100-2.200A6 6 0 0 1 12 3z" />`);
export const ChevronIcon = () => icon(html`<path d="M9 6l6 6-6 6" />`);
export const CloseIcon = () => icon(html`<path d="M6 6l12 12M18 6L6 18" />`);
export const DownIcon = () => icon(html`<path d="M12 5v14M6 13l6 6 6-6" />`);
export const AlertIcon = () => icon(html`<circle cx="12" cy="12" r="9" /><path d="M12 7.500v5.500M12 16.500v.010" />`);

export const Mark = () => html`<svg viewBox="0 0 32 32" width="28" height="28" aria-hidden="true" class="mark">
    <rect width="32" height="32" rx="8" />
    <path d="M6 9c5 0 7 3 10 3s5-3 10-3" />
    <path d="M8 14.500c4 0 5.500 4.200 8 4.200s4-4.200 8-4.200" opacity=".7" />
    <path d="M11 20c2.500 0 3.500 4.500 5 4.500s2.500-4.500 5-4.500" opacity=".5" />
</svg>`;
