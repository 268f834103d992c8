/* The typed request: what the body of /v1/chat/completions or /v1/completions asks for.
 *
 * hd_api_parse is the one place where such bodies are understood: a pure function from bytes,
 * fuzzed. Everything known but not supported is refused by name (501), wrong types and ranges too
 * (400); unknown fields are ignored, as OpenAI's servers do. What needs the model (token ranges,
 * context length) is checked later. Memory: the arena. Thread: any. */
#ifndef HD_SRV_API_REQUEST_H
#define HD_SRV_API_REQUEST_H

#include "hadal.h"
#include "srv/api_read.h"

enum hd_api_kind { HD_API_CHAT, HD_API_COMPLETION };
enum hd_api_thinking { HD_API_THINK_UNSET, HD_API_THINK_OFF, HD_API_THINK_ON };

enum {
    HD_API_N_MAX = 16,
    HD_API_PROMPT_MAX = 128,
    HD_API_CHOICE_MAX = 256, /* prompts times n */
    HD_API_MESSAGE_MAX = 4096,
    HD_API_STOP_BYTES_MAX = 1024,
    HD_API_COMPLETION_TOKENS = 16, /* max_tokens of a completion that does not say */
    HD_API_FIM_TOKENS = 4096       /* the same with a suffix: DeepSeek's bound */
};

typedef struct hd_api_prompt {
    hd_str text;
    int32_t *id; /* not NULL: token ids instead of text */
    size_t n_id;
} hd_api_prompt;

typedef struct hd_api_request {
    enum hd_api_kind kind;
    hd_str model; /* as asked; empty: not given */
    bool stream, include_usage;
    bool return_token_ids, echo, keep_special, include_stop;

    hd_message *message; /* chat: [n_message] */
    size_t n_message;
    int open_call_ix;    /* the last message with calls, when not all are answered; -1: none */
    int no_reasoning_ix; /* after the last user's, the first message with calls that came without
                            the reasoning that led to them; -1: none */
    hd_tool *tool;       /* [n_tool] */
    size_t n_tool;
    enum hd_tool_choice tool_choice;
    hd_str forced_tool;
    int max_call; /* 0: no bound */
    bool continue_final, no_generation_prompt, keep_reasoning;
    enum hd_api_thinking thinking;
    int effort; /* 1..100; 0: not said */
    hd_str task;
    hd_str schema;         /* chat: of response_format; empty: text */
    bool is_json_object;   /* the schema is any object: the prompt must speak of JSON */
    hd_api_prompt *prompt; /* completion: [n_prompt] */
    size_t n_prompt;
    hd_str suffix; /* completion: what follows the hole; empty: none */

    int n, max_tokens, min_tokens; /* max_tokens 0: until the context is full */
    hd_sampling sampling;          /* its bias is in the arena */
    hd_str stop[HD_STOP_MAX];
    int n_stop;
    int32_t *stop_token; /* [n_stop_token] */
    size_t n_stop_token;
    bool ignore_eos;
    enum hd_service service;
    hd_str service_tier; /* as asked; empty: not said */
    int priority;
    uint64_t cache_salt;
    uint64_t tenant; /* of user_id and user; 0: neither */
} hd_api_request;

/* The class of a body that is not parsed yet: the default's where it names none, else the most
 * urgent one. */
enum hd_service hd_api_guess_service(hd_str body);

/* Names of DeepSeek's API that mean the served model, whatever it is called. */
typedef struct hd_model_alias {
    const char *name;
    bool thinks; /* unless the body says otherwise */
} hd_model_alias;
enum { HD_MODEL_ALIAS_COUNT = 2 };
extern const hd_model_alias hd_model_aliases[HD_MODEL_ALIAS_COUNT];
/* NULL when the name is none of them. */
const hd_model_alias *hd_model_alias_find(hd_str name);

/* defaults: of what the body does not say; n_top_logprob is -1. */
HD_MUST_CHECK hd_status hd_api_parse(enum hd_api_kind kind, hd_str body,
                                     const hd_sampling *defaults, hd_arena *arena,
                                     hd_api_request *out, hd_api_error *error);
/* The parts of a chat body that make its prompt, in this order, as /tokenize takes them: messages;
 * tools, tool_choice, parallel_tool_calls; add_generation_prompt, continue_final_message, thinking
 * and its other spellings. */
HD_MUST_CHECK hd_status hd_api_messages(const hd_api_in *in, hd_api_request *out);
HD_MUST_CHECK hd_status hd_api_tools(const hd_api_in *in, hd_api_request *out);
HD_MUST_CHECK hd_status hd_api_template(const hd_api_in *in, hd_api_request *out);
/* response_format, of which hd_api_template is made, too. */
HD_MUST_CHECK hd_status hd_api_response_format(const hd_api_in *in, hd_api_request *out);
/* Whether the model is to think before it answers. */
bool hd_api_thinks(const hd_engine_info *info, const hd_api_request *q);
/* The ids of a parsed chat (hd_engine_free_ids); as hd_engine_chat. */
HD_MUST_CHECK hd_status hd_api_chat_ids(const hd_engine *e, const hd_api_request *q,
                                        hd_token_list *out, hd_chat_start *start,
                                        hd_api_error *error);

#endif
