/* hadal doctor: what is wrong with a file, before it is needed. `doctor fatbin` tells which GPUs
 * the CUDA code inside a program or plugin was built for, where it will load, and why not. */
#include "base/buf.h"
#include "cmd/command.h"
#include "file/fatbin.h"
#include "file/mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu {
    int capability;
    const char *examples;
};
/* CUDA GPU Compute Capability, the maker's table; data-centre cards first. */
static const struct gpu known[] = {
    {70, "V100"},       {75, "T4"},    {80, "A100, A30"}, {86, "A10, A40"},      {89, "L4, L40S"},
    {90, "H100, H200"}, {100, "B200"}, {103, "B300"},     {120, "RTX PRO 6000"},
};

/* "sm_90", "sm_90a", "9.0" -> 90; 0: neither. */
static int parse_capability(const char *text) {
    if (strncmp(text, "sm_", 3) == 0) {
        char *end;
        long v = strtol(text + 3, &end, 10);
        if (*end == 'a' || *end == 'f') end++;
        return end > text + 3 && *end == 0 && v >= 10 && v <= 999 ? (int)v : 0;
    }
    int major = 0, minor = -1, n = 0;
    if (sscanf(text, "%2d.%1d%n", &major, &minor, &n) < 2 || text[n] != 0) return 0;
    return major >= 1 && minor >= 0 ? 10 * major + minor : 0;
}

/* Why nothing in f runs on a GPU of this capability: the nearest target and its rule. */
static void explain(const hd_fatbin *f, int capability, char why[160]) {
    const hd_fatbin_target *near = NULL;
    bool has_ptx = false;
    for (int i = 0; i < f->n_target; i++) {
        const hd_fatbin_target *t = &f->target[i];
        has_ptx |= t->is_ptx;
        if (!near || abs(t->capability - capability) < abs(near->capability - capability)) near = t;
    }
    char name[32];
    if (!near) {
        snprintf(why, 160, "neither SASS nor PTX inside");
        return;
    }
    hd_fatbin_name(near, name);
    if (near->suffix == HD_FATBIN_ARCH)
        snprintf(why, 160, "%s is for %d.%d alone%s", name, near->capability / 10,
                 near->capability % 10, has_ptx ? "" : ", and there is no PTX");
    else if (near->capability > capability)
        snprintf(why, 160, "%s is newer than this GPU", name);
    else
        snprintf(why, 160, "%s runs on %d.x from %d.%d on%s", name, near->capability / 10,
                 near->capability / 10, near->capability % 10,
                 has_ptx ? "" : ", and there is no PTX to compile for others");
}

/* ---- telling ---- */

static void print_gpu(const hd_fatbin *f, const struct gpu *g) {
    const hd_fatbin_target *t = hd_fatbin_choose(f, g->capability);
    char name[32], why[160];
    printf("  %2d.%d  %-14s ", g->capability / 10, g->capability % 10, g->examples);
    if (!t) {
        explain(f, g->capability, why);
        printf("does not load: %s\n", why);
        return;
    }
    hd_fatbin_name(t, name);
    printf("loads %s%s\n", name, t->is_ptx ? ": the driver compiles it at the first start" : "");
}

static void print_text(const char *path, const hd_fatbin *f, const struct gpu *gpu, int n) {
    char name[32];
    printf("%s: CUDA code for\n", path);
    for (int i = 0; i < f->n_target; i++) {
        const hd_fatbin_target *t = &f->target[i];
        hd_fatbin_name(t, name);
        printf("  %-12s %s, %d %s, %llu bytes\n", name, t->is_ptx ? "PTX" : "SASS", t->n_entry,
               t->n_entry == 1 ? "entry" : "entries", (unsigned long long)t->n_byte);
    }
    if (f->n_other > 0)
        printf("  %d entries of other kinds (for a link at run time)\n", f->n_other);
    printf("on a GPU of compute capability\n");
    for (int i = 0; i < n; i++) print_gpu(f, &gpu[i]);
}

static void add_str(hd_json *j, const char *key, const char *value) {
    hd_json_key(j, key);
    hd_json_str_c(j, value);
}

static void print_json(const char *path, const hd_fatbin *f, const struct gpu *gpu, int n) {
    hd_buf b;
    char name[32], why[160];
    hd_buf_init(&b, 1 << 20);
    hd_json j = hd_json_begin(&b);
    hd_json_object(&j);
    add_str(&j, "file", path);
    hd_json_key(&j, "targets");
    hd_json_array(&j);
    for (int i = 0; i < f->n_target; i++) {
        hd_fatbin_name(&f->target[i], name);
        hd_json_object(&j);
        add_str(&j, "name", name);
        add_str(&j, "kind", f->target[i].is_ptx ? "ptx" : "sass");
        hd_json_key(&j, "entries");
        hd_json_int(&j, f->target[i].n_entry);
        hd_json_key(&j, "bytes");
        hd_json_int(&j, (int64_t)f->target[i].n_byte);
        hd_json_object_end(&j);
    }
    hd_json_array_end(&j);
    hd_json_key(&j, "gpus");
    hd_json_array(&j);
    for (int i = 0; i < n; i++) {
        const hd_fatbin_target *t = hd_fatbin_choose(f, gpu[i].capability);
        hd_json_object(&j);
        hd_json_key(&j, "compute_capability");
        hd_json_num(&j, gpu[i].capability / 10.0);
        hd_json_key(&j, "loads");
        hd_json_bool(&j, t != NULL);
        if (t)
            hd_fatbin_name(t, name);
        else
            explain(f, gpu[i].capability, why);
        add_str(&j, t ? "target" : "why", t ? name : why);
        hd_json_object_end(&j);
    }
    hd_json_array_end(&j);
    hd_json_object_end(&j);
    printf("%.*s\n", (int)b.len, b.ptr);
    hd_buf_fini(&b);
}

static int doctor_fatbin(const struct hd_options *o, const char *path) {
    struct gpu one = {0, ""};
    const struct gpu *gpu = known;
    int n = (int)HD_COUNT_OF(known);
    if (o->doctor_target) {
        one.capability = parse_capability(o->doctor_target);
        if (one.capability == 0)
            return hd_command_usage(&hd_cmd_doctor, "--target: expected sm_90 or 9.0, found \"%s\"",
                                    o->doctor_target);
        gpu = &one;
        n = 1;
    }
    hd_mapping file;
    hd_fatbin f;
    if (hd_mapping_open(path, &file) != HD_OK) return hd_command_error(&hd_cmd_doctor);
    hd_status s = hd_fatbin_read(file.ptr, file.n_byte, &f);
    hd_mapping_close(&file);
    if (s != HD_OK) {
        (void)hd_fail_context(s, "%s", path);
        return hd_command_error(&hd_cmd_doctor);
    }
    if (o->json)
        print_json(path, &f, gpu, n);
    else
        print_text(path, &f, gpu, n);
    return o->doctor_target && !hd_fatbin_choose(&f, one.capability) ? 1 : 0;
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg == 0) return hd_command_usage(&hd_cmd_doctor, "what to look at? fatbin FILE");
    if (strcmp(arg[0], "fatbin") != 0)
        return hd_command_usage(&hd_cmd_doctor, "expected fatbin, found \"%s\"", arg[0]);
    if (n_arg != 2) return hd_command_usage(&hd_cmd_doctor, "fatbin: one file expected");
    return doctor_fatbin(o, arg[1]);
}

const struct hd_command hd_cmd_doctor = {
    .name = "doctor",
    .summary = "tell on which GPUs a program's or plugin's CUDA code loads",
    .usage = "fatbin [options] FILE",
    .details =
        "Lists the GPU code (SASS, PTX) inside a program, plugin, library or .fatbin file, and "
        "for\n"
        "each kind of GPU what it will load, or why nothing: code is missing for it, or was built\n"
        "for one chip alone (sm_90a). No GPU and no CUDA tools are needed.\n"
        "\n"
        "  hadal doctor fatbin libhadal_cuda.so\n"
        "  hadal doctor fatbin plugin.so --target sm_80 --json\n"
        "\n"
        "With --target the exit code is 1 when the file does not load there.\n",
    .run = run,
};
