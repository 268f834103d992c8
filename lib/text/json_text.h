/* JSON as text, without building values: for tool calls, whose arguments are JSON in some formats
 * and markup in others. No allocation but into the buffers given; any depth up to 512. */
#ifndef HD_TEXT_JSON_TEXT_H
#define HD_TEXT_JSON_TEXT_H

#include "base/buf.h"

/* The length of the JSON value that s begins with (after white space, which counts); 0: none. */
size_t hd_json_text_value(hd_str s);
/* Whether s is one JSON value, white space around it allowed. */
bool hd_json_text_is_value(hd_str s);
/* Without white space at both ends. */
hd_str hd_json_text_trim(hd_str s);

/* Appends what a valid JSON string (quotes included) means; halves of surrogate pairs become
 * U+FFFD. */
void hd_json_text_decode(hd_buf *b, hd_str string);
/* Appends a valid JSON value as Python's json.dumps would write it: ", " and ": " between, other
 * white space left out, strings with no more escapes than needed. Numbers stay as they are. */
void hd_json_text_respace(hd_buf *b, hd_str value);

/* The members of a valid JSON object, one after the other; *at is 0 before the first. False: there
 * are no more. key includes its quotes. */
bool hd_json_text_member(hd_str object, size_t *at, hd_str *key, hd_str *value);

#endif
