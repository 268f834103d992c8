/* API keys, compared in constant time. */
#include "srv/core.h"
#include "srv/http.h"

#include <string.h>

/* Every byte of the presented key is looked at, whatever differs and where. */
static unsigned differs(hd_str given, const char *key) {
    size_t n = strlen(key);
    unsigned diff = given.len != n;
    for (size_t i = 0; i < given.len; i++)
        diff |= (unsigned)((unsigned char)given.ptr[i] ^ (unsigned char)key[n ? i % n : 0]);
    return diff;
}

bool hd_auth_allows(const hd_server_config *c, hd_str authorization, hd_str x_api_key) {
    if (c->n_api_key == 0) return true;
    hd_str given = {"", 0};
    if (authorization.len > 7 && hd_http_name_is((hd_str){authorization.ptr, 7}, "bearer "))
        given = (hd_str){authorization.ptr + 7, authorization.len - 7};
    else if (x_api_key.ptr)
        given = x_api_key;
    while (given.len > 0 && given.ptr[0] == ' ') given.ptr++, given.len--;
    unsigned found = 0;
    for (int i = 0; i < c->n_api_key; i++) found |= (differs(given, c->api_key[i]) == 0);
    return given.len > 0 && found != 0;
}
