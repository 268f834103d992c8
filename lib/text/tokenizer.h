/* Byte-level BPE tokenizers: Hugging Face tokenizer.json, or the lists of a GGUF file.
 *
 * Text is split at added tokens (only when asked), then into words by the pre-tokenizer, then
 * merged by rank. Tokens are kept as raw bytes; nothing is ever unknown because every byte is a
 * token. Immutable after loading: any number of threads may encode at once. */
#ifndef HD_TEXT_TOKENIZER_H
#define HD_TEXT_TOKENIZER_H

#include "base/buf.h"

typedef struct hd_tokenizer hd_tokenizer;

/* tokenizer.json text; name is for messages. The pre-tokenizer is recognised by its patterns;
 * one that is not known is HD_E_UNSUPPORTED. tokenizer_config (may be NULL) gives bos, eos and
 * add_bos_token. */
HD_MUST_CHECK hd_status hd_tokenizer_from_json(hd_str json, hd_str tokenizer_config,
                                               const char *name, hd_tokenizer **out);

/* The lists as GGUF stores them (byte-level alphabet). All borrowed, copied. */
typedef struct hd_tokenizer_parts {
    const char *name;    /* for messages */
    hd_str pre;          /* tokenizer.ggml.pre */
    const hd_str *token; /* [n_token] */
    const int32_t *type; /* [n_token] 1 normal, 3 control, 4 user-defined ... */
    size_t n_token;
    const hd_str *merge; /* [n_merge] "left right" */
    size_t n_merge;
    int32_t bos, eos, pad; /* -1: none */
    bool add_bos;
} hd_tokenizer_parts;
HD_MUST_CHECK hd_status hd_tokenizer_from_parts(const hd_tokenizer_parts *p, hd_tokenizer **out);
/* The same lists, to be written into a GGUF: arrays of pointers are heap (hd_free each array),
 * strings live as long as t. type follows llama.cpp's converter: any <｜...｜> token is control. */
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
 * (templates and raw prompts); false encodes them as plain text (a user's content). Adds no bos. */
void hd_tokenizer_encode(const hd_tokenizer *t, hd_str text, bool match_added, hd_ids *out);

/* Raw bytes of a token (an added token: its content); empty for ids without a token. */
hd_str hd_tokenizer_bytes(const hd_tokenizer *t, int32_t id);
bool hd_tokenizer_is_special(const hd_tokenizer *t, int32_t id); /* skipped when text is shown */
bool hd_tokenizer_is_added(const hd_tokenizer *t, int32_t id);
int32_t hd_tokenizer_find(const hd_tokenizer *t, hd_str content); /* added or vocab token, or -1 */
size_t hd_tokenizer_size(const hd_tokenizer *t);                  /* highest id + 1 */
int32_t hd_tokenizer_bos(const hd_tokenizer *t);                  /* or -1 */
int32_t hd_tokenizer_eos(const hd_tokenizer *t);                  /* or -1 */
bool hd_tokenizer_add_bos(const hd_tokenizer *t);

#endif
