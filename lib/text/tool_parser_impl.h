/* What the tool parser's two formats share. Private to lib/text. */
#ifndef HD_TEXT_TOOL_PARSER_IMPL_H
#define HD_TEXT_TOOL_PARSER_IMPL_H

#include "text/tool_parser.h"

#include <jansson.h>

enum { HD_TOOL_MARKER_MAX = 16, HD_TOOL_SPACE_MAX = 256, HD_TOOL_PARAM_MAX = 512 };

/* HIDDEN: no text, and nothing else. The others: by format. */
enum hd_tool_marker_kind {
    HD_MARK_HIDDEN,
    HD_MARK_BLOCK,
    HD_MARK_BLOCK_END,
    HD_MARK_CALL,
    HD_MARK_CALL_END,
    HD_MARK_SEP,
    HD_MARK_TAG,
    HD_MARK_TAG_END,
    HD_MARK_VALUE_END
};

/* Bytes [from, to) must come of added tokens. */
typedef struct hd_tool_marker {
    const char *text;
    size_t len, from, to;
    enum hd_tool_marker_kind kind;
} hd_tool_marker;

typedef struct hd_tool_delta {
    int index;
    size_t name, n_name, args, n_args; /* in the buffers names and args */
} hd_tool_delta;

/* Where the parser is. TEXT: no block yet; BLOCK: in one, between calls. The others: by format. */
enum hd_tool_place {
    HD_AT_TEXT,
    HD_AT_BLOCK,
    HD_AT_HEAD,
    HD_AT_SEP,
    HD_AT_ARGS_START,
    HD_AT_FENCE,
    HD_AT_ARGS,
    HD_AT_ARGS_END,
    HD_AT_TAG,
    HD_AT_INVOKE,
    HD_AT_VALUE
};

/* TOKENS: the call being read. */
typedef struct hd_tool_tokens {
    char head[HD_TOOL_NAME_MAX + 1], name[HD_TOOL_NAME_MAX + 1]; /* before, after the separator */
    size_t n_head, n_name;
    bool is_raw, in_string, is_escaped; /* the arguments: no object; inside a string of them */
    int depth;
} hd_tool_tokens;

/* What becomes of a parameter's text. */
enum hd_tool_value { HD_VALUE_DROPPED, HD_VALUE_STRING, HD_VALUE_JSON, HD_VALUE_LONG };

/* DSML: the tag and the parameter being read. */
typedef struct hd_tool_dsml {
    hd_buf tag, value; /* value: of a parameter that is no string */
    bool is_end_tag, in_quotes, is_too_long;
    enum hd_tool_place tag_from;      /* where the tag began */
    const json_t *properties;         /* of the open call's tool, or NULL */
    uint64_t seen[HD_TOOL_PARAM_MAX]; /* hashes of its parameters' names */
    size_t n_seen;
    enum hd_tool_value kind;
    bool is_wrapper, is_unwrapped, wants_string;
    hd_buf key;
} hd_tool_dsml;

typedef struct hd_tool_schema {
    char *name;
    json_t *parameters; /* NULL where they are no JSON */
} hd_tool_schema;

struct hd_tool_parser {
    enum hd_tool_format format;
    hd_tool_marker marker[HD_TOOL_MARKER_MAX];
    int n_marker;
    int max_call, n_call; /* calls begun */
    enum hd_tool_place place;
    bool is_reasoning, has_ended, is_full;

    char held[HD_TOOL_HELD_MAX];
    bool added[HD_TOOL_HELD_MAX]; /* the byte came of an added token */
    size_t n_held;

    bool is_open, has_args; /* a call's name is out; something of its arguments */
    hd_tool_tokens tokens;
    hd_tool_dsml dsml;
    hd_tool_schema *tool; /* [n_tool] */
    size_t n_tool;

    hd_buf reasoning, content, names, args; /* since the last take */
    hd_tool_delta *delta;
    hd_call_delta *call; /* the same, as they are handed out */
    size_t n_delta, delta_room;
};

static inline bool hd_tool_is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* ---- for the formats ---- */

/* added: the part of text that is an added token in some tokenizers (NULL: all of it). */
void hd_tool_add_marker(hd_tool_parser *p, const hd_tokenizer *t, const char *text,
                        const char *added, enum hd_tool_marker_kind kind);
/* Looks for a marker at held[at]; *found is one that is complete there. True: one may yet be. */
bool hd_tool_match(const hd_tool_parser *p, size_t at, const hd_tool_marker **found);
void hd_tool_drop(hd_tool_parser *p, size_t at, size_t n); /* n held bytes from at */
/* A call begins, named; false: a name that is empty or too long, and no call. */
bool hd_tool_open_call(hd_tool_parser *p, hd_str name);
void hd_tool_put_args(hd_tool_parser *p, const char *text, size_t n);
/* The open call, if there is one, is complete. */
void hd_tool_close_call(hd_tool_parser *p);

/* A format: which markers count where, and what they and other bytes do. Both take what they handle
 * out of what is held. */
void hd_tool_tokens_init(hd_tool_parser *p, const hd_tokenizer *t);
void hd_tool_tokens_marker(hd_tool_parser *p, const hd_tool_marker *m);
void hd_tool_tokens_byte(hd_tool_parser *p);
void hd_tool_tokens_end(hd_tool_parser *p, bool is_cut);
void hd_tool_dsml_init(hd_tool_parser *p, const hd_tokenizer *t);
/* Whether what is held at `at`, after a tag's marker, goes on as a tag of the format does; *may: it
 * may yet. */
bool hd_tool_dsml_is_tag(const hd_tool_parser *p, size_t at, bool *may);
void hd_tool_dsml_marker(hd_tool_parser *p, const hd_tool_marker *m);
void hd_tool_dsml_byte(hd_tool_parser *p);
void hd_tool_dsml_end(hd_tool_parser *p, bool is_cut);
void hd_tool_dsml_fini(hd_tool_parser *p);

#endif
