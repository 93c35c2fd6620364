// Text to tokens and back, from the tokenizer.json that data/prepare.py writes beside the shards. This reads the kind with 256 byte tokens.
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h>

#include "config.h"

typedef struct Tokenizer Tokenizer;

// Where the tokenizer is: `configured` (a tokenizer.json or its directory) must hold one; without it ("") the tokenizer.json in the
// directory of the file `beside` is taken, and path is "" where there is none. Status 2 when what was configured is not there.
int tokenizer_find(char path[PATH_SIZE], const char *configured, const char *beside);

// path: a tokenizer.json or the directory that holds it. Status 2 for a file that is missing, damaged, or of a kind this does not read.
int tokenizer_open(Tokenizer **tokenizer, const char *path);
void tokenizer_close(Tokenizer *tokenizer);
int tokenizer_vocab_size(const Tokenizer *tokenizer);

// text [length bytes] -> *tokens (malloc'd), *count.
int tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t length, int **tokens, size_t *count);
// The bytes of one token (not terminated): a character may span several tokens. NULL for an id outside the vocabulary.
const char *tokenizer_token_bytes(const Tokenizer *tokenizer, int token, size_t *length);

#endif
