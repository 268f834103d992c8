/* Chat bodies: messages, and the switches of the chat template. */
#include "srv/api_tools.h"

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
    } rows[] = {{"system", HD_ROLE_SYSTEM}, {"developer", HD_ROLE_SYSTEM},
                {"user", HD_ROLE_USER},     {"assistant", HD_ROLE_ASSISTANT},
                {"tool", HD_ROLE_TOOL},     {"latest_reminder", HD_ROLE_LATEST_REMINDER}};
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

/* The fields that only one role has. */
static hd_status parse_role_fields(const hd_api_in *in, hd_message *m) {
    char param[96];
    if (m->role == HD_ROLE_TOOL) {
        HD_TRY(hd_api_text(in, "tool_call_id", &m->call_id));
        return m->call_id.ptr ? HD_OK : hd_api_wrong(in, "tool_call_id", "a string", NULL);
    }
    HD_TRY(hd_api_calls(in, m));
    if (m->role != HD_ROLE_ASSISTANT) return HD_OK;
    HD_TRY(hd_api_text(in, "reasoning_content", &m->reasoning));
    if (!m->reasoning.ptr) HD_TRY(hd_api_text(in, "reasoning", &m->reasoning)); /* vLLM's name */
    const json_t *call = hd_api_get(in, "function_call");
    snprintf(param, sizeof param, "%sfunction_call", in->path);
    return call ? hd_api_fail(in->error, HD_E_UNSUPPORTED, param, "'%s' is not supported", param)
                : HD_OK;
}

/* prefix and task: of the last message only. */
static hd_status parse_last_fields(const hd_api_in *in, bool is_last, const hd_message *m,
                                   hd_api_request *out) {
    bool prefix = false;
    hd_str task = {"", 0};
    char param[96];
    HD_TRY(hd_api_bool(in, "prefix", &prefix));
    HD_TRY(hd_api_text(in, "task", &task));
    snprintf(param, sizeof param, "%s%s", in->path, prefix ? "prefix" : "task");
    if (prefix && (!is_last || m->role != HD_ROLE_ASSISTANT))
        return hd_api_fail(in->error, HD_E_INVALID, param,
                           "'%s' belongs to a last message of role assistant", param);
    if (prefix && m->n_call > 0)
        return hd_api_fail(in->error, HD_E_INVALID, param,
                           "'%s' and 'tool_calls' exclude each other", param);
    if (task.len > 0 && (!is_last || m->role != HD_ROLE_USER))
        return hd_api_fail(in->error, HD_E_INVALID, param,
                           "'%s' belongs to a last message of role user", param);
    out->continue_final = prefix;
    out->task = task;
    return HD_OK;
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
    HD_TRY(parse_role_fields(in, m));
    HD_TRY(parse_last_fields(in, is_last, m, out));
    int ix = (int)out->n_message++;
    if (m->role == HD_ROLE_USER) out->no_reasoning_ix = -1;
    if (m->n_call > 0 && !m->reasoning.ptr && out->no_reasoning_ix < 0) out->no_reasoning_ix = ix;
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
    out->no_reasoning_ix = -1;
    hd_api_open_calls open = {0};
    for (size_t i = 0; i < n; i++) {
        char path[48];
        snprintf(path, sizeof path, "messages[%zu].", i);
        hd_api_in one = {json_array_get(v, i), path, in->arena, in->error};
        if (!json_is_object(one.object))
            return hd_api_wrong(in, "messages", "an array of objects", one.object);
        HD_TRY(parse_message(&one, i + 1 == n, out));
        HD_TRY(hd_api_follow_calls(in, &out->message[i], i, &open));
    }
    out->open_call_ix = open.n_open > 0 ? (int)open.by_ix : -1;
    return HD_OK;
}

/* reasoning_effort: any effort but "none" asks for thinking. DeepSeek's API knows three levels,
 * here on the scale of 1 to 100 that its latest models take. */
static hd_status parse_effort(const hd_api_in *in, hd_api_request *out) {
    enum { low = 25, high = 50, max = 100 };
    static const struct {
        const char *name;
        int effort;
    } rows[] = {{"none", 0},    {"minimal", low}, {"low", low}, {"medium", high},
                {"high", high}, {"xhigh", high},  {"max", max}, {"ultra", max}};
    const json_t *v = hd_api_get(in, "reasoning_effort");
    if (!v) return HD_OK;
    if (json_is_number(v)) {
        int64_t n = 0;
        HD_TRY(hd_api_int(in, "reasoning_effort", 1, 100, &n));
        out->effort = (int)n;
        out->thinking = HD_API_THINK_ON;
        return HD_OK;
    }
    if (!json_is_string(v))
        return hd_api_wrong(in, "reasoning_effort", "a string or an integer", v);
    hd_str effort = hd_api_copy(in->arena, v);
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        if (!hd_str_eq_c(effort, rows[i].name)) continue;
        out->effort = rows[i].effort;
        out->thinking = i > 0 ? HD_API_THINK_ON : HD_API_THINK_OFF;
        return HD_OK;
    }
    char param[96];
    snprintf(param, sizeof param, "%sreasoning_effort", in->path);
    return hd_api_fail(in->error, HD_E_INVALID, param,
                       "'%s' must be none, minimal, low, medium, high, xhigh, max, ultra or 1 to "
                       "100, found \"%.64s\"",
                       param, effort.ptr);
}

/* From the weakest spelling to the strongest: effort, template arguments, thinking.type. */
static hd_status parse_thinking(const hd_api_in *in, hd_api_request *out) {
    HD_TRY(parse_effort(in, out));
    hd_api_in args, thinking;
    HD_TRY(hd_api_object(in, "chat_template_kwargs", &args));
    if (args.object) {
        bool drop = true;
        HD_TRY(parse_effort(&args, out));
        HD_TRY(hd_api_bool(&args, "drop_thinking", &drop));
        out->keep_reasoning = !drop;
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
    if (out->open_call_ix >= 0 && (generation_prompt || out->continue_final))
        return hd_api_fail(in->error, HD_E_INVALID, "messages",
                           "the 'tool_calls' of messages[%d] have no answers of role tool",
                           out->open_call_ix);
    return parse_thinking(in, out);
}

/* What the request asks of the model's chat encoding, and it cannot do. */
static hd_status check_chat(const hd_engine_info *info, const hd_api_request *q, bool thinking,
                            hd_api_error *error) {
    if (q->thinking == HD_API_THINK_OFF && info->always_thinks && !q->continue_final)
        return hd_api_fail(error, HD_E_INVALID, "thinking",
                           "thinking cannot be turned off: the model always thinks");
    bool has_tools = q->n_tool > 0 && q->tool_choice != HD_TOOL_NONE;
    if (has_tools && !info->can_call_tools)
        return hd_api_fail(error, HD_E_UNSUPPORTED, "tools",
                           "'tools' is not supported: chat encoding %s has no tool calls",
                           info->chat_encoding);
    if (q->tool_choice == HD_TOOL_REQUIRED && thinking)
        return hd_api_fail(error, HD_E_INVALID, "tool_choice",
                           "'tool_choice' cannot force a call while thinking is on%s",
                           info->always_thinks ? ": the model always thinks"
                                               : ": send \"thinking\": {\"type\": \"disabled\"}");
    if (q->no_reasoning_ix < 0 || !thinking || !info->keeps_reasoning) return HD_OK;
    char param[64];
    snprintf(param, sizeof param, "messages[%d].reasoning_content", q->no_reasoning_ix);
    return hd_api_fail(error, HD_E_INVALID, param,
                       "'%s' is missing: while thinking is on, the reasoning that led to tool "
                       "calls must be sent back",
                       param);
}

hd_status hd_api_chat_ids(const hd_engine *e, const hd_api_request *q, hd_token_list *out,
                          hd_chat_start *start, hd_api_error *error) {
    const hd_engine_info *info = hd_engine_get_info(e);
    bool is_asked = q->thinking == HD_API_THINK_UNSET ? info->thinks_by_default
                                                      : q->thinking == HD_API_THINK_ON;
    bool thinking = info->always_thinks || (info->can_think && is_asked);
    HD_TRY(check_chat(info, q, thinking, error));
    hd_chat_prompt p = {.message = q->message,
                        .n_message = q->n_message,
                        .tool = q->tool,
                        .n_tool = q->n_tool,
                        .tool_choice = q->tool_choice,
                        .forced_tool = q->forced_tool,
                        .thinking = thinking,
                        .effort = q->effort,
                        .keep_reasoning = q->keep_reasoning,
                        .continue_final = q->continue_final,
                        .no_generation_prefix = q->no_generation_prompt,
                        .task = q->task};
    hd_status s = hd_engine_chat(e, &p, out, start);
    return s == HD_OK ? s : hd_api_fail_last(error, s, "messages");
}
