/* Any bytes as an importance matrix: parsed or refused with a line; of a parsed one every mean can
 * be found and read, and is a finite square. */
#include "model/imatrix.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void find(const hd_imatrix *m, const char *name, int64_t n_in, int64_t n_mat) {
    hd_canon_tensor t = {.n_dim = 3, .ne = {n_in, 2, n_mat, 1}};
    hd_importance of;
    snprintf(t.name, sizeof t.name, "%s", name);
    if (hd_imatrix_find(m, &t, &of) != HD_OK) {
        HD_ASSERT(strstr(hd_error_text(), "columns"));
        return;
    }
    for (int mat = 0; mat < (int)n_mat; mat++) {
        const float *row = hd_importance_row(&of, mat);
        for (int64_t i = 0; row && i < n_in; i++) HD_ASSERT(isfinite(row[i]) && row[i] >= 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_imatrix *m;
    if (hd_imatrix_parse(data, size, "input", &m) != HD_OK) {
        HD_ASSERT(!m && hd_error_text()[0] && !strchr(hd_error_text(), '\n'));
        return 0;
    }
    HD_ASSERT(hd_imatrix_count(m) > 0 && hd_imatrix_dataset(m) != NULL);
    for (int64_t n_mat = 1; n_mat <= 4; n_mat++) {
        find(m, "blk.0.attn_q_a.weight", 4, n_mat);
        find(m, "blk.0.ffn_up_exps.weight", 2, n_mat);
        find(m, "x", 1, n_mat);
    }
    hd_imatrix_close(m);
    return 0;
}
