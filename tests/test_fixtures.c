// Logits, losses, gradients and three optimizer steps against PyTorch in float64: the fixtures in tests/fixtures (make_fixtures.py made
// them).
#include "harness.h"

#include <glob.h>

#include "../core/safetensors.h"

typedef struct Bounds { double value, weights; } Bounds;        // |ours - PyTorch's| <= bound * (|PyTorch's| + the tensor's largest)

static const char *case_name;

// A tensor of the fixture, in the order of our memory.
static double *fixture(SafetensorsReader *reader, const char *part, const Tensor *x) {
    char name[256];
    snprintf(name, sizeof name, "%s/%s", part, x->name);
    const SafetensorsInfo *info = safetensors_find(reader, name);
    if (!info || info->count != x->count) fail_msg("%s: %s is not in the fixture, or of another size", case_name, name);
    double *file = malloc(x->count * sizeof *file), *memory = malloc(x->count * sizeof *memory);
    check_status(safetensors_read(reader, info, file, 0, x->count));
    const size_t in = x->dimensions == 2 ? x->shape[0] : 1, out = x->count / in;
    for (size_t i = 0; i < in; i++)
        for (size_t o = 0; o < out; o++) memory[x->transposed ? o * in + i : i * out + o] = file[i * out + o];
    free(file);
    return memory;
}

static double *fixture_values(SafetensorsReader *reader, const char *name, size_t n) {
    const SafetensorsInfo *info = safetensors_find(reader, name);
    if (!info || info->count != n) fail_msg("%s: %s is not in the fixture, or not of %zu values", case_name, name, n);
    double *values = malloc(n * sizeof *values);
    check_status(safetensors_read(reader, info, values, 0, n));
    return values;
}

static void load_fixture(const Model *m, SafetensorsReader *reader, const char *part) {
    for (int i = 0; i < m->table.tensor_count; i++) {
        const Tensor *x = &m->table.tensors[i];
        double *values = fixture(reader, part, x);
        device->write(tensor_place(m, m->master, x), values, x->count);
        free(values);
    }
    narrow_weights(m);
}

static void compare(const char *what, const char *name, const double *ours, const double *theirs, size_t n, double bound) {
    double largest_value = 0;
    for (size_t i = 0; i < n; i++) largest_value = fmax(largest_value, fabs(theirs[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(ours[i] - theirs[i]) <= bound * (fabs(theirs[i]) + largest_value) + 1e-3 * bound))
            fail_msg("%s (%s): %s %s [%zu]: %.15g, PyTorch %.15g", case_name, device->dtype, what, name, i, ours[i], theirs[i]);
}

static void compare_tensors(const Model *m, const Real *arena, SafetensorsReader *reader, const char *part, bool buffers, double bound) {
    for (int i = 0; i < (buffers ? m->table.tensor_count : m->table.parameter_tensors); i++) {
        const Tensor *x = &m->table.tensors[i];
        double *theirs = fixture(reader, part, x), *ours = read_reals(tensor_place(m, arena, x), x->count);
        compare(part, x->name, ours, theirs, x->count, bound);
        free(theirs);
        free(ours);
    }
}

static void compare_logits(const Pass *f, SafetensorsReader *reader, double bound) {
    const size_t rows = (size_t)f->B * f->T, V = f->model->shape.V, stride = f->model->table.classifier.out;
    double *theirs = fixture_values(reader, "logits", rows * V), *ours = read_logits(f, rows);
    for (size_t row = 0; row < rows; row++) memmove(ours + row * V, ours + row * stride, V * sizeof *ours);
    compare("logits", "", ours, theirs, rows * V, bound);
    free(theirs);
    free(ours);
}

static void send_tokens(Trainer *t, SafetensorsReader *reader, int step) {
    const size_t rows = (size_t)t->pass.B * t->pass.T;
    int *host = t->batches[0].host;
    for (int part = 0; part < 2; part++) {
        char name[32];
        snprintf(name, sizeof name, "%s.%d", part ? "targets" : "tokens", step);
        double *values = fixture_values(reader, name, rows);
        for (size_t i = 0; i < rows; i++) host[part * rows + i] = (int)values[i];
        free(values);
    }
    check_status(dataset_order(host + 2 * rows, host, rows, t->model.shape.V));
    device->copy_to_device(t->batches[0].on_device, host, 3 * rows * sizeof(int));
}

static void check_steps(Trainer *t, SafetensorsReader *reader, Bounds bounds) {
    const Pass *f = &t->pass;
    const Config *c = &t->config;
    const size_t rows = (size_t)f->B * f->T;
    const int *tokens = t->batches[0].on_device, *targets = tokens + rows, *order = targets + rows;
    double *loss = fixture_values(reader, "loss", 3), *ce = fixture_values(reader, "ce", 3), *norm = fixture_values(reader, "grad_norm", 3),
           *lr = fixture_values(reader, "lr", 3), *kl = NULL, *entropy = NULL, totals[LOSS_KINDS], verdict[VERDICT_SIZE];
    if (t->objective.teacher) {
        kl = fixture_values(reader, "kl", 3);
        entropy = fixture_values(reader, "teacher_entropy", 3);
    }
    for (int step = 0; step < 3; step++) {
        send_tokens(t, reader, step);
        device->zero(f->totals, f->total_count * sizeof(double));
        device->zero(t->model.gradient, t->model.table.count * device->real_bytes);
        forward(f, tokens, f->B, 0, f->T);
        if (t->objective.teacher) forward(t->objective.teacher, tokens, f->B, 0, f->T);
        if (step == 0) compare_logits(f, reader, bounds.value);
        classify(f, &t->objective, targets, rows, 1.0 / rows);
        if (step == 0) {
            double *ours = read_reals(f->losses, rows), *theirs = fixture_values(reader, "losses", rows);
            compare("losses", "of rows", ours, theirs, rows, bounds.value);
            free(ours);
            free(theirs);
        }
        backward(f, tokens, order, f->B, f->T, true);
        if (step == 0) compare_tensors(&t->model, t->model.gradient, reader, "grads", false, bounds.value);
        const double rate = learning_rate(c, step);
        assert_true(fabs(rate - lr[step]) <= 1e-14 * lr[step]);
        update_weights(t, &(AdamW){ .lr = rate, .beta1 = c->optimizer.beta1, .beta2 = c->optimizer.beta2, .eps = c->optimizer.eps,
                                    .weight_decay = c->optimizer.weight_decay, .step = step + 1 });
        device->copy_to_host(totals, f->totals, sizeof totals);
        device->copy_to_host(verdict, f->verdict, sizeof verdict);
        for (int i = 0; i < LOSS_KINDS; i++) totals[i] /= rows;
        compare("ce", "", &totals[LOSS_CE], &ce[step], 1, bounds.value);
        compare("grad_norm", "", &verdict[VERDICT_NORM], &norm[step], 1, bounds.value);
        if (t->objective.teacher) {
            const double w = c->distill.weight, tau = c->distill.temperature;
            compare("kl", "", &totals[LOSS_KL], &kl[step], 1, bounds.value);
            compare("teacher_entropy", "", &totals[LOSS_TEACHER_ENTROPY], &entropy[step], 1, bounds.value);
            totals[LOSS_CE] = (1 - w) * totals[LOSS_CE] + w * tau * tau * (totals[LOSS_KL] + totals[LOSS_TEACHER_ENTROPY]);
        }
        compare("loss", "", &totals[LOSS_CE], &loss[step], 1, bounds.value);
    }
    compare_tensors(&t->model, t->model.master, reader, "after", true, bounds.weights);
    free(loss); free(ce); free(norm); free(lr); free(kl); free(entropy);
}

static void check_case(const char *path, const Device *on, Bounds bounds) {
    char config_path[512], teacher_path[512];
    const int stem = (int)(strlen(path) - strlen(".safetensors"));
    Config config, teacher;
    SafetensorsReader *reader;
    snprintf(config_path, sizeof config_path, "%.*s.json", stem, path);
    snprintf(teacher_path, sizeof teacher_path, "%.*s.teacher.json", stem, path);
    FILE *file = fopen(teacher_path, "r");
    if (file) fclose(file);
    case_name = path;
    check_status(config_read(&config, config_path, NULL, 0));
    if (file) check_status(config_read(&teacher, teacher_path, NULL, 0));
    config.compute.threads = 1;
    check_status(safetensors_open(&reader, path));
    Trainer *t = open_trainer(on, &config, file ? &teacher : NULL);
    load_fixture(&t->model, reader, "weights");
    if (file) load_fixture(&t->teacher_model, reader, "teacher");
    check_steps(t, reader, bounds);
    safetensors_close(reader);
    shut_trainer(t);
}

static void check_all(const Device *on, Bounds bounds) {
    glob_t found;
    assert_int_equal(glob("tests/fixtures/*.safetensors", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 16);
    for (size_t i = 0; i < found.gl_pathc; i++) check_case(found.gl_pathv[i], on, bounds);
    globfree(&found);
}

static void test_double(void **state) {
    (void)state;
    check_all(&cpu_double_device, (Bounds){ .value = 1e-11, .weights = 1e-11 });
}

// Moving the fixtures' weights by float's rounding moves their results by at most 1e-5; the sums here are longer than one rounding.
static void test_float(void **state) {
    (void)state;
    check_all(&cpu_device, (Bounds){ .value = 5e-5, .weights = 1e-4 });
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_double), cmocka_unit_test(test_float) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
