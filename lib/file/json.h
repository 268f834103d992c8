/* Strict JSON of a checkpoint's files (config.json, index, safetensors header) through jansson. */
#ifndef HD_FILE_JSON_H
#define HD_FILE_JSON_H

#include "base/buf.h"

#include <jansson.h>

/* Parses an object; duplicate keys, invalid UTF-8 and text after it are refused. file is for the
 * message. The caller frees *out with json_decref. */
HD_MUST_CHECK hd_status hd_json_parse(hd_str text, const char *file, json_t **out);
/* The same for a file of which no integer is wanted: they may be of any size, as the
 * model_max_length of 10^30 in released tokenizer_config.json files. */
HD_MUST_CHECK hd_status hd_json_parse_texts(hd_str text, const char *file, json_t **out);
/* "an object", "a string", "3", "2.5", "true" ...: what was found, for messages. Valid on this
 * thread until the next call. */
const char *hd_json_found(const json_t *v);

#endif
