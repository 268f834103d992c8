/* Finding, loading and checking a backend's shared object. */
#include "dev/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { path_max = 4096 };

static hd_status keep_error(hd_status s, const char *text) { return hd_fail(s, "%s", text); }

static void assert_failed(const char *expr, const char *file, int line) {
    hd_assert_fail(expr, file, line);
}

static const hd_host host = {.fail = keep_error, .add = hd_buf_add_c, .assert_fail = assert_failed};

/* The folder of the running program, without its last slash; "" when it cannot be told. */
static void program_folder(char out[path_max]) {
    ssize_t n = readlink("/proc/self/exe", out, path_max - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    *(slash ? slash : out) = 0;
}

static hd_status open_object(const char *file, const char *path, void **object) {
    static const char *const places[] = {"", "/../lib", "/.."};
    if (path) {
        *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        return *object ? HD_OK : HD_FAIL(UNSUPPORTED, "%s", dlerror());
    }
    char folder[path_max], candidate[path_max + 64];
    program_folder(folder);
    for (size_t i = 0; folder[0] && i < HD_COUNT_OF(places); i++) {
        snprintf(candidate, sizeof candidate, "%s%s/%s", folder, places[i], file);
        if (access(candidate, F_OK) != 0) continue;
        *object = dlopen(candidate, RTLD_NOW | RTLD_LOCAL);
        return *object ? HD_OK : HD_FAIL(UNSUPPORTED, "%s", dlerror());
    }
    *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    return *object ? HD_OK : HD_FAIL(UNSUPPORTED, "%s is not beside the program", file);
}

hd_status hd_plugin_load(const char *file, const char *path, const hd_dev_ops **out) {
    void *object = NULL;
    HD_TRY(open_object(file, path, &object));
    const hd_plugin *p = dlsym(object, HD_PLUGIN_SYMBOL);
    if (!p || memcmp(p->contract, HD_DEV_CONTRACT, sizeof p->contract) != 0) {
        dlclose(object);
        return HD_FAIL(UNSUPPORTED, "%s: not a backend of this build of hadal", path ? path : file);
    }
    p->bind(&host);
    *out = p->ops;
    return HD_OK;
}
