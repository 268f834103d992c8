/* Which chat encoding a model was trained on.
 *
 * The hard cases. V2 and V2.5 have the same tokenizer; V3.1, V3.2-Exp and V3.2 nearly so; V3.2-Exp
 * has V3.2's architecture and V3.1's template. So a template that is there decides, by what it
 * writes; and since V3.2 and V4 come without one, no template and V3.2's architecture is V3.2. */
#include "text/chat_impl.h"

#include <stdio.h>
#include <string.h>

static bool has(hd_str text, const char *part) {
    return text.ptr && text.len > 0 && memmem(text.ptr, text.len, part, strlen(part)) != NULL;
}

static bool has_token(const hd_tokenizer *t, const char *text) {
    return hd_tokenizer_find_added(t, text) >= 0;
}

struct choice {
    const char *row, *why;
};

/* Distilled models are of other makers' architectures. */
static bool is_distilled(const hd_chat_evidence *v) {
    return hd_str_eq_c(v->arch, "llama") || hd_str_eq_c(v->arch, "qwen2");
}

static bool is_preview(const hd_chat_evidence *v) {
    return has(v->name, "preview") || has(v->name, "Preview");
}

static struct choice by_template(const hd_chat_evidence *v) {
    const hd_str s = v->chat_template;
    if (has(s, HD_DSML) && has(s, "function_calls"))
        return (struct choice){"deepseek_v3.2", "its template writes DSML function_calls"};
    if (has(s, "｜DSML｜ calls") || (has(s, HD_DSML) && has(s, HD_SYSTEM)))
        return (struct choice){"deepseek_v4.1",
                               "its template writes DSML with a space in its tags"};
    if (has(s, HD_DSML))
        return is_preview(v) ? (struct choice){"deepseek_v4_preview",
                                               "its template writes DSML, it is named a preview"}
                             : (struct choice){"deepseek_v4", "its template writes DSML"};
    if (has(s, "### Instruction:") && has(s, HD_EOT))
        return (struct choice){"deepseek_coder", "its template writes ### Instruction:"};
    if (has(s, HD_ASSISTANT) || has(s, HD_USER)) {
        bool thinks = has(s, HD_THINK_END);
        if (thinks && !has(s, "```json"))
            return (struct choice){"deepseek_v3.1",
                                   "its template writes </think>, and calls without a fence"};
        if (thinks && is_distilled(v))
            return (struct choice){
                "deepseek_r1_distill",
                "its template drops reasoning, its architecture is not DeepSeek's"};
        if (thinks)
            return (struct choice){"deepseek_r1",
                                   "its template drops reasoning, and writes calls in a fence"};
        return (struct choice){"deepseek_v3", "its template writes <｜User｜>, and no reasoning"};
    }
    if (has(s, "User: ") && has(s, "Assistant:"))
        return (struct choice){"deepseek_v2", "its template writes User: and Assistant:"};
    return (struct choice){NULL, "its chat template is none of DeepSeek's"};
}

static struct choice by_tokens(const hd_chat_evidence *v) {
    const hd_tokenizer *t = v->tokenizer;
    bool is_v32 = hd_str_eq_c(v->arch, "deepseek_v32") || hd_str_eq_c(v->arch, "deepseek32");
    if (has_token(t, HD_DSML) && has_token(t, HD_SYSTEM))
        return (struct choice){"deepseek_v4.1",
                               "no template; it has the tokens ｜DSML｜, <｜System｜>"};
    if (has_token(t, HD_DSML))
        return is_preview(v)
                   ? (struct choice){"deepseek_v4_preview",
                                     "no template; the token ｜DSML｜, and a preview's name"}
                   : (struct choice){"deepseek_v4", "no template; it has the token ｜DSML｜"};
    if (has_token(t, HD_USER) && has_token(t, HD_THINK)) {
        if (is_v32)
            return (struct choice){"deepseek_v3.2",
                                   "no template, as V3.2 comes, and its architecture"};
        if (is_distilled(v))
            return (struct choice){
                "deepseek_r1_distill",
                "no template; <think> in an architecture that is not DeepSeek's"};
        if (has_token(t, "<｜search▁begin｜>"))
            return (struct choice){"deepseek_v3.1",
                                   "no template; it has the token <｜search▁begin｜>"};
        return (struct choice){"deepseek_r1", "no template; it has the token <think>"};
    }
    if (has_token(t, "<|User|>"))
        return (struct choice){"deepseek_coder", "no template; it has the token <|User|>"};
    if (has_token(t, HD_USER) && has_token(t, "<｜place▁holder▁no▁0｜>"))
        return (struct choice){"deepseek_v3", "no template; V3's tokens, <think> not among them"};
    if (has_token(t, HD_BOS))
        return (struct choice){"deepseek_v2", "no template; V1's or V2's tokens"};
    return (struct choice){NULL, "it has no template, and its tokenizer is not DeepSeek's"};
}

const hd_chat_encoding *hd_chat_choose(const hd_chat_evidence *v, char *why, size_t room) {
    struct choice c = v->chat_template.len > 0 ? by_template(v) : by_tokens(v);
    const hd_chat_encoding *e = c.row ? hd_chat_by_name(c.row) : NULL;
    const char *missing = e ? hd_chat_missing_marker(e, v->tokenizer) : NULL;
    if (missing)
        snprintf(why, room, "%s (%s), but the tokenizer has no token %s", c.row, c.why, missing);
    else
        snprintf(why, room, "%s", c.why);
    return missing ? NULL : e;
}
