// Files and directories: whole or absent, errors that name the file.
#define _GNU_SOURCE
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

enum { LONGEST_PATH = 4096, FIRST_READ = 1 << 14, COPY_BLOCK = 1 << 16 };

int format_path(char *text, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, size, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length < size) return 0;
    return set_error(STATUS_BAD_INPUT, "%s...: the path is longer than %zu bytes", text, size - 1);
}

// Reads to the end: not every file knows its size (a pipe).
static int read_to_end(int file, const char *path, size_t limit, char **text, size_t *length) {
    size_t capacity = FIRST_READ, used = 0;
    char *bytes = malloc(capacity);
    while (bytes) {
        ssize_t got = read(file, bytes + used, capacity - used - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            free(bytes);
            return set_error(STATUS_BAD_INPUT, "%s: cannot read: %s", path, strerror(errno));
        }
        used += (size_t)got;
        if (used > limit) {
            free(bytes);
            return set_error(STATUS_BAD_INPUT, "%s: larger than %zu bytes", path, limit);
        }
        if (!got) break;
        if (capacity - used > 1) continue;
        char *larger = realloc(bytes, capacity *= 2);
        if (!larger) free(bytes);
        bytes = larger;
    }
    if (!bytes) return set_error(STATUS_FAILED, "%s: out of memory", path);
    bytes[used] = '\0';
    *text = bytes;
    *length = used;
    return 0;
}

int read_text_file(const char *path, size_t limit, char **text, size_t *length) {
    size_t used = 0;
    *text = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return set_error(STATUS_BAD_INPUT, "%s: cannot open: %s", path, strerror(errno));
    int status = read_to_end(file, path, limit, text, &used);
    close(file);
    if (status) return status;
    if (length) {
        *length = used;
    } else if (strlen(*text) != used) {
        size_t place = strlen(*text);
        free(*text);
        *text = NULL;
        return set_error(STATUS_BAD_INPUT, "%s: byte %zu is zero: not a text file", path, place);
    }
    return 0;
}

int write_all(int file, const void *bytes, size_t count, long long offset) {
    const char *from = bytes;
    while (count) {
        ssize_t done = offset < 0 ? write(file, from, count) : pwrite(file, from, count, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            if (!done) errno = ENOSPC;          // a device that takes nothing more and does not say why
            return -1;
        }
        from += done;
        count -= (size_t)done;
        if (offset >= 0) offset += done;
    }
    return 0;
}

// Syncs and closes; the first error of (failed, fsync, close) is the one reported.
static int finish_file(int file, const char *path, int failed) {
    int reason = failed ? errno : 0;
    if (!reason && fsync(file)) reason = errno;
    if (close(file) && !reason) reason = errno;
    return reason ? set_error(STATUS_FAILED, "%s: cannot write: %s", path, strerror(reason)) : 0;
}

static int create_file(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) set_error(STATUS_FAILED, "%s: cannot create: %s", path, strerror(errno));
    return file;
}

int write_file(const char *path, const void *bytes, size_t count) {
    int file = create_file(path);
    return file < 0 ? STATUS_FAILED : finish_file(file, path, write_all(file, bytes, count, -1));
}

int copy_file(const char *from, const char *to) {
    char block[COPY_BLOCK];
    int source = open(from, O_RDONLY | O_CLOEXEC);
    if (source < 0) return set_error(STATUS_FAILED, "%s: cannot open: %s", from, strerror(errno));
    int file = create_file(to);
    if (file < 0) {
        close(source);
        return STATUS_FAILED;
    }
    ssize_t got = 1;
    int failed = 0, reason = 0;
    while (!failed && got) {
        got = read(source, block, sizeof block);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            reason = errno;
            break;
        }
        failed = write_all(file, block, (size_t)got, -1);
    }
    int status = finish_file(file, to, failed);
    close(source);
    return reason ? set_error(STATUS_FAILED, "%s: cannot read: %s", from, strerror(reason)) : status;
}

// The directory that a path's last name stands in.
static int parent_of(const char *path, char parent[LONGEST_PATH]) {
    if (format_path(parent, LONGEST_PATH, "%s", path)) return STATUS_BAD_INPUT;
    size_t length = strlen(parent);
    while (length > 1 && parent[length - 1] == '/') parent[--length] = '\0';
    char *slash = strrchr(parent, '/');
    if (!slash) strcpy(parent, ".");
    else slash[slash == parent] = '\0';
    return 0;
}

int sync_directory(const char *path) {
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return set_error(STATUS_FAILED, "%s: cannot open: %s", path, strerror(errno));
    // some network file systems cannot sync a directory, and say so with EINVAL: there is nothing more to be done there
    int reason = fsync(directory) && errno != EINVAL ? errno : 0;
    close(directory);
    return reason ? set_error(STATUS_FAILED, "%s: cannot sync: %s", path, strerror(reason)) : 0;
}

int write_file_atomically(const char *path, const char *text) {
    char temporary[LONGEST_PATH], parent[LONGEST_PATH];
    if (format_path(temporary, sizeof temporary, "%s.writing", path) || parent_of(path, parent)) return STATUS_BAD_INPUT;
    int status = write_file(temporary, text, strlen(text));
    if (!status && rename(temporary, path)) {
        status = set_error(STATUS_FAILED, "%s: cannot rename to %s: %s", temporary, path, strerror(errno));
    }
    if (status) {
        unlink(temporary);
        return status;
    }
    return sync_directory(parent);
}

// One directory, its name made last in the directory above it. There already: fine.
static int make_directory(const char *path) {
    char parent[LONGEST_PATH];
    if (!mkdir(path, 0777)) return parent_of(path, parent) ? STATUS_BAD_INPUT : sync_directory(parent);
    return errno == EEXIST ? 0 : set_error(STATUS_FAILED, "%s: cannot make the directory: %s", path, strerror(errno));
}

int make_directories(const char *path) {
    char part[LONGEST_PATH];
    if (format_path(part, sizeof part, "%s", path)) return STATUS_BAD_INPUT;
    for (char *end = part; *end; end++) {
        if (*end != '/' || end == part) continue;
        *end = '\0';
        int status = make_directory(part);
        if (status) return status;
        *end = '/';
    }
    int status = make_directory(part);
    struct stat is;
    if (!status && (stat(path, &is) || !S_ISDIR(is.st_mode))) status = set_error(STATUS_FAILED, "%s: is there, and is no directory", path);
    return status;
}

// Removes all that stands in the directory `name` of `parent`. 0, or -1 with errno set.
static int empty_directory(int parent, const char *name) {
    int directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0) return -1;
    DIR *entries = fdopendir(directory);
    if (!entries) {
        close(directory);
        return -1;
    }
    int failed = 0;
    for (struct dirent *entry; !failed && (errno = 0, entry = readdir(entries));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (!unlinkat(directory, entry->d_name, 0)) continue;
        failed = (errno != EISDIR && errno != EPERM) || empty_directory(directory, entry->d_name) ||
                 unlinkat(directory, entry->d_name, AT_REMOVEDIR);
    }
    if (errno) failed = 1;
    int reason = errno;
    closedir(entries);
    errno = reason;
    return failed ? -1 : 0;
}

int remove_tree(const char *path) {
    struct stat is;
    if (lstat(path, &is)) return errno == ENOENT ? 0 : set_error(STATUS_FAILED, "%s: %s", path, strerror(errno));
    int failed = S_ISDIR(is.st_mode) ? empty_directory(AT_FDCWD, path) || rmdir(path) : unlink(path);
    return failed ? set_error(STATUS_FAILED, "%s: cannot remove: %s", path, strerror(errno)) : 0;
}
