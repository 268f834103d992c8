/* A raw HTTP client for tests: bytes out, answers in, with time limits. */
#ifndef HD_TEST_CLIENT_H
#define HD_TEST_CLIENT_H

#include "base/buf.h"
#include "support/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int dial(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) fail_msg("connect: %s", strerror(errno));
    return fd;
}

static void put_n(int fd, const char *p, size_t n) {
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) fail_msg("send: %s", strerror(errno));
        p += k;
        n -= (size_t)k;
    }
}
static void put(int fd, const char *text) { put_n(fd, text, strlen(text)); }

/* More bytes within 5 s: their number, 0 at the end, -1 for a reset, -2 for nothing in time. */
static int more(int fd, hd_buf *b) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char bytes[65536];
    if (poll(&p, 1, 5000) <= 0) return -2;
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n > 0) hd_buf_add(b, bytes, (size_t)n);
    return n < 0 ? -1 : (int)n;
}

/* Reads until `text` has come; false at the end or after 5 s. The connection's bytes pile up in
 * *b. */
static bool await_text(int fd, hd_buf *b, const char *text) {
    while (!(b->len && strstr(b->ptr, text)))
        if (more(fd, b) <= 0) return false;
    return true;
}

typedef struct answer {
    int code;
    char head[8192];
    hd_buf body; /* decoded */
    bool is_whole;
} answer;

static const char *header(const answer *a, const char *name) {
    static _Thread_local char value[512];
    char key[64];
    snprintf(key, sizeof key, "\r\n%s: ", name);
    const char *at = strcasestr(a->head, key);
    if (!at) return "";
    at += strlen(key);
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\r"), at);
    return value;
}

/* Takes one answer off the connection (its bytes so far in *b; the rest stays there). */
static answer take_answer(int fd, hd_buf *b, bool is_head) {
    answer a = {0};
    hd_buf_init(&a.body, 64 << 20);
    if (!await_text(fd, b, "\r\n\r\n")) return a;
    size_t n = (size_t)(strstr(b->ptr, "\r\n\r\n") - b->ptr) + 4;
    snprintf(a.head, sizeof a.head, "%.*s", (int)n, b->ptr);
    a.code = (int)strtol(a.head + 9, NULL, 10);
    hd_buf_drop_front(b, n);
    if (a.code == 100) {
        hd_buf_fini(&a.body);
        return take_answer(fd, b, is_head);
    }
    if (is_head || a.code == 204 || a.code == 304) {
        a.is_whole = true;
    } else if (strcmp(header(&a, "Transfer-Encoding"), "chunked") == 0) {
        for (size_t size = 1; size > 0;) {
            if (!await_text(fd, b, "\r\n")) return a;
            size = (size_t)strtoul(b->ptr, NULL, 16);
            hd_buf_drop_front(b, (size_t)(strstr(b->ptr, "\r\n") - b->ptr) + 2);
            while (b->len < size + 2)
                if (more(fd, b) <= 0) return a;
            hd_buf_add(&a.body, b->ptr, size);
            hd_buf_drop_front(b, size + 2);
        }
        a.is_whole = true;
    } else if (*header(&a, "Content-Length")) {
        size_t size = (size_t)strtoul(header(&a, "Content-Length"), NULL, 10);
        while (b->len < size)
            if (more(fd, b) <= 0) return a;
        hd_buf_add(&a.body, b->ptr, size);
        hd_buf_drop_front(b, size);
        a.is_whole = true;
    } else {
        int k;
        while ((k = more(fd, b)) > 0) {
        }
        hd_buf_add(&a.body, b->ptr, b->len);
        hd_buf_clear(b);
        a.is_whole = k == 0;
    }
    return a;
}

static const char *text_of(const answer *a) { return a->body.len ? a->body.ptr : ""; }
static void drop_answer(answer *a) { hd_buf_fini(&a->body); }

/* One request on a connection of its own. */
static answer ask_raw(int port, const char *request, size_t n) {
    int fd = dial(port);
    hd_buf b;
    hd_buf_init(&b, 64 << 20);
    put_n(fd, request, n);
    answer a = take_answer(fd, &b, strncmp(request, "HEAD", 4) == 0);
    hd_buf_fini(&b);
    close(fd);
    return a;
}

static char *post_text(const char *path, const char *extra, const char *body) {
    static _Thread_local char request[1 << 16];
    int n = snprintf(request, sizeof request,
                     "POST %s HTTP/1.1\r\nHost: t\r\n%sContent-Length: %zu\r\n\r\n%s", path, extra,
                     strlen(body), body);
    assert_true(n > 0 && (size_t)n < sizeof request);
    return request;
}

static answer ask(int port, const char *request) { return ask_raw(port, request, strlen(request)); }

#endif
