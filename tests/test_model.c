// What must hold of a whole model whatever its weights: causality, decoding with a cache equal to the full forward pass, a gate forced open
// equal to no gate, affine with alpha = alpha_ma = 1 equal to baseline, the parameter table's own consistency.
#include "harness.h"

typedef void Check(Config *config, const char *name);

static void for_all_models(Check *check) {
    static const char *const arch_names[] = { "gpt2", "llama", "qwen2" };
    for (int arch = 0; arch < 3; arch++)
        for (int type = 0; type < 4; type++)
            for (int gate = 0; gate < 3; gate++) {
                Config c = small_config(arch);
                char name[96];
                if (arch == ARCH_LLAMA) { c.model.H = 6; c.model.K = 2; }
                c.attention.type = type;
                c.attention.gate = gate;
                snprintf(name, sizeof name, "%s, %s, gate %s", arch_names[arch], attention_type_name(type), gate_name(gate));
                check(&c, name);
            }
}

// Changing a token changes nothing before it, not one bit, and something at it.
static void check_causality(Config *c, const char *name) {
    Trainer *t = open_trainer(&cpu_double_device, c, NULL);
    const int B = t->pass.B, T = t->pass.T, V = c->model.V, stride = t->model.table.classifier.out, *tokens, *targets, *order;
    fill_random(&t->model, 5);
    fill_batch(t, 6, &tokens, &targets, &order);
    forward(&t->pass, tokens, B, 0, T);
    double *before = read_logits(&t->pass, (size_t)B * T);
    for (int at = 0; at < T; at += 4) {
        int *host = t->batches[0].host, kept = host[T + at];                // in the second sequence
        host[T + at] = (kept + 1) % V;
        device->copy_to_device(t->batches[0].on_device, host, (size_t)B * T * sizeof(int));
        forward(&t->pass, tokens, B, 0, T);
        double *after = read_logits(&t->pass, (size_t)B * T);
        if (memcmp(before, after, (size_t)(T + at) * stride * sizeof *before))
            fail_msg("%s: token %d changed what stands before it", name, at);
        for (int i = at; i < T; i++)
            if (!memcmp(before + (size_t)(T + i) * stride, after + (size_t)(T + i) * stride, V * sizeof *before))
                fail_msg("%s: token %d does not reach position %d", name, at, i);
        free(after);
        host[T + at] = kept;
    }
    free(before);
    shut_trainer(t);
}

static void test_causality(void **state) { (void)state; for_all_models(check_causality); }

// One sequence decoded a few tokens at a time, its projections cached, gives the logits of one forward pass over all of it.
static void check_decoding(Config *c, const char *name) {
    static const int pieces[] = { 5, 1, 1, 4, 1, 1 };                       // 13 tokens
    Trainer *t;
    c->sample.every = 1;
    c->train.batch_size = c->train.micro_batch_size = 1;
    t = open_trainer(&cpu_double_device, c, NULL);
    const int T = t->pass.T, V = c->model.V, stride = t->model.table.classifier.out, *tokens, *targets, *order;
    fill_random(&t->model, 5);
    fill_batch(t, 6, &tokens, &targets, &order);
    forward(&t->pass, tokens, 1, 0, T);
    double *whole = read_logits(&t->pass, T);
    for (int k = 0, first = 0; first < T; first += pieces[k++]) {
        forward(&t->sampling, tokens + first, 1, first, pieces[k]);
        double *part = read_logits(&t->sampling, pieces[k]);
        for (int i = 0; i < pieces[k]; i++)
            for (int v = 0; v < V; v++) {
                const double a = whole[(size_t)(first + i) * stride + v], b = part[(size_t)i * stride + v];
                if (!(fabs(a - b) <= 1e-12 * (1 + fabs(a))))
                    fail_msg("%s: position %d: %.15g at once, %.15g with the cache", name, first + i, a, b);
            }
        free(part);
    }
    free(whole);
    shut_trainer(t);
}

static void test_decoding(void **state) { (void)state; for_all_models(check_decoding); }

static void set_tensor(const Model *m, const char *part, int shape1, int column, double value) {
    for (int i = 0; i < m->table.parameter_tensors; i++) {
        const Tensor *x = &m->table.tensors[i];
        if (!strstr(x->name, part)) continue;
        double *values = read_reals(tensor_place(m, m->master, x), x->count);
        for (size_t j = 0; j < x->count; j++)
            if (column < 0 || (int)(j % shape1) == column) values[j] = value;
        device->write(tensor_place(m, m->master, x), values, x->count);
        free(values);
    }
    narrow_weights(m);
}

// Logits of a model on which `change` was done after random weights were set.
static double *logits_of(const Config *c, void (*change)(const Model *m), size_t *n) {
    Trainer *t = open_trainer(&cpu_double_device, c, NULL);
    const int *tokens, *targets, *order;
    fill_random(&t->model, 5);
    change(&t->model);
    fill_batch(t, 6, &tokens, &targets, &order);
    forward(&t->pass, tokens, t->pass.B, 0, t->pass.T);
    double *logits = read_logits(&t->pass, (size_t)t->pass.B * t->pass.T);
    *n = (size_t)t->pass.B * t->pass.T * t->model.table.classifier.out;
    shut_trainer(t);
    return logits;
}

// The first LayerNorm gives 50 in column 3 for every token, whatever the token; the gates read that column alone: sigmoid(50) is 1 in
// double.
static void force_gates_open(const Model *m) {
    set_tensor(m, "ln_1.weight", m->shape.C, 3, 0);
    set_tensor(m, "ln_1.bias", m->shape.C, 3, 50);
    set_tensor(m, "gate_proj", m->shape.C, -1, 0);
    set_tensor(m, "gate_proj", m->shape.C, 3, 1);
    set_tensor(m, "alpha_proj", m->shape.C, 3, 0);                          // or every alpha would be clipped
}

static void test_gate_forced_open(void **state) {
    (void)state;
    for (int type = 0; type < 4; type++) {
        Config c = small_config(ARCH_GPT2);
        size_t n, same;
        c.attention.type = type;
        double *none = logits_of(&c, force_gates_open, &n);
        for (int gate = GATE_HEADWISE; gate <= GATE_ELEMENTWISE; gate++) {
            c.attention.gate = gate;
            double *gated = logits_of(&c, force_gates_open, &same);
            assert_int_equal(n, same);
            for (size_t i = 0; i < n; i++) assert_true(fabs(none[i] - gated[i]) <= 1e-13 * (1 + fabs(none[i])));
            free(gated);
        }
        free(none);
    }
}

// alpha = 1 through sigmoid or clipping of a large input in column 3; alpha_ma = 1: beta is 0.
static void force_alpha_to_one(const Model *m) {
    set_tensor(m, "ln_1.weight", m->shape.C, 3, 0);
    set_tensor(m, "ln_1.bias", m->shape.C, 3, 50);
    set_tensor(m, "alpha_proj", m->shape.C, -1, 0);
    set_tensor(m, "alpha_proj", m->shape.C, 3, 1);
    if (!m->alpha_ma) return;
    double ones[64];
    for (int i = 0; i < 64; i++) ones[i] = 1;
    device->write(m->alpha_ma, ones, (size_t)m->shape.L * m->shape.H);
}

static void test_affine_with_alpha_one(void **state) {
    (void)state;
    for (int activation = 0; activation < 2; activation++)
        for (int affine_n = 0; affine_n < 2; affine_n++) {
            Config c = small_config(ARCH_GPT2);
            size_t n, same;
            double *baseline = logits_of(&c, force_alpha_to_one, &n);
            c.attention.type = ATTENTION_AFFINE;
            c.attention.affine_activation = activation;
            c.attention.affine_n = affine_n;
            double *affine = logits_of(&c, force_alpha_to_one, &same);
            assert_int_equal(n, same);
            for (size_t i = 0; i < n; i++) assert_true(fabs(baseline[i] - affine[i]) <= 1e-13 * (1 + fabs(baseline[i])));
            free(affine);
            free(baseline);
        }
}

// Every tensor lies inside one bucket and overlaps none; spans cover exactly the parameters, once, over all processes together.
static void check_table(Config *c, const char *name) {
    for (int processes = 1; processes <= 3; processes++) {
        ParameterTable p;
        check_status(parameter_table_build(&p, &c->model, &c->attention, 0, processes));
        char *owner = calloc(p.count, 1);
        size_t parameters = 0;
        for (int i = 0; i < p.parameter_tensors; i++) {
            const Tensor *x = &p.tensors[i];
            parameters += x->count;
            assert_int_equal(x->count, (size_t)x->shape[0] * (x->dimensions == 2 ? x->shape[1] : 1));
            for (size_t j = 0; j < x->count; j++) {
                if (owner[x->offset + j]) fail_msg("%s: %s overlaps another tensor", name, x->name);
                owner[x->offset + j] = 1;
            }
        }
        assert_int_equal(parameters, p.parameters);
        size_t end = 0;
        for (int b = 0; b < p.bucket_count; b++) {
            assert_int_equal(p.buckets[b].offset, end);
            assert_int_equal(p.buckets[b].count % processes, 0);
            end += p.buckets[b].count;
        }
        assert_int_equal(end, p.count);
        parameter_table_free(&p);
        for (int rank = 0; rank < processes; rank++) {
            check_status(parameter_table_build(&p, &c->model, &c->attention, rank, processes));
            for (int i = 0; i < p.span_count; i++) {
                assert_true(p.spans[i].count <= SPAN_SIZE && p.spans[i].state_offset + p.spans[i].count <= p.count / processes);
                for (size_t j = 0; j < p.spans[i].count; j++) owner[p.spans[i].offset + j] += 1;
            }
            parameter_table_free(&p);
        }
        for (size_t j = 0; j < end; j++) assert_true(owner[j] == 0 || owner[j] == 2);
        free(owner);
    }
}

static void test_parameter_table(void **state) { (void)state; for_all_models(check_table); }

// The paper's models: parameters in all without the attention's own, and those the attention adds (shared facts of arXiv 2602.23057 and of
// the models' published configs).
static void test_paper_parameters(void **state) {
    (void)state;
    static const struct { const char *model; size_t parameters, affine, gate; } expected[] = {
        { "qwen-0.5b", 463987712, 393216, 25165824 }, { "llama-1b", 1235814400, 1048576, 67108864 },
        { "llama-3b", 3212749824, 2064384, 264241152 },
    };
    static const struct { const char *variant; bool affine, gate; } variants[] = {
        { "baseline", false, false }, { "sink", false, false }, { "affine", true, false },
        { "gated", false, true }, { "affine-gated", true, true },
    };
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 5; j++) {
            char path[128];
            Config c;
            ParameterTable p;
            snprintf(path, sizeof path, "configs/paper/%s-%s.json", expected[i].model, variants[j].variant);
            check_status(config_read(&c, path, NULL, 0));
            check_status(parameter_table_build(&p, &c.model, &c.attention, 0, 1));
            const size_t sinks = j == 1 ? (size_t)c.model.L * c.model.H : 0;
            const size_t own = sinks + variants[j].affine * expected[i].affine + variants[j].gate * expected[i].gate;
            assert_int_equal(p.attention_parameters, own);
            assert_int_equal(p.parameters, expected[i].parameters + own);
            parameter_table_free(&p);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_causality), cmocka_unit_test(test_decoding), cmocka_unit_test(test_gate_forced_open),
        cmocka_unit_test(test_affine_with_alpha_one), cmocka_unit_test(test_parameter_table), cmocka_unit_test(test_paper_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
