/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's memory that the other ranks read where it lies: the transport's, or ordinary memory where the transport has none. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/array.h"
#include "comm/comm_transport.h"

static reshard_status ordinary_make(uint64_t bytes, uint8_t **out, reshard_error *err)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set_errno(err, "memory of %" PRIu64 " bytes", bytes);
    *out = memory;
    return RESHARD_OK;
}

reshard_status comm_memory_new(struct comm *comm, uint64_t bytes, uint8_t **out, reshard_error *err)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct comm_block block = { 0 };
    *out = NULL;
    if (bytes > INT64_MAX - page)
        return error_set(err, RESHARD_ERR_LIMIT, "memory of %" PRIu64 " bytes", bytes);
    block.bytes = bytes ? (bytes + page - 1) / page * page : page;
    if (!ARRAY_ROOM(comm->blocks, comm->block_count, comm->block_capacity))
        return error_set_memory(err);
    reshard_status status = comm->transport->memory ? comm->transport->memory->make(comm, &block, err)
                                                    : ordinary_make(block.bytes, &block.memory, err);
    if (status)
        return status;
    comm->blocks[comm->block_count++] = block;
    *out = block.memory;
    return RESHARD_OK;
}

static void block_release(struct comm *comm, const struct comm_block *block)
{
    if (comm->transport->memory)
        comm->transport->memory->unmake(comm, block);
    else
        munmap(block->memory, block->bytes);
}

void comm_memory_free(struct comm *comm, const uint8_t *memory)
{
    for (size_t i = 0; i < comm->block_count; i++) {
        if (comm->blocks[i].memory != memory)
            continue;
        block_release(comm, &comm->blocks[i]);
        comm->blocks[i] = comm->blocks[--comm->block_count];
        return;
    }
}

void comm_memory_free_all(struct comm *comm)
{
    for (size_t i = 0; i < comm->block_count; i++)
        block_release(comm, &comm->blocks[i]);
    free(comm->blocks);
    comm->blocks = NULL;
    comm->block_count = comm->block_capacity = 0;
}

bool comm_has_memory(const struct comm *comm)
{
    return comm->transport->memory;
}

bool comm_memory_is_made(const struct comm *comm)
{
    return comm->transport->memory && comm->transport->memory->is_made(comm);
}

bool comm_memory_find(const struct comm *comm, const uint8_t *bytes, uint64_t size, uint64_t *place)
{
    for (size_t i = 0; i < comm->block_count && comm->transport->memory; i++) {
        const struct comm_block *block = &comm->blocks[i];
        const uint64_t offset = (uint64_t)(uintptr_t)bytes - (uint64_t)(uintptr_t)block->memory; /* huge if before */
        if (offset < block->bytes && size <= block->bytes - offset) {
            *place = block->place + offset;
            return true;
        }
    }
    return false;
}

reshard_status comm_memory_look(struct comm *comm, const char *call, uint32_t from, uint64_t place, uint64_t size, const uint8_t **out,
                                reshard_error *err)
{
    comm->call = call;
    return comm->transport->memory->look(comm, from, place, size, out, err);
}
