/* SPDX-License-Identifier: MIT
 * Element by element: activations and gates. */
#include "train/cuda/sum.cuh"

static const matrix none = {};

static __device__ __forceinline__ float silu_slope(float x)
{
    const float s = sigmoid(x);
    return s * (1 + x * (1 - s));
}

extern "C" void cuda_silu(const machine *on, matrix y, matrix x)
{
    each(
        on, "silu", x, { view_of(y) }, { view_of(x) },
        [] __device__(float *to, const float *from) { to[0] = from[0] * sigmoid(from[0]); });
}

extern "C" void cuda_silu_back(const machine *on, matrix dx, matrix g, matrix x)
{
    each(
        on, "silu_back", x, { view_of(dx) }, { view_of(g), view_of(x) },
        [] __device__(float *to, const float *from) { to[0] = from[0] * silu_slope(from[1]); });
}

/* GELU as x sigmoid(2 slope (x + cubic x^3)), slope = sqrt(2 / pi): (1 + tanh u) / 2 = sigmoid(2 u). */
static constexpr float gelu_slope = 0.79788456080286535588f, gelu_cubic = 0.044715f;

/* The sigmoid, to a few units in the last place of float32; beyond e^126 its reciprocal is 0. */
static __device__ __forceinline__ float gelu_share(float x)
{
    return __fdividef(1, 1 + __expf(-2 * gelu_slope * (x + gelu_cubic * x * x * x)));
}

extern "C" void cuda_gelu(const machine *on, matrix y, matrix x)
{
    each(
        on, "gelu", x, { view_of(y) }, { view_of(x) },
        [] __device__(float *to, const float *from) { to[0] = from[0] * gelu_share(from[0]); });
}

extern "C" void cuda_gelu_back(const machine *on, matrix dx, matrix g, matrix x)
{
    each(
        on, "gelu_back", x, { view_of(dx) }, { view_of(g), view_of(x) },
        [] __device__(float *to, const float *from) {
            const float share = gelu_share(from[1]),
                        inner = 2 * gelu_slope * (1 + 3 * gelu_cubic * from[1] * from[1]);
            to[0] = from[0] * share * (1 + from[1] * (1 - share) * inner);
        });
}

extern "C" void cuda_gelu_erf(const machine *on, matrix y, matrix x)
{
    each(
        on, "gelu_erf", x, { view_of(y) }, { view_of(x) },
        [] __device__(float *to, const float *from) {
            to[0] = 0.5f * from[0] * (1 + erff(from[0] * 0.70710678118654752440f));
        });
}

extern "C" void cuda_relu(const machine *on, matrix y, matrix x)
{
    each(
        on, "relu", x, { view_of(y) }, { view_of(x) },
        [] __device__(float *to, const float *from) { to[0] = fmaxf(from[0], 0); });
}

extern "C" void cuda_gelu_erf_back(const machine *on, matrix dx, matrix g, matrix x)
{
    each(
        on, "gelu_erf_back", x, { view_of(dx) }, { view_of(g), view_of(x) },
        [] __device__(float *to, const float *from) {
            const float whole = 0.5f * (1 + erff(from[1] * 0.70710678118654752440f));
            to[0] = from[0] * (whole + from[1] * 0.39894228040143267794f * expf(-0.5f * from[1] * from[1]));
        });
}

extern "C" void cuda_relu_back(const machine *on, matrix dx, matrix g, matrix x)
{
    each(
        on, "relu_back", x, { view_of(dx) }, { view_of(g), view_of(x) },
        [] __device__(float *to, const float *from) { to[0] = from[1] > 0 ? from[0] : 0; });
}

extern "C" void cuda_output_gate(const machine *on, matrix y, matrix n, matrix z)
{
    each(
        on, "output_gate", n, { view_of(y) }, { view_of(n), view_of(z) },
        [] __device__(float *to, const float *from) { to[0] = from[0] * from[1] * sigmoid(from[1]); });
}

extern "C" void cuda_output_gate_back(const machine *on, matrix dn, matrix dz, matrix g, matrix n, matrix z)
{
    each(
        on, "output_gate_back", n, { view_of(dn), view_of(dz) }, { view_of(g), view_of(n), view_of(z) },
        [] __device__(float *to, const float *from) {
            to[0] = from[0] * from[2] * sigmoid(from[2]);
            to[1] = from[0] * from[1] * silu_slope(from[2]);
        });
}

static void sum_bias(const machine *on, matrix dbias, matrix da)
{
    if (dbias.data) cuda_column_sums(on, dbias, da, none, none);
}

extern "C" void cuda_sigmoid_gate(const machine *on, matrix y, matrix a, matrix bias, double least,
                                  double most)
{
    const float from_least = (float)least, range = (float)(most - least);
    each(on, "sigmoid_gate", a, { view_of(y) }, { view_of(a), view_of(bias) },
         [=] __device__(float *to, const float *x) { to[0] = from_least + range * sigmoid(x[0] + x[1]); });
}

extern "C" void cuda_sigmoid_gate_back(const machine *on, matrix da, matrix dbias, matrix g, matrix a,
                                       matrix bias, double least, double most)
{
    const float range = (float)(most - least);
    each(on, "sigmoid_gate_back", a, { view_of(da) }, { view_of(g), view_of(a), view_of(bias) },
         [=] __device__(float *to, const float *x) {
             const float s = sigmoid(x[1] + x[2]);
             to[0] = x[0] * range * s * (1 - s);
         });
    sum_bias(on, dbias, da);
}

extern "C" void cuda_forget_gate(const machine *on, matrix y, matrix a, matrix bias, double shift,
                                 double divisor)
{
    const float more = (float)shift, by = (float)divisor;
    each(on, "forget_gate", a, { view_of(y) }, { view_of(a), view_of(bias) },
         [=] __device__(float *to, const float *x) { to[0] = -softplus(-(x[0] + x[1] + more)) / by; });
}

extern "C" void cuda_forget_gate_back(const machine *on, matrix da, matrix dbias, matrix g, matrix a,
                                      matrix bias, double shift, double divisor)
{
    const float more = (float)shift, by = (float)divisor;
    each(on, "forget_gate_back", a, { view_of(da) }, { view_of(g), view_of(a), view_of(bias) },
         [=] __device__(float *to, const float *x) { to[0] = x[0] * sigmoid(-(x[1] + x[2] + more)) / by; });
    sum_bias(on, dbias, da);
}

extern "C" void cuda_decay_gate(const machine *on, matrix y, matrix delta, matrix a, matrix rate, matrix bias)
{
    each(
        on, "decay_gate", a, { view_of(y), view_of(delta) },
        { view_of(a), view_shared(rate, a.width / rate.width), view_of(bias) },
        [] __device__(float *to, const float *x) {
            to[1] = softplus(x[0] + x[2]);
            to[0] = -expf(x[1]) * to[1];
        });
}

extern "C" void cuda_decay_gate_back(const machine *on, matrix da, matrix drate, matrix dbias, matrix g,
                                     matrix gdelta, matrix y, matrix a, matrix rate, matrix bias)
{
    const int64_t part = a.width / rate.width;
    /* The result is e^rate times something: its derivative by the rate is itself. */
    sum_rows(
        on, "decay_gate_back", drate, a, { view_of(g), view_of(y) }, part, false,
        [] __device__(const float *x) { return x[0] * x[1]; });
    each(on, "decay_gate_back", a, { view_of(da) },
         { view_of(g), view_of(gdelta), view_of(a), view_shared(rate, part), view_of(bias) },
         [] __device__(float *to, const float *x) {
             to[0] = (x[1] - expf(x[3]) * x[0]) * sigmoid(x[2] + x[4]);
         });
    sum_bias(on, dbias, da);
}

extern "C" void cuda_scale_rows(const machine *on, matrix y, matrix x, matrix s)
{
    each(
        on, "scale_rows", x, { view_of(y) }, { view_of(x), view_shared(s, x.width) },
        [] __device__(float *to, const float *from) { to[0] = from[1] * from[0]; });
}

extern "C" void cuda_add_skip(const machine *on, matrix y, matrix x, matrix skip)
{
    each(
        on, "add_skip", x, { view_of(y) },
        { view_of(y), view_of(x), view_shared(skip, x.width / skip.width) },
        [] __device__(float *to, const float *from) { to[0] = from[0] + from[2] * from[1]; });
}

extern "C" void cuda_add_skip_back(const machine *on, matrix dx, matrix dskip, matrix g, matrix x,
                                   matrix skip)
{
    sum_rows(on, "add_skip_back", dskip, x, { view_of(g), view_of(x) }, x.width / skip.width, false,
             [] __device__(const float *from) { return from[0] * from[1]; });
    cuda_add_skip(on, dx, g, skip);
}

extern "C" void cuda_softplus(const machine *on, matrix y, matrix x, double least)
{
    const float from_least = (float)least;
    each(on, "softplus", x, { view_of(y) }, { view_of(x) },
         [=] __device__(float *to, const float *from) { to[0] = from_least + softplus(from[0]); });
}

extern "C" void cuda_softplus_back(const machine *on, matrix dx, matrix g, matrix x)
{
    each(
        on, "softplus_back", x, { view_of(dx) }, { view_of(g), view_of(x) },
        [] __device__(float *to, const float *from) { to[0] = from[0] * sigmoid(from[1]); });
}

/* The least softplus whose square a float32 still has. */
static constexpr float least_softplus = 1e-18f;

extern "C" void cuda_inverse_softplus(const machine *on, matrix y, matrix x)
{
    each(
        on, "inverse_softplus", x, { view_of(y) }, { view_of(x) },
        [] __device__(float *to, const float *from) {
            to[0] = 1 / fmaxf(softplus(from[0]), least_softplus);
        });
}

extern "C" void cuda_inverse_softplus_back(const machine *on, matrix dx, matrix g, matrix x)
{
    each(
        on, "inverse_softplus_back", x, { view_of(dx) }, { view_of(g), view_of(x) },
        [] __device__(float *to, const float *from) {
            const float y = 1 / fmaxf(softplus(from[1]), least_softplus);
            to[0] = -from[0] * sigmoid(from[1]) * y * y;
        });
}
