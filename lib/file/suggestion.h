/* How a model's maker would sample it: generation_config.json of a folder, when it is to be sampled
 * at all (do_sample), or general.sampling.* of a GGUF. */
#ifndef HD_FILE_SUGGESTION_H
#define HD_FILE_SUGGESTION_H

#include "file/checkpoint.h"

typedef struct hd_suggestion {
    double temperature, top_p; /* negative: nothing is said */
    int top_k;                 /* likewise; 0: off */
} hd_suggestion;

/* HD_E_CORRUPT names the file and the value that cannot be. */
HD_MUST_CHECK hd_status hd_suggestion_read(const hd_checkpoint *c, hd_suggestion *out);

#endif
