/* Reading, summing and writing of importance matrices. */
#include "model/imatrix.h"

#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "file/gguf.h"
#include "file/mapping.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { name_max = 64 };

struct entry {
    char name[name_max];
    float *mean; /* [n_mat, n_in] */
    bool *is_seen;
    int64_t n_in, n_mat;
};

struct hd_imatrix {
    hd_arena *arena;
    struct entry *entry; /* [n], names are map keys: never moves */
    size_t n;
    hd_map *by_name;
    int64_t n_chunk;
    char *dataset, *file;
};

static hd_imatrix *new_matrix(size_t room, const char *name) {
    hd_imatrix *m = hd_alloc_zero(1, sizeof *m);
    m->arena = hd_arena_new(64 << 10);
    m->entry = hd_alloc_zero(room ? room : 1, sizeof *m->entry);
    m->by_name = hd_map_new(room ? room : 1);
    m->file = hd_strdup(name);
    return m;
}

void hd_imatrix_close(hd_imatrix *m) {
    if (!m) return;
    hd_map_free(m->by_name);
    hd_arena_free(m->arena);
    hd_free(m->entry);
    hd_free(m->dataset);
    hd_free(m->file);
    hd_free(m);
}

size_t hd_imatrix_count(const hd_imatrix *m) { return m->n; }
int64_t hd_imatrix_chunks(const hd_imatrix *m) { return m->n_chunk; }
const char *hd_imatrix_dataset(const hd_imatrix *m) { return m->dataset ? m->dataset : ""; }

/* Appends an entry, means [n_mat, n_in] for the caller to fill: last_entry. */
static hd_status add_entry(hd_imatrix *m, hd_str name, int64_t n_in, int64_t n_mat) {
    struct entry *e = &m->entry[m->n];
    if (name.len == 0 || name.len >= name_max)
        return HD_FAIL(CORRUPT, "%s: importance matrix: expected a tensor name, found %zu bytes",
                       m->file, name.len);
    memcpy(e->name, name.ptr, name.len);
    e->mean = hd_arena_alloc(m->arena, (size_t)(n_in * n_mat) * sizeof *e->mean);
    e->is_seen = hd_arena_alloc(m->arena, (size_t)n_mat * sizeof *e->is_seen);
    e->n_in = n_in;
    e->n_mat = n_mat;
    if (!hd_map_put(m->by_name, hd_str_of(e->name), m->n))
        return HD_FAIL(CORRUPT, "%s: importance of %s: expected one entry, found two", m->file,
                       hd_show(name));
    m->n++;
    return HD_OK;
}

static struct entry *last_entry(const hd_imatrix *m) { return &m->entry[m->n - 1]; }

/* Means of one matrix from sums over `count` rows; a negative or non-finite one is refused. */
static hd_status take_means(const hd_imatrix *m, struct entry *e, int mat, const char *sums,
                            float count) {
    float *mean = e->mean + (int64_t)mat * e->n_in;
    e->is_seen[mat] = count > 0;
    for (int64_t i = 0; i < e->n_in; i++) {
        float sum;
        memcpy(&sum, sums + (size_t)i * sizeof sum, sizeof sum);
        mean[i] = count > 0 ? sum / count : 0;
        if (!(mean[i] >= 0) || !isfinite(mean[i]))
            return HD_FAIL(CORRUPT, "%s: importance of %s: expected mean squares, found %g",
                           m->file, hd_show(hd_str_of(e->name)), (double)mean[i]);
    }
    return HD_OK;
}

static void take_dataset(hd_imatrix *m, hd_str text) {
    if (hd_utf8_is_valid(text.ptr, text.len)) m->dataset = hd_strndup(text.ptr, text.len);
}

/* ---- GGUF ---- */

static hd_status take_gguf(hd_imatrix *m, const hd_checkpoint *c, const hd_file_tensor *sums) {
    hd_str name = {sums->name, strlen(sums->name) - strlen(".in_sum2")};
    char counts_name[name_max + 16];
    snprintf(counts_name, sizeof counts_name, "%.*s.counts", (int)name.len, name.ptr);
    const hd_file_tensor *counts = hd_checkpoint_find(c, counts_name);
    if (!counts || sums->format != HD_F32 || counts->format != HD_F32)
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected F32 sums and counts beside them, found %s",
                       m->file, sums->name, counts ? "another format" : "no counts");
    int64_t n = sums->ne[0] * sums->ne[1] * sums->ne[2] * sums->ne[3];
    int64_t n_mat = counts->ne[0] * counts->ne[1] * counts->ne[2] * counts->ne[3];
    if (n_mat < 1 || n < 1 || n % n_mat != 0 || n_mat > INT32_MAX)
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected rows for %lld counts, found %lld values",
                       m->file, sums->name, (long long)n_mat, (long long)n);
    HD_TRY(add_entry(m, name, n / n_mat, n_mat));
    for (int64_t mat = 0; mat < n_mat; mat++) {
        float count;
        memcpy(&count, (const char *)counts->data + (size_t)mat * sizeof count, sizeof count);
        HD_TRY(take_means(m, last_entry(m), (int)mat,
                          (const char *)sums->data + (size_t)(mat * (n / n_mat)) * sizeof count,
                          count));
    }
    return HD_OK;
}

static hd_status read_gguf(const hd_checkpoint *c, const char *name, hd_imatrix **out) {
    const hd_gguf *g = hd_checkpoint_gguf(c);
    hd_str type = {0}, *text;
    size_t n_text;
    hd_imatrix *m = *out = new_matrix(hd_checkpoint_count(c), name);
    if (!hd_gguf_str(g, "general.type", &type) || !hd_str_eq_c(type, "imatrix"))
        return HD_FAIL(CORRUPT, "%s: general.type: expected imatrix, found \"%s\"", name,
                       hd_show(type));
    if (!hd_gguf_int(g, "imatrix.chunk_count", &m->n_chunk)) m->n_chunk = 0;
    if (hd_gguf_array_strs(g, "imatrix.datasets", &text, &n_text)) {
        if (n_text > 0) take_dataset(m, text[n_text - 1]);
        hd_free(text);
    }
    for (size_t i = 0; i < hd_checkpoint_count(c); i++)
        if (hd_str_ends_c(hd_str_of(hd_checkpoint_at(c, i)->name), ".in_sum2"))
            HD_TRY(take_gguf(m, c, hd_checkpoint_at(c, i)));
    return HD_OK;
}

/* ---- the older layout: i32 entries; each i32 length, name, i32 calls, i32 values, f32 means times
 * calls; then i32 chunks, i32 length, text file. One count for a whole stack. ---- */

struct reader {
    const char *p, *end;
};

static bool read_i32(struct reader *r, int32_t *out) {
    if (r->end - r->p < 4) return false;
    memcpy(out, r->p, 4);
    r->p += 4;
    return true;
}

static bool read_bytes(struct reader *r, int64_t n, const char **out) {
    if (n < 0 || r->end - r->p < n) return false;
    *out = r->p;
    r->p += n;
    return true;
}

static hd_status read_dat_entry(hd_imatrix *m, struct reader *r) {
    int32_t n_name, n_call, n_value;
    const char *name, *value;
    if (!read_i32(r, &n_name) || !read_bytes(r, n_name, &name) || !read_i32(r, &n_call) ||
        !read_i32(r, &n_value) || n_value < 1 || !read_bytes(r, (int64_t)n_value * 4, &value))
        return HD_FAIL(CORRUPT, "%s: importance matrix: entry %zu ends early", m->file, m->n);
    HD_TRY(add_entry(m, (hd_str){name, (size_t)n_name}, n_value, 1));
    return take_means(m, last_entry(m), 0, value, (float)n_call);
}

static hd_status read_dat(const void *p, size_t n_byte, const char *name, hd_imatrix **out) {
    enum { n_entry_max = 1 << 20, entry_bytes_min = 17 };
    struct reader r = {p, (const char *)p + n_byte};
    int32_t n, n_chunk, n_text;
    const char *text;
    if (!read_i32(&r, &n) || n < 1 || n > n_entry_max || (size_t)n > n_byte / entry_bytes_min)
        return HD_FAIL(CORRUPT,
                       "%s: expected an importance matrix (GGUF, or the older .dat), found neither",
                       name);
    hd_imatrix *m = *out = new_matrix((size_t)n, name);
    for (int32_t i = 0; i < n; i++) HD_TRY(read_dat_entry(m, &r));
    if (read_i32(&r, &n_chunk) && n_chunk >= 0) m->n_chunk = n_chunk; /* very old ones end here */
    if (read_i32(&r, &n_text) && read_bytes(&r, n_text, &text))
        take_dataset(m, (hd_str){text, (size_t)n_text});
    return HD_OK;
}

hd_status hd_imatrix_parse(const void *p, size_t n_byte, const char *name, hd_imatrix **out) {
    *out = NULL;
    hd_status s;
    if (n_byte >= 4 && memcmp(p, "GGUF", 4) == 0) {
        hd_checkpoint *c;
        HD_TRY(hd_checkpoint_open_memory(p, n_byte, name, &c));
        s = read_gguf(c, name, out);
        hd_checkpoint_close(c);
    } else {
        s = read_dat(p, n_byte, name, out);
    }
    if (s == HD_OK && (*out)->n == 0)
        s = HD_FAIL(CORRUPT, "%s: importance matrix: expected entries, found none", name);
    if (s == HD_OK) return HD_OK;
    hd_imatrix_close(*out);
    *out = NULL;
    return s;
}

hd_status hd_imatrix_open(const char *path, hd_imatrix **out) {
    hd_mapping map;
    *out = NULL;
    HD_TRY(hd_mapping_open(path, &map));
    hd_status s = hd_imatrix_parse(map.ptr, map.n_byte, path, out);
    hd_mapping_close(&map);
    return s;
}

hd_status hd_imatrix_find(const hd_imatrix *m, const hd_canon_tensor *t, hd_importance *out) {
    uint64_t ix;
    *out = (hd_importance){0};
    if (!hd_map_get(m->by_name, hd_str_of(t->name), &ix)) return HD_OK;
    const struct entry *e = &m->entry[ix];
    /* Both layouts may have one count for a whole stack. */
    bool is_alike = e->n_mat == 1 && e->n_in == t->ne[0] * t->ne[2];
    if (!is_alike && (e->n_in != t->ne[0] || e->n_mat != t->ne[2]))
        return HD_FAIL(CORRUPT,
                       "%s: importance of %s: expected %lld columns of %lld matrices, found %lld "
                       "of %lld",
                       m->file, t->name, (long long)t->ne[0], (long long)t->ne[2],
                       (long long)e->n_in, (long long)e->n_mat);
    *out = (hd_importance){
        .mean = e->mean, .is_seen = e->is_seen, .is_seen_alike = is_alike, .n_in = t->ne[0]};
    return HD_OK;
}

/* ---- measuring ---- */

struct sums {
    char name[name_max];
    int n_in, n_mat;
    double *sum2;   /* [n_mat, n_in] */
    uint64_t *rows; /* [n_mat] */
    struct sums *next;
};

struct hd_imatrix_sums {
    hd_map *by_name; /* to the pointer */
    struct sums *first, **end;
    size_t n;
};

hd_imatrix_sums *hd_imatrix_sums_new(void) {
    hd_imatrix_sums *s = hd_alloc_zero(1, sizeof *s);
    s->by_name = hd_map_new(1024);
    s->end = &s->first;
    return s;
}

void hd_imatrix_sums_free(hd_imatrix_sums *s) {
    if (!s) return;
    for (struct sums *e = s->first, *next; e; e = next) {
        next = e->next;
        hd_free(e->sum2);
        hd_free(e->rows);
        hd_free(e);
    }
    hd_map_free(s->by_name);
    hd_free(s);
}

size_t hd_imatrix_sums_count(const hd_imatrix_sums *s) { return s->n; }

static struct sums *sums_of(hd_imatrix_sums *s, const hd_weight *w) {
    uint64_t at;
    if (hd_map_get(s->by_name, hd_str_of(w->name), &at)) return (struct sums *)(uintptr_t)at;
    struct sums *e = hd_alloc_zero(1, sizeof *e);
    snprintf(e->name, sizeof e->name, "%s", w->name);
    e->n_in = w->n_in;
    e->n_mat = w->n_mat;
    e->sum2 = hd_alloc_zero((size_t)w->n_in * (size_t)w->n_mat, sizeof *e->sum2);
    e->rows = hd_alloc_zero((size_t)w->n_mat, sizeof *e->rows);
    hd_map_put(s->by_name, hd_str_of(e->name), (uint64_t)(uintptr_t)e);
    *s->end = e;
    s->end = &e->next;
    s->n++;
    return e;
}

void hd_imatrix_observe(void *user, const hd_dev_inputs *in) {
    struct sums *e = sums_of(user, in->w);
    double *sum2 = e->sum2 + (size_t)in->mat * (size_t)e->n_in;
    for (int r = 0; r < in->n_row; r++) {
        size_t row = (size_t)(in->row ? in->row[r] : r);
        const float *x = in->x + row * in->ldx;
        for (int i = 0; i < e->n_in; i++) sum2[i] += (double)x[i] * (double)x[i];
    }
    e->rows[in->mat] += (uint64_t)in->n_row;
}

static hd_status put_sums(hd_gguf_writer *w, const struct sums *e) {
    size_t n = (size_t)e->n_in * (size_t)e->n_mat;
    float *value = hd_alloc(n * sizeof *value);
    hd_status s = HD_OK;
    for (size_t i = 0; i < n && s == HD_OK; i++) {
        value[i] = (float)e->sum2[i];
        if (!isfinite(value[i]))
            s = HD_FAIL(NUMERIC, "importance of %s: expected finite inputs, found %g", e->name,
                        (double)value[i]);
    }
    if (s == HD_OK) s = hd_gguf_data(w, value, n * sizeof *value);
    for (int mat = 0; mat < e->n_mat && s == HD_OK; mat++) {
        float count = (float)e->rows[mat];
        s = hd_gguf_data(w, &count, sizeof count);
    }
    hd_free(value);
    return s;
}

static void declare(hd_gguf_writer *w, const struct sums *e, const char *what, int64_t n) {
    char name[name_max + 16];
    snprintf(name, sizeof name, "%s.%s", e->name, what);
    hd_gguf_declare(w, name, HD_F32, 2, (int64_t[]){n, e->n_mat});
}

static hd_status write_all(hd_gguf_writer *w, const hd_imatrix_sums *s,
                           const hd_imatrix_source *source) {
    hd_str text = hd_str_of(source->text);
    hd_gguf_set_str(w, "general.type", hd_str_of("imatrix"));
    hd_gguf_set_strs(w, "imatrix.datasets", &text, 1);
    hd_gguf_set_u32(w, "imatrix.chunk_count", source->n_chunk);
    hd_gguf_set_u32(w, "imatrix.chunk_size", source->n_tok_a_chunk);
    for (const struct sums *e = s->first; e; e = e->next) {
        declare(w, e, "in_sum2", e->n_in);
        declare(w, e, "counts", 1);
    }
    HD_TRY(hd_gguf_begin(w));
    for (const struct sums *e = s->first; e; e = e->next) HD_TRY(put_sums(w, e));
    return HD_OK;
}

hd_status hd_imatrix_write(const hd_imatrix_sums *s, const char *path,
                           const hd_imatrix_source *source) {
    hd_gguf_writer *w;
    HD_TRY(hd_gguf_create(path, &w));
    hd_status status = write_all(w, s, source);
    if (status == HD_OK) return hd_gguf_finish(w);
    hd_gguf_abandon(w);
    return status;
}
