/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "train/trainer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

trainer_options trainer_options_default(const mixer *row)
{
    return (trainer_options){
        .row = row,
        .mixing = { .ridge_least = 0.01, .ridge_most = 1 },
        .shape = { .batch = 256, .layers = 2, .width = 128, .heads = 2 },
        .decay = 0.1,
        .clip = 1,
    };
}

static int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- what may be trained side by side */

static loam_status refuse(loam_error *error, loam_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static loam_status refuse(loam_error *error, loam_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (error) {
        error->status = status;
        vsnprintf(error->text, sizeof error->text, format, arguments);
    }
    va_end(arguments);
    return status;
}

static bool same_shape(const train_source *a, const train_source *b)
{
    bool same = a->task == b->task && source_length(a) == source_length(b) &&
                source_words(a) == source_words(b) && source_answers(a) == source_answers(b) &&
                a->recall.fill == b->recall.fill && a->regression.dim_x == b->regression.dim_x &&
                a->regression.dim_y == b->regression.dim_y;
    for (int i = 0; i < RECALL_PARTS; i++)
        for (int split = 0; split < 2; split++)
            same = same && a->part[i].examples[split] == b->part[i].examples[split] &&
                   a->part[i].pairs == b->part[i].pairs;
    return same;
}

static loam_status check_trainee(const trainer_options *options, const trainee *each, int64_t m,
                                 loam_error *error)
{
    const trainee *one = &each[m];
    if (!same_shape(&one->from, &each->from))
        return refuse(error, LOAM_ESHAPE, "model %lld has a source of another shape than model 0",
                      (long long)m);
    if (!(one->rate >= 0 && isfinite(one->rate)))
        return refuse(error, LOAM_EVALUE, "rate of model %lld is %g; expected a finite number >= 0",
                      (long long)m, one->rate);
    if (options->muon && !(one->muon_rate >= 0 && isfinite(one->muon_rate)))
        return refuse(error, LOAM_EVALUE, "muon_rate of model %lld is %g; expected a finite number >= 0",
                      (long long)m, one->muon_rate);
    return LOAM_OK;
}

static loam_status check(const trainer_options *options, const trainee *each, int64_t models,
                         loam_error *error)
{
    if (models < 1)
        return refuse(error, LOAM_ESHAPE, "a stack of %lld models; expected >= 1", (long long)models);
    const int64_t examples = source_examples(&each->from, TRAIN_SPLIT_TRAIN);
    if (options->batches < 0 || options->batches > examples ||
        (options->batches > 1 && each->from.part[1].examples[TRAIN_SPLIT_TRAIN] > 0))
        return refuse(error, LOAM_EVALUE,
                      "batches is %lld; expected 0 to the %lld training examples, and 0 or 1 "
                      "where these differ in their answers",
                      (long long)options->batches, (long long)examples);
    if (options->shape.batch < 1 || options->shape.batch > examples / largest(1, options->batches))
        return refuse(error, LOAM_ESHAPE, "batch is %lld; expected 1 to the %lld training examples",
                      (long long)options->shape.batch, (long long)examples);
    if (source_examples(&each->from, TRAIN_SPLIT_TEST) < 1)
        return refuse(error, LOAM_ESHAPE, "there are no test examples; expected >= 1");
    if (options->steps < 1 || options->warm < 0 || options->test_every < 0)
        return refuse(error, LOAM_EVALUE, "steps %lld, warm %lld, test_every %lld; expected >= 1, >= 0, >= 0",
                      (long long)options->steps, (long long)options->warm, (long long)options->test_every);
    if (!(options->stop >= 0 && options->stop <= 1))
        return refuse(error, LOAM_EVALUE, "stop is %g; expected 0 to 1", options->stop);
    loam_status status = LOAM_OK;
    for (int64_t m = 0; m < models && !status; m++)
        status = check_trainee(options, each, m, error);
    return status;
}

/* ---- memory */

/* In host memory. */
static void take_host(trainer *t)
{
    const model_shape *shape = &t->options.shape;
    const int64_t models = shape->models, examples = source_examples(&shape->from, TRAIN_SPLIT_TRAIN);
    const matrix results = model_results(t->net);
    const int64_t infos = models * shape->batch * shape->heads * source_length(&shape->from);
    memory *room = &t->host_room;
    t->each = memory_take(room, models, sizeof *t->each);
    t->tested = memory_take(room, models, sizeof *t->tested);
    t->records = memory_take(room, models * t->most, sizeof *t->records);
    t->times = memory_take(room, t->most, sizeof *t->times);
    t->answers = memory_take(room, models, sizeof *t->answers);
    t->learned = memory_take(room, MODEL_MAX_PARAMETERS, sizeof *t->learned);
    t->order = memory_take(room, models * examples, sizeof *t->order);
    t->examples = memory_take(room, shape->batch, sizeof *t->examples);
    t->host = memory_take(room,
                          largest(matrix_elements(results) * matrix_bytes_each(results),
                                  infos * (int64_t)sizeof(loam_row_info)),
                          1);
}

/* Of steps of one batch the gradients are the model's own. */
static void take_learned(trainer *t)
{
    int count;
    const parameter *list = model_parameters(t->net, &count);
    for (int i = 0; i < count; i++) {
        matrix g = list[i].g;
        if (t->options.batches > 1 && !list[i].frozen)
            g = memory_matrix(&t->room, g.dtype, g.models, g.rows, g.width);
        if (!t->learned) continue;
        t->learned[i] = list[i];
        t->learned[i].g = g;
    }
}

static void take_sums(trainer *t)
{
    const int64_t width = model_results(t->net).width;
    t->sums = memory_matrix(&t->room, t->on->dtype, t->options.shape.models, 1, width);
    t->last = memory_matrix(&t->room, t->on->dtype, t->options.shape.models, 1, width);
    take_learned(t);
}

static bool take_all(trainer *t)
{
    static const machine host = { 0 };
    take_host(t), take_sums(t);
    if (!memory_open(&t->host_room, &host) || !memory_open(&t->room, t->on)) return false;
    take_host(t), take_sums(t);
    return true;
}

static loam_status no_memory(loam_error *error)
{
    return refuse(error, LOAM_EMEMORY, "out of memory for the training of a model");
}

/* rates: [2][models], of AdamW and of Muon. */
static loam_status open_parts(trainer *t, const uint64_t *seeds, const double *rates, loam_error *error)
{
    const trainer_options *o = &t->options;
    const int64_t models = o->shape.models;
    const optimiser_options how = { o->warm,  o->steps, o->least, o->beta_v,
                                    o->decay, o->clip,  o->muon,  o->muon_rms };
    const loam_status status = model_create(&t->net, t->on, o->row, &o->shape, &o->mixing, seeds, error);
    if (status) return status;
    int count;
    (void)model_parameters(t->net, &count);
    if (!batch_open(&t->data, t->on, &o->shape.from, models, o->shape.batch) || !take_all(t) ||
        !optimiser_open(&t->opt, t->on, t->learned, count, &how, rates, rates + models))
        return no_memory(error);
    return LOAM_OK;
}

static loam_status open_all(trainer *t, const trainee *each, loam_error *error)
{
    const size_t models = (size_t)t->options.shape.models;
    double *rates = calloc(models, 2 * sizeof *rates);
    uint64_t *seeds = calloc(models, sizeof *seeds);
    for (size_t m = 0; m < models && rates && seeds; m++) {
        seeds[m] = each[m].seed;
        rates[m] = each[m].rate;
        rates[models + m] = each[m].muon_rate;
    }
    const loam_status status = rates && seeds ? open_parts(t, seeds, rates, error) : no_memory(error);
    if (!status) memcpy(t->each, each, models * sizeof *each);
    free(rates);
    free(seeds);
    return status;
}

loam_status trainer_open(trainer *t, const machine *on, const trainer_options *options, const trainee *each,
                         int64_t models, loam_error *error)
{
    *t = (trainer){ .on = on, .options = *options, .epoch = -1 };
    loam_status status = check(options, each, models, error);
    if (status) return status;
    trainer_options *o = &t->options;
    o->shape.models = models;
    o->shape.from = each->from;
    if (o->warm == 0) o->warm = largest(100, o->steps / 100);
    o->batches = largest(1, o->batches);
    if (o->test_every == 0) o->test_every = o->steps;
    t->most = (o->steps + o->test_every - 1) / o->test_every;
    status = open_all(t, each, error);
    if (status) trainer_close(t);
    return status;
}

void trainer_close(trainer *t)
{
    machine_forget(t->recorded);
    optimiser_close(&t->opt);
    batch_close(&t->data);
    model_destroy(t->net);
    memory_close(&t->room);
    memory_close(&t->host_room);
    *t = (trainer){ 0 };
}

/* ---- a step */

double trainer_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Models of one seed have one order. */
static void make_order(trainer *t, int64_t epoch, int64_t examples)
{
    const model_shape *shape = &t->options.shape;
    for (int64_t m = 0; m < shape->models; m++) {
        int64_t first = 0;
        while (t->each[first].seed != t->each[m].seed)
            first++;
        int32_t *order = t->order + m * examples;
        if (first < m)
            memcpy(order, t->order + first * examples, (size_t)examples * sizeof *order);
        else
            train_epoch_order(t->each[m].seed, shape->from.task, epoch, examples, order);
    }
    t->epoch = epoch;
}

/* Batch `part` of the step. */
static void fill_training(trainer *t, int64_t part)
{
    const int64_t examples = source_examples(&t->options.shape.from, TRAIN_SPLIT_TRAIN);
    const int64_t batch = t->options.shape.batch, whole = examples / batch;
    const int64_t number = t->step * t->options.batches + part;
    if (t->epoch != number / whole) make_order(t, number / whole, examples);
    for (int64_t m = 0; m < t->options.shape.models; m++) {
        const train_source *from = &t->each[m].from;
        const int32_t *chosen = t->order + m * examples + number % whole * batch;
        batch_fill(&t->data, m, from, t->each[m].seed, TRAIN_SPLIT_TRAIN, chosen);
        t->answers[m] += t->data.here.counts[m];
    }
    batch_send(&t->data);
}

/* What is the same in every step, but for the data; where it has one batch, all of it. */
static loam_status launch_batch(trainer *t, loam_error *error)
{
    static const matrix none = { 0 };
    const ops *op = t->on->op;
    const loam_status status = model_gradients(t->net, &t->data, error);
    if (status) return status;
    op->column_sums(t->on, t->last, model_results(t->net), none, none);
    op->combine(t->on, t->sums, 1, t->sums, 1, t->last);
    if (t->options.batches == 1) optimiser_step(&t->opt);
    return LOAM_OK;
}

/* The gradients of batch `part` to the mean of those of the step. */
static void add_gradients(trainer *t, int64_t part)
{
    int count;
    const parameter *list = model_parameters(t->net, &count);
    const double share = 1 / (double)t->options.batches;
    for (int i = 0; i < count; i++) {
        const matrix sum = t->learned[i].g;
        if (list[i].frozen) continue;
        t->on->op->combine(t->on, sum, part > 0 ? 1 : 0, part > 0 ? sum : list[i].g, share, list[i].g);
    }
}

static loam_status take_batches(trainer *t, loam_error *error)
{
    loam_status status = LOAM_OK;
    for (int64_t part = 0; part < t->options.batches && !status; part++) {
        fill_training(t, part);
        status = launch_batch(t, error);
        add_gradients(t, part);
    }
    if (!status) optimiser_step(&t->opt);
    return status;
}

/* Of a GPU. */
static loam_status record_step(trainer *t, loam_error *error)
{
    machine_record_begin(t->on);
    const loam_status status = launch_batch(t, error), ended = machine_record_end(t->on, &t->recorded, error);
    return status ? status : ended;
}

static loam_status take_batch(trainer *t, loam_error *error)
{
    loam_status status = LOAM_OK;
    fill_training(t, 0);
    if (t->on->gpu && t->launched && !t->recorded) status = record_step(t, error);
    if (!status && t->recorded)
        machine_replay(t->on, t->recorded);
    else if (!status)
        status = launch_batch(t, error);
    t->launched = true;
    return status;
}

static loam_status take_step(trainer *t, loam_error *error)
{
    const loam_status status = t->options.batches > 1 ? take_batches(t, error) : take_batch(t, error);
    if (!status) t->opt.step = ++t->step;
    return status;
}

/* ---- a test */

/* Element `index` of a dense array that was read into `host`. */
static double number(matrix a, const char *host, int64_t index)
{
    return a.dtype == LOAM_F64 ? ((const double *)host)[index] : (double)((const float *)host)[index];
}

static loam_status read_matrix(const trainer *t, matrix a, loam_error *error)
{
    const size_t bytes = (size_t)(matrix_elements(a) * matrix_bytes_each(a));
    return machine_download(t->on, t->host, a.data, bytes, error);
}

/* The records that the test at hand makes. */
static train_record *record_of(const trainer *t, int64_t model)
{
    return &t->records[model * t->most + t->tested[model]];
}

/* The first `count` examples of the batch are examples first .. of the test. */
static loam_status add_results(const trainer *t, int64_t first, int64_t count, loam_error *error)
{
    const model_shape *shape = &t->options.shape;
    const matrix each = model_results(t->net);
    const int64_t answers = source_answers(&shape->from);
    const loam_status status = read_matrix(t, each, error);
    for (int64_t n = 0; n < shape->models * count && !status; n++) {
        const int64_t m = n / count, i = n % count;
        train_record *to = record_of(t, m);
        const int part = source_part(&shape->from, TRAIN_SPLIT_TEST, first + i);
        if (trainer_stopped(t, m)) continue;
        double score = 0;
        for (int64_t row = m * each.rows + i * answers; row < m * each.rows + (i + 1) * answers; row++) {
            to->test_loss += number(each, t->host, row * each.width);
            score += number(each, t->host, (row + 1) * each.width - 1);
        }
        to->part[part] += score;
        to->error[part] += score * score;
    }
    return status;
}

static loam_status add_infos(const trainer *t, int64_t layer, int64_t count, loam_error *error)
{
    const model_shape *shape = &t->options.shape;
    const loam_row_info *infos = model_layer(t->net, layer)->info, *info = (const loam_row_info *)t->host;
    const int64_t rows = shape->heads * source_length(&shape->from), all = shape->batch * rows;
    if (!infos) return LOAM_OK;
    const size_t bytes = (size_t)(shape->models * all) * sizeof *infos;
    const loam_status status = machine_download(t->on, t->host, infos, bytes, error);
    for (int64_t m = 0; m < shape->models && !status; m++) {
        train_record *to = record_of(t, m);
        if (trainer_stopped(t, m)) continue;
        for (int64_t row = m * all; row < m * all + count * rows; row++) {
            to->solved[info[row].solver]++;
            to->iterations += info[row].iterations;
        }
    }
    return status;
}

/* All test examples, in batches of the usual size: the last one is filled up with its last example, which is
 * counted once. */
static loam_status add_examples(trainer *t, loam_error *error)
{
    const model_shape *shape = &t->options.shape;
    const int64_t examples = source_examples(&shape->from, TRAIN_SPLIT_TEST);
    for (int64_t first = 0; first < examples; first += shape->batch) {
        const int64_t left = examples - first, count = left < shape->batch ? left : shape->batch;
        for (int64_t i = 0; i < shape->batch; i++)
            t->examples[i] = (int32_t)(first + (i < count ? i : count - 1));
        for (int64_t m = 0; m < shape->models; m++)
            batch_fill(&t->data, m, &t->each[m].from, t->each[m].seed, TRAIN_SPLIT_TEST, t->examples);
        batch_send(&t->data);
        loam_status status = model_test(t->net, &t->data, error);
        if (!status) status = add_results(t, first, count, error);
        for (int64_t l = 0; l < shape->layers && !status; l++)
            status = add_infos(t, l, count, error);
        if (status) return status;
    }
    return LOAM_OK;
}

/* From sums over examples, and of their squares, to the mean over answers and its standard error. */
static void finish_part(train_record *r, int part, double examples, double answers)
{
    const double mean = r->part[part] / examples, spread = r->error[part] / examples - mean * mean;
    r->part[part] = mean / answers;
    r->error[part] = examples > 1 ? sqrt(fmax(0, spread) / (examples - 1)) / answers : 0;
}

/* From sums to means. */
static void finish_record(const trainer *t, train_record *r)
{
    const model_shape *shape = &t->options.shape;
    const train_source *from = &shape->from;
    const int64_t examples = source_examples(from, TRAIN_SPLIT_TEST);
    const double rows = (double)(examples * shape->layers * shape->heads * source_length(from));
    double answers = 0;
    for (int i = 0; i < RECALL_PARTS; i++) {
        const double count = (double)from->part[i].examples[TRAIN_SPLIT_TEST];
        const double each = (double)source_part_answers(from, i);
        if (count * each > 0) finish_part(r, i, count, each);
        answers += count * each;
    }
    r->test_loss /= answers;
    for (int i = 0; i < TRAIN_SOLVERS; i++)
        r->solved[i] /= rows;
    r->iterations /= rows;
}

static void record_time(trainer *t)
{
    const model_shape *shape = &t->options.shape;
    const int64_t test = (t->step - 1) / t->options.test_every,
                  steps = t->step - test * t->options.test_every;
    const int64_t tokens = steps * shape->models * t->options.batches * shape->batch *
                           source_length(&shape->from);
    t->times[test] = 1e9 * t->seconds / (double)tokens;
    t->seconds = 0;
}

/* What is known of the training since the test before, which went on from `since`. The first read waits. */
static loam_status record_training(trainer *t, double since, loam_error *error)
{
    static const double zero[2] = { 0 };
    const matrix sums = t->sums;
    loam_status status = read_matrix(t, sums, error);
    if (status) return status;
    t->seconds += trainer_clock() - since;
    record_time(t);
    for (int64_t m = 0; m < sums.models; m++) {
        const double loss = number(sums, t->host, m * sums.width) / (double)t->answers[m];
        if (!trainer_stopped(t, m))
            *record_of(t, m) = (train_record){ .step = (double)t->step, .train_loss = loss };
        t->answers[m] = 0;
        machine_set(t->on, sums, m * sums.width, zero, sums.width);
    }
    status = read_matrix(t, t->opt.squares, error);
    for (int64_t m = 0; m < sums.models && !status; m++)
        if (!trainer_stopped(t, m)) record_of(t, m)->gradient = sqrt(number(t->opt.squares, t->host, m));
    return status;
}

/* What stops here is left as it is. */
static loam_status take_test(trainer *t, double since, loam_error *error)
{
    loam_status status = record_training(t, since, error);
    if (!status) status = add_examples(t, error);
    for (int64_t m = 0; m < t->options.shape.models && !status; m++) {
        if (trainer_stopped(t, m)) continue;
        finish_record(t, record_of(t, m));
        t->tested[m]++;
        if (trainer_stopped(t, m)) optimiser_hold(&t->opt, m);
    }
    return status;
}

/* ---- the loop */

const train_record *trainer_record(const trainer *t, int64_t model, int64_t test)
{
    return &t->records[model * t->most + test];
}

double trainer_accuracy(const trainer *t, const train_record *record)
{
    const train_source *from = &t->options.shape.from;
    double sum = 0;
    int parts = 0;
    for (int i = 0; i < RECALL_PARTS; i++) {
        sum += record->part[i];
        parts += from->part[i].examples[TRAIN_SPLIT_TEST] > 0;
    }
    return sum / parts;
}

bool trainer_stopped(const trainer *t, int64_t model)
{
    const int64_t tests = t->tested[model];
    return t->options.stop > 0 && source_words(&t->options.shape.from) > 0 && tests > 0 &&
           trainer_accuracy(t, trainer_record(t, model, tests - 1)) >= t->options.stop;
}

void trainer_resume(trainer *t)
{
    optimiser_resume(&t->opt, t->step);
    for (int64_t m = 0; m < t->options.shape.models; m++)
        if (trainer_stopped(t, m)) optimiser_hold(&t->opt, m);
}

bool trainer_finished(const trainer *t)
{
    bool all = true;
    for (int64_t m = 0; m < t->options.shape.models; m++)
        all = all && trainer_stopped(t, m);
    return all || t->step == t->options.steps;
}

loam_status trainer_advance(trainer *t, int64_t steps, double seconds, loam_error *error)
{
    const double begin = trainer_clock();
    double since = begin;
    loam_status status = LOAM_OK;
    for (int64_t taken = 0; taken < steps && !trainer_finished(t) && !status; taken++) {
        status = take_step(t, error);
        const bool test = t->step % t->options.test_every == 0 || t->step == t->options.steps;
        if (!status && test) status = take_test(t, since, error);
        if (!status && t->watch) t->watch(t->with, t, test);
        if (test) since = trainer_clock();
        if (trainer_clock() - begin >= seconds) break;
    }
    t->seconds += trainer_clock() - since;
    return status;
}
