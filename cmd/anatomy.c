/* Parts of a model by tensor name, parameter counts, and numbers as people read them. */
#include "cmd/anatomy.h"

#include <stdio.h>
#include <string.h>

const char *hd_part_name(enum hd_part p) {
    static const char *const names[HD_PART_COUNT] = {
        [HD_PART_EMBEDDING] = "embedding",    [HD_PART_HEAD] = "output head",
        [HD_PART_ATTENTION] = "attention",    [HD_PART_DENSE] = "dense feed-forward",
        [HD_PART_EXPERTS] = "routed experts", [HD_PART_SHARED] = "shared experts",
        [HD_PART_ROUTER] = "router",          [HD_PART_NORMS] = "norms",
    };
    return names[p];
}

enum hd_part hd_part_of(const char *name) {
    static const struct {
        const char *word;
        enum hd_part part;
    } words[] = {
        {"token_embd", HD_PART_EMBEDDING}, {"rope_freqs", HD_PART_ATTENTION},
        {"norm", HD_PART_NORMS},           {"_shexp", HD_PART_SHARED},
        {"_exps", HD_PART_EXPERTS},        {"gate_inp", HD_PART_ROUTER},
        {"exp_probs_b", HD_PART_ROUTER},   {"attn_", HD_PART_ATTENTION},
        {"ffn_", HD_PART_DENSE},
    };
    for (size_t i = 0; i < HD_COUNT_OF(words); i++)
        if (strstr(name, words[i].word)) return words[i].part;
    return HD_PART_HEAD;
}

uint64_t hd_canon_params(const hd_canon_tensor *t) {
    return (uint64_t)t->ne[0] * (uint64_t)t->ne[1] * (uint64_t)t->ne[2];
}

uint64_t hd_canon_active_params(const hd_canon_tensor *t, const hd_hparams *hp) {
    switch (hd_part_of(t->name)) {
    case HD_PART_EXPERTS:
        return hd_canon_params(t) / (uint64_t)hp->n_expert * (uint64_t)hp->n_expert_used;
    case HD_PART_EMBEDDING: return hp->is_tied ? hd_canon_params(t) : (uint64_t)t->ne[0];
    default: return hd_canon_params(t);
    }
}

static const char *human(uint64_t n, const char *const unit[5]) {
    static _Thread_local char ring[8][32];
    static _Thread_local unsigned next;
    char *out = ring[next++ % 8];
    double v = (double)n;
    int u = 0;
    for (; v >= 999.5 && u < 4; u++) v /= 1000;
    if (u == 0)
        snprintf(out, sizeof ring[0], "%llu%s", (unsigned long long)n, unit[0]);
    else
        snprintf(out, sizeof ring[0], "%.*f%s", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v, unit[u]);
    return out;
}

const char *hd_human_bytes(uint64_t n) {
    static const char *const unit[5] = {" B", " kB", " MB", " GB", " TB"};
    return human(n, unit);
}

const char *hd_human_count(uint64_t n) {
    static const char *const unit[5] = {"", " k", " M", " B", " T"};
    return human(n, unit);
}
