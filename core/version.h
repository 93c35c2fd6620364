// What this program is, and what it was built with.
#ifndef VERSION_H
#define VERSION_H

// "0.1.0 (git 1a2b3c4)"; without the parenthesis where it was built outside a checkout.
const char *program_version(void);
// "gcc 12.2.0"
const char *program_compiler(void);

#endif
