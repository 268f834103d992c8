/* The repacked copies of weights, kept in a folder: a model that was loaded once is mapped from
 * there, in no time, instead of being repacked.
 *
 * One file a model and layout (file/image.h). Its key is hd_checkpoint_identity, the device's
 * layout and the program's version, so a model whose files changed, or another release, which may
 * read them otherwise, makes another. A file that is wrong
 * is told in one line and made anew; one that cannot be written, too, and does no harm. */
#ifndef HD_MODEL_REPACK_H
#define HD_MODEL_REPACK_H

#include "model/arch.h"

/* Opens the model's image when opt.repack_cache names a folder that has it. HD_E_UNSUPPORTED: no
 * device of the model repacks. Before weights are bound. */
HD_MUST_CHECK hd_status hd_repack_open(hd_model *m);
/* Sets w->prepared to the image's copy; false when it has none. */
bool hd_repack_find(const hd_model *m, const hd_dev *dev, hd_weight *w);
/* Writes the image of the bound weights, unless all of them came from one. */
void hd_repack_save(const hd_model *m, void (*on_progress)(void *user, int done, int all),
                    void *user);

#endif
