/* Markdown of an answer to safe HTML, block by block, so that a growing answer only renders its last
 * block anew. Raw HTML in the answer is shown as text; DOMPurify is the second wall. Nothing that
 * would load from another host comes through: a picture becomes a link to it. */
import DOMPurify from 'dompurify';
import { Marked } from 'marked';

const escapes = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
const escapeHtml = (s) => s.replace(/[&<>"']/g, (c) => escapes[c]);

const marked = new Marked({
    gfm: true,
    breaks: true,
    renderer: {
        html: ({ text }) => escapeHtml(text),
        image: ({ href, text }) => `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`,
        heading({ tokens, depth }) {
            const level = Math.min(6, depth + 2);
            return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
        },
        checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
    },
});

const PURIFY = {
    ALLOWED_TAGS: ['p', 'br', 'strong', 'em', 'del', 'code', 'pre', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li',
        'blockquote', 'table', 'thead', 'tbody', 'tr', 'th', 'td', 'hr', 'a'],
    ALLOWED_ATTR: ['href', 'title', 'start', 'align', 'target', 'rel'],
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
};
DOMPurify.addHook('afterSanitizeAttributes', (node) => {
    if (node.tagName !== 'A') return;
    node.setAttribute('target', '_blank');
    node.setAttribute('rel', 'noopener noreferrer nofollow');
});

/** -> [{kind: 'code', text, lang} | {kind: 'html' or 'table', html}]. cache: a Map kept with the text. */
export function renderBlocks(text, cache) {
    const tokens = marked.lexer(text).filter((token) => token.type !== 'space');
    const blocks = [];
    for (const token of tokens) {
        if (token.type === 'code') {
            blocks.push({ kind: 'code', text: token.text, lang: (token.lang ?? '').split(/\s/)[0] });
            continue;
        }
        let html = cache.get(token.raw);
        if (html === undefined) {
            html = DOMPurify.sanitize(marked.parser([token]), PURIFY);
            if (token !== tokens.at(-1)) cache.set(token.raw, html);
        }
        blocks.push({ kind: token.type === 'table' ? 'table' : 'html', html });
    }
    return blocks;
}
