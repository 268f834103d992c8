/* Tools in chat bodies: their definitions, and the calls that past messages hold. Memory: the
 * arena. Thread: any. */
#ifndef HD_SRV_API_TOOLS_H
#define HD_SRV_API_TOOLS_H

#include "srv/api_request.h"

enum { HD_API_TOOL_MAX = 128, HD_API_NAME_BYTES_MAX = 64, HD_API_PAST_NAME_BYTES_MAX = 256 };

/* tool_calls of the assistant message `in`. */
HD_MUST_CHECK hd_status hd_api_calls(const hd_api_in *in, hd_message *m);

/* Calls are answered by the messages that follow theirs: which are still open. */
typedef struct hd_api_open_calls {
    const hd_message *by; /* NULL: no message may be an answer here */
    size_t by_ix, n_open;
    bool *is_answered; /* [by->n_call] */
} hd_api_open_calls;
/* Follows the messages in order; m is messages[ix], and complete. HD_E_INVALID: an answer to no
 * call, or a message before the last one's calls are answered. */
HD_MUST_CHECK hd_status hd_api_follow_calls(const hd_api_in *in, const hd_message *m, size_t ix,
                                            hd_api_open_calls *open);

#endif
