// Makes tokenizer.json files: the pre-tokenizers of the families as their released files write them, and
// small or given vocabularies to go with them.
const split = (pattern) => ({ type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false });
const digits = { type: 'Digits', individual_digits: true };
const gpt = (number) => split("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" + number
  + '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+');
const wide = split('[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+');
// The cased letters of Unicode 9 and a few later ones.
const cased = '\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f'
  + '\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd'
  + '\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57'
  + '\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec'
  + '\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f'
  + '\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f'
  + '\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\u{10400}-\u{1044f}\u{104b0}-\u{104d3}'
  + '\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}';

export const families = {
  'deepseek-v3': {
    steps: [split('\\p{N}{1,3}'), split('[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+'),
      split('[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|'
        + '\\s*[\r\n]+|\\s+(?!\\S)|\\s+')],
    normalizer: { type: 'Sequence', normalizers: [] },
  },
  'deepseek-llm': {
    steps: [split('[\r\n]'), split(`\\s?[A-Za-z${cased}]+`), split('\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+'),
      split('\\s+$'), wide, digits],
    normalizer: { type: 'Sequence', normalizers: [] },
  },
  'deepseek-coder': {
    steps: [split('[\r\n]'), split('\\s?\\p{L}+'), split('\\s?\\p{P}+'), wide, digits],
    normalizer: { type: 'Sequence', normalizers: [] },
  },
  qwen2: { steps: [gpt('\\p{N}')], normalizer: { type: 'NFC' } },
  'llama-bpe': { steps: [gpt('\\p{N}{1,3}')], normalizer: null, ignoreMerges: true },
};

// The character that stands for each byte.
export const byteSymbols = (() => {
  let other = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCodePoint((b >= 33 && b <= 126) || (b >= 161 && b !== 173) ? b : other++));
})();

export function tokenizerJson(family, { vocab, merges, added }) {
  const { steps, normalizer, ignoreMerges = false } = families[family];
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };
  return {
    version: '1.0', truncation: null, padding: null, added_tokens: added, normalizer,
    pre_tokenizer: { type: 'Sequence', pretokenizers: [...steps, byteLevel] },
    post_processor: null, decoder: byteLevel,
    model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
      fuse_unk: false, byte_fallback: false, ignore_merges: ignoreMerges, vocab, merges },
  };
}

// Token b is byte b. With pairs, any two bytes in a word merge (65536 tokens more), so that the ids of a
// text tell where its words begin.
export function byteTokenizer(family, { pairs = false } = {}) {
  const vocab = Object.fromEntries(byteSymbols.map((s, b) => [s, b]));
  const merges = [];
  for (const a of pairs ? byteSymbols : []) {
    for (const b of byteSymbols) {
      vocab[a + b] = 256 + merges.length;
      merges.push(`${a} ${b}`);
    }
  }
  return tokenizerJson(family, { vocab, merges, added: [] });
}
