/* SPDX-License-Identifier: Apache-2.0 */
/* The fast decoder with a class table of its own: metadata in the manner of Paddle's Flex Checkpoint, whose vectors are plain tuples. */
#include "encoding/pickle_records.h"

#include "base/buffer.h"
#include "check.h"

static reshard_error err;

/*
 * pickle.dumps(root, 4) by CPython 3.11. root.state is {"w.0": [Local, …], …}, four pieces each of three keys; root.storage is
 * {Index: file name}. Local: global_offset, local_shape, dtype; Index: tensor_key, global_offset, rank None. root.pad comes first, a
 * list of 260 strings: records are looked for behind the memo entries that short GETs reach.
 */
static const char table_hex[] =
    "800495d4090000000000008c0d666c65782e6d65746164617461948c04526f6f749493942981947d94288c03706164945d94288c0130948c0131948c0132948c"
    "0133948c0134948c0135948c0136948c0137948c0138948c0139948c0161948c0162948c0163948c0164948c0165948c0166948c023130948c023131948c0231"
    "32948c023133948c023134948c023135948c023136948c023137948c023138948c023139948c023161948c023162948c023163948c023164948c023165948c02"
    "3166948c023230948c023231948c023232948c023233948c023234948c023235948c023236948c023237948c023238948c023239948c023261948c023262948c"
    "023263948c023264948c023265948c023266948c023330948c023331948c023332948c023333948c023334948c023335948c023336948c023337948c02333894"
    "8c023339948c023361948c023362948c023363948c023364948c023365948c023366948c023430948c023431948c023432948c023433948c023434948c023435"
    "948c023436948c023437948c023438948c023439948c023461948c023462948c023463948c023464948c023465948c023466948c023530948c023531948c0235"
    "32948c023533948c023534948c023535948c023536948c023537948c023538948c023539948c023561948c023562948c023563948c023564948c023565948c02"
    "3566948c023630948c023631948c023632948c023633948c023634948c023635948c023636948c023637948c023638948c023639948c023661948c023662948c"
    "023663948c023664948c023665948c023666948c023730948c023731948c023732948c023733948c023734948c023735948c023736948c023737948c02373894"
    "8c023739948c023761948c023762948c023763948c023764948c023765948c023766948c023830948c023831948c023832948c023833948c023834948c023835"
    "948c023836948c023837948c023838948c023839948c023861948c023862948c023863948c023864948c023865948c023866948c023930948c023931948c0239"
    "32948c023933948c023934948c023935948c023936948c023937948c023938948c023939948c023961948c023962948c023963948c023964948c023965948c02"
    "3966948c026130948c026131948c026132948c026133948c026134948c026135948c026136948c026137948c026138948c026139948c026161948c026162948c"
    "026163948c026164948c026165948c026166948c026230948c026231948c026232948c026233948c026234948c026235948c026236948c026237948c02623894"
    "8c026239948c026261948c026262948c026263948c026264948c026265948c026266948c026330948c026331948c026332948c026333948c026334948c026335"
    "948c026336948c026337948c026338948c026339948c026361948c026362948c026363948c026364948c026365948c026366948c026430948c026431948c0264"
    "32948c026433948c026434948c026435948c026436948c026437948c026438948c026439948c026461948c026462948c026463948c026464948c026465948c02"
    "6466948c026530948c026531948c026532948c026533948c026534948c026535948c026536948c026537948c026538948c026539948c026561948c026562948c"
    "026563948c026564948c026565948c026566948c026630948c026631948c026632948c026633948c026634948c026635948c026636948c026637948c02663894"
    "8c026639948c026661948c026662948c026663948c026664948c026665948c026666948c03313030948c03313031948c03313032948c0331303394658c057374"
    "617465947d94288c03772e30945d942868008c054c6f63616c9493942981947d94288c0d676c6f62616c5f6f6666736574944b0085948c0b6c6f63616c5f7368"
    "617065944b0185948c056474797065948c07666c6f617433329475626a100100002981947d94286a130100004b0185946a150100006a160100006a170100006a"
    "1801000075626a100100002981947d94286a130100004b0285946a150100006a160100006a170100006a1801000075626a100100002981947d94286a13010000"
    "4b0385946a150100006a160100006a170100006a180100007562658c03772e31945d94286a100100002981947d94286a130100004b004b0086946a150100004b"
    "044b0886946a170100006a1801000075626a100100002981947d94286a130100004b044b0086946a150100006a270100006a170100006a1801000075626a1001"
    "00002981947d94286a130100004b084b0086946a150100006a270100006a170100006a1801000075626a100100002981947d94286a130100004b0c4b0086946a"
    "150100006a270100006a170100006a180100007562658c03772e32945d94286a100100002981947d94286a130100004b004b0086946a150100006a270100006a"
    "170100006a1801000075626a100100002981947d94286a130100004b044b0086946a150100006a270100006a170100006a1801000075626a100100002981947d"
    "94286a130100004b084b0086946a150100006a270100006a170100006a1801000075626a100100002981947d94286a130100004b0c4b0086946a150100006a27"
    "0100006a170100006a18010000756265758c0773746f72616765947d942868008c05496e6465789493942981947d94288c0a74656e736f725f6b6579946a0d01"
    "00006a130100004b004b0086948c0472616e6b944e75628c0a315f302e646973746370946a420100002981947d94286a450100006a0d0100006a130100004b04"
    "4b0086946a470100004e75628c0a305f302e646973746370946a420100002981947d94286a450100006a0d0100006a130100004b084b0086946a470100004e75"
    "626a480100006a420100002981947d94286a450100006a0d0100006a130100004b0c4b0086946a470100004e75626a4c0100006a420100002981947d94286a45"
    "0100006a220100006a130100004b004b0086946a470100004e75626a480100006a420100002981947d94286a450100006a220100006a130100004b044b008694"
    "6a470100004e75626a4c0100006a420100002981947d94286a450100006a220100006a130100004b084b0086946a470100004e75626a480100006a4201000029"
    "81947d94286a450100006a220100006a130100004b0c4b0086946a470100004e75626a4c0100006a420100002981947d94286a450100006a310100006a130100"
    "004b004b0086946a470100004e75626a480100006a420100002981947d94286a450100006a310100006a130100004b044b0086946a470100004e75626a4c0100"
    "006a420100002981947d94286a450100006a310100006a130100004b084b0086946a470100004e75626a480100006a420100002981947d94286a450100006a31"
    "0100006a130100004b0c4b0086946a470100004e75626a4c0100007575622e";

enum { TABLE_LOCAL = RECORDS_OWN, TABLE_INDEX, TABLE_ROOT };
enum { KIND_NONE, KIND_LOCAL, KIND_INDEX, KIND_ROOT };
enum { KEYS, TEXTS };
enum { ATTRIBUTE_NONE, ATTRIBUTE_OFFSET, ATTRIBUTE_SHAPE, ATTRIBUTE_DTYPE, ATTRIBUTE_KEY, ATTRIBUTE_RANK, ATTRIBUTE_STATE,
       ATTRIBUTE_STORAGE, ATTRIBUTES };

/* What is found, as text: one line for each object. */
struct table {
    struct buffer objects[2]; /* locals, indexes */
    uint32_t counts[2], records;
    char vectors[64][40], strings[2][32][40];
    uint32_t vector_count, string_counts[2];
    struct buffer result;
};

static unsigned attribute_of(struct str name)
{
    static const char *const names[ATTRIBUTES] = { "", "global_offset", "local_shape", "dtype", "tensor_key", "rank", "state", "storage" };
    for (unsigned i = 1; i < ATTRIBUTES; i++) {
        if (str_is(name, names[i]))
            return i;
    }
    return ATTRIBUTE_NONE;
}

static reshard_status classify(struct records *m, struct records_global *global)
{
    (void)m;
    global->kind = str_is(global->name, "Local") ? KIND_LOCAL : str_is(global->name, "Index") ? KIND_INDEX : KIND_ROOT;
    global->role = str_is(global->module, "flex.metadata") ? RECORDS_IS_OBJECT : RECORDS_IS_OPAQUE;
    return RESHARD_OK;
}

static reshard_status keep_vector(struct records *m, const int64_t *values, size_t count, uint32_t *out)
{
    struct table *table = m->context;
    char *text = table->vectors[table->vector_count];
    size_t size = 0;
    if (table->vector_count == 64)
        return error_set(m->err, RESHARD_ERR_LIMIT, "more vectors than the test has room for");
    for (size_t i = 0; i < count; i++)
        size += (size_t)snprintf(text + size, 40 - size, "%s%d", i ? "," : "", (int)values[i]);
    *out = table->vector_count++;
    return RESHARD_OK;
}

static reshard_status keep_string(struct records *m, int space, struct str text, uint32_t *out)
{
    struct table *table = m->context;
    *out = table->string_counts[space]++;
    assert_true(*out < 32);
    snprintf(table->strings[space][*out], 40, "%.*s", STR_ARG(text));
    return RESHARD_OK;
}

static records_word add_local(struct table *table, uint32_t offset, uint32_t shape, uint32_t dtype)
{
    buffer_printf(&table->objects[0], "%s+%s %s\n", table->vectors[offset], table->vectors[shape], table->strings[TEXTS][dtype]);
    return records_word_of(TABLE_LOCAL, table->counts[0]++);
}

static records_word add_index(struct table *table, uint32_t key, uint32_t offset, int64_t rank)
{
    buffer_printf(&table->objects[1], "%s@%s %d\n", table->strings[KEYS][key], table->vectors[offset], (int)rank);
    return records_word_of(TABLE_INDEX, table->counts[1]++);
}

static reshard_status make_local(struct records *m, const struct records_values *values, records_word *out)
{
    ((struct table *)m->context)->records++;
    *out = add_local(m->context, values->vectors[0], values->vectors[1], values->strings[TEXTS]);
    return RESHARD_OK;
}

static reshard_status make_index(struct records *m, const struct records_values *values, records_word *out)
{
    ((struct table *)m->context)->records++;
    *out = add_index(m->context, values->strings[KEYS], values->vectors[0], values->numbers[0]);
    return RESHARD_OK;
}

static enum records_step build(struct records *m, records_word object, records_word state, records_word *out)
{
    records_word values[ATTRIBUTES];
    uint32_t offset, shape, string;
    int kind = records_class(m, object)->kind;
    if (kind == KIND_ROOT) {
        records_keep_all(m);
        *out = records_word_of(TABLE_ROOT, records_payload(state));
        return RECORDS_ON;
    }
    if (!records_read_attributes(m, state, values, ATTRIBUTES) || !records_is_vector(values[ATTRIBUTE_OFFSET], &offset))
        return RECORDS_GIVE_UP;
    records_word text = values[kind == KIND_LOCAL ? ATTRIBUTE_DTYPE : ATTRIBUTE_KEY];
    if (records_tag(text) != RECORDS_STR || (kind == KIND_LOCAL && !records_is_vector(values[ATTRIBUTE_SHAPE], &shape)))
        return RECORDS_GIVE_UP;
    enum records_step step = records_string(m, kind == KIND_LOCAL ? TEXTS : KEYS, text, &string);
    if (step)
        return step;
    *out = kind == KIND_LOCAL ? add_local(m->context, offset, shape, string) : add_index(m->context, string, offset, -1);
    return RECORDS_ON;
}

static enum records_step finish(struct records *m, records_word root)
{
    struct table *table = m->context;
    records_word values[ATTRIBUTES];
    if (records_tag(root) != TABLE_ROOT ||
        !records_read_attributes(m, records_word_of(RECORDS_DICT, records_payload(root)), values, ATTRIBUTES))
        return RECORDS_GIVE_UP;
    const struct records_container *state = records_take_container(m, values[ATTRIBUTE_STATE]);
    for (uint64_t i = 0; i < state->count; i += 2) {
        const struct records_container *list = records_take_container(m, state->items[i + 1]);
        buffer_printf(&table->result, "%.*s: %d from %d, run %d\n", STR_ARG(records_text(m, state->items[i])), (int)list->count,
                      (int)list->run_first, list->is_run);
    }
    buffer_printf(&table->result, "%d files\n", (int)records_take_container(m, values[ATTRIBUTE_STORAGE])->count / 2);
    return RECORDS_ON;
}

static const struct records_field local_fields[] = {
    { ATTRIBUTE_OFFSET, RECORDS_FIELD_TUPLE, 0, true, false },
    { ATTRIBUTE_SHAPE, RECORDS_FIELD_TUPLE, 1, true, false },
    { ATTRIBUTE_DTYPE, RECORDS_FIELD_STRING, TEXTS, true, false },
};
static const struct records_field index_fields[] = {
    { ATTRIBUTE_KEY, RECORDS_FIELD_STRING, KEYS, true, false },
    { ATTRIBUTE_OFFSET, RECORDS_FIELD_TUPLE, 0, true, false },
    { ATTRIBUTE_RANK, RECORDS_FIELD_NUMBER, 0, false, true },
};
static const struct records_shape record_shapes[] = {
    { KIND_LOCAL, local_fields, 3, make_local },
    { KIND_INDEX, index_fields, 3, make_index },
};

static size_t table_bytes(uint8_t *out)
{
    size_t size = (sizeof(table_hex) - 1) / 2;
    for (size_t i = 0; i < size; i++) {
        unsigned byte;
        assert_int_equal(sscanf(table_hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return size;
}

static bool decode(const uint8_t *bytes, size_t size, unsigned shape_count, struct table *table)
{
    const struct records_shapes shapes = { .list_tag = TABLE_LOCAL, .key_tag = TABLE_INDEX, .value_tag = TABLE_INDEX,
                                           .shapes = record_shapes, .shape_count = shape_count, .attribute = attribute_of,
                                           .classify = classify, .keep_vector = keep_vector, .keep_string = keep_string,
                                           .build = build, .finish = finish };
    bool is_done;
    int protocol;
    memset(table, 0, sizeof(*table));
    CHECK_OK(records_decode(bytes, size, &shapes, table, &limits_default, &is_done, &protocol, &err));
    assert_true(!is_done || protocol == 4);
    return is_done;
}

static void table_release(struct table *table)
{
    buffer_release(&table->objects[0]);
    buffer_release(&table->objects[1]);
    buffer_release(&table->result);
}

static void expect_equal(const struct buffer *a, const struct buffer *b)
{
    assert_true(str_equal(buffer_str(a), buffer_str(b)));
}

/* All but the first object of each class, whose class is no GET, are taken as records; opcode by opcode they are the same. */
TEST(records_and_opcodes_find_the_same)
{
    static struct table fast, slow;
    static uint8_t bytes[sizeof(table_hex)];
    size_t size = table_bytes(bytes);
    assert_true(decode(bytes, size, 2, &fast));
    assert_true(decode(bytes, size, 0, &slow));
    assert_int_equal(fast.records, 22);
    assert_int_equal(slow.records, 0);
    assert_true(str_is(buffer_str(&fast.result), "w.0: 4 from 0, run 1\nw.1: 4 from 4, run 1\nw.2: 4 from 8, run 1\n12 files\n"));
    assert_true(str_starts_with(buffer_str(&fast.objects[0]), "0+1 float32\n1+1 float32\n2+1 float32\n3+1 float32\n0,0+4,8 float32\n"));
    assert_true(str_ends_with(buffer_str(&fast.objects[1]), "w.2@8,0 -1\nw.2@12,0 -1\n"));
    for (int i = 0; i < 2; i++)
        expect_equal(&fast.objects[i], &slow.objects[i]);
    expect_equal(&fast.result, &slow.result);
    table_release(&fast);
    table_release(&slow);
}

/* It never says that a pickle is broken: it gives up, and reads nothing beyond the end. */
TEST(a_cut_pickle_is_given_up)
{
    static struct table table;
    static uint8_t bytes[sizeof(table_hex)];
    size_t size = table_bytes(bytes);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut + 1);
        memcpy(exact, bytes, cut);
        assert_false(decode(exact, cut, 2, &table));
        table_release(&table);
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_and_opcodes_find_the_same),
        cmocka_unit_test(a_cut_pickle_is_given_up),
    };
    return cmocka_run_group_tests_name("pickle_records", tests, NULL, NULL);
}
