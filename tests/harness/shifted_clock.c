/* Shim for LD_PRELOAD: the clock of the world is CLOCK_SHIFT seconds off for a process, and nothing else is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    static long seconds;
    static int known;
    if (!known) {
        const char *text = getenv("CLOCK_SHIFT");
        seconds = text ? atol(text) : 0;
        known = 1;
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    if (!failed) {
        now->tv_sec = found.tv_sec;
        now->tv_usec = found.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *there) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (there)
        *there = found.tv_sec;
    return found.tv_sec;
}
