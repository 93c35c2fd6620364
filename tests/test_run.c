// A run from end to end, as a user sees it: what it writes, that it learns, that its numbers depend on nothing they should not, and what
// --dry-run, eval and sample say of it. The program itself is run, on models of a few thousand parameters.
#include "support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cjson/cJSON.h>

#include "core/error.h"
#include "core/safetensors.h"

enum { L = 2, C = 16, H = 2, D = 8, V = 32, T = 8, BATCH = 4 };      // what the workplace's config.json says

static const char *const types[] = { "baseline", "off_by_one", "sink", "affine" };
static const char *const gates[] = { "none", "headwise", "elementwise" };
enum { TYPES = 4, GATES = 3 };

static const char *model_file(const char *run_dir, long step) {
    return path_of("%s/checkpoints/step-%08ld/model.safetensors", run_dir, step);
}

static const char *text_of(const cJSON *object, const char *field) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, field));
    if (!text) fail_msg("no text %s in %s", field, cJSON_PrintUnformatted(object));
    return text;
}

static cJSON *parse(const char *text) {
    cJSON *json = cJSON_Parse(text);
    if (!json) fail_msg("not JSON: %s", text);
    return json;
}

static void assert_near(double x, double y, double tolerance) {
    if (!(fabs(x - y) <= tolerance * fabs(y))) fail_msg("%.17g is not %.17g within %g of it", x, y, tolerance);
}

// ---- counts, from the formulas of the papers and not from the program's table ----

typedef struct Shape {
    bool gpt2, biases, tied;            // biases: of q, k and v in llama's layout
    int vocab, positions, layers, hidden, heads, key_heads, head, intermediate;
    const char *attention, *gate;
} Shape;

static const Shape workplace_shape = { .gpt2 = true, .tied = true, .vocab = V, .positions = T, .layers = L, .hidden = C, .heads = H,
                                       .key_heads = H, .head = D, .intermediate = 4 * C, .attention = "baseline", .gate = "none" };

static double attention_parameters(const Shape *s) {
    double a = 0;
    if (!strcmp(s->attention, "sink")) a += s->heads;
    if (!strcmp(s->attention, "affine")) a += s->heads * s->hidden;
    if (!strcmp(s->gate, "headwise")) a += s->heads * s->hidden;
    if (!strcmp(s->gate, "elementwise")) a += s->heads * s->head * s->hidden;
    return s->layers * a;
}

static double parameters(const Shape *s) {
    const double c = s->hidden, q = s->heads * s->head, kv = s->key_heads * s->head, inner = s->intermediate;
    double layer, rest;
    if (s->gpt2) {
        layer = 2 * 2 * c + (c * 3 * c + 3 * c) + (c * c + c) + (c * inner + inner) + (inner * c + c);
        rest = s->vocab * c + s->positions * c + 2 * c;
    } else {
        layer = 2 * c + c * (q + 2 * kv) + (s->biases ? q + 2 * kv : 0) + q * c + 3 * c * inner;
        rest = s->vocab * c + c;
    }
    return s->layers * layer + rest + (s->tied ? 0 : s->vocab * c) + attention_parameters(s);
}

// 6 for each weight that multiplies, and 6 L H D T
static double flops(const Shape *s, int length) {
    const double c = s->hidden, q = s->heads * s->head, kv = s->key_heads * s->head;
    double products = s->layers * (c * (q + 2 * kv) + q * c + (s->gpt2 ? 2 : 3) * c * s->intermediate) + s->vocab * c;
    products += attention_parameters(s) - (strcmp(s->attention, "sink") ? 0 : s->layers * s->heads);     // sinks multiply nothing
    return 6 * products + 6.0 * s->layers * q * length;
}

// ---- one run of every kind ----

static void check_start(const cJSON *start, const Shape *shape) {
    text_of(start, "version");
    text_of(start, "compiler");
    text_of(start, "device");
    assert_string_equal(text_of(start, "dtype"), "fp32");
    assert_int_equal(number(start, "processes"), 1);
    assert_int_equal(number(start, "threads"), atoi(getenv("OMP_NUM_THREADS")));
    assert_int_equal(number(start, "tokens_per_step"), BATCH * T);
    assert_int_equal(number(start, "parameters"), parameters(shape));
    assert_int_equal(number(start, "attention_parameters"), attention_parameters(shape));
    assert_int_equal(number(start, "flops_per_token"), flops(shape, T));
    assert_int_equal(strspn(text_of(start, "initial_weights"), "0123456789abcdef"), 16);
    const cJSON *shards = cJSON_GetObjectItem(start, "shards");
    static const struct { const char *split, *path; int tokens; } wanted[] = {
        { "train", "train_0.bin", 1601 }, { "train", "train_1.bin", 803 }, { "val", "val.bin", 331 } };
    assert_int_equal(cJSON_GetArraySize(shards), 3);
    for (int i = 0; i < 3; i++) {
        const cJSON *shard = cJSON_GetArrayItem(shards, i);
        assert_string_equal(text_of(shard, "split"), wanted[i].split);
        assert_string_equal(text_of(shard, "path"), wanted[i].path);
        assert_int_equal(number(shard, "tokens"), wanted[i].tokens);
        assert_int_equal(strlen(text_of(shard, "hash")), 16);
    }
}

// The event at *at is the one named, of that step (-1: of none); steps on.
static const cJSON *next_event(const cJSON **at, const char *name, long step) {
    const cJSON *event = *at;
    if (!event || strcmp(text_of(event, "event"), name))
        fail_msg("wanted %s of step %ld, found %s", name, step, event ? cJSON_PrintUnformatted(event) : "nothing");
    if (step >= 0) assert_int_equal(number(event, "step"), step);
    *at = event->next;
    return event;
}

static void check_step(const cJSON *event, long step) {
    assert_int_equal(number(event, "tokens"), step * BATCH * T);
    assert_true(number(event, "loss") > 0);
    assert_true(number(event, "grad_norm") > 0);
    assert_true(number(event, "lr") == 0.01);
    assert_true(number(event, "seconds") >= 0);
    assert_true(number(event, "tokens_per_second") > 0);
    assert_null(cJSON_GetObjectItem(event, "bad"));
}

static double sum_of(const cJSON *array) {
    const cJSON *item;
    double sum = 0;
    cJSON_ArrayForEach(item, array) sum += item->valuedouble;
    return sum;
}

// What the attention is, it also says in its diagnostics. step: the event of the same step.
static void check_diagnostics(const cJSON *event, const cJSON *step, const Shape *shape) {
    double squares = 0;
    const cJSON *layers = cJSON_GetObjectItem(event, "layers"), *layer;
    const bool affine = !strcmp(shape->attention, "affine");
    const bool sink = !strcmp(shape->attention, "sink") || !strcmp(shape->attention, "off_by_one");
    assert_int_equal(cJSON_GetArraySize(layers), shape->layers);
    cJSON_ArrayForEach(layer, layers) {
        const double row_sum = number(layer, "row_sum_mean"), first = number(layer, "first_token_weight");
        if (affine) assert_true(number(layer, "alpha_mean") >= 0 && number(layer, "alpha_mean") <= 1);
        else if (sink) assert_true(fabs(row_sum + number(layer, "sink_mass") - 1) < 1e-5);
        else assert_true(fabs(row_sum - 1) < 1e-5);
        if (!affine) assert_true(first > 0 && first <= 1);
        if (strcmp(shape->gate, "none")) assert_true(number(layer, "gate_mean") > 0 && number(layer, "gate_mean") < 1);
        assert_int_equal(cJSON_HasObjectItem(layer, "sink_mass"), sink);
        assert_int_equal(cJSON_HasObjectItem(layer, "alpha_mean"), affine);
        assert_int_equal(cJSON_HasObjectItem(layer, "gate_mean"), strcmp(shape->gate, "none") != 0);
        assert_true(number(layer, "grad_norm") > 0 && number(layer, "param_norm") > 0);
        squares += number(layer, "grad_norm") * number(layer, "grad_norm");
        const cJSON *counts = cJSON_GetObjectItem(cJSON_GetObjectItem(layer, "row_sum_histogram"), "counts");
        assert_int_equal(cJSON_GetArraySize(counts), 64);
        assert_int_equal(sum_of(counts), BATCH * T * shape->heads);
        const cJSON *heads = cJSON_GetObjectItem(cJSON_GetObjectItem(layer, "heads"), "row_sum_mean");
        assert_int_equal(cJSON_GetArraySize(heads), shape->heads);
        assert_near(sum_of(heads) / shape->heads, row_sum, 1e-6);
    }
    assert_true(squares < number(step, "grad_norm") * number(step, "grad_norm"));       // the rest is the embeddings'
}

static void check_events(const char *run_dir, long steps, const Shape *shape) {
    cJSON *events = read_metrics(run_dir, NULL);
    const cJSON *at = events->child;
    check_start(next_event(&at, "start", -1), shape);
    double loss = number(next_event(&at, "eval", 0), "val_loss");
    assert_true(fabs(loss - log(V)) < 0.05);                // small weights know nothing
    double first = 0, last = 0;
    for (long step = 1; step <= steps; step++) {
        const cJSON *event = next_event(&at, "step", step);
        check_step(event, step);
        if (step == 1) first = number(event, "loss");
        if (step > steps - 10) last += number(event, "loss") / 10;
        if (step % 5 == 0) check_diagnostics(next_event(&at, "diagnostics", step), event, shape);
        if (step % 10 == 0 || step == steps) {
            event = next_event(&at, "eval", step);
            loss = number(event, "val_loss");
            assert_near(number(event, "val_perplexity"), exp(loss), 1e-12);
        }
    }
    assert_true(number(next_event(&at, "end", steps), "seconds") > 0);
    assert_null(at);
    assert_true(fabs(first - log(V)) < 0.05);
    if (last > 1.5 || loss > 1.5) fail_msg("%s has not learnt: training loss %g, validation loss %g", run_dir, last, loss);
    cJSON_Delete(events);
}

static void check_files(const char *run_dir, long steps) {
    static const char *const checkpoint_files[] = { "config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json" };
    assert_true(exists(path_of("%s/config.json", run_dir)));
    char *checkpoints = list_directory(path_of("%s/checkpoints", run_dir));
    assert_string_equal(checkpoints, path_of("step-%08ld step-%08ld ", (steps - 1) / 10 * 10, steps));
    free(checkpoints);
    for (int i = 0; i < 4; i++) assert_true(exists(path_of("%s/checkpoints/step-%08ld/%s", run_dir, steps, checkpoint_files[i])));
}

// Values of all tensors of a file but alpha_ma, which is not trained.
static double stored_parameters(const char *path) {
    SafetensorsReader *reader;
    double sum = 0;
    if (safetensors_open(&reader, path)) fail_msg("%s", error_text());
    for (int i = 0; i < safetensors_count(reader); i++)
        if (!strstr(safetensors_info(reader, i)->name, "alpha_ma")) sum += (double)safetensors_info(reader, i)->count;
    safetensors_close(reader);
    return sum;
}

static void run_and_check(const char *flags, long steps, const Shape *shape) {
    char run_dir[64];
    snprintf(run_dir, sizeof run_dir, "%s-%s", shape->attention, shape->gate);
    must("train_gpt config.json --run_dir=%s --train.steps=%ld --attention.type=%s --attention.gate=%s %s", run_dir, steps,
         shape->attention, shape->gate, flags);
    check_files(run_dir, steps);
    check_events(run_dir, steps, shape);
    assert_int_equal(stored_parameters(model_file(run_dir, steps)), parameters(shape));
}

static void test_every_attention(void **state) {
    (void)state;
    for (int t = 0; t < TYPES; t++)
        for (int g = 0; g < GATES; g++) {
            Shape shape = workplace_shape;
            shape.attention = types[t];
            shape.gate = gates[g];
            run_and_check("", 155, &shape);
        }
}

static void test_every_arch(void **state) {
    (void)state;
    const Shape llama = { .vocab = V, .layers = L, .hidden = C, .heads = 4, .key_heads = 2, .head = 6, .intermediate = 40,
                          .attention = "sink", .gate = "elementwise" };
    run_and_check("--model.arch=llama --model.num_attention_heads=4 --model.num_key_value_heads=2 --model.head_dim=6 "
                  "--model.intermediate_size=40", 155, &llama);
    const Shape qwen2 = { .biases = true, .tied = true, .vocab = V, .layers = L, .hidden = C, .heads = H, .key_heads = 1, .head = D,
                          .intermediate = 40, .attention = "affine", .gate = "headwise" };
    run_and_check("--model.arch=qwen2 --model.num_key_value_heads=1 --model.intermediate_size=40 --model.tie_word_embeddings=true "
                  "--attention.affine_n=prefix --attention.affine_activation=sigmoid", 155, &qwen2);
    Shape untied = workplace_shape;
    untied.tied = false;
    run_and_check("--model.tie_word_embeddings=false", 155, &untied);
}

static void test_no_steps(void **state) {
    (void)state;
    must("train_gpt config.json --train.steps=0 --data.train=null --data.val=null");
    char *names = list_directory("run/checkpoints");
    assert_string_equal(names, "step-00000000 ");
    free(names);
    cJSON *events = read_metrics("run", NULL);
    const cJSON *at = events->child;
    next_event(&at, "start", -1);
    next_event(&at, "end", 0);
    assert_null(at);
    cJSON_Delete(events);
}

// The moving average that forward uses begins at 0 and follows the mean alpha of each step, and is what the checkpoint holds.
static void test_moving_average_of_alpha(void **state) {
    (void)state;
    must("train_gpt config.json --attention.type=affine --attention.affine_rho=0.8 --diagnostics.every=1 --train.steps=12");
    cJSON *events = read_metrics("run", "diagnostics");
    for (int l = 0; l < L; l++) {
        double *stored = read_tensor(model_file("run", 12), path_of("transformer.h.%d.attn.alpha_ma", l), NULL);
        for (int h = 0; h < H; h++) {
            double average = 0;
            for (const cJSON *event = events->child; event; event = event->next) {
                const cJSON *heads = cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(event, "layers"), l), "heads");
                assert_true(fabs(cJSON_GetArrayItem(cJSON_GetObjectItem(heads, "alpha_ma"), h)->valuedouble - average) < 1e-6);
                average = 0.8 * average + 0.2 * cJSON_GetArrayItem(cJSON_GetObjectItem(heads, "alpha_mean"), h)->valuedouble;
            }
            assert_true(average > 0.2);
            assert_near(stored[h], average, 1e-6);
        }
        free(stored);
    }
    cJSON_Delete(events);
}

// ---- what the numbers do not depend on ----

static void test_config_read_back(void **state) {
    (void)state;
    must("train_gpt config.json --attention.type=affine --attention.affine_rho=0.7 --optimizer.lr=0.0031 --data.shuffle=true "
         "--schedule.type=cosine --schedule.min_lr_ratio=0.07 --seed=9007199254740991");
    must("train_gpt run/config.json --run_dir=again");
    assert_same_run("run", "again", 20);
}

static void test_same_twice_on_any_number_of_threads(void **state) {
    (void)state;
    // Wide enough that the loops are split; batches of 3 and an odd length, so that they do not divide evenly.
    static const char flags[] = "--attention.type=affine --attention.gate=elementwise --model.hidden_size=48 --model.num_attention_heads=3 "
        "--train.sequence_length=21 --train.batch_size=6 --train.micro_batch_size=3 --train.steps=10 --eval.every=5 --checkpoint.every=0";
    for (int threads = 1; threads <= 3; threads++)
        must("OMP_NUM_THREADS=%d train_gpt config.json %s --run_dir=env%d", threads, flags, threads);
    must("OMP_NUM_THREADS=1 train_gpt config.json %s --run_dir=again", flags);
    must("OMP_NUM_THREADS=1 train_gpt config.json %s --run_dir=key --compute.threads=2", flags);
    assert_same_run("env1", "again", 10);
    assert_same_run("env1", "env2", 10);
    assert_same_run("env1", "env3", 10);
    assert_same_run("env1", "key", 10);
    cJSON *start = read_metrics("key", "start");
    assert_int_equal(number(start->child, "threads"), 2);
    cJSON_Delete(start);
}

// Another seed is another run: the comparisons above can fail.
static void test_the_seed_matters(void **state) {
    (void)state;
    must("train_gpt config.json --train.steps=1");
    must("train_gpt config.json --train.steps=1 --seed=8 --run_dir=other");
    cJSON *a = read_metrics("run", "step"), *b = read_metrics("other", "step");
    assert_true(number(a->child, "loss") != number(b->child, "loss"));
    cJSON_Delete(a);
    cJSON_Delete(b);
}

static void test_recompute_changes_nothing(void **state) {
    (void)state;
    static const char flags[] = "--attention.type=affine --attention.gate=headwise --train.micro_batch_size=2";
    must("train_gpt config.json %s --run_dir=none", flags);
    must("train_gpt config.json %s --run_dir=attention --compute.recompute=attention", flags);
    must("train_gpt config.json %s --run_dir=block --compute.recompute=block", flags);
    assert_same_run("none", "attention", 20);
    assert_same_run("none", "block", 20);
}

// Evaluating, saving and diagnosing look at the model without touching it.
static void test_looking_changes_nothing(void **state) {
    (void)state;
    must("train_gpt config.json --attention.type=affine --eval.every=3 --checkpoint.every=4 --diagnostics.every=1");
    must("train_gpt config.json --attention.type=affine --eval.every=0 --checkpoint.every=0 --diagnostics.every=0 --run_dir=blind");
    assert_same_file(model_file("run", 20), model_file("blind", 20));
    cJSON *a = read_metrics("run", "step"), *b = read_metrics("blind", "step");
    for (const cJSON *x = a->child, *y = b->child; x || y; x = x->next, y = y->next) {
        assert_non_null(x);
        assert_non_null(y);
        assert_true(number(x, "loss") == number(y, "loss") && number(x, "grad_norm") == number(y, "grad_norm"));
    }
    cJSON_Delete(a);
    cJSON_Delete(b);
}

static void test_micro_batches_change_rounding_only(void **state) {
    (void)state;
    for (int size = 8; size; size /= 2)
        must("train_gpt config.json --run_dir=by%d --train.micro_batch_size=%d --train.batch_size=8 --train.steps=50 "
             "--train.sequence_length=16 --optimizer.lr=0.001 --attention.type=affine --eval.every=0 --checkpoint.every=0 "
             "--diagnostics.every=0", size, size);
    cJSON *whole = read_metrics("by8", "step");
    assert_int_equal(cJSON_GetArraySize(whole), 50);
    for (int size = 4; size; size /= 2) {
        cJSON *parts = read_metrics(path_of("by%d", size), "step");
        for (const cJSON *x = parts->child, *y = whole->child; y; x = x->next, y = y->next) {
            assert_near(number(x, "loss"), number(y, "loss"), 1e-6);
            assert_near(number(x, "grad_norm"), number(y, "grad_norm"), 1e-5);
        }
        for (int l = 0; l < L; l++) {
            double *x = read_tensor(model_file(path_of("by%d", size), 50), path_of("transformer.h.%d.attn.alpha_ma", l), NULL);
            double *y = read_tensor(model_file("by8", 50), path_of("transformer.h.%d.attn.alpha_ma", l), NULL);
            for (int h = 0; h < H; h++) {
                assert_true(y[h] > 0.1);                    // it has moved from 0
                assert_near(x[h], y[h], 1e-5);
            }
            free(x);
            free(y);
        }
        cJSON_Delete(parts);
    }
    cJSON_Delete(whole);
}

// ---- what runs that differ in their attention share ----

static bool is_attention_own(const char *name) {
    return strstr(name, "sinks") || strstr(name, "alpha") || strstr(name, "gate_proj");
}

static void test_shared_initial_weights(void **state) {
    (void)state;
    char *hash = NULL, *shards = NULL;
    for (int t = 0; t < TYPES; t++)
        for (int g = 0; g < GATES; g++) {
            const char *name = path_of("%s-%s", types[t], gates[g]);
            must("train_gpt config.json --train.steps=0 --run_dir=%s --attention.type=%s --attention.gate=%s", name, types[t], gates[g]);
            cJSON *start = read_metrics(name, "start");
            if (!hash) hash = strdup(text_of(start->child, "initial_weights"));
            assert_string_equal(text_of(start->child, "initial_weights"), hash);
            char *found = cJSON_PrintUnformatted(cJSON_GetObjectItem(start->child, "shards"));
            if (!shards) shards = strdup(found);
            assert_string_equal(found, shards);
            free(found);
            cJSON_Delete(start);
        }
    free(hash);
    free(shards);
    SafetensorsReader *baseline;
    if (safetensors_open(&baseline, model_file("baseline-none", 0))) fail_msg("%s", error_text());
    for (int i = 0; i < safetensors_count(baseline); i++) {
        const SafetensorsInfo *info = safetensors_info(baseline, i);
        assert_false(is_attention_own(info->name));
        double *wanted = read_tensor(model_file("baseline-none", 0), info->name, NULL);
        for (int t = 0; t < TYPES; t++)
            for (int g = 0; g < GATES; g++) {
                size_t n;
                double *found = read_tensor(model_file(path_of("%s-%s", types[t], gates[g]), 0), info->name, &n);
                assert_int_equal(n, info->count);
                assert_memory_equal(found, wanted, n * sizeof *found);
                free(found);
            }
        free(wanted);
    }
    safetensors_close(baseline);
    must("train_gpt config.json --train.steps=0 --run_dir=other --seed=8");
    cJSON *start = read_metrics("other", "start"), *first = read_metrics("baseline-none", "start");
    assert_string_not_equal(text_of(start->child, "initial_weights"), text_of(first->child, "initial_weights"));
    cJSON_Delete(start);
    cJSON_Delete(first);
}

// Writes a safetensors file anew with every tensor whose name ends like that set to 0.
static void set_to_zero(const char *path, const char *end) {
    SafetensorsReader *reader;
    SafetensorsWriter *writer;
    if (safetensors_open(&reader, path)) fail_msg("%s", error_text());
    const int count = safetensors_count(reader);
    const char *changed = path_of("%s.changed", path);
    if (safetensors_create(&writer, changed, safetensors_info(reader, 0), count)) fail_msg("%s", error_text());
    for (int i = 0; i < count; i++) {
        const SafetensorsInfo *info = safetensors_info(reader, i);
        double *values = read_tensor(path, info->name, NULL);
        if (!strcmp(info->name + strlen(info->name) - strlen(end), end)) memset(values, 0, info->count * sizeof *values);
        if (safetensors_write(writer, i, values, 0, info->count)) fail_msg("%s", error_text());
        free(values);
    }
    safetensors_close(reader);
    if (safetensors_finish(writer)) fail_msg("%s", error_text());
    assert_int_equal(rename(changed, path), 0);
}

// With attention's output projection at 0 no attention reaches the loss, so at a learning rate of 0 a step's loss tells which batch it saw.
static void test_shared_batches(void **state) {
    (void)state;
    static double losses[TYPES][12];
    for (int t = 0; t < TYPES; t++) {
        must("train_gpt config.json --train.steps=0 --run_dir=%s --attention.type=%s --attention.gate=%s --optimizer.lr=0 "
             "--data.shuffle=true", types[t], types[t], gates[t % GATES]);
        set_to_zero(model_file(types[t], 0), "attn.c_proj.weight");
        must("train_gpt --resume %s --train.steps=12", types[t]);
        cJSON *steps = read_metrics(types[t], "step");
        assert_int_equal(cJSON_GetArraySize(steps), 12);
        for (int s = 0; s < 12; s++) {
            losses[t][s] = number(cJSON_GetArrayItem(steps, s), "loss");
            assert_true(losses[t][s] == losses[0][s]);
            for (int other = 0; other < s; other++) assert_true(losses[t][s] != losses[t][other]);
        }
        cJSON_Delete(steps);
    }
}

// ---- config ----

static double wanted_lr(const char *type, double lr, double low, int s, int n, int w, double fraction) {
    const double pi = 3.14159265358979323846, d = round(n * fraction), f = (double)(s - w) / (n - w);
    if (s < w) return lr * (s + 1) / w;
    if (!strcmp(type, "linear")) return low + (lr - low) * (1 - f);
    if (!strcmp(type, "cosine")) return low + (lr - low) * (1 + cos(pi * f)) / 2;
    if (!strcmp(type, "wsd") && s >= n - d) return low + (lr - low) * (1 - sqrt((s - (n - d)) / d));
    return lr;
}

static void test_schedules(void **state) {
    (void)state;
    static const char *const schedules[] = { "constant", "wsd", "linear", "cosine" };
    for (int i = 0; i < 4; i++) {
        must("train_gpt config.json --overwrite --train.steps=16 --schedule.type=%s --schedule.warmup_steps=3 "
             "--schedule.decay_fraction=0.4 --schedule.min_lr_ratio=0.1 --eval.every=0 --checkpoint.every=0 --diagnostics.every=0",
             schedules[i]);
        cJSON *steps = read_metrics("run", "step");
        for (int s = 0; s < 16; s++)
            assert_near(number(cJSON_GetArrayItem(steps, s), "lr"), wanted_lr(schedules[i], 0.01, 0.001, s, 16, 3, 0.4), 1e-12);
        cJSON_Delete(steps);
    }
}

static void test_extends_and_overrides(void **state) {
    (void)state;
    must("mkdir -p sub/deeper");
    write_text("sub/middle.json",
        "{\"extends\": \"../config.json\", \"run_dir\": \"middle\", \"train\": {\"steps\": 3, \"batch_size\": 2}}");
    write_text("sub/deeper/leaf.json",
        "{\"extends\": \"../middle.json\", \"run_dir\": \"leaf\", \"attention\": {\"type\": \"sink\"}}");
    must("train_gpt sub/deeper/leaf.json --train.batch_size=6 --attention.gate=headwise --eval.every=1");
    assert_false(exists("middle"));
    char *text = read_file("leaf/config.json", NULL);
    cJSON *config = parse(text), *train = cJSON_GetObjectItem(config, "train"), *attention = cJSON_GetObjectItem(config, "attention");
    assert_string_equal(text_of(config, "run_dir"), "leaf");
    assert_int_equal(number(config, "seed"), 7);                                                 // of the base
    assert_int_equal(number(train, "steps"), 3);                                                 // of the middle
    assert_int_equal(number(train, "batch_size"), 6);                                            // of the flag
    assert_int_equal(number(train, "micro_batch_size"), 6);                                      // follows
    assert_string_equal(text_of(attention, "type"), "sink");                                     // of the leaf
    assert_string_equal(text_of(attention, "gate"), "headwise");                                 // of the flag
    assert_true(number(cJSON_GetObjectItem(config, "optimizer"), "beta2") == 0.95);              // the default
    cJSON_Delete(config);
    free(text);
    cJSON *events = read_metrics("leaf", "eval");
    assert_int_equal(cJSON_GetArraySize(events), 4);
    cJSON_Delete(events);
}

// ---- numbers that are none ----

// After an update by 1e30 every later step overflows: it is logged as bad, and what is saved is what the one good step left.
static void test_divergence_never_reaches_the_weights(void **state) {
    (void)state;
    static const char flags[] = "--optimizer.lr=1e30 --optimizer.weight_decay=0 --attention.type=affine --checkpoint.every=0 "
        "--eval.every=3";
    must("train_gpt config.json %s --train.steps=1 --run_dir=one", flags);
    must("train_gpt config.json %s --train.steps=6 --run_dir=six", flags);
    assert_same_file(model_file("one", 1), model_file("six", 6));
    assert_same_file("one/checkpoints/step-00000001/optimizer.safetensors", "six/checkpoints/step-00000006/optimizer.safetensors");
    SafetensorsReader *reader;
    if (safetensors_open(&reader, model_file("six", 6))) fail_msg("%s", error_text());
    for (int i = 0; i < safetensors_count(reader); i++) {
        double *values = read_tensor(model_file("six", 6), safetensors_info(reader, i)->name, NULL);
        for (uint64_t k = 0; k < safetensors_info(reader, i)->count; k++) assert_true(isfinite(values[k]));
        free(values);
    }
    safetensors_close(reader);
    cJSON *steps = read_metrics("six", "step"), *evaluations = read_metrics("six", "eval"), *end = read_metrics("six", "end");
    assert_int_equal(cJSON_GetArraySize(steps), 6);
    assert_int_equal(cJSON_GetArraySize(end), 1);
    for (int s = 0; s < 6; s++) {
        const cJSON *step = cJSON_GetArrayItem(steps, s);
        const cJSON *loss = cJSON_GetObjectItem(step, "loss"), *norm = cJSON_GetObjectItem(step, "grad_norm");
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(step, "bad")) == (s > 0));
        assert_true((cJSON_IsNull(loss) || cJSON_IsNull(norm)) == (s > 0));
        assert_true((cJSON_IsNull(loss) || cJSON_IsNumber(loss)) && (cJSON_IsNull(norm) || cJSON_IsNumber(norm)));
    }
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetArrayItem(evaluations, 2), "val_loss")));
    cJSON_Delete(steps);
    cJSON_Delete(evaluations);
    cJSON_Delete(end);
}

// ---- --dry-run ----

static cJSON *dry_run(const char *flags) {
    Outcome outcome = expect(0, "train_gpt config.json --dry-run %s", flags);
    assert_string_equal(outcome.err, "");
    cJSON *plan = parse(outcome.out);
    free_outcome(&outcome);
    return plan;
}

static void check_plan(const char *flags, const Shape *shape) {
    cJSON *plan = dry_run(path_of("%s --attention.type=%s --attention.gate=%s", flags, shape->attention, shape->gate));
    assert_int_equal(number(plan, "parameters"), parameters(shape));
    assert_int_equal(number(plan, "attention_parameters"), attention_parameters(shape));
    assert_int_equal(number(plan, "flops_per_token"), flops(shape, T));
    cJSON_Delete(plan);
}

static void test_dry_run_counts(void **state) {
    (void)state;
    must("rm *.bin");                                       // needs no shards
    for (int t = 0; t < TYPES; t++)
        for (int g = 0; g < GATES; g++) {
            Shape shape = { .gpt2 = true, .tied = true, .vocab = 50257, .positions = 1024, .layers = 12, .hidden = 768, .heads = 12,
                            .key_heads = 12, .head = 64, .intermediate = 3072, .attention = types[t], .gate = gates[g] };
            check_plan("--model.vocab_size=50257 --model.max_position_embeddings=1024 --model.num_hidden_layers=12 --model.hidden_size=768 "
                       "--model.num_attention_heads=12", &shape);
            shape = (Shape){ .vocab = 1000, .layers = 3, .hidden = 60, .heads = 6, .key_heads = 2, .head = 14, .intermediate = 100,
                             .attention = types[t], .gate = gates[g] };
            static const char llama[] = "--model.num_hidden_layers=3 --model.hidden_size=60 --model.num_attention_heads=6 "
                "--model.num_key_value_heads=2 --model.head_dim=14 --model.intermediate_size=100 --model.vocab_size=1000";
            check_plan(path_of("--model.arch=llama %s", llama), &shape);
            shape.biases = shape.tied = true;
            check_plan(path_of("--model.arch=qwen2 --model.tie_word_embeddings=true %s", llama), &shape);
        }
    cJSON *plan = dry_run("--train.steps=77");
    assert_int_equal(number(plan, "tokens_per_step"), BATCH * T);
    assert_int_equal(number(plan, "steps"), 77);
    cJSON_Delete(plan);
    char *left = list_directory(".");
    assert_string_equal(left, "config.json ");              // nothing was made
    free(left);
}

static double memory(const cJSON *plan, const char *kind) { return number(cJSON_GetObjectItem(plan, "memory"), kind); }

// A run that takes some 200 MB, so that what is not the plan's does not hide it.
static const char large_flags[] = "--model.hidden_size=192 --model.num_attention_heads=3 --model.vocab_size=512 "
    "--train.sequence_length=128 --train.batch_size=32 --attention.type=affine --eval.every=0 --checkpoint.every=0 --diagnostics.every=0";

// Rows of hidden_size floats that a row of the batch keeps for backward: kept in every layer, and, once for all, what is computed again.
static void check_activations(const char *flags, double rows, double kept, double again) {
    cJSON *plan = dry_run(path_of("%s %s", large_flags, flags));
    const double last = 2;                                  // what leaves the last layer, and its norm
    const double found = memory(plan, "activations"), wanted = 4 * rows * 192 * (L * kept + again + last);
    if (found < wanted || found > 1.05 * wanted) fail_msg("%s: %g bytes of activations, about %g were expected", flags, found, wanted);
    cJSON_Delete(plan);
}

static void test_dry_run_memory(void **state) {
    (void)state;
    Shape shape = { .gpt2 = true, .tied = true, .vocab = 512, .positions = 128, .layers = L, .hidden = 192, .heads = 3, .key_heads = 3,
                    .head = 64, .intermediate = 768, .attention = "affine", .gate = "none" };
    const double bytes = 4 * parameters(&shape), slack = 0.02 * bytes + 4096;       // padding
    cJSON *plan = dry_run(large_flags), *part, *kind;
    assert_true(memory(plan, "weights") >= bytes && memory(plan, "weights") < bytes + slack);
    assert_true(memory(plan, "gradients") >= bytes && memory(plan, "gradients") < bytes + slack);
    assert_true(memory(plan, "moments") >= 2 * bytes && memory(plan, "moments") < 2 * (bytes + slack));
    double total = 0, parts = 0;
    static const char *const kinds[] = { "weights", "gradients", "moments", "activations", "buffers" };
    for (int k = 0; k < 5; k++) total += memory(plan, kinds[k]);
    assert_true(memory(plan, "total") == total);
    cJSON_ArrayForEach(kind, cJSON_GetObjectItem(cJSON_GetObjectItem(plan, "memory"), "parts"))
        cJSON_ArrayForEach(part, kind) parts += part->valuedouble;
    assert_true(parts == total);
    cJSON_Delete(plan);
    // the stream before attention and before the MLP; norm, q k v, s and o; norm, and the MLP's 4 before and after GELU
    const double stream = 1, attention = 1 + 3 + 2, mlp = 1 + 4 + 4;
    check_activations("", 32 * 128, 2 * stream + attention + mlp, 0);
    check_activations("--train.micro_batch_size=8", 8 * 128, 2 * stream + attention + mlp, 0);
    check_activations("--compute.recompute=attention", 32 * 128, 2 * stream + mlp, attention);
    check_activations("--compute.recompute=block", 32 * 128, stream, stream + attention + mlp);
}

static void test_peak_memory_is_the_plan(void **state) {
    (void)state;
    if (SANITIZED) skip();                                  // the sanitizer's own memory drowns the program's
    static const char *const variants[] = { "", "--compute.recompute=block --train.micro_batch_size=16 --compute.threads=2" };
    for (int i = 0; i < 2; i++) {
        cJSON *plan = dry_run(path_of("%s %s", large_flags, variants[i]));
        Outcome outcome = expect(0, "train_gpt config.json --overwrite --train.steps=1 %s %s", large_flags, variants[i]);
        const double total = memory(plan, "total"), peak = (double)outcome.peak_bytes, tolerance = fmax(0.1 * total, 32 << 20);
        if (fabs(peak - total) > tolerance) fail_msg("the plan says %.0f bytes, the peak was %.0f", total, peak);
        if (i == 0) assert_true(total > 150e6);             // else the tolerance would hold for anything
        cJSON_Delete(plan);
        free_outcome(&outcome);
    }
}

// ---- eval ----

static cJSON *evaluate(const char *arguments) {
    Outcome outcome = expect(0, "train_gpt eval run/checkpoints/step-00000020 %s", arguments);
    cJSON *result = parse(outcome.out);
    free_outcome(&outcome);
    return result;
}

static void test_eval(void **state) {
    (void)state;
    must("train_gpt config.json --attention.type=affine --attention.gate=headwise");
    must("train_gpt config.json --attention.type=affine --attention.gate=headwise --eval.batches=100 --run_dir=whole");
    cJSON *some = read_metrics("run", "eval"), *whole = read_metrics("whole", "eval");
    cJSON *result = evaluate("--data=val.bin");
    assert_int_equal(number(result, "windows"), 41);
    assert_int_equal(number(result, "tokens"), 41 * T);
    assert_int_equal(number(result, "length"), T);
    assert_near(number(result, "loss"), number(cJSON_GetArrayItem(whole, 2), "val_loss"), 1e-6);
    assert_near(number(result, "perplexity"), exp(number(result, "loss")), 1e-12);
    cJSON_Delete(result);
    write_shard("part.bin", 3 * BATCH * T + 1, other_orbit_token);          // the windows that eval.batches = 3 means
    result = evaluate("--data=part.bin --threads=2");
    assert_int_equal(number(result, "windows"), 3 * BATCH);
    assert_near(number(result, "loss"), number(cJSON_GetArrayItem(some, 2), "val_loss"), 1e-6);
    cJSON_Delete(result);
    result = evaluate("--data=val.bin --length=3");
    assert_int_equal(number(result, "windows"), 110);
    assert_int_equal(number(result, "length"), 3);
    cJSON_Delete(result);
    cJSON_Delete(some);
    cJSON_Delete(whole);
    refuses(2, "--length|9|8|max_position_embeddings", "train_gpt eval run/checkpoints/step-00000020 --data=val.bin --length=9");
    refuses(2, "--data", "train_gpt eval run/checkpoints/step-00000020");
    refuses(2, "none.bin", "train_gpt eval run/checkpoints/step-00000020 --data=none.bin");
    refuses(2, "run/checkpoints/step-00000021", "train_gpt eval run/checkpoints/step-00000021 --data=val.bin");
}

// ---- sample ----

static const char sentence[] = "the cat sat on the mat. ";
static int sentence_byte(size_t i) { return sentence[i % (sizeof sentence - 1)]; }

static void put_character(FILE *out, int c) {
    if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
    else if (c < 0x80) putc(c, out);
    else fprintf(out, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
}

// Hugging Face's byte-level vocabulary: a printable byte stands for itself, the others for characters from U+0100 on; ids are the bytes.
static void write_tokenizer(const char *path) {
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("{\"version\": \"1.0\", \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, "
          "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, "
          "\"model\": {\"type\": \"BPE\", \"vocab\": {", out);
    for (int byte = 0, next = 0x100; byte < 256; byte++) {
        bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        fprintf(out, "%s\"", byte ? ", " : "");
        put_character(out, printable ? byte : next++);
        fprintf(out, "\": %d", byte);
    }
    fputs("}, \"merges\": []}}\n", out);
    assert_int_equal(fclose(out), 0);
}

static const char text_flags[] = "--data.train=text.bin --data.val=null --model.vocab_size=256 --train.sequence_length=32 "
    "--train.batch_size=8 --model.hidden_size=32 --attention.type=affine --diagnostics.every=0 --checkpoint.every=0";

static Outcome sample(const char *arguments) { return expect(0, "train_gpt sample run/checkpoints/step-00000150 %s", arguments); }

// Whether both wrote the same first n bytes, which may be any.
static bool same_start(const Outcome *a, const Outcome *b, size_t n) {
    return a->out_length >= n && b->out_length >= n && !memcmp(a->out, b->out, n);
}

static void test_sample(void **state) {
    (void)state;
    write_shard("text.bin", 2401, sentence_byte);
    write_tokenizer("tokenizer.json");
    must("train_gpt config.json %s --train.steps=150", text_flags);
    assert_same_file("tokenizer.json", "run/checkpoints/step-00000150/tokenizer.json");
    // It has learnt its only sentence, and goes on with it.
    Outcome likeliest = sample("--prompt='the cat sat' --tokens=12 --top_k=1");
    assert_string_equal(likeliest.out, "the cat sat on the mat.\n");
    Outcome greedy = sample("--prompt='the cat sat' --tokens=12 --temperature=0");
    assert_string_equal(greedy.out, likeliest.out);
    free_outcome(&greedy);
    // Far from the likeliest, where the seed decides.
    Outcome random[] = {
        sample("--prompt='on the' --tokens=20 --temperature=3 --seed=5"),
        sample("--prompt='on the' --tokens=20 --temperature=3 --seed=5"),
        sample("--prompt='on the' --tokens=20 --temperature=3 --seed=6"),
        sample("--prompt='on the' --tokens=9 --temperature=3 --seed=5 --threads=2"),
    };
    for (int i = 0; i < 4; i++) {
        const size_t wanted = 6 + (i == 3 ? 9 : 20);
        assert_int_equal(random[i].out_length, wanted + 1);
        assert_int_equal(strncmp(random[i].out, "on the", 6), 0);
        assert_int_equal(random[i].out[wanted], '\n');
    }
    assert_true(same_start(&random[0], &random[1], 26));
    assert_false(same_start(&random[0], &random[2], 26));
    assert_true(same_start(&random[0], &random[3], 15));
    // More than there are positions: it stops there.
    Outcome longest = sample("--prompt='the cat sat' --tokens=1000 --top_k=1");
    assert_true(same_start(&longest, &likeliest, 23));
    assert_true(longest.out_length >= 32 + 1 && longest.out_length <= 32 + 2);
    for (int i = 0; i < 4; i++) free_outcome(&random[i]);
    free_outcome(&longest);
    free_outcome(&likeliest);
    refuses(2, "33|32|max_position_embeddings",
            "train_gpt sample run/checkpoints/step-00000150 --prompt=123456789012345678901234567890123");
    refuses(2, "--prompt", "train_gpt sample run/checkpoints/step-00000150");
    must("rm run/checkpoints/step-00000150/tokenizer.json");
    refuses(2, "tokenizer", "train_gpt sample run/checkpoints/step-00000150 --prompt=the");
}

static void test_samples_while_training(void **state) {
    (void)state;
    write_shard("text.bin", 2401, sentence_byte);
    refuses(2, "sample.every|tokenizer.json|data.tokenizer", "train_gpt config.json %s --sample.every=10", text_flags);
    assert_false(exists("run"));
    must("mkdir words");
    write_tokenizer("words/tokenizer.json");
    must("train_gpt config.json %s --data.tokenizer=words --sample.every=10 --sample.prompt='the cat' --sample.tokens=11 --train.steps=25",
         text_flags);
    must("train_gpt --resume run");
    must("train_gpt config.json %s --train.steps=25 --run_dir=silent", text_flags);
    assert_same_file(model_file("run", 25), model_file("silent", 25));
    cJSON *samples = read_metrics("run", "sample");
    static const int wanted[] = { 0, 10, 20, 25 };
    assert_int_equal(cJSON_GetArraySize(samples), 4);
    for (int i = 0; i < 4; i++) {
        const cJSON *event = cJSON_GetArrayItem(samples, i);
        assert_int_equal(number(event, "step"), wanted[i]);
        assert_string_equal(text_of(event, "prompt"), "the cat");
        assert_true(strlen(text_of(event, "text")) >= 11);              // bytes that are no UTF-8 become ?, none is lost
    }
    cJSON_Delete(samples);
}

// ---- the rest of the command line ----

static void test_help_and_version(void **state) {
    (void)state;
    Outcome help = expect(0, "train_gpt --help"), key = expect(0, "train_gpt help attention.affine_rho");
    Outcome version = expect(0, "train_gpt --version");
    assert_non_null(strstr(help.out, "--resume"));
    assert_non_null(strstr(key.out, "attention.affine_rho"));
    assert_non_null(strstr(key.out, "0.9"));
    assert_null(strstr(key.out, "optimizer.lr"));
    assert_int_equal(strncmp(version.out, "train_gpt ", 10), 0);
    free_outcome(&help);
    free_outcome(&key);
    free_outcome(&version);
    // What nobody can read has not been said.
    refuses(1, "standard output", "train_gpt --help >/dev/full");
    refuses(1, "standard output", "train_gpt config.json --dry-run >/dev/full");
    refuses(2, "attention.affine_rho", "train_gpt help affine_roh");
    refuses(2, "--help", "train_gpt");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_workplace, leave_workplace)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_every_attention),
        TEST(test_every_arch),
        TEST(test_no_steps),
        TEST(test_moving_average_of_alpha),
        TEST(test_config_read_back),
        TEST(test_same_twice_on_any_number_of_threads),
        TEST(test_the_seed_matters),
        TEST(test_recompute_changes_nothing),
        TEST(test_looking_changes_nothing),
        TEST(test_micro_batches_change_rounding_only),
        TEST(test_shared_initial_weights),
        TEST(test_shared_batches),
        TEST(test_schedules),
        TEST(test_extends_and_overrides),
        TEST(test_divergence_never_reaches_the_weights),
        TEST(test_dry_run_counts),
        TEST(test_dry_run_memory),
        TEST(test_peak_memory_is_the_plan),
        TEST(test_eval),
        TEST(test_sample),
        TEST(test_samples_while_training),
        TEST(test_help_and_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
