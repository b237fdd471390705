/* SPDX-License-Identifier: MIT */
#include "train/cpu/real.h"

#include "train/divergence.h"

/* The logarithm of the sum of e^x. */
static double log_sum(const real *x, int64_t count)
{
    real most = x[0];
    double sum = 0;
    for (int64_t c = 1; c < count; c++)
        most = x[c] > most ? x[c] : most;
    for (int64_t c = 0; c < count; c++)
        sum += (double)exp(x[c] - most);
    return log(sum) + (double)most;
}

void REAL(divergence)(const machine *on, matrix out, matrix p, matrix q)
{
    PARALLEL_ROWS(n, p)
    {
        const real *x = ROW(p, p, n), *y = ROW(q, p, n);
        const double all_p = log_sum(x, p.width), all_q = log_sum(y, p.width);
        double sum = 0;
        for (int64_t c = 0; c < p.width; c++)
            sum += divergence_term((double)x[c] - all_p, (double)y[c] - all_q);
        *ROW(out, p, n) = (real)sum;
    }
}
