/* Writing a model as GGUF: formats, checks, the data, the report. */
#include "cmd/target.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/processor.h"
#include "cmd/anatomy.h"
#include "cmd/output.h"
#include "engine/load.h"
#include "file/mapping.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* No signal comes between the file's birth and the handler that knows it. */
static hd_status create_guarded(const char *target, hd_gguf_writer **w) {
    hd_output_hold();
    hd_status s = hd_gguf_create(target, w);
    if (s == HD_OK) hd_output_guard(hd_gguf_temporary(*w));
    hd_output_release();
    return s;
}

/* ---- source ---- */

static void note_unused(struct hd_target *j) {
    enum { shown_max = 3 };
    size_t n = 0;
    for (size_t i = 0; i < hd_checkpoint_count(j->c); i++) n += !hd_canon_is_used(j->k, i);
    if (n == 0) return;
    hd_buf_addf(&j->notes, "left out: %zu tensors that the architecture does not use:", n);
    for (size_t i = 0, shown = 0; i < hd_checkpoint_count(j->c) && shown < shown_max; i++)
        if (!hd_canon_is_used(j->k, i)) {
            hd_buf_addf(&j->notes, "%s %s", shown ? "," : "", hd_checkpoint_at(j->c, i)->name);
            shown++;
        }
    hd_buf_add_c(&j->notes, n > shown_max ? ", ...\n" : "\n");
}

hd_status hd_target_open(struct hd_target *t, const char *source, const char *name, int n_thread) {
    t->start_ns = hd_now_ns();
    hd_buf_init(&t->notes, 1 << 20);
    HD_TRY(hd_pool_open(n_thread > 0 ? n_thread : hd_cpu_available(), &t->pool));
    HD_TRY(hd_engine_open_checkpoint(&(hd_engine_config){.model = source}, &t->c));
    HD_TRY(hd_hparams_read(t->c, &t->hp));
    if (name) snprintf(t->hp.name, sizeof t->hp.name, "%s", name);
    HD_TRY(hd_canon_new(t->c, &t->hp, &t->k));
    t->tensor = hd_alloc_zero(hd_canon_count(t->k), sizeof *t->tensor);
    note_unused(t);
    return HD_OK;
}

void hd_target_close(struct hd_target *t) {
    hd_gguf_abandon(t->w);
    hd_output_guard(NULL);
    hd_buf_fini(&t->notes);
    hd_free(t->tensor);
    hd_canon_free(t->k);
    hd_checkpoint_close(t->c);
    hd_pool_close(t->pool);
}

/* ---- formats ---- */

uint64_t hd_target_bytes(const struct hd_target *t, size_t ix) {
    return hd_format_bytes(t->tensor[ix].to, (size_t)hd_canon_params(hd_canon_at(t->k, ix)));
}

void hd_target_choose(struct hd_target *t, size_t ix, int wanted) {
    const hd_canon_tensor *c = hd_canon_at(t->k, ix);
    char why[128], line[256];
    t->tensor[ix].to = hd_export_format(c, wanted, why);
    t->all += hd_target_bytes(t, ix);
    if (!why[0]) return;
    const char *suffix = strncmp(c->name, "blk.", 4) == 0 ? strchr(c->name + 4, '.') : NULL;
    snprintf(line, sizeof line, "%s becomes %s: %s\n", suffix ? suffix + 1 : c->name,
             hd_format_get(t->tensor[ix].to)->name, why);
    if (t->notes.len == 0 || !strstr(t->notes.ptr, line)) hd_buf_add_c(&t->notes, line);
}

enum hd_format hd_target_majority(const struct hd_target *t) {
    uint64_t n[HD_FORMAT_COUNT] = {0};
    int best = 0;
    for (size_t i = 0; i < hd_canon_count(t->k); i++)
        n[t->tensor[i].to] += hd_canon_params(hd_canon_at(t->k, i));
    for (int f = 1; f < HD_FORMAT_COUNT; f++)
        if (n[f] > n[best]) best = f;
    return (enum hd_format)best;
}

static uint64_t all_params(const struct hd_target *t) {
    uint64_t n = 0;
    for (size_t i = 0; i < hd_canon_count(t->k); i++) n += hd_canon_params(hd_canon_at(t->k, i));
    return n;
}

double hd_target_bits(const struct hd_target *t) {
    return 8.0 * (double)t->all / (double)all_params(t);
}

/* ---- the file ---- */

/* Replacing a source would lose it: its tensors' files, and the others in its folder. */
static hd_status check_source(const struct hd_target *t, const char *path) {
    const char *last = NULL;
    for (size_t i = 0; i < hd_checkpoint_count(t->c); i++) {
        const char *file = hd_checkpoint_at(t->c, i)->file;
        if (file != last) HD_TRY(hd_output_differs(path, file));
        last = file;
    }
    if (hd_checkpoint_gguf(t->c)) return HD_OK;
    static const char *const names[] = {"config.json",           "model.safetensors.index.json",
                                        "tokenizer.json",        "tokenizer_config.json",
                                        "chat_template.jinja",   "chat_template.json",
                                        "generation_config.json"};
    for (size_t i = 0; i < HD_COUNT_OF(names); i++) {
        char *file = hd_path_join(hd_checkpoint_path(t->c), names[i]);
        hd_status s = hd_output_differs(path, file);
        hd_free(file);
        HD_TRY(s);
    }
    return HD_OK;
}

static hd_status check_target(const struct hd_target *t, const char *path, bool is_forced) {
    bool is_there;
    HD_TRY(hd_output_check(path, &is_there));
    HD_TRY(check_source(t, path));
    if (is_there && !is_forced)
        return HD_FAIL(INVALID, "%s: exists already (--force replaces it)", path);
    return HD_OK;
}

/* The new file lies beside an old one of its name until it is complete. */
static hd_status check_space(const struct hd_target *t, const char *path) {
    struct statvfs v;
    char *folder = hd_strdup(path), *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    bool is_known = statvfs(slash ? folder : ".", &v) == 0;
    hd_free(folder);
    if (!is_known) return HD_OK; /* creating the file says what is wrong */
    uint64_t n_free = (uint64_t)v.f_bavail * (uint64_t)v.f_frsize;
    if (n_free >= t->all) return HD_OK;
    return HD_FAIL(IO, "%s: expected %s of free space for it, found %s", path,
                   hd_human_bytes(t->all), hd_human_bytes(n_free));
}

hd_status hd_target_begin(struct hd_target *t, const char *path, bool is_forced) {
    t->path = path;
    HD_TRY(check_target(t, path, is_forced));
    HD_TRY(check_space(t, path));
    HD_TRY(create_guarded(path, &t->w));
    HD_TRY(hd_target_put_keys(t));
    if (hd_format_get(hd_target_majority(t))->block_elems > 1)
        hd_gguf_set_u32(t->w, "general.quantization_version", 2);
    return HD_OK;
}

static void on_bytes(void *user, uint64_t n) {
    struct hd_target *t = user;
    t->done += n;
    hd_progress(NULL, t->what, (double)t->done / (double)(t->all + 1));
}

static hd_status write_tensors(struct hd_target *t) {
    hd_export e = {.w = t->w,
                   .k = t->k,
                   .pool = t->pool,
                   .is_measured = t->is_measured,
                   .on_bytes = on_bytes,
                   .user = t};
    for (size_t i = 0; i < hd_canon_count(t->k); i++) {
        const hd_canon_tensor *c = hd_canon_at(t->k, i);
        hd_gguf_declare(t->w, c->name, t->tensor[i].to, c->n_dim, c->ne);
    }
    HD_TRY(hd_gguf_begin(t->w));
    for (size_t i = 0; i < hd_canon_count(t->k); i++) {
        struct hd_target_tensor *to = &t->tensor[i];
        HD_TRY(hd_export_tensor(&e, hd_canon_at(t->k, i), to->to, &to->importance, &to->loss));
    }
    return HD_OK;
}

hd_status hd_target_write(struct hd_target *t) {
    HD_TRY(write_tensors(t));
    hd_gguf_writer *w = t->w;
    t->w = NULL;
    hd_status s = hd_gguf_finish(w);
    hd_output_guard(NULL);
    if (s == HD_OK) hd_progress(NULL, t->what, 1);
    t->seconds = (double)(hd_now_ns() - t->start_ns) * 1e-9;
    return s;
}

/* ---- report ---- */

double hd_target_loss(double error2, double value2) {
    return value2 > 0 ? sqrt(error2 / value2) : 0;
}

/* What the report says of one part of the model, or of all. */
struct total {
    uint64_t n_tensor, n, n_byte;
    bool from[HD_FORMAT_COUNT], to[HD_FORMAT_COUNT];
    double error2, value2;
};

static struct total total_of(const struct hd_target *t, int part) {
    struct total sum = {0};
    for (size_t i = 0; i < hd_canon_count(t->k); i++) {
        const hd_canon_tensor *c = hd_canon_at(t->k, i);
        if (part >= 0 && hd_part_of(c->name) != (enum hd_part)part) continue;
        sum.n_tensor++;
        sum.n += hd_canon_params(c);
        sum.n_byte += hd_target_bytes(t, i);
        sum.from[c->src[0]->format] = sum.to[t->tensor[i].to] = true;
        sum.error2 += t->tensor[i].loss.error2;
        sum.value2 += t->tensor[i].loss.value2;
    }
    return sum;
}

/* "BF16", or "BF16, F32" when a part has several. */
static void formats_text(const bool *is_there, char out[64]) {
    out[0] = 0;
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        if (is_there[f]) hd_list_add(out, 64, hd_format_get((enum hd_format)f)->name);
}

static void report_line(const struct hd_target *t, const char *name, const struct total *sum) {
    char from[64] = "", to[64] = "", loss[16] = "";
    if (strcmp(name, "all") != 0) {
        formats_text(sum->from, from);
        formats_text(sum->to, to);
    }
    if (t->is_measured && sum->value2 > 0)
        snprintf(loss, sizeof loss, "  %.4f", hd_target_loss(sum->error2, sum->value2));
    printf("%-19s %8llu %10s   %-12s %-24s %10s%s\n", name, (unsigned long long)sum->n_tensor,
           hd_human_count(sum->n), from, to, hd_human_bytes(sum->n_byte), loss);
}

void hd_target_report(const struct hd_target *t) {
    printf("%-19s %8s %10s   %-12s %-24s %10s%s\n", "part", "tensors", "weights", "from", "to",
           "size", t->is_measured && t->done > 0 ? "  rel. error" : "");
    for (int p = 0; p < HD_PART_COUNT; p++) {
        struct total sum = total_of(t, p);
        if (sum.n_tensor) report_line(t, hd_part_name((enum hd_part)p), &sum);
    }
    struct total all = total_of(t, -1);
    report_line(t, "all", &all);
    printf("%s", t->notes.len ? t->notes.ptr : "");
    if (!t->path) return;
    struct stat st;
    uint64_t n_file = stat(t->path, &st) == 0 ? (uint64_t)st.st_size : 0;
    printf("wrote %s: %s, %s in %.1f s\n", t->path, t->hp.name, hd_human_bytes(n_file), t->seconds);
}
