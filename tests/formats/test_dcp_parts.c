/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "encoding/compress.h"
#include "formats/dcp/dcp_source.h"
#include "formats/mcore/mcore_data.h"

TEST(the_rank_of_a_data_file_is_the_number_before_the_last)
{
    static const struct {
        const char *why, *name;
        bool is_data;
        uint64_t rank;
    } cases[] = {
        { "plain", "__0_0.distcp", true, 0 },
        { "two digits", "__12_3.distcp", true, 12 },
        { "behind a separation hint", "typed__2_1.distcp", true, 2 },
        { "in a sub-directory", "data/__3_0.distcp", true, 3 },
        { "leading zero", "__01_0.distcp", false, 0 },
        { "no number", "__0_.distcp", false, 0 },
        { "no rank", "___0.distcp", false, 0 },
        { "one underscore", "_0_0.distcp", false, 0 },
        { "Paddle's", "0_0.distcp", false, 0 },
        { "only the suffix", ".distcp", false, 0 },
        { "other suffix", "__0_0.distcp.tmp", false, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t rank = 99;
        bool is_data = dcp_file_rank(str_of(cases[i].name), &rank);
        if (is_data != cases[i].is_data || (is_data && rank != cases[i].rank))
            fail_msg("%s: %s gives %d, rank %d", cases[i].why, cases[i].name, is_data, (int)rank);
    }
}

/* Marks the elements of a chunk in the flat order of the real tensor; the value is the element of the stored cell grid. */
static void mark(const struct catalog *catalog, const struct catalog_chunk *chunk, int64_t stored_start, int64_t *whole)
{
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    const int64_t *shape = catalog_vector_at(catalog, tensor->shape), *start = catalog_vector_at(catalog, chunk->start),
                  *extent = catalog_vector_at(catalog, chunk->extent);
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    int64_t strides[RANK_MAX], begin = 0, count = box_volume(tensor->rank, extent);
    strides_row_major(tensor->rank, shape, strides);
    if (layout && layout->flat_count >= 0) {
        begin = layout->flat_begin;
        count = layout->flat_count;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = begin + i, at = 0;
        for (int axis = tensor->rank - 1; axis >= 0; axis--) {
            at += (start[axis] + rest % extent[axis]) * strides[axis];
            rest /= extent[axis];
        }
        int64_t element = chunk->driver_data ? (int64_t)chunk->driver_data - 1 + i : i;
        assert_int_equal(whole[at], -1);
        whole[at] = stored_start + element;
    }
}

/* Cuts every cell of a grid into runs of `step` elements, and compares with the definition. */
static void check_flattened(const struct mcore_reshape *reshape, const int64_t *grid, int64_t step)
{
    reshard_error err = { 0 };
    int rank = reshape->rank;
    struct dcp_form stored = { .rank = rank + 1 };
    int64_t cell[RANK_MAX], cells = 1, cell_volume = 1, volume = 1;
    for (int axis = 0; axis < rank; axis++) {
        stored.size[axis] = grid[axis];
        cell[axis] = reshape->shape[axis] / grid[axis];
        cells *= grid[axis];
        cell_volume *= cell[axis];
        volume *= reshape->shape[axis];
    }
    stored.size[rank] = cell_volume;
    struct catalog *catalog = catalog_new("test");
    int64_t *whole = malloc((size_t)volume * sizeof(*whole));
    uint32_t tensor, object;
    memset(whole, 0xFF, (size_t)volume * sizeof(*whole));
    CHECK_OK(catalog_add_tensor(catalog, STR("t"), DTYPE_F32, reshape->is_flat ? 1 : rank, reshape->is_flat ? &volume : reshape->shape,
                                &tensor, &err));
    CHECK_OK(catalog_add_object(catalog, STR("f"), 1 << 20, &object, &err));
    for (int64_t c = 0; c < cells; c++) {
        int64_t rest = c;
        for (int axis = rank - 1; axis >= 0; axis--) {
            stored.start[axis] = rest % grid[axis];
            stored.extent[axis] = 1;
            rest /= grid[axis];
        }
        for (int64_t at = 0; at < cell_volume; at += step) {
            struct catalog_chunk like = { .object = object, .bytes = 1024 };
            uint32_t before = catalog->chunk_count;
            stored.start[rank] = at;
            stored.extent[rank] = cell_volume - at < step ? cell_volume - at : step;
            CHECK_OK(mcore_add_flattened(catalog, tensor, reshape, &stored, &like, &err));
            for (uint32_t i = before; i < catalog->chunk_count; i++)
                mark(catalog, &catalog->chunks[i], c * cell_volume + at, whole);
        }
    }
    for (int64_t i = 0; i < volume; i++) {
        int64_t rest = i, index[RANK_MAX], c = 0, inside = 0;
        for (int axis = rank - 1; axis >= 0; axis--) {
            index[axis] = rest % reshape->shape[axis];
            rest /= reshape->shape[axis];
        }
        for (int axis = 0; axis < rank; axis++) {
            c = c * grid[axis] + index[axis] / cell[axis];
            inside = inside * cell[axis] + index[axis] % cell[axis];
        }
        assert_int_equal(whole[i], c * cell_volume + inside);
    }
    CHECK_OK(catalog_seal(catalog, false, &err));
    free(whole);
    catalog_free(catalog);
}

TEST(a_flattened_piece_is_a_run_of_its_cell)
{
    static const struct {
        const char *why;
        int rank;
        int64_t shape[3], grid[3];
    } cases[] = {
        { "one axis", 1, { 24 }, { 2 } },
        { "rows", 2, { 6, 5 }, { 2, 1 } },
        { "columns", 2, { 3, 8 }, { 1, 2 } },
        { "the specification's example", 2, { 4, 6 }, { 2, 3 } },
        { "a cube", 3, { 4, 3, 10 }, { 2, 1, 2 } },
        { "cells of one element", 2, { 2, 3 }, { 2, 3 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mcore_reshape reshape = { .rank = cases[i].rank };
        memcpy(reshape.shape, cases[i].shape, sizeof(cases[i].shape));
        for (int64_t step = 1; step <= 12; step++) {
            reshape.is_flat = false;
            check_flattened(&reshape, cases[i].grid, step);
            reshape.is_flat = true;
            check_flattened(&reshape, cases[i].grid, step);
        }
    }
}

TEST(what_is_no_piece_of_a_cell_is_refused)
{
    static const struct {
        const char *why;
        struct dcp_form stored;
    } cases[] = {
        { "too few axes", { 2, { 2, 12 }, { 0, 0 }, { 1, 3 } } },
        { "does not divide", { 3, { 3, 1, 8 }, { 0, 0, 0 }, { 1, 1, 8 } } },
        { "no cells", { 3, { 0, 1, 8 }, { 0, 0, 0 }, { 1, 1, 8 } } },
        { "two cells", { 3, { 2, 1, 12 }, { 0, 0, 0 }, { 2, 1, 12 } } },
        { "outside the grid", { 3, { 2, 1, 12 }, { 2, 0, 0 }, { 1, 1, 12 } } },
        { "another cell size", { 3, { 2, 1, 11 }, { 0, 0, 0 }, { 1, 1, 11 } } },
        { "beyond the cell", { 3, { 2, 1, 12 }, { 0, 0, 8 }, { 1, 1, 5 } } },
        { "negative", { 3, { 2, 1, 12 }, { 0, 0, -1 }, { 1, 1, 5 } } },
    };
    struct mcore_reshape reshape = { .rank = 2, .shape = { 4, 6 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct catalog *catalog = catalog_new("test");
        struct catalog_chunk like = { .bytes = 1024 };
        uint32_t tensor;
        CHECK_OK(catalog_add_tensor(catalog, STR("t"), DTYPE_F32, 2, reshape.shape, &tensor, &err));
        reshard_status status = mcore_add_flattened(catalog, tensor, &reshape, &cases[i].stored, &like, &err);
        if (status != RESHARD_ERR_FORMAT)
            fail_msg("%s: status %d", cases[i].why, status);
        if (strncmp(err.message, "tensor 't': ", 12) != 0 || strstr(err.message + 12, "tensor 't'"))
            fail_msg("%s: '%s' does not name the tensor once", cases[i].why, err.message);
        catalog_free(catalog);
    }
}

/* n rows over dp 4, tp 2, with the boxes that torch writes for n = 9, and what the blobs hold. */
TEST(uneven_boxes_of_fsdp_over_tp_are_repaired_if_one_mesh_explains_them)
{
    static const struct {
        const char *why;
        uint32_t ranks;
        int64_t rows[8];
        bool repaired;
    } cases[] = {
        { "as torch stores it", 8, { 2, 1, 2, 1, 1, 1, 0, 1 }, true },
        { "a blob with a row too many", 8, { 2, 1, 2, 1, 1, 1, 1, 1 }, false },
        { "a row lost", 8, { 2, 1, 2, 1, 1, 1, 0, 0 }, false },
        { "seven ranks have no such mesh", 7, { 2, 1, 2, 1, 1, 1, 0, 1 }, false },
    };
    static const int64_t starts[8] = { 0, 5, 2, 6, 4, 7, 8, 9 }, counts[8] = { 2, 1, 2, 1, 1, 1, 1, 0 };
    static const int64_t true_starts[8] = { 0, 5, 2, 6, 4, 7, 5, 8 };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct source source = { .catalog = catalog_new("test") };
        uint32_t tensor, object;
        bool repaired = false;
        CHECK_OK(catalog_add_tensor(source.catalog, STR("w"), DTYPE_F32, 2, (int64_t[]){ 9, 3 }, &tensor, &err));
        CHECK_OK(catalog_add_object(source.catalog, STR("f"), 4096, &object, &err));
        for (int rank = 0; rank < 8; rank++) {
            struct catalog_chunk *chunk;
            CHECK_OK(catalog_add_chunk(source.catalog, tensor, (int64_t[]){ starts[rank], 0 }, (int64_t[]){ counts[rank], 3 }, object, 0,
                                       12, &chunk, &err));
            chunk->writer = (uint16_t)rank;
        }
        CHECK_OK(catalog_seal(source.catalog, false, &err));
        source.catalog->ranks = cases[i].ranks;
        CHECK_OK(dcp_repair_rows(&source, tensor, cases[i].rows, &repaired, &err));
        if (repaired != cases[i].repaired)
            fail_msg("%s: repaired %d", cases[i].why, repaired);
        for (int rank = 0; repaired && rank < 8; rank++) {
            const struct catalog_chunk *chunk = &source.catalog->chunks[rank];
            assert_int_equal(catalog_vector_at(source.catalog, chunk->start)[0], true_starts[rank]);
            assert_int_equal(catalog_vector_at(source.catalog, chunk->extent)[0], cases[i].rows[rank]);
        }
        assert_int_equal(source.catalog->warning_count, repaired);
        catalog_free(source.catalog);
    }
}

/* A compressed blob of which neither the head nor the tail holds the middle: any range reads as if it were not compressed. */
TEST(a_compressed_blob_is_read_at_any_place)
{
    enum { BYTES = 300000 };
    struct buffer plain = { 0 }, packed = { 0 };
    uint64_t seed = 5;
    reshard_error err = { 0 };
    for (int i = 0; i < BYTES; i++)
        buffer_append_byte(&plain, (uint8_t)(test_random(&seed) % 5));
    buffer_append_text(&packed, "before");
    CHECK_OK(encode_all(CODEC_ZSTD, 1, plain.data, plain.size, &packed, &err));
    uint64_t stored = packed.size - strlen("before");
    buffer_append_text(&packed, "behind");
    struct reader file = reader_over_memory(packed.data, packed.size, "a blob"), reader;
    struct dcp_decoded *decoded;
    CHECK_OK(dcp_decoded_open(CODEC_ZSTD, &file, strlen("before"), stored, &limits_default, &decoded, &reader, &err));
    assert_int_equal(reader.size, BYTES);
    static const struct {
        uint64_t offset;
        size_t size;
    } ranges[] = { { 0, 10 }, { 65530, 6 }, { 65530, 7 }, { 65536, 65536 }, { 150000, 1 }, { 100000, 0 }, { 120000, 100000 },
                   { BYTES - 65536, 65536 }, { BYTES - 1, 1 }, { 0, BYTES } };
    uint8_t *out = malloc(BYTES);
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        CHECK_OK(reader_read(&reader, ranges[i].offset, out, ranges[i].size, &err));
        assert_memory_equal(out, plain.data + ranges[i].offset, ranges[i].size);
    }
    CHECK_FAILS(reader_read(&reader, BYTES - 1, out, 2, &err), RESHARD_ERR_FORMAT);
    /* Somebody changes the file in the meantime. */
    memset(packed.data + packed.size / 3, 0, 64);
    reshard_status status = reader_read(&reader, 150000, out, 100000, &err);
    assert_true(status == RESHARD_ERR_FORMAT || memcmp(out, plain.data + 150000, 100000) != 0);
    dcp_decoded_free(decoded);
    CHECK_FAILS(dcp_decoded_open(CODEC_ZSTD, &file, strlen("before"), stored / 2, &limits_default, &decoded, &reader, &err),
                RESHARD_ERR_FORMAT);
    free(out);
    buffer_release(&packed);
    buffer_release(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_compressed_blob_is_read_at_any_place),
        cmocka_unit_test(the_rank_of_a_data_file_is_the_number_before_the_last),
        cmocka_unit_test(a_flattened_piece_is_a_run_of_its_cell),
        cmocka_unit_test(what_is_no_piece_of_a_cell_is_refused),
        cmocka_unit_test(uneven_boxes_of_fsdp_over_tp_are_repaired_if_one_mesh_explains_them),
    };
    return cmocka_run_group_tests_name("dcp_parts", tests, NULL, NULL);
}
