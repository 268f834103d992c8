/* Byte-level BPE tokenizers: Hugging Face tokenizer.json, or the lists of a GGUF file.
 *
 * Text is split at added tokens (only when asked), then into words by the pre-tokenizer, then
 * merged by rank. Tokens are kept as raw bytes; nothing is ever unknown because every byte is a
 * token. Immutable after loading: any number of threads may encode at once. */
#ifndef HD_TEXT_TOKENIZER_H
#define HD_TEXT_TOKENIZER_H

#include "base/buf.h"

typedef struct hd_tokenizer hd_tokenizer;

/* tokenizer.json text; name is for messages. Everything is checked: malformed content is
 * HD_E_CORRUPT, naming the token or merge; a normalizer, pre-tokenizer, decoder or option that is
 * not supported is HD_E_UNSUPPORTED, naming what was found. The pre-tokenizer is recognised by its
 * patterns. tokenizer_config (tokenizer_config.json; {NULL, 0}: none) gives bos, eos, pad and
 * add_bos_token. What it does not give: bos and whether it is added, from a template among the
 * post-processors; else DeepSeek's, that is the tokens <｜begin▁of▁sentence｜>,
 * <｜end▁of▁sentence｜>, <｜▁pad▁｜> where there, and bos is added. */
HD_MUST_CHECK hd_status hd_tokenizer_from_json(hd_str json, hd_str tokenizer_config,
                                               const char *name, hd_tokenizer **out);

/* The lists as GGUF stores them (byte-level alphabet; added tokens as they are). All borrowed,
 * copied. type: 1 normal, 2 unknown, 3 control (added, special), 4 user-defined (added, not
 * special), 5 unused; a user-defined "[PAD<its id>]" is unused too, older converters write those.
 */
typedef struct hd_tokenizer_parts {
    const char *name;    /* for messages */
    hd_str pre;          /* tokenizer.ggml.pre */
    const hd_str *token; /* [n_token] */
    const int32_t *type; /* [n_token] */
    size_t n_token;
    const hd_str *merge; /* [n_merge] "left right" */
    size_t n_merge;
    int32_t bos, eos, pad; /* -1: none */
    bool add_bos;
    bool nfc;           /* text is normalized to NFC */
    bool ignore_merges; /* a word that is a token is not merged */
} hd_tokenizer_parts;
/* For a GGUF: what its pre, or that of the model that has such tokens when pre is empty or
 * "default" (as files from before April 2024), says besides the words: sets pre, nfc, ignore_merges
 * and, as an absent tokenizer.ggml.add_bos_token means it, add_bos. False, and nothing changed: pre
 * is not known. */
bool hd_tokenizer_imply(hd_tokenizer_parts *p);
/* Checks as for tokenizer.json. A file by llama.cpp's converter (no user-defined <｜...｜>, because
 * it makes them all control) behaves as the tokenizer.json: only bos, eos, pad and placeholders are
 * special among its <｜...｜> tokens. */
HD_MUST_CHECK hd_status hd_tokenizer_from_parts(const hd_tokenizer_parts *p, hd_tokenizer **out);
/* The same lists, to be written into a GGUF; from_parts makes an equal tokenizer of them. token,
 * type and merge are heap blocks that hold their strings: hd_free each. Ids without a token are
 * "[PAD<id>]" of type 5; a writer that needs more rows than n_token appends the same. */
void hd_tokenizer_to_parts(const hd_tokenizer *t, hd_tokenizer_parts *out);

void hd_tokenizer_free(hd_tokenizer *t); /* accepts NULL */

/* Growable list of ids; ids is heap. */
typedef struct hd_ids {
    int32_t *id;
    size_t n, room;
} hd_ids;
void hd_ids_add(hd_ids *l, int32_t id);
void hd_ids_fini(hd_ids *l);

/* Appends the ids of text. match_added: added tokens written in the text become their ids
 * (templates and raw prompts), leftmost first and the longest there; false encodes them as plain
 * text (a user's content), but for added tokens that are one letter, as DeepSeek's first tokenizers
 * have: those are no markup. Adds no bos. text: any bytes (invalid UTF-8 too: each such byte counts
 * as a character without a class), less than 2 GiB; decoding gives them back exactly, in normal
 * form where the file asks for it (bytes that UTF-8 never uses excepted: where a file has them only
 * as added tokens they come back as letters, where it has none as "?"). O(n log n). */
void hd_tokenizer_encode(const hd_tokenizer *t, hd_str text, bool match_added, hd_ids *out);

/* Appends the raw bytes of ids; not necessarily valid UTF-8. */
void hd_tokenizer_decode(const hd_tokenizer *t, const int32_t *id, size_t n, bool keep_special,
                         hd_buf *out);

/* Raw bytes of a token (an added token: its content); empty for ids without a token. */
hd_str hd_tokenizer_bytes(const hd_tokenizer *t, int32_t id);
bool hd_tokenizer_is_special(const hd_tokenizer *t, int32_t id); /* skipped when text is shown */
bool hd_tokenizer_is_added(const hd_tokenizer *t, int32_t id);
int32_t hd_tokenizer_find(const hd_tokenizer *t, hd_str content); /* added or vocab token, or -1 */
/* An added token, or -1: what merging may give of the same text is no marker. */
int32_t hd_tokenizer_find_added(const hd_tokenizer *t, const char *content);
size_t hd_tokenizer_size(const hd_tokenizer *t);    /* highest id + 1 */
size_t hd_tokenizer_longest(const hd_tokenizer *t); /* bytes of the longest token */
int32_t hd_tokenizer_bos(const hd_tokenizer *t);    /* or -1 */
int32_t hd_tokenizer_eos(const hd_tokenizer *t);    /* or -1 */
bool hd_tokenizer_add_bos(const hd_tokenizer *t);

#endif
