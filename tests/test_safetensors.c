// core/safetensors against bytes made by hand, against files that lie, and against a disk that takes no more.
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/safetensors.h"
#include "support.h"

static char directory[256], path[300];

static int setup(void **state) {
    (void)state;
    make_directory(directory);
    snprintf(path, sizeof path, "%s/a.safetensors", directory);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

// Length, header and data, as they are given.
static void write_file_of(uint64_t length, const char *header, const void *data, size_t count) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 1, 8, file), 8);
    assert_int_equal(fwrite(header, 1, strlen(header), file), strlen(header));
    if (count) assert_int_equal(fwrite(data, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void expect_values(SafetensorsReader *reader, const char *name, const double *wanted, uint64_t count) {
    const SafetensorsInfo *info = safetensors_find(reader, name);
    double values[64];
    if (!info) fail_msg("%s is not found", name);
    assert_int_equal(info->count, count);
    assert_int_equal(safetensors_read(reader, info, values, 0, count), 0);
    for (uint64_t i = 0; i < count; i++) {
        if (memcmp(&values[i], &wanted[i], sizeof(double))) fail_msg("%s[%d] is %a, not %a", name, (int)i, values[i], wanted[i]);
    }
}

static void reads_every_type(void **state) {
    (void)state;
    static const unsigned char data[] = {
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0x3f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc0,     // f64 1, -2
        0x00, 0x00, 0x20, 0x40, 0x00, 0x00, 0x80, 0xff,                                                     // f32 2.5, -inf
        0x00, 0x3c, 0x01, 0x80, 0x00, 0x7c,                                                                 // f16 1, -2^-24, inf
        0x80, 0x3f, 0x01, 0x00,                                                                             // bf16 1, 2^-133
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00,     // i64 -1, 2^53
        0xfe, 0xff, 0xff, 0xff,                                                                             // i32 -2
        0x00, 0x80, 0x7f,                                                                                   // i16 -32768; i8 127
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0x01, 0x00,                                               // u32; u16; u8; bool 1, 0
    };
    const char *header =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"u8\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[63,64]},"                  // a scalar; out of order in the header
        "\"f64\":{\"dtype\":\"F64\",\"shape\":[2,1],\"data_offsets\":[0,16]},"
        "\"f32\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]},"
        "\"f16\":{\"dtype\":\"F16\",\"shape\":[1,3],\"data_offsets\":[24,30]},"
        "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[30,34]},"
        "\"i64\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[34,50]},"
        "\"i32\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[50,54]},"
        "\"i16\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[54,56]},"
        "\"i8\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[56,57]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[57,57]},"
        "\"u32\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[57,61]},"
        "\"u16\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[61,63]},"
        "\"bool\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[64,66]}}  ";
    write_file_of(strlen(header), header, data, sizeof data);
    SafetensorsReader *reader;
    if (safetensors_open(&reader, path)) fail_msg("%s", error_text());
    assert_int_equal(safetensors_count(reader), 13);
    assert_string_equal(safetensors_info(reader, 0)->name, "u8");
    assert_int_equal(safetensors_find(reader, "f16")->shape[1], 3);
    assert_null(safetensors_find(reader, "f1"));
    expect_values(reader, "f64", (double[]){ 1, -2 }, 2);
    expect_values(reader, "f32", (double[]){ 2.5, -INFINITY }, 2);
    expect_values(reader, "f16", (double[]){ 1, -0x1p-24, INFINITY }, 3);
    expect_values(reader, "bf16", (double[]){ 1, 0x1p-133 }, 2);
    expect_values(reader, "i64", (double[]){ -1, 0x1p53 }, 2);
    expect_values(reader, "i32", (double[]){ -2 }, 1);
    expect_values(reader, "i16", (double[]){ -32768 }, 1);
    expect_values(reader, "i8", (double[]){ 127 }, 1);
    expect_values(reader, "u32", (double[]){ 4294967295.0 }, 1);
    expect_values(reader, "u16", (double[]){ 65535 }, 1);
    expect_values(reader, "u8", (double[]){ 254 }, 1);
    expect_values(reader, "bool", (double[]){ 1, 0 }, 2);
    expect_values(reader, "none", NULL, 0);
    double one;
    assert_int_equal(safetensors_read(reader, safetensors_find(reader, "f64"), &one, 1, 1), 0);
    assert_true(one == -2);
    assert_int_equal(safetensors_read(reader, safetensors_find(reader, "f64"), &one, 2, 1), STATUS_FAILED);
    safetensors_close(reader);
}

// The value of a 16-bit float by its definition.
static double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
    int most = (1 << exponent_bits) - 1, bias = most / 2;
    int exponent = bits >> mantissa_bits & most, mantissa = bits & ((1 << mantissa_bits) - 1);
    double value = exponent == most ? (mantissa ? NAN : INFINITY)
                 : exponent ? ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias)
                            : ldexp(mantissa, 1 - bias - mantissa_bits);
    return bits & 0x8000 ? -value : value;
}

static void all_16_bit_floats_survive(void **state) {
    (void)state;
    enum { ALL = 1 << 16 };
    const struct { SafetensorsType type; int exponent_bits, mantissa_bits; } kinds[] = {
        { SAFETENSORS_F16, 5, 10 }, { SAFETENSORS_BF16, 8, 7 },
    };
    double *wanted = malloc(ALL * sizeof *wanted), *values = malloc(ALL * sizeof *values);
    for (int k = 0; k < 2; k++) {
        SafetensorsInfo info = { .name = "x", .type = kinds[k].type, .dimensions = 1, .shape = { ALL } };
        SafetensorsWriter *writer;
        SafetensorsReader *reader;
        for (int i = 0; i < ALL; i++) wanted[i] = value_of((uint16_t)i, kinds[k].exponent_bits, kinds[k].mantissa_bits);
        assert_int_equal(safetensors_create(&writer, path, &info, 1), 0);
        assert_int_equal(safetensors_write(writer, 0, wanted, 0, 1000), 0);
        assert_int_equal(safetensors_write(writer, 0, wanted + 1000, 1000, ALL - 1000), 0);
        assert_int_equal(safetensors_finish(writer), 0);

        size_t length;                                          // the bits themselves, but for a NaN's payload
        char *bytes = read_file(path, &length);
        for (int i = 0; i < ALL; i++) {
            uint16_t bits;
            memcpy(&bits, bytes + length - 2 * (size_t)(ALL - i), sizeof bits);
            if (!isnan(wanted[i])) assert_int_equal(bits, i);
        }
        free(bytes);
        assert_int_equal(safetensors_open(&reader, path), 0);
        assert_int_equal(safetensors_read(reader, safetensors_find(reader, "x"), values, 0, ALL), 0);
        for (int i = 0; i < ALL; i++) {
            if (isnan(wanted[i])) assert_true(isnan(values[i]));
            else assert_memory_equal(&values[i], &wanted[i], sizeof(double));
        }
        safetensors_close(reader);
    }
    free(wanted);
    free(values);
}

static void rounds_once_to_nearest_even(void **state) {
    (void)state;
    static const struct { SafetensorsType type; double value; uint16_t bits; } cases[] = {
        { SAFETENSORS_F16, 1 + 0x1p-11, 0x3c00 }, { SAFETENSORS_F16, 1 + 0x3p-11, 0x3c02 }, { SAFETENSORS_F16, 65519.99, 0x7bff },
        { SAFETENSORS_F16, 65520, 0x7c00 }, { SAFETENSORS_F16, -1e300, 0xfc00 }, { SAFETENSORS_F16, 0x1p-25, 0x0000 },
        { SAFETENSORS_F16, 0x1.00001p-25, 0x0001 }, { SAFETENSORS_F16, -0.0, 0x8000 }, { SAFETENSORS_F16, 0x1.ffbp-15, 0x03ff },
        { SAFETENSORS_F16, 0x1.ffcp-15, 0x0400 }, { SAFETENSORS_BF16, 1 + 0x1p-8, 0x3f80 }, { SAFETENSORS_BF16, 1 + 0x3p-8, 0x3f82 },
        { SAFETENSORS_BF16, 1 + 0x1p-8 + 0x1p-40, 0x3f81 },     // through a float it would be a tie, and go down
        { SAFETENSORS_BF16, 0x1.ffp127, 0x7f80 }, { SAFETENSORS_BF16, 0x1p-134, 0x0000 }, { SAFETENSORS_BF16, 1e-320, 0x0000 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SafetensorsInfo info = { .name = "x", .type = cases[i].type, .dimensions = 1, .shape = { 1 } };
        SafetensorsWriter *writer;
        size_t length;
        uint16_t bits;
        assert_int_equal(safetensors_create(&writer, path, &info, 1), 0);
        assert_int_equal(safetensors_write(writer, 0, &cases[i].value, 0, 1), 0);
        assert_int_equal(safetensors_finish(writer), 0);
        char *bytes = read_file(path, &length);
        memcpy(&bits, bytes + length - 2, 2);
        if (bits != cases[i].bits) fail_msg("%a became 0x%04x, not 0x%04x", cases[i].value, bits, cases[i].bits);
        free(bytes);
    }
}

#define ENTRY(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

// Files that lie: what the message must say. The data are 16 bytes; length 0: the header's true one.
static const struct Lie { uint64_t length; const char *header, *says; } lies[] = {
    { 1000, "{}", "was cut short" },
    { UINT64_MAX, "{}", "was cut short" },
    { 200000000, "{}", "was cut short" },
    { 1, "{}", "header: line 1" },
    { 0, "[]", "does not begin with {" },
    { 0, " {}", "does not begin with {" },
    { 0, "{\"a\":{}", "header: line 1" },
    { 0, "{} x", "header: line 1" },
    { 0, "{}", "the last 16 bytes belong to no tensor" },
    { 0, "{\"a\":5}", "tensor 'a': its entry" },
    { 0, "{" ENTRY("a", "F32", "[4]", "[0,16]") "," ENTRY("a", "F32", "[4]", "[0,16]") "}", "a: given twice" },
    { 0, "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "a.dtype: given twice" },
    { 0, "{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "tensor 'a': has no dtype" },
    { 0, "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "tensor 'a': has no shape" },
    { 0, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", "tensor 'a': its data_offsets" },
    { 0, "{" ENTRY("a", "F33", "[4]", "[0,16]") "}", "dtype 'F33' is not known" },
    { 0, "{" ENTRY("a", "F32", "[-4]", "[0,16]") "}", "something other than whole numbers" },
    { 0, "{" ENTRY("a", "F32", "[4.5]", "[0,16]") "}", "something other than whole numbers" },
    { 0, "{" ENTRY("a", "F32", "[\"4\"]", "[0,16]") "}", "something other than whole numbers" },
    { 0, "{" ENTRY("a", "F32", "[1e30]", "[0,16]") "}", "something other than whole numbers" },
    { 0, "{" ENTRY("a", "F32", "[4294967296,4294967296]", "[0,16]") "}", "more elements than 64 bits" },
    { 0, "{" ENTRY("a", "F32", "[4611686018427387905]", "[0,16]") "}", "cannot be held exactly" },
    { 0, "{" ENTRY("a", "F64", "[2147483648,1073741826]", "[0,16]") "}", "not its shape times" },         // times 8 it is 2^64 + 2^35
    { 0, "{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,4]", "[0,16]") "}", "more than 8 dimensions" },
    { 0, "{" ENTRY("a", "F32", "[4]", "[0,16,16]") "}", "not two whole numbers" },
    { 0, "{" ENTRY("a", "F32", "[4]", "[0]") "}", "not two whole numbers" },
    { 0, "{" ENTRY("a", "F32", "[4]", "[-16,0]") "}", "not two whole numbers" },
    { 0, "{" ENTRY("a", "F32", "[4]", "[16,0]") "}", "ends (byte 0) before it begins (byte 16)" },
    { 0, "{" ENTRY("a", "F32", "[5]", "[0,20]") "}", "was it cut short?" },
    { 0, "{" ENTRY("a", "F32", "[3]", "[0,16]") "}", "not its shape times the size of F32" },
    { 0, "{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[3]", "[4,16]") "}", "tensor 'b': its data overlaps that of 'a'" },
    { 0, "{" ENTRY("a", "F32", "[4]", "[0,16]") "," ENTRY("b", "F32", "[4]", "[0,16]") "}", "overlaps" },
    { 0, "{" ENTRY("b", "F32", "[3]", "[4,16]") "}", "tensor 'b': the 4 bytes before its data" },
    { 0, "{" ENTRY("a", "F32", "[3]", "[0,12]") "}", "the last 4 bytes belong to no tensor" },
    { 0, "{\"__metadata__\":{\"a\":1}," ENTRY("a", "F32", "[4]", "[0,16]") "}", "__metadata__" },
    { 0, "{\"__metadata__\":[]," ENTRY("a", "F32", "[4]", "[0,16]") "}", "__metadata__" },
    { 0, "{" ENTRY("a\\u001b[2J", "F32", "[4]", "[0,16]") "}", "control character" },
    { 0, "{" ENTRY("a\\u0000b", "F32", "[4]", "[0,16]") "}", "header: line 1" },
    { 0, "{" ENTRY("0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
                   "012345678901234567890123456789012345678901234567890123456789", "F32", "[4]", "[0,16]") "}", "longer than 159 bytes" },
};

static void refuses_lies(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        SafetensorsReader *reader;
        write_file_of(lies[i].length ? lies[i].length : strlen(lies[i].header), lies[i].header, "0123456789abcdef", 16);
        int status = safetensors_open(&reader, path);
        if (status != STATUS_BAD_INPUT) fail_msg("%s gave status %d", lies[i].header, status);
        assert_null(reader);
        if (!strstr(error_text(), lies[i].says)) fail_msg("%s gave: %s", lies[i].header, error_text());
        if (strncmp(error_text(), path, strlen(path))) fail_msg("does not begin with the file's name: %s", error_text());
        if (strchr(error_text(), 0x1b)) fail_msg("an escape code reached the message");
    }
    write_text(path, "short");
    SafetensorsReader *reader;
    assert_int_equal(safetensors_open(&reader, path), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "5 bytes long"));
    assert_int_equal(safetensors_open(&reader, directory), STATUS_BAD_INPUT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(safetensors_open(&reader, path), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "No such file"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(safetensors_open(&reader, path), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "no regular file"));
}

// Any damaged bit gives a file that opens or one that is refused, and what opens can be read.
static void survives_every_flipped_bit(void **state) {
    (void)state;
    const char *header = "{" ENTRY("a", "F16", "[2,2]", "[0,8]") "," ENTRY("bc", "F32", "[2]", "[8,16]") "}";
    write_file_of(strlen(header), header, "0123456789abcdef", 16);
    size_t length;
    char *bytes = read_file(path, &length);
    int opened = 0, refused = 0;
    for (size_t bit = 0; bit < 8 * (8 + strlen(header)); bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        FILE *file = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, length, file), length);
        fclose(file);
        SafetensorsReader *reader;
        int status = safetensors_open(&reader, path);
        if (status) assert_int_equal(status, STATUS_BAD_INPUT);
        refused += status != 0;
        opened += status == 0;
        for (int i = 0; !status && i < safetensors_count(reader); i++) {
            double values[16];
            assert_true(safetensors_info(reader, i)->count <= 16);
            safetensors_read(reader, safetensors_info(reader, i), values, 0, safetensors_info(reader, i)->count);
        }
        safetensors_close(reader);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_true(opened > 0 && refused > opened);                // a name's letter may change; little else
    free(bytes);
}

static void reports_a_file_cut_short_while_read(void **state) {
    (void)state;
    const char *header = "{" ENTRY("weight", "F32", "[4]", "[0,16]") "}";
    double values[4];
    SafetensorsReader *reader;
    write_file_of(strlen(header), header, "0123456789abcdef", 16);
    assert_int_equal(safetensors_open(&reader, path), 0);
    assert_int_equal(truncate(path, (off_t)(8 + strlen(header) + 6)), 0);
    assert_int_equal(safetensors_read(reader, safetensors_find(reader, "weight"), values, 0, 4), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "inside tensor 'weight'"));
    safetensors_close(reader);
}

static void refuses_values_it_cannot_give(void **state) {
    (void)state;
    const char *header = "{" ENTRY("i", "I64", "[1]", "[0,8]") "," ENTRY("f", "F8_E4M3", "[8]", "[8,16]") "}";
    double values[8];
    SafetensorsReader *reader;
    write_file_of(strlen(header), header, "\1\0\0\0\0\0\x20\0" "abcdefgh", 16);         // 2^53 + 1
    assert_int_equal(safetensors_open(&reader, path), 0);
    assert_int_equal(safetensors_read(reader, safetensors_find(reader, "i"), values, 0, 1), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "tensor 'i'"));
    assert_int_equal(safetensors_read(reader, safetensors_find(reader, "f"), values, 0, 8), STATUS_BAD_INPUT);
    assert_non_null(strstr(error_text(), "F8_E4M3"));
    safetensors_close(reader);
}

static void reads_beyond_4_gigabytes(void **state) {
    (void)state;
    const char *header = "{" ENTRY("x", "F32", "[3,1073741824]", "[0,12884901888]") "}";       // a sparse file: no disk is used
    const float last[2] = { 1.5f, -3 };
    double values[3];
    SafetensorsReader *reader;
    write_file_of(strlen(header), header, NULL, 0);
    off_t end = (off_t)(8 + strlen(header)) + 12884901888;
    if (truncate(path, end)) skip();                            // a file system without large sparse files
    FILE *file = fopen(path, "r+b");
    assert_int_equal(fseeko(file, end - (off_t)sizeof last, SEEK_SET), 0);
    assert_int_equal(fwrite(last, sizeof last, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(safetensors_open(&reader, path), 0);
    assert_int_equal(safetensors_read(reader, safetensors_find(reader, "x"), values, 3221225472 - 3, 3), 0);
    assert_true(values[0] == 0 && values[1] == 1.5 && values[2] == -3);
    safetensors_close(reader);
}

static void writes_the_format_byte_for_byte(void **state) {
    (void)state;
    const SafetensorsInfo infos[] = {
        { .name = "w", .type = SAFETENSORS_F32, .dimensions = 2, .shape = { 1, 2 } },
        { .name = "n", .type = SAFETENSORS_I32, .dimensions = 0 },
    };
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                         "\"n\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[8,12]}}";
    size_t padded = (strlen(header) + 7) / 8 * 8, length;
    assert_true(padded > strlen(header));                       // so that the padding is seen
    SafetensorsWriter *writer;
    assert_int_equal(safetensors_create(&writer, path, infos, 2), 0);
    assert_int_equal(safetensors_write(writer, 1, (double[]){ -7 }, 0, 1), 0);
    assert_int_equal(safetensors_write(writer, 0, (double[]){ 0.1 }, 0, 1), 0);
    assert_int_equal(safetensors_write(writer, 0, (double[]){ 2 }, 1, 1), 0);
    assert_int_equal(safetensors_finish(writer), 0);
    char *bytes = read_file(path, &length);
    assert_int_equal(length, 8 + padded + 12);
    assert_memory_equal(bytes, ((unsigned char[]){ (unsigned char)padded, 0, 0, 0, 0, 0, 0, 0 }), 8);
    assert_memory_equal(bytes + 8, header, strlen(header));
    for (size_t i = strlen(header); i < padded; i++) assert_int_equal(bytes[8 + i], ' ');
    assert_memory_equal(bytes + 8 + padded, "\xcd\xcc\xcc\x3d\x00\x00\x00\x40\xf9\xff\xff\xff", 12);        // 0.1f, 2.0f, -7
    free(bytes);
}

static void finish_misses_nothing(void **state) {
    (void)state;
    const SafetensorsInfo infos[] = {
        { .name = "a", .type = SAFETENSORS_F32, .dimensions = 1, .shape = { 2 } },
        { .name = "b", .type = SAFETENSORS_U8, .dimensions = 1, .shape = { 2 } },
    };
    double two[2] = { 1, 2 }, large[2] = { 1, 256 };
    SafetensorsWriter *writer;
    assert_int_equal(safetensors_create(&writer, path, infos, 2), 0);
    assert_int_equal(safetensors_write(writer, 0, two, 0, 2), 0);
    assert_int_equal(safetensors_write(writer, 1, two, 0, 1), 0);
    assert_int_equal(safetensors_finish(writer), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "tensor 'b' was not written whole"));

    assert_int_equal(safetensors_create(&writer, path, infos, 2), 0);
    assert_int_equal(safetensors_write(writer, 0, two, 1, 1), STATUS_FAILED);           // its first element has not come
    assert_int_equal(safetensors_write(writer, 0, two, 0, 3), STATUS_FAILED);
    assert_int_equal(safetensors_write(writer, 1, large, 0, 2), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "does not fit its type U8"));
    assert_int_equal(safetensors_write(writer, 0, two, 0, 2), 0);
    assert_int_equal(safetensors_write(writer, 1, two, 0, 2), 0);
    assert_int_equal(safetensors_finish(writer), STATUS_FAILED);                        // all came in the end, but an error stays one

    const SafetensorsInfo twice[] = { infos[0], infos[0] };
    assert_int_equal(safetensors_create(&writer, path, twice, 2), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "'a' was to be written twice"));
    assert_int_equal(safetensors_create(&writer, "/no/such/directory/x", infos, 2), STATUS_FAILED);
    assert_non_null(strstr(error_text(), "/no/such/directory/x: cannot create: No such file"));
}

// A limit on file sizes stands in for a full disk: it needs no mount.
static void reports_a_disk_that_is_full(void **state) {
    (void)state;
    const SafetensorsInfo info = { .name = "a", .type = SAFETENSORS_F32, .dimensions = 1, .shape = { 100000 } };
    SafetensorsWriter *writer;
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    double *values = calloc(100000, sizeof *values);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    small = limit;
    small.rlim_cur = 65536;

    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int created = safetensors_create(&writer, path, &info, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(created, STATUS_FAILED);
    assert_non_null(strstr(error_text(), "a.safetensors: cannot write: File too large"));

    assert_int_equal(safetensors_create(&writer, path, &info, 1), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int written = safetensors_write(writer, 0, values, 0, 100000);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, before);
    assert_int_equal(written, STATUS_FAILED);
    assert_non_null(strstr(error_text(), "a.safetensors: cannot write: File too large"));
    assert_int_equal(safetensors_finish(writer), STATUS_FAILED);
    free(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_every_type, setup, teardown),
        cmocka_unit_test_setup_teardown(all_16_bit_floats_survive, setup, teardown),
        cmocka_unit_test_setup_teardown(rounds_once_to_nearest_even, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_lies, setup, teardown),
        cmocka_unit_test_setup_teardown(survives_every_flipped_bit, setup, teardown),
        cmocka_unit_test_setup_teardown(reports_a_file_cut_short_while_read, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_values_it_cannot_give, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_beyond_4_gigabytes, setup, teardown),
        cmocka_unit_test_setup_teardown(writes_the_format_byte_for_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(finish_misses_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(reports_a_disk_that_is_full, setup, teardown),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
