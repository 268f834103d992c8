// For work on the page: `npm run dev -- http://127.0.0.1:8080` serves src/ freshly bundled on each
// load, at http://127.0.0.1:8081, and passes everything else on to that hadal server.
import { context } from 'esbuild';
import { createServer, request } from 'node:http';
import { readFileSync } from 'node:fs';
import { BUNDLE, copyStatic } from './build.mjs';

const server = new URL(process.argv[2] ?? 'http://127.0.0.1:8080');
const port = Number(process.argv[3] ?? 8081);
const TYPES = { html: 'text/html; charset=utf-8', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml', txt: 'text/plain' };
const bundle = await context({ ...BUNDLE, minify: false, sourcemap: 'inline' });

async function answerPage(res, file) {
    copyStatic();
    await bundle.rebuild();
    res.writeHead(200, { 'content-type': TYPES[file.split('.').pop()], 'cache-control': 'no-store' });
    res.end(readFileSync(new URL(`dist/${file}`, import.meta.url)));
}

function passOn(req, res) {
    const { host, ...headers } = req.headers;
    const out = request({ host: server.hostname, port: server.port, path: req.url, method: req.method, headers }, (back) => {
        res.writeHead(back.statusCode, back.headers);
        back.pipe(res);
    });
    out.on('error', (e) => {
        if (!res.headersSent) res.writeHead(502);
        res.end(String(e));
    });
    res.on('close', () => out.destroy());
    req.pipe(out);
}

createServer((req, res) => {
    const file = req.url === '/' ? 'index.html' : req.url.slice(1);
    if (!['index.html', 'app.js', 'app.css', 'icon.svg', 'licenses.txt'].includes(file)) return passOn(req, res);
    answerPage(res, file).catch((e) => res.writeHead(500).end(String(e)));
}).listen(port, '127.0.0.1', () => console.log(`http://127.0.0.1:${port} -> ${server.origin}`));
