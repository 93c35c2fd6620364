// The safetensors format: 8 bytes of header length (little-endian), a JSON header {name: {dtype, shape, data_offsets}}, then the data, one
// tensor after another without a gap. Values travel as doubles, in pieces, whatever the file's type. A reader trusts nothing that the
// header says, and a file that is cut short while it is read gives an error, not a signal.
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    SAFETENSORS_F64, SAFETENSORS_F32, SAFETENSORS_F16, SAFETENSORS_BF16,
    SAFETENSORS_I64, SAFETENSORS_I32, SAFETENSORS_I16, SAFETENSORS_I8,
    SAFETENSORS_U64, SAFETENSORS_U32, SAFETENSORS_U16, SAFETENSORS_U8, SAFETENSORS_BOOL,
    // may stand in a file, but their values are not read
    SAFETENSORS_F8_E4M3, SAFETENSORS_F8_E5M2, SAFETENSORS_F8_E8M0, SAFETENSORS_C64,
    SAFETENSORS_TYPES
} SafetensorsType;

enum { SAFETENSORS_MAX_DIMENSIONS = 8 };
typedef struct SafetensorsInfo {
    char name[160];
    SafetensorsType type;
    int dimensions;
    uint64_t shape[SAFETENSORS_MAX_DIMENSIONS];
    uint64_t count;                     // elements
    uint64_t begin;                     // byte of the file where its data starts
} SafetensorsInfo;

// ---- reading ----
typedef struct SafetensorsReader SafetensorsReader;
// Status 2 for a file that is no safetensors file or lies about lengths, offsets, overlaps, shapes or types (the tensor is named).
int safetensors_open(SafetensorsReader **reader, const char *path);
void safetensors_close(SafetensorsReader *reader);
int safetensors_count(const SafetensorsReader *reader);
const SafetensorsInfo *safetensors_info(const SafetensorsReader *reader, int i);
const SafetensorsInfo *safetensors_find(const SafetensorsReader *reader, const char *name);     // NULL: not there
const char *safetensors_path(const SafetensorsReader *reader);
// "F32", "BF16", ...
const char *safetensors_type_name(SafetensorsType type);
// F64, F32, F16 or BF16.
bool safetensors_is_float(SafetensorsType type);
// Elements first .. first+n-1 of a tensor, widened to double. Status 2 for a type without values here, for an integer that no double holds,
// and for a file that has become shorter since it was opened.
int safetensors_read(SafetensorsReader *reader, const SafetensorsInfo *tensor, double *values, uint64_t first, uint64_t n);

// ---- writing ----
typedef struct SafetensorsWriter SafetensorsWriter;
// Creates the file and writes its header: name, type, dimensions and shape of tensors[] are used, in this order. metadata: format=pt.
int safetensors_create(SafetensorsWriter **writer, const char *path, const SafetensorsInfo *tensors, int count);
// Elements first .. first+n-1 of the index-th tensor, rounded to its type (to nearest, ties to even). Tensors in any order, the pieces of
// each in rising order, none twice.
int safetensors_write(SafetensorsWriter *writer, int index, const double *values, uint64_t first, uint64_t n);
// Checks that every element was written, syncs to disk and closes. Frees the writer in any case. Status 1 when anything failed.
int safetensors_finish(SafetensorsWriter *writer);
void safetensors_abandon(SafetensorsWriter *writer);    // closes without a check

#endif
