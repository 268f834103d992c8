/* Bodies to typed requests: the fields both endpoints share, and completions' own. */
#include "srv/api_request.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

const hd_model_alias hd_model_aliases[HD_MODEL_ALIAS_COUNT] = {
    {.name = "deepseek-chat"},
    {.name = "deepseek-reasoner", .thinks = true},
};

const hd_model_alias *hd_model_alias_find(hd_str name) {
    for (int i = 0; i < HD_MODEL_ALIAS_COUNT; i++)
        if (hd_str_eq_c(name, hd_model_aliases[i].name)) return &hd_model_aliases[i];
    return NULL;
}

/* A salt that is never 0 from a name that is not empty; `before` from an empty one. */
static uint64_t add_salt(uint64_t before, hd_str name) {
    if (name.len == 0) return before;
    uint64_t h = XXH3_64bits_withSeed(name.ptr, name.len, before);
    return h ? h : 1;
}

/* ---- refused by name ---- */

static bool is_empty(const json_t *v) {
    return (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static hd_status unsupported(const hd_api_in *in, const char *key, const char *why) {
    return hd_api_fail(in->error, HD_E_UNSUPPORTED, key, "'%s' is not supported%s%s", key,
                       why ? ": " : "", why ? why : "");
}

/* Fields that change the answer and that this server cannot honour yet. */
static hd_status refuse_fields(const hd_api_in *in) {
    static const char *const names[] = {"functions",          "audio",
                                        "prediction",         "guided_json",
                                        "guided_regex",       "guided_choice",
                                        "guided_grammar",     "guided_whitespace_pattern",
                                        "structured_outputs", "grammar",
                                        "json_schema",        "web_search_options",
                                        "chat_template",      "documents",
                                        "prompt_logprobs",    "logits_processors",
                                        "prompt_embeds",      "mm_processor_kwargs",
                                        "lora_request"};
    for (size_t i = 0; i < HD_COUNT_OF(names); i++) {
        const json_t *v = hd_api_get(in, names[i]);
        if (v && !is_empty(v)) return unsupported(in, names[i], NULL);
    }
    const json_t *v = hd_api_get(in, "function_call");
    if (v && !(json_is_string(v) && strcmp(json_string_value(v), "none") == 0))
        return unsupported(in, "function_call", "only \"none\" is");
    v = hd_api_get(in, "use_beam_search");
    if (v && !json_is_false(v)) return unsupported(in, "use_beam_search", NULL);
    v = hd_api_get(in, "modalities");
    if (v && !json_is_array(v)) return hd_api_wrong(in, "modalities", "an array of strings", v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        if (!json_is_string(item) || strcmp(json_string_value(item), "text") != 0)
            return unsupported(in, "modalities", "only \"text\" is");
    }
    return HD_OK;
}

/* ---- sampling ---- */

static hd_status parse_bias(const hd_api_in *in, hd_sampling *s) {
    hd_api_in map;
    HD_TRY(hd_api_object(in, "logit_bias", &map));
    size_t n = json_object_size(map.object);
    if (n == 0) return HD_OK;
    if (n > HD_BIAS_MAX)
        return hd_api_fail(in->error, HD_E_INVALID, "logit_bias",
                           "'logit_bias' must have at most %d entries, found %zu", HD_BIAS_MAX, n);
    hd_logit_bias *bias = hd_arena_alloc(in->arena, n * sizeof *bias);
    const char *key;
    json_t *v; /* jansson's iteration hands out a mutable pointer; it is only read */
    json_object_foreach((json_t *)map.object, key, v) {
        int64_t id = 0;
        size_t len = strlen(key);
        bool ok = len > 0 && len < 10;
        for (size_t i = 0; ok && i < len; i++) {
            ok = key[i] >= '0' && key[i] <= '9';
            id = id * 10 + (key[i] - '0');
        }
        if (!ok)
            return hd_api_fail(in->error, HD_E_INVALID, "logit_bias",
                               "keys of 'logit_bias' must be token ids, found \"%.40s\"", key);
        if (!json_is_number(v)) return hd_api_wrong(&map, key, "a number", v);
        double d = json_number_value(v);
        if (!(d >= -100 && d <= 100))
            return hd_api_fail(in->error, HD_E_INVALID, "logit_bias",
                               "'logit_bias.%s' must be between -100 and 100, found %g", key, d);
        for (int i = 0; i < s->n_bias; i++) /* "7" and "07" */
            if (bias[i].token == (int32_t)id)
                return hd_api_fail(in->error, HD_E_INVALID, "logit_bias",
                                   "'logit_bias' names token %d twice", (int)id);
        bias[s->n_bias++] = (hd_logit_bias){(int32_t)id, (float)d};
    }
    s->bias = bias;
    return HD_OK;
}

static hd_status parse_logprobs(const hd_api_in *in, hd_api_request *out) {
    int64_t n_top = -1;
    if (out->kind == HD_API_COMPLETION) {
        HD_TRY(hd_api_int(in, "logprobs", 0, HD_TOP_LOGPROB_MAX, &n_top));
        if (n_top >= 0 && out->echo) return unsupported(in, "echo", "not together with 'logprobs'");
        out->sampling.n_top_logprob = (int)n_top;
        return HD_OK;
    }
    bool wanted = false;
    HD_TRY(hd_api_bool(in, "logprobs", &wanted));
    HD_TRY(hd_api_int(in, "top_logprobs", 0, HD_TOP_LOGPROB_MAX, &n_top));
    if (n_top > 0 && !wanted)
        return hd_api_fail(in->error, HD_E_INVALID, "top_logprobs",
                           "'top_logprobs' needs 'logprobs' to be true");
    out->sampling.n_top_logprob = !wanted ? -1 : n_top < 0 ? 0 : (int)n_top;
    return HD_OK;
}

static hd_status parse_sampling(const hd_api_in *in, hd_api_request *out) {
    hd_sampling *s = &out->sampling;
    int64_t top_k = 0, seed = 0;
    HD_TRY(hd_api_num(in, "temperature", 0, 2, &s->temperature));
    HD_TRY(hd_api_num(in, "top_p", 0, 1, &s->top_p));
    /* 0 keeps the best token alone, as OpenAI's reading of it does; the engine wants above 0. */
    if (s->top_p < 1e-6f) s->top_p = 1e-6f;
    HD_TRY(hd_api_num(in, "min_p", 0, 1, &s->min_p));
    HD_TRY(hd_api_int(in, "top_k", -1, INT32_MAX, &top_k));
    s->top_k = top_k < 0 ? 0 : (int)top_k;
    HD_TRY(hd_api_num(in, "presence_penalty", -2, 2, &s->presence_penalty));
    HD_TRY(hd_api_num(in, "frequency_penalty", -2, 2, &s->frequency_penalty));
    HD_TRY(hd_api_num(in, "repetition_penalty", 0.01, 10, &s->repetition_penalty));
    HD_TRY(parse_bias(in, s));
    s->has_seed = hd_api_get(in, "seed") != NULL;
    HD_TRY(hd_api_int(in, "seed", INT64_MIN, INT64_MAX, &seed));
    s->seed = (uint64_t)seed;
    return parse_logprobs(in, out);
}

/* ---- ends ---- */

static hd_status add_stop(const hd_api_in *in, hd_api_request *out, const json_t *v) {
    if (!json_is_string(v)) return hd_api_wrong(in, "stop", "a string or an array of strings", v);
    size_t n = json_string_length(v);
    if (n == 0 || n > HD_API_STOP_BYTES_MAX)
        return hd_api_fail(in->error, HD_E_INVALID, "stop",
                           "a stop string must have 1 to %d bytes, found %zu",
                           HD_API_STOP_BYTES_MAX, n);
    out->stop[out->n_stop++] = hd_api_copy(in->arena, v);
    return HD_OK;
}

static hd_status parse_stop(const hd_api_in *in, hd_api_request *out) {
    const json_t *v = hd_api_get(in, "stop");
    if (!v) return HD_OK;
    if (!json_is_array(v)) return add_stop(in, out, v);
    if (json_array_size(v) > HD_STOP_MAX)
        return hd_api_fail(in->error, HD_E_INVALID, "stop",
                           "'stop' must have at most %d strings, found %zu", HD_STOP_MAX,
                           json_array_size(v));
    for (size_t i = 0; i < json_array_size(v); i++) HD_TRY(add_stop(in, out, json_array_get(v, i)));
    return HD_OK;
}

static hd_status parse_lengths(const hd_api_in *in, hd_api_request *out) {
    int64_t max = 0, max2 = 0, min = 0;
    HD_TRY(hd_api_int(in, "max_tokens", 1, INT64_MAX, &max));
    if (out->kind == HD_API_CHAT) {
        HD_TRY(hd_api_int(in, "max_completion_tokens", 1, INT64_MAX, &max2));
        if (max2 > 0) max = max2; /* the newer name wins, as at OpenAI */
    } else if (max == 0) {
        max = out->suffix.len > 0 ? HD_API_FIM_TOKENS : HD_API_COMPLETION_TOKENS;
    }
    HD_TRY(hd_api_int(in, "min_tokens", 0, INT32_MAX, &min));
    if (max > 0 && min > max)
        return hd_api_fail(in->error, HD_E_INVALID, "min_tokens",
                           "'min_tokens' must be at most the %lld tokens to generate, found %lld",
                           (long long)max, (long long)min);
    out->max_tokens = max > INT32_MAX ? INT32_MAX : (int)max;
    out->min_tokens = (int)min;
    HD_TRY(hd_api_bool(in, "ignore_eos", &out->ignore_eos));
    HD_TRY(
        hd_api_ints(in, "stop_token_ids", HD_STOP_TOKEN_MAX, &out->stop_token, &out->n_stop_token));
    return parse_stop(in, out);
}

static hd_status parse_tenant(const hd_api_in *in, hd_api_request *out) {
    static const char *const names[] = {"cache_salt", "user_id", "user"};
    for (size_t i = 0; i < HD_COUNT_OF(names); i++) {
        hd_str name = {"", 0};
        HD_TRY(hd_api_text(in, names[i], &name));
        if (name.len > 512)
            return hd_api_fail(in->error, HD_E_INVALID, names[i],
                               "'%s' must have at most 512 bytes, found %zu", names[i], name.len);
        if (strcmp(names[i], "user_id") == 0 && !hd_api_is_plain(name)) /* as DeepSeek's API */
            return hd_api_fail(in->error, HD_E_INVALID, names[i],
                               "'user_id' may have letters, digits, '_' and '-' only, found "
                               "\"%.64s\"",
                               name.ptr);
        out->cache_salt = add_salt(out->cache_salt, name);
        if (i > 0) out->tenant = add_salt(out->tenant, name);
    }
    return HD_OK;
}

static const char tier_field[] = "service_tier";

static hd_status parse_service(const hd_api_in *in, hd_api_request *out) {
    int64_t priority = 0;
    HD_TRY(hd_api_int(in, "priority", INT32_MIN, INT32_MAX, &priority));
    out->priority = (int)priority;
    out->service = HD_SERVICE_STANDARD;
    HD_TRY(hd_api_text(in, tier_field, &out->service_tier));
    if (out->service_tier.len == 0) return HD_OK;
    int service = hd_service_find(out->service_tier.ptr);
    if (service < 0)
        return hd_api_fail(in->error, HD_E_INVALID, tier_field,
                           "'%s' must be auto, default, flex, priority or the name of a class "
                           "(interactive, standard, batch, offline), found \"%.64s\"",
                           tier_field, out->service_tier.ptr);
    out->service = (enum hd_service)service;
    return HD_OK;
}

enum hd_service hd_api_guess_service(hd_str body) {
    bool is_named = memmem(body.ptr, body.len, tier_field, sizeof tier_field - 1) != NULL;
    return is_named ? HD_SERVICE_INTERACTIVE : HD_SERVICE_STANDARD;
}

static hd_status parse_common(const hd_api_in *in, hd_api_request *out) {
    HD_TRY(refuse_fields(in));
    HD_TRY(hd_api_text(in, "model", &out->model));
    HD_TRY(hd_api_bool(in, "stream", &out->stream));
    hd_api_in options;
    HD_TRY(hd_api_object(in, "stream_options", &options));
    if (options.object && !out->stream)
        return hd_api_fail(in->error, HD_E_INVALID, "stream_options",
                           "'stream_options' needs 'stream' to be true");
    if (options.object) HD_TRY(hd_api_bool(&options, "include_usage", &out->include_usage));
    int64_t n = 1, best_of = 0;
    HD_TRY(hd_api_int(in, "n", 1, HD_API_N_MAX, &n));
    HD_TRY(hd_api_int(in, "best_of", 1, HD_API_N_MAX, &best_of));
    if (best_of > 0 && best_of != n) return unsupported(in, "best_of", "it must be equal to 'n'");
    out->n = (int)n;
    HD_TRY(parse_service(in, out));
    HD_TRY(parse_sampling(in, out));
    HD_TRY(parse_lengths(in, out));
    HD_TRY(parse_tenant(in, out));
    bool skip_special = true;
    HD_TRY(hd_api_bool(in, "skip_special_tokens", &skip_special));
    out->keep_special = !skip_special;
    HD_TRY(hd_api_bool(in, "include_stop_str_in_output", &out->include_stop));
    return hd_api_bool(in, "return_token_ids", &out->return_token_ids);
}

/* ---- completions ---- */

/* One prompt: a string or an array of ids. */
static hd_status parse_prompt(const hd_api_in *in, const json_t *v, hd_api_prompt *out) {
    if (json_is_string(v)) {
        out->text = hd_api_copy(in->arena, v);
        return HD_OK;
    }
    HD_TRY(hd_api_int_array(in, "prompt", v, HD_API_VALUES_MAX, &out->id, &out->n_id));
    if (out->n_id == 0)
        return hd_api_fail(in->error, HD_E_INVALID, "prompt", "'prompt' must not be empty");
    return HD_OK;
}

static hd_status parse_prompts(const hd_api_in *in, hd_api_request *out) {
    const json_t *v = hd_api_get(in, "prompt");
    if (!v) return hd_api_fail(in->error, HD_E_INVALID, "prompt", "'prompt' is required");
    if (!json_is_array(v) && !json_is_string(v))
        return hd_api_wrong(in, "prompt", "a string, an array of token ids, or an array of those",
                            v);
    if (json_is_array(v) && json_array_size(v) == 0)
        return hd_api_fail(in->error, HD_E_INVALID, "prompt", "'prompt' must not be empty");
    const json_t *first = json_array_get(v, 0);
    bool is_one = json_is_string(v) || json_is_number(first);
    out->n_prompt = is_one ? 1 : json_array_size(v);
    if (out->n_prompt > HD_API_PROMPT_MAX || out->n_prompt * (size_t)out->n > HD_API_CHOICE_MAX)
        return hd_api_fail(in->error, HD_E_INVALID, "prompt",
                           "at most %d prompts and %d choices in all, found %zu prompts with n %d",
                           HD_API_PROMPT_MAX, HD_API_CHOICE_MAX, out->n_prompt, out->n);
    out->prompt = hd_arena_alloc(in->arena, out->n_prompt * sizeof *out->prompt);
    if (is_one) return parse_prompt(in, v, &out->prompt[0]);
    for (size_t i = 0; i < out->n_prompt; i++) {
        const json_t *item = json_array_get(v, i);
        if (!json_is_string(item) && !json_is_array(item))
            return hd_api_wrong(in, "prompt", "an array of strings or of arrays of token ids",
                                item);
        HD_TRY(parse_prompt(in, item, &out->prompt[i]));
    }
    return HD_OK;
}

/* Filling a hole: for answers without thinking, and text only. */
static hd_status check_suffix(const hd_api_in *in, const hd_api_request *q) {
    if (q->suffix.len == 0) return HD_OK;
    for (size_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i].id)
            return hd_api_fail(in->error, HD_E_INVALID, "suffix",
                               "'suffix' needs a 'prompt' of text, found token ids");
    hd_api_in thinking;
    hd_str type = {"", 0};
    HD_TRY(hd_api_object(in, "thinking", &thinking));
    if (thinking.object) HD_TRY(hd_api_text(&thinking, "type", &type));
    const hd_model_alias *alias = hd_model_alias_find(q->model);
    if (hd_str_eq_c(type, "enabled") || (alias && alias->thinks))
        return hd_api_fail(in->error, HD_E_INVALID, "suffix",
                           "'suffix' cannot be had together with thinking");
    return HD_OK;
}

static hd_status parse_completion(const hd_api_in *in, hd_api_request *out) {
    const json_t *tools = hd_api_get(in, "tools");
    if (tools && !is_empty(tools)) return unsupported(in, "tools", "only in a chat");
    HD_TRY(hd_api_response_format(in, out));
    if (out->schema.len > 0) return unsupported(in, "response_format", "only in a chat");
    HD_TRY(hd_api_text(in, "suffix", &out->suffix));
    HD_TRY(hd_api_bool(in, "echo", &out->echo));
    HD_TRY(parse_common(in, out));
    HD_TRY(parse_prompts(in, out));
    return check_suffix(in, out);
}

static hd_status parse_chat(const hd_api_in *in, hd_api_request *out) {
    HD_TRY(parse_common(in, out));
    HD_TRY(hd_api_messages(in, out));
    HD_TRY(hd_api_tools(in, out));
    return hd_api_template(in, out);
}

hd_status hd_api_parse(enum hd_api_kind kind, hd_str body, const hd_sampling *defaults,
                       hd_arena *arena, hd_api_request *out, hd_api_error *error) {
    *out = (hd_api_request){.kind = kind, .model = {"", 0}, .n = 1, .sampling = *defaults};
    json_t *root;
    HD_TRY(hd_api_load(body, &root, error));
    hd_api_in in = {root, "", arena, error};
    hd_status s = kind == HD_API_CHAT ? parse_chat(&in, out) : parse_completion(&in, out);
    json_decref(root);
    return s;
}
