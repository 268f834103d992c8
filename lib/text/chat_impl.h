/* What a row of the table of chat encodings is made of. Private to lib/text. */
#ifndef HD_TEXT_CHAT_IMPL_H
#define HD_TEXT_CHAT_IMPL_H

#include "text/chat.h"
#include "text/markers.h"
#include "text/tool_parser.h"

enum { HD_CHAT_MARKER_MAX = 40 };

/* Builds the ids: plain text is gathered until a marker ends it. */
typedef struct hd_chat_writer {
    const hd_chat_encoding *e;
    const hd_tokenizer *t;
    const hd_chat_prompt *p; /* checked */
    hd_ids *out;
    hd_buf plain;
    hd_chat_start start;
    bool has_tools;                     /* the prompt offers some, even if none may be called */
    int32_t marker[HD_CHAT_MARKER_MAX]; /* ids of the known markers; -1: no token */
} hd_chat_writer;

/* Text of the encoding: markers in it that are tokens become these. NULL: nothing. */
void hd_chat_markup(hd_chat_writer *w, const char *text);
/* Text of a message: never becomes a marker. */
void hd_chat_plain(hd_chat_writer *w, hd_str text);
/* Ends a run of text: what follows is encoded on its own. */
void hd_chat_flush(hd_chat_writer *w);

/* HYBRID: as asked for; UNLESS_ASKED: the same, and the maker's servers think unless told not to.
 */
enum hd_chat_thinking { HD_CHAT_NO_THINKING, HD_CHAT_HYBRID, HD_CHAT_UNLESS_ASKED, HD_CHAT_ALWAYS };

/* Where system messages are written, and what of a past answer is reasoning. */
enum hd_chat_systems { HD_SYSTEMS_FIRST, HD_SYSTEMS_LAST_ONLY, HD_SYSTEMS_IN_PLACE };
enum hd_chat_drop { HD_DROP_NOTHING, HD_DROP_TO_FIRST, HD_DROP_TO_LAST };

/* Encodings up to V3.1: turns between markers, tool calls in tokens (chat_turns.c). The texts are
 * markup; NULL counts as "". */
typedef struct hd_chat_turns {
    enum hd_chat_systems
        systems;                 /* all at the beginning, the last one there, or where they stand */
    const char *system_default;  /* what stands first when no message is the system's */
    const char *system_join;     /* between two at the beginning */
    const char *system_end;      /* after each in its place */
    const char *user, *user_end; /* around a user's text */
    const char *past, *past_end; /* around an assistant's */
    bool answers_any;            /* `past` not only after a user's message, but for tools' */
    enum hd_chat_drop drop;      /* of a past answer, up to which </think> */
    const char *answer, *answer_thinking; /* what makes the model answer */
    const char *think, *think_end;        /* around reasoning that is continued */
    const char *tools, *tool_format;      /* before and after the tools' definitions */
    const char *tool, *tool_end;          /* around a function object; NULL: V3.1's form */
    const char *calls, *calls_end;        /* around an assistant's calls */
    const char *call, *call_args, *call_end, *call_join; /* a call's parts, between calls */
    const char *outputs, *outputs_end;                   /* around results */
    const char *output, *output_end, *output_join;
} hd_chat_turns;

/* V4's two builds and V4.1 say how much to think in different words. */
enum hd_chat_effort { HD_EFFORT_NONE, HD_EFFORT_MAX_ONLY, HD_EFFORT_WORDS, HD_EFFORT_NUMBER };

/* Encodings since V3.2: tool calls in DSML markup (chat_dsml.c). The texts are markup. */
typedef struct hd_chat_dsml {
    const char *block, *block_end;     /* tags */
    const char *invoke, *invoke_end;   /* the first up to the name's quote */
    const char *param, *param_end;     /* likewise */
    const char *tools, *tools_end;     /* around the functions' lines */
    const char *results, *results_end; /* around results */
    const char *result, *result_end;
    bool has_user_turns; /* a user's and tools' messages are one turn, answered when it is over */
    bool has_system;     /* <｜System｜> */
    enum hd_chat_effort effort;
} hd_chat_dsml;

struct hd_chat_encoding {
    const char *name, *alias;  /* alias: or NULL */
    const char *models;        /* it is for */
    const char *const *marker; /* every one must be an added token; ended by NULL */
    enum hd_chat_thinking thinking;
    enum hd_tool_format tools;
    const char *const *end_token; /* end an answer besides eos; ended by NULL */
    bool strip_space;             /* a new answer begins with a space that is not part of it */
    bool strip_newlines;          /* around </think> they are no part of the texts */
    const hd_chat_turns *turns;   /* one of these */
    const hd_chat_dsml *dsml;
};

void hd_chat_turns_write(hd_chat_writer *w);
void hd_chat_dsml_write(hd_chat_writer *w);
/* The marker of a quick task (V4), or NULL: there is none of this name. */
const char *hd_chat_task_marker(hd_str task);

extern const hd_chat_encoding hd_chat_rows[];
extern const size_t hd_chat_row_count;

#endif
