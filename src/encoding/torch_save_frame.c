/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/torch_save.h"

#include "base/crc32.h"
#include "base/hash.h"
#include "encoding/pickle_write.h"

#include <inttypes.h>
#include <stdio.h>

#define MEMBERS_BEFORE_STORAGES 4 /* data.pkl, .format_version, .storage_alignment, byteorder */
#define MEMBERS_AFTER_STORAGES 2  /* version, .data/serialization_id */
#define SERIALIZATION_ID_BYTES 40

/* Content of the small members around the storages. */
struct frame_text {
    char alignment[16];
    char serialization_id[SERIALIZATION_ID_BYTES + 1];
};

bool torch_save_can_hold(enum dtype dtype)
{
    return dtype_info(dtype)->torch_name[0] != '\0';
}

void torch_save_put_storage(struct buffer *out, const char *class_module, const char *class_name, const char *storage_key, uint64_t numel)
{
    pickle_put_opcode(out, PICKLE_MARK);
    pickle_put_str(out, STR("storage"));
    pickle_put_global(out, class_module, class_name);
    pickle_put_str(out, str_of(storage_key));
    pickle_put_str(out, STR("cpu"));
    pickle_put_int(out, (int64_t)numel);
    pickle_put_opcode(out, PICKLE_TUPLE);
    pickle_put_opcode(out, PICKLE_BINPERSID);
}

void torch_save_put_tensor_args(struct buffer *out, enum dtype dtype, int rank, const int64_t *shape, const int64_t *strides,
                                uint64_t offset_elements, const char *storage_key, uint64_t storage_bytes, bool requires_grad)
{
    const struct dtype_info *info = dtype_info(dtype);
    bool is_typed = info->torch_storage[0] != '\0';
    int64_t row_major[RANK_MAX];
    if (!strides) {
        strides_row_major(rank, shape, row_major);
        strides = row_major;
    }
    pickle_put_opcode(out, PICKLE_MARK);
    if (is_typed)
        torch_save_put_storage(out, "torch", info->torch_storage, storage_key, storage_bytes / dtype_element_bytes(dtype));
    else
        torch_save_put_storage(out, "torch.storage", "UntypedStorage", storage_key, storage_bytes);
    pickle_put_int(out, (int64_t)offset_elements);
    pickle_put_int_tuple(out, shape, (size_t)rank);
    pickle_put_int_tuple(out, strides, (size_t)rank);
    pickle_put_bool(out, requires_grad);
    pickle_put_global(out, "collections", "OrderedDict");
    pickle_put_opcode(out, PICKLE_EMPTY_TUPLE);
    pickle_put_opcode(out, PICKLE_REDUCE);
    if (!is_typed)
        pickle_put_global(out, "torch", info->torch_name);
    pickle_put_opcode(out, PICKLE_TUPLE);
}

void torch_save_put_tensor(struct buffer *out, enum dtype dtype, int rank, const int64_t *shape, const int64_t *strides,
                           uint64_t offset_elements, const char *storage_key, uint64_t storage_bytes, bool requires_grad)
{
    bool is_typed = dtype_info(dtype)->torch_storage[0] != '\0';
    pickle_put_global(out, "torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    torch_save_put_tensor_args(out, dtype, rank, shape, strides, offset_elements, storage_key, storage_bytes, requires_grad);
    pickle_put_opcode(out, PICKLE_REDUCE);
}

static bool name_member(struct torch_frame *frame, uint32_t index, uint64_t bytes, const char *top, const char *name)
{
    char *full = arena_printf(&frame->arena, "%s/%s", top, name);
    if (!full)
        return false;
    frame->members[index].name = str_of(full);
    frame->members[index].bytes = bytes;
    return true;
}

static bool name_members(struct torch_frame *frame, const char *top, const uint64_t *storage_bytes)
{
    struct frame_text text;
    int alignment_bytes = snprintf(text.alignment, sizeof(text.alignment), "%" PRIu32, frame->alignment);
    bool good = name_member(frame, 0, frame->pickle.size, top, "data.pkl") && name_member(frame, 1, 1, top, ".format_version") &&
                name_member(frame, 2, (uint64_t)alignment_bytes, top, ".storage_alignment") && name_member(frame, 3, 6, top, "byteorder");
    for (uint32_t i = 0; good && i < frame->storage_count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "data/%" PRIu32, i);
        good = name_member(frame, frame->first_storage + i, storage_bytes[i], top, name);
    }
    uint32_t last = frame->first_storage + frame->storage_count;
    return good && name_member(frame, last, 2, top, "version") &&
           name_member(frame, last + 1, SERIALIZATION_ID_BYTES, top, ".data/serialization_id");
}

reshard_status torch_frame_plan(const char *top, struct buffer *pickle, const uint64_t *storage_bytes, uint32_t storage_count,
                                uint32_t alignment, struct torch_frame *out, reshard_error *err)
{
    struct torch_frame frame = { .alignment = alignment, .first_storage = MEMBERS_BEFORE_STORAGES, .storage_count = storage_count };
    frame.pickle = *pickle;
    *pickle = (struct buffer){ 0 };

    reshard_status status = RESHARD_OK;
    if (frame.pickle.failed || storage_count > UINT32_MAX - MEMBERS_BEFORE_STORAGES - MEMBERS_AFTER_STORAGES) {
        status = error_set_memory(err);
        goto out;
    }
    frame.member_count = storage_count + MEMBERS_BEFORE_STORAGES + MEMBERS_AFTER_STORAGES;
    frame.members = arena_zalloc(&frame.arena, (size_t)frame.member_count * sizeof(*frame.members));
    if (!frame.members || !name_members(&frame, top, storage_bytes)) {
        status = error_set_memory(err);
        goto out;
    }
    status = zip_plan(frame.members, frame.member_count, alignment, &frame.directory_offset, &frame.bytes, err);

out:
    if (status) {
        torch_frame_release(&frame);
        return status;
    }
    *out = frame;
    return RESHARD_OK;
}

/* 20 digits for the names and 20 for the contents, so that equal content gives equal files. */
static void make_serialization_id(const struct torch_frame *frame, char out[SERIALIZATION_ID_BYTES + 1])
{
    uint64_t names = 0, contents = 0;
    for (uint32_t i = 0; i < frame->member_count; i++) {
        const struct zip_plan_member *member = &frame->members[i];
        names = hash64(member->name.data, member->name.size, names);
        if (i + 1 < frame->member_count) {
            uint64_t content[2] = { member->crc32, member->bytes };
            contents = hash64(content, sizeof(content), contents);
        }
    }
    snprintf(out, SERIALIZATION_ID_BYTES + 1, "%020" PRIu64 "%020" PRIu64, names, contents);
}

static uint32_t crc_of(struct str bytes)
{
    return crc32_zip(0, bytes.data, bytes.size);
}

/* Content of a member that is not a storage. */
static struct str member_content(const struct torch_frame *frame, uint32_t index, const struct frame_text *text)
{
    uint32_t last = frame->first_storage + frame->storage_count;
    switch (index) {
    case 0: return buffer_str(&frame->pickle);
    case 1: return STR("1");
    case 2: return str_of(text->alignment);
    case 3: return STR("little");
    default: return index == last ? STR("3\n") : (struct str){ text->serialization_id, SERIALIZATION_ID_BYTES };
    }
}

static void set_checksums(struct torch_frame *frame, const uint32_t *storage_crcs, struct frame_text *text)
{
    snprintf(text->alignment, sizeof(text->alignment), "%" PRIu32, frame->alignment);
    for (uint32_t i = 0; i < frame->storage_count; i++)
        frame->members[frame->first_storage + i].crc32 = storage_crcs[i];
    uint32_t last = frame->member_count - 1;
    for (uint32_t i = 0; i < last; i++)
        if (i < frame->first_storage || i >= frame->first_storage + frame->storage_count)
            frame->members[i].crc32 = crc_of(member_content(frame, i, text));
    make_serialization_id(frame, text->serialization_id);
    frame->members[last].crc32 = crc_of(member_content(frame, last, text));
}

/* Hands over what has gathered, so that the bytes between two payloads leave in one call. */
static reshard_status torch_save_frame_flush(struct buffer *pending, uint64_t *offset, torch_frame_sink sink, void *context,
                                             reshard_error *err)
{
    if (pending->failed)
        return error_set_memory(err);
    if (pending->size == 0)
        return RESHARD_OK;
    reshard_status status = sink(context, *offset, pending->data, pending->size, err);
    *offset += pending->size;
    buffer_clear(pending);
    return status;
}

reshard_status torch_frame_write(struct torch_frame *frame, const uint32_t *storage_crcs, torch_frame_sink sink, void *context,
                                 reshard_error *err)
{
    struct frame_text text;
    struct buffer pending = { 0 };
    uint64_t offset = 0;
    reshard_status status = RESHARD_OK;
    set_checksums(frame, storage_crcs, &text);
    for (uint32_t i = 0; !status && i < frame->member_count; i++) {
        const struct zip_plan_member *member = &frame->members[i];
        zip_write_header(member, frame->alignment, &pending);
        bool is_storage = i >= frame->first_storage && i < frame->first_storage + frame->storage_count;
        if (is_storage && member->bytes > 0) {
            status = torch_save_frame_flush(&pending, &offset, sink, context, err);
            offset = member->payload_offset + member->bytes;
        } else if (!is_storage) {
            buffer_append_str(&pending, member_content(frame, i, &text));
        }
        zip_write_descriptor(member, &pending);
        if (!status && pending.size >= (1 << 20))
            status = torch_save_frame_flush(&pending, &offset, sink, context, err);
    }
    if (!status) {
        zip_write_directory(frame->members, frame->member_count, frame->directory_offset, &pending);
        status = torch_save_frame_flush(&pending, &offset, sink, context, err);
    }
    buffer_release(&pending);
    return status;
}

void torch_frame_release(struct torch_frame *frame)
{
    buffer_release(&frame->pickle);
    arena_release(&frame->arena);
    *frame = (struct torch_frame){ 0 };
}
