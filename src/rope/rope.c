/* SPDX-License-Identifier: MIT
 * Rotary positions: the checks, and the rotation in host memory. The angles of a token are computed once for
 * all of its heads. */
#include "src/rope/rope.h"

#include "src/base/size.h"
#include "src/base/stamp.h"
#include "src/simd/convert.h"

#include <math.h>
#include <omp.h>

enum { PLANES = LOAM_MAX_DIM / 2, MOST_THREADS = 1024 };

static loam_status check_counts(const loam_rope *r, loam_error *error)
{
    const int64_t counts[] = { r->batch, r->heads, r->tokens };
    static const char *const names[] = { "batch", "heads", "tokens" };
    for (int n = 0; n < 3; n++) {
        REQUIRE(counts[n] >= 0 && counts[n] <= INT32_MAX, error, LOAM_ESHAPE, "%s: %lld, expected 0 to %d",
                names[n], (long long)counts[n], INT32_MAX);
    }
    REQUIRE(r->channels >= 1 && r->channels <= LOAM_MAX_DIM, error, LOAM_ESHAPE,
            "channels: %lld, expected 1 to %d", (long long)r->channels, LOAM_MAX_DIM);
    REQUIRE(r->dim >= 0 && r->dim <= r->channels && r->dim % 2 == 0 && (r->dim > 0 || r->channels % 2 == 0),
            error, LOAM_ESHAPE,
            "dim: %lld of %lld channels, expected an even number of them, or 0 for all of an even number",
            (long long)r->dim, (long long)r->channels);
    const size_t rows = size_mul(size_mul((size_t)r->batch, (size_t)r->heads), (size_t)r->tokens);
    REQUIRE(size_mul(rows, LOAM_MAX_DIM * sizeof(double)) < INT64_MAX, error, LOAM_EMEMORY,
            "batch x heads x tokens: too large to address");
    return LOAM_OK;
}

static loam_status check_options(const loam_rope *r, loam_error *error)
{
    REQUIRE((int)r->dtype >= LOAM_F32 && (int)r->dtype <= LOAM_F64, error, LOAM_EARG,
            "dtype: %d is none of its 4 values", (int)r->dtype);
    REQUIRE((int)r->layout >= LOAM_ROPE_HALF && (int)r->layout <= LOAM_ROPE_INTERLEAVED, error, LOAM_EARG,
            "layout: %d is none of its 2 values", (int)r->layout);
    REQUIRE((int)r->backend >= LOAM_BACKEND_AUTO && (int)r->backend <= LOAM_BACKEND_CUDA, error, LOAM_EARG,
            "backend: %d is none of its 4 values", (int)r->backend);
    REQUIRE(r->inverse == 0 || r->inverse == 1, error, LOAM_EARG, "inverse: %d, expected 0 or 1", r->inverse);
    REQUIRE(isfinite(r->base) && r->base > 1, error, LOAM_EVALUE, "base: %g, expected a finite number > 1",
            r->base);
    REQUIRE(r->threads >= 0 && r->threads <= MOST_THREADS, error, LOAM_EVALUE,
            "threads: %d, expected 0 to %d", r->threads, MOST_THREADS);
    return check_counts(r, error);
}

static loam_status check_views(const loam_rope *r, const loam_const_view *from, const loam_view *to,
                               loam_error *error)
{
    const int64_t counts[] = { r->tokens, r->heads, r->batch },
                  strides[] = { to->token, to->head, to->batch };
    static const char *const axes[] = { "token", "head", "batch" };
    REQUIRE(from->data, error, LOAM_EARG, "from: NULL");
    REQUIRE(to->data, error, LOAM_EARG, "to: NULL");
    for (int axis = 0; axis < 3; axis++) {
        const int64_t size = strides[axis] < 0 ? -strides[axis] : strides[axis];
        REQUIRE(counts[axis] <= 1 || size >= r->channels, error, LOAM_ESHAPE,
                "to: %s stride %lld, expected at least %lld so that rows do not overlap", axes[axis],
                (long long)strides[axis], (long long)r->channels);
    }
    REQUIRE(from->data != to->data ||
                (from->batch == to->batch && from->head == to->head && from->token == to->token),
            error, LOAM_ESHAPE,
            "to: strides %lld, %lld, %lld in the memory of from, expected its %lld, %lld, %lld",
            (long long)to->batch, (long long)to->head, (long long)to->token, (long long)from->batch,
            (long long)from->head, (long long)from->token);
    return LOAM_OK;
}

/* Cosine and sine of the angle by which a plane of a token is rotated. */
typedef struct rotation {
    double cosine, sine;
} rotation;

static void rotate_double_row(const loam_rope *r, const rotation *rotations, const double *from, double *to)
{
    for (int64_t c = 0; c < r->dim / 2; c++) {
        const rope_plane at = rope_plane_of(r, c);
        const double x = from[at.x], y = from[at.y];
        to[at.x] = x * rotations[c].cosine - y * rotations[c].sine;
        to[at.y] = x * rotations[c].sine + y * rotations[c].cosine;
    }
    for (int64_t c = r->dim; from != to && c < r->channels; c++)
        to[c] = from[c];
}

static void rotate_float_row(const loam_rope *r, const rotation *rotations, float *row)
{
    for (int64_t c = 0; c < r->dim / 2; c++) {
        const rope_plane at = rope_plane_of(r, c);
        const double x = (double)row[at.x], y = (double)row[at.y];
        row[at.x] = (float)(x * rotations[c].cosine - y * rotations[c].sine);
        row[at.y] = (float)(x * rotations[c].sine + y * rotations[c].cosine);
    }
}

static void rotate_token(const loam_rope *r, const rotation *rotations, const loam_const_view *from,
                         const loam_view *to, int64_t b, int64_t t)
{
    float row[LOAM_MAX_DIM];
    for (int64_t h = 0; h < r->heads; h++) {
        const int64_t in = ROPE_AT(from, b, h, t), out = ROPE_AT(to, b, h, t);
        if (r->dtype == LOAM_F64) {
            rotate_double_row(r, rotations, (const double *)from->data + in, (double *)to->data + out);
        } else {
            load_floats(row, from->data, r->dtype, in, r->channels);
            rotate_float_row(r, rotations, row);
            store_floats(to->data, r->dtype, out, row, r->channels);
        }
    }
}

static void find_frequencies(const loam_rope *r, rope_frequencies *frequencies)
{
    for (int64_t c = 0; c < r->dim / 2; c++)
        frequencies->plane[c] = pow(r->base, -2 * (double)c / (double)r->dim);
}

static void apply(const loam_rope *r, const rope_frequencies *frequencies, const loam_const_view *from,
                  const loam_view *to)
{
#pragma omp parallel for collapse(2) num_threads(r->threads)
    for (int64_t b = 0; b < r->batch; b++) {
        for (int64_t t = 0; t < r->tokens; t++) {
            const double position = (double)rope_position(r, b, t) * (r->inverse ? -1 : 1);
            rotation rotations[PLANES];
            for (int64_t c = 0; c < r->dim / 2; c++) {
                const double angle = position * frequencies->plane[c];
                rotations[c] = (rotation){ cos(angle), sin(angle) };
            }
            rotate_token(r, rotations, from, to, b, t);
        }
    }
}

loam_status loam_rope_apply(const loam_rope *rope, const loam_const_view *from, const loam_view *to,
                            loam_error *error)
{
    REQUIRE(rope && from && to, error, LOAM_EARG, "%s: NULL", !rope ? "rope" : !from ? "from" : "to");
    TRY(stamp_check(&rope->stamp, sizeof *rope, sizeof *to, "rope", "loam_rope_default", error));
    TRY(check_options(rope, error));
    loam_rope r = *rope;
    r.dim = r.dim ? r.dim : r.channels;
    if (!r.threads) r.threads = omp_get_max_threads() < MOST_THREADS ? omp_get_max_threads() : MOST_THREADS;
    if (r.batch == 0 || r.heads == 0 || r.tokens == 0) return loam_succeed(error);
    TRY(check_views(&r, from, to, error));
    rope_frequencies frequencies = { 0 };
    find_frequencies(&r, &frequencies);
    if (r.backend == LOAM_BACKEND_CUDA) {
#ifdef LOAM_HAVE_CUDA
        TRY(rope_apply_cuda(&r, &frequencies, from, to, error));
#else
        return loam_fail(error, LOAM_EUNSUPPORTED,
                         "backend: cuda is not in this build of the library (LOAM_CUDA)");
#endif
    } else {
        apply(&r, &frequencies, from, to);
    }
    return loam_succeed(error);
}
