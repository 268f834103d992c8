/* Conversations and answers as plain data: what a prompt is made of, and what a stream of generated
 * tokens turns into. Shared by hadal.h, lib/text and srv. Everything is borrowed unless it says
 * otherwise; texts are valid UTF-8; a zeroed struct asks for nothing. */
#ifndef HD_BASE_CHAT_H
#define HD_BASE_CHAT_H

#include "base/buf.h"

/* ---- the prompt ---- */

enum hd_role {
    HD_ROLE_SYSTEM,
    HD_ROLE_USER,
    HD_ROLE_ASSISTANT,
    HD_ROLE_TOOL,
    HD_ROLE_DEVELOPER,
    HD_ROLE_LATEST_REMINDER
};

typedef struct hd_tool_call {
    hd_str id, name;  /* id may be empty */
    hd_str arguments; /* JSON text of an object; empty: {} */
} hd_tool_call;

typedef struct hd_message {
    enum hd_role role;
    hd_str content;
    hd_str reasoning;         /* assistant: reasoning_content; empty: none */
    const hd_tool_call *call; /* [n_call] assistant */
    size_t n_call;
    hd_str call_id; /* tool: which call it answers; may be empty */
} hd_message;

/* JSON texts are spaced as Python's json.dumps does (", " and ": "), key order and characters
 * outside ASCII kept. */
typedef struct hd_tool {
    hd_str name, description;
    hd_str parameters; /* JSON text of the schema */
    hd_str function;   /* JSON text of the whole function object */
} hd_tool;

/* REQUIRED: the answer is a call; of forced_tool, when that is not empty. */
enum hd_tool_choice { HD_TOOL_AUTO, HD_TOOL_NONE, HD_TOOL_REQUIRED };

typedef struct hd_chat_prompt {
    const hd_message *message; /* [n_message] */
    size_t n_message;
    const hd_tool *tool; /* [n_tool] left out of the prompt with HD_TOOL_NONE */
    size_t n_tool;
    enum hd_tool_choice tool_choice;
    hd_str forced_tool;
    bool thinking;             /* ignored where the encoding cannot, or always does */
    bool no_thinking;          /* not even where it always does: the reasoning is written, empty */
    int effort;                /* 1..100; 0: the encoding's default (V4 and V4.1 only) */
    bool keep_reasoning;       /* of past turns, too (V3.2 and later) */
    bool continue_final;       /* the last message is an assistant's and is continued */
    bool no_generation_prefix; /* the messages alone; an assistant's may be the last, closed */
    hd_str task;               /* quick task of the last user message (V4); empty: none */
    hd_str schema; /* JSON text of the schema that the answer is to follow (V3.2 and later): the
                      model is told of it, nothing holds it to it; empty: none */
} hd_chat_prompt;

enum { HD_CHAT_BANNED_MAX = 2 };

/* How the answer to a prompt begins. */
typedef struct hd_chat_start {
    bool in_reasoning; /* inside reasoning */
    bool strip_space;  /* with a space that is not part of it (V1 and V2, a new message) */
    size_t n_forced;   /* the prompt's last so many ids are its beginning (a forced tool call): feed
                          them to the stream before the first token */
    /* [n_banned] tokens that begin a call, where the chat has tools or calls and none may be called
     * now: not to be generated */
    int32_t banned[HD_CHAT_BANNED_MAX];
    int n_banned;
} hd_chat_start;

/* ---- the answer ---- */

/* A piece of a tool call. */
typedef struct hd_call_delta {
    int index;        /* counts the answer's calls from 0 */
    hd_str name;      /* not empty exactly in a call's first delta */
    hd_str arguments; /* JSON text; a call's pieces together are its arguments */
} hd_call_delta;

enum { HD_STREAM_STOP_MAX = 16, HD_STREAM_STOP_BYTES_MAX = 1024 };

typedef struct hd_text_stream_options {
    bool in_reasoning;    /* hd_chat_start's */
    bool strip_space;     /* hd_chat_start's */
    int n_forced;         /* hd_chat_start's: no stop strings in these, not in min_tokens */
    bool split_reasoning; /* false: everything is content, markers included */
    bool keep_special;    /* show special tokens (skip_special_tokens: false) */
    bool include_stop;    /* the stop string stays in the text */
    int min_tokens;       /* stop strings are not sought in the text of the first so many */
    const hd_str *stop;   /* [n_stop] copied */
    int n_stop;
    bool parse_tools;    /* tool calls are taken out of the content; implies split_reasoning */
    const hd_tool *tool; /* [n_tool] copied: their schemas tell strings from other values */
    size_t n_tool;
    int max_call; /* the answer ends after so many calls; 0: no bound */
} hd_text_stream_options;

/* What became certain with one token; texts are valid UTF-8, and valid until the next call. In one
 * answer reasoning comes before content, and content before calls. */
typedef struct hd_text_out {
    hd_str reasoning, content;
    const hd_call_delta *call; /* [n_call] */
    size_t n_call;
    bool in_reasoning; /* the tokens so far end inside reasoning */
    bool stopped;      /* nothing more will come: a stop string, or max_call calls */
    int stop_ix;       /* which stop string; -1: none */
    /* Bytes of generated text taken in so far, and how many of them are decided: shown, part of a
     * call, or markers. A token's text is decided once n_out passes the n_in before that token.
     * After a stop, n_out is where the text was cut. Invalid bytes count as the U+FFFD they become.
     */
    size_t n_in, n_out;
} hd_text_out;

#endif
