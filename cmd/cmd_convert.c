/* hadal convert: a model of any kind that hadal reads, written as one GGUF file, its weights as
 * they are or as plain floats. */
#include "cmd/target.h"

#include <string.h>

static hd_status convert(struct hd_target *t, const struct hd_options *o, char **arg) {
    enum hd_format f = HD_F32;
    bool is_auto = strcmp(o->outtype, "auto") == 0;
    HD_TRY(hd_target_open(t, arg[0], o->name, o->threads));
    if (!is_auto) HD_TRY(hd_format_by_name(o->outtype, &f));
    for (size_t i = 0; i < hd_canon_count(t->k); i++)
        hd_target_choose(t, i, is_auto ? HD_EXPORT_AUTO : (int)f);
    HD_TRY(hd_target_begin(t, arg[1], o->force));
    hd_gguf_set_u32(t->w, "general.file_type", hd_export_file_type(hd_target_majority(t)));
    return hd_target_write(t);
}

static int run(const struct hd_options *o, int n_arg, char **arg);

const struct hd_command hd_cmd_convert = {
    .name = "convert",
    .summary = "write a model as one GGUF file",
    .usage = "[options] SOURCE TARGET.gguf",
    .details =
        "SOURCE is a Hugging Face folder (config.json, safetensors, tokenizer.json), a GGUF file "
        "or\n"
        "'mini', the embedded model.\n"
        "Norms, the router and its bias are written as F32, everything else as --outtype says;\n"
        "auto keeps each tensor's own format (FP8, which GGUF does not have, becomes BF16: exact\n"
        "where scales are powers of two, else to 2^-9). The target appears only when it is\n"
        "complete; --force replaces another file, never the source.\n"
        "Smaller files: hadal quantize.\n\n"
        "  hadal convert DeepSeek-V3-folder v3.gguf --outtype bf16\n",
    .run = run,
};

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg != 2)
        return hd_command_usage(&hd_cmd_convert, "expected SOURCE and TARGET, found %d arguments",
                                n_arg);
    struct hd_target t = {.what = "converting"};
    hd_status s = convert(&t, o, arg);
    int rc = s == HD_OK ? 0 : hd_command_error(&hd_cmd_convert);
    if (s == HD_OK) hd_target_report(&t);
    hd_target_close(&t);
    return rc;
}
