/* SPDX-License-Identifier: MIT
 * Products by cuBLASLt, which is found at run time. The bits of a model do not depend on how many stand
 * beside it: the algorithm of a product is chosen for its shape, of one model, once; it never splits a sum.
 * Where the result is small and the sum long, as of gradients of weights, the sum is split here, into pieces
 * that depend on the shape alone, which are added up in their order. */
#include "train/cuda/sum.cuh"
#include "train/cuda/weights.cuh"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cuBLASLt reads matrices by columns: what is a row here is a column there, and out^T = b^T a^T. */

#define LT_FUNCTIONS(X) \
    X(Create) \
    X(Destroy) \
    X(GetVersion) \
    X(Matmul) \
    X(MatmulAlgoConfigGetAttribute) \
    X(MatmulAlgoGetHeuristic) \
    X(MatmulDescCreate) \
    X(MatmulDescDestroy) \
    X(MatmulDescSetAttribute) \
    X(MatmulPreferenceCreate) \
    X(MatmulPreferenceDestroy) \
    X(MatmulPreferenceSetAttribute) \
    X(MatrixLayoutCreate) \
    X(MatrixLayoutDestroy) \
    X(MatrixLayoutSetAttribute)

typedef struct lt_functions {
#define MEMBER(name) decltype(&cublasLt##name) name;
    LT_FUNCTIONS(MEMBER)
#undef MEMBER
} lt_functions;

/* A matrix of a product: its extent by rows, strides in elements, and the largest power of two up to 16 that
 * divides the address in bytes of each of its rows. */
typedef struct factor {
    int64_t rows, width, row, aligned;
} factor;

typedef struct lt_shape {
    factor a, b, out;
    int64_t narrow_operands, narrow_out, left, right; /* bfloat16; transposed */
    int64_t onto;                                     /* a base is added */
    int64_t pieces;                                   /* that the sum is split into */
    int64_t a_piece, b_piece, out_piece;              /* strides of pieces */
} lt_shape;

typedef struct lt_batch {
    int64_t count, a, b, out; /* strides */
} lt_batch;

typedef struct lt_plan {
    lt_shape shape;
    lt_batch batch;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, out;
    cublasLtMatmulAlgo_t algorithm;
} lt_plan;

struct products {
    lt_functions call;
    void *library;
    cublasLtHandle_t handle;
    lt_plan *plan;
    int count, room;
};

/* ---- the library */

static bool find_functions(products *p, loam_error *error)
{
    char names[3][32];
    snprintf(names[0], sizeof names[0], "libcublasLt.so.%d", CUDART_VERSION / 1000);
    snprintf(names[1], sizeof names[1], "libcublasLt.so.%d", CUDART_VERSION / 1000 - 1);
    snprintf(names[2], sizeof names[2], "libcublasLt.so");
    for (int i = 0; i < 3 && !p->library; i++)
        p->library = dlopen(names[i], RTLD_NOW | RTLD_NODELETE);
    bool found = p->library;
#define FIND(name) \
    found = found && (p->call.name = (decltype(&cublasLt##name))dlsym(p->library, "cublasLt" #name));
    LT_FUNCTIONS(FIND)
#undef FIND
    if (!found && error) {
        error->status = LOAM_EUNSUPPORTED;
        snprintf(error->text, sizeof error->text, "products on a GPU need cuBLASLt: no %s that can be loaded",
                 names[0]);
    }
    return found;
}

products *products_open(loam_error *error)
{
    products *p = (products *)calloc(1, sizeof *p);
    if (!p) {
        if (error) error->status = LOAM_EMEMORY, strcpy(error->text, "out of memory for products");
        return NULL;
    }
    if (find_functions(p, error)) {
        const cublasStatus_t status = p->call.Create(&p->handle);
        if (status == CUBLAS_STATUS_SUCCESS) return p;
        p->handle = NULL;
        if (error) {
            error->status = LOAM_EUNSUPPORTED;
            snprintf(error->text, sizeof error->text, "cublasLtCreate failed with status %d", (int)status);
        }
    }
    products_close(p);
    return NULL;
}

static void forget(products *p, lt_plan *plan)
{
    if (plan->how) (void)p->call.MatmulDescDestroy(plan->how);
    if (plan->a) (void)p->call.MatrixLayoutDestroy(plan->a);
    if (plan->b) (void)p->call.MatrixLayoutDestroy(plan->b);
    if (plan->out) (void)p->call.MatrixLayoutDestroy(plan->out);
}

void products_close(products *p)
{
    if (!p) return;
    for (int i = 0; i < p->count; i++)
        forget(p, &p->plan[i]);
    free(p->plan);
    if (p->handle) (void)p->call.Destroy(p->handle);
    if (p->library) (void)dlclose(p->library);
    free(p);
}

size_t products_version(const products *p) { return p->call.GetVersion(); }

/* ---- plans */

static cublasStatus_t set_batch(const products *p, cublasLtMatrixLayout_t layout, int64_t count,
                                int64_t stride)
{
    const int32_t batch = (int32_t)count;
    const cublasStatus_t status = p->call.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                                   &batch, sizeof batch);
    if (status) return status;
    return p->call.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                            sizeof stride);
}

static cublasStatus_t lay_out(const products *p, cublasLtMatrixLayout_t *layout, factor f, bool narrow,
                              int64_t count, int64_t stride)
{
    const cublasStatus_t status = p->call.MatrixLayoutCreate(layout, narrow ? CUDA_R_16BF : CUDA_R_32F,
                                                             (uint64_t)f.width, (uint64_t)f.rows, f.row);
    return status ? status : set_batch(p, *layout, count, stride);
}

static cublasStatus_t describe(const products *p, lt_plan *plan)
{
    const lt_shape *s = &plan->shape;
    const cublasOperation_t first = s->right ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = s->left ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t status = p->call.MatmulDescCreate(&plan->how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status)
        status = p->call.MatmulDescSetAttribute(plan->how, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (!status)
        status = p->call.MatmulDescSetAttribute(plan->how, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                                sizeof second);
    if (!status) status = lay_out(p, &plan->a, s->a, s->narrow_operands, s->pieces, s->a_piece);
    if (!status) status = lay_out(p, &plan->b, s->b, s->narrow_operands, s->pieces, s->b_piece);
    return status ? status : lay_out(p, &plan->out, s->out, s->narrow_out, s->pieces, s->out_piece);
}

static cublasStatus_t prefer(const products *p, cublasLtMatmulPreference_t wish, const lt_shape *s)
{
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    const uint64_t no_workspace = 0;
    const uint32_t aligned[3] = { (uint32_t)s->b.aligned, (uint32_t)s->a.aligned, (uint32_t)s->out.aligned };
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t bytes;
    } list[] = {
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction, sizeof no_reduction },
        { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &no_workspace, sizeof no_workspace },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &aligned[0], sizeof aligned[0] },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &aligned[1], sizeof aligned[1] },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &aligned[2], sizeof aligned[2] },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &aligned[2], sizeof aligned[2] },
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof list / sizeof *list && !status; i++)
        status = p->call.MatmulPreferenceSetAttribute(wish, list[i].what, list[i].value, list[i].bytes);
    return status;
}

/* The tile that is fastest on an H200 where it is offered, by measurement (34m and recall); else any. */
static uint32_t wanted_tile(const lt_shape *s)
{
    if (!s->narrow_operands) return CUBLASLT_MATMUL_TILE_UNDEFINED;
    if (s->narrow_out) return CUBLASLT_MATMUL_TILE_128x160;
    return s->onto ? CUBLASLT_MATMUL_TILE_128x128 : CUBLASLT_MATMUL_TILE_UNDEFINED;
}

/* The layouts are of one model here. */
static cublasStatus_t choose(const products *p, lt_plan *plan)
{
    cublasLtMatmulPreference_t wish = NULL;
    enum { OFFERS = 8 };
    cublasLtMatmulHeuristicResult_t offer[OFFERS];
    int found = 0, best = 0;
    cublasStatus_t status = p->call.MatmulPreferenceCreate(&wish);
    if (!status) status = prefer(p, wish, &plan->shape);
    if (!status)
        status = p->call.MatmulAlgoGetHeuristic(p->handle, plan->how, plan->b, plan->a, plan->out, plan->out,
                                                wish, OFFERS, offer, &found);
    if (wish) (void)p->call.MatmulPreferenceDestroy(wish);
    if (status) return status;
    if (found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = found - 1; i >= 0; i--) {
        uint32_t tile = CUBLASLT_MATMUL_TILE_UNDEFINED;
        size_t written;
        (void)p->call.MatmulAlgoConfigGetAttribute(&offer[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile,
                                                   sizeof tile, &written);
        if (tile == wanted_tile(&plan->shape) && offer[i].state == CUBLAS_STATUS_SUCCESS) best = i;
    }
    plan->algorithm = offer[best].algo;
    return CUBLAS_STATUS_SUCCESS;
}

/* Known, if the same shape has been, with any batch. */
static const lt_plan *known(const products *p, const lt_shape *shape, const lt_batch *batch)
{
    for (int i = 0; i < p->count; i++)
        if (memcmp(&p->plan[i].shape, shape, sizeof *shape) == 0 &&
            (!batch || memcmp(&p->plan[i].batch, batch, sizeof *batch) == 0))
            return &p->plan[i];
    return NULL;
}

static cublasStatus_t make_plan(const products *p, lt_plan *plan)
{
    const lt_plan *like = known(p, &plan->shape, NULL);
    cublasStatus_t status = describe(p, plan);
    if (like)
        plan->algorithm = like->algorithm;
    else if (!status)
        status = choose(p, plan);
    const int64_t count = plan->batch.count;
    if (!status) status = set_batch(p, plan->a, count, plan->batch.a);
    if (!status) status = set_batch(p, plan->b, count, plan->batch.b);
    return status ? status : set_batch(p, plan->out, count, plan->batch.out);
}

static const lt_plan *plan_of(machine_gpu *gpu, const lt_shape *shape, const lt_batch *batch)
{
    products *p = gpu->made;
    const lt_plan *found = known(p, shape, batch);
    if (found) return found;
    if (p->count == p->room) {
        const int room = p->room ? 2 * p->room : 64;
        lt_plan *grown = (lt_plan *)realloc(p->plan, (size_t)room * sizeof *grown);
        if (!grown) return gpu_fail(gpu, "product", "out of memory for a plan"), (lt_plan *)NULL;
        p->plan = grown, p->room = room;
    }
    lt_plan *plan = &p->plan[p->count];
    memset(plan, 0, sizeof *plan);
    plan->shape = *shape, plan->batch = *batch;
    const cublasStatus_t status = make_plan(p, plan);
    if (status == CUBLAS_STATUS_SUCCESS) return p->count++, plan;
    char text[160];
    snprintf(text, sizeof text, "status %d for [%lld][%lld] = %s[%lld][%lld] %s[%lld][%lld]", (int)status,
             (long long)shape->out.rows, (long long)shape->out.width, shape->left ? "transposed " : "",
             (long long)shape->a.rows, (long long)shape->a.width, shape->right ? "transposed " : "",
             (long long)shape->b.rows, (long long)shape->b.width);
    gpu_fail(gpu, "cuBLASLt has no plan", text);
    forget(p, plan);
    return NULL;
}

/* ---- the operation */

/* Of each of its models alike: strides count, and not where the first begins. */
static factor factor_of(matrix a, int64_t piece)
{
    const int64_t each = matrix_bytes_each(a);
    int64_t aligned = 16;
    while (aligned > 1 && (a.model * each % aligned || a.row * each % aligned || piece * each % aligned ||
                           (intptr_t)a.data % aligned))
        aligned /= 2;
    return { a.rows, a.width, a.row, aligned };
}

/* How many pieces a sum over `inner` rows is cut into: of 512 at least, until their tiles keep a GPU busy. */
static int64_t pieces_of(matrix out, int64_t inner)
{
    enum { TILE = 128, LEAST = 512, BUSY = 96 };
    const int64_t tiles = (out.rows + TILE - 1) / TILE * ((out.width + TILE - 1) / TILE);
    int64_t pieces = 1;
    while (pieces * tiles < BUSY && inner % (2 * pieces) == 0 && inner / (2 * pieces) >= LEAST)
        pieces *= 2;
    return pieces;
}

static void launch(const machine *on, const lt_plan *plan, matrix out, const void *base, matrix a, matrix b)
{
    products *p = on->gpu->made;
    const float alpha = 1, beta = base ? 1 : 0;
    const cublasStatus_t status = p->call.Matmul(p->handle, plan->how, &alpha, b.data, plan->b, a.data,
                                                 plan->a, &beta, base ? base : out.data, plan->out, out.data,
                                                 plan->out, &plan->algorithm, NULL, 0, on->gpu->stream);
    char text[32];
    snprintf(text, sizeof text, "status %d", (int)status);
    if (status) gpu_fail(on->gpu, "cublasLtMatmul", text);
}

/* out = base + a b, without `base` where it has no data. All models in one call where their pieces follow
 * each other evenly. */
static void multiply(const machine *on, matrix out, matrix base, matrix a, matrix b, unsigned how,
                     int64_t pieces)
{
    assert(!base.data || (base.dtype == out.dtype && base.row == out.row && base.model == out.model));
    const int64_t inner = how & PRODUCT_A_TRANSPOSED ? a.rows : a.width, models = out.models;
    lt_shape s = {};
    s.left = how & PRODUCT_A_TRANSPOSED ? 1 : 0, s.right = how & PRODUCT_B_TRANSPOSED ? 1 : 0;
    s.narrow_operands = a.dtype == LOAM_BF16, s.narrow_out = out.dtype == LOAM_BF16;
    s.pieces = pieces, s.onto = base.data != NULL;
    lt_batch batch = { models, a.model, b.model, out.model };
    if (pieces > 1) {
        s.a_piece = inner / pieces * a.row, s.b_piece = inner / pieces * b.row,
        s.out_piece = out.model / pieces;
        const bool even = models == 1 || (a.model == pieces * s.a_piece && b.model == pieces * s.b_piece);
        batch = { even ? models * pieces : pieces, s.a_piece, s.b_piece, s.out_piece };
    }
    s.a = factor_of(a, s.a_piece), s.b = factor_of(b, s.b_piece), s.out = factor_of(out, s.out_piece);
    if (pieces > 1) s.a.rows = s.b.rows = inner / pieces;
    const lt_plan *plan = plan_of(on->gpu, &s, &batch);
    if (!plan) return;
    if (batch.count == models * pieces)
        launch(on, plan, out, base.data, a, b);
    else
        for (int64_t m = 0; m < models; m++)
            launch(on, plan, matrix_model(out, m), base.data ? matrix_model(base, m).data : NULL,
                   matrix_model(a, m), matrix_model(b, m));
}

/* What both operands are read as: all bfloat16, or all float32. */
static loam_dtype operand_type(const machine *on, matrix a, matrix b, unsigned how)
{
    const bool narrow = !(how & PRODUCT_EXACT) || a.dtype == LOAM_BF16 || b.dtype == LOAM_BF16;
    return on->operand == LOAM_BF16 && narrow ? LOAM_BF16 : LOAM_F32;
}

/* Room for an operand in another type, rows at multiples of 16 bytes. */
static matrix converted_like(matrix a, loam_dtype dtype)
{
    matrix like = matrix_dense(NULL, dtype, a.models, a.rows, (a.width + 7) / 8 * 8);
    like.width = a.width;
    return like;
}

static size_t operand_room(matrix a, loam_dtype dtype)
{
    const matrix like = converted_like(a, dtype);
    return a.dtype == dtype ? 0 : gpu_aligned((size_t)(like.models * like.model * matrix_bytes_each(like)));
}

/* a as an operand, converted in `room` where it must be; returns what is left of the room. */
static char *as_operand(const machine *on, matrix *a, loam_dtype dtype, char *room)
{
    if (a->dtype == dtype) return room;
    matrix to = converted_like(*a, dtype);
    to.data = room;
    room += operand_room(*a, dtype);
    if (a->dtype == LOAM_F16)
        weights_from_half(on, to, *a, {});
    else
        cuda_copy(on, to, *a);
    *a = to;
    return room;
}

extern "C" void cuda_product(const machine *on, matrix out, matrix a, matrix b, unsigned how)
{
    const matrix none = {};
    const bool split = how & PRODUCT_A_TRANSPOSED && !(how & PRODUCT_B_TRANSPOSED);
    const loam_dtype type = operand_type(on, a, b, how);
    if (how & PRODUCT_B_TRANSPOSED && !(how & PRODUCT_A_TRANSPOSED) && out.rows <= FEW_ROWS) {
        weights_few_rows(on, out, a, b, how & PRODUCT_ADD);
        return;
    }
    const int64_t pieces = split ? pieces_of(out, a.rows) : 1;
    matrix part = matrix_dense(NULL, LOAM_F32, out.models, pieces * out.rows, out.width);
    const size_t rest = pieces > 1 ? (size_t)matrix_elements(part) * sizeof(float) : 0;
    char *room = gpu_scratch(on->gpu, operand_room(a, type) + operand_room(b, type) + rest);
    if (!room) return;
    room = as_operand(on, &a, type, room);
    part.data = as_operand(on, &b, type, room);
    if (pieces == 1) {
        multiply(on, out, how & PRODUCT_ADD ? out : none, a, b, how, 1);
        return;
    }
    part.rows = out.rows;
    multiply(on, part, none, a, b, how, pieces);
    sum_fold(on, out, (const float *)part.data, pieces, how & PRODUCT_ADD);
}

extern "C" void cuda_product_onto(const machine *on, matrix out, matrix base, matrix a, matrix b)
{
    const loam_dtype type = operand_type(on, a, b, 0);
    char *room = gpu_scratch(on->gpu, operand_room(a, type) + operand_room(b, type));
    if (!room) return;
    room = as_operand(on, &a, type, room);
    (void)as_operand(on, &b, type, room);
    multiply(on, out, base, a, b, 0, 1);
}
