/* SPDX-License-Identifier: Apache-2.0 */
/* Torch files opened as checkpoints, and written; real ones run in the fixture tests. */
#include "../encoding/torch_blob.h"
#include "memory_checkpoint.h"

#include "fail_malloc.h"
#include "formats/torch/fsdp_flat.h"
#include "formats/torch/fsdp_groups.h"
#include "formats/torch/torch.h"

static reshard_error err;

static void put_text(struct buffer *out, const char *text, size_t size)
{
    assert_true(buffer_append(out, text, size));
}

#define PUT(out, literal) put_text(out, literal, sizeof(literal) - 1)

/* {'w': 4x2 of storage 0, 'tied': the same, 't': its transpose, 'part': row 1, 'own': storage 1, 'step': 3, 'obj': Namespace(s=storage 2)}
 */
static void make_file(struct buffer *out)
{
    static const float numbers[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    struct buffer pickle = { 0 };
    pickle_put_begin(&pickle);
    pickle_put_opcode(&pickle, PICKLE_EMPTY_DICT);
    pickle_put_opcode(&pickle, PICKLE_MARK);
    pickle_put_str(&pickle, STR("w"));
    torch_save_put_tensor(&pickle, DTYPE_F32, 2, (int64_t[]){ 4, 2 }, NULL, 0, "0", 32, false);
    pickle_put_str(&pickle, STR("tied"));
    torch_save_put_tensor(&pickle, DTYPE_F32, 2, (int64_t[]){ 4, 2 }, NULL, 0, "0", 32, false);
    pickle_put_str(&pickle, STR("t"));
    torch_save_put_tensor(&pickle, DTYPE_F32, 2, (int64_t[]){ 2, 4 }, (int64_t[]){ 1, 2 }, 0, "0", 32, false);
    pickle_put_str(&pickle, STR("part"));
    torch_save_put_tensor(&pickle, DTYPE_F32, 1, (int64_t[]){ 2 }, NULL, 2, "0", 32, false);
    pickle_put_str(&pickle, STR("own"));
    torch_save_put_tensor(&pickle, DTYPE_U8, 1, (int64_t[]){ 3 }, NULL, 0, "1", 3, false);
    pickle_put_str(&pickle, STR("step"));
    pickle_put_int(&pickle, 3);
    pickle_put_str(&pickle, STR("obj"));
    PUT(&pickle, "cargparse\nNamespace\n)\x81}X\1\0\0\0s");
    torch_save_put_storage(&pickle, "torch", "ByteStorage", "2", 5);
    PUT(&pickle, "sb");
    pickle_put_opcode(&pickle, PICKLE_SETITEMS);
    pickle_put_end(&pickle);
    blob_make("x", &pickle, (struct blob_storage[]){ { numbers, sizeof(numbers) }, { "abc", 3 }, { "hello", 5 } }, 3, 64, out);
}

static struct store *store_with_file(void)
{
    struct buffer file = { 0 };
    struct store *store = store_new_memory();
    make_file(&file);
    memory_put(store, "x.pt", file.data, file.size);
    buffer_release(&file);
    return store;
}

static const struct catalog_tensor *tensor_of(const struct catalog *catalog, const char *key)
{
    uint32_t index = catalog_find(catalog, str_of(key));
    assert_int_not_equal(index, CATALOG_NONE);
    return &catalog->tensors[index];
}

TEST(sharing_is_described)
{
    struct store *store = store_with_file();
    struct source *source = NULL;
    CHECK_OK(memory_open(store, "x.pt", false, &source, &err));
    const struct catalog *catalog = source->catalog;
    const struct catalog_tensor *w = tensor_of(catalog, "w"), *tied = tensor_of(catalog, "tied"), *t = tensor_of(catalog, "t"),
                                *part = tensor_of(catalog, "part"), *own = tensor_of(catalog, "own");
    assert_string_equal(catalog->format, "torch");
    assert_int_equal(tied->tied_to, w - catalog->tensors);
    assert_int_equal(t->tied_to, CATALOG_NONE);
    assert_int_equal(w->storage_group, t->storage_group);
    assert_int_equal(w->storage_group, part->storage_group);
    assert_int_equal(own->storage_group, CATALOG_NONE);
    const struct catalog_chunk *first = &catalog->chunks[w->first_chunk], *second = &catalog->chunks[part->first_chunk];
    assert_int_equal(second->offset, first->offset + 8);
    assert_int_equal(second->bytes, 8);
    const struct chunk_layout *layout = catalog_layout_of(catalog, &catalog->chunks[t->first_chunk]);
    assert_non_null(layout);
    assert_int_equal(catalog_vector_at(catalog, layout->strides)[0], 1);
    assert_int_equal(catalog_vector_at(catalog, layout->strides)[1], 2);
    assert_true(catalog->chunks[own->first_chunk].flags & CHUNK_HAS_CRC);
    source_free(source);
    store_free(store);
}

TEST(storages_inside_items_travel_as_hidden_tensors)
{
    struct store *store = store_with_file();
    struct source *source = NULL;
    CHECK_OK(memory_open(store, "x.pt", false, &source, &err));
    const struct catalog *catalog = source->catalog;
    assert_int_equal(catalog->item_count, 2);
    assert_true(str_is(catalog->items[1].key, "obj"));
    const struct value *attributes = catalog->items[1].value->object->states[0], *persid = attributes->list.items[1];
    assert_int_equal(persid->kind, VALUE_PERSID);
    const struct catalog_tensor *hidden = &catalog->tensors[persid->storage - 1];
    assert_true(hidden->flags & TENSOR_HIDDEN);
    assert_int_equal(catalog_tensor_bytes(catalog, hidden), 5);
    assert_int_equal(hidden->key.data[0], '\0');
    source_free(source);
    store_free(store);
}

/* Lays the source out as torch, writes it with the CRCs of what was copied, and opens the result. */
static reshard_status write_again(struct source *source, const struct layout_request *request, struct store *into, const char *name)
{
    struct target target;
    struct store_txn *txn = NULL;
    struct store_object *object = NULL, *from = NULL;
    struct store_txn_options options = { .no_sync = true };
    uint32_t crcs[64] = { 0 };
    reshard_status status = lay_out("torch", request, &target, &err);
    if (status) {
        target_free(&target);
        return status;
    }
    const struct catalog *catalog = target.catalog;
    assert_int_equal(catalog->object_count, 1);
    CHECK_OK(store_open_object(source->store, "x.pt", &from, &err));
    CHECK_OK(store_txn_begin_in(into, name, &options, &txn, &err));
    CHECK_OK(store_txn_create(txn, "", catalog->objects[0].bytes, &object, &err));
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        const struct catalog_tensor *origin = &source->catalog->tensors[request->wanted_source[chunk->tensor]];
        const struct catalog_chunk *source_chunk = &source->catalog->chunks[origin->first_chunk];
        uint8_t bytes[256];
        assert_true(chunk->bytes <= sizeof(bytes));
        assert_true(chunk->flags & CHUNK_WANT_CRC);
        CHECK_OK(store_read_at(from, source_chunk->offset, bytes, chunk->bytes, &err));
        CHECK_OK(store_write_at(object, chunk->offset, bytes, chunk->bytes, &err));
        crcs[i] = crc32_zip(0, bytes, chunk->bytes);
    }
    struct publish_job job = { .target = &target, .source = source, .objects = &object, .chunk_crcs = crcs, .request = request };
    status = target_publish(&job, &err);
    store_object_close(object);
    store_object_close(from);
    if (status)
        store_txn_abort(txn, false);
    else
        status = store_txn_commit(txn, &err);
    target_free(&target);
    return status;
}

static void check_written(const struct option_value *options, bool expect_shared)
{
    struct store *store = store_with_file(), *into = store_new_memory();
    struct source *source = NULL, *again = NULL;
    CHECK_OK(memory_open(store, "x.pt", false, &source, &err));
    struct whole_request whole = request_whole(source, options);
    CHECK_OK(write_again(source, &whole.request, into, "y.pt"));
    CHECK_OK(memory_open(into, "y.pt", false, &again, &err));
    CHECK_OK(again->driver->verify(again, true, &err));
    assert_int_equal(again->catalog->warning_count, 0);
    const struct catalog_tensor *w = tensor_of(again->catalog, "w"), *tied = tensor_of(again->catalog, "tied"),
                                *t = tensor_of(again->catalog, "t");
    assert_int_equal(tied->tied_to, w - again->catalog->tensors);
    assert_int_equal(w->storage_group == t->storage_group, expect_shared);
    assert_int_equal(again->catalog->item_count, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(str_equal(again->catalog->items[i].key, source->catalog->items[i].key));
    source_free(again);
    source_free(source);
    request_release(&whole);
    store_free(into);
    store_free(store);
}

TEST(what_shares_a_storage_still_does_where_that_costs_nothing)
{
    check_written(NULL, true);
    check_written((struct option_value[]){ { "views", "keep" }, { NULL, NULL } }, true);
    check_written((struct option_value[]){ { "views", "compact" }, { "alignment", "128" }, { NULL, NULL } }, false);
}

TEST(options_are_checked)
{
    static const struct option_value bad[][2] = { { { "views", "some" }, { NULL, NULL } },
                                                  { { "alignment", "48" }, { NULL, NULL } },
                                                  { { "alignment", "x" }, { NULL, NULL } },
                                                  { { "alignment", "0" }, { NULL, NULL } } };
    struct store *store = store_with_file();
    struct source *source = NULL;
    CHECK_OK(memory_open(store, "x.pt", false, &source, &err));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct whole_request whole = request_whole(source, bad[i]);
        struct target target;
        CHECK_FAILS(lay_out("torch", &whole.request, &target, &err), RESHARD_ERR_USAGE);
        target_free(&target);
        request_release(&whole);
    }
    source_free(source);
    store_free(store);
}

TEST(flat_names_and_paths_become_a_nested_object)
{
    static const struct {
        const char *why;
        struct path_part path[3];
        size_t count;
    } tensors[] = {
        { "flat", { { PATH_KEY, STR("a.b"), 0 } }, 1 },
        { "nested", { { PATH_KEY, STR("m"), 0 }, { PATH_KEY, STR("x.y"), 0 } }, 2 },
        { "a list with a gap", { { PATH_KEY, STR("l"), 0 }, { PATH_INDEX, { 0 }, 2 } }, 2 },
        { "an integer key", { { PATH_KEY, STR("s"), 0 }, { PATH_INT_KEY, { 0 }, -7 } }, 2 },
        { "a place that is taken", { { PATH_KEY, STR("a.b"), 0 }, { PATH_KEY, STR("c"), 0 } }, 2 },
    };
    struct store *store = store_with_file(), *into = store_new_memory();
    struct source *source = NULL, *again = NULL;
    CHECK_OK(memory_open(store, "x.pt", false, &source, &err));
    struct catalog *wanted = catalog_new("torch");
    uint32_t own = catalog_find(source->catalog, STR("own")), sources[8] = { 0 };
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        struct buffer key = { 0 };
        uint32_t index;
        assert_true(path_join(tensors[i].path, tensors[i].count, &key));
        CHECK_OK(catalog_add_tensor(wanted, buffer_str(&key), DTYPE_U8, 1, (int64_t[]){ 3 }, &index, &err));
        CHECK_OK(catalog_set_tensor_path(wanted, index, tensors[i].path, tensors[i].count, &err));
        sources[index] = own;
        buffer_release(&key);
    }
    struct whole_request whole = request_whole(source, NULL);
    whole.request.wanted = wanted;
    whole.request.wanted_source = sources;
    whole.request.is_whole = false;
    CHECK_OK(write_again(source, &whole.request, into, "y.pt"));
    CHECK_OK(memory_open(into, "y.pt", false, &again, &err));
    static const char *const keys[] = { "a.b", "m.x.y", "l.2", "s.-7", "a.b.c" };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        tensor_of(again->catalog, keys[i]);
    assert_int_equal(again->catalog->item_count, 2); /* l.0 and l.1 are None */
    assert_true(str_is(again->catalog->items[0].key, "l.0"));
    source_free(again);
    source_free(source);
    request_release(&whole);
    catalog_free(wanted);
    store_free(into);
    store_free(store);
}

TEST(a_failed_allocation_is_an_error_and_leaks_nothing)
{
    struct store *store = store_with_file();
    unsigned long nth = 0;
    bool was_hit;
    do {
        struct source *source = NULL;
        fail_malloc_at(++nth);
        reshard_status status = memory_open(store, "x.pt", false, &source, &err);
        was_hit = fail_malloc_was_hit();
        if (status && !was_hit)
            fail_msg("allocation %lu: %s", nth, err.message);
        if (!status)
            source_free(source);
    } while (was_hit);
    assert_true(nth > 20);

    struct source *source = NULL;
    CHECK_OK(memory_open(store, "x.pt", false, &source, &err));
    struct whole_request whole = request_whole(source, NULL);
    nth = 0;
    do {
        struct target target;
        fail_malloc_at(++nth);
        reshard_status status = lay_out("torch", &whole.request, &target, &err);
        was_hit = fail_malloc_was_hit();
        assert_true(status == RESHARD_OK || (was_hit && status == RESHARD_ERR_MEMORY)); /* an arena may do with less */
        target_free(&target);
    } while (was_hit);
    assert_true(nth > 20);
    request_release(&whole);
    source_free(source);
    store_free(store);
}

/* ---- folders ---- */

static void put_tensor_file(struct store *store, const char *name, const char *key)
{
    struct buffer pickle = { 0 }, file = { 0 };
    pickle_put_begin(&pickle);
    pickle_put_opcode(&pickle, PICKLE_EMPTY_DICT);
    pickle_put_str(&pickle, str_of(key));
    torch_save_put_tensor(&pickle, DTYPE_U8, 1, (int64_t[]){ 3 }, NULL, 0, "0", 3, false);
    pickle_put_opcode(&pickle, PICKLE_SETITEM);
    pickle_put_end(&pickle);
    blob_make("archive", &pickle, (struct blob_storage[]){ { "abc", 3 } }, 1, 64, &file);
    memory_put(store, name, file.data, file.size);
    buffer_release(&file);
}

TEST(a_folder_of_shards_is_what_its_index_says)
{
    static const struct {
        const char *why, *index;
        reshard_status status;
    } cases[] = {
        { "both", "{\"weight_map\":{\"a\":\"pytorch_model-1.bin\",\"b\":\"pytorch_model-2.bin\"}}", RESHARD_OK },
        { "one is not listed", "{\"weight_map\":{\"a\":\"pytorch_model-1.bin\"}}", RESHARD_OK },
        { "in the wrong file", "{\"weight_map\":{\"a\":\"pytorch_model-2.bin\"}}", RESHARD_ERR_FORMAT },
        { "not there", "{\"weight_map\":{\"c\":\"pytorch_model-1.bin\"}}", RESHARD_ERR_FORMAT },
        { "leads out", "{\"weight_map\":{\"a\":\"../pytorch_model-1.bin\"}}", RESHARD_ERR_FORMAT },
        { "no map", "{}", RESHARD_ERR_FORMAT },
        { "a number", "{\"weight_map\":{\"a\":1}}", RESHARD_ERR_FORMAT },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = store_new_memory();
        struct source *source = NULL;
        put_tensor_file(store, "m/pytorch_model-1.bin", "a");
        put_tensor_file(store, "m/pytorch_model-2.bin", "b");
        memory_put_text(store, "m/pytorch_model.bin.index.json", cases[i].index);
        memory_put_text(store, "m/config.json", "{}");
        err = (reshard_error){ 0 };
        reshard_status status = memory_open(store, "m", false, &source, &err);
        if (status != cases[i].status)
            fail_msg("%s: status %d: %s", cases[i].why, status, err.message);
        if (!status) {
            assert_int_not_equal(catalog_find(source->catalog, STR("a")), CATALOG_NONE);
            assert_int_equal(source->catalog->items[0].kind, ITEM_FILE);
            source_free(source);
        }
        store_free(store);
    }
}

TEST(files_of_ranks_are_grouped_by_name)
{
    static const struct {
        const char *name;
        bool is_rank;
        uint32_t rank;
        const char *prefix;
    } cases[] = {
        { "model_world_size_4_rank_0.pt", true, 0, "model_world_size_4_" },
        { "pytorch_model_fsdp_0_rank12.bin", true, 12, "pytorch_model_fsdp_0_" },
        { "rank_3.ckpt", true, 3, "" },
        { "rank_3.pth", true, 3, "" },
        { "rank999999.pt", true, 999999, "" },
        { "rank1000000.pt", false, 0, NULL },
        { "rank_0000001.pt", true, 1, "" },
        { "rank_00000001.pt", false, 0, NULL },
        { "ank_1.pt", false, 0, NULL },
        { "_1.pt", false, 0, NULL },
        { "1.pt", false, 0, NULL },
        { ".pt", false, 0, NULL },
        { "rank_1", false, 0, NULL },
        { "pytorch_model_fsdp.bin", true, 0, "pytorch_model_fsdp" },
        { "optimizer.bin", true, 0, "optimizer" },
        { "model_rank_0.safetensors", false, 0, NULL },
        { "zero_pp_rank_0_mp_rank_00_optim_states.pt", false, 0, NULL },
        { "rank_.pt", false, 0, NULL },
        { "rank_123456789.pt", false, 0, NULL },
        { "model-00001.bin", false, 0, NULL },
        { "k_1.pt", false, 0, NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fsdp_file file;
        bool is_rank = fsdp_file_parse(str_of(cases[i].name), &file);
        if (is_rank != cases[i].is_rank)
            fail_msg("%s", cases[i].name);
        if (is_rank) {
            assert_int_equal(file.rank, cases[i].rank);
            assert_true(str_is(file.prefix, cases[i].prefix));
            assert_true(str_ends_with(file.name, file.extension.data) && file.extension.data[0] == '.');
        }
    }
}

TEST(names_of_files_tell_what_they_hold)
{
    static const struct { const char *name; enum fsdp_kind kind; } cases[] = {
        { "model_world_size_1_rank_0.pt", FSDP_MODEL }, { "pytorch_model_fsdp_0_rank1.bin", FSDP_MODEL }, { "rank_0.pt", FSDP_OTHER },
        { "optim_world_size_1_rank_0.pt", FSDP_OPTIMIZER }, { "optimizer.bin", FSDP_OPTIMIZER }, { "extra_state_rank_0.pt", FSDP_EXTRA },
        { "a_model_rank_0.pt", FSDP_OTHER },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fsdp_file file;
        assert_true(fsdp_file_parse(str_of(cases[i].name), &file));
        assert_int_equal(fsdp_file_kind(&file), cases[i].kind);
    }
}

/* may_lack: some may be missing, but none may be there twice. */
TEST(ranks_are_complete_or_refused)
{
    static const struct {
        const char *files[5];
        uint32_t groups, groups_may_lack, world; /* 0: refused. world: of the first group, where some may lack */
        const char *says;
    } cases[] = {
        { { "model_rank_0.pt", "model_rank_1.pt" }, 1, 1, 2, NULL },
        { { "model_rank_0.pt", "model_rank_2.pt" }, 0, 1, 3, "the file of rank 1 beside 'model_rank_0.pt' is missing" },
        { { "model_rank_1.pt" }, 0, 1, 2, "the file of rank 0 beside 'model_rank_1.pt' is missing" },
        { { "m_world_size_3_rank_0.pt", "m_world_size_3_rank_1.pt" }, 0, 1, 3,
          "'m_world_size_3_rank_0.pt' says 3 ranks, but there are 2 files" },
        { { "m_world_size_12_rank_0.pt" }, 0, 1, 12, "'m_world_size_12_rank_0.pt' says 12 ranks, but there are 1 files" },
        { { "m_world_size_1_rank_0.pt", "m_world_size_1_rank_1.pt" }, 0, 0, 0, "says 1 ranks, but there are 2 files" },
        { { "m_world_size_1_rank_0.pt", "m_world_size_2_rank_0.pt", "m_world_size_2_rank_1.pt" }, 0, 0, 0,
          "'m_world_size_1_rank_0.pt' and 'm_world_size_2_rank_0.pt' are of different world sizes" },
        { { "m_world_size_1_rank_0.pt", "n_world_size_2_rank_0.pt", "n_world_size_2_rank_1.pt" }, 2, 2, 1, NULL },
        { { "model_world_size_1_rank_0.pt", "n_world_size_1_rank_0.pt" }, 2, 2, 1, NULL },
        { { "model_rank_0.pt", "model_rank_1.pt", "model_rank_01.pt" }, 0, 0, 0, "two files of rank 1, one is 'model_rank_" },
        { { "model_rank_0.pt", "model_rank_00.pt", "model_rank_2.pt" }, 0, 0, 0, "two files of rank 0, one is 'model_rank_" },
        { { "optim_rank_0.pt", "extra_rank_0.pt", "a_rank_0.pt", "model_rank_0.pt" }, 4, 4, 1, NULL },
        { { "model_rank_0.pt", "model_rank_0.bin", "model_rank_1.bin" }, 2, 2, 2, NULL },
        { { "config.json" }, 0, 0, 0, NULL },
    };
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const bool may_lack = i % 2;
        const uint32_t expected = may_lack ? cases[i / 2].groups_may_lack : cases[i / 2].groups;
        struct store *store = store_new_memory();
        struct fsdp_groups groups;
        for (size_t j = 0; j < 5 && cases[i / 2].files[j]; j++)
            memory_put_text(store, cases[i / 2].files[j], "x");
        reshard_status status = fsdp_groups_find(store, "", may_lack, &groups, &err);
        if (status != (expected || !cases[i / 2].says ? RESHARD_OK : RESHARD_ERR_FORMAT))
            fail_msg("case %zu: status %d: %s", i / 2, status, err.message);
        if (status && !strstr(err.message, cases[i / 2].says))
            fail_msg("case %zu: %s", i / 2, err.message);
        if (!status) {
            assert_int_equal(groups.count, expected);
            if (expected && may_lack)
                assert_int_equal(groups.groups[0].world, cases[i / 2].world);
            for (uint32_t g = 1; g < groups.count; g++)
                assert_true(fsdp_file_kind(&groups.groups[g - 1].files[0]) <= fsdp_file_kind(&groups.groups[g].files[0]));
            fsdp_groups_release(&groups);
        }
        store_free(store);
    }
}

/* Of the axes of a mesh one may be cut, and by elements: anything else is no layout that FSDP1 makes. */
TEST(a_mesh_that_is_cut_once_has_shards)
{
    static const struct {
        int64_t shape[2], stride[2];
        int kinds[2];
        bool good;
        uint32_t count, step;
    } cases[] = {
        { { 2, 4 }, { 4, 1 }, { PLACE_REPLICATE, PLACE_SHARD }, true, 4, 1 },
        { { 2, 4 }, { 4, 1 }, { PLACE_SHARD, PLACE_REPLICATE }, true, 2, 4 },
        { { 2, 4 }, { 4, 1 }, { PLACE_SHARD, PLACE_SHARD }, false, 0, 0 },
        { { 2, 4 }, { 4, 1 }, { PLACE_REPLICATE, PLACE_REPLICATE }, false, 0, 0 },
        { { 2, 4 }, { 4, 1 }, { PLACE_REPLICATE, PLACE_PARTIAL }, false, 0, 0 },
        { { 2, 4 }, { 4, 1 }, { PLACE_PARTIAL, PLACE_SHARD }, false, 0, 0 },
        { { 2, 0 }, { 4, 1 }, { PLACE_REPLICATE, PLACE_SHARD }, false, 0, 0 },
        { { 2, 4 }, { 4, 0 }, { PLACE_REPLICATE, PLACE_SHARD }, false, 0, 0 },
        { { 2, INT64_C(1) << 32 }, { 4, 1 }, { PLACE_REPLICATE, PLACE_SHARD }, false, 0, 0 },
        { { 2, UINT32_MAX }, { 4, 1 }, { PLACE_REPLICATE, PLACE_SHARD }, true, UINT32_MAX, 1 },
        { { 2, 4 }, { 4, INT64_C(1) << 32 }, { PLACE_REPLICATE, PLACE_SHARD }, false, 0, 0 },
    };
    struct torch_shard_layout layout = { .kind = TORCH_DTENSOR, .mesh.rank = 2 };
    struct fsdp_shards shards;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int axis = 0; axis < 2; axis++) {
            layout.mesh.shape[axis] = cases[i].shape[axis];
            layout.mesh.stride[axis] = cases[i].stride[axis];
            layout.placements[axis].kind = cases[i].kinds[axis];
        }
        if (fsdp_shards_of(&layout, 8, &shards) != cases[i].good)
            fail_msg("case %zu", i);
        if (cases[i].good && (shards.count != cases[i].count || shards.stride != cases[i].step))
            fail_msg("case %zu: %u shards, %u apart", i, shards.count, shards.stride);
    }
    layout.kind = TORCH_SHARDED;
    assert_true(fsdp_shards_of(&layout, 8, &shards) && shards.count == 8 && shards.stride == 1);
    layout.kind = TORCH_PLAIN;
    assert_false(fsdp_shards_of(&layout, 8, &shards));
}

TEST(a_rank_s_file_means_those_of_its_name)
{
    struct store *store = store_new_memory();
    struct fsdp_groups groups;
    memory_put_text(store, "d/model_rank_0.pt", "x");
    memory_put_text(store, "d/model_rank_1.pt", "x");
    memory_put_text(store, "d/optim_rank_0.pt", "x");
    memory_put_text(store, "d/other.pt", "x");
    CHECK_OK(fsdp_groups_find(store, "d/model_rank_1.pt", false, &groups, &err));
    assert_int_equal(groups.count, 1);
    assert_int_equal(groups.groups[0].count, 2);
    assert_true(str_is(groups.groups[0].files[1].name, "d/model_rank_1.pt"));
    fsdp_groups_release(&groups);
    CHECK_OK(fsdp_groups_find(store, "d", false, &groups, &err));
    assert_int_equal(groups.count, 2);
    fsdp_groups_release(&groups);
    CHECK_FAILS(fsdp_groups_find(store, "d/other.pt", false, &groups, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'d/other.pt' is not the file of one rank"));
    store_free(store);
}

/* verl's step has a folder a model; that of the policy is read, and another one is told. */
TEST(the_folder_of_a_step_is_that_of_its_model)
{
    static const struct { const char *files[3], *name, *found, *other; } cases[] = {
        { { "s/actor/model_rank_0.pt" }, "s", "s/actor", NULL },
        { { "s/critic/model_rank_0.pt", "s/actor/model_rank_0.pt" }, "s", "s/actor", "critic" },
        { { "s/critic/model_rank_0.pt", "s/actor/config.json" }, "s", "s/critic", NULL },
        { { "s/ref/model_rank_0.pt", "s/reward/model_rank_0.pt" }, "s", "s/ref", "reward" },
        { { "s/actor/model_rank_0.pt", "s/rank_0.pt" }, "s", "s", NULL },
        { { "s/actor/model_rank_0.pt" }, "s/actor", "s/actor", NULL },
        { { "s/actor/model_rank_0.pt" }, "s/actor/model_rank_0.pt", "s/actor/model_rank_0.pt", NULL },
        { { "actor/model_rank_0.pt" }, "", "actor", NULL },
        { { "s/other/model_rank_0.pt" }, "s", "s", NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = store_new_memory();
        struct arena arena = { 0 };
        const char *other = "";
        for (size_t j = 0; j < 3 && cases[i].files[j]; j++)
            memory_put_text(store, cases[i].files[j], "x");
        const char *found = fsdp_folder_find(store, cases[i].name, &arena, &other, NULL);
        if (strcmp(found, cases[i].found) != 0 || strcmp(other ? other : "none", cases[i].other ? cases[i].other : "none") != 0)
            fail_msg("case %zu: '%s', %s", i, found, other ? other : "no other");
        arena_release(&arena);
        store_free(store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharing_is_described),
        cmocka_unit_test(storages_inside_items_travel_as_hidden_tensors),
        cmocka_unit_test(what_shares_a_storage_still_does_where_that_costs_nothing),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(flat_names_and_paths_become_a_nested_object),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_leaks_nothing),
        cmocka_unit_test(a_folder_of_shards_is_what_its_index_says),
        cmocka_unit_test(files_of_ranks_are_grouped_by_name),
        cmocka_unit_test(names_of_files_tell_what_they_hold),
        cmocka_unit_test(ranks_are_complete_or_refused),
        cmocka_unit_test(a_mesh_that_is_cut_once_has_shards),
        cmocka_unit_test(a_rank_s_file_means_those_of_its_name),
        cmocka_unit_test(the_folder_of_a_step_is_that_of_its_model),
    };
    return cmocka_run_group_tests_name("torch_driver", tests, NULL, NULL);
}
