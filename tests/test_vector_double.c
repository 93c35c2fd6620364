// test_vector.c for double.
#define REAL double
#include "test_vector.c"
