/* `hadal eval --perplexity`: a text through the model in overlapping windows.
 *
 * Method: the tokens of the whole text, without a begin token; windows [begin token] + text[s:e],
 * e - s <= context - 1. The first window scores all of its text tokens; each later one starts so
 * that its new tokens have (context - 1 - stride) tokens before them. Perplexity =
 * exp(total nll / tokens). Windows are independent, so several run in one batch.
 *
 * --save-logits keeps every scored position's logits; --against reads such a file of the same text
 * and settings and tells how far this run is from it (eval_compare.c). --save-imatrix sums the
 * squares of every product's inputs on the way. */
#include "cmd/eval.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cmd/output.h"
#include "file/mapping.h"
#include "model/imatrix.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Head of a logits file; then n_tok rows of n_vocab float32, in text order. */
struct logits_head {
    char magic[8]; /* "hdlogit1" */
    uint32_t n_vocab, n_tok, context, stride;
    uint64_t ids_hash;
};

struct window {
    int start, end, first_new; /* text tokens [start, end); scored from first_new on */
};

struct text_run {
    struct hd_eval *e;
    const int32_t *id; /* [n_tok] */
    int n_tok, n_character, context, stride;
    struct window *window_of; /* [n_seq_max] of the sequence */
    hd_scorer *scorer;
    int n_running, n_scored;
    double nll;
    hd_new_file save; /* fd -1: none */
    int against;      /* file descriptor, or -1 */
    float *base;      /* [n_vocab] one row of `against` */
    hd_comparison comparison;
    hd_imatrix_sums *imatrix; /* or NULL */
    hd_status io;
};

static struct logits_head head_of(const struct text_run *r) {
    struct logits_head h = {.magic = {'h', 'd', 'l', 'o', 'g', 'i', 't', '1'},
                            .n_vocab = (uint32_t)r->e->hp.n_vocab,
                            .n_tok = (uint32_t)r->n_tok,
                            .context = (uint32_t)r->context,
                            .stride = (uint32_t)r->stride,
                            .ids_hash = 14695981039346656037u};
    for (int i = 0; i < r->n_tok; i++)
        h.ids_hash = (h.ids_hash ^ (uint64_t)r->id[i]) * 1099511628211u;
    return h;
}

static off_t row_offset(const struct text_run *r, int text_ix) {
    size_t row = (size_t)r->e->hp.n_vocab * sizeof(float);
    return (off_t)(sizeof(struct logits_head) + (size_t)text_ix * row);
}

/* Whole reads and writes at an offset, or an error that names the file. */
static hd_status write_at(const struct text_run *r, const void *p, size_t n, off_t at) {
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(r->save.fd, (const char *)p + done, n - done, at + (off_t)done);
        if (k < 0)
            return HD_FAIL(IO, "%s: cannot write: %s", r->e->o->eval_save_logits, strerror(errno));
        done += (size_t)k;
    }
    return HD_OK;
}

static hd_status read_at(const struct text_run *r, void *p, size_t n, off_t at) {
    const char *path = r->e->o->eval_against;
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(r->against, (char *)p + done, n - done, at + (off_t)done);
        if (k < 0) return HD_FAIL(IO, "%s: cannot read: %s", path, strerror(errno));
        if (k == 0)
            return HD_FAIL(CORRUPT, "%s: expected logits up to byte %lld, found its end at %lld",
                           path, (long long)at + (long long)n, (long long)at + (long long)done);
        done += (size_t)k;
    }
    return HD_OK;
}

/* Position 0 is the begin token; logits of position p are about text token start + p. */
static void on_logits(void *user, int seq, int pos, const float *logits) {
    struct text_run *r = user;
    const struct window *w = &r->window_of[seq];
    int text_ix = w->start + pos, n = r->e->hp.n_vocab;
    r->nll += hd_eval_log_sum_exp(logits, n) - (double)logits[r->id[text_ix]];
    r->n_scored++;
    if (r->save.fd >= 0 && r->io == HD_OK)
        r->io = write_at(r, logits, (size_t)n * sizeof *logits, row_offset(r, text_ix));
    if (r->against >= 0 && r->io == HD_OK)
        r->io = read_at(r, r->base, (size_t)n * sizeof *r->base, row_offset(r, text_ix));
    if (r->against >= 0 && r->io == HD_OK)
        hd_comparison_add(&r->comparison, r->base, logits, n, r->id[text_ix]);
    if (text_ix + 1 == w->end) {
        hd_scorer_drop(r->scorer, seq);
        r->n_running--;
    }
}

static struct window window_after(const struct text_run *r, int first_new) {
    int before = first_new == 0 ? 0 : r->context - 1 - r->stride;
    int start = first_new - before;
    int end = start + r->context - 1;
    return (struct window){start, end < r->n_tok ? end : r->n_tok, first_new};
}

static int add_window(struct text_run *r, const struct window *w, int32_t bos) {
    int n = w->end - w->start; /* the last text token is only predicted */
    int32_t *id = hd_alloc((size_t)n * sizeof *id);
    id[0] = bos;
    memcpy(id + 1, r->id + w->start, (size_t)(n - 1) * sizeof *id);
    enum hd_mla_form form = hd_eval_form(r->e, n);
    int seq = hd_scorer_add(r->scorer, &(hd_score_spec){.token = id,
                                                        .n_tok = n,
                                                        .n_tok_max = n,
                                                        .first_out = w->first_new - w->start,
                                                        .form = form,
                                                        .next_form = form});
    hd_free(id);
    return seq;
}

static void run_windows(struct text_run *r, int32_t bos) {
    struct window next = window_after(r, 0);
    while (next.first_new < r->n_tok || r->n_running > 0) {
        while (next.first_new < r->n_tok) {
            int seq = add_window(r, &next, bos);
            if (seq < 0) break;
            r->window_of[seq] = next;
            r->n_running++;
            next = window_after(r, next.end);
        }
        if (hd_scorer_step(r->scorer, 0, on_logits, r) < 0) r->io = HD_E_DEVICE;
        hd_progress(NULL, "perplexity", 0.999 * r->n_scored / r->n_tok);
        if (r->io != HD_OK) break;
    }
    hd_progress(NULL, "perplexity", 1);
}

/* Another run's logits may be replaced, and nothing else that has this name. */
static hd_status create_save(struct text_run *r, const struct logits_head *own) {
    const char *path = r->e->o->eval_save_logits;
    bool is_there;
    HD_TRY(hd_output_check(path, &is_there));
    if (is_there) {
        char magic[sizeof own->magic] = {0};
        FILE *f = fopen(path, "rbe");
        size_t n = f ? fread(magic, 1, sizeof magic, f) : 0;
        if (f) fclose(f);
        if (n > 0 && memcmp(magic, own->magic, sizeof magic) != 0)
            return HD_FAIL(CORRUPT, "%s: exists, and holds no saved logits: it is not replaced",
                           path);
    }
    HD_TRY(hd_output_create(path, &r->save));
    return write_at(r, own, sizeof *own, 0);
}

static hd_status open_against(struct text_run *r, const struct logits_head *own) {
    const char *path = r->e->o->eval_against;
    struct logits_head found;
    r->against = open(path, O_RDONLY | O_CLOEXEC);
    if (r->against < 0) return HD_FAIL(IO, "%s: %s", path, strerror(errno));
    HD_TRY(read_at(r, &found, sizeof found, 0));
    if (memcmp(own->magic, found.magic, sizeof found.magic) != 0)
        return HD_FAIL(CORRUPT, "%s: expected logits kept by --save-logits, found another file",
                       path);
    if (memcmp(own, &found, sizeof found) != 0)
        return HD_FAIL(CORRUPT,
                       "%s: of another text or setting (expected %u tokens, context %u, stride "
                       "%u, vocabulary %u; found %u, %u, %u, %u)",
                       path, own->n_tok, own->context, own->stride, own->n_vocab, found.n_tok,
                       found.context, found.stride, found.n_vocab);
    r->base = hd_alloc((size_t)r->e->hp.n_vocab * sizeof *r->base);
    hd_comparison_init(&r->comparison, r->n_tok);
    return HD_OK;
}

static hd_status open_files(struct text_run *r) {
    const struct hd_options *o = r->e->o;
    struct logits_head own = head_of(r);
    if (o->eval_against) HD_TRY(open_against(r, &own));
    return o->eval_save_logits ? create_save(r, &own) : HD_OK;
}

static void tell(struct text_run *r, const char *path, double seconds) {
    double perplexity = exp(r->nll / r->n_tok), n = r->n_tok;
    hd_comparison_summary compared;
    if (r->against >= 0) compared = hd_comparison_summarise(&r->comparison);
    if (!r->e->json) {
        printf("%s: context %d, stride %d: perplexity %.6f, nll %.4f over %d tokens", path,
               r->context, r->stride, perplexity, r->nll, r->n_tok);
        if (r->n_character > 0) printf(", %.6f bits a character", r->nll / log(2) / r->n_character);
        printf("; %.1f scored tokens/s\n", n / seconds);
        if (r->against >= 0) hd_comparison_print(&compared, r->e->o->eval_against);
        return;
    }
    hd_json *j = r->e->json;
    hd_json_key(j, "perplexity");
    hd_json_object(j);
    const struct {
        const char *key;
        double value;
        bool is_there;
    } numbers[] = {
        {"context", r->context, true},
        {"stride", r->stride, true},
        {"tokens", n, true},
        {"nll", r->nll, true},
        {"perplexity", perplexity, true},
        {"bits_per_character", r->nll / log(2) / r->n_character, r->n_character > 0},
        {"tokens_per_s", n / seconds, true},
    };
    for (size_t i = 0; i < HD_COUNT_OF(numbers); i++) {
        if (!numbers[i].is_there) continue;
        hd_json_key(j, numbers[i].key);
        hd_json_num(j, numbers[i].value);
    }
    if (r->against >= 0) hd_comparison_json(&compared, j);
    hd_json_object_end(j);
}

/* Another matrix may be replaced, and nothing else that has this name. */
static hd_status check_imatrix_target(const char *path) {
    bool is_there;
    struct stat st;
    HD_TRY(hd_output_check(path, &is_there));
    if (is_there && stat(path, &st) == 0 && st.st_size > 0) {
        hd_imatrix *old;
        if (hd_imatrix_open(path, &old) != HD_OK)
            return HD_FAIL(CORRUPT, "%s: exists, and is no importance matrix: it is not replaced",
                           path);
        hd_imatrix_close(old);
    }
    return hd_output_try(path);
}

static hd_status begin_imatrix(struct text_run *r) {
    const hd_dev *d = &r->e->dev;
    const char *path = r->e->o->eval_save_imatrix;
    if (!path) return HD_OK;
    HD_TRY(check_imatrix_target(path));
    if (!d->ops->observe)
        return HD_FAIL(UNSUPPORTED, "--save-imatrix: backend %s tells no inputs", d->ops->name);
    r->imatrix = hd_imatrix_sums_new();
    d->ops->observe(d->ctx, &(hd_dev_observer){hd_imatrix_observe, r->imatrix});
    return HD_OK;
}

static hd_status write_imatrix(const struct text_run *r, const char *text) {
    const char *path = r->e->o->eval_save_imatrix;
    if (!path) return HD_OK;
    int n_window = 1 + (r->n_tok > r->context - 1 ? (r->n_tok - r->context) / r->stride + 1 : 0);
    hd_imatrix_source source = {
        .text = text, .n_chunk = (uint32_t)n_window, .n_tok_a_chunk = (uint32_t)r->context};
    hd_output_hold();
    hd_status s = hd_imatrix_write(r->imatrix, path, &source);
    hd_output_release();
    HD_TRY(s);
    if (!r->e->json)
        printf("  wrote %s: importance of %zu matrices\n", path, hd_imatrix_sums_count(r->imatrix));
    return HD_OK;
}

static hd_status score_text(struct text_run *r, const char *path, int32_t bos) {
    HD_TRY(begin_imatrix(r));
    HD_TRY(open_files(r));
    int64_t start = hd_now_ns();
    run_windows(r, bos);
    HD_TRY(r->io);
    if (r->save.fd >= 0) HD_TRY(hd_output_finish(&r->save));
    tell(r, path, (double)(hd_now_ns() - start) / 1e9);
    return write_imatrix(r, path);
}

static hd_status run_text(struct hd_eval *e, const char *path, const hd_ids *ids, int n_character) {
    int context = e->o->eval_context ? e->o->eval_context : e->mo.n_pos_max;
    /* Importance counts every token once. */
    int stride_auto = e->o->eval_save_imatrix ? context - 1 : context / 2;
    int stride = e->o->eval_stride ? e->o->eval_stride : stride_auto;
    int32_t bos = hd_tokenizer_bos(e->tokenizer);
    if (bos < 0) bos = e->hp.bos;
    if (bos < 0) return HD_FAIL(UNSUPPORTED, "the tokenizer has no begin token");
    if (context < 2 || stride < 1 || stride >= context)
        return HD_FAIL(INVALID, "context %d, stride %d: expected 1 <= stride < context", context,
                       stride);
    HD_TRY(hd_eval_check_fits(e, context - 1, "--context"));
    int limit = e->o->eval_limit;
    bool is_cut = limit > 0 && (size_t)limit < ids->n;
    struct text_run r = {.e = e,
                         .id = ids->id,
                         .n_tok = is_cut ? limit : (int)ids->n,
                         .n_character = is_cut ? 0 : n_character,
                         .context = context,
                         .stride = stride,
                         .window_of = hd_alloc_zero((size_t)e->mo.n_seq_max, sizeof(struct window)),
                         .scorer = hd_scorer_new(e->model, &e->mo, 1),
                         .save = {.fd = -1},
                         .against = -1};
    hd_status s = score_text(&r, path, bos);
    hd_output_abandon(&r.save);
    if (r.against >= 0) close(r.against);
    hd_scorer_free(r.scorer);
    hd_free(r.window_of);
    hd_free(r.base);
    hd_comparison_fini(&r.comparison);
    if (r.imatrix) e->dev.ops->observe(e->dev.ctx, NULL);
    hd_imatrix_sums_free(r.imatrix);
    return s;
}

hd_status hd_eval_perplexity(struct hd_eval *e, const char *path) {
    if (!e->tokenizer)
        return HD_FAIL(UNSUPPORTED, "perplexity of a text: the model has no tokenizer; give one "
                                    "with --tokenizer");
    enum { text_bytes_max = 1 << 30 };
    char *text;
    size_t n_byte;
    hd_ids ids = {0};
    HD_TRY(hd_text_read(path, text_bytes_max, &text, &n_byte));
    hd_tokenizer_encode(e->tokenizer, (hd_str){text, n_byte}, false, &ids);
    hd_status s = ids.n == 0          ? HD_FAIL(CORRUPT, "%s: the text is empty", path)
                  : ids.n > INT32_MAX ? HD_FAIL(TOO_LARGE, "%s: %zu tokens", path, ids.n)
                                      : run_text(e, path, &ids, (int)hd_utf8_count(text, n_byte));
    hd_ids_fini(&ids);
    hd_free(text);
    return s;
}
