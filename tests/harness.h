// A model at work on a chosen device, for tests that look inside: train_gpt.c itself, without its main, in memory poisoned with NaN.
#ifndef HARNESS_H
#define HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define main train_gpt_main
#include "../train_gpt.c"
#undef main

#define HELPER static __attribute__((unused))     // not every test needs every one

// Fails the test with the kept message.
HELPER void check_status(int status) {
    if (status) fail_msg("status %d: %s", status, error_text());
}

HELPER void place(Trainer *t) {
    MemoryPlan plan = { 0 }, host = { 0 };
    plan_trainer(&plan, t);
    plan_host(&host, t);
    t->memory = device->allocate(plan.used);
    t->host_memory = device->allocate_host(host.used);
    assert_non_null(t->memory);
    assert_non_null(t->host_memory);
    memset(t->memory, 0xff, plan.used);                 // NaN as float and as double
    memset(t->host_memory, 0xff, host.used);
    plan = (MemoryPlan){ .base = t->memory };
    host = (MemoryPlan){ .base = t->host_memory };
    plan_trainer(&plan, t);
    plan_host(&host, t);
    for (int i = 0; i < 2; i++) t->batches[i].copied = t->pending[i].step = 0;
}

HELPER void prepare_memory(Trainer *t) {
    Model *m = &t->model;
    const size_t moment_bytes = m->table.count * device->real_bytes;
    device->zero(m->master, m->table.count * device->real_bytes);
    device->zero(m->moment1, moment_bytes);
    device->zero(m->moment2, moment_bytes);
    if (m->alpha_ma) device->zero(m->alpha_ma, (size_t)m->shape.L * m->shape.H * device->real_bytes);
    check_status(copy_spans(&t->pass));
    check_status(write_rope_table(&t->pass));
    if (t->sampling.model) check_status(write_rope_table(&t->sampling));
}

// A trainer of config on `on`; its weights are still to be filled. teacher: the shape of a teacher, or NULL.
HELPER Trainer *open_trainer(const Device *on, const Config *config, const Config *teacher) {
    Trainer *t = calloc(1, sizeof *t);
    DeviceInfo info;
    assert_non_null(t);
    device = on;
    check_status(device->open(&info, &(DeviceOptions){ .threads = config->compute.threads }));
    check_status(describe_trainer(t, config));
    if (teacher) {
        check_status(describe_model(&t->teacher_model, &teacher->model, &teacher->attention, 0, 1));
        check_status(describe_pass(&t->teacher, &t->teacher_model, FORWARD, RECOMPUTE_NONE, t->pass.B, t->pass.T));
        t->teacher.chunk_rows = t->pass.chunk_rows;
        t->objective = (Objective){ .teacher = &t->teacher, .weight = config->distill.weight, .temperature = config->distill.temperature };
    }
    place(t);
    prepare_memory(t);
    if (teacher) {
        Model *m = &t->teacher_model;
        device->zero(m->master, m->table.count * device->real_bytes);
        if (m->alpha_ma) device->zero(m->alpha_ma, (size_t)m->shape.L * m->shape.H * device->real_bytes);
        check_status(write_rope_table(&t->teacher));
    }
    return t;
}

HELPER void shut_trainer(Trainer *t) {
    close_trainer(t);
    device->close();
    free(t);
}

HELPER Real *tensor_place(const Model *m, const Real *arena, const Tensor *x) {
    return real_at(x->buffer ? m->alpha_ma : arena, x->offset);
}

// Every tensor of a model: normal values of a deviation that keeps each part of the model at work, alpha_ma in (0, 1).
HELPER void fill_random(const Model *m, uint64_t seed) {
    for (int i = 0; i < m->table.tensor_count; i++) {
        const Tensor *x = &m->table.tensors[i];
        double *values = malloc(x->count * sizeof *values);
        const uint64_t key = random_key(seed, x->name);
        const bool norm_weight = x->dimensions == 1 && x->initial_value == 1;
        for (size_t j = 0; j < x->count; j++) {
            const double z = random_normal(key, j);
            values[j] = x->buffer ? random_uniform(key, j) : norm_weight ? 1 + 0.2 * z : 0.3 * z;
            if (strstr(x->name, "alpha_proj")) values[j] = 0.9 * z;             // so that linear clipping clips now and then
        }
        device->write(tensor_place(m, m->master, x), values, x->count);
        free(values);
    }
    narrow_weights(m);
}

// Random tokens and targets of one micro-batch, on the device.
HELPER void fill_batch(Trainer *t, uint64_t seed, const int **tokens, const int **targets, const int **order) {
    Batch *b = &t->batches[0];
    const size_t rows = (size_t)t->pass.B * t->pass.T;
    const int V = t->model.shape.V;
    const uint64_t key = random_key(seed, "tokens");
    for (size_t i = 0; i < 2 * rows; i++) b->host[i] = (int)(random_bits(key, i) % V);
    check_status(dataset_order(b->host + 2 * rows, b->host, rows, V));
    device->copy_to_device(b->on_device, b->host, 3 * rows * sizeof(int));
    *tokens = b->on_device;
    *targets = *tokens + rows;
    *order = *targets + rows;
}

HELPER double *read_reals(const Real *from, size_t n) {
    double *values = malloc((n ? n : 1) * sizeof *values);
    assert_non_null(values);
    device->read(values, from, n);
    return values;
}

// The logits of all B*T rows that forward left in f->final: [rows, classifier.out]
HELPER double *read_logits(const Pass *f, size_t rows) {
    const Linear w = f->model->table.classifier;
    Compute *logits = device->allocate(rows * w.out * device->compute_bytes);
    Real *wide = device->allocate(rows * w.out * device->real_bytes);
    for (size_t row = 0; row < rows; row += f->chunk_rows)
        linear(f->model, compute_at(logits, row * w.out), NULL, compute_at(f->final, row * w.in), w, NULL,
               smaller(rows - row, f->chunk_rows));
    device->widen(wide, logits, rows * w.out);
    double *values = read_reals(wide, rows * w.out);
    device->release(logits);
    device->release(wide);
    return values;
}

// A small config of odd sizes; the caller changes what its case is about, then calls finish_config.
HELPER Config small_config(Arch arch) {
    Config c;
    config_defaults(&c);
    c.model = (ModelConfig){
        .arch = arch, .V = 19, .C = 12, .L = 2, .H = 3, .K = 3, .D = 4, .intermediate_size = 21, .max_position_embeddings = 16,
        .tie_word_embeddings = arch == ARCH_GPT2, .rope_theta = 100, .norm_eps = 1e-5, .initializer_range = 0.02,
    };
    c.attention = (AttentionConfig){ .affine_length = 13, .affine_rho = 0.9 };
    c.train.batch_size = c.train.micro_batch_size = 2;
    c.train.sequence_length = 13;
    c.compute.threads = 1;                              // so small that a second thread only waits
    return c;
}

#endif
