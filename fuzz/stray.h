/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that goes astray: it has made a group's segment as rank 0 of two (comm_processes.c), holds rank 0's lock and writes into the
 * segment what it likes. The library's end is rank 1, in the same process. Written by hand: what lies where is a promise between
 * processes, and whoever changes it sees this fail.
 */
#ifndef FUZZ_STRAY_H
#define FUZZ_STRAY_H

#include "comm/comm_transport.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define STRAY_RING_BYTES ((size_t)1 << 20)
#define STRAY_SLOT_BYTES (STRAY_RING_BYTES / 4)
#define STRAY_RING_AT(number) (8192 + (size_t)(number) * (128 + STRAY_RING_BYTES))
#define STRAY_BYTES STRAY_RING_AT(4)
#define STRAY_OVER 12 /* 2: a reason follows */
#define STRAY_REASON 16
#define STRAY_MADE 1040 /* bytes of memory that ranks have made for others to read */

/* The ring from rank 0 to rank 1, and back: bytes written, bytes read, and behind them the ring's bytes. */
enum stray_place { STRAY_SENT = 1, STRAY_RECEIVED = 2 };

struct stray {
    int fd;
    uint8_t *memory;
    struct comm *comm; /* rank 1 */
};

static inline void stray_put(const struct stray *stray, size_t at, const void *bytes, size_t size)
{
    if (at < STRAY_BYTES)
        memcpy(stray->memory + at, bytes, size < STRAY_BYTES - at ? size : STRAY_BYTES - at);
}

static inline void stray_put_u64(const struct stray *stray, size_t at, uint64_t value)
{
    stray_put(stray, at, &value, sizeof(value));
}

static inline void stray_written(const struct stray *stray, enum stray_place ring, uint64_t bytes)
{
    stray_put_u64(stray, STRAY_RING_AT(ring), bytes);
}

static inline void stray_read(const struct stray *stray, enum stray_place ring, uint64_t bytes)
{
    stray_put_u64(stray, STRAY_RING_AT(ring) + 64, bytes);
}

static inline void stray_data(const struct stray *stray, enum stray_place ring, size_t offset, const void *bytes, size_t size)
{
    stray_put(stray, STRAY_RING_AT(ring) + 128 + offset, bytes, size);
}

static inline void stray_close(struct stray *stray)
{
    comm_free(stray->comm);
    if (stray->memory)
        munmap(stray->memory, STRAY_BYTES);
    if (stray->fd >= 0)
        close(stray->fd);
}

/* False, with what the library says in err, if it did not join. */
static inline bool stray_open(struct stray *stray, double timeout_seconds, reshard_error *err)
{
    char group[64], name[128];
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
    const uint32_t is_there = 1, size = 2;
    *stray = (struct stray){ .fd = -1 };
    snprintf(group, sizeof(group), "stray-%d", (int)getpid());
    snprintf(name, sizeof(name), "/reshard-%u-%s", (unsigned)geteuid(), group);
    shm_unlink(name);
    stray->fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (stray->fd < 0 || fcntl(stray->fd, F_OFD_SETLK, &lock) != 0 || ftruncate(stray->fd, (off_t)STRAY_BYTES) != 0)
        return false;
    void *memory = mmap(NULL, STRAY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, stray->fd, 0);
    stray->memory = memory == MAP_FAILED ? NULL : memory;
    if (stray->memory) {
        stray_put(stray, 8, &size, sizeof(size));
        stray_put(stray, 4096, &is_there, sizeof(is_there));
        stray_put_u64(stray, 0, UINT64_C(0x31304d4853524853));
        comm_processes_new(group, 1, 2, &(struct comm_patience){ .timeout_seconds = timeout_seconds }, &stray->comm, err);
    }
    shm_unlink(name);
    return stray->comm != NULL;
}

#endif
