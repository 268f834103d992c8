/* Tool definitions, tool_choice, calls in past messages and their answers. */
#include "srv/api_tools.h"

#include <stdio.h>
#include <string.h>

#define NAME_RULE "1 to 64 letters, digits, '_' and '-'"

static bool is_name(hd_str s) {
    return s.len > 0 && s.len <= HD_API_NAME_BYTES_MAX && hd_api_is_plain(s);
}

static hd_status parse_name(const hd_api_in *in, hd_str *out) {
    HD_TRY(hd_api_text(in, "name", out));
    if (!out->ptr) return hd_api_wrong(in, "name", "a string", NULL);
    if (is_name(*out)) return HD_OK;
    char param[96];
    snprintf(param, sizeof param, "%sname", in->path);
    return hd_api_fail(in->error, HD_E_INVALID, param,
                       "'%s' must have " NAME_RULE ", found \"%.80s\"", param, out->ptr);
}

/* ---- definitions ---- */

/* A missing type is a mistake, another one than "function" is something this server does not have.
 */
static hd_status check_type(const hd_api_in *in, bool may_miss) {
    hd_str type = {NULL, 0};
    HD_TRY(hd_api_text(in, "type", &type));
    if (!type.ptr && !may_miss) return hd_api_wrong(in, "type", "\"function\"", NULL);
    if (!type.ptr || hd_str_eq_c(type, "function")) return HD_OK;
    char param[96];
    snprintf(param, sizeof param, "%stype", in->path);
    return hd_api_fail(in->error, HD_E_UNSUPPORTED, param,
                       "'%s' \"%.64s\" is not supported: only \"function\" is", param, type.ptr);
}

static hd_status parse_parameters(const hd_api_in *f, hd_tool *t) {
    const json_t *v = hd_api_get(f, "parameters");
    if (v && !json_is_object(v))
        return hd_api_wrong(f, "parameters", "the JSON schema of an object", v);
    const json_t *type = json_object_get(v, "type");
    if (json_is_string(type) && strcmp(json_string_value(type), "object") != 0) {
        char param[96];
        snprintf(param, sizeof param, "%sparameters.type", f->path);
        return hd_api_fail(f->error, HD_E_INVALID, param,
                           "'%s' must be \"object\", found \"%.64s\"", param,
                           json_string_value(type));
    }
    t->parameters =
        v ? hd_api_dump_text(f->arena, v) : hd_str_of("{\"type\": \"object\", \"properties\": {}}");
    return HD_OK;
}

static hd_status parse_tool(const hd_api_in *in, hd_api_request *out) {
    hd_tool *t = &out->tool[out->n_tool];
    HD_TRY(check_type(in, false));
    hd_api_in f;
    HD_TRY(hd_api_object(in, "function", &f));
    if (!f.object) return hd_api_wrong(in, "function", "an object", NULL);
    HD_TRY(parse_name(&f, &t->name));
    char param[96];
    snprintf(param, sizeof param, "%sname", f.path);
    for (size_t i = 0; i < out->n_tool; i++)
        if (hd_str_eq(out->tool[i].name, t->name))
            return hd_api_fail(in->error, HD_E_INVALID, param,
                               "'%s' is \"%s\", the name of tools[%zu] already", param, t->name.ptr,
                               i);
    bool is_strict = false;
    HD_TRY(hd_api_bool(&f, "strict", &is_strict));
    snprintf(param, sizeof param, "%sstrict", f.path);
    if (is_strict)
        return hd_api_fail(in->error, HD_E_UNSUPPORTED, param,
                           "'%s' is not supported: arguments are not checked against the schema",
                           param);
    t->description = (hd_str){"", 0};
    HD_TRY(hd_api_text(&f, "description", &t->description));
    HD_TRY(parse_parameters(&f, t));
    t->function = hd_api_dump_text(in->arena, f.object);
    out->n_tool++;
    return HD_OK;
}

static hd_status parse_tools(const hd_api_in *in, hd_api_request *out) {
    const json_t *v = hd_api_get(in, "tools");
    if (!v) return HD_OK;
    if (!json_is_array(v)) return hd_api_wrong(in, "tools", "an array", v);
    size_t n = json_array_size(v);
    if (n > HD_API_TOOL_MAX)
        return hd_api_fail(in->error, HD_E_INVALID, "tools",
                           "'tools' must have at most %d items, found %zu", HD_API_TOOL_MAX, n);
    out->tool = hd_arena_alloc(in->arena, (n + 1) * sizeof *out->tool);
    for (size_t i = 0; i < n; i++) {
        char path[48];
        snprintf(path, sizeof path, "tools[%zu].", i);
        hd_api_in one = {json_array_get(v, i), path, in->arena, in->error};
        if (!json_is_object(one.object))
            return hd_api_wrong(in, "tools", "an array of objects", one.object);
        HD_TRY(parse_tool(&one, out));
    }
    return HD_OK;
}

/* ---- choice ---- */

static hd_status choose_word(const hd_api_in *in, hd_str word, hd_api_request *out) {
    static const struct {
        const char *name;
        enum hd_tool_choice choice;
    } rows[] = {{"auto", HD_TOOL_AUTO}, {"none", HD_TOOL_NONE}, {"required", HD_TOOL_REQUIRED}};
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        if (!hd_str_eq_c(word, rows[i].name)) continue;
        out->tool_choice = rows[i].choice;
        return HD_OK;
    }
    return hd_api_fail(
        in->error, HD_E_INVALID, "tool_choice",
        "'tool_choice' must be \"none\", \"auto\", \"required\" or a function, found "
        "\"%.64s\"",
        word.ptr);
}

static hd_status choose_function(const hd_api_in *in, hd_api_request *out) {
    hd_api_in choice, f;
    HD_TRY(hd_api_object(in, "tool_choice", &choice));
    HD_TRY(check_type(&choice, false));
    HD_TRY(hd_api_object(&choice, "function", &f));
    if (!f.object) return hd_api_wrong(&choice, "function", "an object", NULL);
    HD_TRY(parse_name(&f, &out->forced_tool));
    out->tool_choice = HD_TOOL_REQUIRED;
    for (size_t i = 0; i < out->n_tool; i++)
        if (hd_str_eq(out->tool[i].name, out->forced_tool)) return HD_OK;
    return hd_api_fail(in->error, HD_E_INVALID, "tool_choice.function.name",
                       "'tool_choice.function.name' \"%s\" is none of 'tools'",
                       out->forced_tool.ptr);
}

static hd_status parse_choice(const hd_api_in *in, hd_api_request *out) {
    const json_t *v = hd_api_get(in, "tool_choice");
    if (!v) return HD_OK;
    if (!json_is_string(v) && !json_is_object(v))
        return hd_api_wrong(in, "tool_choice", "a string or an object", v);
    if (json_is_object(v))
        HD_TRY(choose_function(in, out));
    else
        HD_TRY(choose_word(in, hd_api_copy(in->arena, v), out));
    if (out->tool_choice == HD_TOOL_REQUIRED && out->n_tool == 0)
        return hd_api_fail(in->error, HD_E_INVALID, "tool_choice",
                           "'tool_choice' \"required\" needs 'tools'");
    return HD_OK;
}

hd_status hd_api_tools(const hd_api_in *in, hd_api_request *out) {
    bool may_be_several = true;
    HD_TRY(parse_tools(in, out));
    HD_TRY(parse_choice(in, out));
    HD_TRY(hd_api_bool(in, "parallel_tool_calls", &may_be_several));
    bool is_one = !may_be_several || out->forced_tool.len > 0; /* a named one: exactly that call */
    out->max_call = is_one ? 1 : 0;
    return HD_OK;
}

/* ---- past calls ---- */

static bool is_blank(hd_str s) {
    for (size_t i = 0; i < s.len; i++)
        if (!strchr(" \t\r\n", s.ptr[i]) || s.ptr[i] == 0) return false;
    return true;
}

/* Arguments are a string that holds an object. The object itself is taken too. A text that is none
 * (a model was cut off, or erred, and its client goes on) becomes one with the text inside, as
 * DeepSeek's own encoder does. */
static hd_status parse_arguments(const hd_api_in *f, hd_str *out) {
    const json_t *v = hd_api_get(f, "arguments");
    *out = hd_str_of("{}");
    if (!v) return HD_OK;
    if (json_is_object(v)) {
        *out = hd_api_dump_text(f->arena, v);
        return HD_OK;
    }
    if (!json_is_string(v)) return hd_api_wrong(f, "arguments", "a string with a JSON object", v);
    hd_str text = hd_api_copy(f->arena, v);
    if (is_blank(text)) return HD_OK;
    if (hd_api_is_object(text)) {
        *out = text;
        return HD_OK;
    }
    json_t *wrapped = json_pack("{s:O}", "arguments", (json_t *)v);
    *out = hd_api_dump_text(f->arena, wrapped);
    json_decref(wrapped);
    return HD_OK;
}

/* What a model called, be it a tool or not: its answer comes back as it was given. */
static hd_status parse_past_name(const hd_api_in *f, hd_str *out) {
    char param[96];
    HD_TRY(hd_api_text(f, "name", out));
    if (!out->ptr) return hd_api_wrong(f, "name", "a string", NULL);
    if (out->len > 0 && out->len <= HD_API_PAST_NAME_BYTES_MAX) return HD_OK;
    snprintf(param, sizeof param, "%sname", f->path);
    return hd_api_fail(f->error, HD_E_INVALID, param, "'%s' must have 1 to %d bytes, found %zu",
                       param, HD_API_PAST_NAME_BYTES_MAX, out->len);
}

static hd_status parse_call(const hd_api_in *in, const hd_message *m, hd_tool_call *out) {
    char param[96];
    snprintf(param, sizeof param, "%sid", in->path);
    HD_TRY(hd_api_text(in, "id", &out->id));
    if (out->id.len == 0)
        return hd_api_wrong(in, "id", "a string that is not empty",
                            out->id.ptr ? json_object_get(in->object, "id") : NULL);
    for (const hd_tool_call *c = m->call; c < out; c++)
        if (hd_str_eq(c->id, out->id))
            return hd_api_fail(in->error, HD_E_INVALID, param,
                               "'%s' is \"%.64s\", the id of another call of this message", param,
                               out->id.ptr);
    HD_TRY(check_type(in, true));
    hd_api_in f;
    HD_TRY(hd_api_object(in, "function", &f));
    if (!f.object) return hd_api_wrong(in, "function", "an object", NULL);
    HD_TRY(parse_past_name(&f, &out->name));
    return parse_arguments(&f, &out->arguments);
}

hd_status hd_api_calls(const hd_api_in *in, hd_message *m) {
    const json_t *v = hd_api_get(in, "tool_calls");
    if (!v) return HD_OK;
    if (!json_is_array(v)) return hd_api_wrong(in, "tool_calls", "an array", v);
    size_t n = json_array_size(v);
    if (n == 0) return HD_OK;
    char path[96];
    snprintf(path, sizeof path, "%stool_calls", in->path);
    if (m->role != HD_ROLE_ASSISTANT)
        return hd_api_fail(in->error, HD_E_INVALID, path, "'%s' belongs to role assistant", path);
    if (n > HD_API_TOOL_MAX)
        return hd_api_fail(in->error, HD_E_INVALID, path,
                           "'%s' must have at most %d items, found %zu", path, HD_API_TOOL_MAX, n);
    hd_tool_call *call = hd_arena_alloc(in->arena, n * sizeof *call);
    m->call = call;
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%stool_calls[%zu].", in->path, i);
        hd_api_in one = {json_array_get(v, i), path, in->arena, in->error};
        if (!json_is_object(one.object))
            return hd_api_wrong(in, "tool_calls", "an array of objects", one.object);
        HD_TRY(parse_call(&one, m, &call[i]));
    }
    m->n_call = n;
    return HD_OK;
}

/* ---- answers to calls ---- */

static hd_status take_answer(const hd_api_in *in, const hd_message *m, size_t ix,
                             hd_api_open_calls *open) {
    char param[48];
    snprintf(param, sizeof param, "messages[%zu].tool_call_id", ix);
    if (!open->by)
        return hd_api_fail(in->error, HD_E_INVALID, param,
                           "messages[%zu] of role tool must follow the assistant message whose "
                           "'tool_calls' it answers",
                           ix);
    for (size_t i = 0; i < open->by->n_call; i++) {
        if (!hd_str_eq(open->by->call[i].id, m->call_id)) continue;
        if (open->is_answered[i])
            return hd_api_fail(in->error, HD_E_INVALID, param, "'%s' \"%.64s\" is answered already",
                               param, m->call_id.ptr);
        open->is_answered[i] = true;
        open->n_open--;
        return HD_OK;
    }
    return hd_api_fail(in->error, HD_E_INVALID, param, "'%s' \"%.64s\" is no call of messages[%zu]",
                       param, m->call_id.ptr, open->by_ix);
}

hd_status hd_api_follow_calls(const hd_api_in *in, const hd_message *m, size_t ix,
                              hd_api_open_calls *open) {
    if (m->role == HD_ROLE_TOOL) return take_answer(in, m, ix, open);
    if (open->n_open > 0) {
        size_t i = 0;
        while (open->is_answered[i]) i++;
        char param[64];
        snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu]", open->by_ix, i);
        return hd_api_fail(in->error, HD_E_INVALID, param,
                           "'%s' \"%.64s\" has no answer of role tool before messages[%zu]", param,
                           open->by->call[i].id.ptr, ix);
    }
    *open = (hd_api_open_calls){0};
    if (m->n_call == 0) return HD_OK;
    *open = (hd_api_open_calls){.by = m, .by_ix = ix, .n_open = m->n_call};
    open->is_answered = hd_arena_alloc(in->arena, m->n_call * sizeof *open->is_answered);
    return HD_OK;
}
