/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing piece by piece: tensors cut at random, fed in any order by several threads, as boxes, flat runs, strided memory and by callback,
 * make the very files that a conversion of the whole makes, in every format; nothing is visible before the end; and what is refused.
 */
#include "check.h"

#include "base/crc32.h"
#include "reshard/writer.h"
#include "test_folder.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANK_USED_MAX 4
#define TENSORS 7
#define PIECES_MAX 4096
#define THREADS 4

static reshard_error err;
static uint64_t seed;

static int64_t choose(int64_t count)
{
    return (int64_t)(test_random(&seed) % (uint64_t)count);
}

struct whole {
    const char *keys[2], *dtype; /* anybody's, and Megatron's */
    size_t rank, element;
    int64_t shape[RANK_USED_MAX], volume;
    uint8_t *values;
};

static int names; /* which of their keys */

static struct whole wholes[TENSORS] = {
    { { "model.embed_tokens.weight", "embedding.word_embeddings.weight" }, "BF16", 2, 2, { 96, 40 }, 0, NULL },
    { { "model.layers.0.mlp.gate_proj.weight", "decoder.layers.0.mlp.linear_fc1.weight" }, "F32", 2, 4, { 56, 40 }, 0, NULL },
    { { "model.layers.0.mlp.down_proj.weight", "decoder.layers.0.mlp.linear_fc2.weight" }, "F32", 2, 4, { 40, 56 }, 0, NULL },
    { { "model.layers.0.input_layernorm.weight", "decoder.final_layernorm.weight" }, "BF16", 1, 2, { 40 }, 0, NULL },
    { { "model.cube", "decoder.cube" }, "F16", 4, 2, { 5, 7, 6, 9 }, 0, NULL },
    { { "model.count", "decoder.count" }, "I64", 0, 8, { 0 }, 0, NULL },
    { { "model.bytes", "decoder.bytes" }, "U8", 3, 1, { 3, 1, 70 }, 0, NULL },
};

static reshard_str key_of(size_t tensor)
{
    const char *key = wholes[tensor].keys[names];
    return (reshard_str){ key, strlen(key) };
}

static void wholes_make(void)
{
    for (size_t i = 0; i < TENSORS; i++) {
        struct whole *whole = &wholes[i];
        whole->volume = 1;
        for (size_t axis = 0; axis < whole->rank; axis++)
            whole->volume *= whole->shape[axis];
        size_t bytes = (size_t)whole->volume * whole->element;
        free(whole->values);
        whole->values = malloc(bytes);
        assert_non_null(whole->values);
        for (size_t b = 0; b < bytes; b++) /* exponents that are no NaN */
            whole->values[b] = (uint8_t)(test_random(&seed) & 0x3F);
    }
}

static void wholes_free(void)
{
    for (size_t i = 0; i < TENSORS; i++) {
        free(wholes[i].values);
        wholes[i].values = NULL;
    }
}

/* ---- pieces ---- */

struct piece {
    reshard_piece given;
    int64_t start[RANK_USED_MAX], extent[RANK_USED_MAX], strides[RANK_USED_MAX];
    uint8_t *own; /* row-major values, if it has some */
};

struct pieces {
    struct piece all[PIECES_MAX];
    size_t count;
    atomic_size_t next;
    reshard_writer *writer;
    atomic_int failures;
    char message[512];
};

static int piece_read(void *out, uint64_t offset, size_t size, void *context)
{
    memcpy(out, ((const struct piece *)context)->own + offset, size);
    return 0;
}

static int64_t row_major(const struct whole *whole, int64_t *strides)
{
    int64_t stride = 1;
    for (size_t axis = whole->rank; axis-- > 0; stride *= whole->shape[axis])
        strides[axis] = stride;
    return stride;
}

/* Elements [begin, end) of the box's order, from the whole. */
static uint8_t *values_of(const struct whole *whole, const struct piece *piece, int64_t begin, int64_t end)
{
    uint8_t *values = malloc((size_t)(end - begin) * whole->element + 1);
    assert_non_null(values);
    for (int64_t i = begin; i < end; i++) {
        int64_t rest = i, number = 0, at[RANK_USED_MAX];
        for (size_t axis = whole->rank; axis-- > 0; rest /= piece->extent[axis])
            at[axis] = rest % piece->extent[axis] + piece->start[axis];
        for (size_t axis = 0; axis < whole->rank; axis++)
            number = number * whole->shape[axis] + at[axis];
        memcpy(values + (size_t)(i - begin) * whole->element, whole->values + (size_t)number * whole->element, whole->element);
    }
    return values;
}

static struct piece *piece_new(struct pieces *pieces, size_t tensor, const int64_t *start, const int64_t *extent)
{
    assert_true(pieces->count < PIECES_MAX);
    struct piece *piece = &pieces->all[pieces->count++];
    *piece = (struct piece){ .given = RESHARD_PIECE_INIT };
    memcpy(piece->start, start, sizeof(piece->start));
    memcpy(piece->extent, extent, sizeof(piece->extent));
    piece->given.tensor = tensor;
    piece->given.start = piece->start;
    piece->given.extent = piece->extent;
    return piece;
}

static void piece_fill(struct piece *piece, int64_t begin, int64_t end, bool by_callback)
{
    const struct whole *whole = &wholes[piece->given.tensor];
    piece->own = values_of(whole, piece, begin, end);
    piece->given.data = by_callback ? NULL : piece->own;
    piece->given.size = (size_t)(end - begin) * whole->element;
    piece->given.read = by_callback ? piece_read : NULL;
    piece->given.context = piece;
}

static void box_pieces(struct pieces *pieces, size_t tensor, const int64_t *start, const int64_t *extent)
{
    const struct whole *whole = &wholes[tensor];
    int64_t volume = 1, way = choose(4), offset = 0;
    for (size_t axis = 0; axis < whole->rank; axis++)
        volume *= extent[axis];
    if (way == 0 && volume > 1) { /* two runs */
        int64_t cut = 1 + choose(volume - 1);
        for (int part = 0; part < 2; part++) {
            struct piece *piece = piece_new(pieces, tensor, start, extent);
            piece->given.is_flattened = 1;
            piece->given.flat_begin = part ? cut : 0;
            piece->given.flat_end = part ? volume : cut;
            piece_fill(piece, piece->given.flat_begin, piece->given.flat_end, choose(2) == 0);
        }
        return;
    }
    struct piece *piece = piece_new(pieces, tensor, start, extent);
    if (way != 1) {
        piece_fill(piece, 0, volume, way == 2);
        return;
    }
    row_major(whole, piece->strides); /* where it lies in the whole */
    for (size_t axis = 0; axis < whole->rank; axis++)
        offset += start[axis] * piece->strides[axis];
    piece->given.strides = piece->strides;
    piece->given.data = whole->values + (size_t)offset * whole->element;
    piece->given.size = (size_t)(whole->volume - offset) * whole->element;
}

static void whole_pieces(struct pieces *pieces, size_t tensor, const int64_t *start, const int64_t *extent, int depth)
{
    const struct whole *whole = &wholes[tensor];
    int64_t inner_start[RANK_USED_MAX], inner_extent[RANK_USED_MAX];
    size_t axis = whole->rank ? (size_t)choose((int64_t)whole->rank) : 0;
    if (!whole->rank || depth == 0 || extent[axis] < 2) {
        box_pieces(pieces, tensor, start, extent);
        return;
    }
    int64_t cut = 1 + choose(extent[axis] - 1);
    memcpy(inner_start, start, sizeof(inner_start));
    memcpy(inner_extent, extent, sizeof(inner_extent));
    inner_extent[axis] = cut;
    whole_pieces(pieces, tensor, inner_start, inner_extent, depth - 1);
    inner_start[axis] += cut;
    inner_extent[axis] = extent[axis] - cut;
    whole_pieces(pieces, tensor, inner_start, inner_extent, depth - 1);
}

static struct pieces *pieces_new(int depth)
{
    static const int64_t origin[RANK_USED_MAX];
    struct pieces *pieces = calloc(1, sizeof(*pieces));
    assert_non_null(pieces);
    for (size_t i = 0; i < TENSORS; i++)
        whole_pieces(pieces, i, origin, wholes[i].shape, depth);
    return pieces;
}

/* In an order of its own, as places in `all`; pointers into pieces move with them. */
static void pieces_shuffle(struct pieces *pieces)
{
    for (size_t i = pieces->count; i > 1; i--) {
        size_t other = (size_t)choose((int64_t)i);
        struct piece moved = pieces->all[i - 1];
        pieces->all[i - 1] = pieces->all[other];
        pieces->all[other] = moved;
    }
    for (size_t i = 0; i < pieces->count; i++) {
        struct piece *piece = &pieces->all[i];
        piece->given.start = piece->start;
        piece->given.extent = piece->extent;
        piece->given.strides = piece->given.strides ? piece->strides : NULL;
        piece->given.context = piece;
    }
}

static void pieces_free(struct pieces *pieces)
{
    for (size_t i = 0; i < pieces->count; i++)
        free(pieces->all[i].own);
    free(pieces);
}

static void *feed_main(void *context)
{
    struct pieces *pieces = context;
    reshard_error own = RESHARD_ERROR_INIT;
    size_t i;
    while ((i = atomic_fetch_add(&pieces->next, 1)) < pieces->count) {
        if (reshard_writer_put(pieces->writer, &pieces->all[i].given, &own) && !atomic_fetch_add(&pieces->failures, 1))
            snprintf(pieces->message, sizeof(pieces->message), "%s: %s", own.object, own.message);
    }
    return NULL;
}

static void pieces_feed(struct pieces *pieces, reshard_writer *writer)
{
    pthread_t threads[THREADS];
    pieces->writer = writer;
    atomic_store(&pieces->next, 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, feed_main, pieces), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (atomic_load(&pieces->failures))
        fail_msg("%s", pieces->message);
}

/* ---- targets ---- */

static const reshard_state_item items[] = { { { "step", 4 }, { "12", 2 } }, { { "args", 4 }, { "{\"lr\": 0.5}", 11 } } };

static reshard_writer_input input_of(reshard_writer_tensor *tensors)
{
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    for (size_t i = 0; i < TENSORS; i++)
        tensors[i] = (reshard_writer_tensor){ key_of(i), wholes[i].dtype, wholes[i].rank, wholes[i].shape };
    input.tensors = tensors;
    input.tensor_count = TENSORS;
    input.items = items;
    input.item_count = 2;
    return input;
}

static reshard_status writer_open(const char *path, const reshard_convert_options *options, reshard_writer **out)
{
    reshard_writer_tensor tensors[TENSORS];
    const reshard_writer_input input = input_of(tensors);
    return reshard_writer_open(&input, path, options, NULL, NULL, out, &err);
}

static reshard_status writer_commit(const char *path, const reshard_convert_options *options)
{
    reshard_writer_tensor tensors[TENSORS];
    const reshard_writer_input input = input_of(tensors);
    return reshard_writer_commit(&input, path, options, NULL, NULL, &err);
}

/* The same by a conversion of shards in memory. */
static reshard_status convert_whole(const char *path, const reshard_convert_options *options)
{
    static const int64_t origin[RANK_USED_MAX];
    reshard_state state = RESHARD_STATE_INIT;
    reshard_checkpoint *live;
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    for (size_t i = 0; i < TENSORS; i++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        shard.key = key_of(i);
        shard.dtype = wholes[i].dtype;
        shard.rank = wholes[i].rank;
        shard.global_shape = shard.extent = wholes[i].shape;
        shard.start = origin;
        shard.data = wholes[i].values;
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
    }
    state.shards = shards;
    state.items = items;
    state.item_count = 2;
    CHECK_OK(reshard_open_shards(&state, NULL, &live, &err));
    reshard_status status = reshard_convert(live, path, options, NULL, NULL, &err);
    reshard_close(live);
    reshard_shards_free(shards);
    return status;
}

static int work_remove(void **state)
{
    wholes_free();
    return test_folder_remove(state);
}

static bool same_files(const char *a, const char *b)
{
    char command[256];
    snprintf(command, sizeof(command), "diff -r %s %s >&2", a, b);
    return system(command) == 0;
}

static bool is_visible(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static size_t entries_in_work(void)
{
    char command[64];
    unsigned long count = 0;
    snprintf(command, sizeof(command), "ls -A %s | wc -l", test_folder);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%lu", &count), 1);
    pclose(pipe);
    return count;
}

struct target {
    const char *format, *layout, *option, *dtype;
    int names;
};

/* Feeds a target and compares it with a conversion's. */
static void target_check(const struct target *target, int depth)
{
    const char *format_options[] = { target->option, NULL }, *dtypes[] = { target->dtype, NULL };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    char expected[128], written[128];
    reshard_writer *writer;
    snprintf(expected, sizeof(expected), "%s/expected", test_folder);
    snprintf(written, sizeof(written), "%s/written", test_folder);
    options.to = target->format;
    options.layout = target->layout;
    options.format_options = target->option ? format_options : NULL;
    options.dtypes = target->dtype ? dtypes : NULL;
    options.no_sync = 1;
    /* Formats call files after the folder. */
    CHECK_OK(convert_whole(written, &options));
    assert_int_equal(rename(written, expected), 0);
    struct pieces *pieces = pieces_new(depth);
    pieces_shuffle(pieces);
    CHECK_OK(writer_open(written, &options, &writer));
    pieces_feed(pieces, writer);
    assert_false(is_visible(written));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    if (!same_files(expected, written))
        fail_msg("%s, layout %s, %s, %s", target->format, target->layout, target->option, target->dtype);
    pieces_free(pieces);
    char command[256];
    snprintf(command, sizeof(command), "rm -r %s %s", expected, written);
    assert_int_equal(system(command), 0);
}

TEST(what_is_fed_makes_the_files_of_a_conversion)
{
    static const struct target targets[] = {
        { "safetensors", NULL, NULL, NULL, 0 },
        { "safetensors", NULL, NULL, "f32", 0 },
        { "hf", NULL, NULL, NULL, 0 },
        { "torch", NULL, NULL, NULL, 0 },
        { "torch", NULL, NULL, "bf16", 0 },
        { "torch-dcp", NULL, NULL, NULL, 0 },
        { "torch-dcp", "ranks=3", NULL, NULL, 0 },
        { "torch_dist", NULL, NULL, NULL, 0 },
        { "torch_dist", "tp=2", NULL, NULL, 1 },
        { "torch_dcp", NULL, NULL, NULL, 0 },
        { "fsdp_dtensor", "dp=3", NULL, NULL, 0 },
        { "fsdp-ranks", "ranks=3", NULL, NULL, 0 },
        { "zarr", NULL, NULL, NULL, 0 },
        { "zarr", NULL, "codec=zstd", NULL, 0 },
        { "zarr", NULL, "chunks=7,16", NULL, 0 },
        { "zarr", NULL, "flavour=megatron", NULL, 1 },
        { "paddle-flex", "ranks=2", NULL, NULL, 0 },
        { "paddle-flex", "ranks=2", "dedupe=none", NULL, 0 },
        { "paddle", NULL, NULL, NULL, 0 },
        { "paddle", NULL, "protocol=5", NULL, 0 },
        { "paddle-uc", NULL, NULL, NULL, 0 },
        { "atorch", "ranks=3", NULL, "f32", 0 },
        { "megatron", "tp=2", NULL, NULL, 1 },
    };
    seed = 5;
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        names = targets[i].names;
        wholes_make();
        target_check(&targets[i], 4);
    }
    names = 0;
}

/* For the thread sanitizer: formats with checksums, many files, compression. */
TEST(threads_feed_one_writer)
{
    static const struct target targets[] = { { "torch", NULL, NULL, NULL, 0 },
                                             { "torch-dcp", "ranks=3", NULL, "f32", 0 },
                                             { "zarr", NULL, "codec=zstd", NULL, 0 } };
    seed = 9;
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        wholes_make();
        target_check(&targets[i], 6);
    }
}

/* ---- parts ---- */

#define PARTS 3

/* Part `part` puts every PARTS-th piece, and piece number `also`. */
static void part_write(const char *path, reshard_convert_options options, struct pieces *pieces, uint64_t part, size_t also)
{
    reshard_writer *writer;
    options.part = part;
    options.part_count = PARTS;
    CHECK_OK(writer_open(path, &options, &writer));
    for (size_t i = 0; i < pieces->count; i++)
        if (i % PARTS == part || i == also)
            CHECK_OK(reshard_writer_put(writer, &pieces->all[i].given, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    assert_false(is_visible(path));
}

/* Knows nothing but the path. */
static reshard_status declared_commit(const char *path)
{
    return reshard_writer_commit(NULL, path, NULL, NULL, NULL, &err);
}

static void parts_check(const char *format, const char *layout, bool is_declared)
{
    static const char *const renames[] = { "s/embed/table/", NULL }, *const dtypes[] = { "*gate*=bf16", "cube=F32", NULL };
    static const char *const exclude[] = { "bytes", NULL };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    char expected[128], written[128], command[256];
    snprintf(expected, sizeof(expected), "%s/expected", test_folder);
    snprintf(written, sizeof(written), "%s/written", test_folder);
    options.to = format;
    options.layout = layout;
    options.no_sync = 1;
    options.strip_prefix = "model.";
    options.renames = renames;
    options.dtypes = dtypes;
    options.exclude = exclude;
    options.checksum = layout ? "crc32c" : NULL; /* those of a file lie beside it */
    CHECK_OK(convert_whole(written, &options));
    assert_int_equal(rename(written, expected), 0);
    struct pieces *pieces = pieces_new(4);
    pieces_shuffle(pieces);
    part_write(written, options, pieces, 2, SIZE_MAX);
    assert_int_equal(declared_commit(written), RESHARD_DIFFERS);
    assert_non_null(strstr(err.message, "part 0 is missing, which keeps what the parts were opened with"));
    part_write(written, options, pieces, 0, SIZE_MAX);
    assert_int_equal(is_declared ? declared_commit(written) : writer_commit(written, &options), RESHARD_DIFFERS);
    assert_non_null(strstr(err.message, "part 1 of 3 is missing"));
    part_write(written, options, pieces, 1, 0); /* a piece of part 0 too */
    assert_int_equal(writer_commit(written, &options), RESHARD_DIFFERS);
    assert_non_null(strstr(err.message, "was written by two parts"));
    part_write(written, options, pieces, 1, SIZE_MAX);
    CHECK_OK(is_declared ? declared_commit(written) : writer_commit(written, &options));
    if (!same_files(expected, written))
        fail_msg("%s, layout %s", format, layout);
    snprintf(command, sizeof(command), "rm -r %s %s", expected, written);
    assert_int_equal(system(command), 0);
    pieces_free(pieces);
}

TEST(processes_write_one_target_without_a_word_between_them)
{
    seed = 21;
    names = 0;
    wholes_make();
    for (int is_declared = 0; is_declared < 2; is_declared++) {
        parts_check("torch-dcp", "ranks=3", is_declared);
        parts_check("torch", NULL, is_declared);
        parts_check("zarr", NULL, is_declared);
        parts_check("paddle-flex", "ranks=2", is_declared);
    }
    assert_int_equal(entries_in_work(), 0);
}

/* Gives a record an extent that leaves its tensor, or a tensor that there is not, and the right checksum; done twice, it is as before. */
static void record_forge(const char *path)
{
    static uint8_t bytes[1 << 16];
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof(bytes), file);
    assert_true(size > 40 && size < sizeof(bytes));
    bytes[size - 5] ^= 0x7F;
    uint32_t crc = crc32c(0, bytes, size - 4);
    memcpy(bytes + size - 4, &crc, 4);
    rewind(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

TEST(what_no_part_has_written_is_named)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    char path[128], record[256];
    seed = 22;
    wholes_make();
    snprintf(path, sizeof(path), "%s/target", test_folder);
    options.to = "torch-dcp";
    options.no_sync = 1;
    struct pieces *pieces = pieces_new(1);
    size_t tensor = pieces->all[pieces->count - 1].given.tensor;
    pieces->count--;
    for (uint64_t part = 0; part < PARTS; part++)
        part_write(path, options, pieces, part, SIZE_MAX);
    assert_int_equal(writer_commit(path, &options), RESHARD_DIFFERS);
    assert_non_null(strstr(err.message, key_of(tensor).data));
    assert_non_null(strstr(err.message, "was not written"));
    for (int part = 0; part < PARTS; part++) {
        snprintf(record, sizeof(record), "%s/.target.reshard-partial/.part-%d-of-3", test_folder, part);
        record_forge(record);
        assert_int_equal(writer_commit(path, &options), RESHARD_DIFFERS);
        assert_non_null(strstr(err.message, "names elements that there are not"));
        record_forge(record);
    }
    assert_int_equal(truncate(record, 70), 0);
    assert_int_equal(writer_commit(path, &options), RESHARD_DIFFERS);
    assert_non_null(strstr(err.message, "is damaged"));
    options.layout = "ranks=2";
    assert_int_equal(writer_commit(path, &options), RESHARD_DIFFERS);
    assert_false(is_visible(path));
    pieces->count++;
    pieces_free(pieces);
}

/* ---- what is refused ---- */

static reshard_writer *simple_open(char *path, size_t size)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer *writer;
    snprintf(path, size, "%s/target", test_folder);
    options.to = "torch-dcp";
    options.no_sync = 1;
    wholes_make();
    CHECK_OK(writer_open(path, &options, &writer));
    return writer;
}

static reshard_status put_box(reshard_writer *writer, size_t tensor, const int64_t *start, const int64_t *extent)
{
    reshard_piece piece = RESHARD_PIECE_INIT;
    piece.tensor = tensor;
    piece.start = start;
    piece.extent = extent;
    piece.data = wholes[tensor].values;
    piece.size = (size_t)wholes[tensor].volume * wholes[tensor].element;
    return reshard_writer_put(writer, &piece, &err);
}

TEST(doubled_and_missing_elements_are_named)
{
    const int64_t start[] = { 30, 0 }, extent[] = { 10, 40 }, inner[] = { 39, 39 }, one[] = { 1, 1 };
    char path[128];
    reshard_writer *writer = simple_open(path, sizeof(path));
    for (size_t i = 1; i < TENSORS; i++)
        CHECK_OK(put_box(writer, i, NULL, NULL));
    CHECK_OK(put_box(writer, 0, start, extent));
    assert_int_equal(put_box(writer, 0, inner, one), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "model.embed_tokens.weight"));
    assert_non_null(strstr(err.message, "[39:40, 39:40]"));
    assert_int_equal(reshard_writer_finish(writer, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "model.embed_tokens.weight"));
    assert_non_null(strstr(err.message, "[0:30, 0:40]"));
    assert_non_null(strstr(err.message, "3440 elements"));
    assert_false(is_visible(path));
    /* Both were mistakes that can be made good. */
    const int64_t before[] = { 0, 0 }, before_extent[] = { 30, 40 }, behind[] = { 40, 0 }, behind_extent[] = { 56, 40 };
    CHECK_OK(put_box(writer, 0, before, before_extent));
    CHECK_OK(put_box(writer, 0, behind, behind_extent));
    CHECK_OK(reshard_writer_finish(writer, &err));
    assert_true(is_visible(path));
    assert_int_equal(put_box(writer, 0, inner, one), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_writer_finish(writer, &err), RESHARD_ERR_USAGE);
    reshard_writer_free(writer);
    assert_true(is_visible(path));
}

TEST(what_is_not_finished_leaves_nothing)
{
    char path[128];
    reshard_writer *writer = simple_open(path, sizeof(path));
    CHECK_OK(put_box(writer, 1, NULL, NULL));
    assert_false(is_visible(path));
    assert_int_equal(entries_in_work(), 1);
    reshard_writer_free(writer);
    assert_int_equal(entries_in_work(), 0);
}

TEST(pieces_that_do_not_fit_are_refused)
{
    const int64_t start[] = { 90, 0 }, extent[] = { 7, 40 }, good[] = { 6, 40 }, strides[] = { -1, 1 };
    char path[128];
    reshard_writer *writer = simple_open(path, sizeof(path));
    reshard_piece piece = RESHARD_PIECE_INIT;
    piece.tensor = TENSORS;
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_USAGE);
    piece.tensor = 0;
    assert_int_equal(put_box(writer, 0, start, extent), RESHARD_ERR_USAGE);
    assert_int_equal(put_box(writer, 0, start, NULL), RESHARD_ERR_USAGE);
    piece.start = start;
    piece.extent = good;
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_USAGE);
    piece.size = 6 * 40 * 2;
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_USAGE);
    piece.data = wholes[0].values;
    piece.size--;
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_USAGE);
    piece.size++;
    piece.strides = strides;
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_USAGE);
    piece.strides = NULL;
    piece.dtype = "nothing";
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_USAGE);
    piece.dtype = NULL;
    piece.is_flattened = 1;
    piece.flat_end = 6 * 40 + 1;
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_USAGE);
    piece.flat_begin = INT64_MIN;
    piece.flat_end = INT64_MAX;
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_USAGE);
    piece.is_flattened = 0;
    CHECK_OK(reshard_writer_put(writer, &piece, &err));
    reshard_writer_free(writer);
    assert_int_equal(entries_in_work(), 0);
}

static int fail_read(void *out, uint64_t offset, size_t size, void *context)
{
    (void)out;
    (void)offset;
    (void)size;
    (void)context;
    return 1;
}

TEST(a_callback_that_fails_ends_the_writer)
{
    char path[128];
    reshard_writer *writer = simple_open(path, sizeof(path));
    reshard_piece piece = RESHARD_PIECE_INIT;
    piece.read = fail_read;
    assert_int_equal(reshard_writer_put(writer, &piece, &err), RESHARD_ERR_CANCELLED);
    assert_non_null(strstr(err.message, "model.embed_tokens.weight"));
    assert_int_equal(put_box(writer, 1, NULL, NULL), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_writer_finish(writer, &err), RESHARD_ERR_USAGE);
    reshard_writer_free(writer);
    assert_int_equal(entries_in_work(), 0);
}

TEST(values_of_another_type_are_cast)
{
    static float values[96 * 40];
    char path[128];
    uint16_t *stored = malloc(sizeof(values) / 2);
    reshard_writer *writer = simple_open(path, sizeof(path));
    reshard_checkpoint *opened;
    reshard_piece piece = RESHARD_PIECE_INIT;
    for (size_t i = 0; i < 96 * 40; i++)
        values[i] = (float)(i % 256);
    piece.dtype = "F32";
    piece.data = values;
    piece.size = sizeof(values);
    CHECK_OK(reshard_writer_put(writer, &piece, &err));
    for (size_t i = 1; i < TENSORS; i++)
        CHECK_OK(put_box(writer, i, NULL, NULL));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    int64_t tensor = reshard_tensor_find(opened, wholes[0].keys[0], strlen(wholes[0].keys[0]));
    CHECK_OK(reshard_read_into(opened, (size_t)tensor, NULL, NULL, NULL, stored, sizeof(values) / 2, &err));
    for (size_t i = 0; i < 96 * 40; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        assert_int_equal(stored[i], bits >> 16);
    }
    free(stored);
    reshard_close(opened);
}

TEST(names_change_and_what_is_left_out_is_not_missed)
{
    const char *const exclude[] = { "*cube", NULL };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer *writer;
    reshard_checkpoint *opened;
    char path[128];
    snprintf(path, sizeof(path), "%s/target.safetensors", test_folder);
    options.to = "safetensors";
    options.exclude = exclude;
    options.strip_prefix = "model.";
    options.checksum = "crc32c";
    wholes_make();
    CHECK_OK(writer_open(path, &options, &writer));
    for (size_t i = 0; i < TENSORS; i++)
        if (i != 4)
            CHECK_OK(put_box(writer, i, NULL, NULL));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    assert_int_equal(reshard_tensor_count(opened), TENSORS - 1);
    assert_true(reshard_tensor_find(opened, "embed_tokens.weight", 19) >= 0);
    CHECK_OK(reshard_verify(opened, NULL, NULL, NULL, NULL, &err));
    reshard_close(opened);
}

/* Writes vectors of 8 of these names, which hold 1, like another checkpoint. */
static void vectors_write(const char *const *keys, size_t count, const char *like, const char *path)
{
    static const int64_t shape[] = { 8 };
    static const float ones[] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    reshard_writer_tensor tensors[2];
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_writer *writer;
    options.to = "torch";
    options.like = like;
    options.missing = like ? "3" : NULL;
    for (size_t i = 0; i < count; i++)
        tensors[i] = (reshard_writer_tensor){ { keys[i], strlen(keys[i]) }, "F32", 1, shape };
    input.tensors = tensors;
    input.tensor_count = count;
    piece.data = ones;
    piece.size = sizeof(ones);
    CHECK_OK(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err));
    for (; piece.tensor < count; piece.tensor++)
        CHECK_OK(reshard_writer_put(writer, &piece, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
}

TEST(what_only_the_reference_has_is_filled)
{
    static const char *const keys[] = { "w", "more" };
    char like[128], path[128];
    reshard_checkpoint *opened;
    float found[8];
    snprintf(like, sizeof(like), "%s/like.pt", test_folder);
    snprintf(path, sizeof(path), "%s/target.pt", test_folder);
    vectors_write(keys, 2, NULL, like);
    vectors_write(keys, 1, like, path);
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    CHECK_OK(reshard_verify(opened, NULL, NULL, NULL, NULL, &err));
    for (size_t key = 0; key < 2; key++) {
        int64_t tensor = reshard_tensor_find(opened, keys[key], strlen(keys[key]));
        CHECK_OK(reshard_read_into(opened, (size_t)tensor, NULL, NULL, NULL, found, sizeof(found), &err));
        assert_true(found[0] == (key ? 3.0F : 1.0F) && found[7] == found[0]);
    }
    reshard_close(opened);
}

/* ---- memory ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LARGE_ROWS 65536
#define LARGE_COLUMNS 1024
#define LARGE_PIECE_ROWS 512 /* 1 MiB */

static int zeros_read(void *out, uint64_t offset, size_t size, void *context)
{
    (void)offset;
    (void)context;
    memset(out, 0, size);
    return 0;
}

static int64_t resident_most(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
}

/* Two tensors of 128 MiB: one in pieces of 1 MiB, out of order, one at once by callback, cast. */
TEST(memory_does_not_grow_with_the_tensors)
{
    static const int64_t shape[] = { LARGE_ROWS, LARGE_COLUMNS };
    static uint16_t rows[LARGE_PIECE_ROWS * LARGE_COLUMNS];
    const reshard_writer_tensor tensors[] = { { { "a", 1 }, "BF16", 2, shape }, { { "b", 1 }, "BF16", 2, shape } };
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_writer *writer;
    char path[128];
    int64_t before = resident_most();
    snprintf(path, sizeof(path), "%s/target.pt", test_folder);
    options.to = "torch";
    options.no_sync = 1;
    input.tensors = tensors;
    input.tensor_count = 2;
    CHECK_OK(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err));
    for (int64_t i = 0; i < LARGE_ROWS / LARGE_PIECE_ROWS; i++) {
        const int64_t start[] = { i * 37 % (LARGE_ROWS / LARGE_PIECE_ROWS) * LARGE_PIECE_ROWS, 0 },
                      extent[] = { LARGE_PIECE_ROWS, LARGE_COLUMNS };
        piece.start = start;
        piece.extent = extent;
        piece.data = rows;
        piece.size = sizeof(rows);
        CHECK_OK(reshard_writer_put(writer, &piece, &err));
    }
    piece = (reshard_piece)RESHARD_PIECE_INIT;
    piece.tensor = 1;
    piece.dtype = "F32";
    piece.read = zeros_read;
    CHECK_OK(reshard_writer_put(writer, &piece, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    assert_in_range(resident_most() - before, 0, 64);
}
#endif

TEST(null_and_what_cannot_be_is_refused)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    const reshard_writer_tensor twice[] = { { { "w", 1 }, "F32", 0, NULL }, { { "w", 1 }, "F32", 0, NULL } };
    reshard_writer *writer;
    char path[128];
    snprintf(path, sizeof(path), "%s/target", test_folder);
    options.to = "torch-dcp";
    assert_int_equal(reshard_writer_open(NULL, path, &options, NULL, NULL, &writer, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_writer_open(&input, NULL, &options, NULL, NULL, &writer, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_writer_open(&input, path, NULL, NULL, NULL, &writer, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_writer_put(NULL, NULL, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_writer_finish(NULL, &err), RESHARD_ERR_USAGE);
    input.tensors = twice;
    input.tensor_count = 2;
    assert_int_equal(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'w'"));
    input.tensor_count = 1;
    options.verify = 1;
    assert_int_equal(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err), RESHARD_ERR_USAGE);
    options.verify = 0;
    options.resume = 1;
    assert_int_equal(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err), RESHARD_ERR_USAGE);
    assert_null(writer);
    assert_int_equal(entries_in_work(), 0);
}

#define IN_WORK(test) cmocka_unit_test_setup_teardown(test, test_folder_make, work_remove)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_WORK(what_is_fed_makes_the_files_of_a_conversion),
        IN_WORK(threads_feed_one_writer),
        IN_WORK(processes_write_one_target_without_a_word_between_them),
        IN_WORK(what_no_part_has_written_is_named),
        IN_WORK(doubled_and_missing_elements_are_named),
        IN_WORK(what_is_not_finished_leaves_nothing),
        IN_WORK(pieces_that_do_not_fit_are_refused),
        IN_WORK(a_callback_that_fails_ends_the_writer),
        IN_WORK(values_of_another_type_are_cast),
        IN_WORK(names_change_and_what_is_left_out_is_not_missed),
        IN_WORK(what_only_the_reference_has_is_filled),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which have memory of their own */
        IN_WORK(memory_does_not_grow_with_the_tensors),
#endif
        IN_WORK(null_and_what_cannot_be_is_refused),
    };
    const struct CMUnitTest threads[] = { IN_WORK(threads_feed_one_writer) };
    if (argc > 1 && strcmp(argv[1], "threads") == 0)
        return cmocka_run_group_tests_name("writing by threads", threads, NULL, NULL);
    return cmocka_run_group_tests_name("writer", tests, NULL, NULL);
}
