/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include "check.h"
#include "base/digest.h"

static int64_t below(struct sample *s, int64_t limit)
{
    return (int64_t)(test_random(&s->seed) % (uint64_t)limit);
}

static bool chance(struct sample *s, int percent)
{
    return below(s, 100) < percent;
}

static reshard_error err;

/* ---- boxes ---- */

struct boxes {
    int rank, count;
    int64_t start[64][RANK_MAX], extent[64][RANK_MAX];
};

/* Cuts a shape into boxes by random straight cuts, nested. */
static void boxes_cut(struct sample *s, int rank, const int64_t *shape, int cuts, struct boxes *out)
{
    out->rank = rank;
    out->count = 1;
    for (int i = 0; i < rank; i++) {
        out->start[0][i] = 0;
        out->extent[0][i] = shape[i];
    }
    for (int cut = 0; cut < cuts && out->count < 64 && rank; cut++) {
        int box = (int)below(s, out->count), axis = (int)below(s, rank);
        int64_t extent = out->extent[box][axis];
        if (extent < 2)
            continue;
        int64_t at = 1 + below(s, extent - 1);
        memcpy(out->start[out->count], out->start[box], sizeof(out->start[0]));
        memcpy(out->extent[out->count], out->extent[box], sizeof(out->extent[0]));
        out->extent[box][axis] = at;
        out->start[out->count][axis] += at;
        out->extent[out->count][axis] = extent - at;
        out->count++;
    }
}

/* Moves index to the next element of the box in row-major order; false behind the last. index counts from 0. */
static bool index_next(int rank, const int64_t *extent, int64_t *index)
{
    for (int axis = rank - 1; axis >= 0; axis--) {
        if (++index[axis] < extent[axis])
            return true;
        index[axis] = 0;
    }
    return false;
}

static int64_t flat_of(int rank, const int64_t *shape, const int64_t *index)
{
    int64_t flat = 0;
    for (int axis = 0; axis < rank; axis++)
        flat = flat * shape[axis] + index[axis];
    return flat;
}

/* ---- source ---- */

static void element_pass(enum dtype from, enum dtype to, unsigned flags, const void *source, void *target)
{
    struct copy_spec spec = { .rank = 0, .source_dtype = from, .target_dtype = to, .flags = flags };
    copy_run(&spec, source, target);
}

/* Random bits, or small numbers where casts or negation could meet a NaN. */
static void fill_random(struct sample *s, enum dtype dtype, uint8_t *bytes, size_t count)
{
    size_t element = dtype_element_bytes(dtype);
    const struct dtype_info *info = dtype_info(dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits[2] = { test_random(&s->seed), test_random(&s->seed) };
        if (info->class_ == DTYPE_CLASS_FLOAT || info->class_ == DTYPE_CLASS_COMPLEX || info->class_ == DTYPE_CLASS_INT) {
            int32_t small = (int32_t)(bits[0] % 200) - 100;
            uint8_t one[16] = { 0 };
            element_pass(DTYPE_I32, info->class_ == DTYPE_CLASS_COMPLEX ? DTYPE_I32 : dtype, 0, &small, one);
            if (info->class_ == DTYPE_CLASS_COMPLEX) {
                float parts[2] = { (float)small, (float)(bits[1] % 50) };
                memcpy(one, parts, 8);
            }
            memcpy(bytes + i * element, one, element);
        } else {
            memcpy(bytes + i * element, bits, element);
        }
    }
}

struct chunk_form {
    int64_t strides[RANK_MAX]; /* elements */
    bool is_strided;
    unsigned chunk_flags, copy_flags;
    int64_t span; /* elements of storage */
};

static void form_pick(struct sample *s, enum dtype dtype, int rank, const int64_t *extent, struct chunk_form *form)
{
    *form = (struct chunk_form){ 0 };
    strides_row_major(rank, extent, form->strides);
    form->span = box_volume(rank, extent);
    if (s->options.plain)
        return;
    if (rank && chance(s, 35)) {
        int order[RANK_MAX];
        int64_t stride = 1 + (chance(s, 20) ? below(s, 3) : 0);
        form->is_strided = true;
        for (int i = 0; i < rank; i++)
            order[i] = i;
        for (int i = rank - 1; i > 0; i--) {
            int j = (int)below(s, i + 1), swapped = order[i];
            order[i] = order[j];
            order[j] = swapped;
        }
        form->span = 1;
        for (int i = 0; i < rank; i++) {
            form->strides[order[i]] = chance(s, 5) ? 0 : stride;
            form->span += form->strides[order[i]] * (extent[order[i]] - 1);
            stride = stride * extent[order[i]] + (chance(s, 20) ? below(s, 40) : 0);
        }
    }
    if (chance(s, 15) && dtype_info(dtype)->swap_bytes > 1) {
        form->chunk_flags |= CHUNK_SWAP;
        form->copy_flags |= COPY_SWAP_SOURCE;
    }
    if (chance(s, 10)) {
        form->chunk_flags |= CHUNK_NEGATE;
        form->copy_flags |= COPY_NEGATE;
    }
    if (chance(s, 30) && dtype_info(dtype)->class_ == DTYPE_CLASS_COMPLEX) {
        form->chunk_flags |= CHUNK_CONJUGATE;
        form->copy_flags |= COPY_CONJUGATE;
    }
}

/* Puts storage bytes somewhere into an object, compressed or not, and says where. */
static void bytes_place(struct sample *s, const uint8_t *bytes, size_t size, struct catalog_chunk *chunk)
{
    struct buffer *object = &s->objects[chunk->object];
    buffer_append_fill(object, 0xEE, (size_t)below(s, 100));
    if (!s->options.encoded || !chance(s, 50)) {
        chunk->offset = object->size;
        buffer_append(object, bytes, size);
        return;
    }
    struct buffer plain = { 0 }, coded = { 0 }, outer = { 0 };
    size_t lead = (size_t)below(s, 50);
    buffer_append_fill(&plain, 0x11, lead);
    buffer_append(&plain, bytes, size);
    buffer_append_fill(&plain, 0x22, (size_t)below(s, 50));
    struct chunk_layout *layout = catalog_chunk_layout(s->source, chunk);
    layout->codec = chance(s, 50) ? CODEC_ZSTD : CODEC_DEFLATE;
    chunk->offset = lead;
    CHECK_OK(encode_all(layout->codec, 1, plain.data, plain.size, &coded, &err));
    if (chance(s, 30)) {
        struct buffer wrapped = { 0 };
        size_t wrap = (size_t)below(s, 50);
        buffer_append_fill(&wrapped, 0x33, wrap);
        buffer_append(&wrapped, coded.data, coded.size);
        layout->outer_codec = CODEC_ZSTD;
        CHECK_OK(encode_all(CODEC_ZSTD, 1, wrapped.data, wrapped.size, &outer, &err));
        layout->coded_offset = wrap;
        layout->coded_bytes = coded.size;
        layout->outer_offset = object->size;
        layout->outer_bytes = outer.size;
        buffer_append(object, outer.data, outer.size);
        buffer_release(&wrapped);
    } else {
        layout->coded_offset = object->size;
        layout->coded_bytes = coded.size;
        buffer_append(object, coded.data, coded.size);
    }
    buffer_release(&plain);
    buffer_release(&coded);
    buffer_release(&outer);
}

/* A box of the tensor in a random form; its values follow from its storage. */
static void add_box_chunk(struct sample *s, uint32_t tensor_index, const int64_t *start, const int64_t *extent)
{
    const struct catalog_tensor tensor = s->source->tensors[tensor_index];
    size_t element = dtype_element_bytes(tensor.dtype);
    int64_t shape[RANK_MAX], index[RANK_MAX] = { 0 };
    struct chunk_form form;
    struct catalog_chunk *chunk;
    memcpy(shape, catalog_vector_at(s->source, tensor.shape), (size_t)tensor.rank * sizeof(int64_t));
    form_pick(s, tensor.dtype, tensor.rank, extent, &form);
    uint8_t *storage = malloc((size_t)form.span * element + 1);
    fill_random(s, tensor.dtype, storage, (size_t)form.span);
    do {
        int64_t at = 0, whole[RANK_MAX];
        for (int axis = 0; axis < tensor.rank; axis++) {
            at += index[axis] * form.strides[axis];
            whole[axis] = start[axis] + index[axis];
        }
        element_pass(tensor.dtype, tensor.dtype, form.copy_flags, storage + (size_t)at * element,
                     s->values[tensor_index] + (size_t)flat_of(tensor.rank, shape, whole) * element);
    } while (index_next(tensor.rank, extent, index));
    uint32_t object = (uint32_t)below(s, SAMPLE_OBJECTS);
    CHECK_OK(catalog_add_chunk(s->source, tensor_index, start, extent, object, 0, (uint64_t)form.span * element, &chunk, &err));
    chunk->flags |= (uint16_t)form.chunk_flags;
    bytes_place(s, storage, (size_t)form.span * element, chunk);
    if (form.is_strided) {
        uint32_t strides = catalog_vector(s->source, form.strides, tensor.rank);
        catalog_chunk_layout(s->source, chunk)->strides = strides;
    }
    free(storage);
}

/* Elements [begin, begin + count) of the tensor, plain; random values unless it is a replica. */
static void add_run_chunk(struct sample *s, uint32_t tensor_index, int64_t begin, int64_t count, bool is_replica)
{
    const struct catalog_tensor tensor = s->source->tensors[tensor_index];
    size_t element = dtype_element_bytes(tensor.dtype);
    uint8_t *values = s->values[tensor_index] + (size_t)begin * element;
    struct catalog_chunk *chunk;
    int64_t origin[RANK_MAX] = { 0 }, shape[RANK_MAX];
    memcpy(shape, catalog_vector_at(s->source, tensor.shape), (size_t)tensor.rank * sizeof(int64_t));
    if (!is_replica)
        fill_random(s, tensor.dtype, values, (size_t)count);
    CHECK_OK(catalog_add_chunk(s->source, tensor_index, origin, shape, (uint32_t)below(s, SAMPLE_OBJECTS), 0, (uint64_t)count * element,
                               &chunk, &err));
    bytes_place(s, values, (size_t)count * element, chunk);
    struct chunk_layout *layout = catalog_chunk_layout(s->source, chunk);
    layout->flat_begin = begin;
    layout->flat_count = count;
}

/* A plain copy of a chunk that is there already. */
static void add_replica(struct sample *s, uint32_t tensor_index, const int64_t *start, const int64_t *extent)
{
    const struct catalog_tensor *tensor = &s->source->tensors[tensor_index];
    size_t element = dtype_element_bytes(tensor->dtype), size = (size_t)box_volume(tensor->rank, extent) * element;
    struct buffer bytes = { 0 };
    struct catalog_chunk *chunk;
    sample_source_box(s, tensor_index, start, extent, &bytes);
    CHECK_OK(catalog_add_chunk(s->source, tensor_index, start, extent, (uint32_t)below(s, SAMPLE_OBJECTS), 0, size, &chunk, &err));
    bytes_place(s, bytes.data, size, chunk);
    buffer_release(&bytes);
}

static void add_source_tensor(struct sample *s, uint32_t number)
{
    static const enum dtype dtypes[] = {
        DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_F64, DTYPE_C64, DTYPE_I16, DTYPE_I64, DTYPE_F16, DTYPE_BOOL
    };
    enum dtype dtype = dtypes[below(s, sizeof(dtypes) / sizeof(dtypes[0]))];
    int rank = (int)below(s, 6);
    int64_t shape[RANK_MAX], volume = 1;
    char key[16];
    uint32_t index;
    for (int i = 0; i < rank; i++) {
        int64_t room = s->options.elements_max / volume;
        shape[i] = chance(s, 3) ? 0 : 1 + below(s, (chance(s, 30) ? room : room / 4 < 9 ? room / 4 : 9) + 1);
        volume *= shape[i] ? shape[i] : 1;
    }
    snprintf(key, sizeof(key), "t%u", number);
    CHECK_OK(catalog_add_tensor(s->source, str_of(key), dtype, rank, shape, &index, &err));
    s->values[index] = calloc((size_t)volume + 1, 16);
    shape_volume(rank, shape, &volume);
    if (volume && chance(s, 25)) {
        for (int64_t begin = 0, count; begin < volume; begin += count) {
            count = chance(s, 20) ? volume - begin : 1 + below(s, volume - begin);
            add_run_chunk(s, index, begin, count, false);
            if (chance(s, 20))
                add_run_chunk(s, index, begin, count, true);
        }
        return;
    }
    struct boxes *boxes = malloc(sizeof(*boxes));
    boxes_cut(s, rank, shape, (int)below(s, 12), boxes);
    for (int i = 0; i < boxes->count && volume; i++) {
        add_box_chunk(s, index, boxes->start[i], boxes->extent[i]);
        for (int copies = 0; chance(s, 20) && copies < 3; copies++)
            add_replica(s, index, boxes->start[i], boxes->extent[i]);
    }
    free(boxes);
}

uint64_t sample_source_bytes(const struct sample *s, uint32_t tensor)
{
    return catalog_tensor_bytes(s->source, &s->source->tensors[tensor]);
}

void sample_source_box(const struct sample *s, uint32_t tensor_index, const int64_t *start, const int64_t *extent, struct buffer *out)
{
    const struct catalog_tensor *tensor = &s->source->tensors[tensor_index];
    const int64_t *shape = catalog_vector_at(s->source, tensor->shape);
    size_t element = dtype_element_bytes(tensor->dtype);
    int64_t index[RANK_MAX] = { 0 };
    if (box_is_empty(tensor->rank, extent))
        return;
    do {
        int64_t whole[RANK_MAX];
        for (int axis = 0; axis < tensor->rank; axis++)
            whole[axis] = start[axis] + index[axis];
        buffer_append(out, s->values[tensor_index] + (size_t)flat_of(tensor->rank, shape, whole) * element, element);
    } while (index_next(tensor->rank, extent, index));
}

/* ---- target ---- */

static void add_target_chunk(struct sample *s, uint32_t tensor_index, const int64_t *start, const int64_t *extent, int64_t flat_begin,
                             int64_t flat_count)
{
    const struct catalog_tensor *tensor = &s->target->tensors[tensor_index];
    int64_t count = flat_count >= 0 ? flat_count : box_volume(tensor->rank, extent);
    uint64_t bytes = (uint64_t)count * dtype_element_bytes(tensor->dtype);
    uint32_t object = (uint32_t)below(s, SAMPLE_OBJECTS);
    struct catalog_chunk *chunk;
    buffer_append_fill(&s->expected[object], 0, chance(s, 50) ? 0 : (size_t)below(s, 30));
    CHECK_OK(catalog_add_chunk(s->target, tensor_index, start, extent, object, s->expected[object].size, bytes, &chunk, &err));
    buffer_append_fill(&s->expected[object], 0, bytes);
    if (s->options.crc && chance(s, 60))
        chunk->flags |= CHUNK_WANT_CRC;
    if (flat_count >= 0) {
        struct chunk_layout *layout = catalog_chunk_layout(s->target, chunk);
        layout->flat_begin = flat_begin;
        layout->flat_count = flat_count;
    }
}

/* A box whose elements lie apart, at strides[axis] elements from each other, from element `at` of a region of the object on. */
static void add_strided_chunk(struct sample *s, uint32_t tensor_index, const int64_t *start, const int64_t *extent, const int64_t *strides,
                              uint32_t object, uint64_t offset)
{
    const struct catalog_tensor *tensor = &s->target->tensors[tensor_index];
    struct catalog_chunk *chunk;
    int64_t span;
    assert_true(strides_span(tensor->rank, extent, strides, &span));
    uint64_t bytes = (uint64_t)span * dtype_element_bytes(tensor->dtype);
    if (s->expected[object].size < offset + bytes)
        buffer_append_fill(&s->expected[object], 0, offset + bytes - s->expected[object].size);
    CHECK_OK(catalog_add_chunk(s->target, tensor_index, start, extent, object, offset, bytes, &chunk, &err));
    if (s->options.crc && chance(s, 60))
        chunk->flags |= CHUNK_WANT_CRC;
    uint32_t vector = catalog_vector(s->target, strides, tensor->rank);
    catalog_chunk_layout(s->target, chunk)->strides = vector;
}

/* Chunks with strides: each for itself, its axes in any order and with gaps, or all of them blocks of one row-major region. */
static void add_strided_chunks(struct sample *s, uint32_t tensor_index, int rank, const int64_t *shape, const struct boxes *boxes)
{
    uint64_t element = dtype_element_bytes(s->target->tensors[tensor_index].dtype);
    uint32_t object = (uint32_t)below(s, SAMPLE_OBJECTS);
    uint64_t region = s->expected[object].size;
    bool is_shared = chance(s, 50);
    int64_t strides[RANK_MAX];
    for (int i = 0; i < boxes->count; i++) {
        strides_row_major(rank, shape, strides);
        uint64_t offset = region + (uint64_t)flat_of(rank, shape, boxes->start[i]) * element;
        int64_t stride = 1;
        for (int n = 0, first = (int)below(s, rank); n < rank && !is_shared; n++) {
            int axis = (first + n) % rank;
            stride += chance(s, 30) ? below(s, 5) : 0;
            strides[axis] = stride;
            stride *= boxes->extent[i][axis];
        }
        offset = is_shared ? offset : s->expected[object].size;
        add_strided_chunk(s, tensor_index, boxes->start[i], boxes->extent[i], strides, object, offset);
    }
}

static void add_target_chunks(struct sample *s, uint32_t tensor_index, int rank, const int64_t *shape)
{
    int64_t volume = 1, origin[RANK_MAX] = { 0 };
    shape_volume(rank, shape, &volume);
    if (volume == 0)
        return;
    if (chance(s, 20)) {
        for (int64_t begin = 0, count; begin < volume; begin += count) {
            count = 1 + below(s, volume - begin);
            add_target_chunk(s, tensor_index, origin, shape, begin, count);
        }
        return;
    }
    struct boxes *boxes = malloc(sizeof(*boxes));
    boxes_cut(s, rank, shape, s->options.plain ? 0 : (int)below(s, 9), boxes);
    bool is_strided = rank && !s->options.plain && chance(s, 40);
    if (is_strided)
        add_strided_chunks(s, tensor_index, rank, shape, boxes);
    for (int i = 0; i < boxes->count && !is_strided; i++) {
        add_target_chunk(s, tensor_index, boxes->start[i], boxes->extent[i], 0, -1);
        if (chance(s, 10))
            add_target_chunk(s, tensor_index, boxes->start[i], boxes->extent[i], 0, -1);
    }
    free(boxes);
}

static enum dtype pick_target_dtype(struct sample *s, enum dtype dtype)
{
    static const enum dtype others[] = { DTYPE_BF16, DTYPE_F32, DTYPE_F64, DTYPE_I64 };
    enum dtype other = others[below(s, 4)];
    bool is_number = dtype_info(dtype)->class_ == DTYPE_CLASS_FLOAT || dtype_info(dtype)->class_ == DTYPE_CLASS_INT;
    return is_number && !s->options.plain && chance(s, 30) && copy_can_cast(dtype, other) ? other : dtype;
}

static const int64_t *keep(struct sample *s, const int64_t *values, int count)
{
    int64_t *kept = arena_array(&s->arena, (size_t)count + 1, sizeof(*kept));
    if (count)
        memcpy(kept, values, (size_t)count * sizeof(*kept));
    return kept;
}

/* Axes of the source in any order, some left out, and some axes that it does not have. Returns how many. */
static int pick_axes(struct sample *s, int source_rank, uint8_t *permutation)
{
    int rank = 0;
    for (int i = 0; i < source_rank; i++)
        if (!chance(s, 15))
            permutation[rank++] = (uint8_t)i;
    while (rank == 0 || chance(s, 15))
        permutation[rank++] = RECIPE_UNIT_AXIS;
    for (int i = rank - 1; i > 0; i--) {
        int j = (int)below(s, i + 1);
        uint8_t swapped = permutation[i];
        permutation[i] = permutation[j];
        permutation[j] = swapped;
    }
    return rank;
}

/* Casts on the way from one type to another; every one of them changes some of the values. */
static unsigned pick_via(struct sample *s, enum dtype dtype, const enum dtype **out)
{
    static const enum dtype vias[][3] = { { DTYPE_U8, DTYPE_F16, DTYPE_F32 },
                                          { DTYPE_BF16, DTYPE_I8, DTYPE_F64 },
                                          { DTYPE_F8_E4M3, DTYPE_BOOL, DTYPE_U8 } };
    bool is_number = dtype_info(dtype)->class_ == DTYPE_CLASS_FLOAT || dtype_info(dtype)->class_ == DTYPE_CLASS_INT;
    *out = vias[below(s, 3)];
    return is_number && chance(s, 30) ? 1 + (unsigned)below(s, 3) : 0;
}

/* A target of parts of one source, stacked on the first axis: target axis i is source axis permutation[i]. Some parts are zeros. */
static void add_parts_target(struct sample *s, uint32_t source_index, const char *key)
{
    const struct catalog_tensor source = s->source->tensors[source_index];
    const int64_t *source_shape = catalog_vector_at(s->source, source.shape);
    int parts = 1 + (int)below(s, 3);
    uint8_t *permutation = arena_alloc(&s->arena, (size_t)source.rank + RANK_MAX);
    int rank = pick_axes(s, source.rank, permutation);
    int64_t shape[RANK_MAX], extent[RANK_MAX], start[RANK_MAX], source_start[RANK_MAX] = { 0 };
    uint32_t index, first = s->recipe_count;
    for (int i = 0; i < rank; i++)
        shape[i] = permutation[i] == RECIPE_UNIT_AXIS ? 1 : 1 + below(s, source_shape[permutation[i]]);
    memcpy(extent, shape, sizeof(extent));
    memset(start, 0, sizeof(start));
    for (int part = 0; part < parts; part++) {
        extent[0] = permutation[0] == RECIPE_UNIT_AXIS ? 1 : 1 + below(s, source_shape[permutation[0]]);
        for (int i = 0; i < source.rank; i++)
            source_start[i] = below(s, source_shape[i]);
        for (int i = 0; i < rank; i++)
            if (permutation[i] != RECIPE_UNIT_AXIS)
                source_start[permutation[i]] = below(s, source_shape[permutation[i]] - extent[i] + 1);
        struct recipe recipe = { .source_tensor = chance(s, 15) ? RECIPE_FILL : source_index,
                                 .rank = rank,
                                 .source_start = keep(s, source_start, source.rank),
                                 .target_start = keep(s, start, rank),
                                 .extent = keep(s, extent, rank),
                                 .permutation = permutation,
                                 .fill = chance(s, 50) ? keep(s, (int64_t[]){ 0x4228422842284228, below(s, 1000) }, 2) : NULL };
        recipe.via_count = pick_via(s, source.dtype, &recipe.via);
        s->recipes[s->recipe_count++] = recipe;
        start[0] += extent[0];
    }
    shape[0] = start[0];
    CHECK_OK(catalog_add_tensor(s->target, str_of(key), pick_target_dtype(s, source.dtype), rank, shape, &index, &err));
    for (uint32_t i = first; i < s->recipe_count; i++)
        s->recipes[i].target_tensor = index;
    add_target_chunks(s, index, rank, shape);
}

static void add_target_tensor(struct sample *s, uint32_t source_index)
{
    const struct catalog_tensor source = s->source->tensors[source_index];
    const int64_t *shape = catalog_vector_at(s->source, source.shape);
    char key[16];
    uint32_t index;
    snprintf(key, sizeof(key), "u%u", source_index);
    if (s->options.parts && source.rank > 0 && box_volume(source.rank, shape) > 0 && chance(s, 50)) {
        add_parts_target(s, source_index, key);
        return;
    }
    CHECK_OK(catalog_add_tensor(s->target, str_of(key), pick_target_dtype(s, source.dtype), source.rank, shape, &index, &err));
    s->recipes[s->recipe_count++] = (struct recipe){ .source_tensor = source_index, .target_tensor = index, .is_whole = true };
    add_target_chunks(s, index, source.rank, shape);
}

/* The value of one target element, from the recipe that writes it. */
static void expected_element(const struct sample *s, uint32_t target_index, const int64_t *at, uint8_t *out)
{
    const struct catalog_tensor *target = &s->target->tensors[target_index];
    for (uint32_t i = 0; i < s->recipe_count; i++) {
        const struct recipe *recipe = &s->recipes[i];
        int64_t from[RANK_MAX] = { 0 };
        bool is_zeros = recipe->source_tensor == RECIPE_FILL;
        const struct catalog_tensor *source = is_zeros ? NULL : &s->source->tensors[recipe->source_tensor];
        for (int axis = 0; !recipe->is_whole && source && axis < source->rank; axis++)
            from[axis] = recipe->source_start[axis];
        bool is_inside = recipe->target_tensor == target_index;
        for (int axis = 0; axis < target->rank && is_inside; axis++) {
            if (recipe->is_whole) {
                from[axis] = at[axis];
                continue;
            }
            int64_t inside = at[axis] - recipe->target_start[axis];
            is_inside = inside >= 0 && inside < recipe->extent[axis];
            if (recipe->permutation[axis] != RECIPE_UNIT_AXIS)
                from[recipe->permutation[axis]] += inside;
        }
        if (!is_inside)
            continue;
        if (is_zeros) {
            memset(out, 0, dtype_element_bytes(target->dtype));
            if (recipe->fill)
                memcpy(out, recipe->fill, dtype_element_bytes(target->dtype));
            return;
        }
        uint8_t element[16], casted[16];
        int64_t flat = flat_of(source->rank, catalog_vector_at(s->source, source->shape), from);
        size_t bytes = dtype_element_bytes(source->dtype);
        memcpy(element, s->values[recipe->source_tensor] + (size_t)flat * bytes, bytes);
        enum dtype dtype = source->dtype;
        for (unsigned via = 0; via < recipe->via_count; dtype = recipe->via[via++]) {
            element_pass(dtype, recipe->via[via], 0, element, casted);
            memcpy(element, casted, sizeof(element));
        }
        element_pass(dtype, target->dtype, 0, element, out);
        return;
    }
    fail_msg("no recipe");
}

/* Puts the chunk's elements where they belong; `bytes` is where its object is, and `written`, unless it is NULL, the marks of it. */
static void put_chunk(const struct sample *s, const struct catalog_chunk *chunk, uint8_t *bytes, uint8_t *written)
{
    const struct catalog_tensor *tensor = &s->target->tensors[chunk->tensor];
    const struct chunk_layout *layout = catalog_layout_of(s->target, chunk);
    const int64_t *start = catalog_vector_at(s->target, chunk->start), *extent = catalog_vector_at(s->target, chunk->extent);
    size_t element = dtype_element_bytes(tensor->dtype);
    uint64_t offset = chunk->offset;
    int64_t index[RANK_MAX] = { 0 }, strides[RANK_MAX], flat = 0;
    bool is_strided = catalog_chunk_is_strided(s->target, chunk);
    if (chunk->bytes == 0)
        return;
    catalog_chunk_strides(s->target, chunk, strides);
    do {
        bool is_inside =
            !layout || layout->flat_count < 0 || (flat >= layout->flat_begin && flat < layout->flat_begin + layout->flat_count);
        int64_t at[RANK_MAX];
        flat++;
        if (!is_inside)
            continue;
        uint64_t place = offset;
        for (int axis = 0; axis < tensor->rank; axis++) {
            at[axis] = start[axis] + index[axis];
            place += is_strided ? (uint64_t)(index[axis] * strides[axis]) * element : 0;
        }
        expected_element(s, chunk->tensor, at, bytes + place);
        if (written)
            memset(written + place, 1, element);
        offset += is_strided ? 0 : element;
    } while (index_next(tensor->rank, extent, index));
}

/* ---- all of it ---- */

void sample_make(struct sample *s, const struct sample_options *options)
{
    *s = (struct sample){ .seed = options->seed, .options = *options };
    s->source = catalog_new("source");
    s->target = catalog_new("target");
    s->store = store_new_memory();
    for (uint32_t i = 0; i < SAMPLE_OBJECTS; i++) {
        char name[16];
        uint32_t index;
        snprintf(name, sizeof(name), "s/o%u", i);
        CHECK_OK(catalog_add_object(s->source, str_of(name), 0, &index, &err));
        snprintf(name, sizeof(name), "o%u", i);
        CHECK_OK(catalog_add_object(s->target, str_of(name), 0, &index, &err));
    }
    for (int i = 0; i < options->tensors; i++)
        add_source_tensor(s, (uint32_t)i);
    for (uint32_t i = 0; i < SAMPLE_OBJECTS; i++)
        s->source->objects[i].bytes = s->objects[i].size;
    CHECK_OK(catalog_seal(s->source, false, &err));
    for (int i = 0; i < options->tensors; i++)
        add_target_tensor(s, (uint32_t)i);
    for (uint32_t i = 0; i < SAMPLE_OBJECTS; i++) {
        s->target->objects[i].bytes = s->expected[i].size;
        buffer_append_fill(&s->written[i], 0, s->expected[i].size);
    }
    CHECK_OK(catalog_seal(s->target, true, &err));
    for (uint32_t i = 0; i < s->target->chunk_count; i++)
        put_chunk(s, &s->target->chunks[i], s->expected[s->target->chunks[i].object].data, s->written[s->target->chunks[i].object].data);
    struct store_txn *txn;
    struct store_txn_options txn_options = { .is_directory = true };
    CHECK_OK(store_txn_begin_in(s->store, "s", &txn_options, &txn, &err));
    for (uint32_t i = 0; i < SAMPLE_OBJECTS; i++) {
        struct store_object *object;
        char name[16];
        snprintf(name, sizeof(name), "o%u", i);
        CHECK_OK(store_txn_create(txn, name, s->objects[i].size, &object, &err));
        CHECK_OK(store_write_at(object, 0, s->objects[i].data, s->objects[i].size, &err));
        store_object_close(object);
    }
    CHECK_OK(store_txn_commit(txn, &err));
}

void sample_release(struct sample *s)
{
    for (int i = 0; i < SAMPLE_OBJECTS; i++) {
        buffer_release(&s->objects[i]);
        buffer_release(&s->expected[i]);
        buffer_release(&s->written[i]);
    }
    for (int i = 0; i < SAMPLE_TENSORS_MAX; i++)
        free(s->values[i]);
    catalog_free(s->source);
    catalog_free(s->target);
    store_free(s->store);
    arena_release(&s->arena);
}

void sample_check_object(const struct sample *s, uint32_t object, const uint8_t *bytes, size_t size)
{
    assert_int_equal(size, s->expected[object].size);
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != s->expected[object].data[i])
            fail_msg("object %u byte %zu: %02x, expected %02x (seed %llu)", object, i, bytes[i], s->expected[object].data[i],
                     (unsigned long long)s->options.seed);
}

void sample_check_crcs(const struct sample *s, const uint32_t *crcs)
{
    for (uint32_t c = 0; c < s->target->chunk_count; c++) {
        const struct catalog_chunk *chunk = &s->target->chunks[c];
        if (!(chunk->flags & CHUNK_WANT_CRC))
            continue;
        /* What lies between the elements of a strided chunk counts as zeros. */
        uint8_t *alone = calloc((size_t)s->expected[chunk->object].size + 1, 1);
        put_chunk(s, chunk, alone, NULL);
        uint32_t expected = crc32_zip(0, alone + chunk->offset, chunk->bytes);
        free(alone);
        if (crcs[c] != expected)
            fail_msg("CRC of chunk %u, %llu bytes: %08x, expected %08x (seed %llu)", c, (unsigned long long)chunk->bytes, crcs[c], expected,
                     (unsigned long long)s->options.seed);
    }
}

static reshard_status create_all(const struct sample *s, struct store_txn *txn, struct store_object **objects, reshard_error *error)
{
    for (uint32_t i = 0; i < SAMPLE_OBJECTS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "o%u", i);
        reshard_status status = store_txn_create(txn, name, s->target->objects[i].bytes, &objects[i], error);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

reshard_status sample_run(const struct sample *s, const struct plan *plan, struct store *source_store, struct store *target_store,
                          const char *name, const struct engine_options *options, bool resume, uint32_t *crcs, reshard_error *error)
{
    struct store_txn_options txn_options = { .is_directory = true, .resume = resume, .identity = plan_hash(plan), .overwrite = true };
    struct store_object *objects[SAMPLE_OBJECTS] = { NULL };
    struct engine_source source = { .store = source_store, .catalog = s->source, .limits = &limits_default };
    struct store_txn *txn;
    reshard_status status = store_txn_begin_in(target_store, name, &txn_options, &txn, error);
    if (status)
        return status;
    status = create_all(s, txn, objects, error);
    if (!status)
        status = engine_run(plan, &source, objects, crcs, resume ? txn : NULL, options, error);
    for (int i = 0; i < SAMPLE_OBJECTS; i++)
        store_object_close(objects[i]);
    if (!status)
        return store_txn_commit(txn, error);
    store_txn_abort(txn, resume);
    return status;
}
