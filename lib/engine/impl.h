/* What an engine is made of. Private to lib/engine. */
#ifndef HD_ENGINE_IMPL_H
#define HD_ENGINE_IMPL_H

#include "base/mem.h"
#include "engine/load.h"
#include "engine/loop.h"
#include "engine/place.h"
#include "engine/ranks.h"
#include "engine/sizes.h"
#include "file/suggestion.h"
#include "text/chat.h"
#include "text/stream.h"

#include <pthread.h>

struct hd_engine {
    hd_engine_info info; /* its strings lie in names */
    hd_arena *names;
    hd_checkpoint *checkpoint;
    hd_suggestion suggestion;
    hd_tokenizer *tokenizer; /* NULL: the model brings none, and text cannot be used */
    const hd_chat_encoding *chat;
    int32_t *no_token; /* [n_no_token] ids that stand for no token: padding and holes */
    int n_no_token;
    hd_dev dev;
    hd_place place;
    hd_model *model;        /* rank 0's */
    hd_ranks *ranks;        /* NULL: there is one */
    uint64_t kv_lost;       /* of the model, when last asked */
    uint64_t n_alloc_ready; /* of the device, before the first request */
    hd_loop *loop;
    hd_profile *profile;
    uint64_t profile_key;
    const char *profile_path; /* NULL: it is not kept */
    pthread_t thread;
    bool has_thread;
};

/* The embedded model's GGUF image (embedded.c). */
hd_str hd_embedded_model(void);

#endif
