/* SPDX-License-Identifier: Apache-2.0 */
/* Runs conversions: a transaction, the payload, then what the driver publishes around it. */
#include "convert/conversion_run.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/waiting.h"
#include "convert/conversion_second.h"
#include "convert/read_back.h"
#include "convert/sidecar.h"
#include "convert/target_check.h"
#include "store/store_calls.h"

#include <stdlib.h>

bool run_is_directory(const struct conversion *conversion)
{
    return conversion->target.driver->abilities & FORMAT_IS_DIRECTORY;
}

/* Whether the plan has a step into the object. */
static void objects_of_plan(const struct plan *plan, uint8_t *is_used)
{
    for (uint32_t i = 0; i < plan->step_count; i++)
        is_used[plan->target->chunks[plan->steps[i].target_chunk].object] = 1;
}

static reshard_status run_create_object(struct run *run, uint32_t index, reshard_error *err)
{
    const struct catalog_object *object = &run->conversion->target.catalog->objects[index];
    /* A single file is the target itself, whatever the driver calls it. */
    char *name = str_copy(run_is_directory(run->conversion) ? object->name : STR(""));
    if (!name)
        return error_set_memory(err);
    reshard_status status = store_txn_create(run->txn, name, object->bytes, &run->objects[index], err);
    free(name);
    return status;
}

reshard_status run_create_objects(struct run *run, const struct plan *part, reshard_error *err)
{
    const struct catalog *target = run->conversion->target.catalog;
    run->objects = array_zeroed(target->object_count, sizeof(*run->objects));
    run->crcs = array_zeroed(target->chunk_count, sizeof(*run->crcs));
    if (!run->objects || !run->crcs)
        return error_set_memory(err);
    uint8_t *is_used = part ? array_zeroed(target->object_count, 1) : NULL;
    if (part && !is_used)
        return error_set_memory(err);
    if (part)
        objects_of_plan(part, is_used);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < target->object_count && !status; i++) {
        if (!part || is_used[i])
            status = run_create_object(run, i, err);
    }
    free(is_used);
    return status;
}

void run_close_objects(struct run *run)
{
    for (uint32_t i = 0; run->objects && i < run->conversion->target.catalog->object_count; i++)
        store_object_close(run->objects[i]);
    free(run->objects);
    run->objects = NULL;
}

reshard_status run_publish(struct run *run, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    struct publish_job job = {
        .target = &conversion->target,
        .source = conversion->source->source,
        .objects = run->objects,
        .chunk_crcs = run->crcs,
        .request = &conversion->request,
    };
    return target_publish(&job, err);
}

/* Whether whoever wants the target wants it still. */
static bool run_is_wanted(const struct conversion *conversion, uint64_t bytes_done)
{
    const struct engine_progress progress = { .bytes_done = bytes_done, .bytes_total = conversion->plan->write_bytes };
    return !conversion->engine.progress || conversion->engine.progress(&progress, conversion->engine.context);
}

reshard_status run_announce(const struct conversion *conversion, reshard_error *err)
{
    return run_is_wanted(conversion, 0) ? RESHARD_OK : error_set(err, RESHARD_ERR_CANCELLED, "cancelled");
}

static uint64_t hash_text(uint64_t hash, struct str text)
{
    const uint64_t size = text.size;
    return hash64(text.data, text.size, hash64(&size, sizeof(size), hash));
}

/* A plan moves bytes: it is the same under whatever names and shapes they are read afterwards. */
static uint64_t hash_wanted(uint64_t hash, const struct catalog *wanted)
{
    const uint64_t counts[] = { wanted->tensor_count, wanted->item_count };
    hash = hash64(counts, sizeof(counts), hash);
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        const uint64_t numbers[] = { tensor->dtype, (uint64_t)tensor->rank };
        hash = hash64(numbers, sizeof(numbers), hash_text(hash, tensor->key));
        hash = hash64(catalog_vector_at(wanted, tensor->shape), (size_t)tensor->rank * sizeof(int64_t), hash);
    }
    for (uint32_t i = 0; i < wanted->item_count; i++)
        hash = hash_text(hash, wanted->items[i].key);
    return hash;
}

uint64_t run_identity(const struct conversion *conversion)
{
    const struct engine_source source = conversion_engine_source(conversion);
    uint64_t identity = hash_wanted(plan_hash(conversion->plan), conversion->selection.wanted);
    for (uint32_t i = 0; i < source.catalog->object_count; i++) {
        uint64_t version = store_version(source.store, source.catalog->objects[i].name.data);
        identity = hash64(&version, sizeof(version), identity);
    }
    return identity;
}

bool run_is_packed(const struct conversion *conversion)
{
    bool is_packed = false;
    for (uint32_t i = 0; i < conversion->target.catalog->object_count && !is_packed; i++)
        is_packed = conversion->target.catalog->objects[i].packing != NULL;
    return is_packed;
}

static reshard_status run_open_store(struct run *run, reshard_error *err)
{
    const struct conversion_options *options = run->conversion->options;
    if (options->checksum && !run_is_directory(run->conversion)) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "in a store of the caller's there are no digests beside a single file");
        error_hint(err, "leave reshard_convert_options.checksum out, or write a format of folders");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return store_new_calls(options->store, "", &run->store, err);
}

reshard_status run_begin(struct run *run, const char *target_path, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    const struct conversion_options *options = conversion->options;
    struct store_txn_options txn_options = {
        .is_directory = run_is_directory(conversion),
        .overwrite = options->overwrite,
        .resume = options->resume,
        .no_sync = options->no_sync,
        .no_space_check = options->no_space_check,
        .identity = run_identity(conversion),
    };
    reshard_status status = options->store ? run_open_store(run, err)
                                           : sidecar_check_beside(target_path, run_is_directory(conversion), options->overwrite, err);
    if (!status)
        status = run_announce(conversion, err);
    if (!status)
        status = run->store ? store_txn_begin_in(run->store, target_path, &txn_options, &run->txn, err)
                            : store_txn_begin(target_path, &txn_options, &run->txn, err);
    return status ? status : run_create_objects(run, NULL, err);
}

reshard_status run_end(struct run *run, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    reshard_status status = RESHARD_OK;
    if (run_is_packed(conversion))
        status = engine_pack(conversion->target.catalog, run->objects, conversion->plan->write_bytes, &conversion->engine, err);
    return status ? status : run_publish(run, err);
}

static reshard_status run_write(struct run *run, const char *target_path, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    struct engine_source source = conversion_engine_source(conversion);
    reshard_status status = run_begin(run, target_path, err);
    /* Objects that were compressed are no longer what a later run could take up. */
    struct store_txn *journal = run_is_packed(conversion) ? NULL : run->txn;
    if (!status)
        status = engine_run(conversion->plan, &source, run->objects, run->crcs, journal, &conversion->engine, err);
    run->is_moved = !status;
    return status ? status : run_end(run, err);
}

/* As what the format says, or where that is NULL as anyone would open it. */
static reshard_status run_open_written(const struct run *run, const char *format, struct checkpoint **out, reshard_error *err)
{
    const struct conversion_options *options = run->conversion->options;
    const struct checkpoint_options open = {
        .open = { .format = format, .limits = limits_raised(&run->conversion->source->source->limits), .iteration = -1 },
    };
    return run->store ? checkpoint_open_calls(options->store, store_txn_path(run->txn), &open, out, err)
                      : checkpoint_open(store_txn_path(run->txn), &open, out, err);
}

static reshard_status run_verify(struct run *run, reshard_error *err)
{
    const struct format_driver *driver = run->conversion->target.driver;
    struct checkpoint *written = NULL;
    reshard_status status = run_open_written(run, driver->name, &written, err);
    /* What was converted were tensors of parameters, however the target keeps optimizer state. */
    struct checkpoint *compared = written;
    if (!status && driver->abilities & FORMAT_STATE_BY_PARAMETER)
        status = checkpoint_relate(written, &compared, err);
    if (!status)
        status = read_back_compare(run->conversion, compared, err);
    checkpoint_close(written);
    return status;
}

/* Its names are those that whoever opens the target sees: what one format has written may be recognised as another. */
static reshard_status run_make_sidecar(struct run *run, reshard_error *err)
{
    const char *digest = run->conversion->options->checksum;
    struct checkpoint *written = NULL;
    reshard_status status = run_open_written(run, NULL, &written, err);
    if (status == RESHARD_ERR_UNSUPPORTED || status == RESHARD_ERR_FORMAT)
        status = run_open_written(run, run->conversion->target.driver->name, &written, err);
    if (!status)
        status = sidecar_make(written, digest, &run->conversion->engine, &run->sidecar, &run->sidecar_name, err);
    checkpoint_close(written);
    return status;
}

reshard_status run_check(struct run *run, reshard_error *err)
{
    const struct conversion_options *options = run->conversion->options;
    reshard_status status = options->verify ? run_verify(run, err) : RESHARD_OK;
    if (!status && options->checksum)
        status = run_make_sidecar(run, err);
    if (status)
        error_prefix(err, "reading the result back");
    return status;
}

reshard_status run_commit(struct run *run, const char *target_path, reshard_error *err)
{
    const struct conversion_options *options = run->conversion->options;
    bool has_folder = run_is_directory(run->conversion);
    reshard_status status = RESHARD_OK;
    if (!run_is_wanted(run->conversion, run->conversion->plan->write_bytes))
        return error_set(err, RESHARD_ERR_CANCELLED, "cancelled");
    if (run->sidecar.size && has_folder)
        status = sidecar_add(run->txn, run->sidecar_name, &run->sidecar, err);
    if (status)
        return status;
    status = store_txn_commit(run->txn, err);
    run->txn = NULL;
    /* After the target: digests that are missing or of the old target make verify complain, and hide nothing. */
    if (!status && !run->store && (options->overwrite || (run->sidecar.size && !has_folder)))
        status = sidecar_renew_beside(target_path, has_folder, &run->sidecar, options->no_sync, err);
    return status;
}

void run_release(struct run *run)
{
    store_free(run->store);
    free(run->crcs);
    buffer_release(&run->sidecar);
    free(run->sidecar_name);
}

static reshard_status run_whole(struct run *run, const char *target_path, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    reshard_status status = target_check_replaced(conversion, target_path, err);
    if (!status)
        status = target_check_parts(conversion, target_path, err);
    if (!status)
        status = target_check_space(conversion, target_path, err);
    if (!status && conversion->options->part_count)
        return conversion_run_part(conversion, target_path, err);
    if (!status)
        status = work_explain(conversion->source->source->limits.budget, run_write(run, target_path, err), err);
    run_close_objects(run);
    if (!status)
        status = run_check(run, err);
    if (!status)
        status = run_commit(run, target_path, err);
    /* What a cancelled or failed resumable run has done is kept for the next one. */
    store_txn_abort(run->txn, conversion->options->resume);
    run_release(run);
    return status;
}

static bool run_waits_on(void *context)
{
    const struct run *run = context;
    return run_is_wanted(run->conversion, run->is_moved ? run->conversion->plan->write_bytes : 0);
}

reshard_status conversion_run(struct conversion *conversion, const char *target_path, reshard_error *err)
{
    struct run run = { .conversion = conversion };
    const struct waiting waiting = { run_waits_on, &run }, *before = waiting_set(&waiting);
    reshard_status status = run_whole(&run, target_path, err);
    waiting_set(before);
    return status;
}
