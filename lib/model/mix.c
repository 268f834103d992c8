/* The table of mixes and the roles that its columns speak of. */
#include "model/mix.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Which layers are the ones that count more: none; the first eighth; those, the last eighth and
 * every third between. */
enum where { NOWHERE, FIRST, SPREAD };

struct hd_mix {
    const char *name, *alias; /* alias: or NULL */
    uint32_t file_type;       /* llama.cpp's enum llama_ftype */
    enum hd_format base, head, attn_output;
    enum hd_format value[2], down[2]; /* elsewhere; in the layers that count more */
    enum where where;
    enum hd_format embedding; /* an embedding that is not the head; F32: as base */
    bool experts_only;        /* base is for routed experts, `head` for everything else */
};

/* clang-format off */
#define ALL(f) .base = HD_##f, .attn_output = HD_##f, .value = {HD_##f, HD_##f}, .down = {HD_##f, HD_##f}
static const struct hd_mix mixes[] = {
    {"Q8_0",   NULL,   7,  .head = HD_Q8_0, ALL(Q8_0)},
    {"Q6_K",   NULL,   18, .head = HD_Q6_K, ALL(Q6_K)},
    {"Q5_K_M", "Q5_K", 17, .base = HD_Q5_K, .head = HD_Q6_K, .attn_output = HD_Q5_K,
     .value = {HD_Q5_K, HD_Q6_K}, .down = {HD_Q5_K, HD_Q6_K}, .where = SPREAD},
    {"Q5_K_S", NULL,   16, .head = HD_Q6_K, ALL(Q5_K)},
    {"Q5_1",   NULL,   9,  .head = HD_Q6_K, ALL(Q5_1)},
    {"Q5_0",   NULL,   8,  .head = HD_Q6_K, ALL(Q5_0)},
    {"Q4_K_M", "Q4_K", 15, .base = HD_Q4_K, .head = HD_Q6_K, .attn_output = HD_Q4_K,
     .value = {HD_Q4_K, HD_Q6_K}, .down = {HD_Q4_K, HD_Q6_K}, .where = SPREAD},
    {"Q4_K_S", NULL,   14, .base = HD_Q4_K, .head = HD_Q6_K, .attn_output = HD_Q4_K,
     .value = {HD_Q4_K, HD_Q5_K}, .down = {HD_Q4_K, HD_Q5_K}, .where = FIRST},
    {"Q4_1",   NULL,   3,  .head = HD_Q6_K, ALL(Q4_1)},
    {"Q4_0",   NULL,   2,  .head = HD_Q6_K, ALL(Q4_0)},
    {"IQ4_NL", NULL,   25, .base = HD_IQ4_NL, .head = HD_Q6_K, .attn_output = HD_IQ4_NL,
     .value = {HD_IQ4_NL, HD_Q5_K}, .down = {HD_IQ4_NL, HD_Q5_K}, .where = FIRST},
    {"IQ4_XS", NULL,   30, .base = HD_IQ4_XS, .head = HD_Q6_K, .attn_output = HD_IQ4_XS,
     .value = {HD_IQ4_XS, HD_Q5_K}, .down = {HD_IQ4_XS, HD_Q5_K}, .where = FIRST},
    {"MXFP4_MOE", "MXFP4", 38, .head = HD_Q8_0, ALL(MXFP4), .experts_only = true},
    {"Q3_K_L", NULL,   13, .base = HD_Q3_K, .head = HD_Q6_K, .attn_output = HD_Q5_K,
     .value = {HD_Q5_K, HD_Q5_K}, .down = {HD_Q5_K, HD_Q5_K}},
    {"Q3_K_M", "Q3_K", 12, .base = HD_Q3_K, .head = HD_Q6_K, .attn_output = HD_Q4_K,
     .value = {HD_Q4_K, HD_Q5_K}, .down = {HD_Q4_K, HD_Q5_K}, .where = FIRST},
    {"Q3_K_S", NULL,   11, .head = HD_Q6_K, ALL(Q3_K)},
    {"Q2_K",   NULL,   10, .base = HD_Q2_K, .head = HD_Q6_K, .attn_output = HD_Q3_K,
     .value = {HD_Q4_K, HD_Q4_K}, .down = {HD_Q3_K, HD_Q3_K}},
    {"IQ2_XXS", NULL,  19, .base = HD_IQ2_XXS, .head = HD_Q6_K, .attn_output = HD_Q3_K,
     .value = {HD_Q4_K, HD_Q4_K}, .down = {HD_Q2_K, HD_Q2_K}, .embedding = HD_Q2_K},
};
/* clang-format on */

hd_status hd_mix_by_name(const char *name, const hd_mix **out) {
    for (size_t i = 0; i < HD_COUNT_OF(mixes); i++)
        if (strcasecmp(name, mixes[i].name) == 0 ||
            (mixes[i].alias && strcasecmp(name, mixes[i].alias) == 0)) {
            *out = &mixes[i];
            return HD_OK;
        }
    char known[256] = "";
    for (size_t i = 0; i < HD_COUNT_OF(mixes); i++) hd_list_add(known, sizeof known, mixes[i].name);
    return HD_FAIL(UNSUPPORTED, "quantisation type \"%s\": expected one of %s",
                   hd_show(hd_str_of(name)), known);
}

const char *hd_mix_name(const hd_mix *m) { return m->name; }
uint32_t hd_mix_file_type(const hd_mix *m) { return m->file_type; }
enum hd_format hd_mix_base(const hd_mix *m) { return m->base; }

static bool counts_more(enum where where, int layer, int n_layer) {
    bool is_first = layer < n_layer / 8, is_last = layer >= n_layer * 7 / 8;
    if (where != SPREAD) return where == FIRST && is_first;
    return is_first || is_last || (layer - n_layer / 8) % 3 == 2;
}

/* Read by every head, and small: attn_v, or its parts in latent attention. */
static bool is_value(const char *suffix) {
    static const char *const names[] = {"attn_v.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight",
                                        "attn_v_b.weight"};
    for (size_t i = 0; i < HD_COUNT_OF(names); i++)
        if (strcmp(suffix, names[i]) == 0) return true;
    return false;
}

enum hd_format hd_mix_format(const hd_mix *m, const hd_hparams *hp, const hd_canon_tensor *t) {
    int layer = -1, at = 0;
    const char *suffix = t->name;
    if (sscanf(t->name, "blk.%d.%n", &layer, &at) == 1 && at > 0) suffix = t->name + at;
    if (m->experts_only)
        return hd_str_ends_c(hd_str_of(suffix), "_exps.weight") ? m->base : m->head;
    /* A tied embedding is the head too. */
    if (strcmp(suffix, "output.weight") == 0 ||
        (hp->is_tied && strcmp(suffix, "token_embd.weight") == 0))
        return m->head;
    if (m->embedding != HD_F32 && strcmp(suffix, "token_embd.weight") == 0) return m->embedding;
    bool is_more = layer >= 0 && counts_more(m->where, layer, hp->n_layer);
    if (is_value(suffix)) return m->value[is_more];
    if (strncmp(suffix, "ffn_down", 8) == 0) return m->down[is_more];
    return strcmp(suffix, "attn_output.weight") == 0 ? m->attn_output : m->base;
}
