// Files and directories, so that what is written is whole or absent, and every error names the file and the reason.
#ifndef FILES_H
#define FILES_H

#include <stddef.h>

// The whole of a file, terminated, malloc'd; status 2, naming file and reason, also when larger than limit. length may be NULL: then a zero
// byte inside is an error too.
int read_text_file(const char *path, size_t limit, char **text, size_t *length);

// Writes text to a file under another name, syncs, renames: whole or unchanged. Status 1, naming file and reason.
int write_file_atomically(const char *path, const char *text);

// Creates (or empties) a file, writes and syncs it. Status 1, naming file and reason. For a directory that is not yet in place.
int write_file(const char *path, const void *bytes, size_t count);
// The same with what another file holds.
int copy_file(const char *from, const char *to);

// Writes all bytes at the file's own position, or (offset >= 0) there, going on after short writes and signals. 0, or -1 with errno set.
int write_all(int file, const void *bytes, size_t count, long long offset);

// A directory and its parents, where they are missing. Status 1.
int make_directories(const char *path);
// Makes the names in a directory last: fsync. Status 1.
int sync_directory(const char *path);
// Removes a file, or a directory with all that is in it; links are removed, not followed. Nothing there is no error. Status 1.
int remove_tree(const char *path);

// text = what the format says; status 2 when it does not fit in size.
int format_path(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
