// docs/metrics.md against the program: runs of every kind log no field that the page does not define under its event, and every field that
// the page defines is in the log of one of them.
#define _GNU_SOURCE
#include "support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cjson/cJSON.h>

typedef struct Field { char event[32], name[32]; bool seen; } Field;
typedef struct Page { Field fields[128]; int count; } Page;

// What the page explains in its text: which step an event is of, and diagnostics' list of layers.
static bool is_explained(const char *name) { return !strcmp(name, "event") || !strcmp(name, "step") || !strcmp(name, "layers"); }

// The names in backticks of a table row's first cell: "| `alpha_mean`, `alpha_std` | ..."
static void add_names(Page *page, const char *event, const char *row) {
    const char *end = strchr(row + 1, '|');
    for (const char *at = strchr(row, '`'); at && end && at < end; at = strchr(at, '`')) {
        const size_t length = strcspn(at + 1, "`");
        Field *field = &page->fields[page->count++];
        assert_true(page->count < 128 && length < sizeof field->name);
        *field = (Field){ 0 };
        snprintf(field->event, sizeof field->event, "%s", event);
        snprintf(field->name, sizeof field->name, "%.*s", (int)length, at + 1);
        at += length + 2;
    }
}

// A section for each event, named as it is.
static void read_page(Page *page) {
    char *text = read_file(path_of("%s/docs/metrics.md", getenv("OLD_DIRECTORY")), NULL), *rest = text, *line, event[32] = "";
    page->count = 0;
    while ((line = strsep(&rest, "\n"))) {
        if (!strncmp(line, "## ", 3)) snprintf(event, sizeof event, "%s", line + 3);
        if (line[0] == '|') add_names(page, event, line);
    }
    free(text);
}

static void see(Page *page, const char *event, const cJSON *fields) {
    const cJSON *field;
    cJSON_ArrayForEach(field, fields) {
        int i = 0;
        if (is_explained(field->string)) continue;
        while (i < page->count && (strcmp(page->fields[i].event, event) || strcmp(page->fields[i].name, field->string))) i++;
        if (i == page->count) fail_msg("docs/metrics.md does not define %s of the event %s", field->string, event);
        page->fields[i].seen = true;
    }
}

static void see_run(Page *page, const char *run_dir) {
    cJSON *events = read_metrics(run_dir, NULL), *event, *layer;
    cJSON_ArrayForEach(event, events) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(event, "event"));
        see(page, name, event);
        cJSON_ArrayForEach(layer, cJSON_GetObjectItem(event, "layers")) {
            see(page, name, layer);
            see(page, name, cJSON_GetObjectItem(layer, "heads"));
        }
    }
    cJSON_Delete(events);
}

// Hugging Face's byte-level vocabulary: a printable byte stands for itself, the others for characters from U+0100 on; ids are the bytes.
static void write_byte_tokenizer(const char *path) {
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, "
          "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {", out);
    for (int byte = 0, next = 0x100; byte < 256; byte++) {
        const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        fprintf(out, "%s\"\\u%04x\": %d", byte ? ", " : "", printable ? byte : next++, byte);
    }
    fputs("}}}\n", out);
    assert_int_equal(fclose(out), 0);
}

static void test_every_field(void **state) {
    (void)state;
    Page page;
    read_page(&page);
    assert_true(page.count > 40);
    write_byte_tokenizer("tokenizer.json");
    must("train_gpt config.json --attention.type=affine --attention.gate=headwise --run_dir=affine --train.steps=10 --sample.every=5");
    must("train_gpt --resume affine --train.steps=20");
    see_run(&page, "affine");
    must("train_gpt config.json --attention.type=sink --run_dir=sink --distill.teacher=affine/checkpoints/step-00000010");
    see_run(&page, "sink");
    must("train_gpt config.json --optimizer.lr=1e30 --run_dir=bad --train.steps=6");
    see_run(&page, "bad");
    for (int i = 0; i < page.count; i++)
        if (!page.fields[i].seen && !is_explained(page.fields[i].name))
            fail_msg("%s, which docs/metrics.md defines, is in no %s event", page.fields[i].name, page.fields[i].event);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(test_every_field, enter_workplace, leave_workplace) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
