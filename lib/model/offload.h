/* Feed-forwards that do not fit into the device's memory: they run on the host, by a second device.
 *
 * A layer's feed-forward (the experts of a mixture, or the dense one) stays on the host whole; its
 * activations are copied there and back, a few kilobytes a token. Attention and the KV cache stay
 * on the device. Which layers: those that a plan file names first, in its order; by default the
 * largest, of equal ones the last. Owner: the model. */
#ifndef HD_MODEL_OFFLOAD_H
#define HD_MODEL_OFFLOAD_H

#include "model/arch.h"

struct hd_offload {
    hd_dev host; /* borrowed */
    bool *layer; /* [n_layer] its feed-forward runs on the host */
    hd_offload_facts facts;
    float *x, *normed; /* [R, D] */
    float *norm;       /* [D] */
    float *weight;     /* [R, n_used] */
    int32_t *expert;   /* [R, n_used] */
    hd_status status;  /* of the copies of this step */
};

/* Chooses the layers so that the other weights take at most opt.device_weight_bytes;
 * m->offload stays NULL when there is no bound, or all fit. HD_E_NO_MEMORY: not even with every
 * feed-forward on the host. HD_E_CORRUPT names what is wrong in the plan file. */
HD_MUST_CHECK hd_status hd_offload_choose(hd_model *m);
/* The host's scratch memory, once the limits are known. */
HD_MUST_CHECK hd_status hd_offload_plan(hd_model *m);

/* Whether an op of this layer (-1: of none) runs on the host. */
static inline bool hd_offload_is_host(const hd_model *m, enum hd_op op, int layer) {
    bool is_ffn = op == HD_OP_moe || op == HD_OP_ffn;
    return m->offload && is_ffn && layer >= 0 && m->offload->layer[layer];
}
/* What the copies of the step that ran last failed with; the next one begins anew. */
HD_MUST_CHECK hd_status hd_offload_status(hd_model *m);
/* Copies args' activations to the host, runs the op there, copies x back. */
void hd_offload_ffn(hd_model *m, const struct hd_op_ffn *args);
void hd_offload_moe(hd_model *m, const struct hd_op_moe *args);

#endif
