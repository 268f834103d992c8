/* Building a tokenizer from checked pieces: the byte alphabet, tokens, merges.
 *
 * The byte alphabet (GPT-2's) writes each byte as a printable character: 33..126, 161..172 and
 * 174..255 as themselves, the other 68 bytes in ascending order as U+0100, U+0101, ... U+0143. */
#include "text/tokenizer_impl.h"

#include "base/utf8.h"
#include "text/nfc.h"

#include <string.h>

static bool is_printable(uint32_t byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
}

/* The byte that a character of the alphabet stands for, or -1. */
static int byte_of(uint32_t cp) {
    if (cp < 256) return is_printable(cp) ? (int)cp : -1;
    if (cp <= 256 + 32) return (int)(cp - 256);
    if (cp <= 256 + 66) return (int)(cp - 256 - 33 + 127);
    return cp == 256 + 67 ? 173 : -1;
}

static uint32_t symbol_of(unsigned char byte) {
    if (is_printable(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    return byte == 173 ? 256 + 67 : 256u + byte - 127 + 33;
}

/* Writes the bytes of text in the alphabet to out[s.len]; false: some character is not in it. */
static bool bytes_of(hd_str s, char *out, size_t *n_byte) {
    size_t n = 0;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        size_t len = hd_utf8_decode(s.ptr + i, s.len - i, &cp);
        int byte = len ? byte_of(cp) : -1;
        if (byte < 0) return false;
        out[n++] = (char)byte;
        i += len;
    }
    *n_byte = n;
    return true;
}

hd_tokenizer *hd_tokenizer_new(const char *name, size_t n_token, size_t n_merge) {
    hd_tokenizer *t = hd_alloc_zero(1, sizeof *t);
    HD_ASSERT(n_token <= HD_TOKEN_ID_MAX + 1);
    t->name = hd_strdup(name);
    t->arena = hd_arena_new(1 << 16);
    t->n_token = n_token;
    t->token = hd_alloc_zero(n_token, sizeof *t->token);
    t->by_bytes = hd_map_new(n_token);
    t->by_text = hd_map_new(64);
    t->bpe = hd_bpe_new(n_merge);
    t->added = hd_added_new();
    t->added_late = hd_added_new();
    t->letters = hd_added_new();
    t->bos = t->eos = t->pad = -1;
    return t;
}

static hd_status check_new(const hd_tokenizer *t, int32_t id, hd_str s) {
    if (id < 0 || (size_t)id >= t->n_token)
        return HD_FAIL(CORRUPT, "%s: id %d of token \"%s\" is outside 0..%zu", t->name, id,
                       hd_show(s), t->n_token - 1);
    if (s.len == 0) return HD_FAIL(CORRUPT, "%s: the token of id %d is empty", t->name, id);
    if (s.len > 2 * HD_TOKEN_BYTES_MAX)
        return HD_FAIL(CORRUPT, "%s: the token of id %d has %zu bytes, at most %d are taken",
                       t->name, id, s.len, 2 * HD_TOKEN_BYTES_MAX);
    return HD_OK;
}

static struct hd_token *set_token(hd_tokenizer *t, int32_t id, hd_str bytes, uint32_t flags) {
    struct hd_token *k = &t->token[id];
    k->ptr = hd_arena_strndup(t->arena, bytes.ptr, bytes.len);
    k->len = (uint32_t)bytes.len;
    k->flags = flags;
    if (bytes.len > t->longest) t->longest = bytes.len;
    return k;
}

static hd_status id_taken(const hd_tokenizer *t, int32_t id, hd_str s) {
    hd_str old = hd_tokenizer_bytes(t, id);
    return HD_FAIL(CORRUPT, "%s: id %d is given to two tokens, \"%s\" and \"%s\"", t->name, id,
                   hd_show(old), hd_show(s));
}

hd_status hd_tokenizer_put_vocab(hd_tokenizer *t, int32_t id, hd_str symbols) {
    char raw[2 * HD_TOKEN_BYTES_MAX];
    hd_str bytes = {raw, 0};
    HD_TRY(check_new(t, id, symbols));
    if (t->token[id].flags) return id_taken(t, id, symbols);
    bool literal = !bytes_of(symbols, raw, &bytes.len);
    if (literal) bytes = symbols;
    uint32_t flags = HD_TOKEN_PRESENT | (literal ? HD_TOKEN_LITERAL : 0u);
    struct hd_token *k = set_token(t, id, bytes, flags);
    if (!hd_map_put(literal ? t->by_text : t->by_bytes, (hd_str){k->ptr, k->len}, (uint64_t)id))
        return HD_FAIL(CORRUPT, "%s: token \"%s\" is twice in the vocabulary", t->name,
                       hd_show(symbols));
    return HD_OK;
}

/* The content of an added token was found in the vocabulary under another id, or the id under
 * another text. GGUF does not say what the vocabulary's text was: it must be the same bytes. */
static hd_status check_vocab(const hd_tokenizer *t, int32_t id, hd_str content, int32_t vocab_id) {
    uint64_t literal_id;
    if (vocab_id < 0 && hd_map_get(t->by_text, content, &literal_id))
        vocab_id = (int32_t)literal_id;
    if (vocab_id >= 0 && t->token[vocab_id].flags & HD_TOKEN_ADDED) return HD_OK; /* there twice */
    if (t->token[id].flags && vocab_id != id) return id_taken(t, id, content);
    if (vocab_id >= 0 && vocab_id != id)
        return HD_FAIL(CORRUPT, "%s: added token \"%s\" has id %d, in the vocabulary it has %d",
                       t->name, hd_show(content), id, vocab_id);
    if (vocab_id >= 0 && !hd_str_eq(hd_tokenizer_bytes(t, id), content))
        return HD_FAIL(UNSUPPORTED,
                       "%s: added token \"%s\" stands for other bytes in the vocabulary", t->name,
                       hd_show(content));
    return HD_OK;
}

static bool is_never_in_utf8(unsigned char byte) {
    return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
}

/* Merges and bytes may name an added token too, where no vocabulary token has its bytes: GGUF does
 * not tell whether it is in the vocabulary as well. One that is not ASCII would stand for other
 * bytes than its content; but DeepSeek's first tokenizers have the bytes that UTF-8 never uses only
 * as such added tokens. Those are letters in any text ("\u00fc" is byte FC's symbol), which the
 * model knows by these ids. */
static void name_bytes(hd_tokenizer *t, int32_t id, hd_str content) {
    char raw[2 * HD_TOKEN_BYTES_MAX];
    hd_str bytes = {raw, 0};
    if (!bytes_of(content, raw, &bytes.len)) return;
    bool is_letter = bytes.len == 1 && is_never_in_utf8((unsigned char)raw[0]);
    if (is_letter) hd_added_put(t->letters, content, id);
    if (hd_str_eq(bytes, content) || is_letter) {
        bytes.ptr = hd_arena_strndup(t->arena, raw, bytes.len);
        hd_map_put(t->by_bytes, bytes, (uint64_t)id);
    }
}

/* The id of text in the byte alphabet; -1 when no token has these bytes. */
static int32_t id_of(const hd_tokenizer *t, hd_str symbols) {
    char raw[2 * HD_TOKEN_BYTES_MAX];
    hd_str bytes = {raw, 0};
    uint64_t id;
    if (symbols.len > sizeof raw || !bytes_of(symbols, raw, &bytes.len)) return -1;
    return hd_map_get(t->by_bytes, bytes, &id) ? (int32_t)id : -1;
}

/* Makes it found in text. A late one is looked for in normalized text, by its normal form. */
static bool put_content(hd_tokenizer *t, int32_t id, hd_str content, unsigned flags) {
    hd_buf normal;
    if (!(flags & HD_ADDED_LATE)) return hd_added_put(t->added, content, id);
    hd_buf_init(&normal, SIZE_MAX / 2);
    bool is_new = hd_added_put(t->added_late, t->nfc ? hd_nfc(content, &normal) : content, id);
    hd_buf_fini(&normal);
    return is_new;
}

hd_status hd_tokenizer_put_added(hd_tokenizer *t, int32_t id, hd_str content, unsigned flags) {
    HD_TRY(check_new(t, id, content));
    HD_TRY(check_vocab(t, id, content, id_of(t, content)));
    bool special = flags & HD_ADDED_SPECIAL;
    uint64_t other;
    bool is_twice =
        hd_map_get(t->by_text, content, &other) && t->token[other].flags & HD_TOKEN_ADDED;
    if (is_twice || !put_content(t, id, content, flags))
        return HD_FAIL(CORRUPT, "%s: added token \"%s\" is there twice", t->name, hd_show(content));
    struct hd_token *k = set_token(
        t, id, content, HD_TOKEN_PRESENT | HD_TOKEN_ADDED | (special ? HD_TOKEN_SPECIAL : 0u));
    hd_map_put(t->by_text, (hd_str){k->ptr, k->len}, (uint64_t)id);
    name_bytes(t, id, content);
    return HD_OK;
}

hd_status hd_tokenizer_put_merge(hd_tokenizer *t, hd_str left, hd_str right) {
    char both[4 * HD_TOKEN_BYTES_MAX];
    size_t rank = hd_bpe_n_merge(t->bpe);
    int32_t l = id_of(t, left), r = id_of(t, right);
    if (l < 0 || r < 0) {
        hd_str part = l < 0 ? left : right;
        return HD_FAIL(CORRUPT, "%s: merge %zu: \"%s\" is not in the vocabulary", t->name, rank,
                       hd_show(part));
    }
    memcpy(both, left.ptr, left.len);
    memcpy(both + left.len, right.ptr, right.len);
    int32_t merged = id_of(t, (hd_str){both, left.len + right.len});
    if (merged < 0)
        return HD_FAIL(CORRUPT, "%s: merge %zu: \"%s\" + \"%s\" is not in the vocabulary", t->name,
                       rank, hd_show(left), hd_show(right));
    if (!hd_bpe_add_merge(t->bpe, l, r, merged))
        return HD_FAIL(CORRUPT, "%s: merge %zu: \"%s\" \"%s\" is there twice", t->name, rank,
                       hd_show(left), hd_show(right));
    return HD_OK;
}

hd_status hd_tokenizer_finish(hd_tokenizer *t) {
    for (unsigned byte = 0; byte < 256; byte++) {
        char raw = (char)byte;
        uint64_t id;
        bool is_there = hd_map_get(t->by_bytes, (hd_str){&raw, 1}, &id);
        if (!is_there && is_never_in_utf8((unsigned char)byte)) /* DeepSeek-V2 has none of them */
            is_there = hd_map_get(t->by_bytes, hd_str_of("?"), &id);
        if (!is_there)
            return HD_FAIL(CORRUPT, "%s: the vocabulary has no token for byte 0x%02X", t->name,
                           byte);
        hd_bpe_set_byte(t->bpe, (unsigned char)byte, (int32_t)id);
    }
    hd_ids ids = {0};
    for (size_t id = 0; id < t->n_token; id++) {
        struct hd_token *k = &t->token[id];
        if (!k->flags || k->flags & (HD_TOKEN_ADDED | HD_TOKEN_LITERAL)) continue;
        ids.n = 0;
        hd_bpe_encode(t->bpe, (hd_str){k->ptr, k->len}, &ids);
        if (ids.n == 1 && ids.id[0] == (int32_t)id) k->flags |= HD_TOKEN_WHOLE;
    }
    hd_ids_fini(&ids);
    if (t->bos < 0) t->add_bos = false;
    return HD_OK;
}

void hd_tokenizer_symbols(const hd_tokenizer *t, int32_t id, hd_buf *b) {
    const struct hd_token *k = &t->token[id];
    if (k->flags & (HD_TOKEN_ADDED | HD_TOKEN_LITERAL)) {
        hd_buf_add(b, k->ptr, k->len);
        return;
    }
    for (uint32_t i = 0; i < k->len; i++) {
        char utf8[4];
        size_t n = hd_utf8_encode(symbol_of((unsigned char)k->ptr[i]), utf8);
        hd_buf_add(b, utf8, n);
    }
}
