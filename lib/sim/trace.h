/* A load trace: which request comes when, how long it is, and what it shares with others.
 *
 * As a CSV file it has the header line HD_TRACE_HEADER and one line a request, by arrival.
 * Requests of one prefix_group (at most 1024 bytes without comma and line end; empty: none) have
 * the same first prefix_tokens tokens; class is a service class (hd_service_find), or empty. Tokens
 * follow from the seeds alone, so that every reader of a trace sends the same prompts.
 *
 * Thread: one owner. */
#ifndef HD_SIM_TRACE_H
#define HD_SIM_TRACE_H

#include "base/buf.h"
#include "base/mem.h"

#define HD_TRACE_HEADER "arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens,class"

enum {
    HD_TRACE_REQUEST_MAX = 1 << 20,
    HD_TRACE_TOKEN_MAX = 1 << 24, /* of a prompt, of an answer */
    HD_TRACE_BYTES_MAX = 256 << 20,
    /* Token ids of prompts: above the control tokens and inside of any vocabulary. */
    HD_TRACE_ID_FIRST = 100,
    HD_TRACE_ID_COUNT = 900
};

typedef struct hd_trace_item {
    double arrival_s;
    int n_prompt, n_output, n_prefix; /* tokens; n_prefix <= n_prompt */
    uint64_t prefix_seed, seed;       /* of the first n_prefix tokens, of the others */
    const char *group, *service;      /* prefix group; hd_service_name of the class; "": none */
} hd_trace_item;

typedef struct hd_trace {
    hd_trace_item *item; /* [n] by arrival */
    int n;
    uint64_t seed;
    hd_arena *arena; /* keeps the texts */
} hd_trace;

/* Each fills *t, which hd_trace_fini ends in every case. HD_E_CORRUPT names line, column, what was
 * expected and found. seed: of the prompts' tokens. */
HD_MUST_CHECK hd_status hd_trace_parse(hd_trace *t, hd_str text, uint64_t seed);
HD_MUST_CHECK hd_status hd_trace_read(hd_trace *t, const char *path, uint64_t seed);
void hd_trace_fini(hd_trace *t);

/* The CSV text; hd_trace_parse of it gives the same trace (arrivals to a microsecond). */
void hd_trace_write(const hd_trace *t, hd_buf *out);

/* The prompt's tokens: [n_prompt]. */
void hd_trace_prompt(const hd_trace_item *item, int32_t *token);

/* Tokens that could come from a cache of unlimited size which keeps whole pages: for each request
 * the longest beginning that it shares with an earlier one of its group, but never its last token.
 */
int64_t hd_trace_reusable_tok(const hd_trace *t, int page_tok);
/* Arrivals come `times` (> 0) as fast, and within 1e9 s, which nanoseconds count. */
void hd_trace_hasten(hd_trace *t, double times);
/* Longest request, prompt and answer. */
int hd_trace_longest(const hd_trace *t);

/* ---- generators ---- */

enum hd_trace_kind {
    HD_TRACE_POISSON,  /* gaps from a gamma distribution; burstiness 1: a Poisson process */
    HD_TRACE_BURSTY,   /* a fifth of each period at 4 times the rate, the rest at a quarter */
    HD_TRACE_DIURNAL,  /* the rate swings by 80 % around its mean, once a period */
    HD_TRACE_LENGTHS,  /* 80 % short requests, 20 % long ones, as a Poisson process */
    HD_TRACE_SESSIONS, /* agents: each turn's prompt is the one before and more */
    HD_TRACE_KIND_COUNT
};
/* "poisson", "bursty", "diurnal", "80-20", "sessions". */
const char *hd_trace_kind_name(enum hd_trace_kind k);

enum { HD_TRACE_CLASS_MAX = 8 };
typedef struct hd_trace_spec {
    enum hd_trace_kind kind;
    int n;                            /* requests */
    double rate;                      /* requests a second in the mean; 0: all at once */
    double shape;                     /* POISSON: of the gamma distribution; less than 1: bursts */
    double period_s;                  /* BURSTY, DIURNAL */
    int n_prompt, n_output, n_prefix; /* n_prefix: first tokens that all prompts share */
    double spread; /* lengths are uniform in n * [1 - spread, 1 + spread]; not LENGTHS' long ones */
    int n_prompt_long; /* LENGTHS: tokens of a long prompt */
    int n_turn;        /* SESSIONS: of one session. Its turn k (from 1) has k prompts and k - 1 */
    double think_s;    /* answers; the mean pause from a turn to the next */
    /* Service classes (hd_service_name) by share; none: no class. LENGTHS and n_class 2: the
     * first is the short requests', the second the long ones'. */
    struct {
        const char *name;
        double share;
    } class_of[HD_TRACE_CLASS_MAX];
    int n_class;
    uint64_t seed;
} hd_trace_spec;

/* HD_E_INVALID: lengths that do not go together. */
HD_MUST_CHECK hd_status hd_trace_generate(hd_trace *t, const hd_trace_spec *spec);

/* "NAME:SHARE,NAME:SHARE" into the spec. */
HD_MUST_CHECK hd_status hd_trace_parse_classes(const char *text, hd_trace_spec *spec);

#endif
