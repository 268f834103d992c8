/* Inside of a tokenizer, shared by its loaders (tokenizer_json.c, tokenizer_parts.c) and encoder.
 *
 * A loader calls hd_tokenizer_new, puts the vocabulary and the added tokens, then the merges in
 * rank order, and hd_tokenizer_finish. Every put checks what it is given; errors name the token. */
#ifndef HD_TEXT_TOKENIZER_IMPL_H
#define HD_TEXT_TOKENIZER_IMPL_H

#include "base/map.h"
#include "base/mem.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/pretok.h"
#include "text/tokenizer.h"

/* Caps against hostile files; the largest vocabulary known has 262144 tokens, the longest token of
 * DeepSeek-V3 128 bytes. */
enum { HD_TOKEN_ID_MAX = (1 << 20) - 1, HD_TOKEN_BYTES_MAX = 4096 };

enum {
    HD_TOKEN_PRESENT = 1,
    HD_TOKEN_ADDED = 2,
    HD_TOKEN_SPECIAL = 4,
    HD_TOKEN_LITERAL = 8, /* vocabulary text outside the byte alphabet: kept as it is written */
    HD_TOKEN_WHOLE = 16   /* merging its bytes gives this one token */
};

struct hd_token {
    const char *ptr;
    uint32_t len;
    uint32_t flags;
};

struct hd_tokenizer {
    char *name;
    hd_arena *arena; /* token bytes */
    const hd_pretok *pretok;
    bool nfc;           /* text between added tokens is normalized */
    bool ignore_merges; /* a word that is a token is not merged */
    bool add_bos;
    int32_t bos, eos, pad;
    struct hd_token *token;
    size_t n_token;   /* highest id + 1 */
    hd_map *by_bytes; /* tokens that merging may give, by raw bytes */
    hd_map *by_text;  /* added and literal tokens, by content */
    hd_bpe *bpe;
    hd_added *added;      /* found in the text as it is */
    hd_added *added_late; /* found in the normalized text between those */
    hd_added *letters;    /* added tokens that are text, not markup */
    size_t longest;       /* bytes of the longest token */
};

hd_tokenizer *hd_tokenizer_new(const char *name, size_t n_token, size_t n_merge);
/* A vocabulary token, written in the byte alphabet. */
HD_MUST_CHECK hd_status hd_tokenizer_put_vocab(hd_tokenizer *t, int32_t id, hd_str symbols);
/* An added token, written as it is; it may be a vocabulary token already (same id and text).
 * flags: HD_ADDED_SPECIAL, HD_ADDED_LATE (tokenizer.json's "normalized"). t->nfc is set before. */
enum { HD_ADDED_SPECIAL = 1, HD_ADDED_LATE = 2 };
HD_MUST_CHECK hd_status hd_tokenizer_put_added(hd_tokenizer *t, int32_t id, hd_str content,
                                               unsigned flags);
/* The next merge; left and right in the byte alphabet. */
HD_MUST_CHECK hd_status hd_tokenizer_put_merge(hd_tokenizer *t, hd_str left, hd_str right);
/* Checks that every byte has a token, and prepares the look-ups. */
HD_MUST_CHECK hd_status hd_tokenizer_finish(hd_tokenizer *t);

/* A token as files write it: the byte alphabet, or the content of an added or literal token.
 * Appended to b. */
void hd_tokenizer_symbols(const hd_tokenizer *t, int32_t id, hd_buf *b);

#endif
