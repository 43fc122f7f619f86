// Preloaded into a program: moves its time of day by the number of seconds in the file that
// CACHED_TEST_TIME_OF_DAY names. Its other clocks go on, as they do when somebody sets the time of day.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *moved_secs;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("CACHED_TEST_TIME_OF_DAY");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *moved_secs, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) abort();
    moved_secs = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    // Other constructors may read the clock first.
    if (result == 0 && moved_secs && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *moved_secs;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec time;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
    if (now) *now = time.tv_sec;
    return time.tv_sec;
}
