/* Encoding: added tokens, words, merges; and what a token is. See tokenizer_build.c for how the
 * structure comes to be. */
#include "text/tokenizer_impl.h"

#include "text/nfc.h"

#include <string.h>

void hd_ids_add(hd_ids *l, int32_t id) {
    if (l->n == l->room) {
        l->room = l->room ? l->room * 2 : 64;
        l->id = hd_realloc(l->id, l->room * sizeof *l->id);
    }
    l->id[l->n++] = id;
}

void hd_ids_fini(hd_ids *l) {
    hd_free(l->id);
    *l = (hd_ids){0};
}

/* Most words of ordinary text are one token: one look-up instead of merging. */
static bool encode_whole(const hd_tokenizer *t, hd_str word, hd_ids *out) {
    uint64_t id;
    if (word.len > t->longest || !hd_map_get(t->by_bytes, word, &id)) return false;
    uint32_t flags = t->token[id].flags;
    if (flags & HD_TOKEN_ADDED) return false; /* plain text never becomes markup this way */
    if (!t->ignore_merges && !(flags & HD_TOKEN_WHOLE)) return false;
    hd_ids_add(out, (int32_t)id);
    return true;
}

static void encode_words(const hd_tokenizer *t, hd_str text, hd_ids *out) {
    hd_words words;
    hd_str word;
    hd_words_begin(&words, t->pretok, text);
    while (hd_words_next(&words, &word))
        if (!encode_whole(t, word, out)) hd_bpe_encode(t->bpe, word, out);
}

/* Added tokens of the set, and what lies between them. */
static void encode_around(const hd_tokenizer *t, hd_str text, const hd_added *set,
                          void (*between)(const hd_tokenizer *, hd_str, hd_ids *), hd_ids *out) {
    size_t at = 0;
    hd_added_hit hit;
    while (hd_added_find(set, text, at, &hit)) {
        if (hit.at > at) between(t, (hd_str){text.ptr + at, hit.at - at}, out);
        hd_ids_add(out, hit.id);
        at = hit.at + hit.len;
    }
    if (at < text.len) between(t, (hd_str){text.ptr + at, text.len - at}, out);
}

static void encode_normal(const hd_tokenizer *t, hd_str text, const hd_added *set, hd_ids *out) {
    hd_buf normal;
    hd_buf_init(&normal, SIZE_MAX / 2);
    if (t->nfc) text = hd_nfc(text, &normal);
    encode_around(t, text, set, encode_words, out);
    hd_buf_fini(&normal);
}

static void encode_late(const hd_tokenizer *t, hd_str text, hd_ids *out) {
    encode_normal(t, text, t->added_late, out);
}

void hd_tokenizer_encode(const hd_tokenizer *t, hd_str text, bool match_added, hd_ids *out) {
    if (match_added)
        encode_around(t, text, t->added, encode_late, out);
    else if (text.len > 0)
        encode_normal(t, text, t->letters, out);
}

static const struct hd_token *token_of(const hd_tokenizer *t, int32_t id) {
    static const struct hd_token none = {.ptr = ""};
    return id >= 0 && (size_t)id < t->n_token ? &t->token[id] : &none;
}

hd_str hd_tokenizer_bytes(const hd_tokenizer *t, int32_t id) {
    const struct hd_token *k = token_of(t, id);
    return (hd_str){k->ptr ? k->ptr : "", k->len};
}

bool hd_tokenizer_is_special(const hd_tokenizer *t, int32_t id) {
    return token_of(t, id)->flags & HD_TOKEN_SPECIAL;
}

bool hd_tokenizer_is_added(const hd_tokenizer *t, int32_t id) {
    return token_of(t, id)->flags & HD_TOKEN_ADDED;
}

int32_t hd_tokenizer_find(const hd_tokenizer *t, hd_str content) {
    uint64_t id;
    if (hd_map_get(t->by_text, content, &id)) return (int32_t)id;
    return hd_map_get(t->by_bytes, content, &id) ? (int32_t)id : -1;
}

int32_t hd_tokenizer_find_added(const hd_tokenizer *t, const char *content) {
    int32_t id = hd_tokenizer_find(t, hd_str_of(content));
    return hd_tokenizer_is_added(t, id) ? id : -1;
}

void hd_tokenizer_decode(const hd_tokenizer *t, const int32_t *id, size_t n, bool keep_special,
                         hd_buf *out) {
    for (size_t i = 0; i < n; i++) {
        if (!keep_special && hd_tokenizer_is_special(t, id[i])) continue;
        hd_str bytes = hd_tokenizer_bytes(t, id[i]);
        hd_buf_add(out, bytes.ptr, bytes.len);
    }
}

size_t hd_tokenizer_size(const hd_tokenizer *t) { return t->n_token; }
size_t hd_tokenizer_longest(const hd_tokenizer *t) { return t->longest; }
int32_t hd_tokenizer_bos(const hd_tokenizer *t) { return t->bos; }
int32_t hd_tokenizer_eos(const hd_tokenizer *t) { return t->eos; }
bool hd_tokenizer_add_bos(const hd_tokenizer *t) { return t->add_bos; }

void hd_tokenizer_free(hd_tokenizer *t) {
    if (!t) return;
    hd_free(t->name);
    hd_arena_free(t->arena);
    hd_free(t->token);
    hd_map_free(t->by_bytes);
    hd_map_free(t->by_text);
    hd_bpe_free(t->bpe);
    hd_added_free(t->added);
    hd_added_free(t->added_late);
    hd_added_free(t->letters);
    hd_free(t);
}
