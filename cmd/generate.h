/* One generation for a command: submitted, its tokens handed over on the caller's thread, and
 * cancelled cleanly by Ctrl-C. */
#ifndef HD_CMD_GENERATE_H
#define HD_CMD_GENERATE_H

#include "hadal.h"

typedef struct hd_generated {
    enum hd_finish finish;
    hd_status status; /* with HD_FINISH_ERROR */
    int n_prompt, n_hit, n_generated;
    double first_s; /* from submission to the first token */
    double token_s; /* tokens a second after the first */
} hd_generated;

/* Runs r (its on_event and user are set here) and calls on_token for each token, end tokens too;
 * false from it cancels. Ctrl-C cancels. HD_E_* as hd_request_submit; an error that ends the
 * generation later is returned with its text, too. */
HD_MUST_CHECK hd_status hd_generate(hd_engine *e, hd_request *r,
                                    bool (*on_token)(void *user, const hd_event *ev), void *user,
                                    hd_generated *out);

/* From now on SIGINT does not end the program: it cancels the generation that runs. */
void hd_generate_catch_interrupt(void);
/* Whether there was one since the last call. */
bool hd_generate_was_interrupted(void);

#endif
