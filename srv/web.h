/* The files of the web page, embedded in the program: a table that cmake/web.cmake generates.
 *
 * The table always holds the path "/". A path may appear twice: as it is, and compressed with gzip
 * for clients that accept it; the plain form is always there. Read-only, for any thread. */
#ifndef HD_SRV_WEB_H
#define HD_SRV_WEB_H

#include <stdbool.h>
#include <stddef.h>

/* Suits every page in the table: nothing inline, nothing from another host. */
#define HD_WEB_CSP                                                                                 \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "              \
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

struct hd_web_asset {
    const char *path; /* as requested: "/", "/app.js" */
    const char *content_type;
    const unsigned char *data; /* [size] */
    size_t size;
    bool is_gzip;     /* data is gzip: answer with Content-Encoding: gzip */
    const char *etag; /* with its quotes; differs between the two forms of a path */
};

extern const struct hd_web_asset hd_web_assets[];
extern const size_t hd_web_asset_count;

#endif
