/* What a row of the table of chat encodings is made of. Private to lib/text. */
#ifndef HD_TEXT_CHAT_IMPL_H
#define HD_TEXT_CHAT_IMPL_H

#include "text/chat.h"
#include "text/tool_parser.h"

enum { HD_CHAT_MARKER_MAX = 32 };

/* Builds the ids: plain text is gathered until a marker ends it. */
typedef struct hd_chat_writer {
    const hd_chat_encoding *e;
    const hd_tokenizer *t;
    const hd_chat_prompt *p; /* checked */
    hd_ids *out;
    hd_buf plain;
    hd_chat_start start;
    int32_t marker[HD_CHAT_MARKER_MAX]; /* ids of the known markers; -1: no token */
} hd_chat_writer;

/* Text of the encoding: markers in it that are tokens become these. */
void hd_chat_markup(hd_chat_writer *w, const char *text);
/* Text of a message: never becomes a marker. */
void hd_chat_plain(hd_chat_writer *w, hd_str text);
/* Ends a run of text: what follows is encoded on its own. */
void hd_chat_flush(hd_chat_writer *w);

/* HYBRID: as asked for; UNLESS_ASKED: the same, and the maker's servers think unless told not to.
 */
enum hd_chat_thinking { HD_CHAT_NO_THINKING, HD_CHAT_HYBRID, HD_CHAT_UNLESS_ASKED, HD_CHAT_ALWAYS };

/* Encodings up to V3.1: turns between markers, tool calls in tokens (chat_turns.c). The texts are
 * markup; NULL counts as "". */
typedef struct hd_chat_turns {
    const char *system_join; /* between system messages, which all stand at the beginning */
    const char *user;        /* before a user's text */
    const char *past;        /* before an assistant's, when a user's came before it */
    const char *end;         /* after an assistant's */
    const char *answer, *answer_thinking; /* what makes the model answer a user */
    const char *think, *think_end;        /* around reasoning that is continued */
    const char *tools, *tool_format;      /* before and after the tools' definitions */
    const char *calls, *calls_end;        /* around an assistant's calls */
    const char *call, *call_args, *call_end, *call_join; /* a call's parts, between calls */
    const char *outputs, *outputs_end;                   /* around results */
    const char *output, *output_end, *output_join;
} hd_chat_turns;

struct hd_chat_encoding {
    const char *name;
    const char *const *marker; /* every one must be an added token; ended by NULL */
    enum hd_chat_thinking thinking;
    enum hd_tool_format tools;
    const char *const *end_token; /* end an answer besides eos; ended by NULL */
    bool keeps_reasoning;         /* of messages with tool calls after the last user's */
    bool strip_newlines;          /* around </think> they are no part of the texts */
    void (*write)(hd_chat_writer *w);
    const hd_chat_turns *turns;
};

void hd_chat_turns_write(hd_chat_writer *w);

#endif
