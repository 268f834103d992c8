/* `hadal bench --save-cost FILE`: the cost profile of this machine with this model, for `hadal
 * sim`. `hadal bench compare --save-cost FILE` measures it in parts, between the runs of a load: a
 * virtual machine's core changes its speed by 10 to 20 % within seconds, in all loads alike.
 *
 * Steps of a grid of loads are timed in rounds over the whole grid, so that a machine that is
 * slower for a while is so for all of them; short ones are in more rounds. In a round each is run
 * twice: once as it finds the processor's caches after another, once after an equal one. A server's
 * steps are of both kinds. What tells loads apart is the mean of the middle half of their runs;
 * what runs take beyond it in the mean is spread over all loads alike, since it is the machine's. A
 * step counts with the sampling of its outputs. Mixed steps (decoding rows beside a prompt chunk)
 * are timed, too, but not fitted: they tell how far the formula reaches. */
#include "cmd/bench.h"

#include "base/mem.h"
#include "base/sort.h"
#include "cmd/output.h"
#include "engine/sizes.h"
#include "sim/cost.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { POINT_MAX = 256, RUN_MAX = 200, RUN_MIN = 4 };

/* n_decode sequences of one row at position context - 1, and a chunk of n_prompt rows from first.
 */
struct load {
    int n_decode, context, n_prompt, first;
    enum hd_mla_form form;
    bool is_other;
};

struct hd_bench_grid {
    struct hd_bench_model *m; /* during hd_bench_grid_measure */
    struct load load[POINT_MAX];
    hd_cost_point point[POINT_MAX];
    int n_point, n_run[POINT_MAX], n_part; /* n_part: measured so far */
    double sum[POINT_MAX], *seconds;       /* [POINT_MAX, RUN_MAX] n_run of each; their sums */
    hd_cost cost;
};

static void add(struct hd_bench_grid *g, struct load l) {
    const hd_model_options *o = &g->m->mo;
    if (g->n_point == POINT_MAX || l.n_decode + (l.n_prompt > 0) > o->n_seq_max) return;
    if (l.n_decode + l.n_prompt > o->n_row_max || l.first + l.n_prompt > o->n_pos_max) return;
    g->load[g->n_point++] = l;
}

static void add_prompt(struct hd_bench_grid *g, int n, int first) {
    add(g, (struct load){.n_prompt = n, .first = first});
    if (hd_hparams_is_mla(&g->m->hp))
        add(g, (struct load){.n_prompt = n, .first = first, .form = HD_MLA_EXPANDED});
}

static void fill_grid(struct hd_bench_grid *g) {
    int n_pos = g->m->mo.n_pos_max, n_row = g->m->mo.n_row_max, n_seq = g->m->mo.n_seq_max;
    const int contexts[] = {n_pos / 32 + 1, n_pos / 4, n_pos};
    for (int n = 1; n <= n_seq; n = n < n_seq && 2 * n > n_seq ? n_seq : 2 * n)
        for (size_t c = 0; c < HD_COUNT_OF(contexts); c++)
            add(g, (struct load){.n_decode = n, .context = contexts[c]});
    for (int n = 8; n <= n_row; n = n < n_row && 2 * n > n_row ? n_row : 2 * n) {
        add_prompt(g, n, 0);
        add_prompt(g, n, n_pos / 4);
        add_prompt(g, n, n_pos - n);
    }
    for (int n = 2; n < n_seq; n *= 4) {
        struct load l = {.n_decode = n, .context = n_pos / 8 + 1, .is_other = true};
        for (int rows = 16; n + rows <= n_row; rows *= 8) {
            l.n_prompt = rows;
            add(g, l);
            l.form = hd_hparams_is_mla(&g->m->hp) ? HD_MLA_EXPANDED : HD_MLA_ABSORBED;
        }
    }
}

/* Seconds of one step of this load, the tokens chosen. */
static hd_status run(struct hd_bench_grid *g, int ix, double *seconds) {
    const struct load *l = &g->load[ix];
    struct hd_bench_model *m = g->m;
    hd_batch_clear(&m->batch);
    for (int i = 0; i < l->n_decode; i++)
        hd_bench_add_seq(m, l->context - 1, 1, HD_MLA_ABSORBED, true);
    if (l->n_prompt > 0) hd_bench_add_seq(m, l->first, l->n_prompt, l->form, true);
    hd_cost_load_of(&m->batch, &g->point[ix].load);
    *seconds = hd_bench_step(m);
    return m->status;
}

/* Whether a load has had its runs and its time; few runs are enough of one that takes long. */
static bool is_enough(const struct hd_bench_grid *g, int ix, double seconds_each) {
    int n = g->n_run[ix];
    if (n == RUN_MAX) return true;
    if (n % 2 > 0 || n < 2 * g->n_part || g->sum[ix] < seconds_each) return false;
    return n >= RUN_MIN || g->sum[ix] >= RUN_MIN * seconds_each;
}

/* Rounds: two runs in a row of every load that has not had enough. */
static hd_status measure(struct hd_bench_grid *g, double seconds_each) {
    double s;
    for (int i = 0; i < g->n_point; i++) HD_TRY(run(g, i, &s)); /* to warm up */
    for (int n_left = 1, round = 0; n_left > 0; round++) {
        n_left = 0;
        for (int i = 0; i < 2 * g->n_point; i++) {
            int ix = i / 2;
            if (is_enough(g, ix, seconds_each)) continue;
            HD_TRY(run(g, ix, &s));
            g->seconds[ix * RUN_MAX + g->n_run[ix]++] = s;
            g->sum[ix] += s;
            n_left++;
        }
        hd_progress(NULL, "measuring", 2 * (round + 1.0) / RUN_MAX * 0.99);
    }
    hd_progress(NULL, "measured", 1);
    return HD_OK;
}

/* The mean of the middle half of v[n], which is sorted. */
static double middle_mean(const double *v, int n) {
    double sum = 0;
    int from = n / 4, to = n - n / 4;
    for (int i = from; i < to; i++) sum += v[i];
    return sum / (to - from);
}

static hd_status fit(struct hd_bench_grid *g) {
    int n = 0;
    double *factor = hd_alloc_zero((size_t)RUN_MAX * (size_t)g->n_point, sizeof *factor);
    for (int i = 0; i < g->n_point; i++) {
        double *v = g->seconds + (size_t)i * RUN_MAX;
        hd_sort_doubles(v, (size_t)g->n_run[i]);
        g->point[i].mean_s = middle_mean(v, g->n_run[i]);
        g->point[i].is_other = g->load[i].is_other;
        for (int r = 0; r < g->n_run[i]; r++) factor[n++] = v[r] / g->point[i].mean_s;
    }
    double mean = hd_cost_spread(&g->cost, factor, n);
    for (int i = 0; i < g->n_point; i++) g->point[i].mean_s *= mean;
    hd_free(factor);
    return hd_cost_fit(&g->cost, g->point, g->n_point);
}

static void describe(const struct hd_bench_model *m, hd_cost *c) {
    hd_buf device;
    hd_buf_init(&device, 1024);
    m->dev.ops->describe(m->dev.ctx, &device);
    *c = (hd_cost){.n_thread = m->o->threads,
                   .n_ctx = m->hp.n_ctx,
                   .expand_min = hd_engine_expand_min(&m->hp),
                   .n_layer = m->hp.n_layer,
                   .kv_tok_bytes = (int64_t)hd_hparams_kv_bytes(&m->hp, m->mo.kv_type),
                   .weight_bytes = (int64_t)hd_model_weight_bytes(m->model)};
    snprintf(c->model, sizeof c->model, "%s", m->hp.name);
    snprintf(c->backend, sizeof c->backend, "%s", m->dev.ops->name);
    snprintf(c->device, sizeof c->device, "%s", device.len ? device.ptr : "");
    snprintf(c->kv_dtype, sizeof c->kv_dtype, "%s", hd_kv_type_name(m->mo.kv_type));
    hd_buf_fini(&device);
}

void hd_bench_grid_print(const struct hd_bench_grid *g, const char *path) {
    const hd_cost *c = &g->cost;
    int n_least = RUN_MAX, n_most = 0;
    for (int i = 0; i < g->n_point; i++) {
        if (g->n_run[i] < n_least) n_least = g->n_run[i];
        if (g->n_run[i] > n_most) n_most = g->n_run[i];
    }
    printf("%s on %s: %s\n%d loads, %d to %d runs each: a step takes\n", c->model, c->backend,
           c->device, g->n_point, n_least, n_most);
    for (int i = 0; i < c->n_knot; i++)
        printf("  %9.3f ms for %d rows\n", c->knot_s[i] * 1e3, c->knot[i]);
    printf("+ %.3f us an output\n"
           "+ %.3f ns a position that a decoding row attends to\n"
           "+ %.3f ns a row and position of an absorbed prompt, %.3f of an expanded one\n"
           "+ %.3f us a position whose keys and values are expanded\n",
           c->out_s * 1e6, c->decode_s * 1e9, c->absorbed_s * 1e9, c->expanded_s * 1e9,
           c->expand_s * 1e6);
    printf("error of the formula: mean %.1f %%, most %.1f %% of the %d loads it was fitted to; "
           "mean %.1f %%, most %.1f %% of %d mixed ones\n",
           c->error_mean * 100, c->error_max * 100, c->n_point, c->other_mean * 100,
           c->other_max * 100, c->n_other);
    printf("runs of one load: 5 %% take less than %.2f, 5 %% more than %.2f times the mean\n",
           c->quantile[1], c->quantile[HD_COST_QUANTILES - 2]);
    printf("written: %s\n", path);
}

static hd_status save(const hd_cost *c, const char *path) {
    hd_buf text;
    hd_buf_init(&text, 1 << 20);
    hd_cost_write(c, &text);
    hd_status s = hd_output_write(path, hd_buf_str(&text));
    hd_buf_fini(&text);
    return s;
}

struct hd_bench_grid *hd_bench_grid_new(void) {
    struct hd_bench_grid *g = hd_alloc_zero(1, sizeof *g);
    g->seconds = hd_alloc_zero((size_t)POINT_MAX * RUN_MAX, sizeof *g->seconds);
    return g;
}

void hd_bench_grid_free(struct hd_bench_grid *g) {
    if (!g) return;
    hd_free(g->seconds);
    hd_free(g);
}

hd_status hd_bench_grid_measure(struct hd_bench_grid *g, struct hd_bench_model *m, int n_part) {
    g->n_part++;
    g->m = m;
    if (g->n_point == 0) fill_grid(g);
    describe(m, &g->cost);
    return measure(g, m->o->bench_seconds * g->n_part / n_part);
}

hd_status hd_bench_grid_save(struct hd_bench_grid *g, const char *path, hd_cost *out) {
    HD_TRY(fit(g));
    HD_TRY(save(&g->cost, path));
    *out = g->cost;
    return HD_OK;
}

static int least(int a, int b) { return a < b ? a : b; }

hd_status hd_bench_cost(struct hd_bench_model *m) {
    const struct hd_options *o = m->o;
    int n_pos = o->max_model_len > 0 ? o->max_model_len : least(m->hp.n_ctx, 4096);
    HD_TRY(hd_output_try(o->bench_save_cost));
    HD_TRY(hd_bench_open_model(m, o->max_num_batched_tokens, o->max_num_seqs, n_pos, 0));
    struct hd_bench_grid *g = hd_bench_grid_new();
    hd_cost c;
    hd_status s = hd_bench_grid_measure(g, m, 1);
    if (s == HD_OK) s = hd_bench_grid_save(g, o->bench_save_cost, &c);
    if (s == HD_OK) hd_bench_grid_print(g, o->bench_save_cost);
    hd_bench_grid_free(g);
    return s;
}
