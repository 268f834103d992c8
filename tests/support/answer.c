/* Answers: written on the engine's thread, waited for on the test's. */
#include "support/answer.h"

#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;

static bool receive(void *user, const hd_event *ev) {
    test_answer *a = user;
    if (ev->token >= 0 && a->n < TEST_ANSWER_MAX) {
        a->logprob[a->n] = ev->logprob;
        a->token[a->n++] = ev->token;
    }
    if (ev->finish == HD_FINISH_NONE) return true;
    a->finish = ev->finish;
    a->status = ev->status;
    if (ev->error) snprintf(a->error, sizeof a->error, "%s", ev->error);
    pthread_mutex_lock(&lock);
    a->is_done = true;
    pthread_cond_broadcast(&done);
    pthread_mutex_unlock(&lock);
    return true;
}

void test_answer_expect(test_answer *a, hd_request *r) {
    *a = (test_answer){0};
    r->on_event = receive;
    r->user = a;
}

void test_answer_await(test_answer *a) {
    pthread_mutex_lock(&lock);
    while (!a->is_done) pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
}
