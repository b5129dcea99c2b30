/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/orbax/orbax.h"

#include "formats/orbax/orbax_source.h"
#include "formats/source_probe.h"
#include "formats/source_root.h"

#include <inttypes.h>
#include <stdlib.h>

/* Surer than of arrays of zarr alone. */
static int orbax_probe(struct store *store, const char *name, reshard_error *err)
{
    if (!store_is_directory(store, name))
        return 0;
    return store_has_file(store, name, OCDBT_MANIFEST, err) ? 96 : store_has_file(store, name, "_METADATA", err) ? 95 : 0;
}

/* From here on the source reads its files and the values of nodes as one store. */
static reshard_status join_inline(struct source *source, struct orbax_state *state, reshard_error *err)
{
    const struct store_region region = { .memory = state->inline_values.data, .bytes = state->inline_values.size };
    if (!region.bytes)
        return RESHARD_OK;
    reshard_status status = store_new_over(&region, 1, &state->computed, err);
    if (status)
        return status;
    state->joined = store_new_joined(source->store, state->computed, ORBAX_INLINE);
    if (!state->joined)
        return error_set_memory(err);
    state->files = source->store;
    source->store = state->joined;
    return RESHARD_OK;
}

static reshard_status read_tree(struct zarr_reading *reading, reshard_error *err)
{
    struct source *source = reading->source;
    struct zarr_keys keys;
    uint64_t generation;
    reshard_status status = orbax_keys_read(source, &((struct orbax_state *)source->driver_state)->inline_values, &keys, &generation, err);
    if (!status)
        status = join_inline(source, source->driver_state, err);
    if (!status)
        status = zarr_read_over(reading, &keys, err);
    zarr_keys_release(&keys);
    return status ? status : catalog_add_fact(source->catalog, "OCDBT version", err, "%" PRIu64, generation);
}

static reshard_status orbax_read_catalog(struct source *source, reshard_error *err)
{
    struct zarr_reading reading = { .source = source, .flavour = "orbax" };
    source->driver_state = calloc(1, sizeof(struct orbax_state));
    if (!source->driver_state)
        return error_set_memory(err);
    const char *manifest = store_join(&source->catalog->arena, source->name, STR(OCDBT_MANIFEST));
    reshard_status status = !manifest                                 ? error_set_memory(err)
                            : store_is_file(source->store, manifest) ? read_tree(&reading, err)
                                                                      : zarr_read_begin(&reading, err);
    if (!status)
        status = zarr_read_documents(&reading, err);
    if (!status)
        status = orbax_metadata_read(&reading, err);
    if (!status)
        status = zarr_read_end(&reading, err);
    zarr_reading_release(&reading);
    return status;
}

static void orbax_close(struct source *source)
{
    struct orbax_state *state = source->driver_state;
    if (!state)
        return;
    if (state->files)
        source->store = state->files;
    store_free(state->joined);
    store_free(state->computed);
    buffer_release(&state->inline_values);
    free(state);
    source->driver_state = NULL;
}

static const char *const orbax_entries[] = { "_METADATA", OCDBT_MANIFEST, "_CHECKPOINT_METADATA", NULL };

const struct format_driver format_orbax = {
    .name = "orbax",
    .summary = "Orbax checkpoints of JAX: zarr arrays in folders, or all in an OCDBT store",
    .abilities = FORMAT_READS,
    .folder_entries = orbax_entries,
    .probe = orbax_probe,
    .read_catalog = orbax_read_catalog,
    .close_source = orbax_close,
};
