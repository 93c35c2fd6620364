// What messages about names and values need: which known name is nearest, and foreign text made fit to print.
#ifndef MESSAGE_H
#define MESSAGE_H

#ifdef __cplusplus
extern "C" {
#endif

enum { PRINTABLE_SIZE = 128 };

// Levenshtein's distance in bytes (insertions, deletions, replacements), with a swap of neighbours counted as one. Only the first 63 bytes
// of each are compared: longer names are nobody's typing error.
int edit_distance(const char *a, const char *b);

// text with its control characters as ?, and its end as ... where it is long, so that a message stays one short line. Returns printable.
const char *make_printable(char printable[PRINTABLE_SIZE], const char *text);

#ifdef __cplusplus
}
#endif
#endif
