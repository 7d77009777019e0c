#include <stdio.h>

int main(void) {
    puts("lockstep " LOCKSTEP_VERSION);
    return 0;
}
