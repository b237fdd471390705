/* SPDX-License-Identifier: MIT
 * Projections of positive random features from a seed. Each kind has, of each row by itself, the distribution
 * N(0, I) or close to it; they differ in how rows depend on each other (docs/features.md). */
#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/size.h"

#include "random/random.h"

#include <math.h>
#include <stdlib.h>

static const double pi = 3.14159265358979323846;

/* Random numbers of a head, by what they are for. */
typedef enum use { USE_ROWS, USE_SIGNS, USE_LENGTHS, USE_ORDER, USES } use;

static random_stream stream_of(uint64_t seed, int64_t head, use what)
{
    return (random_stream){ seed, (uint64_t)head * USES + what };
}

/* ------------------------------------------------------------------ orthogonal rows */

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* Normal rows become orthogonal, each as long as it was: Gram-Schmidt, twice, on unit rows, whose directions
 * are then those of a random rotation, independent of the lengths. rows <= n. */
static void make_orthogonal(double *z, int64_t rows, int64_t n)
{
    double length[LOAM_MAX_DIM];
    for (int64_t r = 0; r < rows; r++) {
        double *x = z + r * n;
        length[r] = sqrt(dot(x, x, n));
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t before = 0; before < r; before++) {
                const double along = dot(x, z + before * n, n);
                for (int64_t c = 0; c < n; c++)
                    x[c] -= along * z[before * n + c];
            }
            const double size = sqrt(dot(x, x, n));
            for (int64_t c = 0; c < n; c++)
                x[c] /= size;
        }
    }
    for (int64_t e = 0; e < rows * n; e++)
        z[e] *= length[e / n];
}

/* ------------------------------------------------------------------ lengths: quantiles of chi */

/* P(a, x), the regularised lower incomplete gamma function of a = n / 2: by its series below the mean, by its
 * continued fraction (Lentz) above. */
static double gamma_below(int64_t n, double x)
{
    const double a = (double)n / 2;
    double log_gamma = n % 2 ? log(pi) / 2 : 0;
    for (int64_t twice = n % 2 ? 1 : 2; twice < n; twice += 2)
        log_gamma += log((double)twice / 2);
    if (!(x > 0)) return 0;
    const double front = exp(a * log(x) - x - log_gamma), least = 1e-300;
    if (x < a + 1) {
        double term = 1 / a, sum = term;
        for (int i = 1; i < 4000 && term > 1e-17 * sum; i++)
            sum += term *= x / (a + i);
        return front * sum;
    }
    double b = x + 1 - a, c = 1 / least, d = 1 / b, h = d, step = 0;
    for (int i = 1; i < 4000 && fabs(step - 1) > 1e-16; i++) {
        const double term = i * (a - i);
        b += 2;
        d = term * d + b, d = fabs(d) < least ? 1 / least : 1 / d;
        c = b + term / c, c = fabs(c) < least ? least : c;
        h *= step = c * d;
    }
    return 1 - front * h;
}

/* The length below which lies the part p of the lengths of N(0, I) of n channels. */
static double chi_quantile(int64_t n, double p)
{
    double low = 0, high = sqrt((double)n) + 40;
    for (int i = 0; i < 64; i++) {
        const double mid = (low + high) / 2;
        *(gamma_below(n, mid * mid / 2) < p ? &low : &high) = mid;
    }
    return (low + high) / 2;
}

/* Row m: row m mod n of the DCT-II, with signs of the channels for each n rows, as long as the quantile of a
 * random point of the stratum that it drew. */
static void draw_dct(uint64_t seed, int64_t head, int64_t features, int64_t n, double *z)
{
    int32_t table[LOAM_MAX_DIM], order[LOAM_MAX_DIM];
    random_distinct(stream_of(seed, head, USE_ORDER), features, features, table, order);
    for (int64_t m = 0; m < features; m++) {
        const int64_t k = m % n;
        double within;
        random_uniforms(stream_of(seed, head, USE_LENGTHS), (uint64_t)m, 1, &within);
        const double length = chi_quantile(n, (order[m] + within) / (double)features);
        for (int64_t c = 0; c < n; c++) {
            uint64_t sign;
            random_words(stream_of(seed, head, USE_SIGNS), (uint64_t)(m / n * n + c), 1, &sign);
            z[m * n + c] = length * sqrt((k ? 2 : 1) / (double)n) *
                           cos(pi * ((double)c + 0.5) * (double)k / (double)n) * (sign >> 63 ? -1 : 1);
        }
    }
}

/* ------------------------------------------------------------------ a head */

static void draw_head(loam_projection projection, uint64_t seed, int64_t head, int64_t features, int64_t n,
                      double *z)
{
    if (projection == LOAM_PROJECTION_DCT) {
        draw_dct(seed, head, features, n, z);
        return;
    }
    random_normals(stream_of(seed, head, USE_ROWS), 0, features * n, z);
    for (int64_t m = 0; projection == LOAM_PROJECTION_ORTHOGONAL && m < features; m += n)
        make_orthogonal(z + m * n, features - m < n ? features - m : n, n);
}

static loam_status check(loam_projection projection, int64_t heads, int64_t features, int64_t channels,
                         loam_dtype dtype, const loam_view *z, loam_error *error)
{
    REQUIRE((int)projection >= 0 && projection <= LOAM_PROJECTION_DCT, error, LOAM_EARG,
            "projection: %d is none of its 3 values", (int)projection);
    REQUIRE(heads >= 0 && heads <= INT32_MAX, error, LOAM_ESHAPE, "heads: %lld, expected 0 to %d",
            (long long)heads, INT32_MAX);
    REQUIRE(features >= 1 && features <= LOAM_MAX_DIM, error, LOAM_ESHAPE, "features: %lld, expected 1 to %d",
            (long long)features, LOAM_MAX_DIM);
    REQUIRE(channels >= 1 && channels <= LOAM_MAX_DIM, error, LOAM_ESHAPE, "channels: %lld, expected 1 to %d",
            (long long)channels, LOAM_MAX_DIM);
    REQUIRE(dtype == LOAM_F32 || dtype == LOAM_F64, error, LOAM_EARG, "dtype: %d, expected f32 or f64",
            (int)dtype);
    REQUIRE(z && z->data, error, LOAM_EARG, "z: NULL");
    REQUIRE((features == 1 || llabs(z->token) >= channels) && (heads <= 1 || llabs(z->head) >= channels),
            error, LOAM_ESHAPE,
            "z: strides %lld of features, %lld of heads, expected at least %lld: rows overlap",
            (long long)z->token, (long long)z->head, (long long)channels);
    return LOAM_OK;
}

loam_status loam_projection_draw(loam_projection projection, uint64_t seed, int64_t heads, int64_t features,
                                 int64_t channels, loam_dtype dtype, const loam_view *z, loam_error *error)
{
    TRY(check(projection, heads, features, channels, dtype, z, error));
    double *one = calloc((size_t)(features * channels), sizeof *one);
    REQUIRE(one, error, LOAM_EMEMORY, "projection: out of memory");
    for (int64_t h = 0; h < heads; h++) {
        draw_head(projection, seed, h, features, channels, one);
        for (int64_t e = 0; e < features * channels; e++)
            element_store(z->data, dtype, h * z->head + e / channels * z->token + e % channels, one[e]);
    }
    free(one);
    return loam_succeed(error);
}
