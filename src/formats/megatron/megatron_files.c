/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/megatron/megatron_files.h"

#include <inttypes.h>

#define PREFIX "mp_rank_"

bool rank_folder_parse(struct str base, struct rank_folder *out)
{
    *out = (struct rank_folder){ .name = base };
    if (!str_starts_with(base, PREFIX))
        return false;
    size_t at = sizeof(PREFIX) - 1;
    while (out->number_count < 3) {
        size_t begin = at;
        int64_t number = 0;
        while (at < base.size && base.data[at] >= '0' && base.data[at] <= '9' && at - begin < 9)
            number = number * 10 + (base.data[at++] - '0');
        if (at - begin < (out->number_count ? 3 : 2))
            return false;
        out->numbers[out->number_count++] = number;
        if (at == base.size)
            return true;
        if (base.data[at++] != '_')
            return false;
    }
    return false;
}

char *rank_folder_name(struct arena *arena, const struct parallel_layout *layout, const struct rank_place *place)
{
    if (layout->pp > 1 && layout->ep > 1)
        return arena_printf(arena, PREFIX "%02" PRId64 "_%03" PRId64 "_%03" PRId64, place->tp, place->pp, place->ep);
    if (layout->pp > 1 || layout->ep > 1)
        return arena_printf(arena, PREFIX "%02" PRId64 "_%03" PRId64, place->tp, layout->pp > 1 ? place->pp : place->ep);
    return arena_printf(arena, PREFIX "%02" PRId64, place->tp);
}

bool rank_folder_place(const struct rank_folder *folder, const struct parallel_layout *layout, struct rank_place *out)
{
    int count = 1 + (layout->pp > 1) + (layout->ep > 1);
    if (folder->number_count != count)
        return false;
    *out = (struct rank_place){ .tp = folder->numbers[0] };
    if (layout->pp > 1)
        out->pp = folder->numbers[1];
    if (layout->ep > 1)
        out->ep = folder->numbers[count - 1];
    out->etp = out->tp % layout->etp;
    return out->tp < layout->tp && out->pp < layout->pp && out->ep < layout->ep;
}

static int64_t least_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

int64_t least_world(const struct parallel_layout *layout)
{
    return least_multiple(layout->tp, layout->etp * layout->ep) * layout->pp;
}

reshard_status rank_places(const struct parallel_layout *layout, bool is_for_all, rank_sink emit, void *context, reshard_error *err)
{
    int64_t experts = layout->etp * layout->ep, first = layout->tp > experts ? layout->tp : experts;
    int64_t stage_ranks = least_world(layout) / layout->pp, count = is_for_all ? stage_ranks : first;
    reshard_status status = RESHARD_OK;
    if (layout->tp % layout->etp) {
        error_set(err, RESHARD_ERR_UNSUPPORTED,
                  "etp=%" PRId64 " does not divide tp=%" PRId64 ": ranks with different experts would share a folder", layout->etp,
                  layout->tp);
        error_hint(err, "the folder of a rank is named after its TP, PP and EP rank; etp must divide tp");
        return RESHARD_ERR_UNSUPPORTED;
    }
    for (int64_t pp = 0; !status && pp < layout->pp; pp++) {
        for (int64_t rank = 0; !status && rank < count; rank++) {
            struct rank_place place = { rank % layout->tp, pp, rank / layout->etp % layout->ep, rank % layout->etp };
            status = emit(&place, pp * stage_ranks + rank, context, err);
        }
    }
    return status;
}
