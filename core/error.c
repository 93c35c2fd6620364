// Errors: one kept message for the whole program.
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = 4096 };
static char message[MESSAGE_SIZE];

int set_error(int status, const char *format, ...) {
    char text[MESSAGE_SIZE];                    // apart, because an argument may be the kept message itself
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof message);
    return status;
}

int prefix_error(int status, const char *format, ...) {
    char text[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= MESSAGE_SIZE) return status;
    snprintf(text + length, sizeof text - length, "%.*s", MESSAGE_SIZE - length - 1, message);
    memcpy(message, text, sizeof message);
    return status;
}

const char *error_text(void) {
    return message;
}
