/* What the tools that look into a model share: which part of it a tensor is, and sizes for people.
 */
#ifndef HD_CMD_ANATOMY_H
#define HD_CMD_ANATOMY_H

#include "model/model.h"

enum hd_part {
    HD_PART_EMBEDDING,
    HD_PART_HEAD,
    HD_PART_ATTENTION,
    HD_PART_DENSE,
    HD_PART_EXPERTS,
    HD_PART_SHARED,
    HD_PART_ROUTER,
    HD_PART_NORMS,
    HD_PART_COUNT
};

const char *hd_part_name(enum hd_part p);  /* "routed experts" */
enum hd_part hd_part_of(const char *name); /* by canonical name */

uint64_t hd_canon_params(const hd_canon_tensor *t);
/* Of those, how many a token's forward pass reads: all but the experts it is not routed to and the
 * rows of the embedding table that it is not. */
uint64_t hd_canon_active_params(const hd_canon_tensor *t, const hd_hparams *hp);

/* "34.2 MB", "1.29 GB"; "17.1 M", "671 B". Valid until the next eight calls. */
const char *hd_human_bytes(uint64_t n);
const char *hd_human_count(uint64_t n);

#endif
