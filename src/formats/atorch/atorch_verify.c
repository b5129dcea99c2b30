/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP fills what lies between and behind parameters with 42: something else there means that offsets are not those of the bytes. */
#include "formats/atorch/atorch_source.h"
#include "formats/atorch/atorch_padding.h"

#include <inttypes.h>
#include <stdlib.h>

#define CHECK_BYTES 65536

struct padding_check {
    struct source *source;
    const struct store_object *file;
    uint32_t rank;
    uint8_t *bytes, *expected;
};

static reshard_status check_padding(const struct padding_check *check, const struct atorch_unit *unit, struct atorch_gap gap,
                                    reshard_error *err)
{
    const struct atorch_source *state = atorch_source_of(check->source);
    size_t size = dtype_element_bytes(unit->dtype);
    uint64_t base = state->offsets[(size_t)(unit - state->model.units) * state->model.ranks + check->rank];
    for (int64_t done = 0; size && done < gap.count;) {
        int64_t part = gap.count - done < (int64_t)(CHECK_BYTES / size) ? gap.count - done : (int64_t)(CHECK_BYTES / size);
        uint64_t offset = base + (uint64_t)(gap.place + done) * size;
        reshard_status status = store_read_at(check->file, offset, check->bytes, (size_t)part * size, err);
        if (status)
            return status;
        bool is_known = atorch_padding_fill(unit->dtype, state->model.is_original, check->expected, (size_t)part);
        if (is_known && memcmp(check->bytes, check->expected, (size_t)part * size) != 0) {
            catalog_warn(check->source->catalog, false,
                         "%s: bytes %" PRIu64 " to %" PRIu64
                         " are padding of unit '%.*s', but not all %s: offsets and bytes may not belong together",
                         store_object_name(check->file), offset, offset + (uint64_t)part * size, STR_ARG(unit->name),
                         state->model.is_original ? "42" : "0");
            return RESHARD_OK;
        }
        done += part;
    }
    return RESHARD_OK;
}

static reshard_status check_rank(struct padding_check *check, reshard_error *err)
{
    const struct atorch_source *state = atorch_source_of(check->source);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->model.unit_count && !status; i++) {
        const struct atorch_unit *unit = &state->model.units[i];
        struct atorch_gaps gaps = { 0 };
        atorch_gaps_begin(&state->model, unit, check->rank, &gaps);
        struct atorch_gap gap;
        while (!status && atorch_gaps_next(&gaps, &gap))
            status = check_padding(check, unit, gap, err);
    }
    return status;
}

reshard_status atorch_verify(struct source *source, bool is_deep, reshard_error *err)
{
    const struct atorch_source *state = atorch_source_of(source);
    struct padding_check check = { .source = source, .bytes = malloc(CHECK_BYTES), .expected = malloc(CHECK_BYTES) };
    reshard_status status = check.bytes && check.expected ? RESHARD_OK : error_set_memory(err);
    (void)is_deep;
    for (uint32_t rank = 0; rank < state->model.ranks && !status; rank++) {
        if (atorch_rank_is_lost(&state->model, rank))
            continue;
        struct str name = source->catalog->objects[state->flat_objects[rank]].name;
        struct store_object *file = NULL;
        char *text = str_copy(name);
        status = text ? store_open_object(source->store, text, &file, err) : error_set_memory(err);
        check.file = file;
        check.rank = rank;
        if (!status)
            status = check_rank(&check, err);
        store_object_close(file);
        free(text);
    }
    free(check.bytes);
    free(check.expected);
    return status;
}
