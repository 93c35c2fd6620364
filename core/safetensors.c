// The safetensors format, read with suspicion and written with care: see safetensors.h.
#define _GNU_SOURCE
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "files.h"
#include "json_text.h"
#include "message.h"
#include "strict_json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian, and so must the machine be");

enum {
    LENGTH_BYTES = 8,                           // of the header's length
    LARGEST_HEADER = 100 * 1000 * 1000,         // the reference implementation's limit
    BLOCK_BYTES = 1 << 16                       // converted at a time
};

static const struct { const char *name; int bytes; } type_rows[SAFETENSORS_TYPES] = {
    [SAFETENSORS_F64] = { "F64", 8 }, [SAFETENSORS_F32] = { "F32", 4 }, [SAFETENSORS_F16] = { "F16", 2 },
    [SAFETENSORS_BF16] = { "BF16", 2 }, [SAFETENSORS_BOOL] = { "BOOL", 1 },
    [SAFETENSORS_I64] = { "I64", 8 }, [SAFETENSORS_I32] = { "I32", 4 }, [SAFETENSORS_I16] = { "I16", 2 }, [SAFETENSORS_I8] = { "I8", 1 },
    [SAFETENSORS_U64] = { "U64", 8 }, [SAFETENSORS_U32] = { "U32", 4 }, [SAFETENSORS_U16] = { "U16", 2 }, [SAFETENSORS_U8] = { "U8", 1 },
    [SAFETENSORS_F8_E4M3] = { "F8_E4M3", 1 }, [SAFETENSORS_F8_E5M2] = { "F8_E5M2", 1 }, [SAFETENSORS_F8_E8M0] = { "F8_E8M0", 1 },
    [SAFETENSORS_C64] = { "C64", 8 },
};

struct SafetensorsReader {
    char *path;
    int file;
    uint64_t data_begin, data_bytes;
    SafetensorsInfo *tensors;                   // in the header's order
    int count;
    const SafetensorsInfo **by_name;
};

struct SafetensorsWriter {
    char *path;
    int file;
    SafetensorsInfo *tensors;
    uint64_t *written;                          // elements of each tensor
    int count;
    bool failed;
};

const char *safetensors_type_name(SafetensorsType type) {
    return type_rows[type].name;
}

bool safetensors_is_float(SafetensorsType type) {
    return type <= SAFETENSORS_BF16;
}

const char *safetensors_path(const SafetensorsReader *reader) {
    return reader->path;
}

int safetensors_count(const SafetensorsReader *reader) {
    return reader->count;
}

const SafetensorsInfo *safetensors_info(const SafetensorsReader *reader, int i) {
    return &reader->tensors[i];
}

// ================================================================ values =================================================================

static double from_f16(uint16_t bits) {
    uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    if ((bits & 0x7c00) == 0x7c00) magnitude |= 0x7f800000;     // infinity, NaN
    float value;
    memcpy(&value, &magnitude, sizeof value);
    if ((bits & 0x7c00) != 0x7c00) value *= 0x1p112f;           // the exponents' biases differ by 112; exact, subnormal or not
    return bits & 0x8000 ? -value : value;
}

static double from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

// A 16-bit float with that many bits of exponent and mantissa, rounded once from the double.
static uint16_t to_16_bits(double value, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, exponent;
    uint16_t sign = signbit(value) ? 0x8000 : 0, infinity = (uint16_t)(((1 << exponent_bits) - 1) << mantissa_bits);
    if (isnan(value)) return (uint16_t)(sign | infinity | 1 << (mantissa_bits - 1));
    if (isinf(value)) return sign | infinity;
    if (value == 0) return sign;
    frexp(value, &exponent);
    exponent -= 1;                                              // |value| = 1.x * 2^exponent
    if (exponent < 1 - bias) exponent = 1 - bias;               // below lie the subnormals, which share this exponent's spacing
    if (exponent > bias) return sign | infinity;
    double steps = nearbyint(ldexp(fabs(value), mantissa_bits - exponent));
    // the leading one of `steps` adds itself to the exponent field, and so does a carry: into the next exponent, or into infinity
    int bits = ((exponent + bias - 1) << mantissa_bits) + (int)steps;
    return (uint16_t)(sign | bits);
}

// values = the n elements at `from`; false for an integer that no double holds.
#define WIDEN(TYPE, VALUE) \
    for (size_t i = 0; i < n; i++) { TYPE x; memcpy(&x, from + i * sizeof x, sizeof x); values[i] = (VALUE); }
static bool widen(double *values, const unsigned char *from, size_t n, SafetensorsType type) {
    switch (type) {
        case SAFETENSORS_F64: memcpy(values, from, n * sizeof *values); return true;
        case SAFETENSORS_F32: WIDEN(float, x) return true;
        case SAFETENSORS_F16: WIDEN(uint16_t, from_f16(x)) return true;
        case SAFETENSORS_BF16: WIDEN(uint16_t, from_bf16(x)) return true;
        case SAFETENSORS_I32: WIDEN(int32_t, x) return true;
        case SAFETENSORS_I16: WIDEN(int16_t, x) return true;
        case SAFETENSORS_I8: WIDEN(int8_t, x) return true;
        case SAFETENSORS_U32: WIDEN(uint32_t, x) return true;
        case SAFETENSORS_U16: WIDEN(uint16_t, x) return true;
        case SAFETENSORS_U8: WIDEN(uint8_t, x) return true;
        case SAFETENSORS_BOOL: WIDEN(uint8_t, x != 0) return true;
        // the round trip is compared in a type that holds both: 2^63 and 2^64 themselves do not fit back
        case SAFETENSORS_I64: {
            bool exact = true;
            WIDEN(int64_t, (exact = exact && (long double)(double)x == (long double)x, (double)x))
            return exact;
        }
        case SAFETENSORS_U64: {
            bool exact = true;
            WIDEN(uint64_t, (exact = exact && (long double)(double)x == (long double)x, (double)x))
            return exact;
        }
        default: return false;
    }
}

// The elements at `to` = n values, rounded; false for a value outside an integer type.
#define NARROW(TYPE, VALUE) for (size_t i = 0; i < n; i++) { TYPE x = (TYPE)(VALUE); memcpy(to + i * sizeof x, &x, sizeof x); }
#define NARROW_WHOLE(TYPE, LOW, HIGH) \
    for (size_t i = 0; i < n; i++) { if (!(rint(values[i]) >= (LOW) && rint(values[i]) <= (HIGH))) return false; } \
    NARROW(TYPE, rint(values[i])) return true;
static bool narrow(unsigned char *to, const double *values, size_t n, SafetensorsType type) {
    switch (type) {
        case SAFETENSORS_F64: memcpy(to, values, n * sizeof *values); return true;
        case SAFETENSORS_F32: NARROW(float, values[i]) return true;
        case SAFETENSORS_F16: NARROW(uint16_t, to_16_bits(values[i], 5, 10)) return true;
        case SAFETENSORS_BF16: NARROW(uint16_t, to_16_bits(values[i], 8, 7)) return true;
        case SAFETENSORS_I64: NARROW_WHOLE(int64_t, -0x1p63, 0x1.fffffffffffffp62)     // the largest double below 2^63
        case SAFETENSORS_I32: NARROW_WHOLE(int32_t, -0x1p31, 0x1p31 - 1)
        case SAFETENSORS_I16: NARROW_WHOLE(int16_t, -0x1p15, 0x1p15 - 1)
        case SAFETENSORS_I8: NARROW_WHOLE(int8_t, -0x1p7, 0x1p7 - 1)
        case SAFETENSORS_U64: NARROW_WHOLE(uint64_t, 0, 0x1.fffffffffffffp63)
        case SAFETENSORS_U32: NARROW_WHOLE(uint32_t, 0, 0x1p32 - 1)
        case SAFETENSORS_U16: NARROW_WHOLE(uint16_t, 0, 0x1p16 - 1)
        case SAFETENSORS_U8: NARROW_WHOLE(uint8_t, 0, 0x1p8 - 1)
        case SAFETENSORS_BOOL: NARROW_WHOLE(uint8_t, 0, 1)
        default: return false;
    }
}

// ================================================================ reading ================================================================

// Status 2 where fewer bytes are there. what: named in the message.
static int read_bytes(const SafetensorsReader *reader, void *bytes, size_t count, uint64_t offset, const char *what) {
    for (size_t done = 0; done < count;) {
        ssize_t got = pread(reader->file, (char *)bytes + done, count - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return set_error(STATUS_FAILED, "%s: cannot read %s: %s", reader->path, what, strerror(errno));
        if (!got) {
            return set_error(STATUS_BAD_INPUT, "%s: ends at byte %llu, inside %s", reader->path, (unsigned long long)(offset + done), what);
        }
        done += (size_t)got;
    }
    return 0;
}

// Reports a fault of one tensor's entry.
__attribute__((format(printf, 3, 4)))
static int bad_tensor(const SafetensorsReader *reader, const char *name, const char *format, ...) {
    char text[512], printable[PRINTABLE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return set_error(STATUS_BAD_INPUT, "%s: tensor '%s': %s", reader->path, make_printable(printable, name), text);
}

static int read_type(const SafetensorsReader *reader, SafetensorsInfo *tensor, const cJSON *entry) {
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    if (!cJSON_IsString(dtype)) return bad_tensor(reader, tensor->name, "has no dtype");
    for (int i = 0; i < SAFETENSORS_TYPES; i++) {
        if (strcmp(dtype->valuestring, type_rows[i].name)) continue;
        tensor->type = (SafetensorsType)i;
        return 0;
    }
    char printable[PRINTABLE_SIZE];
    return bad_tensor(reader, tensor->name, "dtype '%s' is not known", make_printable(printable, dtype->valuestring));
}

static int read_shape(const SafetensorsReader *reader, SafetensorsInfo *tensor, const cJSON *entry) {
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape"), *extent;
    if (!cJSON_IsArray(shape)) return bad_tensor(reader, tensor->name, "has no shape");
    tensor->count = 1;
    cJSON_ArrayForEach(extent, shape) {
        if (tensor->dimensions == SAFETENSORS_MAX_DIMENSIONS) {
            return bad_tensor(reader, tensor->name, "has more than %d dimensions", SAFETENSORS_MAX_DIMENSIONS);
        }
        if (!json_text_is_whole(extent)) return bad_tensor(reader, tensor->name, "its shape holds something other than whole numbers");
        tensor->shape[tensor->dimensions] = (uint64_t)extent->valuedouble;
        if (__builtin_mul_overflow(tensor->count, tensor->shape[tensor->dimensions++], &tensor->count)) {
            return bad_tensor(reader, tensor->name, "its shape has more elements than 64 bits count");
        }
    }
    return 0;
}

static int read_offsets(const SafetensorsReader *reader, SafetensorsInfo *tensor, const cJSON *entry) {
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    const cJSON *first = cJSON_GetArrayItem(offsets, 0), *second = cJSON_GetArrayItem(offsets, 1);
    if (!cJSON_IsArray(offsets) || !json_text_is_whole(first) || !json_text_is_whole(second) || second->next) {
        return bad_tensor(reader, tensor->name, "its data_offsets are not two whole numbers");
    }
    uint64_t begin = (uint64_t)first->valuedouble, end = (uint64_t)second->valuedouble, bytes;
    if (begin > end) {
        return bad_tensor(reader, tensor->name, "its data ends (byte %llu) before it begins (byte %llu)",
                          (unsigned long long)end, (unsigned long long)begin);
    }
    if (end > reader->data_bytes) {
        return bad_tensor(reader, tensor->name, "its data ends at byte %llu, but the file has %llu bytes of data: was it cut short?",
                          (unsigned long long)end, (unsigned long long)reader->data_bytes);
    }
    if (__builtin_mul_overflow(tensor->count, (uint64_t)type_rows[tensor->type].bytes, &bytes) || bytes != end - begin) {
        return bad_tensor(reader, tensor->name, "its data_offsets span %llu bytes, which is not its shape times the size of %s",
                          (unsigned long long)(end - begin), type_rows[tensor->type].name);
    }
    tensor->begin = reader->data_begin + begin;
    return 0;
}

static int read_entry(const SafetensorsReader *reader, SafetensorsInfo *tensor, const cJSON *entry) {
    if (strlen(entry->string) >= sizeof tensor->name) {
        return bad_tensor(reader, entry->string, "its name is longer than %zu bytes", sizeof tensor->name - 1);
    }
    strcpy(tensor->name, entry->string);
    for (const char *c = tensor->name; *c; c++) {               // messages may name it from here on
        if ((unsigned char)*c < ' ' || *c == 0x7f) return bad_tensor(reader, tensor->name, "its name holds a control character");
    }
    if (!cJSON_IsObject(entry)) return bad_tensor(reader, tensor->name, "its entry in the header is not an object");
    int status = read_type(reader, tensor, entry);
    if (!status) status = read_shape(reader, tensor, entry);
    return status ? status : read_offsets(reader, tensor, entry);
}

static int check_metadata(const SafetensorsReader *reader, const cJSON *metadata) {
    const cJSON *item;
    bool strings = cJSON_IsObject(metadata);
    cJSON_ArrayForEach(item, metadata) strings = strings && cJSON_IsString(item);
    return strings ? 0 : set_error(STATUS_BAD_INPUT, "%s: __metadata__ is not an object of strings", reader->path);
}

static uint64_t end_of(const SafetensorsInfo *tensor) {
    return tensor->begin + tensor->count * type_rows[tensor->type].bytes;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const SafetensorsInfo *const *)a)->name, (*(const SafetensorsInfo *const *)b)->name);
}

static int by_place(const void *a, const void *b) {
    const SafetensorsInfo *x = *(const SafetensorsInfo *const *)a, *y = *(const SafetensorsInfo *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return end_of(x) < end_of(y) ? -1 : end_of(x) > end_of(y);              // one without elements before one that has some
}

// Tensors must fill the data without a gap or an overlap, as the reference implementation demands: nothing hides in the file, and no tensor
// is another's alias.
static int check_places(SafetensorsReader *reader) {
    uint64_t filled = reader->data_begin, end = reader->data_begin + reader->data_bytes;
    qsort(reader->by_name, (size_t)reader->count, sizeof *reader->by_name, by_place);
    for (int i = 0; i < reader->count; i++) {
        const SafetensorsInfo *tensor = reader->by_name[i];
        if (tensor->begin < filled) {
            return bad_tensor(reader, tensor->name, "its data overlaps that of '%s'", reader->by_name[i - 1]->name);
        }
        if (tensor->begin > filled) {
            return bad_tensor(reader, tensor->name, "the %llu bytes before its data belong to no tensor",
                              (unsigned long long)(tensor->begin - filled));
        }
        filled = end_of(tensor);
    }
    if (filled == end) return 0;
    return set_error(STATUS_BAD_INPUT, "%s: the last %llu bytes belong to no tensor", reader->path, (unsigned long long)(end - filled));
}

static int read_entries(SafetensorsReader *reader, const cJSON *header) {
    int size = cJSON_GetArraySize(header), status = 0;
    const cJSON *entry;
    reader->tensors = calloc((size_t)size + 1, sizeof *reader->tensors);
    reader->by_name = calloc((size_t)size + 1, sizeof *reader->by_name);
    if (!reader->tensors || !reader->by_name) return set_error(STATUS_FAILED, "%s: out of memory", reader->path);
    cJSON_ArrayForEach(entry, header) {
        if (!strcmp(entry->string, "__metadata__")) {
            status = check_metadata(reader, entry);
        } else {
            reader->by_name[reader->count] = &reader->tensors[reader->count];
            status = read_entry(reader, &reader->tensors[reader->count++], entry);
        }
        if (status) return status;
    }
    status = check_places(reader);
    qsort(reader->by_name, (size_t)reader->count, sizeof *reader->by_name, by_name);
    return status;
}

// Finds the header's length believable and reads it: *text malloc'd.
static int read_header(SafetensorsReader *reader, char **text, size_t *length) {
    struct stat is;
    uint64_t header;
    if (fstat(reader->file, &is)) return set_error(STATUS_FAILED, "%s: %s", reader->path, strerror(errno));
    if (!S_ISREG(is.st_mode)) return set_error(STATUS_BAD_INPUT, "%s: is no regular file", reader->path);
    if (is.st_size < LENGTH_BYTES) {
        return set_error(STATUS_BAD_INPUT, "%s: is no safetensors file: %lld bytes long", reader->path, (long long)is.st_size);
    }
    int status = read_bytes(reader, &header, sizeof header, 0, "the header's length");
    if (status) return status;
    if (header > LARGEST_HEADER || header > (uint64_t)is.st_size - LENGTH_BYTES) {
        return set_error(STATUS_BAD_INPUT, "%s: is no safetensors file, or was cut short: a header of %llu bytes in a file of %lld",
                         reader->path, (unsigned long long)header, (long long)is.st_size);
    }
    reader->data_begin = LENGTH_BYTES + header;
    reader->data_bytes = (uint64_t)is.st_size - reader->data_begin;
    *text = calloc(1, header + 1);
    *length = header;
    if (!*text) return set_error(STATUS_FAILED, "%s: out of memory", reader->path);
    status = read_bytes(reader, *text, header, LENGTH_BYTES, "the header");
    if (!status && (!header || **text != '{')) status = set_error(STATUS_BAD_INPUT, "%s: the header does not begin with {", reader->path);
    return status;
}

int safetensors_open(SafetensorsReader **opened, const char *path) {
    *opened = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);           // a pipe without a writer must not hang
    if (file < 0) return set_error(STATUS_BAD_INPUT, "%s: cannot open: %s", path, strerror(errno));
    SafetensorsReader *reader = calloc(1, sizeof *reader);
    char *text = NULL;
    size_t length = 0;
    cJSON *header = NULL;
    if (reader) reader->path = strdup(path);
    if (!reader || !reader->path) {
        free(reader);
        close(file);
        return set_error(STATUS_FAILED, "%s: out of memory", path);
    }
    reader->file = file;
    int status = read_header(reader, &text, &length);
    if (!status) {
        status = strict_json_parse(&header, text, length);              // no key given twice, no number that a double does not hold
        if (status) prefix_error(status, "%s: header: ", path);
    }
    if (!status) status = read_entries(reader, header);
    cJSON_Delete(header);
    free(text);
    if (status) safetensors_close(reader);
    else *opened = reader;
    return status;
}

void safetensors_close(SafetensorsReader *reader) {
    if (!reader) return;
    close(reader->file);
    free(reader->tensors);
    free(reader->by_name);
    free(reader->path);
    free(reader);
}

const SafetensorsInfo *safetensors_find(const SafetensorsReader *reader, const char *name) {
    int low = 0, high = reader->count;
    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(name, reader->by_name[middle]->name);
        if (!order) return reader->by_name[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

int safetensors_read(SafetensorsReader *reader, const SafetensorsInfo *tensor, double *values, uint64_t first, uint64_t n) {
    unsigned char block[BLOCK_BYTES];
    char what[sizeof tensor->name + 16];
    size_t bytes = (size_t)type_rows[tensor->type].bytes, most = BLOCK_BYTES / bytes;
    if (tensor->type > SAFETENSORS_BOOL) {
        return bad_tensor(reader, tensor->name, "values of type %s are not read", type_rows[tensor->type].name);
    }
    if (first > tensor->count || n > tensor->count - first) {
        return set_error(STATUS_FAILED, "%s: tensor '%s': elements past its end were asked for", reader->path, tensor->name);
    }
    snprintf(what, sizeof what, "tensor '%s'", tensor->name);
    for (uint64_t done = 0; done < n;) {
        size_t now = n - done < most ? (size_t)(n - done) : most;
        int status = read_bytes(reader, block, now * bytes, tensor->begin + (first + done) * bytes, what);
        if (status) return status;
        if (!widen(values + done, block, now, tensor->type)) {
            return bad_tensor(reader, tensor->name, "holds a whole number too large for a double to be exact");
        }
        done += now;
    }
    return 0;
}

// ================================================================ writing ================================================================

// The header as JSON; tensors get their counts and, for now relative to the data, their places. NULL when out of memory.
static cJSON *build_header(SafetensorsInfo *tensors, int count, uint64_t *data_bytes) {
    cJSON *header = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(header, "__metadata__");
    bool good = cJSON_AddStringToObject(metadata, "format", "pt") != NULL;
    *data_bytes = 0;
    for (int i = 0; i < count && good; i++) {
        SafetensorsInfo *tensor = &tensors[i];
        cJSON *entry = cJSON_AddObjectToObject(header, tensor->name);
        good = cJSON_AddStringToObject(entry, "dtype", type_rows[tensor->type].name) != NULL;
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
        tensor->count = 1;
        for (int d = 0; d < tensor->dimensions; d++) {
            tensor->count *= tensor->shape[d];
            good = good && cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[d]));
        }
        cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        tensor->begin = *data_bytes;
        *data_bytes += tensor->count * (uint64_t)type_rows[tensor->type].bytes;
        good = good && cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)tensor->begin)) &&
               cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)*data_bytes));
    }
    if (good) return header;
    cJSON_Delete(header);
    return NULL;
}

static int write_failed(SafetensorsWriter *writer, const char *doing) {
    int reason = errno;
    writer->failed = true;
    return set_error(STATUS_FAILED, "%s: cannot %s: %s", writer->path, doing, strerror(reason));
}

// Writes length and header, padded with spaces so that the data begin at a multiple of 8, and gives the file its final size.
static int write_header(SafetensorsWriter *writer) {
    uint64_t data_bytes, length;
    bool failed;
    cJSON *header = build_header(writer->tensors, writer->count, &data_bytes);
    char *text = header ? json_text_print(header, false) : NULL;
    const char *repeated = header ? json_text_repeated_key(header, &failed) : NULL;
    if (repeated) set_error(STATUS_FAILED, "%s: tensor '%s' was to be written twice", writer->path, repeated);
    cJSON_Delete(header);
    size_t used = text ? strlen(text) : 0, padded = (used + 7) / 8 * 8;
    char *bytes = text ? malloc(LENGTH_BYTES + padded) : NULL;
    if (!repeated && !bytes) set_error(STATUS_FAILED, "%s: out of memory", writer->path);
    int status = repeated || !bytes ? STATUS_FAILED : 0;
    if (!status) {
        length = padded;
        memcpy(bytes, &length, LENGTH_BYTES);
        memset(bytes + LENGTH_BYTES, ' ', padded);
        memcpy(bytes + LENGTH_BYTES, text, used);
        for (int i = 0; i < writer->count; i++) writer->tensors[i].begin += LENGTH_BYTES + padded;
        bool written = !write_all(writer->file, bytes, LENGTH_BYTES + padded, 0) &&
                       !ftruncate(writer->file, (off_t)(LENGTH_BYTES + padded + data_bytes));
        if (!written) status = write_failed(writer, "write");
    }
    cJSON_free(text);
    free(bytes);
    return status;
}

int safetensors_create(SafetensorsWriter **created, const char *path, const SafetensorsInfo *tensors, int count) {
    *created = NULL;
    SafetensorsWriter *writer = calloc(1, sizeof *writer);
    if (!writer) return set_error(STATUS_FAILED, "%s: out of memory", path);
    writer->file = -1;
    writer->count = count;
    writer->path = strdup(path);
    writer->tensors = calloc((size_t)count + 1, sizeof *tensors);
    writer->written = calloc((size_t)count + 1, sizeof *writer->written);
    int status;
    if (!writer->path || !writer->tensors || !writer->written) {
        status = set_error(STATUS_FAILED, "%s: out of memory", path);
    } else {
        if (count) memcpy(writer->tensors, tensors, (size_t)count * sizeof *tensors);
        writer->file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        status = writer->file < 0 ? write_failed(writer, "create") : write_header(writer);
    }
    if (status) safetensors_abandon(writer);
    else *created = writer;
    return status;
}

int safetensors_write(SafetensorsWriter *writer, int index, const double *values, uint64_t first, uint64_t n) {
    unsigned char block[BLOCK_BYTES];
    const SafetensorsInfo *tensor = &writer->tensors[index];
    size_t bytes = (size_t)type_rows[tensor->type].bytes, most = BLOCK_BYTES / bytes;
    if (first != writer->written[index] || n > tensor->count - first) {
        writer->failed = true;
        return set_error(STATUS_FAILED, "%s: tensor '%s': elements %llu to %llu came when %llu of %llu were written",
                         writer->path, tensor->name, (unsigned long long)first, (unsigned long long)(first + n),
                         (unsigned long long)writer->written[index], (unsigned long long)tensor->count);
    }
    for (uint64_t done = 0; done < n;) {
        size_t now = n - done < most ? (size_t)(n - done) : most;
        if (!narrow(block, values + done, now, tensor->type)) {
            writer->failed = true;
            return set_error(STATUS_FAILED, "%s: tensor '%s': a value does not fit its type %s", writer->path, tensor->name,
                             type_rows[tensor->type].name);
        }
        long long place = (long long)(tensor->begin + (first + done) * bytes);
        if (write_all(writer->file, block, now * bytes, place)) return write_failed(writer, "write");
        done += now;
        writer->written[index] += now;
    }
    return 0;
}

int safetensors_finish(SafetensorsWriter *writer) {
    int status = writer->failed ? STATUS_FAILED : 0;                    // the message was kept when it happened
    for (int i = 0; i < writer->count && !status; i++) {
        if (writer->written[i] == writer->tensors[i].count) continue;
        status = set_error(STATUS_FAILED, "%s: tensor '%s' was not written whole", writer->path, writer->tensors[i].name);
    }
    if (!status && fsync(writer->file)) status = write_failed(writer, "sync");
    if (close(writer->file) && !status) status = write_failed(writer, "close");
    writer->file = -1;
    safetensors_abandon(writer);
    return status;
}

void safetensors_abandon(SafetensorsWriter *writer) {
    if (!writer) return;
    if (writer->file >= 0) close(writer->file);
    free(writer->tensors);
    free(writer->written);
    free(writer->path);
    free(writer);
}
