/* hadal inspect: what is in a model file. Its anatomy (shape, parts, formats), its content hash,
 * and the memory that serving it takes, for people or as JSON. A model of an architecture that is
 * not built still shows its tensors and keys; then the reason, and exit code 1. */
#include "base/mem.h"
#include "cmd/anatomy.h"
#include "cmd/command.h"
#include "engine/load.h"
#include "file/gguf.h"

#include <stdio.h>
#include <string.h>

struct job {
    const struct hd_options *o;
    hd_checkpoint *c;
    hd_hparams hp;
    hd_canon *k; /* NULL: not a model that can be run, `why` says why */
    char why[512];
    const hd_chat_encoding *chat; /* NULL: none, chat_why says why */
    char chat_why[HD_CHAT_WHY_MAX];
    char hash[33]; /* "" when it was not wanted */
    uint64_t n_byte;
    hd_hparams rank; /* of one of o->tensor_parallel_size */
    uint64_t rank_bytes;
};

struct part_sum {
    uint64_t n_tensor, n_param, n_active, n_byte;
};

static uint64_t canon_bytes(const hd_canon_tensor *t) {
    return (uint64_t)hd_format_bytes(t->format, (size_t)hd_canon_params(t));
}

/* Sums of one part, of all parts (HD_PART_COUNT), or of one format (part -1). */
static struct part_sum sum_of(const struct job *j, int part, enum hd_format f) {
    struct part_sum s = {0};
    for (size_t i = 0; i < hd_canon_count(j->k); i++) {
        const hd_canon_tensor *t = hd_canon_at(j->k, i);
        if (part < 0 ? t->format != f : part < HD_PART_COUNT && (int)hd_part_of(t->name) != part)
            continue;
        s.n_tensor++;
        s.n_param += hd_canon_params(t);
        s.n_active += hd_canon_active_params(t, &j->hp);
        s.n_byte += canon_bytes(t);
    }
    return s;
}

/* "F32, BF16": the formats of a part. */
static void part_formats(const struct job *j, int part, char out[64]) {
    out[0] = 0;
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        for (size_t i = 0; i < hd_canon_count(j->k); i++) {
            const hd_canon_tensor *t = hd_canon_at(j->k, i);
            if ((int)t->format != f || (int)hd_part_of(t->name) != part) continue;
            hd_list_add(out, 64, hd_format_get((enum hd_format)f)->name);
            break;
        }
}

static uint64_t params_of(const hd_file_tensor *t) {
    return (uint64_t)t->ne[0] * (uint64_t)t->ne[1] * (uint64_t)t->ne[2] * (uint64_t)t->ne[3];
}

static bool is_unused(const struct job *j, size_t ix) {
    return j->k && !hd_canon_is_used(j->k, ix);
}

/* ---- for people ---- */

#define LINE(label, ...) (printf("  %-14s", label), printf(__VA_ARGS__), printf("\n"))

static void print_shape(const hd_hparams *hp) {
    int n_moe = hp->n_layer - hp->n_dense_layer;
    char scaling[64] = "", groups[48] = "";
    if (hp->n_group > 1)
        snprintf(groups, sizeof groups, " in %d groups (%d used)", hp->n_group, hp->n_group_used);
    if (hp->rope_linear > 0)
        snprintf(scaling, sizeof scaling, ", positions divided by %.7g", (double)hp->rope_linear);
    if (hp->has_rope_divisor)
        snprintf(scaling, sizeof scaling, ", llama3 scaling up to %.7g",
                 (double)hp->rope_divisor[hp->n_rope / 2 - 1]);
    if (n_moe)
        LINE("layers", "%d: %d dense, %d with experts; width %d", hp->n_layer, hp->n_dense_layer,
             n_moe, hp->d_model);
    else
        LINE("layers", "%d, all dense; width %d", hp->n_layer, hp->d_model);
    if (!hd_hparams_is_mla(hp))
        LINE("attention", "%d heads of %d over %d key heads%s", hp->n_head, hp->n_rope,
             hp->n_head_kv, hp->has_qkv_bias ? ", with biases" : "");
    else if (hp->q_lora)
        LINE("attention", "%d heads: key %d + %d rope, value %d; latent %d, query LoRA %d",
             hp->n_head, hp->n_nope, hp->n_rope, hp->n_v, hp->n_c, hp->q_lora);
    else
        LINE("attention", "%d heads: key %d + %d rope, value %d; latent %d", hp->n_head, hp->n_nope,
             hp->n_rope, hp->n_v, hp->n_c);
    if (n_moe)
        LINE("experts", "%d of width %d%s, %d a token, %d shared; %s scores%s, times %.7g",
             hp->n_expert, hp->d_expert, groups, hp->n_expert_used, hp->n_expert_shared,
             hp->gating == HD_GATING_SIGMOID ? "sigmoid" : "softmax",
             hp->expert_normalise ? ", normalised" : "", (double)hp->expert_scale);
    if (hp->n_dense_layer) LINE("feed-forward", "dense width %d", hp->d_ff);
    if (hp->is_yarn)
        LINE("context", "%d tokens; rope base %.9g, YaRN %.7g over %d (mscale %.7g, %.7g)",
             hp->n_ctx, (double)hp->rope_base, (double)hp->yarn_factor, hp->yarn_orig_ctx,
             (double)hp->yarn_mscale, (double)hp->yarn_mscale_all);
    else
        LINE("context", "%d tokens; rope base %.9g%s", hp->n_ctx, (double)hp->rope_base, scaling);
    LINE("vocabulary", "%d tokens; begin %d, end %d%s", hp->n_vocab, hp->bos, hp->eos,
         hp->is_tied ? "; output tied to the embedding" : "");
}

static void print_parts(const struct job *j) {
    printf("\n%-19s %8s %10s %14s %10s   %s\n", "part", "tensors", "weights", "read a token",
           "size", "format");
    for (int p = 0; p <= HD_PART_COUNT; p++) {
        char formats[64] = "";
        struct part_sum s = sum_of(j, p, HD_F32);
        if (!s.n_tensor) continue;
        if (p < HD_PART_COUNT) part_formats(j, p, formats);
        printf("%-19s %8llu %10s %14s %10s   %s\n",
               p < HD_PART_COUNT ? hd_part_name((enum hd_part)p) : "all",
               (unsigned long long)s.n_tensor, hd_human_count(s.n_param),
               hd_human_count(s.n_active), hd_human_bytes(s.n_byte), formats);
    }
    printf("\n%-19s %8s %10s %25s\n", "format", "tensors", "weights", "size");
    for (int f = 0; f < HD_FORMAT_COUNT; f++) {
        struct part_sum s = sum_of(j, -1, (enum hd_format)f);
        if (s.n_tensor)
            printf("%-19s %8llu %10s %25s\n", hd_format_get((enum hd_format)f)->name,
                   (unsigned long long)s.n_tensor, hd_human_count(s.n_param),
                   hd_human_bytes(s.n_byte));
    }
}

static void print_memory(const struct job *j) {
    static const enum hd_kv_type kinds[] = {HD_KV_FP8, HD_KV_BF16, HD_KV_F32};
    printf("\nmemory\n");
    LINE("weights", "%s", hd_human_bytes(sum_of(j, HD_PART_COUNT, HD_F32).n_byte));
    for (size_t i = 0; i < HD_COUNT_OF(kinds); i++) {
        uint64_t n = hd_hparams_kv_bytes(&j->hp, kinds[i]);
        char label[32];
        snprintf(label, sizeof label, "KV in %s", hd_kv_type_name(kinds[i]));
        LINE(label, "%llu B a token, %s for a full context of %d", (unsigned long long)n,
             hd_human_bytes(n * (uint64_t)j->hp.n_ctx), j->hp.n_ctx);
    }
    if (j->o->tensor_parallel_size > 1) {
        char label[32];
        snprintf(label, sizeof label, "a rank of %d", j->o->tensor_parallel_size);
        LINE(label, "weights %s, KV in BF16 %llu B a token", hd_human_bytes(j->rank_bytes),
             (unsigned long long)hd_hparams_kv_bytes(&j->rank, HD_KV_BF16));
    }
}

static void print_tensors(const struct job *j) {
    printf("\n%-58s %-6s %-22s %12s\n", "tensor", "format", "shape", "bytes");
    for (size_t i = 0; i < hd_checkpoint_count(j->c); i++) {
        const hd_file_tensor *t = hd_checkpoint_at(j->c, i);
        char shape[96];
        hd_shape_text(j->c, t->ne, t->n_dim, shape);
        printf("%-58s %-6s %-22s %12llu%s\n", t->name, t->type, shape,
               (unsigned long long)t->n_byte, is_unused(j, i) ? "  (not used)" : "");
    }
}

static void print_unused(const struct job *j) {
    enum { shown_max = 5 };
    size_t n = 0;
    for (size_t i = 0; i < hd_checkpoint_count(j->c); i++) n += is_unused(j, i);
    if (n == 0) return;
    printf("\nnot used: %zu tensor%s that the architecture does not need\n", n, n == 1 ? "" : "s");
    for (size_t i = 0, shown = 0; i < hd_checkpoint_count(j->c) && shown < shown_max; i++)
        if (is_unused(j, i)) {
            printf("  %s\n", hd_checkpoint_at(j->c, i)->name);
            shown++;
        }
    if (n > shown_max) printf("  and %zu more (--tensors lists all)\n", n - shown_max);
}

static void print_metadata(const struct job *j) {
    const hd_gguf *g = hd_checkpoint_gguf(j->c);
    printf("\nmetadata%s\n", g ? "" : ": none (not a GGUF file)");
    for (size_t i = 0; g && i < hd_gguf_key_count(g); i++) {
        hd_buf b;
        hd_buf_init(&b, 1 << 16);
        hd_gguf_value_text(g, i, &b);
        printf("  %-48s %s\n", hd_show(hd_gguf_key_at(g, i)), b.len ? b.ptr : "");
        hd_buf_fini(&b);
    }
}

static void print_all(const struct job *j) {
    const hd_gguf *g = hd_checkpoint_gguf(j->c);
    char kind[64] = "Hugging Face folder (safetensors)";
    if (g) snprintf(kind, sizeof kind, "GGUF version %u", hd_gguf_version(g));
    printf("%s\n", hd_checkpoint_path(j->c));
    if (j->k) LINE("name", "%s", j->hp.name);
    LINE("file", "%s, %zu tensors, %s", kind, hd_checkpoint_count(j->c), hd_human_bytes(j->n_byte));
    if (j->hash[0]) LINE("content hash", "%s", j->hash);
    if (j->chat)
        LINE("chat encoding", "%s, for %s: %s", hd_chat_name(j->chat), hd_chat_models(j->chat),
             j->chat_why);
    else
        LINE("chat encoding", "none: %s", j->chat_why);
    if (j->k) {
        struct part_sum s = sum_of(j, HD_PART_COUNT, HD_F32);
        LINE("architecture", "%s: %s weights, %s of them read for a token", j->hp.arch,
             hd_human_count(s.n_param), hd_human_count(s.n_active));
        print_shape(&j->hp);
        print_parts(j);
        print_memory(j);
        print_unused(j);
    }
    if (j->o->metadata) print_metadata(j);
    if (j->o->tensors || !j->k) print_tensors(j);
}

/* ---- as JSON ---- */

static void put_int(hd_json *w, const char *key, int64_t v) {
    hd_json_key(w, key);
    hd_json_int(w, v);
}
static void put_num(hd_json *w, const char *key, float v) {
    hd_json_key(w, key);
    hd_json_num(w, (double)v);
}
static void put_str(hd_json *w, const char *key, const char *v) {
    hd_json_key(w, key);
    hd_json_str_c(w, v);
}

static void put_hparams(hd_json *w, const hd_hparams *hp) {
    hd_json_key(w, "hparams");
    hd_json_object(w);
    put_int(w, "n_layer", hp->n_layer);
    put_int(w, "n_dense_layer", hp->n_dense_layer);
    put_int(w, "n_ctx", hp->n_ctx);
    put_int(w, "d_model", hp->d_model);
    put_int(w, "n_vocab", hp->n_vocab);
    put_int(w, "d_ff", hp->d_ff);
    put_int(w, "n_head", hp->n_head);
    put_int(w, "n_head_kv", hp->n_head_kv);
    put_int(w, "q_lora", hp->q_lora);
    put_int(w, "kv_lora", hp->n_c);
    put_int(w, "head_nope", hp->n_nope);
    put_int(w, "head_rope", hp->n_rope);
    put_int(w, "head_v", hp->n_v);
    put_num(w, "rms_eps", hp->rms_eps);
    put_num(w, "rope_base", hp->rope_base);
    put_num(w, "rope_linear", hp->rope_linear);
    hd_json_key(w, "yarn");
    if (hp->is_yarn) {
        hd_json_object(w);
        put_num(w, "factor", hp->yarn_factor);
        put_int(w, "original_context", hp->yarn_orig_ctx);
        put_num(w, "beta_fast", hp->yarn_beta_fast);
        put_num(w, "beta_slow", hp->yarn_beta_slow);
        put_num(w, "mscale", hp->yarn_mscale);
        put_num(w, "mscale_all_dim", hp->yarn_mscale_all);
        hd_json_object_end(w);
    } else {
        hd_json_null(w);
    }
    put_int(w, "n_expert", hp->n_expert);
    put_int(w, "n_expert_used", hp->n_expert_used);
    put_int(w, "n_expert_shared", hp->n_expert_shared);
    put_int(w, "d_expert", hp->d_expert);
    put_int(w, "n_group", hp->n_group);
    put_int(w, "n_group_used", hp->n_group_used);
    put_str(w, "gating", hp->gating == HD_GATING_SIGMOID ? "sigmoid" : "softmax");
    hd_json_key(w, "expert_normalise");
    hd_json_bool(w, hp->expert_normalise);
    put_num(w, "expert_scale", hp->expert_scale);
    hd_json_key(w, "tied");
    hd_json_bool(w, hp->is_tied);
    put_int(w, "bos", hp->bos);
    put_int(w, "eos", hp->eos);
    put_int(w, "pad", hp->pad);
    hd_json_object_end(w);
}

static void put_sum(hd_json *w, const char *key, struct part_sum s) {
    if (!s.n_tensor) return;
    hd_json_key(w, key);
    hd_json_object(w);
    put_int(w, "tensors", (int64_t)s.n_tensor);
    put_int(w, "weights", (int64_t)s.n_param);
    put_int(w, "active", (int64_t)s.n_active);
    put_int(w, "bytes", (int64_t)s.n_byte);
    hd_json_object_end(w);
}

static void put_model(hd_json *w, const struct job *j) {
    put_str(w, "name", j->hp.name);
    put_str(w, "architecture", j->hp.arch);
    put_hparams(w, &j->hp);
    put_sum(w, "weights", sum_of(j, HD_PART_COUNT, HD_F32));
    hd_json_key(w, "parts");
    hd_json_object(w);
    for (int p = 0; p < HD_PART_COUNT; p++)
        put_sum(w, hd_part_name((enum hd_part)p), sum_of(j, p, HD_F32));
    hd_json_object_end(w);
    hd_json_key(w, "formats");
    hd_json_object(w);
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        put_sum(w, hd_format_get((enum hd_format)f)->name, sum_of(j, -1, (enum hd_format)f));
    hd_json_object_end(w);
    hd_json_key(w, "kv_bytes_per_token");
    hd_json_object(w);
    put_int(w, "f32", (int64_t)hd_hparams_kv_bytes(&j->hp, HD_KV_F32));
    put_int(w, "f16", (int64_t)hd_hparams_kv_bytes(&j->hp, HD_KV_F16));
    put_int(w, "bf16", (int64_t)hd_hparams_kv_bytes(&j->hp, HD_KV_BF16));
    put_int(w, "fp8", (int64_t)hd_hparams_kv_bytes(&j->hp, HD_KV_FP8));
    put_int(w, "int8", (int64_t)hd_hparams_kv_bytes(&j->hp, HD_KV_INT8));
    hd_json_object_end(w);
}

static void put_rank(hd_json *w, const struct job *j) {
    hd_json_key(w, "rank");
    hd_json_object(w);
    put_int(w, "of", j->o->tensor_parallel_size);
    put_int(w, "weight_bytes", (int64_t)j->rank_bytes);
    put_int(w, "kv_bytes_per_token_bf16", (int64_t)hd_hparams_kv_bytes(&j->rank, HD_KV_BF16));
    hd_json_object_end(w);
}

static void put_tensors(hd_json *w, const struct job *j) {
    hd_json_key(w, "tensors");
    hd_json_array(w);
    for (size_t i = 0; i < hd_checkpoint_count(j->c); i++) {
        const hd_file_tensor *t = hd_checkpoint_at(j->c, i);
        hd_json_object(w);
        put_str(w, "name", t->name);
        put_str(w, "format", t->type);
        hd_json_key(w, "ne");
        hd_json_array(w);
        for (int d = 0; d < t->n_dim; d++) hd_json_int(w, t->ne[d]);
        hd_json_array_end(w);
        put_int(w, "weights", (int64_t)params_of(t));
        put_int(w, "bytes", (int64_t)t->n_byte);
        put_str(w, "file", t->file);
        hd_json_key(w, "used");
        hd_json_bool(w, !is_unused(j, i));
        hd_json_object_end(w);
    }
    hd_json_array_end(w);
}

static void put_metadata(hd_json *w, const struct job *j) {
    const hd_gguf *g = hd_checkpoint_gguf(j->c);
    hd_json_key(w, "metadata");
    hd_json_object(w);
    for (size_t i = 0; g && i < hd_gguf_key_count(g); i++) {
        hd_buf b;
        hd_buf_init(&b, 1 << 16);
        hd_gguf_value_text(g, i, &b);
        put_str(w, hd_show(hd_gguf_key_at(g, i)), b.len ? b.ptr : "");
        hd_buf_fini(&b);
    }
    hd_json_object_end(w);
}

static void print_json(const struct job *j) {
    hd_buf b;
    hd_buf_init(&b, SIZE_MAX / 2);
    hd_json w = hd_json_begin(&b);
    hd_json_object(&w);
    put_str(&w, "path", hd_checkpoint_path(j->c));
    put_str(&w, "kind", hd_checkpoint_gguf(j->c) ? "gguf" : "safetensors");
    put_str(&w, "hash", j->hash[0] ? j->hash : NULL);
    put_str(&w, "chat_encoding", j->chat ? hd_chat_name(j->chat) : NULL);
    put_str(&w, "chat_encoding_why", j->chat_why);
    put_int(&w, "file_tensors", (int64_t)hd_checkpoint_count(j->c));
    put_int(&w, "file_bytes", (int64_t)j->n_byte);
    if (j->k)
        put_model(&w, j);
    else
        put_str(&w, "error", j->why);
    if (j->k && j->o->tensor_parallel_size > 1) put_rank(&w, j);
    if (j->o->metadata) put_metadata(&w, j);
    if (j->o->tensors) put_tensors(&w, j);
    hd_json_object_end(&w);
    printf("%.*s\n", (int)b.len, b.ptr);
    hd_buf_fini(&b);
}

/* ---- the command ---- */

static int run(const struct hd_options *o, int n_arg, char **arg);

const struct hd_command hd_cmd_inspect = {
    .name = "inspect",
    .summary = "show what is in a model: shape, weights, formats, memory, hash",
    .usage = "[options] [PATH]",
    .details =
        "PATH is a GGUF file or a Hugging Face folder; without it, the embedded model.\n"
        "\"read a token\" counts the weights that one token's forward pass reads. The content "
        "hash\n"
        "is of names, shapes, formats and bytes of all tensors, in any order of the file.\n\n"
        "  hadal inspect\n"
        "  hadal inspect model.gguf --tensors --metadata\n"
        "  hadal inspect DeepSeek-V3-folder --no-hash --json\n"
        "  hadal inspect model.gguf --expect-hash 0123456789abcdef0123456789abcdef\n",
    .run = run,
};

/* A tokenizer that cannot be read is no reason to show nothing. */
static void look_at_chat(struct job *j, const hd_engine_config *config) {
    hd_tokenizer *t = NULL;
    hd_status s = hd_engine_open_tokenizer(j->c, NULL, &t);
    snprintf(j->chat_why, sizeof j->chat_why, "the model has no tokenizer");
    if (s == HD_OK && t) s = hd_engine_choose_chat(j->c, config, t, &j->chat, j->chat_why);
    if (s != HD_OK) snprintf(j->chat_why, sizeof j->chat_why, "%s", hd_error_text());
    hd_tokenizer_free(t);
}

static hd_status look_at_rank(struct job *j) {
    int n = j->o->tensor_parallel_size;
    bool by_rank = j->o->enable_expert_parallel;
    HD_TRY(hd_hparams_part(&j->hp, n, by_rank, &j->rank));
    return hd_model_rank_bytes(j->c, n, by_rank, &j->rank_bytes);
}

static hd_status look(struct job *j, const char *path) {
    hd_engine_config config;
    hd_engine_config_init(&config);
    config.model = path;
    HD_TRY(hd_engine_open_checkpoint(&config, &j->c));
    for (size_t i = 0; i < hd_checkpoint_count(j->c); i++)
        j->n_byte += hd_checkpoint_at(j->c, i)->n_byte;
    hd_status s = hd_hparams_read(j->c, &j->hp);
    if (s == HD_OK) s = hd_canon_new(j->c, &j->hp, &j->k);
    if (s != HD_OK) snprintf(j->why, sizeof j->why, "%s", hd_error_text());
    if (s == HD_OK && j->o->tensor_parallel_size > 1) HD_TRY(look_at_rank(j));
    look_at_chat(j, &config);
    if (!j->o->hash && !j->o->expect_hash) return HD_OK;
    hd_checkpoint_hash(j->c, j->hash, hd_hash_progress, NULL);
    return j->o->expect_hash ? hd_checkpoint_expect_hash(j->c, j->o->expect_hash, j->hash) : HD_OK;
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg > 1)
        return hd_command_usage(&hd_cmd_inspect, "expected one PATH, found %d arguments", n_arg);
    struct job j = {.o = o};
    int rc = 0;
    if (look(&j, n_arg ? arg[0] : "mini") != HD_OK) {
        rc = hd_command_error(&hd_cmd_inspect);
    } else {
        if (o->json)
            print_json(&j);
        else
            print_all(&j);
        if (!j.k) {
            fprintf(stderr, "hadal inspect: %s\n", j.why);
            rc = 1;
        }
    }
    hd_canon_free(j.k);
    hd_checkpoint_close(j.c);
    return rc;
}
