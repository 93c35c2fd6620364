// Checkpoint directories: written beside, synced, renamed; read with every tensor checked against the parameter table.
#define _GNU_SOURCE
#include "checkpoint.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "files.h"
#include "hf_config.h"
#include "json_text.h"
#include "message.h"
#include "safetensors.h"
#include "strict_json.h"
#include "version.h"

enum { FORMAT = 1, NAME_SIZE = PATH_SIZE + 128, STATE_LIMIT = 1 << 20, INDEX_LIMIT = 64 << 20, ROWS_AT_ONCE = 64 };

static const char *const needed_files[] = { "config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json" };
enum { NEEDED_FILES = sizeof needed_files / sizeof *needed_files };

static const char *const part_suffix[] = {
    [CHECKPOINT_WEIGHTS] = "", [CHECKPOINT_EXP_AVG] = ".exp_avg", [CHECKPOINT_EXP_AVG_SQ] = ".exp_avg_sq",
};

struct CheckpointWriter {
    const ParameterTable *table;
    char parent[NAME_SIZE], temporary[NAME_SIZE], final[NAME_SIZE];
    SafetensorsWriter *model, *optimizer;
    double *whole;                      // a transposed tensor, in memory order, until all of it has come
    const Tensor *coming;
    CheckpointPart coming_part;
    size_t came;
};

// Tensors in one file, or in several that an index lists.
typedef struct Weights {
    char name[NAME_SIZE];               // of the file, or of the index
    SafetensorsReader **files;
    int count;                          // 0: not there
} Weights;

struct CheckpointReader {
    char directory[NAME_SIZE];
    ModelConfig shape;
    AttentionConfig attention;
    Config *config;                     // NULL without trainer state
    long step;
    Weights model, optimizer;
    double *whole;                      // the transposed tensor read last, in memory order
    const SafetensorsInfo *whole_is;
};

static int out_of_memory(const char *path) {
    return set_error(STATUS_FAILED, "%s: out of memory", path);
}

// ================================================================ names ==================================================================

// "step-00000500" -> 500; -1 for any other name. Eight digits or more, none of them needless, so that every step has one name.
static long step_of_name(const char *name) {
    char canonical[64], *end;
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9') return -1;
    errno = 0;
    long step = strtol(name + 5, &end, 10);
    snprintf(canonical, sizeof canonical, "step-%08ld", step);
    return errno || *end || strcmp(name, canonical) ? -1 : step;
}

static bool is_complete(const char *parent, const char *name) {
    for (int i = 0; i < NEEDED_FILES; i++) {
        char path[NAME_SIZE];
        struct stat is;
        if (format_path(path, sizeof path, "%s/%s/%s", parent, name, needed_files[i])) return false;
        if (stat(path, &is) || !S_ISREG(is.st_mode) || !is.st_size) return false;
    }
    return true;
}

static int falling(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return x > y ? -1 : x < y;
}

// The steps of the complete checkpoints in a directory, newest first, malloc'd; none where there is no such directory.
static int list_steps(const char *parent, long **steps, int *count) {
    *steps = NULL;
    *count = 0;
    DIR *entries = opendir(parent);
    if (!entries) return errno == ENOENT ? 0 : set_error(STATUS_FAILED, "%s: cannot open: %s", parent, strerror(errno));
    int status = 0, capacity = 0;
    for (struct dirent *entry; !status && (errno = 0, entry = readdir(entries));) {
        long step = step_of_name(entry->d_name);
        if (step < 0 || !is_complete(parent, entry->d_name)) continue;
        if (*count == capacity) {
            long *grown = realloc(*steps, (size_t)(capacity = capacity ? 2 * capacity : 16) * sizeof *grown);
            if (!grown) {
                status = out_of_memory(parent);
                break;
            }
            *steps = grown;
        }
        (*steps)[(*count)++] = step;
    }
    if (!status && errno) status = set_error(STATUS_FAILED, "%s: cannot read: %s", parent, strerror(errno));
    closedir(entries);
    if (*count) qsort(*steps, (size_t)*count, sizeof **steps, falling);
    return status;
}

int checkpoint_newest(const char *run_dir, char directory[PATH_SIZE], long *step) {
    char parent[NAME_SIZE];
    long *steps;
    int count;
    *step = -1;
    int status = format_path(parent, sizeof parent, "%s/checkpoints", run_dir);
    if (status) return status;
    status = list_steps(parent, &steps, &count);
    if (!status && count) {
        *step = steps[0];
        status = format_path(directory, PATH_SIZE, "%s/step-%08ld", parent, *step);
    }
    free(steps);
    return status;
}

int checkpoint_passed_over(const char *run_dir, long step, char directory[PATH_SIZE]) {
    char parent[NAME_SIZE];
    directory[0] = '\0';
    int status = format_path(parent, sizeof parent, "%s/checkpoints", run_dir);
    DIR *entries = status ? NULL : opendir(parent);
    if (!entries) return status;                // there is none at all, as checkpoint_newest has said
    for (struct dirent *entry; !status && !directory[0] && (entry = readdir(entries));) {
        if (step_of_name(entry->d_name) > step && !is_complete(parent, entry->d_name))
            status = format_path(directory, PATH_SIZE, "%s/%s", parent, entry->d_name);
    }
    closedir(entries);
    return status;
}

// Takes a checkpoint away: first its name, at once, so that half of one never looks like a whole.
static int remove_checkpoint(const char *parent, long step) {
    char old[NAME_SIZE], removing[NAME_SIZE];
    if (format_path(old, sizeof old, "%s/step-%08ld", parent, step)) return STATUS_BAD_INPUT;
    if (format_path(removing, sizeof removing, "%s/.removing-step-%08ld", parent, step)) return STATUS_BAD_INPUT;
    int status = remove_tree(removing);
    if (!status && rename(old, removing)) status = set_error(STATUS_FAILED, "%s: cannot rename: %s", old, strerror(errno));
    return status ? status : remove_tree(removing);
}

// What a write, a replacement or a removal that was cut off has left. A replaced checkpoint goes only when the one in its place is whole.
static int remove_leftovers(const char *parent) {
    static const char *const prefixes[] = { ".writing-", ".removing-", ".replaced-" };
    DIR *entries = opendir(parent);
    if (!entries) return errno == ENOENT ? 0 : set_error(STATUS_FAILED, "%s: cannot open: %s", parent, strerror(errno));
    int status = 0;
    for (struct dirent *entry; !status && (entry = readdir(entries));) {
        char path[NAME_SIZE];
        for (int i = 0; i < 3; i++) {
            const char *name = entry->d_name + strlen(prefixes[i]);
            if (strncmp(entry->d_name, prefixes[i], strlen(prefixes[i])) || step_of_name(name) < 0) continue;
            if (i == 2 && !is_complete(parent, name)) continue;
            status = format_path(path, sizeof path, "%s/%s", parent, entry->d_name);
            if (!status) status = remove_tree(path);
        }
    }
    closedir(entries);
    return status;
}

int checkpoint_prune(const char *run_dir, int keep) {
    char parent[NAME_SIZE];
    long *steps;
    int count;
    if (format_path(parent, sizeof parent, "%s/checkpoints", run_dir)) return STATUS_BAD_INPUT;
    int status = list_steps(parent, &steps, &count);
    for (int i = keep; keep > 0 && i < count && !status; i++) status = remove_checkpoint(parent, steps[i]);
    free(steps);
    return status ? status : remove_leftovers(parent);
}

// ================================================================ writing ================================================================

// A file of the directory being written, from JSON, which is freed.
static int write_json(const CheckpointWriter *writer, const char *name, cJSON *json) {
    char path[NAME_SIZE];
    char *text = json ? json_text_print(json, true) : NULL;
    cJSON_Delete(json);
    if (!text) return out_of_memory(writer->temporary);
    int status = format_path(path, sizeof path, "%s/%s", writer->temporary, name);
    if (!status) status = write_file(path, text, strlen(text));
    cJSON_free(text);
    return status;
}

static cJSON *trainer_state(const Config *config, long step) {
    cJSON *state = cJSON_CreateObject();
    cJSON_AddNumberToObject(state, "format", FORMAT);
    cJSON_AddNumberToObject(state, "step", (double)step);
    cJSON_AddNumberToObject(state, "tokens", (double)step * config->train.batch_size * config->train.sequence_length);
    cJSON_AddStringToObject(state, "version", program_version());
    cJSON *whole = config_to_json(config);
    if (whole && cJSON_AddItemToObject(state, "config", whole)) return state;
    cJSON_Delete(whole);
    cJSON_Delete(state);
    return NULL;
}

static SafetensorsInfo describe(const Tensor *tensor, CheckpointPart part) {
    SafetensorsInfo info = { .type = SAFETENSORS_F32, .dimensions = tensor->dimensions };
    snprintf(info.name, sizeof info.name, "%s%s", tensor->name, part_suffix[part]);
    for (int d = 0; d < tensor->dimensions; d++) info.shape[d] = (uint64_t)tensor->shape[d];
    return info;
}

static int create_tensor_files(CheckpointWriter *writer) {
    const ParameterTable *table = writer->table;
    char model[NAME_SIZE], optimizer[NAME_SIZE];
    SafetensorsInfo *tensors = calloc(2 * (size_t)table->tensor_count + 1, sizeof *tensors);
    if (!tensors) return out_of_memory(writer->temporary);
    int status = format_path(model, sizeof model, "%s/model.safetensors", writer->temporary);
    if (!status) status = format_path(optimizer, sizeof optimizer, "%s/optimizer.safetensors", writer->temporary);
    for (int i = 0; i < table->tensor_count; i++) tensors[i] = describe(&table->tensors[i], CHECKPOINT_WEIGHTS);
    if (!status) status = safetensors_create(&writer->model, model, tensors, table->tensor_count);
    for (int i = 0; i < table->parameter_tensors; i++) {
        tensors[2 * i] = describe(&table->tensors[i], CHECKPOINT_EXP_AVG);
        tensors[2 * i + 1] = describe(&table->tensors[i], CHECKPOINT_EXP_AVG_SQ);
    }
    if (!status) status = safetensors_create(&writer->optimizer, optimizer, tensors, 2 * table->parameter_tensors);
    free(tensors);
    return status;
}

// tokenizer.json, and the tokenizer_config.json beside it. Where there is none, one that says what the file is: transformers would take it
// for the tokenizer that the arch's first models had, with tokens that this one does not have.
static int copy_tokenizer(const CheckpointWriter *writer, const char *tokenizer) {
    static const char plain[] = "{\n\t\"tokenizer_class\":\t\"PreTrainedTokenizerFast\",\n\t\"clean_up_tokenization_spaces\":\tfalse,\n"
        "\t\"model_input_names\":\t[\"input_ids\", \"attention_mask\"]\n}\n";
    char path[NAME_SIZE], beside[NAME_SIZE];
    const char *slash = strrchr(tokenizer, '/');
    int status = format_path(path, sizeof path, "%s/tokenizer.json", writer->temporary);
    if (!status) status = copy_file(tokenizer, path);
    if (!status) status = format_path(path, sizeof path, "%s/tokenizer_config.json", writer->temporary);
    if (!status) {
        status = format_path(beside, sizeof beside, "%.*stokenizer_config.json", slash ? (int)(slash - tokenizer) + 1 : 0, tokenizer);
    }
    if (status) return status;
    return access(beside, F_OK) ? write_file(path, plain, strlen(plain)) : copy_file(beside, path);
}

static int fill_directory(CheckpointWriter *writer, const Config *config, long step, const char *tokenizer) {
    char path[NAME_SIZE];
    int status = make_directories(writer->parent);
    if (!status) status = remove_tree(writer->temporary);               // left by a write that was cut off
    if (!status && mkdir(writer->temporary, 0777)) {
        status = set_error(STATUS_FAILED, "%s: cannot make the directory: %s", writer->temporary, strerror(errno));
    }
    if (!status) status = write_json(writer, "config.json", hf_config_to_json(&config->model, &config->attention));
    if (!status) status = write_json(writer, "trainer_state.json", trainer_state(config, step));
    if (!status && !hf_config_is_stock(&config->attention)) {
        status = format_path(path, sizeof path, "%s/" HF_MODELING_MODULE ".py", writer->temporary);
        if (!status) status = write_file(path, hf_modeling_text, hf_modeling_size);
    }
    if (!status && tokenizer) status = copy_tokenizer(writer, tokenizer);
    return status ? status : create_tensor_files(writer);
}

int checkpoint_create(CheckpointWriter **created, const Config *config, const ParameterTable *table, long step, const char *tokenizer) {
    *created = NULL;
    CheckpointWriter *writer = calloc(1, sizeof *writer);
    if (!writer) return out_of_memory(config->run_dir);
    writer->table = table;
    int status = format_path(writer->parent, NAME_SIZE, "%s/checkpoints", config->run_dir);
    if (!status) status = format_path(writer->temporary, NAME_SIZE, "%s/checkpoints/.writing-step-%08ld", config->run_dir, step);
    if (!status) status = format_path(writer->final, NAME_SIZE, "%s/checkpoints/step-%08ld", config->run_dir, step);
    if (status) {
        free(writer);
        return STATUS_FAILED;
    }
    if (fill_directory(writer, config, step, tokenizer)) {
        checkpoint_abandon(writer);
        return STATUS_FAILED;
    }
    *created = writer;
    return 0;
}

// Writes a matrix [out,in] in memory order as the file's [in,out].
static int write_transposed(SafetensorsWriter *file, int index, const Tensor *tensor, const double *whole) {
    size_t in = (size_t)tensor->shape[0], out = (size_t)tensor->shape[1];
    double *rows = malloc(ROWS_AT_ONCE * out * sizeof *rows);
    if (!rows) return out_of_memory(tensor->name);
    int status = 0;
    for (size_t first = 0; first < in && !status; first += ROWS_AT_ONCE) {
        size_t count = in - first < ROWS_AT_ONCE ? in - first : ROWS_AT_ONCE;
        for (size_t o = 0; o < out; o++) {
            for (size_t i = 0; i < count; i++) rows[i * out + o] = whole[o * in + first + i];
        }
        status = safetensors_write(file, index, rows, first * out, count * out);
    }
    free(rows);
    return status;
}

// Keeps a piece of a transposed tensor, and writes the tensor when it is whole.
static int collect(CheckpointWriter *writer, SafetensorsWriter *file, int index, CheckpointPart part, const Tensor *tensor,
                   const double *values, size_t first, size_t n) {
    if (!first) {
        free(writer->whole);
        writer->whole = malloc(tensor->count * sizeof *writer->whole);
        if (!writer->whole) return out_of_memory(tensor->name);
        writer->coming = tensor;
        writer->coming_part = part;
        writer->came = 0;
    }
    if (writer->coming != tensor || writer->coming_part != part || writer->came != first || n > tensor->count - first) {
        return set_error(STATUS_FAILED, "%s: tensor '%s': its pieces came out of order", writer->temporary, tensor->name);
    }
    memcpy(writer->whole + first, values, n * sizeof *values);
    writer->came += n;
    return writer->came == tensor->count ? write_transposed(file, index, tensor, writer->whole) : 0;
}

int checkpoint_write(CheckpointWriter *writer, CheckpointPart part, const Tensor *tensor, const double *values, size_t first, size_t n) {
    int index = (int)(tensor - writer->table->tensors);
    bool weights = part == CHECKPOINT_WEIGHTS;
    if (!weights && tensor->buffer) {
        return set_error(STATUS_FAILED, "%s: tensor '%s' is a buffer: it has no moments", writer->temporary, tensor->name);
    }
    SafetensorsWriter *file = weights ? writer->model : writer->optimizer;
    if (!weights) index = 2 * index + (part == CHECKPOINT_EXP_AVG_SQ);
    if (tensor->transposed) return collect(writer, file, index, part, tensor, values, first, n);
    return safetensors_write(file, index, values, first, n);
}

// The new directory takes its name. Where one of that name is there, both names change hands in one step; a file system that cannot do that
// gets two steps, between which the old one lies under a name that prune leaves alone.
static int put_in_place(const CheckpointWriter *writer) {
    char replaced[NAME_SIZE];
    if (!rename(writer->temporary, writer->final)) return 0;
    if (errno != ENOTEMPTY && errno != EEXIST) {
        return set_error(STATUS_FAILED, "%s: cannot rename to %s: %s", writer->temporary, writer->final, strerror(errno));
    }
    if (!renameat2(AT_FDCWD, writer->temporary, AT_FDCWD, writer->final, RENAME_EXCHANGE)) return 0;
    int status = format_path(replaced, sizeof replaced, "%s/.replaced-%s", writer->parent, strrchr(writer->final, '/') + 1);
    if (!status) status = remove_tree(replaced);
    if (!status && (rename(writer->final, replaced) || rename(writer->temporary, writer->final))) {
        status = set_error(STATUS_FAILED, "%s: cannot replace: %s", writer->final, strerror(errno));
        rename(replaced, writer->final);        // back, if it went at all
    }
    if (!status) remove_tree(replaced);         // if that fails, prune tries again
    return status;
}

int checkpoint_commit(CheckpointWriter *writer) {
    int model = safetensors_finish(writer->model), optimizer = safetensors_finish(writer->optimizer);
    writer->model = writer->optimizer = NULL;
    int status = model || optimizer ? STATUS_FAILED : sync_directory(writer->temporary);
    if (!status) status = put_in_place(writer);
    if (!status) status = sync_directory(writer->parent);
    checkpoint_abandon(writer);                 // what has the temporary name now is a failed write, or the checkpoint replaced
    return status ? STATUS_FAILED : 0;
}

void checkpoint_abandon(CheckpointWriter *writer) {
    if (!writer) return;
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", error_text());
    safetensors_abandon(writer->model);
    safetensors_abandon(writer->optimizer);
    if (remove_tree(writer->temporary)) set_error(STATUS_FAILED, "%s", reason);     // what went wrong first is what matters
    free(writer->whole);
    free(writer);
}

// ================================================================ reading ================================================================

static int read_state(CheckpointReader *reader, const char *path) {
    char name[NAME_SIZE + 16];
    cJSON *state;
    int status = strict_json_read(&state, path, STATE_LIMIT);
    if (status) return status;
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(state, "format"), *step = cJSON_GetObjectItemCaseSensitive(state, "step");
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(state, "config");
    if (!cJSON_IsNumber(format) || format->valuedouble != FORMAT) {
        status = set_error(STATUS_BAD_INPUT, "%s: format: %d was wanted; another version of this program wrote it", path, FORMAT);
    }
    if (!status && !json_text_is_whole(step)) status = set_error(STATUS_BAD_INPUT, "%s: step: a whole number was wanted", path);
    if (!status && !config) status = set_error(STATUS_BAD_INPUT, "%s: config: is missing", path);
    if (!status && !(reader->config = malloc(sizeof *reader->config))) status = out_of_memory(path);
    snprintf(name, sizeof name, "%s: config", path);
    if (!status) status = config_from_json(reader->config, config, name);
    if (!status) reader->step = (long)step->valuedouble;
    cJSON_Delete(state);
    return status;
}

// Opens one more file of the weights.
static int add_file(Weights *weights, const char *path) {
    SafetensorsReader **grown = realloc(weights->files, (size_t)(weights->count + 1) * sizeof *grown);
    if (!grown) return out_of_memory(path);
    weights->files = grown;
    int status = safetensors_open(&grown[weights->count], path);
    if (!status) weights->count++;
    return status;
}

static int open_single(Weights *weights, const char *path) {
    snprintf(weights->name, sizeof weights->name, "%s", path);
    return add_file(weights, path);
}

static void close_weights(Weights *weights) {
    for (int i = 0; i < weights->count; i++) safetensors_close(weights->files[i]);
    free(weights->files);
}

// The file of that name among those that are open; NULL: none.
static SafetensorsReader *opened_file(const Weights *weights, const char *name) {
    for (int i = 0; i < weights->count; i++) {
        if (!strcmp(strrchr(safetensors_path(weights->files[i]), '/') + 1, name)) return weights->files[i];
    }
    return NULL;
}

// An index's entry, {tensor: file}: opens the file unless it is open, and looks whether the tensor is in it. A file lies in the directory.
static int read_index_entry(const CheckpointReader *reader, Weights *weights, const cJSON *entry) {
    char path[NAME_SIZE], tensor[PRINTABLE_SIZE], printable[PRINTABLE_SIZE];
    const char *file = cJSON_IsString(entry) ? entry->valuestring : "";
    make_printable(tensor, entry->string);
    if (!*file || *file == '.' || strchr(file, '/')) {
        return set_error(STATUS_BAD_INPUT, "%s: weight_map: tensor '%s': '%s' is not the name of a file beside it", weights->name, tensor,
                         make_printable(printable, file));
    }
    int status = 0;
    if (!opened_file(weights, file)) {
        status = format_path(path, sizeof path, "%s/%s", reader->directory, file);
        if (!status) status = add_file(weights, path);
    }
    if (status || safetensors_find(opened_file(weights, file), entry->string)) return status;
    return set_error(STATUS_BAD_INPUT, "%s: weight_map: tensor '%s' is not in %s", weights->name, tensor, make_printable(printable, file));
}

static int check_none_twice(const Weights *weights) {
    for (int i = 0; i < weights->count; i++) {
        for (int t = 0; t < safetensors_count(weights->files[i]); t++) {
            const char *name = safetensors_info(weights->files[i], t)->name;
            for (int j = i + 1; j < weights->count; j++) {
                if (!safetensors_find(weights->files[j], name)) continue;
                return set_error(STATUS_BAD_INPUT, "%s: tensor '%s' is in %s too", safetensors_path(weights->files[i]), name,
                                 safetensors_path(weights->files[j]));
            }
        }
    }
    return 0;
}

static int open_shards(const CheckpointReader *reader, Weights *weights, const char *index) {
    cJSON *json;
    snprintf(weights->name, sizeof weights->name, "%s", index);
    int status = strict_json_read(&json, index, INDEX_LIMIT);
    if (status) return status;
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    if (!cJSON_IsObject(map) || !map->child) {
        status = set_error(STATUS_BAD_INPUT, "%s: weight_map: an object of tensors' files was wanted", index);
    }
    for (const cJSON *entry = status ? NULL : map->child; entry && !status; entry = entry->next) {
        status = read_index_entry(reader, weights, entry);
    }
    cJSON_Delete(json);
    return status ? status : check_none_twice(weights);
}

// One file, or several with an index; as transformers, the one where both are there.
static int open_model(CheckpointReader *reader) {
    char path[NAME_SIZE], index[NAME_SIZE];
    if (format_path(path, sizeof path, "%s/model.safetensors", reader->directory)) return STATUS_BAD_INPUT;
    if (format_path(index, sizeof index, "%s/model.safetensors.index.json", reader->directory)) return STATUS_BAD_INPUT;
    if (!access(path, F_OK)) return open_single(&reader->model, path);
    if (!access(index, F_OK)) return open_shards(reader, &reader->model, index);
    return set_error(STATUS_BAD_INPUT, "%s: there is no model.safetensors in it, nor a model.safetensors.index.json", reader->directory);
}

static int open_all(CheckpointReader *reader) {
    char path[NAME_SIZE];
    struct stat is;
    if (stat(reader->directory, &is)) return set_error(STATUS_BAD_INPUT, "%s: %s", reader->directory, strerror(errno));
    if (!S_ISDIR(is.st_mode)) return set_error(STATUS_BAD_INPUT, "%s: is a file; a checkpoint is a directory", reader->directory);
    int status = format_path(path, sizeof path, "%s/config.json", reader->directory);
    if (!status) status = hf_config_read(path, &reader->shape, &reader->attention);
    if (!status) status = open_model(reader);
    if (!status) status = format_path(path, sizeof path, "%s/trainer_state.json", reader->directory);
    if (!status && !access(path, F_OK)) status = read_state(reader, path);
    if (!status) status = format_path(path, sizeof path, "%s/optimizer.safetensors", reader->directory);
    if (!status && !access(path, F_OK)) status = open_single(&reader->optimizer, path);
    return status;
}

int checkpoint_open(CheckpointReader **opened, const char *directory) {
    *opened = NULL;
    CheckpointReader *reader = calloc(1, sizeof *reader);
    if (!reader) return out_of_memory(directory);
    reader->step = -1;
    int status = format_path(reader->directory, sizeof reader->directory, "%s", directory);
    if (!status) status = open_all(reader);
    if (status) checkpoint_close(reader);
    else *opened = reader;
    return status;
}

void checkpoint_close(CheckpointReader *reader) {
    if (!reader) return;
    close_weights(&reader->model);
    close_weights(&reader->optimizer);
    free(reader->config);
    free(reader->whole);
    free(reader);
}

const ModelConfig *checkpoint_model(const CheckpointReader *reader) {
    return &reader->shape;
}

const AttentionConfig *checkpoint_attention(const CheckpointReader *reader) {
    return &reader->attention;
}

const Config *checkpoint_config(const CheckpointReader *reader) {
    return reader->config;
}

long checkpoint_step(const CheckpointReader *reader) {
    return reader->step;
}

// "[768, 2304]"
static const char *shape_text(char *text, size_t size, const SafetensorsInfo *info) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < info->dimensions; d++) {
        used += (size_t)snprintf(text + used, size - used, "%s%llu", d ? ", " : "", (unsigned long long)info->shape[d]);
    }
    snprintf(text + used, size - used, "]");
    return text;
}
enum { SHAPE_SIZE = 4 + SAFETENSORS_MAX_DIMENSIONS * 22 };

typedef struct Stored {
    SafetensorsReader *file;
    const SafetensorsInfo *info;        // NULL: not there
} Stored;

static Stored find_exactly(const Weights *weights, const char *name) {
    for (int i = 0; i < weights->count; i++) {
        const SafetensorsInfo *info = safetensors_find(weights->files[i], name);
        if (info) return (Stored){ weights->files[i], info };
    }
    return (Stored){ NULL, NULL };
}

// A tensor by its name, or by its name without what stands before the first dot: some directories of gpt2 leave "transformer." out.
static Stored find_stored(const Weights *weights, const char *name) {
    Stored stored = find_exactly(weights, name);
    bool prefixed = !strncmp(name, "transformer.", 12) || !strncmp(name, "model.", 6);
    return stored.info || !prefixed ? stored : find_exactly(weights, strchr(name, '.') + 1);
}

// The stored tensor of one of the table's, once name, shape and type are what the table says.
static int find_tensor(const Weights *weights, CheckpointPart part, const Tensor *tensor, Stored *stored) {
    char wanted_text[SHAPE_SIZE], found_text[SHAPE_SIZE];
    const SafetensorsInfo wanted = describe(tensor, part), *info = (*stored = find_stored(weights, wanted.name)).info;
    shape_text(wanted_text, sizeof wanted_text, &wanted);
    if (!info) {
        return set_error(STATUS_BAD_INPUT, "%s: tensor '%s' %s is missing%s", weights->name, wanted.name, wanted_text,
                         tensor->attention_own ? ": these weights were not trained with this attention type or gate" : "");
    }
    const char *path = safetensors_path(stored->file);
    bool same = info->dimensions == wanted.dimensions && !memcmp(info->shape, wanted.shape, sizeof wanted.shape);
    if (!same) {
        return set_error(STATUS_BAD_INPUT, "%s: tensor '%s' has shape %s, but the model's is %s", path, info->name,
                         shape_text(found_text, sizeof found_text, info), wanted_text);
    }
    if (safetensors_is_float(info->type)) return 0;
    return set_error(STATUS_BAD_INPUT, "%s: tensor '%s' has type %s; F32, BF16, F16 or F64 was wanted", path, info->name,
                     safetensors_type_name(info->type));
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

// What may stand in a file without being a weight: a tied classifier stored twice, masks and angles that other programs keep as buffers.
static bool may_be_ignored(const CheckpointReader *reader, const char *name) {
    return (reader->shape.tie_word_embeddings && !strcmp(name, "lm_head.weight")) || ends_with(name, ".attn.bias") ||
           ends_with(name, ".attn.masked_bias") || ends_with(name, ".rotary_emb.inv_freq");
}

static int by_address(const void *a, const void *b) {
    const char *x = *(const void *const *)a, *y = *(const void *const *)b;
    return (x > y) - (x < y);
}

// Nothing is stored but what was found, and what may be ignored.
static int check_nothing_else(const CheckpointReader *reader, const Weights *weights, const SafetensorsInfo **found, size_t count) {
    qsort(found, count, sizeof *found, by_address);
    for (int i = 0; i < weights->count; i++) {
        for (int t = 0; t < safetensors_count(weights->files[i]); t++) {
            const SafetensorsInfo *info = safetensors_info(weights->files[i], t);
            char text[SHAPE_SIZE];
            if (bsearch(&info, found, count, sizeof *found, by_address) || may_be_ignored(reader, info->name)) continue;
            return set_error(STATUS_BAD_INPUT, "%s: tensor '%s' %s is not part of this model", safetensors_path(weights->files[i]),
                             info->name, shape_text(text, sizeof text, info));
        }
    }
    return 0;
}

// Every one of the tensors is there, in each of the parts, and nothing else. lenient: those that only this attention has may be absent.
static int check_weights(const CheckpointReader *reader, const Weights *weights, const Tensor *tensors, int count, CheckpointPart first,
                         CheckpointPart last, bool lenient) {
    const SafetensorsInfo **found = malloc(((size_t)count * (size_t)(last - first + 1) + 1) * sizeof *found);
    if (!found) return out_of_memory(reader->directory);
    size_t found_count = 0;
    int status = 0;
    for (int i = 0; i < count && !status; i++) {
        for (CheckpointPart part = first; part <= last && !status; part++) {
            Stored stored;
            if (lenient && tensors[i].attention_own && !find_stored(weights, tensors[i].name).info) continue;
            status = find_tensor(weights, part, &tensors[i], &stored);
            found[found_count++] = stored.info;
        }
    }
    if (!status) status = check_nothing_else(reader, weights, found, found_count);
    free(found);
    return status;
}

int checkpoint_check(CheckpointReader *reader, const ParameterTable *table, bool optimizer) {
    int status = check_weights(reader, &reader->model, table->tensors, table->tensor_count, CHECKPOINT_WEIGHTS, CHECKPOINT_WEIGHTS, false);
    if (status || !optimizer) return status;
    if (!reader->optimizer.count) return set_error(STATUS_BAD_INPUT, "%s: there is no optimizer.safetensors in it", reader->directory);
    return check_weights(reader, &reader->optimizer, table->tensors, table->parameter_tensors, CHECKPOINT_EXP_AVG, CHECKPOINT_EXP_AVG_SQ,
                         false);
}

int checkpoint_check_beginning(CheckpointReader *reader, const ParameterTable *table) {
    ParameterTable own;                         // first that the directory is whole: half of an attention must not pass for none
    int status = parameter_table_build(&own, &reader->shape, &reader->attention, 0, 1);
    if (status) return status;
    status = checkpoint_check(reader, &own, false);
    parameter_table_free(&own);
    if (status) return status;
    return check_weights(reader, &reader->model, table->tensors, table->tensor_count, CHECKPOINT_WEIGHTS, CHECKPOINT_WEIGHTS, true);
}

bool checkpoint_has(const CheckpointReader *reader, const Tensor *tensor) {
    return find_stored(&reader->model, tensor->name).info;
}

// The file's [in,out] as memory's [out,in], kept in reader->whole.
static int read_transposed(CheckpointReader *reader, SafetensorsReader *file, const SafetensorsInfo *info) {
    size_t in = (size_t)info->shape[0], out = (size_t)info->shape[1];
    free(reader->whole);
    reader->whole_is = NULL;
    reader->whole = malloc(info->count * sizeof *reader->whole);
    double *rows = malloc(ROWS_AT_ONCE * out * sizeof *rows);
    int status = reader->whole && rows ? 0 : out_of_memory(info->name);
    for (size_t first = 0; first < in && !status; first += ROWS_AT_ONCE) {
        size_t count = in - first < ROWS_AT_ONCE ? in - first : ROWS_AT_ONCE;
        status = safetensors_read(file, info, rows, first * out, count * out);
        for (size_t o = 0; o < out && !status; o++) {
            for (size_t i = 0; i < count; i++) reader->whole[o * in + first + i] = rows[i * out + o];
        }
    }
    free(rows);
    if (!status) reader->whole_is = info;
    return status;
}

int checkpoint_read(CheckpointReader *reader, CheckpointPart part, const Tensor *tensor, double *values, size_t first, size_t n) {
    const Weights *weights = part == CHECKPOINT_WEIGHTS ? &reader->model : &reader->optimizer;
    Stored stored;
    if (!weights->count) return set_error(STATUS_BAD_INPUT, "%s: there is no optimizer.safetensors in it", reader->directory);
    int status = find_tensor(weights, part, tensor, &stored);
    if (status || !tensor->transposed) return status ? status : safetensors_read(stored.file, stored.info, values, first, n);
    if (first > stored.info->count || n > stored.info->count - first) {
        return set_error(STATUS_FAILED, "%s: tensor '%s': elements past its end were asked for", safetensors_path(stored.file),
                         stored.info->name);
    }
    if (reader->whole_is != stored.info) status = read_transposed(reader, stored.file, stored.info);
    if (!status) memcpy(values, reader->whole + first, n * sizeof *values);
    return status;
}
