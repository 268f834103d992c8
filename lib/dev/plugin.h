/* Backends in a shared object of their own, so that one program runs on hosts with and without the
 * libraries of a device's maker.
 *
 * The object exports one symbol, HD_PLUGIN_SYMBOL, an hd_plugin. Both sides carry a hash of the
 * headers that make up the contract (HD_DEV_CONTRACT, from the build): an object of another build
 * is refused, not called. It links nothing of the program; what it needs of it comes in hd_host. */
#ifndef HD_DEV_PLUGIN_H
#define HD_DEV_PLUGIN_H

#include "dev/dev.h"

#define HD_PLUGIN_SYMBOL "hd_plugin_of_this_object"

/* What a plugin calls in the program: the error text of the calling thread, text output, and the
 * end after a bug. */
typedef struct hd_host {
    hd_status (*fail)(hd_status s, const char *text);
    void (*add)(hd_buf *b, const char *text);
    void (*assert_fail)(const char *expr, const char *file, int line);
} hd_host;

typedef struct hd_plugin {
    char contract[65]; /* HD_DEV_CONTRACT; first, so that any build can read it */
    const hd_dev_ops *ops;
    void (*bind)(const hd_host *host); /* called before anything else */
} hd_plugin;

/* The ops of the object `file` (a name without folders), or at `path` when that is not NULL. Looked
 * for beside the program, in ../lib and .. of it, then where the system's loader looks. Stays
 * loaded. HD_E_UNSUPPORTED: there is none, it cannot be loaded, or it is of another build. */
HD_MUST_CHECK hd_status hd_plugin_load(const char *file, const char *path, const hd_dev_ops **out);

#endif
