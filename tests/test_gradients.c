// The gradient of every parameter tensor, in double, against four-point central differences of the loss: on sampled elements, and along
// random directions through the whole tensor. Over arch x attention x gate and the options that change a formula. In a sanitized build the
// guards between the views of memory are poisoned, so an overrun stops the test.
#include "harness.h"

static const char *const arch_names[] = { "gpt2", "llama", "qwen2" };
static const char *const type_names[] = { "baseline", "off_by_one", "sink", "affine" };
static const char *const gate_names[] = { "none", "headwise", "elementwise" };

enum { SAMPLED = 4, DIRECTIONS = 2 };

typedef struct OneBatch { const int *tokens, *targets, *order; } OneBatch;

// The mean loss, as the objective says; with backward also the gradient.
static double loss_of(Trainer *t, const OneBatch *batch, bool with_gradient) {
    const Pass *f = &t->pass;
    const size_t rows = (size_t)f->B * f->T;
    const double w = t->objective.weight, tau = t->objective.temperature;
    double totals[LOSS_KINDS];
    device->zero(f->totals, f->total_count * sizeof(double));
    if (with_gradient) device->zero(t->model.gradient, t->model.table.count * device->real_bytes);
    forward(f, batch->tokens, f->B, 0, f->T);
    if (t->objective.teacher) forward(t->objective.teacher, batch->tokens, f->B, 0, f->T);
    classify(f, &t->objective, batch->targets, rows, with_gradient ? 1.0 / rows : 0);
    if (with_gradient) backward(f, batch->tokens, batch->order, f->B, f->T, true);
    device->copy_to_host(totals, f->totals, sizeof totals);
    check_status(device->wait(device->mark()));
    if (!t->objective.teacher) return totals[LOSS_CE] / rows;
    return ((1 - w) * totals[LOSS_CE] + w * tau * tau * (totals[LOSS_KL] + totals[LOSS_TEACHER_ENTROPY])) / rows;
}

// d loss / d step of weights + step * direction, at 0
static double difference(Trainer *t, const OneBatch *batch, const Tensor *x, const double *values, const double *direction) {
    const double h = 2e-4, factors[] = { 1, -8, 8, -1 }, steps[] = { -2, -1, 1, 2 };
    double *moved = malloc(x->count * sizeof *moved), sum = 0;
    Real *place = tensor_place(&t->model, t->model.master, x);
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < x->count; i++) moved[i] = values[i] + steps[k] * h * direction[i];
        device->write(place, moved, x->count);
        sum += factors[k] * loss_of(t, batch, false);
    }
    device->write(place, values, x->count);
    free(moved);
    return sum / (12 * h);
}

static void check_tensor(Trainer *t, const OneBatch *batch, const Tensor *x, const double *gradient, const char *name) {
    double *values = read_reals(tensor_place(&t->model, t->model.master, x), x->count), *direction = calloc(x->count, sizeof *direction);
    const uint64_t key = random_key(7, x->name);
    for (int k = 0; k < SAMPLED + DIRECTIONS; k++) {
        double g = 0, norm = 0;
        for (size_t i = 0; i < x->count; i++) {
            direction[i] = k < SAMPLED ? i == random_bits(key, k) % x->count : random_normal(key, 1000 * k + i);
            norm += direction[i] * direction[i];
        }
        for (size_t i = 0; i < x->count; i++) direction[i] /= sqrt(norm);
        for (size_t i = 0; i < x->count; i++) g += gradient[i] * direction[i];
        const double fd = difference(t, batch, x, values, direction);
        if (!(fabs(g - fd) < 1e-6 * (fabs(g) + fabs(fd)) + 1e-9))
            fail_msg("%s: %s: %s %d: gradient %.12g, difference %.12g", name, x->name, k < SAMPLED ? "element" : "direction", k, g, fd);
    }
    free(values);
    free(direction);
}

// Whether some alpha's input lies so near to linear clipping's kinks (-5 and 5) that a difference would straddle one.
static bool is_near_kink(const Trainer *t) {
    const Pass *f = &t->pass;
    const Attention a = attention_of(f, 0, f->B, 0, f->T);
    const size_t rows = (size_t)f->B * f->T, n = rows * a.width;
    bool near = false;
    if (a.config.type != ATTENTION_AFFINE || a.config.affine_activation != AFFINE_LINEAR_CLIPPING) return false;
    Real *wide = device->allocate(n * device->real_bytes);
    for (int l = 0; l < t->model.shape.L; l++) {
        device->widen(wide, f->layers[l].projection, n);
        double *values = read_reals(wide, n);
        for (size_t row = 0; row < rows; row++)
            for (int h = 0; h < a.H; h++) near = near || fabs(fabs(values[row * a.width + a.alpha_column + h]) - 5) < 5e-3;
        free(values);
    }
    device->release(wide);
    return near;
}

// All tensors of one case. Returns how many were checked.
static int check_case(const Config *config, const Config *teacher, const char *name) {
    Trainer *t = open_trainer(&cpu_double_device, config, teacher);
    OneBatch batch;
    if (teacher) fill_random(&t->teacher_model, 12);
    fill_batch(t, 13, &batch.tokens, &batch.targets, &batch.order);
    uint64_t seed = 11;
    do {
        fill_random(&t->model, seed++);
        loss_of(t, &batch, true);
    } while (is_near_kink(t));
    double *gradient = read_reals(t->model.gradient, t->model.table.count);
    for (size_t i = 0; i < t->model.table.count; i++)
        if (!isfinite(gradient[i])) fail_msg("%s: the gradient at %zu of the arena is %g", name, i, gradient[i]);
    for (int i = 0; i < t->model.table.parameter_tensors; i++) {
        const Tensor *x = &t->model.table.tensors[i];
        check_tensor(t, &batch, x, gradient + x->offset, name);
    }
    const int checked = t->model.table.parameter_tensors;
    free(gradient);
    shut_trainer(t);
    return checked;
}

typedef struct Option { const char *name; void (*apply)(Config *c); bool (*fits)(const Config *c); } Option;

static bool is_affine(const Config *c) { return c->attention.type == ATTENTION_AFFINE; }
static bool has_key_heads(const Config *c) { return c->model.arch != ARCH_GPT2; }
static bool always(const Config *c) { (void)c; return true; }
static void plain(Config *c) { (void)c; }
static void grouped(Config *c) { c->model.H = 6; c->model.K = 2; }
static void one_key_head(Config *c) { c->model.K = 1; c->model.D = 6; }
static void other_tying(Config *c) { c->model.tie_word_embeddings = !c->model.tie_word_embeddings; }
static void prefix(Config *c) { c->attention.affine_n = AFFINE_N_PREFIX; }
static void sigmoid_alpha(Config *c) { c->attention.affine_activation = AFFINE_SIGMOID; }
static void long_affine(Config *c) { c->attention.affine_length = 29; }
static void short_affine(Config *c) { c->attention.affine_length = 5; }
static void scaled_rope(Config *c) {
    c->model.rope_scaling = (RopeScaling){ .rope_type = ROPE_SCALING_LLAMA3, .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4,
                                           .original_max_position_embeddings = 32 };
}

static const Option options[] = {
    { "plain", plain, always }, { "grouped-query", grouped, has_key_heads }, { "one key head", one_key_head, has_key_heads },
    { "other tying", other_tying, always }, { "prefix", prefix, is_affine }, { "sigmoid", sigmoid_alpha, is_affine },
    { "affine_length over T", long_affine, is_affine }, { "affine_length under T", short_affine, is_affine },
    { "llama3 rope", scaled_rope, has_key_heads },
};

static void test_gradients_of_arch(Arch arch) {
    int cases = 0, tensors = 0;
    for (int type = 0; type < 4; type++)
        for (int gate = 0; gate < 3; gate++)
            for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
                Config c = small_config(arch);
                c.attention.type = type;
                c.attention.gate = gate;
                if (!options[o].fits(&c)) continue;
                options[o].apply(&c);
                char name[128];
                snprintf(name, sizeof name, "%s, %s, gate %s, %s", arch_names[arch], type_names[type], gate_names[gate], options[o].name);
                tensors += check_case(&c, NULL, name);
                cases++;
            }
    print_message("%s: %d cases, %d tensors\n", arch_names[arch], cases, tensors);
}

static void test_gpt2(void **state) { (void)state; test_gradients_of_arch(ARCH_GPT2); }
static void test_llama(void **state) { (void)state; test_gradients_of_arch(ARCH_LLAMA); }
static void test_qwen2(void **state) { (void)state; test_gradients_of_arch(ARCH_QWEN2); }

static void test_distillation(void **state) {
    (void)state;
    for (int arch = 0; arch < 3; arch++)
        for (int part = 0; part < 2; part++) {
            Config c = small_config(arch), teacher = small_config((arch + 1) % 3);
            c.attention.type = ATTENTION_AFFINE;
            teacher.attention.gate = GATE_HEADWISE;
            teacher.model.L = 1;
            c.distill.weight = part ? 1 : 0.3;
            c.distill.temperature = part ? 1 : 1.7;
            check_case(&c, &teacher, part ? "distillation, weight 1" : "distillation, weight 0.3, temperature 1.7");
        }
}

// A student that is its teacher: kl 0, and at weight 1 and temperature 1 no gradient.
static void test_student_equal_to_teacher(void **state) {
    (void)state;
    Config c = small_config(ARCH_LLAMA);
    c.distill.weight = c.distill.temperature = 1;
    Trainer *t = open_trainer(&cpu_double_device, &c, &c);
    OneBatch batch;
    double totals[LOSS_KINDS];
    fill_random(&t->model, 11);
    fill_random(&t->teacher_model, 11);
    fill_batch(t, 13, &batch.tokens, &batch.targets, &batch.order);
    loss_of(t, &batch, true);
    device->copy_to_host(totals, t->pass.totals, sizeof totals);
    assert_true(fabs(totals[LOSS_KL]) < 1e-12);
    assert_true(totals[LOSS_CE] > 1 && totals[LOSS_TEACHER_ENTROPY] > 1);
    double *gradient = read_reals(t->model.gradient, t->model.table.count);
    for (size_t i = 0; i < t->model.table.count; i++) assert_true(fabs(gradient[i]) < 1e-14);
    free(gradient);
    shut_trainer(t);
}

// compute.recompute changes memory, not one bit of a result; alpha is summed once all the same.
static void test_recompute(void **state) {
    (void)state;
    for (int arch = 0; arch < 3; arch++)
        for (int type = 0; type < 4; type++)
            for (int gate = 0; gate < 3; gate++) {
                double *kept = NULL;
                size_t bytes = 0;
                for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_BLOCK; mode++) {
                    Config c = small_config(arch);
                    c.attention.type = type;
                    c.attention.gate = gate;
                    c.compute.recompute = mode;
                    Trainer *t = open_trainer(&cpu_double_device, &c, NULL);
                    OneBatch batch;
                    fill_random(&t->model, 11);
                    fill_batch(t, 13, &batch.tokens, &batch.targets, &batch.order);
                    t->pass.diagnose = true;
                    loss_of(t, &batch, true);
                    const size_t n = t->model.table.count, sums = t->pass.total_count;
                    double *all = malloc((n + sums) * sizeof *all);
                    device->read(all, t->model.gradient, n);
                    device->copy_to_host(all + n, t->pass.totals, sums * sizeof *all);
                    if (mode == RECOMPUTE_NONE) {
                        kept = all;
                        bytes = (n + sums) * sizeof *all;
                        if (type == ATTENTION_AFFINE) assert_true(all[n + (t->pass.alpha_sums - t->pass.totals)] > 0);
                    } else {
                        if (memcmp(kept, all, bytes))
                            fail_msg("%s, %s, gate %s: recompute %d differs", arch_names[arch], type_names[type], gate_names[gate], mode);
                        free(all);
                    }
                    shut_trainer(t);
                }
                free(kept);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2), cmocka_unit_test(test_llama), cmocka_unit_test(test_qwen2), cmocka_unit_test(test_distillation),
        cmocka_unit_test(test_student_equal_to_teacher), cmocka_unit_test(test_recompute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
