/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/copy.h"

#include <assert.h>
#include <string.h>

#include "kernels/cast.h"
#include "kernels/element_ops.h"
#include "kernels/move_block.h"

/* Elements that are changed on the way pass through scratch of this many; of 16 bytes they make 32 KiB on the stack, twice. */
#define SCRATCH_ELEMENTS 2048
#define SCRATCH_BYTES (SCRATCH_ELEMENTS * 16)

bool copy_can_cast(enum dtype source, enum dtype target)
{
    struct cast cast;
    return source == target || cast_find(source, target, &cast);
}

/* Moves axis `from` to place `to`, those between one place back. */
static void axis_move(struct copy_spec *spec, int from, int to)
{
    int64_t extent = spec->extent[from], source_stride = spec->source_stride[from], target_stride = spec->target_stride[from];
    for (int i = from; i > to; i--) {
        spec->extent[i] = spec->extent[i - 1];
        spec->source_stride[i] = spec->source_stride[i - 1];
        spec->target_stride[i] = spec->target_stride[i - 1];
    }
    spec->extent[to] = extent;
    spec->source_stride[to] = source_stride;
    spec->target_stride[to] = target_stride;
}

static bool axes_are_one(const struct copy_spec *spec, int outer, int inner)
{
    int64_t source, target;
    return !__builtin_mul_overflow(spec->source_stride[inner], spec->extent[inner], &source) &&
           !__builtin_mul_overflow(spec->target_stride[inner], spec->extent[inner], &target) && source == spec->source_stride[outer] &&
           target == spec->target_stride[outer];
}

void copy_simplify(struct copy_spec *spec)
{
    int kept = 0;
    for (int axis = 0; axis < spec->rank; axis++) {
        if (spec->extent[axis] == 1)
            continue;
        int place = kept;
        while (place > 0 && spec->target_stride[place - 1] < spec->target_stride[axis])
            place--;
        spec->extent[kept] = spec->extent[axis];
        spec->source_stride[kept] = spec->source_stride[axis];
        spec->target_stride[kept] = spec->target_stride[axis];
        axis_move(spec, kept++, place);
    }
    spec->rank = kept;

    kept = kept > 0 ? 1 : 0;
    for (int axis = 1; axis < spec->rank; axis++) {
        int outer = kept - 1;
        if (axes_are_one(spec, outer, axis)) {
            spec->extent[outer] *= spec->extent[axis];
        } else {
            outer = kept++;
            spec->extent[outer] = spec->extent[axis];
        }
        spec->source_stride[outer] = spec->source_stride[axis];
        spec->target_stride[outer] = spec->target_stride[axis];
    }
    spec->rank = kept;
}

/* Whether elements arrive other than they left. */
static bool changes_elements(const struct copy_spec *spec)
{
    return spec->source_dtype != spec->target_dtype || spec->via_count ||
           ((spec->flags & COPY_SWAP_SOURCE) && dtype_info(spec->source_dtype)->swap_bytes > 1) ||
           ((spec->flags & COPY_CONJUGATE) && dtype_has_conjugation(spec->source_dtype)) ||
           ((spec->flags & COPY_NEGATE) && dtype_has_negation(spec->source_dtype)) ||
           ((spec->flags & COPY_PLAIN_NAN) && spec->source_dtype == DTYPE_BF16);
}

bool copy_is_plain_run(const struct copy_spec *spec, uint64_t *bytes)
{
    struct copy_spec simple = *spec;
    int64_t element_bytes = dtype_element_bytes(spec->source_dtype);
    if (element_bytes == 0 || changes_elements(spec))
        return false;
    copy_simplify(&simple);
    if (simple.rank > 1 || (simple.rank == 1 && (simple.source_stride[0] != element_bytes || simple.target_stride[0] != element_bytes)))
        return false;
    *bytes = (uint64_t)element_bytes * (uint64_t)(simple.rank == 1 ? simple.extent[0] : 1);
    return true;
}

/* The 2-D block that is run for every position on the other axes, which stay in spec. */
struct inner_block {
    int64_t rows, columns;
    int64_t source_row, source_column, target_row, target_column;
};

static void axis_remove(struct copy_spec *spec, int axis)
{
    axis_move(spec, axis, 0);
    spec->rank--;
    memmove(spec->extent, spec->extent + 1, (size_t)spec->rank * sizeof(*spec->extent));
    memmove(spec->source_stride, spec->source_stride + 1, (size_t)spec->rank * sizeof(*spec->source_stride));
    memmove(spec->target_stride, spec->target_stride + 1, (size_t)spec->rank * sizeof(*spec->target_stride));
}

/*
 * Takes two axes out of a simplified spec. Columns are the axis on which the target is densest. Rows are the one on which the source
 * is, if that is denser than the columns (a transpose), else the next outer one.
 */
static struct inner_block inner_block_take(struct copy_spec *spec)
{
    struct inner_block block = { .rows = 1, .columns = 1 };
    if (spec->rank == 0)
        return block;
    int column = spec->rank - 1, row = column - 1;
    for (int axis = 0; axis < column; axis++)
        if (spec->source_stride[axis] > 0 && spec->source_stride[axis] < spec->source_stride[column] &&
            spec->source_stride[axis] < spec->source_stride[row])
            row = axis;
    block.columns = spec->extent[column];
    block.source_column = spec->source_stride[column];
    block.target_column = spec->target_stride[column];
    axis_remove(spec, column);
    if (row >= 0) {
        block.rows = spec->extent[row];
        block.source_row = spec->source_stride[row];
        block.target_row = spec->target_stride[row];
        axis_remove(spec, row);
    }
    return block;
}

/* Steps to the next position on the outer axes, the last fastest; false after the last. */
static bool outer_next(const struct copy_spec *spec, int64_t *position, const uint8_t **source, uint8_t **target)
{
    for (int axis = spec->rank - 1; axis >= 0; axis--) {
        if (++position[axis] < spec->extent[axis]) {
            *source += spec->source_stride[axis];
            *target += spec->target_stride[axis];
            return true;
        }
        *source -= (spec->extent[axis] - 1) * spec->source_stride[axis];
        *target -= (spec->extent[axis] - 1) * spec->target_stride[axis];
        position[axis] = 0;
    }
    return false;
}

static void run_move(struct copy_spec *spec, const uint8_t *source, uint8_t *target)
{
    int64_t position[RANK_MAX] = { 0 };
    int64_t bytes = dtype_element_bytes(spec->source_dtype);
    int last = spec->rank - 1;

    /* Runs that are contiguous on both sides count as one big element. */
    if (last >= 0 && spec->source_stride[last] == bytes && spec->target_stride[last] == bytes) {
        bytes *= spec->extent[last];
        spec->rank--;
    }
    struct inner_block inner = inner_block_take(spec);
    struct move_block block = { inner.rows,       inner.columns,       inner.source_row, inner.source_column,
                                inner.target_row, inner.target_column, (size_t)bytes, (spec->flags & COPY_STREAM) != 0 };
    do
        move_block(&block, source, target);
    while (outer_next(spec, position, &source, &target));
}

/* What happens to elements on the way. */
struct change {
    struct cast casts[COPY_VIA_MAX + 1];
    unsigned cast_count;
    bool swaps, negates, conjugates, plains_nan;
    enum dtype dtype; /* of the source */
    int64_t source_bytes, target_bytes;
};

static struct change change_of(const struct copy_spec *spec)
{
    struct change change;
    change.dtype = spec->source_dtype;
    change.cast_count = 0;
    change.source_bytes = dtype_element_bytes(spec->source_dtype);
    change.target_bytes = dtype_element_bytes(spec->target_dtype);
    change.swaps = (spec->flags & COPY_SWAP_SOURCE) && dtype_info(spec->source_dtype)->swap_bytes > 1;
    change.negates = (spec->flags & COPY_NEGATE) && dtype_has_negation(spec->source_dtype);
    change.conjugates = (spec->flags & COPY_CONJUGATE) && dtype_has_conjugation(spec->source_dtype);
    change.plains_nan = (spec->flags & COPY_PLAIN_NAN) && spec->source_dtype == DTYPE_BF16;
    enum dtype from = spec->source_dtype;
    assert(spec->via_count <= COPY_VIA_MAX);
    for (unsigned i = 0; i <= spec->via_count; i++) {
        enum dtype to = i < spec->via_count ? spec->via[i] : spec->target_dtype;
        if (to == from)
            continue;
        bool can_cast = cast_find(from, to, &change.casts[change.cast_count++]);
        assert(can_cast); /* copy_can_cast was asked before */
        (void)can_cast;
        from = to;
    }
    return change;
}

static void elements_change(const struct change *change, void *elements, size_t count)
{
    size_t swap_bytes = dtype_info(change->dtype)->swap_bytes;
    if (change->swaps)
        bytes_swap(elements, swap_bytes, count * (size_t)change->source_bytes / swap_bytes);
    if (change->plains_nan)
        bf16_plain_nan(elements, count);
    if (change->negates || change->conjugates)
        elements_negate(change->dtype, change->negates, change->conjugates, elements, count);
}

/* All casts, one after the other, to and fro between two scratch blocks; returns the one that holds the result. */
static const uint8_t *elements_cast(const struct change *change, uint8_t *elements, uint8_t *spare, size_t count)
{
    for (unsigned i = 0; i < change->cast_count; i++) {
        cast_run(&change->casts[i], elements, spare, count);
        uint8_t *casted = spare;
        spare = elements;
        elements = casted;
    }
    return elements;
}

/* A tile of at most SCRATCH_ELEMENTS: gathered, changed, cast, scattered. */
static void tile_change(const struct change *change, const struct inner_block *tile, const uint8_t *source, uint8_t *target)
{
    uint8_t gathered[SCRATCH_BYTES] __attribute__((aligned(64))), casted[SCRATCH_BYTES] __attribute__((aligned(64)));
    size_t count = (size_t)(tile->rows * tile->columns);
    struct move_block gather = { tile->rows,
                                 tile->columns,
                                 tile->source_row,
                                 tile->source_column,
                                 tile->columns * change->source_bytes,
                                 change->source_bytes,
                                 (size_t)change->source_bytes,
                                 false };
    struct move_block scatter = { tile->rows,       tile->columns,       tile->columns * change->target_bytes, change->target_bytes,
                                  tile->target_row, tile->target_column, (size_t)change->target_bytes, false };
    move_block(&gather, source, gathered);
    elements_change(change, gathered, count);
    move_block(&scatter, elements_cast(change, gathered, casted, count), target);
}

/* A cast alone needs no scratch where both sides are contiguous. */
static void block_cast(const struct change *change, const struct inner_block *block, const uint8_t *source, uint8_t *target)
{
    for (int64_t row = 0; row < block->rows; row++)
        cast_run(&change->casts[0], source + row * block->source_row, target + row * block->target_row, (size_t)block->columns);
}

static void block_change(const struct change *change, const struct inner_block *block, const uint8_t *source, uint8_t *target)
{
    bool is_direct =
        change->cast_count == 1 && !change->swaps && !change->negates && !change->conjugates && !change->plains_nan &&
        (block->columns == 1 || (block->source_column == change->source_bytes && block->target_column == change->target_bytes));
    if (is_direct) {
        block_cast(change, block, source, target);
        return;
    }
    bool is_transpose = block->rows > 1 && block->source_row < block->source_column;
    int64_t columns_max = is_transpose ? 64 : SCRATCH_ELEMENTS;
    int64_t columns = block->columns < columns_max ? block->columns : columns_max;
    int64_t rows = SCRATCH_ELEMENTS / columns;
    struct inner_block tile = *block;
    for (int64_t row = 0; row < block->rows; row += rows) {
        tile.rows = block->rows - row < rows ? block->rows - row : rows;
        for (int64_t column = 0; column < block->columns; column += columns) {
            tile.columns = block->columns - column < columns ? block->columns - column : columns;
            tile_change(change, &tile, source + row * block->source_row + column * block->source_column,
                        target + row * block->target_row + column * block->target_column);
        }
    }
}

static void run_change(struct copy_spec *spec, const uint8_t *source, uint8_t *target)
{
    int64_t position[RANK_MAX] = { 0 };
    struct change change = change_of(spec);
    struct inner_block inner = inner_block_take(spec);
    do
        block_change(&change, &inner, source, target);
    while (outer_next(spec, position, &source, &target));
}

void copy_run(const struct copy_spec *spec, const void *source, void *target)
{
    struct copy_spec simple = *spec;
    assert(dtype_element_bytes(spec->source_dtype) > 0);
    assert(dtype_element_bytes(spec->target_dtype) > 0);
    copy_simplify(&simple);
    if (changes_elements(&simple))
        run_change(&simple, source, target);
    else
        run_move(&simple, source, target);
}
