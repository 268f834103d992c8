/* Importance matrices: how large the inputs of each weight matrix are, column by column.
 *
 * Measured on a text by a model's products (hd_imatrix_sums, an observer of lib/dev), written and
 * read in llama.cpp's GGUF layout: tensors NAME.in_sum2 (sums of squares) and NAME.counts (rows
 * summed), one row of each for every matrix of a stack. Its older .dat layout is read too. Encoders
 * weigh the error of a column by its mean square (quant/format.h). */
#ifndef HD_MODEL_IMATRIX_H
#define HD_MODEL_IMATRIX_H

#include "model/model.h"

/* Of one weight: mean squares of its inputs. */
typedef struct hd_importance {
    const float *mean;   /* [n_mat, n_in], or NULL: not known */
    const bool *is_seen; /* [n_mat], or [1] for all: whether any row met this matrix */
    bool is_seen_alike;  /* the latter */
    int64_t n_in;
} hd_importance;

/* [n_in] of one matrix; NULL when nothing is known of it. */
static inline const float *hd_importance_row(const hd_importance *i, int mat) {
    if (!i->mean || !i->is_seen[i->is_seen_alike ? 0 : mat]) return NULL;
    return i->mean + (int64_t)mat * i->n_in;
}

typedef struct hd_imatrix hd_imatrix;

/* HD_E_CORRUPT names the entry, expected and found. */
HD_MUST_CHECK hd_status hd_imatrix_open(const char *path, hd_imatrix **out);
/* From memory (untrusted); name is for messages. Copies what it keeps. */
HD_MUST_CHECK hd_status hd_imatrix_parse(const void *p, size_t n_byte, const char *name,
                                         hd_imatrix **out);
void hd_imatrix_close(hd_imatrix *m); /* accepts NULL */

size_t hd_imatrix_count(const hd_imatrix *m);
int64_t hd_imatrix_chunks(const hd_imatrix *m);      /* 0: the file does not say */
const char *hd_imatrix_dataset(const hd_imatrix *m); /* the text it was measured on, or "" */
/* out->mean is NULL when the file has nothing under the tensor's name; HD_E_CORRUPT when it has
 * another shape. Borrowed from m. */
HD_MUST_CHECK hd_status hd_imatrix_find(const hd_imatrix *m, const hd_canon_tensor *t,
                                        hd_importance *out);

/* ---- measuring ---- */

typedef struct hd_imatrix_sums hd_imatrix_sums;
hd_imatrix_sums *hd_imatrix_sums_new(void);
void hd_imatrix_sums_free(hd_imatrix_sums *s); /* accepts NULL */
/* The observer to give to a device: user is the hd_imatrix_sums. */
void hd_imatrix_observe(void *user, const hd_dev_inputs *in);
size_t hd_imatrix_sums_count(const hd_imatrix_sums *s); /* weights seen */
typedef struct hd_imatrix_source {
    const char *text;                /* path of what was measured on */
    uint32_t n_chunk, n_tok_a_chunk; /* of the runs over it */
} hd_imatrix_source;
/* HD_E_NUMERIC when a sum is not finite. */
HD_MUST_CHECK hd_status hd_imatrix_write(const hd_imatrix_sums *s, const char *path,
                                         const hd_imatrix_source *source);

#endif
