/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_blob.h"

#include "base/cursor.h"

static reshard_error err;

/* The offsets of an archive that torch 2.14 wrote: docs/formats/torch.md. */
TEST(members_lie_where_torch_puts_them)
{
    static const struct {
        const char *name;
        uint64_t header, payload, bytes;
    } expected[] = {
        { "x/data.pkl", 0, 64, 418 },       { "x/.format_version", 498, 576, 1 }, { "x/.storage_alignment", 593, 704, 2 },
        { "x/byteorder", 722, 768, 6 },     { "x/data/0", 790, 832, 24 },         { "x/data/1", 872, 960, 6 },
        { "x/data/2", 982, 1024, 0 },       { "x/data/3", 1024, 1088, 4 },        { "x/version", 1108, 1152, 2 },
        { "x/.data/serialization_id", 1170, 1280, 40 },
    };
    const uint64_t sizes[] = { 24, 6, 0, 4 };
    struct buffer pickle = { 0 };
    struct torch_frame frame;
    buffer_append_fill(&pickle, '.', 418);
    CHECK_OK(torch_frame_plan("x", &pickle, sizes, 4, 64, &frame, &err));
    assert_int_equal(frame.member_count, sizeof(expected) / sizeof(expected[0]));
    for (uint32_t i = 0; i < frame.member_count; i++) {
        assert_true(str_is(frame.members[i].name, expected[i].name));
        assert_int_equal(frame.members[i].header_offset, expected[i].header);
        assert_int_equal(frame.members[i].payload_offset, expected[i].payload);
        assert_int_equal(frame.members[i].bytes, expected[i].bytes);
    }
    assert_int_equal(frame.directory_offset, 1336);
    assert_int_equal(frame.bytes, 1336 + 583 + 56 + 20 + 22);
    torch_frame_release(&frame);
}

TEST(what_is_written_reads_back)
{
    static const struct {
        enum dtype dtype;
        int rank;
        int64_t shape[5];
    } cases[] = {
        { DTYPE_F32, 2, { 3, 2 } },    { DTYPE_BF16, 1, { 13 } },  { DTYPE_I64, 0, { 0 } },          { DTYPE_U16, 3, { 2, 3, 4 } },
        { DTYPE_F8_E4M3, 1, { 5 } },   { DTYPE_F32, 2, { 0, 3 } }, { DTYPE_C64, 4, { 1, 2, 1, 2 } }, { DTYPE_BOOL, 5, { 1, 1, 1, 1, 3 } },
        { DTYPE_COMPLEX32, 1, { 3 } }, { DTYPE_F4_X2, 1, { 7 } },  { DTYPE_U64, 1, { 300 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer blob = { 0 };
        struct torch_archive archive;
        blob_tensor(cases[i].dtype, cases[i].rank, cases[i].shape, &blob);
        struct reader reader = reader_over_memory(blob.data, blob.size, "blob");
        CHECK_OK(torch_save_open(&reader, &limits_default, -1, &archive, &err));
        assert_int_equal(archive.tensor_count, 1);
        assert_int_equal(archive.graph.root->tensor, 1);
        const struct torch_tensor *tensor = &archive.tensors[0];
        assert_int_equal(tensor->dtype, cases[i].dtype);
        assert_int_equal(tensor->rank, cases[i].rank);
        for (int axis = 0; axis < tensor->rank; axis++)
            assert_int_equal(tensor->shape[axis], cases[i].shape[axis]);
        const struct torch_storage *storage = &archive.storages[0];
        assert_int_equal(storage->offset % 64, 0);
        assert_int_equal(storage->crc32, crc32_zip(0, blob.data + storage->offset, storage->bytes));
        assert_int_equal(archive.weights_only_blocker.size, 0);
        assert_int_equal(archive.unknown_global_count, 0);
        assert_int_equal(archive.alignment, 64);
        assert_true(str_is(archive.top, "archive"));
        torch_save_release(&archive);
        buffer_release(&blob);
    }
}

TEST(equal_content_gives_equal_bytes)
{
    struct buffer a = { 0 }, b = { 0 };
    blob_tensor(DTYPE_F32, 1, (int64_t[]){ 100 }, &a);
    blob_tensor(DTYPE_F32, 1, (int64_t[]){ 100 }, &b);
    assert_true(str_equal(buffer_str(&a), buffer_str(&b)));
    buffer_release(&a);
    buffer_release(&b);
}

TEST(every_alignment_holds_for_every_payload)
{
    static const uint32_t alignments[] = { 1, 2, 64, 4096, 1 << 15 };
    for (size_t i = 0; i < sizeof(alignments) / sizeof(alignments[0]); i++) {
        struct buffer pickle = { 0 }, blob = { 0 };
        struct torch_archive archive;
        pickle_put_begin(&pickle);
        pickle_put_opcode(&pickle, PICKLE_EMPTY_LIST);
        pickle_put_opcode(&pickle, PICKLE_MARK);
        torch_save_put_tensor(&pickle, DTYPE_U8, 1, (int64_t[]){ 3 }, NULL, 0, "0", 3, false);
        torch_save_put_tensor(&pickle, DTYPE_U8, 1, (int64_t[]){ 2 }, NULL, 1, "1", 4, true);
        pickle_put_opcode(&pickle, PICKLE_APPENDS);
        pickle_put_end(&pickle);
        blob_make("a b", &pickle, (struct blob_storage[]){ { "abc", 3 }, { "defg", 4 } }, 2, alignments[i], &blob);
        struct reader reader = reader_over_memory(blob.data, blob.size, "blob");
        CHECK_OK(torch_save_open(&reader, &limits_default, -1, &archive, &err));
        assert_int_equal(archive.alignment, alignments[i]);
        for (uint32_t s = 0; s < 2; s++)
            assert_int_equal(archive.storages[s].offset % alignments[i], 0);
        assert_memory_equal(blob.data + archive.storages[1].offset, "defg", 4);
        assert_int_equal(archive.tensors[1].offset_bytes, 1);
        assert_true(archive.tensors[1].flags & TORCH_TENSOR_REQUIRES_GRAD);
        torch_save_release(&archive);
        buffer_release(&blob);
    }
}

/* Offsets ascend, and no two calls touch the same byte or a payload. */
struct order {
    uint64_t end;
    const struct torch_frame *frame;
};

static reshard_status check_order(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *ignored)
{
    struct order *order = context;
    (void)bytes, (void)ignored;
    assert_true(offset >= order->end);
    for (uint32_t i = 0; i < order->frame->storage_count; i++) {
        const struct zip_plan_member *member = &order->frame->members[order->frame->first_storage + i];
        assert_true(member->bytes == 0 || offset >= member->payload_offset + member->bytes || offset + size <= member->payload_offset);
    }
    order->end = offset + size;
    return RESHARD_OK;
}

TEST(the_frame_leaves_payloads_alone_even_beyond_4_gib)
{
    const uint64_t sizes[] = { UINT64_C(5) << 30, 0, 7, UINT32_MAX, 1 };
    const uint32_t crcs[] = { 1, 0, 2, 3, 4 };
    struct buffer pickle = { 0 };
    struct torch_frame frame;
    buffer_append_text(&pickle, "\x80\x02N.");
    CHECK_OK(torch_frame_plan("big", &pickle, sizes, 5, 64, &frame, &err));
    struct order order = { 0, &frame };
    CHECK_OK(torch_frame_write(&frame, crcs, check_order, &order, &err));
    assert_int_equal(order.end, frame.bytes);
    torch_frame_release(&frame);
}

TEST(types_that_torch_lacks_cannot_be_held)
{
    assert_true(torch_save_can_hold(DTYPE_BF16));
    assert_true(torch_save_can_hold(DTYPE_U32));
    assert_false(torch_save_can_hold(DTYPE_F4));
    assert_false(torch_save_can_hold(DTYPE_F6_E2M3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_lie_where_torch_puts_them),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(equal_content_gives_equal_bytes),
        cmocka_unit_test(every_alignment_holds_for_every_payload),
        cmocka_unit_test(the_frame_leaves_payloads_alone_even_beyond_4_gib),
        cmocka_unit_test(types_that_torch_lacks_cannot_be_held),
    };
    return cmocka_run_group_tests_name("torch_save_frame", tests, NULL, NULL);
}
