/* Validation of a request: every field, with the field, what is allowed and what was found. */
#ifndef HD_ENGINE_REQUEST_H
#define HD_ENGINE_REQUEST_H

#include "hadal.h"

/* HD_E_INVALID, or HD_E_CONTEXT for a prompt that leaves no room to generate a token. */
HD_MUST_CHECK hd_status hd_request_check(const hd_request *r, int n_vocab, int n_ctx);

#endif
