/* A loaded model: hyper-parameters, bound weights, KV memory and the forward pass.
 *
 * An architecture is one file (deepseek2.c) and one row in arch.c; it is straight-line C over
 * block ops and never knows which backend runs it. Canonical names and hyper-parameters are GGUF's;
 * hf.c translates a Hugging Face checkpoint. Weights are checked against the expected shape when
 * bound; after that no string is looked up. Thread: open anywhere, forward by one thread. */
#ifndef HD_MODEL_MODEL_H
#define HD_MODEL_MODEL_H

#include "base/batch.h"
#include "dev/comm.h"
#include "file/checkpoint.h"

enum { HD_ROPE_PAIR_MAX = 512 }; /* n_rope/2 at most; hd_model_open refuses more */

/* Hyper-parameters of every architecture, in one struct; absent ones are 0. */
typedef struct hd_hparams {
    char arch[32]; /* GGUF architecture: "deepseek2", "llama", ... */
    char name[96]; /* general.name */
    int n_layer;   /* of the model itself */
    int n_next;    /* layers behind those, which predict further tokens: not used */
    int n_ctx, d_model, n_vocab, d_ff;
    int n_head, n_head_kv; /* key and value heads: of GQA; 1 of MLA */
    float rms_eps, lora_eps;
    /* MLA: kv_lora_rank n_c, head parts. GQA: n_c = n_nope = 0, n_rope = n_v = size of a head. */
    int q_lora, n_c, n_nope, n_rope, n_v;
    bool has_qkv_bias;
    bool is_half_split; /* rotated pairs are (i, i + n_rope/2), not (2i, 2i+1) */
    bool has_half_rows; /* so they are in the file, but not here: rows are reordered when read */
    float rope_base;
    float rope_linear; /* linear scaling: positions are divided by this; 0: none */
    bool has_rope_divisor;
    float rope_divisor[HD_ROPE_PAIR_MAX]; /* llama3 scaling: of each inverse frequency */
    bool is_yarn;
    float yarn_factor, yarn_beta_fast, yarn_beta_slow, yarn_mscale, yarn_mscale_all;
    int yarn_orig_ctx;
    int n_dense_layer; /* leading layers with a dense feed-forward */
    int n_expert, n_expert_used, n_expert_shared, d_expert, n_group, n_group_used;
    enum hd_gating gating;
    enum hd_group_rule group_rule;
    bool expert_normalise;
    float expert_scale;
    bool is_tied;          /* the output matrix is token_embd */
    int fp8_block[2];      /* rows and columns of FP8 weights that share a scale */
    int32_t bos, eos, pad; /* -1: none */
} hd_hparams;

/* Reads and validates them from GGUF keys or config.json. HD_E_UNSUPPORTED names an architecture
 * or feature that is not built; HD_E_CORRUPT names the key, expected and found. */
HD_MUST_CHECK hd_status hd_hparams_read(const hd_checkpoint *c, hd_hparams *out);

/* Latent attention; else grouped-query attention. */
static inline bool hd_hparams_is_mla(const hd_hparams *hp) { return hp->n_c > 0; }

/* What one of n_rank ranks of a sharded model computes (model/shard.h): fewer heads, less of a
 * feed-forward. HD_E_INVALID names what does not divide. */
HD_MUST_CHECK hd_status hd_hparams_part(const hd_hparams *whole, int n_rank,
                                        bool is_expert_parallel, hd_hparams *out);

/* Bytes of the weights that a rank holds, as hd_model_weight_bytes counts them. */
HD_MUST_CHECK hd_status hd_model_rank_bytes(const hd_checkpoint *c, int n_rank,
                                            bool is_expert_parallel, uint64_t *out);

/* KV bytes one token takes over all layers. */
size_t hd_hparams_kv_bytes(const hd_hparams *hp, enum hd_kv_type t);
/* Of every kind of row that a layer keeps of a token: MLA one, GQA keys and values. */
hd_kv_layout hd_hparams_kv_layout(const hd_hparams *hp, enum hd_kv_type t);

typedef struct hd_model_options {
    int n_row_max, n_seq_max, n_out_max; /* largest batch */
    int n_pos_max;                       /* longest sequence (effective context) */
    int n_page, page_tok;                /* KV pool */
    enum hd_kv_type kv_type;
    const int32_t *no_token; /* [n_no_token] ids that are never sampled; copied */
    int n_no_token;
    hd_comm *comm; /* the model is this rank's part, every rank runs the same; NULL: it is whole */
    bool is_expert_parallel; /* ranks have experts of their own, not a part of each */
    const hd_dev *host; /* runs feed-forwards that the device has no room for; NULL: none does */
    uint64_t device_weight_bytes; /* the device's room for weights; 0: no bound */
    const char *offload_plan; /* file of layers in the order in which they leave; NULL: by size */
    const char *repack_cache; /* folder of repacked weights (model/repack.h); NULL: none */
} hd_model_options;

/* Feed-forwards that stay on the host. */
typedef struct hd_offload_facts {
    int n_layer;
    uint64_t n_byte;      /* their weights */
    uint64_t token_bytes; /* of those, what one token reads */
} hd_offload_facts;

typedef struct hd_model hd_model;

/* c and dev are borrowed and must outlive the model (weights may be read from the mapping).
 * on_progress (may be NULL) is told weights bound and weights in all. */
HD_MUST_CHECK hd_status hd_model_open(const hd_checkpoint *c, const hd_dev *dev,
                                      const hd_model_options *o,
                                      void (*on_progress)(void *user, int done, int all),
                                      void *user, hd_model **out);
void hd_model_close(hd_model *m); /* accepts NULL */

const hd_hparams *hd_model_hparams(const hd_model *m); /* of its part: hd_hparams_part */
uint64_t hd_model_weight_bytes(const hd_model *m);
uint64_t hd_model_kv_bytes(const hd_model *m);        /* the whole pool */
uint64_t hd_model_workspace_bytes(const hd_model *m); /* of the largest step, the device's too */
/* Values put into the cache so far that its type could not hold: not finite there. */
uint64_t hd_model_kv_lost(const hd_model *m);

/* Zeros: all weights are the device's. */
hd_offload_facts hd_model_offload(const hd_model *m);

/* Computes the batch: writes KV of every row and logits of every out_row: [b->n_out, n_vocab]
 * float32 in host memory, valid until the next forward; or some layers of it (base/batch.h).
 * Allocates nothing. HD_E_DEVICE: the device broke. Without out_row it may return before the device
 * is done. */
HD_MUST_CHECK hd_status hd_model_forward(hd_model *m, const hd_batch *b, const float **logits);

/* From now on the calls of ops, and what runs on the device, are noted in t (borrowed); t NULL: no
 * longer, t of before is complete then. how: of the device. */
HD_MUST_CHECK hd_status hd_model_profile(hd_model *m, hd_spans *t, enum hd_profile_how how);

/* The same in two parts, with the device choosing the tokens as b->draw says: enqueue may return
 * before the step has run, so that the next one can be enqueued before its tokens are fetched; that
 * one may name them by their slots. Where the device works on the host's memory a step has run when
 * enqueue returns, and it is fetched before the next. Both allocate nothing.
 * enqueue: b must stay as it is until fetch when a draw of it is the host's. */
HD_MUST_CHECK hd_status hd_model_enqueue(hd_model *m, const hd_batch *b);
typedef struct hd_model_out {
    const int32_t *token; /* [n_out] -1: the row's numbers were not finite, or the host's to draw */
    const float *logits;  /* [n_out, n_vocab] rows whose draw is the host's; others undefined */
} hd_model_out;
/* Waits for the oldest step that was enqueued and not fetched; *out is valid until the next enqueue
 * or forward. HD_E_DEVICE: the device broke. */
HD_MUST_CHECK hd_status hd_model_fetch(hd_model *m, hd_model_out *out);

/* Lets the device prepare for every step that enqueue may ask for, so that nothing is allocated for
 * them later: once, before the first. Overwrites KV. on_progress as in hd_model_open. */
HD_MUST_CHECK hd_status hd_model_rehearse(hd_model *m,
                                          void (*on_progress)(void *user, int done, int all),
                                          void *user);

/* Prints the operator plan (op, weight format, kernel), one line an op and layer range. */
void hd_model_plan_text(const hd_model *m, hd_buf *b);

/* ---- Translation: the tensors a checkpoint yields under canonical names (canon.c, hf.c) ---- */

/* How a canonical tensor comes from the file's tensors. */
enum hd_canon_kind {
    HD_CANON_PLAIN, /* src[0] as it is */
    HD_CANON_STACK, /* n_src tensors [n_out, n_in] stacked: experts */
    HD_CANON_K_B,   /* from kv_b: per head the n_nope rows, transposed */
    HD_CANON_V_B,   /* from kv_b: per head the n_v rows */
    HD_CANON_PAIRS, /* rows of rotated halves: row 2i+s of the rotated ones from s*n_rope/2+i */
};
/* Where the scales of an FP8 source are: of its row r those of row row0 + r of the scaled matrix
 * that begins at element `first` of the tensor. */
typedef struct hd_canon_scale {
    const hd_file_tensor *tensor; /* NULL: the source is not scaled */
    int64_t first, row0;
} hd_canon_scale;
typedef struct hd_canon_tensor {
    char name[64];
    enum hd_canon_kind kind;
    enum hd_format format; /* of hd_canon_matrix: the file's; of FP8 and of K_B as they say */
    int n_dim;
    int64_t ne[4];           /* GGUF order */
    int pair_group, pair_at; /* PAIRS: of each group of rows, n_rope from pair_at are rotated */
    const hd_file_tensor **src;
    hd_canon_scale *scale; /* [n_src] */
    int n_src;
} hd_canon_tensor;

typedef struct hd_canon hd_canon;
/* Lists every tensor the architecture needs, by canonical name ("output.weight" only when it is not
 * tied to token_embd); HD_E_CORRUPT names one that is
 * missing or has another shape (expected, found). c and hp are borrowed. */
HD_MUST_CHECK hd_status hd_canon_new(const hd_checkpoint *c, const hd_hparams *hp, hd_canon **out);
void hd_canon_free(hd_canon *k);
/* The canonical name of a weight: its suffix, for a layer's behind "blk.N."; layer -1: global. */
void hd_canon_name(int layer, const char *suffix, char out[64]);
size_t hd_canon_count(const hd_canon *k);
const hd_canon_tensor *hd_canon_at(const hd_canon *k, size_t ix);
const hd_canon_tensor *hd_canon_find(const hd_canon *k, const char *name);
/* Whether the checkpoint's tensor of this index is a source of any. */
bool hd_canon_is_used(const hd_canon *k, size_t checkpoint_ix);
/* Whether it is one that nobody would miss with reason: not used, and neither of the layers that
 * predict further tokens, nor computed anyway (rotary frequencies), nor a tied output. */
bool hd_canon_is_surplus(const hd_canon *k, size_t checkpoint_ix);
/* Matrix `ix` of the tensor (its ne[2] index; 0 for 2-D) as stored bytes: a pointer into the
 * mapping when it lies there as wanted, else copied into scratch (ne[0]*ne[1] elements of its
 * format). */
const void *hd_canon_matrix(const hd_canon *k, const hd_canon_tensor *t, int ix, void *scratch);
/* Whether hd_canon_matrix writes to scratch, whatever the matrix. */
bool hd_canon_is_copied(const hd_canon_tensor *t);
/* HD_E_NUMERIC when matrix `ix` of an FP8 tensor has a weight that is not a number. */
HD_MUST_CHECK hd_status hd_canon_check(const hd_canon *k, const hd_canon_tensor *t, int ix);

#endif
