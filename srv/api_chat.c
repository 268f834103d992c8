/* Chat bodies: messages, and the switches of the chat template. */
#include "srv/api_tools.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static hd_status refuse_part(const hd_api_in *in, hd_str type) {
    static const char *const known[] = {"image_url",   "input_image", "image",
                                        "input_audio", "audio_url",   "video_url",
                                        "input_file",  "file",        "refusal"};
    char param[96];
    snprintf(param, sizeof param, "%stype", in->path);
    for (size_t i = 0; i < HD_COUNT_OF(known); i++)
        if (hd_str_eq_c(type, known[i]))
            return hd_api_fail(in->error, HD_E_UNSUPPORTED, param,
                               "content parts of type '%s' are not supported: text only", known[i]);
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

/* reasoning_effort: any effort but "none" asks for thinking. On the scale of 1 to 100 that V4.1
 * takes; before it, DeepSeek's API and models know low, high (from 50) and max. */
static hd_status parse_effort(const hd_api_in *in, hd_api_request *out) {
    enum { low = 25, high = 50, xhigh = 75, max = 100 };
    static const struct {
        const char *name;
        int effort;
    } rows[] = {{"none", 0},    {"minimal", low}, {"low", low}, {"medium", high},
                {"high", high}, {"xhigh", xhigh}, {"max", max}, {"ultra", max}};
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

static hd_status parse_schema(const hd_api_in *format, hd_api_request *out) {
    hd_api_in named;
    bool is_strict = false;
    HD_TRY(hd_api_object(format, "json_schema", &named));
    if (!named.object) return hd_api_wrong(format, "json_schema", "an object", NULL);
    HD_TRY(hd_api_bool(&named, "strict", &is_strict));
    if (is_strict)
        return hd_api_fail(format->error, HD_E_UNSUPPORTED, "response_format.json_schema.strict",
                           "'response_format.json_schema.strict' is not supported: the model is "
                           "told the schema, answers are not checked against it");
    const json_t *schema = hd_api_get(&named, "schema");
    if (!json_is_object(schema)) return hd_api_wrong(&named, "schema", "a JSON schema", schema);
    out->schema = hd_api_dump_text(format->arena, schema);
    return HD_OK;
}

hd_status hd_api_response_format(const hd_api_in *in, hd_api_request *out) {
    hd_api_in format;
    hd_str type = {"", 0};
    HD_TRY(hd_api_object(in, "response_format", &format));
    if (!format.object) return HD_OK;
    HD_TRY(hd_api_text(&format, "type", &type));
    if (hd_str_eq_c(type, "text")) return HD_OK;
    if (hd_str_eq_c(type, "json_schema")) return parse_schema(&format, out);
    out->is_json_object = hd_str_eq_c(type, "json_object");
    if (out->is_json_object) {
        out->schema = hd_str_of("{\"type\": \"object\"}");
        return HD_OK;
    }
    bool is_known = hd_str_eq_c(type, "structural_tag") || hd_str_eq_c(type, "grammar");
    return hd_api_fail(in->error, is_known ? HD_E_UNSUPPORTED : HD_E_INVALID,
                       "response_format.type",
                       "'response_format.type' must be \"text\", \"json_object\" or "
                       "\"json_schema\", found \"%.64s\"",
                       type.ptr);
}

/* DeepSeek's API and OpenAI's want it said in words, too. */
static bool speaks_of_json(const hd_api_request *q) {
    for (size_t i = 0; i < q->n_message; i++) {
        hd_str s = q->message[i].content;
        for (size_t k = 0; k + 4 <= s.len; k++)
            if (strncasecmp(s.ptr + k, "json", 4) == 0) return true;
    }
    return false;
}

static hd_status check_format(const hd_engine_info *info, const hd_api_request *q,
                              hd_api_error *error) {
    if (q->schema.len == 0) return HD_OK;
    if (!info->has_response_format)
        return hd_api_fail(error, HD_E_UNSUPPORTED, "response_format",
                           "'response_format' is not supported: chat encoding %s has no text that "
                           "tells the model of it, and answers are not constrained",
                           info->chat_encoding);
    if (!q->is_json_object || speaks_of_json(q)) return HD_OK;
    return hd_api_fail(error, HD_E_INVALID, "messages",
                       "'response_format' \"json_object\" needs the word json in a message");
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
    HD_TRY(hd_api_response_format(in, out));
    return parse_thinking(in, out);
}

/* What the request asks of the model's chat encoding, and it cannot do. */
static hd_status check_chat(const hd_engine_info *info, const hd_api_request *q, bool thinking,
                            hd_api_error *error) {
    HD_TRY(check_format(info, q, error));
    bool has_tools = q->n_tool > 0 && q->tool_choice != HD_TOOL_NONE;
    if (has_tools && !info->can_call_tools)
        return hd_api_fail(error, HD_E_UNSUPPORTED, "tools",
                           "'tools' is not supported: chat encoding %s has no tool calls",
                           info->chat_encoding);
    if (q->tool_choice == HD_TOOL_REQUIRED && thinking)
        return hd_api_fail(error, HD_E_INVALID, "tool_choice",
                           "'tool_choice' cannot force a call while thinking is on: send "
                           "\"thinking\": {\"type\": \"disabled\"}");
    if (q->no_reasoning_ix < 0 || !thinking || !info->keeps_reasoning) return HD_OK;
    char param[64];
    snprintf(param, sizeof param, "messages[%d].reasoning_content", q->no_reasoning_ix);
    return hd_api_fail(error, HD_E_INVALID, param,
                       "'%s' is missing: while thinking is on, the reasoning that led to tool "
                       "calls must be sent back",
                       param);
}

bool hd_api_thinks(const hd_engine_info *info, const hd_api_request *q) {
    bool is_asked = q->thinking == HD_API_THINK_UNSET ? info->thinks_by_default
                                                      : q->thinking == HD_API_THINK_ON;
    return is_asked ? info->can_think : info->always_thinks && q->thinking != HD_API_THINK_OFF;
}

hd_status hd_api_chat_ids(const hd_engine *e, const hd_api_request *q, hd_token_list *out,
                          hd_chat_start *start, hd_api_error *error) {
    const hd_engine_info *info = hd_engine_get_info(e);
    bool thinking = hd_api_thinks(info, q);
    HD_TRY(check_chat(info, q, thinking, error));
    hd_chat_prompt p = {.message = q->message,
                        .n_message = q->n_message,
                        .tool = q->tool,
                        .n_tool = q->n_tool,
                        .tool_choice = q->tool_choice,
                        .forced_tool = q->forced_tool,
                        .thinking = thinking,
                        .no_thinking = q->thinking == HD_API_THINK_OFF,
                        .effort = q->effort,
                        .keep_reasoning = q->keep_reasoning,
                        .continue_final = q->continue_final,
                        .no_generation_prefix = q->no_generation_prompt,
                        .task = q->task,
                        .schema = q->schema};
    hd_status s = hd_engine_chat(e, &p, out, start);
    return s == HD_OK ? s : hd_api_fail_last(error, s, "messages");
}
