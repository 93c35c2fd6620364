// Distillation by the program: teachers that it trained itself, students that learn from their checkpoints, what their logs say, and what
// is refused.
#define _GNU_SOURCE
#define run run_program                 // train_gpt.c has a function of that name
#include "support.h"
#undef run

#include "harness.h"

#include <signal.h>

// A teacher unlike any student here: another arch, another width, another attention, with a moving average of its own.
static const char teacher_flags[] = "--model.arch=llama --model.hidden_size=24 --model.intermediate_size=40 --model.num_attention_heads=4 "
                                    "--model.num_key_value_heads=2 --model.head_dim=8 --attention.type=affine --attention.gate=headwise";
#define TEACHER "teacher/checkpoints/step-00000060"

static int enter(void **state) {
    int status = enter_workplace(state);
    must("train_gpt config.json %s --run_dir=teacher --train.steps=60 --eval.every=0 --checkpoint.keep=1", teacher_flags);
    return status;
}

static void expect_near(double found, double wanted, double tolerance, const char *what, long step) {
    if (!(fabs(found - wanted) <= tolerance)) fail_msg("%s at step %ld is %.17g, not %.17g", what, step, found, wanted);
}

// ---- what the log says ----

// The step events of a run that distils with that weight and temperature: the loss is what is documented, each part in its range.
static cJSON *check_losses(const char *run_dir, double weight, double temperature) {
    cJSON *steps = read_metrics(run_dir, "step"), *event;
    cJSON_ArrayForEach(event, steps) {
        const double ce = number(event, "ce"), kl = number(event, "kl"), entropy = number(event, "teacher_entropy");
        const double loss = (1 - weight) * ce + weight * temperature * temperature * (kl + entropy);
        const long step = (long)number(event, "step");
        expect_near(number(event, "loss"), loss, 1e-12 * (1 + loss), "loss", step);
        if (!(kl > 0)) fail_msg("step %ld: kl %g of two models that differ", step, kl);
        if (!(entropy > 0 && entropy <= log(32))) fail_msg("step %ld: a teacher's entropy of %g", step, entropy);
    }
    return steps;
}

static void test_losses(void **state) {
    (void)state;
    static const struct { double weight, temperature; } cases[] = { { 1, 1 }, { 0.25, 1 }, { 0.6, 2.5 } };
    must("train_gpt config.json --attention.type=sink --run_dir=plain");
    cJSON *plain = read_metrics("plain", "step"), *event;
    cJSON_ArrayForEach(event, plain) {
        static const char *const fields[] = { "ce", "kl", "teacher_entropy" };
        for (int i = 0; i < 3; i++) assert_false(cJSON_HasObjectItem(event, fields[i]));
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        must("train_gpt config.json --attention.type=sink --overwrite --distill.teacher=" TEACHER " --distill.weight=%g "
             "--distill.temperature=%g", cases[i].weight, cases[i].temperature);
        cJSON *steps = check_losses("run", cases[i].weight, cases[i].temperature);
        assert_int_equal(cJSON_GetArraySize(steps), 20);
        // The first batch meets the same weights with and without a teacher; evaluation is of the data alone.
        expect_near(number(steps->child, "ce"), number(plain->child, "loss"), 1e-6, "ce", 1);
        cJSON *evals = read_metrics("run", "eval"), *plain_evals = read_metrics("plain", "eval");
        expect_near(number(evals->child, "val_loss"), number(plain_evals->child, "val_loss"), 0, "val_loss", 0);
        cJSON_Delete(steps);
        cJSON_Delete(evals);
        cJSON_Delete(plain_evals);
    }
    cJSON_Delete(plain);
}

// Of a teacher, only what it says counts: at a high temperature next to nothing, and always the same to whoever learns from it.
static void test_teacher_alone(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=a --distill.teacher=" TEACHER " --distill.temperature=2");
    must("train_gpt config.json --run_dir=b --distill.teacher=" TEACHER " --distill.temperature=2 --seed=8 --attention.type=affine "
         "--optimizer.lr=0.003 --model.hidden_size=8");
    must("train_gpt config.json --run_dir=c --distill.teacher=" TEACHER " --distill.temperature=100");
    cJSON *a = read_metrics("a", "step"), *b = read_metrics("b", "step"), *c = read_metrics("c", "step");
    for (const cJSON *x = a->child, *y = b->child, *z = c->child; x; x = x->next, y = y->next, z = z->next) {
        const long step = (long)number(x, "step");
        expect_near(number(y, "teacher_entropy"), number(x, "teacher_entropy"), 0, "another student's teacher_entropy", step);
        expect_near(number(z, "teacher_entropy"), log(32), 0.01, "teacher_entropy at temperature 100", step);
        expect_near(number(z, "kl"), 0, 0.01, "kl at temperature 100", step);
    }
    cJSON_Delete(a);
    cJSON_Delete(b);
    cJSON_Delete(c);
}

// A student that begins as its teacher: nothing to learn at weight 1 and temperature 1, exactly nothing.
static void test_student_equal_to_teacher(void **state) {
    (void)state;
    static const char *const kinds[] = { "--attention.type=sink", "--attention.gate=elementwise", teacher_flags };
    for (int i = 0; i < 3; i++) {
        must("train_gpt config.json %s --run_dir=initial --overwrite --train.steps=0", kinds[i]);
        must("train_gpt config.json %s --overwrite --distill.teacher=initial/checkpoints/step-00000000 --train.steps=1", kinds[i]);
        cJSON *steps = read_metrics("run", "step");
        assert_true(number(steps->child, "kl") == 0);
        assert_true(number(steps->child, "grad_norm") < 1e-7);
        assert_true(number(steps->child, "teacher_entropy") > 3.3 && number(steps->child, "ce") > 3.3);         // close to log(32)
        cJSON_Delete(steps);
    }
}

// The same after training, when alpha_ma is not 0: a run begins from the checkpoint that is its teacher.
static void test_trained_student_equal_to_teacher(void **state) {
    (void)state;
    must("train_gpt config.json %s --train.steps=10", teacher_flags);
    must("cp -r run/checkpoints/step-00000010 self");
    must("train_gpt config.json %s --run_dir=again --model.init_from=self --distill.teacher=self --train.steps=1", teacher_flags);
    size_t n;
    double *alpha_ma = read_tensor("self/model.safetensors", "model.layers.0.self_attn.alpha_ma", &n);
    for (size_t h = 0; h < n; h++) assert_true(alpha_ma[h] > 0.1);
    free(alpha_ma);
    cJSON *steps = read_metrics("again", "step");
    assert_true(number(steps->child, "kl") == 0);
    assert_true(number(steps->child, "grad_norm") < 1e-7);
    cJSON_Delete(steps);
}

static void test_student_learns(void **state) {
    (void)state;
    must("train_gpt config.json --attention.type=sink --distill.teacher=" TEACHER " --train.steps=150");
    cJSON *steps = check_losses("run", 1, 1), *evals = read_metrics("run", "eval");
    const double first = number(steps->child, "kl"), last = number(steps->child->prev, "kl");     // cJSON: the first's prev is the last
    if (!(last < first / 4)) fail_msg("kl went from %g to %g", first, last);
    const double before = number(evals->child, "val_loss"), after = number(evals->child->prev, "val_loss");
    if (!(after < before - 1)) fail_msg("validation loss went from %g to %g", before, after);
    cJSON_Delete(steps);
    cJSON_Delete(evals);
}

// distill.weight 0: the teacher is heard and not listened to.
static void test_weight_zero(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=plain");
    must("train_gpt config.json --distill.teacher=" TEACHER " --distill.weight=0 --distill.temperature=3");
    cJSON *plain = read_metrics("plain", "step"), *steps = check_losses("run", 0, 3);
    for (const cJSON *x = plain->child, *y = steps->child; x; x = x->next, y = y->next) {
        const long step = (long)number(x, "step");
        expect_near(number(y, "loss"), number(x, "loss"), 1e-5, "loss", step);
        expect_near(number(y, "grad_norm"), number(x, "grad_norm"), 1e-4 * number(x, "grad_norm"), "grad_norm", step);
    }
    cJSON_Delete(plain);
    cJSON_Delete(steps);
}

// ---- the same whatever the machine does ----

static void test_other_micro_batches(void **state) {
    (void)state;
    static const char flags[] = "--attention.type=affine --distill.teacher=" TEACHER " --distill.weight=0.7 --distill.temperature=1.5";
    must("train_gpt config.json %s --run_dir=whole --train.micro_batch_size=4", flags);
    cJSON *whole = read_metrics("whole", "step");
    for (int micro = 1; micro <= 2; micro++) {
        must("train_gpt config.json %s --overwrite --train.micro_batch_size=%d", flags, micro);
        cJSON *steps = read_metrics("run", "step");
        assert_int_equal(cJSON_GetArraySize(steps), cJSON_GetArraySize(whole));
        for (const cJSON *x = whole->child, *y = steps->child; x; x = x->next, y = y->next) {
            static const char *const fields[] = { "loss", "ce", "kl", "teacher_entropy" };
            const long step = (long)number(x, "step");
            for (int i = 0; i < 4; i++)
                expect_near(number(y, fields[i]), number(x, fields[i]), 3e-6 * (1 + number(x, fields[i])), fields[i], step);
            expect_near(number(y, "grad_norm"), number(x, "grad_norm"), 3e-5 * number(x, "grad_norm"), "grad_norm", step);
        }
        cJSON_Delete(steps);
    }
    cJSON_Delete(whole);
}

static void test_other_threads_and_recompute(void **state) {
    (void)state;
    static const char flags[] = "--attention.type=affine --distill.teacher=" TEACHER " --train.micro_batch_size=2";
    must("train_gpt config.json %s --run_dir=one --compute.threads=1", flags);
    must("train_gpt config.json %s --compute.threads=3", flags);
    assert_same_run("run", "one", 20);
    must("train_gpt config.json %s --overwrite --compute.threads=2 --compute.recompute=block", flags);
    assert_same_run("run", "one", 20);
}

// Stopped, then killed, then resumed: the run left alone, bit for bit. Its teacher is never written to.
static void test_resume(void **state) {
    (void)state;
    static const char flags[] = "--attention.type=affine --distill.teacher=" TEACHER " --distill.weight=0.8 --train.micro_batch_size=1";
    must("cp -r teacher before");
    must("train_gpt config.json %s --run_dir=alone --train.steps=400", flags);
    must("train_gpt config.json %s --train.steps=50", flags);
    Process process = start("exec $TRAIN_GPT --resume run --train.steps=400");
    wait_for_step(&process, "run", 75);
    kill(process.pid, SIGKILL);
    Outcome outcome = finish(&process);
    free_outcome(&outcome);
    must("train_gpt --resume run --train.steps=400");
    assert_same_run("run", "alone", 400);
    cJSON_Delete(check_losses("run", 0.8, 1));
    must("diff -r teacher before");
}

// A student needs its teacher to be trained, and for nothing else.
static void test_after_the_teacher_is_gone(void **state) {
    (void)state;
    must("train_gpt config.json --distill.teacher=" TEACHER " --train.steps=10");
    must("mv teacher away && cp -r run before");
    must("train_gpt eval run/checkpoints/step-00000010 --data=val.bin");
    refuses(2, "distill.teacher|" TEACHER, "train_gpt --resume run --train.steps=20");
    must("diff -r run before");
    refuses(2, "distill.teacher", "train_gpt --resume run --train.steps=20 --distill.teacher=away/checkpoints/step-00000060");
    must("diff -r run before");
    must("mv away teacher && train_gpt --resume run --train.steps=20");
}

// ---- memory and paths ----

// A teacher costs its weights and a pass forward: neither gradients nor moments, three times its weights more. As planned ...
static void test_plan(void **state) {
    (void)state;
    Config c = small_config(ARCH_GPT2), teacher = small_config(ARCH_LLAMA);
    teacher.model.C = 24, teacher.model.L = 5;
    MemoryPlan plans[2] = { { 0 }, { 0 } };
    size_t teacher_count = 0;
    for (int i = 0; i < 2; i++) {
        Trainer *t = open_trainer(&cpu_device, &c, i ? &teacher : NULL);
        plan_trainer(&plans[i], t);
        if (i) teacher_count = t->teacher_model.table.count;
        shut_trainer(t);
    }
    assert_true(teacher_count > 10000);
    assert_int_equal(plans[1].by_kind[MEMORY_GRADIENTS], plans[0].by_kind[MEMORY_GRADIENTS]);
    assert_int_equal(plans[1].by_kind[MEMORY_MOMENTS], plans[0].by_kind[MEMORY_MOMENTS]);
    const size_t weights = plans[1].by_kind[MEMORY_WEIGHTS] - plans[0].by_kind[MEMORY_WEIGHTS], wanted = teacher_count * sizeof(float);
    assert_true(weights >= wanted && weights <= wanted + 512);          // aligned, and a guard
}

// ... and as measured.
static void test_memory(void **state) {
    (void)state;
    if (SANITIZED) skip();
    must("train_gpt config.json --model.hidden_size=384 --model.num_hidden_layers=4 --run_dir=large --train.steps=0 --eval.every=0");
    size_t weights;
    char *file = read_file("large/checkpoints/step-00000000/model.safetensors", &weights);
    free(file);
    assert_true(weights > 20 << 20);
    Outcome without = expect(0, "train_gpt config.json --run_dir=without");
    Outcome with = expect(0, "train_gpt config.json --distill.teacher=large/checkpoints/step-00000000");
    const size_t more = with.peak_bytes - without.peak_bytes;
    if (!(with.peak_bytes > without.peak_bytes && more > weights / 2 && more < weights + weights / 2))
        fail_msg("a teacher of %zu bytes costs %zu: %zu without, %zu with it", weights, more, without.peak_bytes, with.peak_bytes);
    free_outcome(&without);
    free_outcome(&with);
}

// Like every path but that of `extends`, the teacher's is seen from the working directory, wherever the config lies that names it.
static void test_path(void **state) {
    (void)state;
    must("mkdir -p elsewhere/deep && mv teacher elsewhere/teacher");
#define STUDENT(teacher) "{\"extends\": \"../../config.json\", \"distill\": {\"teacher\": \"" teacher "\"}}"
    write_text("elsewhere/deep/student.json", STUDENT("elsewhere/" TEACHER));
    must("train_gpt elsewhere/deep/student.json");
    assert_true(exists("run/checkpoints/step-00000020/model.safetensors"));
    write_text("elsewhere/deep/student.json", STUDENT("../" TEACHER));
    refuses(2, "distill.teacher|../" TEACHER, "train_gpt elsewhere/deep/student.json --run_dir=other");
    must("cd elsewhere/deep && train_gpt student.json --data.train='../../train_*.bin' --data.val=../../val.bin --run_dir=../../other");
    assert_same_run("run", "other", 20);
}

// --dry-run opens no teacher, and says that it is not counted.
static void test_dry_run(void **state) {
    (void)state;
    Outcome with = expect(0, "train_gpt config.json --dry-run --distill.teacher=nowhere");
    Outcome without = expect(0, "train_gpt config.json --dry-run");
    cJSON *json = cJSON_Parse(with.out), *plain = cJSON_Parse(without.out);
    assert_non_null(strstr(cJSON_GetStringValue(cJSON_GetObjectItem(json, "note")), "teacher"));
    cJSON_DeleteItemFromObject(json, "note");
    assert_true(cJSON_Compare(json, plain, true));
    cJSON_Delete(json);
    cJSON_Delete(plain);
    free_outcome(&with);
    free_outcome(&without);
    assert_false(exists("run"));
}

// The paper's students: --dry-run says how many parameters they have, and how many of them are the attention's; no teacher need be there.
static void test_paper_students(void **state) {
    (void)state;
    static const struct { const char *model; double parameters, affine, gate, sinks; } models[] = {
        { "qwen-0.5b", 463987712, 393216, 25165824, 384 }, { "llama-1b", 1235814400, 1048576, 67108864, 512 },
        { "llama-3b", 3212749824, 2064384, 264241152, 672 },
    };
    static const struct { const char *name; bool affine, gate, sinks; } variants[] = {
        { "baseline", false, false, false }, { "sink", false, false, true }, { "affine", true, false, false },
        { "gated", false, true, false }, { "affine-gated", true, true, false }, { "affine-sigmoid", true, false, false },
    };
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 6; j++) {
            if (j == 5 && i != 1) continue;             // the ablation is of the 1B model
            Outcome outcome = expect(0, "train_gpt \"$OLD_DIRECTORY\"/configs/paper/%s-%s.json --dry-run", models[i].model,
                                     variants[j].name);
            cJSON *plan = cJSON_Parse(outcome.out);
            const double own = variants[j].affine * models[i].affine + variants[j].gate * models[i].gate
                             + variants[j].sinks * models[i].sinks;
            assert_true(number(plan, "attention_parameters") == own);
            assert_true(number(plan, "parameters") == models[i].parameters + own);
            assert_true(number(plan, "tokens_per_step") == 1024 * 2048 && number(plan, "steps") == 9000);
            cJSON_Delete(plan);
            free_outcome(&outcome);
        }
}

// ---- what is refused ----

// With status 2, saying each of the texts; nothing is made, and a run that --overwrite would replace stays.
static void refuses_teacher(const char *says, const char *flags) {
    char *before = list_directory(".");
    refuses(2, says, "train_gpt config.json --run_dir=new %s", flags);
    refuses(2, says, "train_gpt config.json --run_dir=kept --overwrite %s", flags);
    char *after = list_directory(".");
    assert_string_equal(before, after);
    must("diff -r kept kept-before");
    free(before);
    free(after);
}

static void test_refusals(void **state) {
    (void)state;
    must("train_gpt config.json --run_dir=kept --train.steps=5 && cp -r kept kept-before");
    refuses_teacher("distill.teacher|nowhere", "--distill.teacher=nowhere");
    refuses_teacher("distill.teacher|config.json|directory", "--distill.teacher=config.json");
    refuses_teacher("distill.teacher|teacher: is a run|step-00000060", "--distill.teacher=teacher");
    refuses_teacher("distill.teacher|empty", "--distill.teacher=");
    refuses_teacher("distill.teacher|vocabulary|32|40|model.vocab_size", "--distill.teacher=" TEACHER " --model.vocab_size=40");
    refuses_teacher("distill.teacher|8 positions|train.sequence_length (9)", "--distill.teacher=" TEACHER " --train.sequence_length=9");
    refuses_teacher("distill.weight|1.5", "--distill.teacher=" TEACHER " --distill.weight=1.5");
    refuses_teacher("distill.temperature|0", "--distill.teacher=" TEACHER " --distill.temperature=0");
    must("cp -r " TEACHER " broken && truncate -s -8 broken/model.safetensors");
    refuses_teacher("distill.teacher|broken/model.safetensors|cut short", "--distill.teacher=broken");
    must("rm broken/model.safetensors");
    refuses_teacher("distill.teacher|broken|model.safetensors", "--distill.teacher=broken");
    must("cp -r " TEACHER " deeper && sed -i 's/\"num_hidden_layers\":[[:space:]]*2/\"num_hidden_layers\": 3/' deeper/config.json");
    refuses_teacher("distill.teacher|deeper/model.safetensors|model.layers.2.", "--distill.teacher=deeper");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave_workplace)
    const struct CMUnitTest tests[] = {
        TEST(test_losses), TEST(test_teacher_alone), TEST(test_student_equal_to_teacher), TEST(test_trained_student_equal_to_teacher),
        TEST(test_student_learns), TEST(test_weight_zero), TEST(test_other_micro_batches), TEST(test_other_threads_and_recompute),
        TEST(test_resume), TEST(test_after_the_teacher_is_gone), cmocka_unit_test(test_plan), TEST(test_memory),
        TEST(test_path), TEST(test_dry_run), TEST(test_refusals),
        cmocka_unit_test_setup_teardown(test_paper_students, enter_workplace, leave_workplace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
