/* SPDX-License-Identifier: Apache-2.0 */
/* Compression of what was written: the compressed size of a chunk is known only when all of the chunk is there. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/clock.h"
#include "engine/engine_budget.h"
#include "engine/engine_state.h"

struct packing_run {
    const struct catalog *target;
    struct store_object **objects;
    const struct engine_options *options;
    struct engine_progress progress; /* all is done */
    atomic_uint next;
    atomic_bool is_stopped;
    pthread_mutex_t lock; /* of what follows */
    int64_t asked_ns;
    reshard_status status;
    reshard_error error;
};

struct packer {
    struct packing_run *run;
    struct buffer plain, packed;
    reshard_error error;
    pthread_t thread;
    bool has_thread;
};

static reshard_status object_pack(struct packer *packer, uint32_t index, reshard_error *err)
{
    struct store_object *object = packer->run->objects[index];
    uint64_t bytes = store_object_size(object);
    buffer_clear(&packer->plain);
    buffer_clear(&packer->packed);
    uint8_t *plain = buffer_extend(&packer->plain, bytes ? (size_t)bytes : 1);
    if (!plain)
        return error_set_memory(err);
    reshard_status status = store_read_at(object, 0, plain, (size_t)bytes, err);
    if (!status)
        status = chain_pack(packer->run->target->objects[index].packing, plain, (size_t)bytes, &packer->packed, err);
    if (status)
        return status;
    /* What cannot be compressed may even grow. */
    status = store_resize(object, packer->packed.size, err);
    return status ? status : store_write_at(object, 0, packer->packed.data, packer->packed.size, err);
}

/* Compressing takes longer than all that came before, and a target is replaced when it ends. */
static reshard_status packing_ask(struct packing_run *run, reshard_error *err)
{
    bool goes_on = true;
    pthread_mutex_lock(&run->lock);
    const int64_t now = clock_ns();
    if (run->options->progress && now - run->asked_ns >= PROGRESS_NS) {
        run->asked_ns = now;
        goes_on = run->options->progress(&run->progress, run->options->context);
    }
    pthread_mutex_unlock(&run->lock);
    return goes_on ? RESHARD_OK : error_set(err, RESHARD_ERR_CANCELLED, "cancelled");
}

static void *packer_main(void *context)
{
    struct packer *packer = context;
    struct packing_run *run = packer->run;
    uint32_t index;
    while (!atomic_load(&run->is_stopped) && (index = atomic_fetch_add(&run->next, 1)) < run->target->object_count) {
        if (!run->target->objects[index].packing)
            continue;
        reshard_status status = packing_ask(run, &packer->error);
        if (!status)
            status = object_pack(packer, index, &packer->error);
        if (!status)
            continue;
        if (status != RESHARD_ERR_CANCELLED)
            error_prefix(&packer->error, "compressing '%.*s'", STR_ARG(run->target->objects[index].name));
        pthread_mutex_lock(&run->lock);
        if (!run->status) {
            run->status = status;
            run->error = packer->error;
        }
        pthread_mutex_unlock(&run->lock);
        atomic_store(&run->is_stopped, true);
    }
    return NULL;
}

reshard_status engine_pack(const struct catalog *target, struct store_object **objects, uint64_t written_bytes,
                           const struct engine_options *options, reshard_error *err)
{
    struct packing_run run = { .target = target,
                               .objects = objects,
                               .options = options,
                               .progress = { .bytes_done = written_bytes, .bytes_total = written_bytes } };
    uint64_t largest = 0;
    for (uint32_t i = 0; i < target->object_count; i++)
        if (target->objects[i].packing && target->objects[i].bytes > largest)
            largest = target->objects[i].bytes;
    if (largest == 0)
        return RESHARD_OK;
    unsigned wanted = packers_wanted(largest, options);
    struct packer *packers = array_zeroed(wanted, sizeof(*packers));
    if (!packers || pthread_mutex_init(&run.lock, NULL)) {
        free(packers);
        return error_set_memory(err);
    }
    for (unsigned i = 0; i < wanted; i++)
        packers[i].run = &run;
    for (unsigned i = 1; i < wanted; i++)
        packers[i].has_thread = !pthread_create(&packers[i].thread, NULL, packer_main, &packers[i]);
    packer_main(&packers[0]);
    for (unsigned i = 0; i < wanted; i++) {
        if (packers[i].has_thread)
            pthread_join(packers[i].thread, NULL);
        buffer_release(&packers[i].plain);
        buffer_release(&packers[i].packed);
    }
    free(packers);
    pthread_mutex_destroy(&run.lock);
    if (run.status && err)
        *err = run.error;
    return run.status;
}
