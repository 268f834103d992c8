/* HTTP/1.1 request parsing: the head in one go once it is whole, a chunked body in pieces. */
#include "srv/http.h"

#include <string.h>

static bool is_tchar(unsigned char c) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
    return c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

bool hd_http_name_is(hd_str a, const char *b) {
    size_t i = 0;
    for (; i < a.len && b[i]; i++)
        if (lower(a.ptr[i]) != lower(b[i])) return false;
    return i == a.len && b[i] == 0;
}

hd_str hd_http_get(const hd_http_head *h, const char *name) {
    for (int i = 0; i < h->n_header; i++)
        if (hd_http_name_is(h->header[i].name, name)) return h->header[i].value;
    return (hd_str){NULL, 0};
}

static bool is_space(char c) { return c == ' ' || c == '\t'; }

static hd_str trim(hd_str s) {
    while (s.len > 0 && is_space(s.ptr[0])) s.ptr++, s.len--;
    while (s.len > 0 && is_space(s.ptr[s.len - 1])) s.len--;
    return s;
}

/* Cuts the piece before the first `mark` off *rest (all of it when there is none). */
static hd_str cut(hd_str *rest, char mark) {
    const char *at = rest->len ? memchr(rest->ptr, mark, rest->len) : NULL;
    hd_str piece = {rest->ptr, at ? (size_t)(at - rest->ptr) : rest->len};
    size_t used = at ? piece.len + 1 : rest->len;
    rest->ptr += used;
    rest->len -= used;
    return piece;
}

bool hd_http_list_has(hd_str list, const char *token) {
    while (list.len > 0) {
        hd_str item = cut(&list, ',');
        hd_str name = trim(cut(&item, ';'));
        if (!hd_http_name_is(name, token)) continue;
        item = trim(item);
        bool is_zero = item.len >= 3 && lower(item.ptr[0]) == 'q' && item.ptr[1] == '=';
        for (size_t i = 2; is_zero && i < item.len; i++)
            if (item.ptr[i] != '0' && item.ptr[i] != '.') is_zero = false;
        return !is_zero;
    }
    return false;
}

const char *hd_http_reason(int code) {
    static const struct {
        int code;
        const char *reason;
    } rows[] = {{100, "Continue"},
                {200, "OK"},
                {204, "No Content"},
                {304, "Not Modified"},
                {400, "Bad Request"},
                {401, "Unauthorized"},
                {404, "Not Found"},
                {405, "Method Not Allowed"},
                {408, "Request Timeout"},
                {413, "Content Too Large"},
                {414, "URI Too Long"},
                {417, "Expectation Failed"},
                {429, "Too Many Requests"},
                {431, "Request Header Fields Too Large"},
                {500, "Internal Server Error"},
                {501, "Not Implemented"},
                {503, "Service Unavailable"},
                {504, "Gateway Timeout"},
                {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++)
        if (rows[i].code == code) return rows[i].reason;
    return "Error";
}

static enum hd_http_result bad(hd_http_head *h, int code, const char *why) {
    h->error_code = code;
    h->error = why;
    return HD_HTTP_BAD;
}

/* Splits "METHOD target HTTP/1.x". */
static enum hd_http_result parse_request_line(hd_str line, hd_http_head *h) {
    hd_str rest = line;
    h->method = cut(&rest, ' ');
    h->target = cut(&rest, ' ');
    if (h->method.len == 0 || h->method.len > 32) return bad(h, 400, "malformed request line");
    for (size_t i = 0; i < h->method.len; i++)
        if (!is_tchar((unsigned char)h->method.ptr[i])) return bad(h, 400, "malformed method");
    if (rest.len != 8 || memcmp(rest.ptr, "HTTP/", 5) != 0)
        return bad(h, 400, "malformed request line");
    if (memcmp(rest.ptr, "HTTP/1.1", 8) != 0 && memcmp(rest.ptr, "HTTP/1.0", 8) != 0)
        return bad(h, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    h->minor = rest.ptr[7] - '0';
    if (h->target.len > HD_HTTP_TARGET_BYTES_MAX) return bad(h, 414, "request target too long");
    for (size_t i = 0; i < h->target.len; i++)
        if (h->target.ptr[i] < 0x21 || h->target.ptr[i] == 0x7F)
            return bad(h, 400, "malformed request target");
    hd_str t = h->target;
    if (t.len > 7 && hd_http_name_is((hd_str){t.ptr, 7}, "http://")) { /* absolute form */
        const char *slash = memchr(t.ptr + 7, '/', t.len - 7);
        t = slash ? (hd_str){slash, t.len - (size_t)(slash - t.ptr)} : (hd_str){"/", 1};
    } else if (!hd_str_eq_c(t, "*") && (t.len == 0 || t.ptr[0] != '/')) {
        return bad(h, 400, "request target must begin with '/'");
    }
    h->query = t;
    h->path = cut(&h->query, '?');
    return HD_HTTP_DONE;
}

static enum hd_http_result parse_header_line(hd_str line, hd_http_head *h) {
    if (is_space(line.ptr[0])) return bad(h, 400, "folded header line");
    hd_str value = line;
    hd_str name = cut(&value, ':');
    if (name.len == 0 || name.len == line.len) return bad(h, 400, "malformed header line");
    for (size_t i = 0; i < name.len; i++)
        if (!is_tchar((unsigned char)name.ptr[i])) return bad(h, 400, "malformed header name");
    for (size_t i = 0; i < value.len; i++) {
        unsigned char c = (unsigned char)value.ptr[i];
        if ((c < 0x20 && c != '\t') || c == 0x7F) return bad(h, 400, "malformed header value");
    }
    if (h->n_header == HD_HTTP_HEADER_MAX) return bad(h, 431, "too many header lines");
    h->header[h->n_header++] = (hd_http_header){name, trim(value)};
    return HD_HTTP_DONE;
}

/* Content-Length: digits only. */
static bool parse_length(hd_str s, int64_t *out) {
    if (s.len == 0 || s.len > 18) return false;
    *out = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') return false;
        *out = *out * 10 + (s.ptr[i] - '0');
    }
    return true;
}

/* What the headers say about framing and the connection. */
static enum hd_http_result interpret(hd_http_head *h) {
    int n_host = 0, n_coding = 0;
    h->content_length = -1;
    h->keep_alive = h->minor == 1;
    for (int i = 0; i < h->n_header; i++) {
        hd_str name = h->header[i].name, value = h->header[i].value;
        if (hd_http_name_is(name, "host")) n_host++;
        if (hd_http_name_is(name, "content-length")) {
            int64_t length;
            if (!parse_length(value, &length)) return bad(h, 400, "malformed Content-Length");
            if (h->content_length >= 0 && h->content_length != length)
                return bad(h, 400, "two different Content-Length");
            h->content_length = length;
        }
        if (hd_http_name_is(name, "transfer-encoding")) {
            n_coding++;
            if (!hd_http_name_is(value, "chunked"))
                return bad(h, 501, "only the transfer coding 'chunked' is supported");
            h->is_chunked = true;
        }
        if (hd_http_name_is(name, "connection")) {
            if (hd_http_list_has(value, "close")) h->keep_alive = false;
            if (h->minor == 0 && hd_http_list_has(value, "keep-alive")) h->keep_alive = true;
        }
        if (hd_http_name_is(name, "expect")) {
            if (!hd_http_name_is(value, "100-continue")) return bad(h, 417, "unknown expectation");
            h->expects_continue = h->minor == 1;
        }
    }
    if (n_coding > 1 || (h->is_chunked && h->content_length >= 0))
        return bad(h, 400, "ambiguous length of the body");
    if (h->is_chunked && h->minor == 0) return bad(h, 400, "chunked body in HTTP/1.0");
    if (n_host > 1 || (n_host == 0 && h->minor == 1))
        return bad(h, 400, "exactly one Host header is needed");
    return HD_HTTP_DONE;
}

/* Finds the empty line that ends the head: *end is the offset after it. Stops at any CR or LF that
 * is not a CRLF. */
static enum hd_http_result find_end(hd_str in, size_t start, size_t *n_scanned, size_t *end) {
    size_t i = *n_scanned > start ? *n_scanned : start;
    for (; i < in.len; i++) {
        if (in.ptr[i] == '\n') {
            if (i == start || in.ptr[i - 1] != '\r') return HD_HTTP_BAD;
            if (i >= start + 3 && in.ptr[i - 2] == '\n') {
                *end = i + 1;
                return HD_HTTP_DONE;
            }
        } else if (i > start && in.ptr[i - 1] == '\r') {
            return HD_HTTP_BAD;
        }
    }
    *n_scanned = i;
    return HD_HTTP_MORE;
}

enum hd_http_result hd_http_parse_head(hd_str in, size_t *n_scanned, hd_http_head *out,
                                       size_t *n_used) {
    out->n_header = 0;
    out->content_length = -1;
    out->is_chunked = out->keep_alive = out->expects_continue = false;
    out->method = out->target = out->path = out->query = (hd_str){"", 0};
    out->minor = 1;
    size_t start = 0, end = 0;
    while (start < 8 && in.len - start >= 2 && memcmp(in.ptr + start, "\r\n", 2) == 0) start += 2;
    enum hd_http_result r = find_end(in, start, n_scanned, &end);
    if (r == HD_HTTP_BAD) return bad(out, 400, "a line must end in CR LF");
    if ((r == HD_HTTP_MORE ? in.len : end) > HD_HTTP_HEAD_BYTES_MAX) {
        const char *line_end = memchr(in.ptr + start, '\n', in.len - start);
        if (!line_end) return bad(out, 414, "request target too long");
        return bad(out, 431, "header too large");
    }
    if (r == HD_HTTP_MORE) return r;
    hd_str rest = {in.ptr + start, end - start - 2};
    bool is_first = true;
    while (rest.len > 0) {
        hd_str line = cut(&rest, '\n');
        line.len--; /* the CR */
        r = is_first ? parse_request_line(line, out) : parse_header_line(line, out);
        if (r != HD_HTTP_DONE) return r;
        is_first = false;
    }
    *n_used = end;
    return interpret(out);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

size_t hd_http_unescape(char *s, size_t n) {
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        int high = s[i] == '%' && n - i > 2 ? hex_digit(s[i + 1]) : -1;
        int low = high >= 0 ? hex_digit(s[i + 2]) : -1;
        s[out++] = low >= 0 ? (char)(high * 16 + low) : s[i];
        if (low >= 0) i += 2;
    }
    return out;
}

/* ---- chunked bodies ---- */

enum chunk_state { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF, END };

/* One byte of the framing around the data. */
static enum hd_http_result frame_byte(hd_http_chunked *c, char b) {
    switch ((enum chunk_state)c->state) {
    case SIZE: {
        int digit = hex_digit(b);
        if (digit >= 0) {
            if (++c->n_digit > 15) return HD_HTTP_BAD;
            c->left = c->left * 16 + (uint64_t)digit;
            return HD_HTTP_MORE;
        }
        if (c->n_digit == 0 || (b != '\r' && b != ';' && !is_space(b))) return HD_HTTP_BAD;
        c->state = b == '\r' ? SIZE_LF : EXTENSION;
        return HD_HTTP_MORE;
    }
    case EXTENSION:
        if (b == '\r')
            c->state = SIZE_LF;
        else if (b == '\n' || ++c->n_ignored > HD_HTTP_EXTENSION_BYTES_MAX)
            return HD_HTTP_BAD;
        return HD_HTTP_MORE;
    case SIZE_LF:
        if (b != '\n') return HD_HTTP_BAD;
        c->n_ignored = c->n_line = 0;
        c->state = c->left > 0 ? DATA : TRAILER;
        return HD_HTTP_MORE;
    case DATA_CR: c->state = DATA_LF; return b == '\r' ? HD_HTTP_MORE : HD_HTTP_BAD;
    case DATA_LF:
        c->state = SIZE;
        c->n_digit = 0;
        return b == '\n' ? HD_HTTP_MORE : HD_HTTP_BAD;
    case TRAILER:
        if (b == '\r')
            c->state = TRAILER_LF;
        else if (b == '\n' || ++c->n_ignored > HD_HTTP_TRAILER_BYTES_MAX)
            return HD_HTTP_BAD;
        else
            c->n_line++;
        return HD_HTTP_MORE;
    case TRAILER_LF:
        if (b != '\n') return HD_HTTP_BAD;
        c->state = c->n_line > 0 ? TRAILER : END;
        c->n_line = 0;
        return c->state == END ? HD_HTTP_DONE : HD_HTTP_MORE;
    case DATA:
    case END: break;
    }
    return HD_HTTP_BAD;
}

enum hd_http_result hd_http_dechunk(hd_http_chunked *c, hd_str in, size_t *n_used, hd_buf *out) {
    size_t i = 0;
    enum hd_http_result r = HD_HTTP_MORE;
    while (i < in.len && r == HD_HTTP_MORE) {
        if (c->state != DATA) {
            r = frame_byte(c, in.ptr[i++]);
            continue;
        }
        size_t n = in.len - i < c->left ? in.len - i : (size_t)c->left;
        hd_buf_add(out, in.ptr + i, n);
        c->left -= n;
        i += n;
        if (c->left == 0) c->state = DATA_CR;
    }
    *n_used = i;
    return r;
}
