/* A shared object that has the symbol of a backend, but is of another build. */
#include "dev/plugin.h"

#include <stdlib.h>

static void bind(const hd_host *host) {
    (void)host;
    abort(); /* must not be called */
}

const hd_plugin hd_plugin_of_this_object = {.contract = "another build", .bind = bind};
