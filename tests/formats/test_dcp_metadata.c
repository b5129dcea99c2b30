/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <glob.h>

#include "../base/value_text.h"
#include "dcp_metadata_text.h"
#include "encoding/pickle_write.h"
#include "fail_malloc.h"
#include "formats/dcp/metadata_decode.h"

/* ---- both ways ---- */

enum way { FAST, GENERAL, EITHER };

/* Decodes both ways, which must agree in result and message. EITHER: whichever was enough. The text is appended to out. */
static reshard_status decode_both(const void *bytes, size_t size, enum way wanted, struct buffer *out, reshard_error *err)
{
    struct dcp_metadata best, general;
    struct buffer other = { 0 };
    reshard_error general_err = { 0 };
    /* Of the exact size, and gone before the result is looked at. */
    uint8_t *copy = malloc(size ? size : 1);
    if (size)
        memcpy(copy, bytes, size);
    reshard_status status = dcp_metadata_decode(copy, size, &limits_default, DCP_DECODE_BEST, &best, err);
    reshard_status general_status = dcp_metadata_decode(copy, size, &limits_default, DCP_DECODE_GENERAL, &general, &general_err);
    free(copy);
    if (status != general_status)
        fail_msg("best way: status %d, %s; general way: status %d, %s", status, err->message, general_status, general_err.message);
    if (status) {
        assert_string_equal(err->message, general_err.message);
        assert_int_equal(err->offset, general_err.offset);
        return status;
    }
    if (wanted != EITHER)
        assert_int_equal(best.is_fast, wanted == FAST);
    size_t start = out->size;
    dcp_metadata_text(out, &best);
    dcp_metadata_text(&other, &general);
    struct str found = { (char *)out->data + start, out->size - start };
    if (!str_equal(found, buffer_str(&other)))
        fail_msg("fast:\n%.*s\ngeneral:\n%.*s", STR_ARG(found), STR_ARG(buffer_str(&other)));
    buffer_release(&other);
    dcp_metadata_release(&best);
    dcp_metadata_release(&general);
    return RESHARD_OK;
}

static bool read_file(const char *path, struct buffer *out)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    size_t got;
    uint8_t block[65536];
    while ((got = fread(block, 1, sizeof(block), file)) > 0)
        buffer_append(out, block, got);
    fclose(file);
    return true;
}

TEST(both_ways_agree_on_all_fixtures)
{
    static const char *const patterns[] = { "torch-dcp/*/ckpt/.metadata", "megatron/*/ckpt/.metadata",
                                            "megatron/*/ckpt/*/.metadata" };
    for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++) {
        char pattern[2000];
        glob_t found;
        snprintf(pattern, sizeof(pattern), "%s/%s", test_fixtures(), patterns[p]);
        if (glob(pattern, 0, NULL, &found))
            fail_msg("%s: no such fixtures", pattern);
        for (size_t i = 0; i < found.gl_pathc; i++) {
            struct buffer bytes = { 0 }, text = { 0 };
            reshard_error err = { 0 };
            assert_true(read_file(found.gl_pathv[i], &bytes));
            bool is_bad = strstr(found.gl_pathv[i], "/bad-") != NULL;
            reshard_status status = decode_both(bytes.data, bytes.size, is_bad ? EITHER : FAST, &text, &err);
            if (status && !is_bad)
                fail_msg("%s: %s", found.gl_pathv[i], err.message);
            buffer_release(&bytes);
            buffer_release(&text);
        }
        globfree(&found);
    }
}

/* ---- hand-written metadata: the general spelling, protocol 2 ---- */

#define M "torch.distributed.checkpoint.metadata."
#define SIZE2(a, b) "torch.Size((" a ", " b "))"
#define PROPERTIES                                                                                                                         \
    "$new " M "TensorProperties() ^ (@torch.float32, torch.serialization._get_layout('torch.strided'), False, " M                          \
    "_MEM_FORMAT_ENCODING(0), False)"
#define CHUNK(offsets, sizes) "$new " M "ChunkStorageMetadata() ^ {'offsets': " offsets ", 'sizes': " sizes "}"
#define TENSOR(size, chunks) "$new " M "TensorStorageMetadata() ^ {'properties': " PROPERTIES ", 'size': " size ", 'chunks': [" chunks "]}"
#define BYTES "$new " M "BytesStorageMetadata()"
#define INDEX(fqn, rest) "$new " M "MetadataIndex() ^ {'fqn': " fqn rest "}"
#define INFO(path, offset, length) \
    "$new torch.distributed.checkpoint.filesystem._StorageInfo() ^ {'relative_path': " path ", 'offset': " offset ", 'length': " length "}"
#define ROOT(attributes) "$new " M "Metadata() ^ {" attributes "}"
#define ONE_TENSOR "'w': " TENSOR(SIZE2("2", "3"), CHUNK(SIZE2("0", "0"), SIZE2("2", "3")))
#define ONE_RANGE INDEX("'w'", ", 'index': 0, 'offset': " SIZE2("0", "0")) ": " INFO("'__0_0.distcp'", "0", "100")

/* Writes the value with pickle_write and decodes that. */
static reshard_status decode_value(const char *value, enum way wanted, struct buffer *text, reshard_error *err)
{
    struct value_graph graph = { 0 };
    struct buffer bytes = { 0 };
    reshard_error write_err = { 0 };
    struct value *root = value_from_text(&graph, value);
    assert_int_equal(pickle_write(root, graph.count, NULL, NULL, NULL, &bytes, &write_err), RESHARD_OK);
    reshard_status status = decode_both(bytes.data, bytes.size, wanted, text, err);
    buffer_release(&bytes);
    value_graph_release(&graph);
    return status;
}

TEST(known_shapes_are_fast_and_others_are_still_understood)
{
    static const struct {
        const char *why, *value;
        enum way way;
        const char *contains;
    } cases[] = {
        { "the least", ROOT("'state_dict_metadata': {}"), FAST, "" },
        { "one of each",
          ROOT("'state_dict_metadata': {" ONE_TENSOR ", 'b': " BYTES "}, 'planner_data': {'w': ('w',), 'b': ('a', 0, 'b')}, "
               "'storage_data': {" ONE_RANGE ", " INDEX("'b'", "") ": " INFO("'f'", "100", "5") "}, 'version': '1.0.0'"),
          FAST, "\"w\"0,0,;\"__0_0.distcp\"0 0 100" },
        { "None for optional parts",
          ROOT("'state_dict_metadata': {}, 'planner_data': None, 'storage_data': None, 'storage_meta': None, 'version': None"), FAST,
          "0002" },
        { "attributes in another order",
          "$new " M "Metadata() ^ {'storage_data': {" ONE_RANGE "}, 'state_dict_metadata': {" ONE_TENSOR "}}", FAST, "\"w\"" },
        { "unknown attributes",
          ROOT("'mcore_data': {'a': [1.5]}, 'state_dict_metadata': {" ONE_TENSOR "}, 'plans': [m.Plan(1) ^ {'x': [2]}]"), FAST,
          "\"mcore_data\"\"plans\"" },
        { "unknown class", ROOT("'state_dict_metadata': {}, 'x': os.system('true')"), FAST, "\"os.system\"" },
        { "the same name twice", ROOT("'state_dict_metadata': {'w': " BYTES ", 'w': " BYTES "}"), FAST, " 1\n\"w\"--147 1\n" },
        { "tuples instead of sizes", ROOT("'state_dict_metadata': {'w': " TENSOR("(4,)", CHUNK("(0,)", "(4,)")) "}"), FAST, "4,;0,;4,;" },
        { "lists instead of sizes", ROOT("'state_dict_metadata': {'w': " TENSOR("[4]", CHUNK("[0]", "[4]")) "}"), GENERAL, "4,;0,;4,;" },
        { "numbers beyond the fast way", ROOT("'state_dict_metadata': {'w': " TENSOR("(9000000000000000000,)", "") "}"), GENERAL,
          "9000000000000000000,;" },
        { "dict properties",
          ROOT("'state_dict_metadata': {'w': $new " M "TensorStorageMetadata() ^ {'properties': $new " M
               "TensorProperties() ^ {'dtype': @torch.int8}, 'size': (), 'chunks': []}}"),
          FAST, "\"int8\";" },
        { "an ordered dict", ROOT("'state_dict_metadata': collections.OrderedDict() !{'b': " BYTES "}"), GENERAL, "\"b\"" },
        { "old classes", "$new torch.distributed._shard.checkpoint.metadata.Metadata() ^ {'state_dict_metadata': {}}", FAST,
          "\"torch.distributed._shard.checkpoint.metadata\"" },
        { "Megatron's class", "$new megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata() ^ {'state_dict_metadata': {}}", FAST,
          "MCoreMetadata" },
        { "a path",
          ROOT("'state_dict_metadata': {}, 'storage_meta': $new " M
               "StorageMeta() ^ {'checkpoint_id': pathlib.PosixPath('/', 'tmp', 'x'), 'save_id': 's', 'modules': []}"),
          FAST, "\"/tmp/x\"\"s\"-" },
        { "a path of 3.13",
          ROOT("'state_dict_metadata': {}, 'storage_meta': $new " M "StorageMeta() ^ {'checkpoint_id': pathlib._local.PosixPath('a/b')}"),
          FAST, "\"a/b\"--" },
        { "an id of another kind", ROOT("'state_dict_metadata': {}, 'storage_meta': $new " M "StorageMeta() ^ {'checkpoint_id': 5}"),
          GENERAL, "---" },
        { "planner data of another kind", ROOT("'state_dict_metadata': {}, 'planner_data': [1]"), GENERAL, "0002" },
        { "a path that is none", ROOT("'state_dict_metadata': {}, 'planner_data': {'a': 5, 'b': ('b',)}"), GENERAL, "\"b\"" },
        { "a state of two dicts", "$new " M "Metadata() ^ (None, {'state_dict_metadata': {}})", GENERAL, "" },
        { "transforms",
          ROOT("'state_dict_metadata': {}, 'storage_data': {" INDEX(
              "'w'", "") ": $new torch.distributed.checkpoint.filesystem._StorageInfo() ^ {'relative_path': 'f', 'offset': 1, 'length': 2, "
                         "'transform_descriptors': ['stream.zstd/1', 'x']}}"),
          FAST, "\"stream.zstd/1\"\"x\"" },
        { "transforms None",
          ROOT("'state_dict_metadata': {}, 'storage_data': {" INDEX(
              "'w'", ", 'index': None, 'offset': None") ": $new torch.distributed.checkpoint.filesystem._StorageInfo() ^ {'relative_path': "
                                                        "'f', 'offset': 1, 'length': 2, 'transform_descriptors': None}}"),
          FAST, "\"w\"-\"f\"-1 1 2" },
        { "a negative hint",
          ROOT("'state_dict_metadata': {}, 'storage_data': {" INDEX("'w'", ", 'index': -5") ": " INFO("'f'", "1", "2") "}"), FAST,
          "-\"f\"-1 1 2" },
        { "an unknown dtype",
          ROOT("'state_dict_metadata': {'w': $new " M "TensorStorageMetadata() ^ {'properties': $new " M
               "TensorProperties() ^ (@torch.float99,), 'size': (), 'chunks': []}}"),
          FAST, "\"float99\"" },
        { "copyreg", "copyreg._reconstructor(@" M "Metadata, @builtins.object, None) ^ {'state_dict_metadata': {}}", GENERAL, "" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer text = { 0 };
        reshard_error err = { 0 };
        reshard_status status = decode_value(cases[i].value, cases[i].way, &text, &err);
        buffer_append_byte(&text, 0);
        if (status || !strstr((char *)text.data, cases[i].contains))
            fail_msg("%s: status %d: %s\n%s", cases[i].why, status, err.message, (char *)text.data);
        buffer_release(&text);
    }
}

#define SYSTEM "os.system('true')"
#define WITH_TENSOR(size, chunks) ROOT("'state_dict_metadata': {'w': " TENSOR(size, chunks) "}")
#define WITH_STORAGE(pair) ROOT("'state_dict_metadata': {}, 'storage_data': {" pair "}")

TEST(hostile_and_wrong_values_are_refused_with_tensor_and_offset)
{
    static const struct {
        const char *value, *message;
    } cases[] = {
        { "5", "root: byte 2: found an int, expected a Metadata object" },
        { SYSTEM, "root: byte 23: found the result of a call of os.system" },
        { "$new " M "TensorStorageMetadata() ^ {}", "root: byte" },
        { ROOT("'planner_data': None"), "the object has no attribute 'state_dict_metadata'" },
        { ROOT("'state_dict_metadata': 5"), "state_dict_metadata: byte" },
        { ROOT("'state_dict_metadata': {5: " BYTES "}"), "state_dict_metadata: key: byte" },
        { ROOT("'state_dict_metadata': {'w': " SYSTEM "}"), "tensor 'w': byte" },
        { ROOT("'state_dict_metadata': {'w': None}"), "found None, expected TensorStorageMetadata or BytesStorageMetadata" },
        { WITH_TENSOR(SYSTEM, ""), "tensor 'w': size: byte" },
        { WITH_TENSOR("torch.Size((1, " SYSTEM "))", ""), "tensor 'w': size: byte" },
        { WITH_TENSOR("'4'", ""), "found a str, expected torch.Size" },
        { WITH_TENSOR("torch.Size((True,))", ""), "found a bool, expected an int of 64 bits" },
        { WITH_TENSOR("torch.Size((18446744073709551616,))", ""), "found an int beyond 64 bits" },
        { WITH_TENSOR("torch.Size((-1,))", ""), "tensor 'w': a negative size: [-1]" },
        { WITH_TENSOR("(4,)", SYSTEM), "tensor 'w': chunks: byte" },
        { WITH_TENSOR("(4,)", CHUNK(SYSTEM, "(4,)")), "tensor 'w': offsets: byte" },
        { WITH_TENSOR("(4,)", CHUNK("(0,)", "5")), "tensor 'w': sizes: byte" },
        { WITH_TENSOR("(4,)", CHUNK("(0, 0)", "(4,)")), "tensor 'w': chunk 0: its offsets have another number of dimensions: [0, 0]" },
        { WITH_TENSOR("(4,)", CHUNK("(0,)", "()")), "tensor 'w': chunk 0: its sizes have another number" },
        { WITH_TENSOR("(4,)", CHUNK("(-1,)", "(4,)")), "tensor 'w': chunk 0: a negative offset: [-1]" },
        { WITH_TENSOR("(4,)", CHUNK("(0,)", "(-4,)")), "tensor 'w': chunk 0: a negative size: [-4]" },
        { WITH_TENSOR("(4,)", "$new " M "ChunkStorageMetadata() ^ {'offsets': (0,)}"), "tensor 'w': byte" },
        { ROOT("'state_dict_metadata': {'w': $new " M "TensorStorageMetadata() ^ {'properties': " SYSTEM ", 'size': (), 'chunks': []}}"),
          "tensor 'w': properties: byte" },
        { ROOT("'state_dict_metadata': {'w': $new " M "TensorStorageMetadata() ^ {'properties': $new " M "TensorProperties() ^ (" SYSTEM
               ",), 'size': (), 'chunks': []}}"),
          "tensor 'w': dtype: byte" },
        { ROOT("'state_dict_metadata': {'w': $new " M "TensorStorageMetadata() ^ {'properties': $new " M
               "TensorProperties() ^ (@torch.int8,), 'size': (), 'chunks': {}}}"),
          "tensor 'w': chunks: byte" },
        { ROOT("'state_dict_metadata': {}, 'storage_data': 5"), "storage_data: byte" },
        { WITH_STORAGE("5: " INFO("'f'", "0", "1")), "storage_data: key: byte" },
        { WITH_STORAGE(INDEX("5", "") ": " INFO("'f'", "0", "1")), "storage_data: fqn: byte" },
        { WITH_STORAGE(INDEX("'w'", ", 'offset': " SYSTEM) ": " INFO("'f'", "0", "1")), "tensor 'w': offset: byte" },
        { WITH_STORAGE(INDEX("'w'", ", 'index': 'x'") ": " INFO("'f'", "0", "1")), "tensor 'w': index: byte" },
        { WITH_STORAGE(INDEX("'w'", "") ": " SYSTEM), "tensor 'w': storage_data: byte" },
        { WITH_STORAGE(INDEX("'w'", "") ": " INFO(SYSTEM, "0", "1")), "tensor 'w': relative_path: byte" },
        { WITH_STORAGE(INDEX("'w'", "") ": " INFO("'f'", SYSTEM, "1")), "tensor 'w': offset: byte" },
        { WITH_STORAGE(INDEX("'w'", "") ": " INFO("'f'", "-1", "1")), "negative: -1" },
        { WITH_STORAGE(INDEX("'w'", "") ": " INFO("'f'", "0", "1.5")), "found a float, expected an int of 64 bits" },
        { WITH_STORAGE(
              INDEX("'w'", "") ": $new torch.distributed.checkpoint.filesystem._StorageInfo() ^ {'relative_path': 'f', 'offset': 0}"),
          "the object has no attribute 'length'" },
        { WITH_STORAGE(INDEX("'w'", "") ": $new torch.distributed.checkpoint.filesystem._StorageInfo() ^ {'relative_path': 'f', 'offset': "
                                        "0, 'length': 1, 'transform_descriptors': [5]}"),
          "tensor 'w': transform_descriptors: byte" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer text = { 0 };
        reshard_error err = { 0 };
        reshard_status status = decode_value(cases[i].value, EITHER, &text, &err);
        if (status != RESHARD_ERR_FORMAT || !strstr(err.message, cases[i].message) || err.offset < 0)
            fail_msg("case %zu: status %d, '%s' instead of '%s'", i, status, err.message, cases[i].message);
        buffer_release(&text);
    }
}

/* ---- metadata as CPython spells it ---- */

/* What the generated pickle has that is out of the ordinary. */
struct spelling {
    bool shares_sizes;   /* each index has the very offset of its chunk */
    bool names_anew;     /* each index has a string of its own for its name */
    bool puts;           /* protocol 3: BINPUT instead of MEMOIZE */
    bool swapped_keys;   /* sizes before offsets, offset before fqn */
    bool repeated_key;   /* the index's offset twice */
    bool extra_key;      /* an attribute nobody knows in each chunk */
    bool pinned_objects; /* every chunk is asked for again at the end */
    int frame_every;     /* a FRAME after so many opcodes */
    int rank;
    int64_t step;        /* rows of a chunk */
};

struct scribe {
    struct buffer out;
    struct spelling how;
    uint32_t memo;
    uint32_t strings[64], string_count;
    const char *string_names[64];
    uint32_t opcodes;
};

static void put_opcode(struct scribe *s, const char *bytes, size_t size)
{
    if (s->how.frame_every && s->opcodes++ % (uint32_t)s->how.frame_every == 0) {
        buffer_append_byte(&s->out, 0x95);
        buffer_append_u64le(&s->out, 0);
    }
    buffer_append(&s->out, bytes, size);
}

#define PUT(literal) put_opcode(s, literal, sizeof(literal) - 1)

static uint32_t put_memo(struct scribe *s)
{
    if (s->how.puts) {
        PUT("r");
        buffer_append_u32le(&s->out, s->memo);
    } else {
        PUT("\x94");
    }
    return s->memo++;
}

static void put_get(struct scribe *s, uint32_t index)
{
    PUT("");
    buffer_append_byte(&s->out, index < 256 ? 'h' : 'j');
    if (index < 256)
        buffer_append_byte(&s->out, (uint8_t)index);
    else
        buffer_append_u32le(&s->out, index);
}

static uint32_t put_new_string(struct scribe *s, const char *text)
{
    PUT("X");
    buffer_append_u32le(&s->out, (uint32_t)strlen(text));
    buffer_append_text(&s->out, text);
    return put_memo(s);
}

/* A string constant, or a GET of it if it was written before. */
static void put_string(struct scribe *s, const char *text)
{
    for (uint32_t i = 0; i < s->string_count; i++) {
        if (strcmp(s->string_names[i], text) == 0) {
            put_get(s, s->strings[i]);
            return;
        }
    }
    assert_true(s->string_count < 64);
    s->string_names[s->string_count] = text;
    uint32_t number = s->string_count++;
    s->strings[number] = put_new_string(s, text);
}

static void put_class(struct scribe *s, const char *line)
{
    for (uint32_t i = 0; i < s->string_count; i++) {
        if (s->string_names[i] == line) {
            put_get(s, s->strings[i]);
            return;
        }
    }
    assert_true(s->string_count < 64);
    PUT("c");
    buffer_append_text(&s->out, line);
    s->string_names[s->string_count] = line;
    s->strings[s->string_count++] = put_memo(s);
}

static const char class_tensor[] = "torch.distributed.checkpoint.metadata\nTensorStorageMetadata\n",
                  class_properties[] = "torch.distributed.checkpoint.metadata\nTensorProperties\n",
                  class_chunk[] = "torch.distributed.checkpoint.metadata\nChunkStorageMetadata\n",
                  class_index[] = "torch.distributed.checkpoint.metadata\nMetadataIndex\n",
                  class_root[] = "torch.distributed.checkpoint.metadata\nMetadata\n",
                  class_range[] = "torch.distributed.checkpoint.filesystem\n_StorageInfo\n", class_size[] = "torch\nSize\n",
                  class_dtype[] = "torch\nbfloat16\n";

static uint32_t put_object(struct scribe *s, const char *class)
{
    put_class(s, class);
    PUT(")");
    PUT("\x81");
    uint32_t number = put_memo(s);
    PUT("}");
    put_memo(s);
    PUT("(");
    return number;
}

static void put_end(struct scribe *s)
{
    PUT("u");
    PUT("b");
}

static void put_int(struct scribe *s, int64_t value)
{
    PUT("");
    pickle_put_int(&s->out, value);
}

/* torch.Size of a first number and rank - 1 others; returns its memo entry. */
static uint32_t put_size(struct scribe *s, int64_t first, int64_t other)
{
    static const char *const ends[] = { ")", "\x85", "\x86", "\x87" };
    int rank = s->how.rank;
    put_class(s, class_size);
    if (rank > 3)
        PUT("(");
    for (int i = 0; i < rank; i++)
        put_int(s, i ? other : first);
    put_opcode(s, rank > 3 ? "t" : ends[rank], 1);
    if (rank)
        put_memo(s);
    PUT("\x85");
    put_memo(s);
    PUT("R");
    return put_memo(s);
}

#define CHUNKS_MAX 64

static void put_tensor(struct scribe *s, const char *name, int chunks, uint32_t *offsets, uint32_t *objects)
{
    put_string(s, name);
    put_object(s, class_tensor);
    put_string(s, "properties");
    put_class(s, class_properties);
    PUT(")");
    PUT("\x81");
    put_memo(s);
    PUT("(");
    put_class(s, class_dtype);
    PUT("N");
    PUT("\x89");
    PUT("t");
    put_memo(s);
    PUT("b");
    put_string(s, "size");
    put_size(s, s->how.step * chunks, 8);
    put_string(s, "chunks");
    PUT("]");
    put_memo(s);
    PUT("(");
    for (int i = 0; i < chunks; i++) {
        objects[i] = put_object(s, class_chunk);
        if (s->how.swapped_keys) {
            put_string(s, "sizes");
            put_size(s, s->how.step, 8);
        }
        put_string(s, "offsets");
        offsets[i] = put_size(s, s->how.step * i, 0);
        if (s->how.extra_key) {
            put_string(s, "unknown");
            PUT("]");
            put_memo(s);
        }
        if (!s->how.swapped_keys) {
            put_string(s, "sizes");
            put_size(s, s->how.step, 8);
        }
        put_end(s);
    }
    PUT("e");
    put_end(s);
}

static void put_storage(struct scribe *s, const char *name, int chunk, uint32_t offset)
{
    char path[64];
    snprintf(path, sizeof(path), "__%d_0.distcp", chunk % 3);
    put_object(s, class_index);
    for (int turn = 0; turn < 2; turn++) {
        if ((turn == 0) == !s->how.swapped_keys) {
            put_string(s, "fqn");
            if (s->how.names_anew)
                put_new_string(s, name);
            else
                put_string(s, name);
            put_string(s, "index");
            if (chunk % 7 == 6)
                PUT("N");
            else
                put_int(s, chunk);
            continue;
        }
        for (int times = s->how.repeated_key ? 2 : 1; times > 0; times--) {
            put_string(s, "offset");
            if (times == 2)
                PUT("N");
            else if (s->how.shares_sizes)
                put_get(s, offset);
            else
                put_size(s, s->how.step * chunk, 0);
        }
    }
    put_end(s);
    put_object(s, class_range);
    put_string(s, "relative_path");
    put_new_string(s, path);
    put_string(s, "offset");
    put_int(s, (int64_t)chunk * (int64_t)3000000000);
    put_string(s, "length");
    put_int(s, 70000 + chunk);
    put_end(s);
}

static void put_metadata(struct scribe *s, int tensors, int chunks)
{
    static const char *const names[] = { "a", "offset", "layers.0.weight", "fqn" };
    uint32_t offsets[4][CHUNKS_MAX], objects[4][CHUNKS_MAX];
    PUT("\x80");
    buffer_append_byte(&s->out, s->how.puts ? 3 : 4);
    put_object(s, class_root);
    put_string(s, "state_dict_metadata");
    PUT("}");
    put_memo(s);
    PUT("(");
    for (int i = 0; i < tensors; i++)
        put_tensor(s, names[i], chunks, offsets[i], objects[i]);
    PUT("u");
    put_string(s, "storage_data");
    PUT("}");
    put_memo(s);
    for (int i = 0; i < tensors; i++) {
        PUT("(");
        for (int j = 0; j < chunks; j++)
            put_storage(s, names[i], j, offsets[i][j]);
        PUT("u");
    }
    put_string(s, "again");
    PUT("]");
    put_memo(s);
    PUT("(");
    for (int j = 0; s->how.pinned_objects && j < chunks; j++)
        put_get(s, objects[0][j]);
    PUT("e");
    put_end(s);
    PUT(".");
}

static const struct spelling spellings[] = {
    { .rank = 2, .step = 4 },
    { .rank = 0, .step = 0 },
    { .rank = 1, .step = 1 },
    { .rank = 3, .step = 100 },
    { .rank = 5, .step = 70000 },
    { .rank = 64, .step = 2 },
    { .rank = 2, .step = (int64_t)1 << 33 },
    { .rank = 2, .step = 4, .shares_sizes = true },
    { .rank = 2, .step = 4, .names_anew = true },
    { .rank = 2, .step = 4, .puts = true },
    { .rank = 2, .step = 4, .swapped_keys = true },
    { .rank = 2, .step = 4, .repeated_key = true },
    { .rank = 2, .step = 4, .extra_key = true },
    { .rank = 2, .step = 4, .pinned_objects = true },
    { .rank = 2, .step = 4, .frame_every = 1 },
    { .rank = 2, .step = 4, .frame_every = 11 },
    { .rank = 3, .step = 4, .frame_every = 13, .shares_sizes = true, .names_anew = true, .pinned_objects = true, .repeated_key = true },
    { .rank = 3, .step = 4, .puts = true, .shares_sizes = true, .extra_key = true, .pinned_objects = true },
};

TEST(every_way_that_pickle_spells_records_is_fast_and_right)
{
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        struct scribe scribe = { .how = spellings[i] };
        struct buffer text = { 0 };
        reshard_error err = { 0 };
        put_metadata(&scribe, 4, CHUNKS_MAX);
        reshard_status status = decode_both(scribe.out.data, scribe.out.size, FAST, &text, &err);
        if (status)
            fail_msg("spelling %zu: %s", i, err.message);
        buffer_release(&scribe.out);
        buffer_release(&text);
    }
}

TEST(content_is_what_was_written)
{
    struct scribe scribe = { .how = spellings[0] };
    struct dcp_metadata metadata;
    reshard_error err = { 0 };
    put_metadata(&scribe, 2, 10);
    CHECK_OK(dcp_metadata_decode(scribe.out.data, scribe.out.size, &limits_default, DCP_DECODE_BEST, &metadata, &err));
    buffer_release(&scribe.out);
    assert_int_equal(metadata.entry_count, 2);
    assert_int_equal(metadata.storage_count, 20);
    assert_true(str_is(name_map_at(&metadata.names, metadata.entries[1].name), "offset"));
    assert_int_equal(metadata.entry_of_name[metadata.entries[1].name], 1);
    assert_true(str_is(dcp_text(&metadata, metadata.entries[0].dtype), "bfloat16"));
    assert_int_equal(dcp_vector_at(&metadata, metadata.entries[0].size)[0], 40);
    for (uint32_t i = 0; i < 20; i++) {
        const struct dcp_index *index = &metadata.indexes[i];
        const struct dcp_entry *entry = &metadata.entries[metadata.entry_of_name[index->name]];
        assert_int_equal(index->index, i % 10 == 6 ? -1 : (int)(i % 10));
        assert_int_equal(index->offset, metadata.chunks[entry->first_chunk + i % 10].offsets);
        assert_int_equal(dcp_vector_at(&metadata, index->offset)[0], 4 * (i % 10));
        assert_int_equal(metadata.ranges[i].offset, (uint64_t)(i % 10) * UINT64_C(3000000000));
        assert_int_equal(metadata.ranges[i].length, 70000 + i % 10);
    }
    assert_int_equal(metadata.extra_attribute_count, 1);
    assert_true(str_is(dcp_text(&metadata, metadata.extra_attributes[0]), "again"));
    assert_int_equal(metadata.unknown_global_count, 0);
    dcp_metadata_release(&metadata);
}

/* One byte of a good pickle changed, cut or doubled: both ways say the same. */
TEST(both_ways_agree_on_damage)
{
    uint64_t seed = 42;
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        struct scribe scribe = { .how = spellings[i] };
        put_metadata(&scribe, 2, 12);
        for (int turn = 0; turn < 300; turn++) {
            struct buffer text = { 0 }, bytes = { 0 };
            reshard_error err = { 0 };
            buffer_append(&bytes, scribe.out.data, scribe.out.size);
            size_t at = (size_t)(test_random(&seed) % bytes.size);
            uint64_t kind = test_random(&seed) % 4;
            if (kind == 0)
                bytes.size = at;
            else if (kind == 1)
                bytes.data[at] = (uint8_t)test_random(&seed);
            else if (kind == 2)
                bytes.data[at] ^= (uint8_t)(1 << test_random(&seed) % 8);
            else
                bytes.data[at] = bytes.data[test_random(&seed) % bytes.size];
            (void)decode_both(bytes.data, bytes.size, EITHER, &text, &err);
            buffer_release(&text);
            buffer_release(&bytes);
        }
        buffer_release(&scribe.out);
    }
}

/* Records that are named over and over are made each time: what they take is spent, whichever way they are read. */
TEST(records_cost_work)
{
    struct scribe scribe = { .how = spellings[0] };
    put_metadata(&scribe, 2, CHUNKS_MAX);
    for (int way = DCP_DECODE_BEST; way <= DCP_DECODE_GENERAL; way++) {
        const uint64_t enough = UINT64_C(1) << 30;
        struct limits limits = limits_default;
        struct dcp_metadata metadata;
        struct work work;
        reshard_error err = { 0 };
        limits.budget = &work;
        work_begin(&work, enough);
        CHECK_OK(dcp_metadata_decode(scribe.out.data, scribe.out.size, &limits, (enum dcp_decode_way)way, &metadata, &err));
        uint64_t spent = enough - work_left(&work, enough);
        uint64_t made = metadata.chunk_count * (sizeof(*metadata.chunks) + sizeof(*metadata.indexes) + sizeof(*metadata.ranges));
        if (spent < made)
            fail_msg("way %d: %llu units for records of %llu bytes", way, (unsigned long long)spent, (unsigned long long)made);
        dcp_metadata_release(&metadata);
        work_begin(&work, made);
        CHECK_FAILS(dcp_metadata_decode(scribe.out.data, scribe.out.size, &limits, (enum dcp_decode_way)way, &metadata, &err),
                    RESHARD_ERR_LIMIT);
        assert_non_null(strstr(err.message, "work: "));
        dcp_metadata_release(&metadata);
    }
    buffer_release(&scribe.out);
}

TEST(limits_are_named)
{
    static const struct {
        const char *name;
        uint64_t value;
    } cases[] = { { "chunks", 11 }, { "tensors", 1 }, { "metadata_bytes", 100 } };
    struct scribe scribe = { .how = spellings[0] };
    put_metadata(&scribe, 2, 12);
    for (int way = DCP_DECODE_BEST; way <= DCP_DECODE_GENERAL; way++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct limits limits = limits_default;
            struct dcp_metadata metadata;
            reshard_error err = { 0 };
            assert_true(limits_set(&limits, str_of(cases[i].name), cases[i].value));
            CHECK_FAILS(dcp_metadata_decode(scribe.out.data, scribe.out.size, &limits, (enum dcp_decode_way)way, &metadata, &err),
                        RESHARD_ERR_LIMIT);
            assert_non_null(strstr(err.message, cases[i].name));
            dcp_metadata_release(&metadata);
        }
    }
    buffer_release(&scribe.out);
}

TEST(failing_allocations_leave_nothing_behind)
{
    struct scribe scribe = { .how = spellings[16] };
    put_metadata(&scribe, 4, 8);
    for (int way = DCP_DECODE_BEST; way <= DCP_DECODE_GENERAL; way++) {
        unsigned long nth = 0;
        bool hit;
        do {
            struct dcp_metadata metadata;
            reshard_error err = { 0 };
            fail_malloc_at(++nth);
            reshard_status status =
                dcp_metadata_decode(scribe.out.data, scribe.out.size, &limits_default, (enum dcp_decode_way)way, &metadata, &err);
            hit = fail_malloc_was_hit();
            if (status != RESHARD_OK && (!hit || status != RESHARD_ERR_MEMORY))
                fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
            dcp_metadata_release(&metadata);
        } while (hit);
    }
    buffer_release(&scribe.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_agree_on_all_fixtures),
        cmocka_unit_test(known_shapes_are_fast_and_others_are_still_understood),
        cmocka_unit_test(hostile_and_wrong_values_are_refused_with_tensor_and_offset),
        cmocka_unit_test(every_way_that_pickle_spells_records_is_fast_and_right),
        cmocka_unit_test(content_is_what_was_written),
        cmocka_unit_test(both_ways_agree_on_damage),
        cmocka_unit_test(records_cost_work),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("dcp_metadata", tests, NULL, NULL);
}
