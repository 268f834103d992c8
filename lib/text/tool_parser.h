/* Tool calls taken out of an answer, byte by byte: text before a block, calls in it, nothing after.
 *
 * Markers are the tokens of their texts where the tokenizer has them (then the same text spelt by
 * other tokens is only text), else the texts. A block counts in the content only. Tolerated: a
 * missing block opener, separator, fence or closer, text between and after calls. A call cut short
 * by the end keeps what came of its arguments; a call whose name did not come is dropped.
 *
 * The end of the text that may become a marker, and white space before it, are held back: at most
 * HD_TOOL_HELD_MAX bytes. Allocates only in hd_tool_parser_new. One owner at a time. */
#ifndef HD_TEXT_TOOL_PARSER_H
#define HD_TEXT_TOOL_PARSER_H

#include "base/chat.h"
#include "text/tokenizer.h"

/* How calls are written:
 * TOKENS  <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>...
 *         <｜tool▁calls▁end｜>, or, as V3 and R1 do, "function" for NAME and after the separator
 *         NAME, a new line and the arguments in a ```json fence. Both are understood.
 * DSML    <｜DSML｜tool_calls> <｜DSML｜invoke name="NAME"> <｜DSML｜parameter name="KEY"
 * string="true"> VALUE</｜DSML｜parameter> ... with closers likewise; V3.2 names the block
 * function_calls, V4.1 calls, and writes a space after ｜DSML｜. All are understood. Parameters
 * become the members of a JSON object: string="true" the text as it stands, "false" as JSON; text
 * that is none, by the tool's schema, or as a string. A repeated parameter is left out. */
enum hd_tool_format { HD_TOOLS_NONE, HD_TOOLS_TOKENS, HD_TOOLS_DSML };

enum {
    HD_TOOL_HELD_MAX = 1024,
    HD_TOOL_NAME_MAX = 256,
    HD_TOOL_VALUE_MAX = 64 << 10 /* of a value that is no string; a longer one is not checked */
};

typedef struct hd_tool_parser hd_tool_parser;

/* f: not NONE. t is borrowed. put_max: bytes that may be put between two takes. */
hd_tool_parser *hd_tool_parser_new(enum hd_tool_format f, const hd_tokenizer *t,
                                   const hd_text_stream_options *o, size_t put_max);
void hd_tool_parser_free(hd_tool_parser *p); /* accepts NULL */

/* One byte of whole characters; is_added: it came of an added token. Reasoning comes first. */
void hd_tool_parser_put(hd_tool_parser *p, char byte, bool is_reasoning, bool is_added);
/* The end of the answer: what was held back is decided. An open call is complete, or, if is_cut,
 * stays as it came. */
void hd_tool_parser_end(hd_tool_parser *p, bool is_cut);
/* reasoning, content and calls that became certain since the last take; valid until the next put.
 * stopped: max_call calls are complete. */
void hd_tool_parser_take(hd_tool_parser *p, hd_text_out *out);
size_t hd_tool_parser_held(const hd_tool_parser *p); /* bytes not decided yet */

#endif
