/* hadal's public C API: open an engine, submit token sequences, receive events; and the text tools
 * a front end needs (tokenize, chat encoding, text streams).
 *
 * Threads: every function may be called from any thread unless it says otherwise. Events arrive on
 * the engine thread through hd_request.on_event, which must return quickly and never block.
 * Strings are UTF-8. Errors: hd_status, with hd_error_text() on the calling thread. */
#ifndef HADAL_H
#define HADAL_H

#include "base/buf.h"
#include "base/chat.h"
#include "base/service.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- engine ---- */

typedef struct hd_engine_config {
    const char *model;        /* path; NULL or "mini": the embedded model */
    const char *served_name;  /* name clients see; NULL: the model's own */
    const char *backend;      /* "auto", "cuda", "cpu", "ref" */
    const char *isa;          /* of the cpu: "auto", "amx", "avx512", "avxvnni", "avx2", "scalar" */
    const char *cuda_library; /* path of the cuda backend; NULL: beside the program */
    const char *dtype;        /* of a GPU's products: "auto", "float32", "bfloat16" */
    bool deterministic;       /* a GPU's results independent of what is computed beside, too */
    bool no_context_fmha;     /* a GPU's attention over a prompt: row by row */
    bool no_multi_block;      /* a GPU's attention over a context: not split over blocks */
    bool no_early_launch;     /* a GPU's kernels: one after another */
    double gpu_memory_gib;    /* of a GPU's memory to take at most; 0: all that is free */
    const char *offload_plan; /* file: layers whose feed-forwards leave it first; NULL: by size */
    const char *repack_cache; /* folder that repacked weights are kept in; NULL: none */
    int n_thread;             /* of the cpu; 0: one per available core */
    int tensor_parallel_size; /* ranks that hold a part of the model each: GPUs, or CPU threads */
    bool enable_expert_parallel; /* ranks have whole experts, not a part of each */
    int max_model_len;           /* tokens of a sequence; 0: the model's */
    int max_num_seqs;
    int max_num_batched_tokens;
    int context_chunk_size; /* prompt tokens of one request in a step; 0: the budget */
    bool enable_chunked_context;
    int block_size;                       /* tokens a KV page */
    int64_t max_tokens_in_paged_kv_cache; /* 0: by the next */
    double kv_cache_free_mem_fraction;    /* of the memory free after loading */
    const char *kv_cache_dtype; /* "auto" (f16 beside quantised weights on a cpu that is faster with
       it, else f32), "f32", "f16", "bf16", "fp8", "int8" */
    bool enable_prefix_caching;
    bool exact; /* output independent of what was cached, too */
    int max_num_queued_reqs;
    int64_t max_num_queued_tokens; /* 0: no bound */
    double queue_timeout_s;        /* a request whose computation has not begun by then ends with
        HD_E_UNAVAILABLE; 0: no bound */
    const char *scheduling_policy; /* "priority" or "fcfs" */
    bool no_dynamic_batching;      /* requests join only when all of the batch before have ended */
    hd_service_target target[HD_SERVICE_COUNT]; /* what classes are promised; 0: the defaults */
    double max_step_ms;         /* bound of a step's predicted P95; 0: by the classes' tolerance */
    const char *reorder_policy; /* "none", "fragmentation", "prefix" (default) or "length" */
    int reorder_interval;       /* steps between two orderings of the running sequences */
    int compaction_pages;       /* KV pages moved before a step at most, to lie side by side; -1: 16
       on a cpu with a cache that it reads where it lies (F32, F16 on some), else 0 */
    bool elastic_batching;      /* the bound of a step follows the forecast load */
    const char *latency_profile; /* file of step times: read, and written at the end; NULL: none */
    double measure_ms;           /* time spent on measuring steps at start when there is none */
    const char *tokenizer;       /* path to override the model's; NULL */
    const char *chat_encoding;   /* name to override; NULL: by the model's files */
    const char *expect_hash;     /* content hash the model must have; NULL: any */
    /* Told while loading (may be NULL): what, and how much of it is done in [0, 1]. 1 comes once,
     * at the end: "ready" or "failed". */
    void (*on_progress)(void *user, const char *what, double done);
    void *progress_user;
} hd_engine_config;

void hd_engine_config_init(hd_engine_config *c); /* the defaults */

typedef struct hd_engine hd_engine;
/* Loads the model and starts the engine thread. The config is copied. */
HD_MUST_CHECK hd_status hd_engine_open(const hd_engine_config *c, hd_engine **out);
/* Cancels what runs, stops the thread, frees everything. Accepts NULL. */
void hd_engine_close(hd_engine *e);

typedef struct hd_engine_info {
    const char *model_name, *arch, *backend, *device, *chat_encoding, *kv_cache_dtype,
        *weight_format;
    const char *chat_encoding_why; /* what decided it, or why there is none */
    const char *model_hash;        /* 32 hex digits */
    int max_model_len, n_ctx_train, n_vocab, n_layer, max_num_seqs, block_size, n_page;
    int n_rank; /* the figures below are of all of them */
    int64_t n_param, weight_bytes, kv_pool_bytes, kv_bytes_per_token, workspace_bytes;
    int32_t bos, eos; /* -1: none */
    /* Of the chat encoding; thinks_by_default: unless a request says otherwise, as DeepSeek's own
     * servers do. */
    bool can_think, always_thinks, thinks_by_default, can_call_tools;
    bool
        keeps_reasoning; /* of messages with tool calls after the last user's: it is needed there */
    bool has_response_format; /* hd_chat_prompt.schema is told to the model */
    bool has_fim;             /* hd_engine_fim works */
    double load_s;
} hd_engine_info;
/* Pointers live as long as the engine. */
const hd_engine_info *hd_engine_get_info(const hd_engine *e);

typedef struct hd_engine_stats {
    int n_running, n_waiting, n_page, n_page_free, n_page_cached, n_page_used;
    int n_waiting_of[HD_SERVICE_COUNT]; /* admitted to none yet, by class */
    int64_t wait_ns[HD_SERVICE_COUNT];  /* predicted, of a request that came now */
    uint64_t n_step, prompt_tok, hit_tok, generated_tok, n_preempt, recomputed_tok, n_finished,
        n_page_moved;
    int64_t last_step_ns; /* hd_now_ns() of the last finished step; 0: none yet */
    int64_t stuck_ns;     /* with work queued: time since the loop last made progress; else 0 */
    bool is_failed;       /* the engine stopped after a device failure */
} hd_engine_stats;
/* A snapshot, at most one step old. Never blocks on the engine. */
void hd_engine_get_stats(const hd_engine *e, hd_engine_stats *out);

/* ---- requests ---- */

typedef struct hd_logit_bias {
    int32_t token;
    float bias;
} hd_logit_bias;

typedef struct hd_sampling {
    float temperature;                         /* 0: greedy */
    int top_k;                                 /* 0: off */
    float top_p, min_p;                        /* 1 and 0: off */
    float presence_penalty, frequency_penalty; /* over generated tokens; 0: off */
    float repetition_penalty;                  /* over prompt and generated tokens; 1: off */
    uint64_t seed;
    bool has_seed;     /* false: a fresh seed for each request */
    int n_top_logprob; /* -1: no logprobs; 0..20: the chosen token's and the best n */
    const hd_logit_bias *bias;
    int n_bias;
} hd_sampling;
void hd_sampling_init(hd_sampling *s); /* temperature 1, everything else off */
/* The same, with what the model's own files suggest (generation_config.json, general.sampling.*).
 */
void hd_engine_sampling_init(const hd_engine *e, hd_sampling *s);

enum hd_finish {
    HD_FINISH_NONE,
    HD_FINISH_STOP,
    HD_FINISH_LENGTH,
    HD_FINISH_CANCELLED,
    HD_FINISH_ERROR
};

enum { HD_TOP_LOGPROB_MAX = 20, HD_STOP_MAX = 16, HD_STOP_TOKEN_MAX = 64, HD_BIAS_MAX = 1024 };

typedef struct hd_top_logprob {
    int32_t token;
    float logprob;
} hd_top_logprob;

/* One generated token, or the end of a request, or both. Valid during the call only. */
typedef struct hd_event {
    uint64_t id;               /* hd_request_submit's */
    int32_t token;             /* -1: none in this event. An end token is reported, with finish */
    bool is_end_token;         /* eos or a stop token: not part of the text */
    float logprob;             /* ln of the model's probability, before temperature and cuts */
    const hd_top_logprob *top; /* [n_top] best first */
    int n_top;
    enum hd_finish finish; /* not NONE: the last event of this request */
    int stop_ix;           /* with STOP by a stop string: which; else -1 */
    int32_t stop_token;    /* with STOP by a token: which; else -1 */
    hd_status status;      /* with ERROR: why, and its text */
    const char *error;
    int n_prompt, n_hit,
        n_generated; /* n_hit: prompt tokens reused; n_generated includes this one */
    int64_t submitted_ns, admitted_ns, first_token_ns, now_ns; /* hd_now_ns(); 0: not yet */
} hd_event;

/* False: the receiver is full or gone, and the request is cancelled (a last event still comes). */
typedef bool (*hd_event_fn)(void *user, const hd_event *ev);

typedef struct hd_request {
    const int32_t *prompt; /* [n_prompt] every id in [0, n_vocab) */
    int n_prompt;
    int max_tokens; /* 0: until the context is full */
    int min_tokens; /* end tokens and stops are not taken before */
    hd_sampling sampling;
    const hd_str *stop; /* stop strings, over generated text */
    int n_stop;
    const int32_t *stop_token;
    int n_stop_token;
    bool ignore_eos;
    bool is_chat;      /* what ends a chat answer ends this one, too: a turn of the user's */
    bool keep_special; /* special tokens count as text when stop strings are matched */
    enum hd_service service;
    int priority;        /* lower is sooner, within the class */
    uint64_t tenant;     /* who shares fairly with others of the class */
    int64_t deadline_ns; /* hd_now_ns() after which the answer is of no use; 0: none */
    uint64_t cache_salt; /* 0: shared prefix cache */
    hd_event_fn on_event;
    void *user;
} hd_request;

void hd_request_init(hd_request *r);
/* Everything is copied. After HD_OK exactly one event with finish != NONE will come, possibly
 * before this returns. HD_E_INVALID, HD_E_CONTEXT (names the limit), HD_E_BUSY (the queue is full,
 * or the wait would be too long). */
HD_MUST_CHECK hd_status hd_request_submit(hd_engine *e, const hd_request *r, uint64_t *id);
/* Whether a request of this class, however short, would be accepted now: HD_E_BUSY if not. */
HD_MUST_CHECK hd_status hd_engine_admits(const hd_engine *e, enum hd_service service);
/* Seconds, at least 1, after which one that was refused with HD_E_BUSY may well be accepted. */
int hd_engine_retry_s(const hd_engine *e, enum hd_service service);
/* Ends a request in any state; harmless when it has ended already. */
void hd_request_cancel(hd_engine *e, uint64_t id);
/* The same for one whose answer is complete by what its receiver knows: it ends with STOP. */
void hd_request_stop(hd_engine *e, uint64_t id);

/* ---- text ---- */

/* The ids are heap: free with hd_engine_free_ids. */
typedef struct hd_token_list {
    int32_t *id;
    size_t n;
} hd_token_list;
void hd_engine_free_ids(hd_token_list *l);

/* match_added: special tokens written in the text become their ids. add_bos: as the model wants. */
HD_MUST_CHECK hd_status hd_engine_tokenize(const hd_engine *e, hd_str text, bool match_added,
                                           bool add_bos, hd_token_list *out);
/* Raw bytes of one token; empty for an id without a token. */
hd_str hd_engine_token_bytes(const hd_engine *e, int32_t token);
bool hd_engine_token_is_special(const hd_engine *e, int32_t token);
/* Appends the text of ids; invalid bytes become U+FFFD. */
void hd_engine_detokenize(const hd_engine *e, const int32_t *id, size_t n, bool keep_special,
                          hd_buf *out);

/* A conversation as the model wants it. HD_E_INVALID names a message or a tool, HD_E_UNSUPPORTED
 * what the chat encoding has not. */
HD_MUST_CHECK hd_status hd_engine_chat(const hd_engine *e, const hd_chat_prompt *p,
                                       hd_token_list *out, hd_chat_start *start);
/* A text with a gap that the model is to fill. HD_E_UNSUPPORTED names the token it lacks. */
HD_MUST_CHECK hd_status hd_engine_fim(const hd_engine *e, hd_str prefix, hd_str suffix,
                                      hd_token_list *out);

/* Generated tokens to text that may be shown, and to tool calls; see lib/text/stream.h. One owner
 * at a time. HD_E_UNSUPPORTED: parse_tools, and the chat encoding has no tools. */
typedef struct hd_text_stream hd_text_stream;
/* Of a model without a tokenizer *out is NULL, a stream without text; stop strings are refused. */
HD_MUST_CHECK hd_status hd_text_stream_new(const hd_engine *e, const hd_text_stream_options *o,
                                           hd_text_stream **out);
void hd_text_stream_free(hd_text_stream *s); /* accepts NULL */
/* Once `stopped`, a request that runs on can be ended with hd_request_stop. */
hd_text_out hd_text_stream_feed(hd_text_stream *s, int32_t token);
/* is_cut: the model had not ended its answer (HD_FINISH_LENGTH). */
hd_text_out hd_text_stream_end(hd_text_stream *s, bool is_cut);

#endif
