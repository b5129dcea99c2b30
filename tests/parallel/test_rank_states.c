/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer state of real legacy files, related to parameters: the elements that are found must be those that the live optimizer had. */
#include "check.h"

#include <glob.h>
#include <unistd.h>

#include "base/digest.h"
#include "encoding/json.h"
#include "parallel/parameter_groups.h"
#include "formats/megatron/numbered_state.h"
#include "parallel/flat_state.h"
#include "store/store.h"

#define PARAMETERS_MAX 512

/* An opened .pt file. */
struct file {
    struct store *store;
    struct store_object *object;
    struct reader reader;
    struct torch_archive archive;
};

static void open_file(const char *folder, const char *name, struct file *out)
{
    reshard_error err = { 0 };
    char path[4096], *rest = NULL;
    *out = (struct file){ 0 };
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    CHECK_OK(store_open_path(path, 0, &out->store, &rest, &err));
    CHECK_OK(store_open_object(out->store, rest ? rest : "", &out->object, &err));
    free(rest);
    out->reader = store_object_reader(out->object);
    CHECK_OK(torch_save_open(&out->reader, &limits_default, -1, &out->archive, &err));
}

static void close_file(struct file *file)
{
    torch_save_release(&file->archive);
    store_object_close(file->object);
    store_free(file->store);
}

static uint32_t take_parameters(const struct torch_archive *archive, bool is_tied, bool has_expert_optimizer, struct rank_parameter *out)
{
    struct value **pairs;
    size_t count;
    uint32_t made = 0;
    assert_true(value_as_mapping(value_dict_get(archive->graph.root, "model"), &pairs, &count));
    for (size_t i = 0; i + 1 < count; i += 2) {
        struct str name;
        if (!pairs[i + 1]->tensor || !value_as_str(pairs[i], &name))
            continue;
        const struct torch_tensor *tensor = &archive->tensors[pairs[i + 1]->tensor - 1];
        bool is_embedding = str_is(name, "embedding.word_embeddings.weight") || str_is(name, "output_layer.weight");
        assert_true(made < PARAMETERS_MAX);
        out[made++] = (struct rank_parameter){ .name = name,
                                               .param_dtype = tensor->dtype,
                                               .grad_dtype = DTYPE_F32,
                                               .rank = tensor->rank,
                                               .shape = tensor->shape,
                                               .is_embedding = is_embedding,
                                               .is_shared_embedding = is_embedding && is_tied,
                                               .is_expert = has_expert_optimizer && memmem(name.data, name.size, ".local_experts.", 15) };
    }
    return made;
}

static const struct value *arguments(const struct torch_archive *archive)
{
    const struct value *args = value_dict_get(archive->graph.root, "args");
    return args->object->states[0];
}

static void digest_of(const struct file *file, const struct state_piece *piece, int64_t count, char out[65])
{
    reshard_error err = { 0 };
    const struct torch_tensor *tensor = &file->archive.tensors[piece->tensor];
    const struct torch_storage *storage = &file->archive.storages[tensor->storage];
    struct buffer bytes = { 0 };
    struct digest *digest = digest_new(DIGEST_SHA256);
    assert_non_null(digest);
    CHECK_OK(reader_append(&file->reader, storage->offset + tensor->offset_bytes + (uint64_t)piece->offset * 4, (uint64_t)count * 4, &bytes,
                           &err));
    digest_update(digest, bytes.data, bytes.size);
    digest_hex(digest, out);
    digest_free(digest);
    buffer_release(&bytes);
}

static struct value_graph read_manifest(const char *folder)
{
    reshard_error err = { 0 };
    static char text[4 << 20];
    char path[4096];
    struct value_graph graph = { 0 };
    snprintf(path, sizeof(path), "%s/manifest.json", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof(text), file);
    fclose(file);
    CHECK_OK(json_parse(text, size, &limits_default, &graph, &err));
    return graph;
}

/* also.logical: one digest for each parameter and state of each stage. */
static uint32_t check_logical(const char *folder, const char *rank_folder, const char *prefix, int64_t stage, bool is_tied,
                              const struct value *logical)
{
    reshard_error err = { 0 };
    struct file model, optimizer;
    static struct rank_parameter parameters[PARAMETERS_MAX];
    struct state_pieces pieces = { 0 };
    char path[4096], key[1024], digest[65];
    snprintf(path, sizeof(path), "%s/ckpt/iter_0000010/%s", folder, rank_folder);
    open_file(path, "model_optim_rng.pt", &model);
    open_file(path, "distrib_optim.pt", &optimizer);
    uint32_t count = take_parameters(&model.archive, is_tied, false, parameters);
    struct training_run run = { .args = arguments(&model.archive), .stage = stage };
    CHECK_OK(flat_state_read(&optimizer.archive, optimizer.archive.graph.root, &run, parameters, count, &pieces, &err));
    assert_int_equal(pieces.count, 3 * count);
    assert_false(pieces.is_guessed);
    assert_int_equal(pieces.bucket_count, 2);
    for (uint32_t i = 0; i < pieces.count; i++) {
        const struct rank_parameter *parameter = &parameters[pieces.pieces[i].parameter];
        int64_t volume = 0;
        struct str wanted;
        snprintf(key, sizeof(key), "%s%.*s.%.*s", prefix, STR_ARG(pieces.pieces[i].state), STR_ARG(parameter->name));
        const struct value *entry = value_dict_get(logical, key);
        assert_non_null(entry);
        assert_true(value_as_str(value_dict_get(entry, "sha256"), &wanted));
        assert_true(shape_volume(parameter->rank, parameter->shape, &volume));
        digest_of(&optimizer, &pieces.pieces[i], volume, digest);
        assert_true(str_is(wanted, digest));
    }
    uint32_t checked = pieces.count;
    state_pieces_release(&pieces);
    close_file(&model);
    close_file(&optimizer);
    return checked;
}

TEST(pieces_of_several_buckets_hold_what_the_live_optimizer_had)
{
    char folder[4096];
    const struct {
        const char *name, *rank_folder, *prefix;
        int64_t stage;
        bool is_tied;
    } cases[] = {
        { "megatron-optim-dense-legacy-dp2buckets", "mp_rank_00", "", 0, false },
        { "megatron-optim-tied-legacy-pp2dp2", "mp_rank_00_000", "pp0.", 0, true },
        { "megatron-optim-tied-legacy-pp2dp2", "mp_rank_00_001", "pp1.", 1, true },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(folder, sizeof(folder), "%s/megatron/%s", test_fixtures(), cases[i].name);
        struct value_graph manifest = read_manifest(folder);
        const struct value *logical = value_dict_get(value_dict_get(manifest.root, "also"), "logical");
        assert_true(check_logical(folder, cases[i].rank_folder, cases[i].prefix, cases[i].stage, cases[i].is_tied, logical) > 0);
        value_graph_release(&manifest);
    }
}

TEST(numbers_of_groups_are_parameters)
{
    const char *cases[] = { "megatron-optim-plain-legacy-tp1", "megatron-optim-fp32-legacy-tp1" };
    for (size_t i = 0; i < 2; i++) {
        reshard_error err = { 0 };
        char folder[4096];
        struct file model;
        static struct rank_parameter parameters[PARAMETERS_MAX];
        struct state_pieces pieces = { 0 };
        snprintf(folder, sizeof(folder), "%s/megatron/%s/ckpt/iter_0000010/mp_rank_00", test_fixtures(), cases[i]);
        open_file(folder, "model_optim_rng.pt", &model);
        uint32_t count = take_parameters(&model.archive, false, false, parameters);
        const struct value *optimizer = value_dict_get(model.archive.graph.root, "optimizer");
        assert_true(numbered_state_exists(optimizer));
        CHECK_OK(numbered_state_read(&model.archive, optimizer, parameters, count, &pieces, &err));
        assert_int_equal(pieces.count, (i == 0 ? 3 : 2) * count);
        /* A parameter left out is noticed. */
        state_pieces_release(&pieces);
        CHECK_FAILS(numbered_state_read(&model.archive, optimizer, parameters, count - 1, &pieces, &err), RESHARD_ERR_UNSUPPORTED);
        state_pieces_release(&pieces);
        close_file(&model);
    }
}

TEST(groups_deal_by_name_shape_and_kind)
{
    reshard_error err = { 0 };
    const int64_t matrix[2] = { 4, 3 }, vector[1] = { 4 };
    const struct rank_parameter parameters[] = {
        { .name = STR("embedding"), .rank = 2, .shape = matrix, .is_embedding = true },
        { .name = STR("norm.weight"), .rank = 1, .shape = vector },
        { .name = STR("a.weight"), .rank = 2, .shape = matrix },
        { .name = STR("a.bias"), .rank = 1, .shape = vector },
        { .name = STR("e.weight"), .rank = 2, .shape = matrix, .is_expert = true },
    };
    const struct parameter_group groups[] = { { .has_decay = true, .is_decoupled = true, .count = 1 },
                                              { .has_decay = false, .count = 2 },
                                              { .has_decay = true, .count = 1 } };
    const struct parameter_group expert = { .has_decay = true, .is_expert = true, .count = 1 }, twice[] = { groups[2], groups[2] };
    uint32_t *of = NULL;
    CHECK_OK(parameter_groups_relate(parameters, 5, false, groups, 3, &of, &err));
    assert_int_equal(of[0], 0);
    assert_int_equal(of[1], 1);
    assert_int_equal(of[2], 3);
    assert_int_equal(of[3], 2);
    free(of);
    CHECK_OK(parameter_groups_relate(parameters, 5, true, &expert, 1, &of, &err));
    assert_int_equal(of[0], 4);
    free(of);
    CHECK_FAILS(parameter_groups_relate(parameters, 5, false, groups, 2, &of, &err), RESHARD_ERR_UNSUPPORTED);
    CHECK_FAILS(parameter_groups_relate(parameters, 5, false, twice, 2, &of, &err), RESHARD_ERR_UNSUPPORTED);
    CHECK_FAILS(parameter_groups_relate(parameters, 5, false, &expert, 1, &of, &err), RESHARD_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_several_buckets_hold_what_the_live_optimizer_had),
        cmocka_unit_test(numbers_of_groups_are_parameters),
        cmocka_unit_test(groups_deal_by_name_shape_and_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
