/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/state_pieces.h"

#include "base/array.h"

#include <stdlib.h>

reshard_status state_pieces_add(struct state_pieces *pieces, const struct state_piece *piece, reshard_error *err)
{
    if (!ARRAY_ROOM(pieces->pieces, pieces->count, pieces->capacity))
        return error_set_memory(err);
    pieces->pieces[pieces->count++] = *piece;
    return RESHARD_OK;
}

void state_pieces_release(struct state_pieces *pieces)
{
    free(pieces->pieces);
    *pieces = (struct state_pieces){ 0 };
}
