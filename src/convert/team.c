/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/team.h"

#include "base/array.h"
#include "base/cursor.h"

#include <stdlib.h>
#include <string.h>

#define TEAM_FINDINGS_BYTES_MAX ((size_t)1 << 30) /* of one rank in one step */

uint32_t team_rank(const struct team *team)
{
    return team ? comm_rank(team->comm) : 0;
}

uint32_t team_size(const struct team *team)
{
    return team ? comm_size(team->comm) : 1;
}

void team_share(const struct team *team, const uint64_t *bytes, uint32_t count, uint32_t *owners)
{
    __extension__ typedef unsigned __int128 wide;
    wide total = 0, done = 0;
    for (uint32_t i = 0; i < count; i++)
        total += (wide)bytes[i] + 1;
    for (uint32_t i = 0; i < count; i++) {
        owners[i] = (uint32_t)((done * 2 + bytes[i]) * team_size(team) / (total * 2));
        done += (wide)bytes[i] + 1;
    }
}

reshard_status team_exchange(struct team *team, reshard_status status, const struct buffer *own, struct comm_gathered *out,
                           reshard_error *err)
{
    reshard_error why = RESHARD_ERROR_INIT;
    *out = (struct comm_gathered){ 0 };
    if (!team)
        return status;
    if (status && err)
        why = *err;
    else if (!status && own->failed)
        status = buffer_error(own, &why);
    status = comm_agree(team->comm, team->call, status, &why);
    if (!status)
        status = comm_all_gather(team->comm, team->call, own->data, own->size, out, &why);
    team->is_over = team->is_over || status;
    return status ? error_pass(err, status, &why) : RESHARD_OK;
}

/* ---- rows ---- */

static reshard_status rows_take(const struct team *team, struct str part, uint32_t rank, const uint32_t *owners, uint32_t count,
                                unsigned char *table, size_t row_bytes, const uint32_t *places, reshard_error *err)
{
    struct cursor cursor = cursor_over(part.data, part.size);
    struct str row;
    for (uint32_t i = 0; i < count; i++) {
        if (owners[i] != rank)
            continue;
        if (!cursor_bytes(&cursor, row_bytes, &row))
            break;
        memcpy(table + (size_t)(places ? places[i] : i) * row_bytes, row.data, row_bytes);
    }
    uint64_t expected = 0;
    for (uint32_t i = 0; i < count; i++)
        expected += owners[i] == rank;
    if (part.size == expected * row_bytes)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_FORMAT, "%s: rank %u tells of %zu bytes, %llu rows of %zu were its part: do all ranks run the same "
                     "version, and look at the same checkpoint?", team->call, rank, part.size, (unsigned long long)expected, row_bytes);
}

reshard_status team_rows(struct team *team, reshard_status status, const uint32_t *owners, uint32_t count, void *table, size_t row_bytes,
                         const uint32_t *places, reshard_error *err)
{
    struct buffer own = { 0 };
    struct comm_gathered gathered;
    if (!team)
        return status;
    for (uint32_t i = 0; i < count && !status; i++)
        if (owners[i] == team_rank(team))
            buffer_append(&own, (const unsigned char *)table + (size_t)(places ? places[i] : i) * row_bytes, row_bytes);
    status = team_exchange(team, status, &own, &gathered, err);
    for (uint32_t rank = 0; rank < team_size(team) && !status; rank++)
        status = rows_take(team, gathered.parts[rank], rank, owners, count, table, row_bytes, places, err);
    comm_gathered_release(&gathered);
    buffer_release(&own);
    return status;
}

/* ---- findings ---- */

static void text_put(struct buffer *out, const char *text, size_t size)
{
    buffer_append_u32le(out, (uint32_t)size);
    buffer_append(out, text, size);
    buffer_append_byte(out, 0);
}

static bool text_get(struct cursor *cursor, struct str *out)
{
    uint32_t size;
    uint8_t end;
    return cursor_u32le(cursor, &size) && cursor_bytes(cursor, size, out) && cursor_u8(cursor, &end) && !end;
}

static reshard_status finding_keep(void *context, const struct finding *finding)
{
    struct team_findings *kept = context;
    struct buffer *out = &kept->packed;
    uint64_t difference;
    memcpy(&difference, &finding->max_difference, sizeof(difference));
    buffer_append_u32le(out, (uint32_t)finding->severity);
    buffer_append_u32le(out, finding->chunk);
    buffer_append_u64le(out, (uint64_t)finding->index);
    buffer_append_u64le(out, finding->count);
    buffer_append_u64le(out, difference);
    text_put(out, finding->kind, strlen(finding->kind));
    text_put(out, finding->key.data, finding->key.size);
    text_put(out, finding->text, strlen(finding->text));
    return out->failed ? RESHARD_ERR_MEMORY : RESHARD_OK;
}

struct finding_sink *team_findings_begin(struct team *team, struct team_findings *out, struct finding_sink *findings)
{
    *out = (struct team_findings){ .sink = { .receive = finding_keep, .context = out }, .packed = { .limit = TEAM_FINDINGS_BYTES_MAX } };
    return team ? &out->sink : findings;
}

struct told_finding {
    struct finding finding;
    uint64_t place; /* among all */
};

static reshard_status finding_take(struct cursor *cursor, struct finding *out)
{
    uint32_t severity;
    uint64_t index, difference;
    struct str kind, text;
    if (!cursor_u32le(cursor, &severity) || severity > FINDING_FAILURE || !cursor_u32le(cursor, &out->chunk) ||
        !cursor_u64le(cursor, &index) || !cursor_u64le(cursor, &out->count) || !cursor_u64le(cursor, &difference) ||
        !text_get(cursor, &kind) || !text_get(cursor, &out->key) || !text_get(cursor, &text))
        return RESHARD_ERR_FORMAT;
    out->severity = (enum finding_severity)severity;
    out->index = (int64_t)index;
    memcpy(&out->max_difference, &difference, sizeof(difference));
    out->kind = kind.data;
    out->text = text.data;
    return RESHARD_OK;
}

static int finding_compare(const void *a, const void *b)
{
    const struct told_finding *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

/* Findings of all ranks, in order. Their texts lie in what was gathered. */
static reshard_status findings_unpack(const struct team *team, const struct comm_gathered *gathered, const uint32_t *order,
                                      uint32_t chunks, struct told_finding **out, size_t *count, reshard_error *err)
{
    size_t room = 0;
    *count = 0;
    for (uint32_t rank = 0; rank < team_size(team); rank++)
        room += gathered->parts[rank].size / 32;
    *out = array_zeroed(room, sizeof(**out));
    if (!*out)
        return error_set_memory(err);
    for (uint32_t rank = 0; rank < team_size(team); rank++) {
        struct cursor cursor = cursor_over(gathered->parts[rank].data, gathered->parts[rank].size);
        while (cursor_left(&cursor)) {
            struct told_finding *told = &(*out)[*count];
            if (*count == room || finding_take(&cursor, &told->finding) || (order && told->finding.chunk > chunks))
                return error_set(err, RESHARD_ERR_FORMAT, "%s: what rank %u has found is no list of findings", team->call, rank);
            const uint32_t chunk = told->finding.chunk;
            told->place = order && chunk ? order[chunk - 1] : ((uint64_t)1 << 32) + *count;
            ++*count;
        }
    }
    qsort(*out, *count, sizeof(**out), finding_compare);
    return RESHARD_OK;
}

reshard_status team_findings_end(struct team *team, struct team_findings *kept, reshard_status status, const uint32_t *order,
                                 uint32_t chunks, struct finding_sink *findings, reshard_error *err)
{
    struct comm_gathered gathered = { 0 };
    struct told_finding *told = NULL;
    size_t count = 0;
    if (team) {
        status = team_exchange(team, status, &kept->packed, &gathered, err);
        if (!status)
            status = findings_unpack(team, &gathered, order, chunks, &told, &count, err);
        for (size_t i = 0; i < count && !status; i++) {
            finding_deliver(findings, &told[i].finding);
            status = finding_sink_status(findings, err);
        }
    }
    free(told);
    comm_gathered_release(&gathered);
    return status;
}

reshard_status team_finish(struct team *team, reshard_status status, reshard_error *err)
{
    const struct buffer nothing = { 0 };
    struct comm_gathered gathered;
    if (!team || team->is_over)
        return status;
    reshard_status failure = status == RESHARD_DIFFERS ? RESHARD_OK : status;
    failure = team_exchange(team, failure, &nothing, &gathered, err);
    comm_gathered_release(&gathered);
    return failure ? failure : status;
}
