/* Checked reading of JSON bodies: strict JSON, and fields whose type and range are checked as they
 * are taken. An absent field and null are the same: the output keeps its value.
 *
 * Errors name the field the way a client wrote it ("messages[2].content"). Strings are copied into
 * the arena. Thread: any; nothing shared. */
#ifndef HD_SRV_API_READ_H
#define HD_SRV_API_READ_H

#include "base/buf.h"
#include "base/mem.h"

#include <jansson.h>

enum { HD_API_DEPTH_MAX = 64, HD_API_VALUES_MAX = 2000000 };

/* What goes into {"error": {...}}. */
typedef struct hd_api_error {
    hd_status status;
    char message[512], param[96]; /* param "": null */
    const char *code;             /* NULL: null */
    int retry_s;                  /* of 429 and 503: after how long to ask again; 0: a second */
} hd_api_error;

hd_status hd_api_fail(hd_api_error *e, hd_status s, const char *param, const char *fmt, ...)
    HD_PRINTF(4, 5);
/* The same from this thread's last error. */
hd_status hd_api_fail_last(hd_api_error *e, hd_status s, const char *param);

/* Parses a body that must be one JSON object. On success *out is the caller's (json_decref). */
HD_MUST_CHECK hd_status hd_api_load(hd_str body, json_t **out, hd_api_error *e);

/* An object being read, and where it stands in the body: "" or "messages[2]." */
typedef struct hd_api_in {
    const json_t *object;
    const char *path;
    hd_arena *arena;
    hd_api_error *error;
} hd_api_in;

/* The field's value, NULL when absent or null. */
const json_t *hd_api_get(const hd_api_in *in, const char *key);
HD_MUST_CHECK hd_status hd_api_bool(const hd_api_in *in, const char *key, bool *out);
/* Whole numbers, written with or without a point. */
HD_MUST_CHECK hd_status hd_api_int(const hd_api_in *in, const char *key, int64_t min, int64_t max,
                                   int64_t *out);
HD_MUST_CHECK hd_status hd_api_num(const hd_api_in *in, const char *key, double min, double max,
                                   float *out);
HD_MUST_CHECK hd_status hd_api_text(const hd_api_in *in, const char *key, hd_str *out);
/* The field as an object to read from; out->object is NULL when absent. */
HD_MUST_CHECK hd_status hd_api_object(const hd_api_in *in, const char *key, hd_api_in *out);
/* An array of token ids (0 to 2^31 - 1), at most n_max; copied to the arena. */
HD_MUST_CHECK hd_status hd_api_ints(const hd_api_in *in, const char *key, size_t n_max,
                                    int32_t **out, size_t *n);
/* The same for a value that stands somewhere in the field `key`. */
HD_MUST_CHECK hd_status hd_api_int_array(const hd_api_in *in, const char *key, const json_t *v,
                                         size_t n_max, int32_t **out, size_t *n);

/* HD_E_INVALID about a field: 'path key' must be <expected>, found <what>. */
hd_status hd_api_wrong(const hd_api_in *in, const char *key, const char *expected,
                       const json_t *found);
/* A copy of a JSON string in the arena. */
hd_str hd_api_copy(hd_arena *a, const json_t *string);

/* A value as JSON text, as Python's json.dumps(v, ensure_ascii=False) writes it: the spacing,
 * numbers and escapes that models have seen in their training. Keys keep their order. */
void hd_api_dump(const json_t *v, hd_buf *out);
/* The same in the arena. */
hd_str hd_api_dump_text(hd_arena *a, const json_t *v);
/* Whether the text has letters, digits, '_' and '-' of ASCII only. */
bool hd_api_is_plain(hd_str text);
/* Whether the text is one whole JSON object. */
bool hd_api_is_object(hd_str text);

#endif
