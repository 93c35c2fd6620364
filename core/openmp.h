// What must be said to the OpenMP library before it starts.
#ifndef OPENMP_H
#define OPENMP_H

// Threads that wait for others burn their core meanwhile, by default for milliseconds: beside another busy process that core is what the
// late thread needs, and a step takes several times as long. This lets them sleep after some ten microseconds. The library reads its
// environment when it is loaded, so the program starts itself anew, once, with the setting in it; a setting that the user has made stands.
// argv as in main.
void openmp_limit_spinning(char **argv);

#endif
