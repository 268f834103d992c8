// Weights through shared memory: a warp's runs of them are copied to a ring of its own, as many
// ahead as it has room, through items and tiles. The plan around it is stream.cuh's.
#pragma once

#include "cuda/stream.cuh"

// A warp's pieces of the inputs.
struct weight_run {
    int first, n;
};
static __device__ __forceinline__ weight_run run_of(int n_piece) {
    int warp = (int)threadIdx.x / 32, first = n_piece * warp / SLICES;
    return {first, n_piece * (warp + 1) / SLICES - first};
}

// What a warp copies, in the order in which it multiplies: from the first of `place` that has not
// been copied on. P: RING pieces of BYTES each; pieces_of() inputs; copy() one of the outputs g and
// g + 8.
template <class P> struct weights_ahead {
    stream_place place;
    weight_run run;
    int at; // of the run
    const unsigned char *row[2];
    uint32_t ring;
    int slot;

    __device__ __forceinline__ explicit weights_ahead(uint32_t ring_at)
        : run{0, 0}, at(0), row{nullptr, nullptr}, ring(ring_at), slot(0) {}
    // Finds the next item that this warp has pieces of.
    __device__ __forceinline__ void settle(const stream_args &a) {
        for (at = 0; place.is_valid(); (void)place.next(a)) {
            const hd_cuda_mul &m = a.m[place.product];
            run = run_of(P::pieces_of(m.w.n_in));
            if (run.n == 0) continue;
            item_rows(m, place, row);
            return;
        }
    }
    __device__ __forceinline__ void copy(const stream_args &a) {
        if (place.is_valid()) {
            P::copy(row, run.first + at, a.m[place.product].w, ring + (uint32_t)(slot * P::BYTES));
            if (++at == run.n) {
                (void)place.next(a);
                settle(a);
            }
        }
        slot = slot + 1 == P::RING ? 0 : slot + 1;
        copy_commit();
    }
    // Fills the ring, from where the block begins on: what earlier kernels do not write, dense
    // products' weights, before they have ended.
    __device__ __forceinline__ void begin(const stream_args &a, stream_place *here) {
        int n_known = a.m[0].tile != nullptr ? 0 : a.n == 2 && a.m[1].tile == nullptr ? 2 : 1;
        here->n_product = n_known;
        here->enter(a, 0);
        place = *here;
        settle(a);
        int n_early = place.is_valid() ? min(P::RING, run.n) : 0;
        for (int i = 0; i < n_early; i++) copy(a);
        wait_for_previous();
        bool has_here = here->is_valid(), has_ahead = place.is_valid();
        here->n_product = place.n_product = a.n;
        if (!has_here) here->enter(a, n_known);
        if (!has_ahead) {
            place = *here;
            if (has_here) place.enter(a, n_known);
            settle(a);
        }
        for (int i = n_early; i < P::RING; i++) copy(a);
    }
};
