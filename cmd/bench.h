/* Inside of `hadal bench`: what its parts share. */
#ifndef HD_CMD_BENCH_H
#define HD_CMD_BENCH_H

#include "cmd/command.h"
#include "engine/place.h"
#include "model/model.h"
#include "sim/cost.h"

enum { HD_BENCH_LIST_MAX = 16 };
struct hd_bench_list {
    int n, v[HD_BENCH_LIST_MAX];
};
/* "1,2,3" of the option; no number below least. */
HD_MUST_CHECK hd_status hd_bench_parse_list(const char *flag, const char *text, int least,
                                            struct hd_bench_list *out);
int hd_bench_largest(const struct hd_bench_list *l);
/* The same numbers each time, in [-scale, scale). */
void hd_bench_fill(float *p, size_t n, float scale);

/* Time as --clock says: the wall's; or the processor time of this thread, in which waiting takes
 * none: what a machine would need that nobody else uses. */
typedef struct hd_work_clock {
    bool is_processor;
    int64_t ahead_ns; /* of the processor time: what was waited */
} hd_work_clock;
/* HD_E_INVALID: processor time with more threads than this one. */
HD_MUST_CHECK hd_status hd_work_clock_init(hd_work_clock *c, const struct hd_options *o);
int64_t hd_work_clock_now(const hd_work_clock *c);
void hd_work_clock_wait(hd_work_clock *c, int64_t until_ns);

/* bench_model.c: a model without an engine. */
struct hd_bench_model {
    const struct hd_options *o;
    hd_work_clock clock; /* of steps */
    hd_checkpoint *checkpoint;
    hd_hparams hp;
    hd_dev dev;
    hd_place place;
    hd_model *model; /* NULL until hd_bench_open_model */
    hd_model_options mo;
    hd_batch batch;
    uint64_t seed;    /* of the tokens */
    hd_status status; /* what a step failed with */
};

/* The files and the device; hd_bench_close in every case. */
HD_MUST_CHECK hd_status hd_bench_open(struct hd_bench_model *b, const struct hd_options *o,
                                      const char *model);
/* Room for n_seq sequences of n_pos positions, n_row rows a step, at least n_seq, and n_page pages
 * for all of them (0: as many as they could need). */
HD_MUST_CHECK hd_status hd_bench_open_model(struct hd_bench_model *b, int n_row, int n_seq,
                                            int n_pos, int n_page);
void hd_bench_close_model(struct hd_bench_model *b);
void hd_bench_close(struct hd_bench_model *b);
/* Appends to the batch a sequence whose rows are positions first .. first + n of random tokens,
 * with a token behind the last, the likeliest, if asked. */
void hd_bench_add_seq(struct hd_bench_model *b, int first, int n, enum hd_mla_form form,
                      bool has_out);
/* Seconds of one step, its tokens drawn and on the host. */
double hd_bench_step(struct hd_bench_model *b);

/* Seconds of a prompt in steps of max_num_batched_tokens. */
double hd_bench_prompt(struct hd_bench_model *b, int n_tok);
/* Steps of n_seq sequences that have context tokens each, the new one included, and growth more in
 * every later step, one after the other as the engine runs them: a device of its own has the next
 * one before the tokens of this one are fetched. ns [n_step]: from tokens to tokens. */
void hd_bench_decode_many(struct hd_bench_model *b, int n_seq, int context, int growth, int n_step,
                          int64_t *ns);

/* bench_host.c: what comes before computing, and beside it. */
struct hd_bench_host {
    int64_t start_ns;
    double load_s, first_token_s;    /* since then; the first token of a short prompt */
    double weight_bytes, peak_bytes; /* most memory of the process so far, mapped files included */
    int n_thread;                    /* 0: nothing below was measured */
    double empty_run_ns;             /* of the pool, a task for each thread */
    double warm_ms, late_ms;         /* a step behind another one, and behind idleness */
    double read_ms, late_read_ms;    /* the same of one thread that reads memory and no more */
    double idle_share;               /* of a core, of that idleness */
};
void hd_bench_host_start(struct hd_bench_host *h);
HD_MUST_CHECK hd_status hd_bench_host_first_token(struct hd_bench_host *h,
                                                  struct hd_bench_model *m);
HD_MUST_CHECK hd_status hd_bench_host_pool(struct hd_bench_host *h, struct hd_bench_model *m);
void hd_bench_host_tell(const struct hd_bench_host *h);             /* lines on stdout */
void hd_bench_host_json(const struct hd_bench_host *h, hd_json *j); /* members "load", "pool" */

/* Measures a model's speed and tells it: lines, or with --json an object a line for each of --runs.
 */
HD_MUST_CHECK hd_status hd_bench_speed(const struct hd_options *o, const char *model);

/* The command, after the word `matrix`; returns the exit code. */
int hd_bench_matrix(const struct hd_options *o, int n_arg, char **arg);

/* --save-cost: measures the cost profile of an opened model, and writes it. */
HD_MUST_CHECK hd_status hd_bench_cost(struct hd_bench_model *m);

/* The same in n_part parts with something else in between, so that both meet the same machine; each
 * part's model has the same room. */
struct hd_bench_grid *hd_bench_grid_new(void);
void hd_bench_grid_free(struct hd_bench_grid *g); /* accepts NULL */
HD_MUST_CHECK hd_status hd_bench_grid_measure(struct hd_bench_grid *g, struct hd_bench_model *m,
                                              int n_part);
/* After the last part: fits and writes the profile. */
HD_MUST_CHECK hd_status hd_bench_grid_save(struct hd_bench_grid *g, const char *path, hd_cost *out);
void hd_bench_grid_print(const struct hd_bench_grid *g, const char *path); /* on stdout */

struct hd_bench_products {
    const hd_dev *dev;
    const hd_dev_roofline *roof; /* flops 0: unknown */
    double seconds;              /* a point */
    hd_json *json;               /* NULL: lines on stdout */
};

/* Times y = W x alone, by format, shape and rows, as shares of the roofline. Lines on
 * stdout, or an array member "products". Reserves the device's scratch: not while a model is
 * open on it. */
HD_MUST_CHECK hd_status hd_bench_products(const struct hd_bench_products *b);

struct hd_bench_attention {
    const hd_dev *dev;
    const hd_dev_roofline *roof;                            /* as above */
    const struct hd_bench_list *prompts, *depths, *batches; /* tokens, tokens, sequences */
    enum hd_kv_type kv_type;
    int page_tok;
    double seconds; /* a point */
    hd_json *json;  /* NULL: lines on stdout */
};

/* Times latent attention alone, as shares of the roofline. Otherwise as above; HD_E_UNSUPPORTED: a
 * device with memory of its own. */
HD_MUST_CHECK hd_status hd_bench_attention(const struct hd_bench_attention *b);

#endif
