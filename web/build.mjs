// Bundles src/ into dist/: index.html, app.js, app.css, icon.svg, licenses.txt, and a gzip twin of
// each that is worth it. Run by `npm run build`, and by cmake/web_build.cmake in the build folder.
import { build } from 'esbuild';
import { copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, 'dist');
const GZIP_MIN_BYTES = 1024;

export const BUNDLE = {
    absWorkingDir: here,
    entryPoints: { app: 'src/main.js' },
    outdir: dist,
    bundle: true,
    minify: true,
    format: 'esm',
    target: ['chrome100', 'firefox100', 'safari15.4'],
    legalComments: 'none',
    logLevel: 'warning',
};

/** The licence texts of what is bundled: their terms ask for them to travel along. */
function licenses() {
    const names = Object.keys(JSON.parse(readFileSync(join(here, 'package.json'))).devDependencies);
    const parts = [];
    for (const name of names.filter((n) => n !== 'esbuild')) {
        const folder = join(here, 'node_modules', name);
        const info = JSON.parse(readFileSync(join(folder, 'package.json')));
        const file = readdirSync(folder).find((f) => /^licen[cs]e/i.test(f));
        const text = file ? readFileSync(join(folder, file), 'utf8').trim() : '';
        parts.push(`${name} ${info.version} (${info.license})\n\n${text}\n`);
    }
    return parts.join('\n' + '-'.repeat(72) + '\n\n');
}

export function copyStatic() {
    mkdirSync(dist, { recursive: true });
    for (const file of ['index.html', 'icon.svg']) copyFileSync(join(here, 'src', file), join(dist, file));
    writeFileSync(join(dist, 'licenses.txt'), licenses());
}

export async function buildPage() {
    if (existsSync(dist)) rmSync(dist, { recursive: true });
    copyStatic();
    await build(BUNDLE);
    for (const file of readdirSync(dist)) {
        const bytes = readFileSync(join(dist, file));
        if (bytes.length < GZIP_MIN_BYTES) continue;
        writeFileSync(join(dist, file + '.gz'), gzipSync(bytes, { level: 9 }));
    }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await buildPage();
