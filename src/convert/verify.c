/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/verify.h"
#include "base/array.h"
#include "convert/checkpoint_view.h"

#include "base/cursor.h"
#include "base/decimal_text.h"
#include "base/hash.h"
#include "convert/against.h"
#include "convert/payload_check.h"
#include "convert/replica_compare.h"
#include "convert/sidecar.h"
#include "convert/state_check.h"

#include <stdlib.h>

static reshard_status digest_chunk_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                        reshard_error *err)
{
    (void)tensor, (void)offset, (void)is_last, (void)err;
    hash64_stream_update(context, bytes, size);
    return RESHARD_OK;
}

static reshard_status digest_chunk(const struct engine_source *source, uint32_t chunk, const struct engine_options *options,
                                   struct hash64_stream *stream, uint64_t *out, reshard_error *err)
{
    hash64_stream_reset(stream);
    reshard_status status = engine_stream_chunk(source, chunk, options, digest_chunk_sink, stream, err);
    *out = hash64_stream_digest(stream);
    return status;
}

/* The chunk that a replica repeats: the first of the same elements. */
static uint32_t original_of(const struct catalog *catalog, const struct catalog_tensor *tensor, uint32_t replica)
{
    for (uint32_t i = tensor->first_chunk; i < replica; i++) {
        if (!(catalog->chunks[i].flags & CHUNK_REPLICA) && catalog_chunks_are_copies(catalog, i, replica))
            return i;
    }
    return replica;
}

/* Whether both are the very same bytes, seen the same way: there is nothing to compare. */
static bool is_same_place(const struct catalog *catalog, uint32_t a_index, uint32_t b_index)
{
    const struct catalog_chunk *a = &catalog->chunks[a_index], *b = &catalog->chunks[b_index];
    unsigned seen = CHUNK_SWAP | CHUNK_CONJUGATE | CHUNK_NEGATE;
    return a->object == b->object && a->offset == b->offset && a->bytes == b->bytes && (a->flags & seen) == (b->flags & seen) &&
           !a->layout && !b->layout;
}

static reshard_status report_replica(const struct engine_source *source, uint32_t original, uint32_t copy,
                                     const struct engine_options *options, struct finding_sink *findings, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[copy];
    struct replica_difference difference;
    char most[DECIMAL_SHORT_BYTES];
    reshard_status status = replica_compare(source, original, copy, options, &difference, err);
    if (!status)
        finding_report(findings, FINDING_FAILURE, "replica", catalog->tensors[chunk->tensor].key,
                       "the copies in '%.*s' and '%.*s' differ: %llu elements, first at %llu, max abs %s",
                       STR_ARG(catalog->objects[catalog->chunks[original].object].name), STR_ARG(catalog->objects[chunk->object].name),
                       (unsigned long long)difference.count, (unsigned long long)difference.first,
                       decimal_short(difference.max_difference, most));
    return status;
}

struct replica_check {
    struct source *source;
    struct engine_source from;
    const struct engine_options *options;
    struct finding_sink *findings;
    struct hash64_stream *stream;
    uint64_t *bytes_read;
};

/* What nobody wants the values of is read here for the first time: bytes that are no elements are told, and compared with nothing. */
static reshard_status digest_replica(struct replica_check *check, uint32_t index, uint64_t *out, reshard_error *err)
{
    const struct catalog *catalog = check->from.catalog;
    struct catalog_chunk *chunk = &check->source->catalog->chunks[index];
    reshard_error seen = { 0 };
    if (chunk->flags & CHUNK_DAMAGED)
        return RESHARD_OK;
    *check->bytes_read += chunk->bytes;
    reshard_status status = digest_chunk(&check->from, index, check->options, check->stream, out, &seen);
    if (status == RESHARD_ERR_FORMAT) {
        finding_report(check->findings, FINDING_FAILURE, "damage", catalog->tensors[chunk->tensor].key, "%s", seen.message);
        chunk->flags |= CHUNK_DAMAGED;
        return RESHARD_OK;
    }
    if (status && err)
        *err = seen;
    return status;
}

static bool may_compare(const struct catalog *catalog, uint32_t original, uint32_t copy)
{
    return !((catalog->chunks[original].flags | catalog->chunks[copy].flags) & CHUNK_DAMAGED);
}

static reshard_status compare_replicas(struct checkpoint *checkpoint, const uint32_t *owners, uint32_t rank, struct replica_check *check,
                                       reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    reshard_status status = RESHARD_OK;
    uint32_t known = CATALOG_NONE;
    uint64_t known_digest = 0, digest = 0;
    for (uint32_t i = 0; i < catalog->chunk_count && !status; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
        if (!(chunk->flags & CHUNK_REPLICA) || !checkpoint_shows(checkpoint, chunk->tensor) || (owners && owners[chunk->tensor] != rank))
            continue;
        uint32_t original = original_of(catalog, tensor, i);
        status = work_spend_steps(checkpoint->source->limits.budget, original - tensor->first_chunk + 1, err);
        if (status || is_same_place(catalog, original, i))
            continue;
        if (original != known)
            status = digest_replica(check, original, &known_digest, err);
        known = original;
        if (!status)
            status = digest_replica(check, i, &digest, err);
        if (!status && may_compare(catalog, original, i) && digest != known_digest)
            status = report_replica(&check->from, original, i, check->options, check->findings, err);
        if (!status)
            status = finding_sink_status(check->findings, err);
    }
    return status;
}

/* By tensor: which rank compares its replicas. */
static uint32_t *replica_owners(const struct team *team, const struct catalog *catalog)
{
    uint64_t *bytes = array_zeroed(catalog->tensor_count, sizeof(*bytes));
    uint32_t *owners = array_zeroed(catalog->tensor_count, sizeof(*owners));
    for (uint32_t i = 0; i < catalog->chunk_count && bytes; i++)
        bytes[catalog->chunks[i].tensor] += catalog->chunks[i].flags & CHUNK_REPLICA ? catalog->chunks[i].bytes : 0;
    if (bytes && owners)
        team_share(team, bytes, catalog->tensor_count, owners);
    if (!bytes) {
        free(owners);
        owners = NULL;
    }
    free(bytes);
    return owners;
}

/* The bytes that all ranks have read, of all. */
static reshard_status bytes_read_sum(struct team *team, reshard_status status, uint64_t *bytes_read, reshard_error *err)
{
    struct buffer own = { 0 };
    struct comm_gathered gathered;
    buffer_append_u64le(&own, *bytes_read);
    status = team_exchange(team, status, &own, &gathered, err);
    *bytes_read = 0;
    for (uint32_t rank = 0; rank < team_size(team) && !status; rank++) {
        struct cursor cursor = cursor_over(gathered.parts[rank].data, gathered.parts[rank].size);
        uint64_t bytes = 0;
        if (!cursor_u64le(&cursor, &bytes))
            status = error_set(err, RESHARD_ERR_FORMAT, "%s: rank %u does not say what it has read", team->call, rank);
        *bytes_read += bytes;
    }
    comm_gathered_release(&gathered);
    buffer_release(&own);
    return status;
}

static reshard_status share_replicas(struct checkpoint *checkpoint, struct team *team, const struct engine_options *options,
                                     struct finding_sink *findings, uint64_t *bytes_read, reshard_error *err)
{
    struct team_findings kept;
    struct replica_check check = { .source = checkpoint->source,
                                   .from = checkpoint_engine_source(checkpoint),
                                   .options = options,
                                   .findings = team_findings_begin(team, &kept, findings),
                                   .stream = hash64_stream_new(),
                                   .bytes_read = bytes_read };
    uint32_t *owners = team ? replica_owners(team, checkpoint->source->catalog) : NULL;
    reshard_status status = !check.stream || (team && !owners) ? error_set_memory(err) : RESHARD_OK;
    if (!status)
        status = compare_replicas(checkpoint, owners, team_rank(team), &check, err);
    if (team)
        status = bytes_read_sum(team, status, bytes_read, err);
    if (!status)
        status = team_findings_end(team, &kept, status, NULL, 0, findings, err);
    buffer_release(&kept.packed);
    hash64_stream_free(check.stream);
    free(owners);
    return status;
}

static void report_stats(struct checkpoint *checkpoint, const struct value_stats *stats, unsigned fail_on, struct finding_sink *findings)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) {
        uint32_t tensor = checkpoint->listed[i];
        const struct value_stats *found = &stats[tensor];
        struct str key = checkpoint_tensor_name(checkpoint, i);
        if (found->nan_count)
            finding_report(findings, fail_on & VERIFY_FAIL_NAN ? FINDING_FAILURE : FINDING_WARNING, "nan", key, "%llu NaN",
                           (unsigned long long)found->nan_count);
        if (found->inf_count)
            finding_report(findings, fail_on & VERIFY_FAIL_INF ? FINDING_FAILURE : FINDING_WARNING, "inf", key, "%llu infinite",
                           (unsigned long long)found->inf_count);
        bool is_whole = catalog->tensors[tensor].chunk_count && !catalog_tensor_is_torn(catalog, tensor);
        if (!found->has_nonzero && is_whole && catalog_tensor_bytes(catalog, &catalog->tensors[tensor]))
            finding_report(findings, fail_on & VERIFY_FAIL_ZERO ? FINDING_FAILURE : FINDING_NOTE, "zero", key, "all values are zero");
    }
}

static void report_warnings(const struct checkpoint *checkpoint, struct finding_sink *findings)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    for (uint32_t i = 0; i < catalog->warning_count; i++) {
        const struct catalog_warning *warning = &catalog->warnings[i];
        const char *kind = warning->key.size ? "lost" : warning->is_damage ? "damage" : "warning";
        finding_report(findings, warning->is_damage ? FINDING_FAILURE : FINDING_WARNING, kind, warning->key, "%.*s",
                       STR_ARG(warning->text));
    }
    if (catalog->damage_dropped)
        finding_report(findings, FINDING_FAILURE, "damage", (struct str){ 0 }, "%u more damages", catalog->damage_dropped);
    if (catalog->warnings_dropped)
        finding_report(findings, FINDING_WARNING, "warning", (struct str){ 0 }, "%u more warnings", catalog->warnings_dropped);
}

/* ---- what was not looked at ---- */

bool verify_is_checked(const struct catalog *catalog, uint32_t tensor, const struct sidecar_cover *cover)
{
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    if (entry->flags & TENSOR_TORN)
        return false;
    if (cover->tensors && cover->tensors[tensor])
        return true;
    for (uint32_t i = 0; i < entry->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[entry->first_chunk + i];
        if (chunk->bytes && !(chunk->flags & (CHUNK_HAS_CRC | CHUNK_CHECKED)))
            return false;
    }
    return true;
}

static void count_covered(const struct checkpoint *checkpoint, const struct sidecar_cover *cover, const struct verify_options *options,
                          uint64_t bytes_read)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    struct verify_coverage out = { .read_bytes = bytes_read, .tensors = checkpoint->listed_count, .items = catalog->item_count };
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[checkpoint->listed[i]];
        uint64_t bytes = catalog_tensor_bytes(catalog, tensor);
        bool is_checked = verify_is_checked(catalog, checkpoint->listed[i], cover);
        out.bytes += bytes;
        out.elements += bytes * 8 / dtype_info(tensor->dtype)->bits;
        if (cover->tensors && cover->tensors[checkpoint->listed[i]]) {
            out.read_bytes += bytes;
            out.checksums++;
        }
        out.checked_tensors += is_checked;
        out.checked_bytes += is_checked ? bytes : 0;
        if (!is_checked && options->uncovered)
            options->uncovered(options->context, checkpoint_tensor_name(checkpoint, i), bytes);
    }
    for (uint32_t i = 0; i < catalog->item_count; i++)
        out.checked_items += catalog->items[i].is_checked || (cover->items && cover->items[i]);
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        if (!checkpoint_shows(checkpoint, catalog->chunks[i].tensor))
            continue;
        out.replicas += (catalog->chunks[i].flags & CHUNK_REPLICA) != 0;
        const bool has_checksum = (catalog->chunks[i].flags & (CHUNK_HAS_CRC | CHUNK_CHECKED)) != 0;
        out.checksums += has_checksum;
        out.read_bytes += has_checksum || options->is_deep || options->fail_on ? catalog->chunks[i].bytes : 0;
    }
    out.has_sidecar = cover->tensors != NULL;
    out.names_are_checked = catalog->names_are_checked || cover->items != NULL;
    if (options->coverage)
        *options->coverage = out;
}

/* All that reads payload, in the order of its findings. */
static reshard_status verify_payload(struct checkpoint *checkpoint, struct value_stats *stats, struct team *team,
                                     const struct engine_options *engine, struct finding_sink *findings, struct sidecar_cover *cover,
                                     uint64_t *bytes_read, reshard_error *err)
{
    const bool *is_chosen = checkpoint->view ? checkpoint->view->is_chosen : NULL;
    reshard_status status = payload_check(checkpoint->source, is_chosen, stats, team, engine, findings, err);
    if (!status)
        status = share_replicas(checkpoint, team, engine, findings, bytes_read, err);
    return status ? status : sidecar_verify(checkpoint, NULL, team, engine, findings, cover, err);
}

/* reference: NULL where there is nothing to compare with. */
static reshard_status verify_all(struct checkpoint *checkpoint, struct reference *reference, const struct verify_options *options,
                                 const struct engine_options *engine, struct finding_sink *findings, reshard_error *err)
{
    struct sidecar_cover cover = { 0 };
    struct source *source = checkpoint->source;
    const bool reads_values = options->is_deep || options->fail_on;
    uint64_t failures = findings->failures, bytes_read = 0;
    work_renew(&source->work);
    reshard_status status = source_resolve(source, NULL, 0, err);
    if (!status)
        status = source_verify(source, options->is_deep, err);
    if (status)
        return status;
    report_warnings(checkpoint, findings);
    struct value_stats *stats = array_zeroed(source->catalog->tensor_count, sizeof(*stats));
    if (!stats)
        return error_set_memory(err);
    status = finding_sink_status(findings, err);
    if (!status)
        status = verify_payload(checkpoint, reads_values ? stats : NULL, options->team, engine, findings, &cover, &bytes_read, err);
    if (!status && reads_values)
        report_stats(checkpoint, stats, options->fail_on, findings);
    if (!status && options->is_deep)
        status = state_check_copies(checkpoint, options->team, engine, findings, err);
    if (!status && options->expects_optimizer)
        status = state_check_optimizer(checkpoint, options->team, engine, findings, err);
    if (!status && reference)
        status = against_run(checkpoint, reference, findings, err);
    if (!status)
        status = finding_sink_status(findings, err);
    if (!status)
        count_covered(checkpoint, &cover, options, bytes_read);
    free(stats);
    sidecar_cover_release(&cover);
    return status ? status : findings->failures > failures ? RESHARD_DIFFERS : RESHARD_OK;
}

reshard_status verify_run(struct checkpoint *checkpoint, const struct verify_options *options, const struct engine_options *engine,
                          struct finding_sink *findings, reshard_error *err)
{
    struct reference reference = { .store = NULL };
    reshard_status status = options->against ? reference_open(options->against, options->open, &reference, err) : RESHARD_OK;
    if (!status)
        status = verify_all(checkpoint, options->against ? &reference : NULL, options, engine, findings, err);
    reference_release(&reference);
    return team_finish(options->team, status, err);
}
