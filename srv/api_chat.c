/* Chat bodies: messages, and the switches of the chat template. */
#include "srv/api_request.h"

#include <stdio.h>
#include <string.h>

static hd_status refuse_part(const hd_api_in *in, hd_str type) {
    static const char *const known[] = {"image_url",   "input_image", "image",
                                        "input_audio", "audio_url",   "video_url",
                                        "input_file",  "file",        "refusal"};
    char param[96];
    snprintf(param, sizeof param, "%stype", in->path);
    for (size_t i = 0; i < HD_COUNT_OF(known); i++)
        if (hd_str_eq_c(type, known[i]))
            return hd_api_fail(in->error, HD_E_UNSUPPORTED, param,
                               "content parts of type '%s' are not supported", known[i]);
    return hd_api_fail(in->error, HD_E_INVALID, param, "'%s' must be \"text\", found \"%.64s\"",
                       param, type.ptr);
}

/* Text parts become one string, joined by newlines, as other servers do. */
static hd_status join_parts(const hd_api_in *in, const json_t *parts, hd_str *out) {
    hd_buf b;
    hd_buf_init(&b, SIZE_MAX / 2);
    hd_status s = HD_OK;
    for (size_t i = 0; i < json_array_size(parts) && s == HD_OK; i++) {
        char path[96];
        snprintf(path, sizeof path, "%scontent[%zu].", in->path, i);
        hd_api_in part = {json_array_get(parts, i), path, in->arena, in->error};
        hd_str type = {"", 0}, text = {NULL, 0};
        if (!json_is_object(part.object)) {
            s = hd_api_wrong(in, "content", "a string or an array of parts", part.object);
            break;
        }
        s = hd_api_text(&part, "type", &type);
        if (s == HD_OK && !hd_str_eq_c(type, "text")) s = refuse_part(&part, type);
        if (s == HD_OK) s = hd_api_text(&part, "text", &text);
        if (s == HD_OK && !text.ptr) s = hd_api_wrong(&part, "text", "a string", NULL);
        if (i > 0) hd_buf_add(&b, "\n", 1);
        hd_buf_add(&b, text.ptr, text.len);
    }
    *out = (hd_str){hd_arena_strndup(in->arena, b.len ? b.ptr : "", b.len), b.len};
    hd_buf_fini(&b);
    return s;
}

static hd_status parse_role(const hd_api_in *in, enum hd_role *out) {
    static const struct {
        const char *name;
        enum hd_role role;
    } rows[] = {{"system", HD_ROLE_SYSTEM},
                {"developer", HD_ROLE_SYSTEM},
                {"user", HD_ROLE_USER},
                {"assistant", HD_ROLE_ASSISTANT},
                {"tool", HD_ROLE_TOOL}};
    hd_str role = {NULL, 0};
    HD_TRY(hd_api_text(in, "role", &role));
    if (!role.ptr) return hd_api_wrong(in, "role", "a string", NULL);
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        if (!hd_str_eq_c(role, rows[i].name)) continue;
        *out = rows[i].role;
        return HD_OK;
    }
    char param[96];
    snprintf(param, sizeof param, "%srole", in->path);
    if (hd_str_eq_c(role, "function"))
        return hd_api_fail(in->error, HD_E_UNSUPPORTED, param, "role 'function' is not supported");
    return hd_api_fail(in->error, HD_E_INVALID, param,
                       "'%s' must be system, developer, user, assistant or tool, found \"%.64s\"",
                       param, role.ptr);
}

static hd_status parse_message(const hd_api_in *in, bool is_last, hd_api_request *out) {
    hd_message *m = &out->message[out->n_message];
    HD_TRY(parse_role(in, &m->role));
    const json_t *content = hd_api_get(in, "content");
    m->content = (hd_str){"", 0};
    if (json_is_string(content))
        m->content = hd_api_copy(in->arena, content);
    else if (json_is_array(content))
        HD_TRY(join_parts(in, content, &m->content));
    else if (content || m->role != HD_ROLE_ASSISTANT)
        return hd_api_wrong(in, "content", "a string or an array of parts", content);
    char param[96];
    const json_t *calls = hd_api_get(in, "tool_calls");
    snprintf(param, sizeof param, "%stool_calls", in->path);
    if (calls && !(json_is_array(calls) && json_array_size(calls) == 0))
        return hd_api_fail(in->error, HD_E_UNSUPPORTED, param, "'%s' is not supported", param);
    /* Past reasoning is not shown to the model again (its template drops it). */
    hd_str reasoning = {"", 0};
    HD_TRY(hd_api_text(in, "reasoning_content", &reasoning));
    bool prefix = false;
    HD_TRY(hd_api_bool(in, "prefix", &prefix));
    if (prefix) {
        snprintf(param, sizeof param, "%sprefix", in->path);
        if (!is_last || m->role != HD_ROLE_ASSISTANT)
            return hd_api_fail(in->error, HD_E_INVALID, param,
                               "'%s' belongs to a last message of role assistant", param);
        if (reasoning.len > 0)
            return hd_api_fail(in->error, HD_E_UNSUPPORTED, param,
                               "'%s' together with 'reasoning_content' is not supported", param);
        out->continue_final = true;
    }
    out->n_message++;
    return HD_OK;
}

hd_status hd_api_messages(const hd_api_in *in, hd_api_request *out) {
    const json_t *v = hd_api_get(in, "messages");
    if (!v) return hd_api_fail(in->error, HD_E_INVALID, "messages", "'messages' is required");
    if (!json_is_array(v)) return hd_api_wrong(in, "messages", "an array", v);
    size_t n = json_array_size(v);
    if (n == 0 || n > HD_API_MESSAGE_MAX)
        return hd_api_fail(in->error, HD_E_INVALID, "messages",
                           "'messages' must have 1 to %d items, found %zu", HD_API_MESSAGE_MAX, n);
    out->message = hd_arena_alloc(in->arena, n * sizeof *out->message);
    for (size_t i = 0; i < n; i++) {
        char path[48];
        snprintf(path, sizeof path, "messages[%zu].", i);
        hd_api_in one = {json_array_get(v, i), path, in->arena, in->error};
        if (!json_is_object(one.object))
            return hd_api_wrong(in, "messages", "an array of objects", one.object);
        HD_TRY(parse_message(&one, i + 1 == n, out));
    }
    return HD_OK;
}

/* reasoning_effort: any effort but "none" asks for thinking. */
static hd_status parse_effort(const hd_api_in *in, hd_api_request *out) {
    static const char *const known[] = {"none", "minimal", "low", "medium",
                                        "high", "xhigh",   "max", "ultra"};
    hd_str effort = {NULL, 0};
    HD_TRY(hd_api_text(in, "reasoning_effort", &effort));
    if (!effort.ptr) return HD_OK;
    for (size_t i = 0; i < HD_COUNT_OF(known); i++) {
        if (!hd_str_eq_c(effort, known[i])) continue;
        out->thinking = i > 0 ? HD_API_THINK_ON : HD_API_THINK_OFF;
        return HD_OK;
    }
    return hd_api_fail(in->error, HD_E_INVALID, "reasoning_effort",
                       "'reasoning_effort' must be none, minimal, low, medium, high, xhigh, max or "
                       "ultra, found \"%.64s\"",
                       effort.ptr);
}

/* From the weakest spelling to the strongest: effort, template arguments, thinking.type. */
static hd_status parse_thinking(const hd_api_in *in, hd_api_request *out) {
    HD_TRY(parse_effort(in, out));
    hd_api_in args, thinking;
    HD_TRY(hd_api_object(in, "chat_template_kwargs", &args));
    if (args.object) {
        bool on = out->thinking == HD_API_THINK_ON;
        bool is_given = hd_api_get(&args, "thinking") || hd_api_get(&args, "enable_thinking");
        HD_TRY(hd_api_bool(&args, "enable_thinking", &on));
        HD_TRY(hd_api_bool(&args, "thinking", &on));
        if (is_given) out->thinking = on ? HD_API_THINK_ON : HD_API_THINK_OFF;
    }
    HD_TRY(hd_api_object(in, "thinking", &thinking));
    if (!thinking.object) return HD_OK;
    hd_str type = {"", 0};
    HD_TRY(hd_api_text(&thinking, "type", &type));
    bool on = hd_str_eq_c(type, "enabled");
    if (!on && !hd_str_eq_c(type, "disabled"))
        return hd_api_fail(in->error, HD_E_INVALID, "thinking.type",
                           "'thinking.type' must be \"enabled\" or \"disabled\", found \"%.64s\"",
                           type.ptr);
    out->thinking = on ? HD_API_THINK_ON : HD_API_THINK_OFF;
    return HD_OK;
}

hd_status hd_api_template(const hd_api_in *in, hd_api_request *out) {
    bool generation_prompt = true, continue_final = false;
    HD_TRY(hd_api_bool(in, "add_generation_prompt", &generation_prompt));
    HD_TRY(hd_api_bool(in, "continue_final_message", &continue_final));
    if (continue_final && generation_prompt && hd_api_get(in, "add_generation_prompt"))
        return hd_api_fail(in->error, HD_E_INVALID, "continue_final_message",
                           "'continue_final_message' and 'add_generation_prompt' exclude each "
                           "other");
    if (continue_final && out->message[out->n_message - 1].role != HD_ROLE_ASSISTANT)
        return hd_api_fail(in->error, HD_E_INVALID, "continue_final_message",
                           "'continue_final_message' needs a last message of role assistant");
    out->continue_final |= continue_final;
    out->no_generation_prompt = !generation_prompt;
    return parse_thinking(in, out);
}

hd_status hd_api_chat_ids(const hd_engine *e, const hd_api_request *q, hd_token_list *out,
                          hd_chat_start *start, hd_api_error *error) {
    hd_chat_prompt p = {.message = q->message,
                        .n_message = q->n_message,
                        .thinking = q->thinking == HD_API_THINK_ON,
                        .continue_final = q->continue_final,
                        .no_generation_prefix = q->no_generation_prompt};
    hd_status s = hd_engine_chat(e, &p, out, start);
    return s == HD_OK ? s : hd_api_fail_last(error, s, "messages");
}
