/* Growable bytes with a cap, borrowed string views, and an append-only JSON writer.
 *
 * A buf that would pass its cap sets `overflowed`, keeps what it had and ignores further appends:
 * the caller checks once at the end. Thread: one owner at a time. */
#ifndef HD_BASE_BUF_H
#define HD_BASE_BUF_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A borrowed run of bytes; not NUL-terminated. */
typedef struct hd_str {
    const char *ptr;
    size_t len;
} hd_str;

hd_str hd_str_of(const char *c_str);
bool hd_str_eq(hd_str a, hd_str b);
bool hd_str_eq_c(hd_str a, const char *b);
bool hd_str_ends_c(hd_str a, const char *end);
/* Text from a file or a client for a message: at most 80 bytes, bytes that could spoil a terminal
 * or a line as '?'. Valid on this thread until the next eight calls. */
const char *hd_show(hd_str text);
/* Appends to the text in list[room], "a, b, c" in the end; an item without room is left out. */
void hd_list_add(char *list, size_t room, const char *item);

typedef struct hd_buf {
    char *ptr; /* NUL-terminated whenever len > 0 */
    size_t len, room, cap;
    bool overflowed;
} hd_buf;

void hd_buf_init(hd_buf *b, size_t cap);
void hd_buf_fini(hd_buf *b);
void hd_buf_clear(hd_buf *b); /* keeps the memory */
void hd_buf_reserve(hd_buf *b,
                    size_t n_byte); /* so that appends up to this length do not allocate */
void hd_buf_add(hd_buf *b, const void *p, size_t n);
void hd_buf_add_c(hd_buf *b, const char *c_str);
void hd_buf_addf(hd_buf *b, const char *fmt, ...) HD_PRINTF(2, 3);
void hd_buf_drop_front(hd_buf *b, size_t n);
hd_str hd_buf_str(const hd_buf *b);

/* JSON writing onto a buf. Commas are put by the writer; the caller balances open and close.
 * Strings must be valid UTF-8: invalid bytes are written as U+FFFD. Non-finite numbers become null.
 */
typedef struct hd_json {
    hd_buf *buf;
    bool need_comma;
} hd_json;

hd_json hd_json_begin(hd_buf *b);
void hd_json_object(hd_json *j);
void hd_json_object_end(hd_json *j);
void hd_json_array(hd_json *j);
void hd_json_array_end(hd_json *j);
void hd_json_key(hd_json *j, const char *key);
void hd_json_str(hd_json *j, const char *p, size_t n);
void hd_json_str_c(hd_json *j, const char *c_str); /* NULL writes null */
void hd_json_int(hd_json *j, int64_t v);
void hd_json_num(hd_json *j, double v);
void hd_json_bool(hd_json *j, bool v);
void hd_json_null(hd_json *j);
void hd_json_raw(hd_json *j, const char *p, size_t n); /* already valid JSON */
/* One byte of a string's text as it stands between quotes, for strings that come in pieces. */
void hd_json_escape(hd_buf *b, char byte);

#endif
