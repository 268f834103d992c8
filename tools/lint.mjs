// Lint that clang-tidy cannot do: include direction, file, function and parameter limits, banned
// calls, shape comments, unfinished work, what documents name, rows that nothing uses.
// Usage: node tools/lint.mjs [--self-test]
// It reads the files git knows (tracked, and untracked but not ignored) and exits 1 with one line a fault.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');

// What a folder may include besides itself (ARCHITECTURE.md has the same table for people).
const layers = {
  base: [],
  quant: ['base'], text: ['base'], kv: ['base'],
  file: ['base', 'quant'],
  dev: ['base', 'quant'],
  ref: ['base', 'quant', 'dev'], cpu: ['base', 'quant', 'dev'],
  cuda: ['base', 'quant', 'dev'],
  model: ['base', 'quant', 'file', 'dev'],
  sched: ['base', 'kv'],
  engine: ['base', 'quant', 'text', 'kv', 'file', 'dev', 'model', 'sched', 'hadal.h'],
  sim: ['base', 'file', 'sched', 'engine', 'hadal.h'],
  srv: ['base', 'hadal.h'],
  cmd: ['base', 'quant', 'text', 'kv', 'file', 'dev', 'model', 'sched', 'engine', 'sim', 'srv', 'hadal.h'],
  include: ['base'],
};

const banned = [
  // [pattern, where it is allowed, why]
  [/\bgetenv\s*\(/, /^(lib\/base\/opt\.c|tests\/)/, 'the environment is read by the option table only'],
  [/\b_?exit\s*\(/, /^(cmd|tests)\//, 'a library never exits'],
  [/\babort\s*\(/, /^(lib\/base\/|tests\/)/, 'use HD_ASSERT or a status'],
  [/\b(strcpy|strcat|sprintf|vsprintf|gets)\s*\(/, /^$/, 'unbounded copy'],
  [/\b(atoi|atol|atof|strtok)\s*\(/, /^$/, 'no error reporting'],
  [/\b(rand|srand|random)\s*\(/, /^$/, 'not reproducible by seed'],
  [/\b(alloca|system|popen)\s*\(/, /^$/, 'banned'],
  [/\b(malloc|calloc|realloc|aligned_alloc)\s*\(/, /^(lib\/base\/mem\.c|tests\/)/, 'use base/mem.h'],
];

const limits = { file: 1500, header: 300, 'include/hadal.h': 400, function: 100, parameters: 6 };

// A file's text with comments and literals blanked, line structure kept.
function strip(text) {
  return text.replace(/\/\*[\s\S]*?\*\/|\/\/[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'/g,
    (m) => m[0] === '/' ? m.replace(/[^\n]/g, ' ') : m[0] + ' '.repeat(Math.max(0, m.length - 2)) + m[0]);
}

function layerOf(file) {
  const m = /^lib\/(\w+)\//.exec(file) ?? /^(srv|cmd|include)\//.exec(file);
  return m?.[1];
}

function checkIncludes(file, text, fault) {
  const own = layerOf(file);
  if (!own) return;
  if (!(own in layers)) return fault(1, `folder ${own} has no row in the include table`);
  text.split('\n').forEach((line, i) => {
    const m = /^\s*#\s*include\s+"([^"]+)"/.exec(line);
    if (!m) return;
    const target = m[1] === 'hadal.h' ? 'hadal.h' : m[1].split('/')[0];
    if (!m[1].includes('/') && target !== 'hadal.h') return; // a header beside the file
    if (target !== own && !layers[own].includes(target)) fault(i + 1, `${own} may not include ${m[1]}`);
  });
}

function countParameters(signature) {
  const open = signature.indexOf('(');
  let depth = 0, commas = 0;
  for (const c of signature.slice(open)) {
    if (c === '(') depth++;
    if (c === ')') { depth--; if (depth === 0) break; }
    if (c === ',' && depth === 1) commas++;
  }
  return /\(\s*(void)?\s*\)/.test(signature.slice(open)) ? 0 : commas + 1;
}

// Functions begin with a line at column 0 and end with a '}' at column 0 (clang-format's layout).
function checkFunctions(file, code, fault) {
  const lines = code.split('\n');
  for (let i = 0; i < lines.length; i++) {
    if (!/^[A-Za-z_]/.test(lines[i]) || /^(typedef|struct|enum|union|extern|static const \w+ \w+ ?\[|#)/.test(lines[i]) && !/\(/.test(lines[i])) continue;
    let j = i, signature = lines[i];
    while (j < lines.length - 1 && j < i + 12 && !/[{;]\s*(\\)?$/.test(lines[j])) signature += ' ' + lines[++j].trim();
    if (!/\)\s*\{$/.test(signature.trim()) || /=\s*\{$/.test(signature.trim())) continue;
    let end = j;
    while (end < lines.length && lines[end] !== '}') end++;
    const length = end - i + 1;
    if (length > limits.function) fault(i + 1, `function of ${length} lines (limit ${limits.function})`);
    const n = countParameters(signature);
    if (n > limits.parameters) fault(i + 1, `function with ${n} parameters (limit ${limits.parameters}; use a struct)`);
    i = end;
  }
}

function checkC(file, text, fault) {
  const lines = text.split('\n');
  const code = strip(text);
  const isHeader = file.endsWith('.h');
  const cap = limits[file] ?? (isHeader ? limits.header : limits.file);
  if (lines.length - 1 > cap) fault(1, `${lines.length - 1} lines (limit ${cap})`);
  if (!/^\/[*/]/.test(text)) fault(1, 'no comment at its head');
  checkIncludes(file, text, fault);
  if (file.endsWith('.c')) checkFunctions(file, code, fault);
  code.split('\n').forEach((line, i) => {
    if (/^\s*#/.test(line)) return;
    for (const [pattern, allowed, why] of banned)
      if (pattern.test(line) && !allowed.test(file)) fault(i + 1, `${pattern.exec(line)[0].trim()} is banned: ${why}`);
  });
  if (file === 'lib/dev/op.h')
    lines.forEach((line, i) => {
      if (/^\s+(const )?(float|int32_t|void) \*(?!const|prepared)\w+[;,]/.test(line) && !/\/\* \[/.test(line))
        fault(i + 1, 'a tensor pointer without its shape');
    });
}

function checkWords(file, text, fault) {
  const isSelf = file === 'tools/lint.mjs';
  text.split('\n').forEach((line, i) => {
    if (!isSelf && /\b(TODO|FIXME|HACK|XXX)\b/.test(line)) fault(i + 1, 'unfinished work');
    if (/[ \t]+$/.test(line) && !file.endsWith('.md')) fault(i + 1, 'space at the end of a line');
    if (/^(<{7}|>{7}|={7})( |$)/.test(line)) fault(i + 1, 'conflict mark');
  });
}

// What a document names must be there: links, and paths in backticks (NAME stands for any).
function checkDocument(file, text, all, fault) {
  const exists = (name) => all.some((f) => f === name || f.startsWith(`${name.replace(/\/$/, '')}/`));
  const folder = path.posix.dirname(file);
  text.split('\n').forEach((line, i) => {
    for (const [, target] of line.matchAll(/\]\((?!https?:|#)([^)#\s]+)/g))
      if (!exists(path.posix.join(folder, target))) fault(i + 1, `link to ${target}: no such file`);
    for (const [, name] of line.matchAll(/`((?:lib|srv|cmd|tests|docs|tools|cmake|web\/src|include|models)\/[\w./-]+)`/g))
      if (!/[A-Z]{3}/.test(name) && !exists(name)) fault(i + 1, `${name}: no such file`);
  });
}

// Rows that nothing uses: options that no command reads or takes, metrics that nobody updates.
function checkTables(files, read, fault) {
  const rows = (file, pattern) => files.includes(file)
    ? read(file).split('\n').flatMap((line, i) => { const m = pattern.exec(line); return m ? [[i + 1, m, line]] : []; }) : [];
  const source = (pattern) => files.filter((f) => pattern.test(f)).map(read).join('\n');
  const cmd = source(/^cmd\/.*\.c$/), code = source(/^(lib|srv|cmd)\/.*\.c$/);
  const commands = new Set(rows('cmd/commands.def', /^HD_COMMAND\((\w+)\)/).map(([, m]) => m[1]));
  for (const [at, [, field], line] of rows('cmd/options.def', /^[A-Z]+ *\((\w+), "/)) {
    if (!new RegExp(`(->|\\.)${field}\\b`).test(cmd)) fault('cmd/options.def', at, `option ${field} is read nowhere`);
    const takers = line.match(/"[^"]*"/g).map((q) => q.slice(1, -1));
    if (!takers.some((t) => t === '*' || (t && t.split(' ').every((c) => commands.has(c)))))
      fault('cmd/options.def', at, `option ${field}: its commands are not all in commands.def`);
  }
  for (const [at, [, id]] of rows('lib/base/metrics.def', /^HD_(?:CLASS_)?(?:COUNTER|GAUGE|HISTOGRAM)\((\w+)/))
    if (!new RegExp(`\\bHD_M_${id}\\b`).test(code)) fault('lib/base/metrics.def', at, `metric ${id} is updated nowhere`);
}

function lint(files, read, all = files) {
  const faults = [];
  const stems = new Map();
  for (const file of files) {
    const text = read(file);
    const fault = (line, what) => faults.push(`${file}:${line}: ${what}`);
    if (/\.(c|h|cu|cuh)$/.test(file)) checkC(file, text, fault);
    if (file.endsWith('.md')) checkDocument(file, text, all, fault);
    checkWords(file, text, fault);
    const m = /^(?:lib\/(?!ref|cpu|cuda)\w+|srv|cmd)\/(\w+)\.c$/.exec(file);
    if (m && stems.has(m[1])) fault(1, `same name as ${stems.get(m[1])}`);
    if (m) stems.set(m[1], file);
  }
  checkTables(files, read, (file, line, what) => faults.push(`${file}:${line}: ${what}`));
  return faults;
}

function selfTest() {
  const long = 'static void f(void) {\n' + '    g();\n'.repeat(120) + '}\n';
  const cases = [
    ['lib/sched/a.c', '/* a */\n#include "dev/dev.h"\n', 'sched may not include dev/dev.h'],
    ['srv/a.c', '/* a */\n#include "engine/loop.h"\n', 'srv may not include engine/loop.h'],
    ['lib/kv/a.c', '/* a */\nvoid f(void) {\n    exit(1);\n}\n', 'exit( is banned'],
    ['lib/kv/a.c', '/* a */\nvoid f(void) {\n    getenv(x);\n}\n', 'getenv( is banned'],
    ['lib/kv/a.c', '/* a */\n' + long, 'function of 122 lines'],
    ['lib/kv/a.c', '/* a */\nint f(int a, int b, int c, int d, int e,\n      int g, int h) {\n}\n', '7 parameters'],
    ['lib/kv/a.c', '/* a */\n' + '\n'.repeat(1600), 'lines (limit 1500)'],
    ['lib/kv/a.c', 'int x;\n', 'no comment at its head'],
    ['lib/dev/op.h', '/* a */\nstruct a {\n    const float *x;\n};\n', 'without its shape'],
    ['lib/kv/a.c', '/* a TO' + 'DO b */\n', 'unfinished work'],
    ['lib/base/metrics.def', 'HD_GAUGE(A, "a", "b")\n', 'metric A is updated nowhere'],
    ['cmd/options.def', 'BOOL(a, "a", 0, "false", "gone", "b")\n', 'option a is read nowhere'],
    ['cmd/options.def', 'BOOL(a, "a", 0, "false", "gone", "b")\n', 'not all in commands.def'],
    ['docs/a.md', '[b](b.md)\n', 'link to b.md'],
    ['docs/a.md', 'see `lib/kv/gone.c`\n', 'lib/kv/gone.c: no such file'],
  ];
  let bad = 0;
  for (const [file, text, want] of cases) {
    const faults = lint([file], () => text);
    if (!faults.some((f) => f.includes(want))) { console.error(`self-test: '${want}' not found in ${JSON.stringify(faults)}`); bad = 1; }
  }
  const clean = lint(['lib/kv/a.c'], () => '/* exit( in a comment, "getenv(" too */\n#include "base/mem.h"\nint f(void) {\n    return g("exit(1)");\n}\n');
  if (clean.length) { console.error('self-test: clean file has faults', clean); bad = 1; }
  return bad;
}

function main() {
  if (process.argv.includes('--self-test')) process.exit(selfTest());
  const list = execFileSync('git', ['-C', root, 'ls-files', '--cached', '--others', '--exclude-standard'], { encoding: 'utf8', maxBuffer: 1 << 26 });
  const text = /\.(c|h|cu|cuh|def|mjs|js|css|html|cmake|md|sh|yaml|yml|json)$|(^|\/)(Makefile|CMakeLists\.txt|run)$/;
  const skip = /package-lock\.json$|^tests\/(golden|fuzz\/corpus)\/|^models\//;
  const all = list.split('\n').filter(Boolean);
  const files = all.filter((f) => text.test(f) && !skip.test(f));
  const read = (f) => { try { return readFileSync(path.join(root, f), 'utf8'); } catch { return '/* gone */\n'; } };
  const faults = lint(files, read, all);
  faults.forEach((f) => console.error(f));
  console.log(`lint: ${files.length} files, ${faults.length} faults`);
  process.exit(faults.length ? 1 : 0);
}

main();
