// Edit distance by dynamic programming over prefixes (optimal string alignment), and text for messages.
#include "message.h"

#include <string.h>

enum { LONGEST_NAME = 63 };

static int smaller(int a, int b) { return a < b ? a : b; }

int edit_distance(const char *a, const char *b) {
    int distance[LONGEST_NAME + 1][LONGEST_NAME + 1];           // between the prefixes of those lengths
    const int m = (int)strnlen(a, LONGEST_NAME), n = (int)strnlen(b, LONGEST_NAME);
    for (int i = 0; i <= m; i++) {
        for (int j = 0; j <= n; j++) {
            if (i == 0 || j == 0) {
                distance[i][j] = i + j;
                continue;
            }
            int best = distance[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = smaller(best, smaller(distance[i - 1][j], distance[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = smaller(best, distance[i - 2][j - 2] + 1);
            distance[i][j] = best;
        }
    }
    return distance[m][n];
}

const char *make_printable(char printable[PRINTABLE_SIZE], const char *text) {
    size_t n = strnlen(text, PRINTABLE_SIZE);
    const int cut = n == PRINTABLE_SIZE;
    if (cut) {
        n = PRINTABLE_SIZE - sizeof "...";
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;       // not within a UTF-8 character
    }
    for (size_t i = 0; i < n; i++) printable[i] = (unsigned char)text[i] < ' ' || text[i] == 0x7f ? '?' : text[i];
    strcpy(printable + n, cut ? "..." : "");
    return printable;
}
