/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "tensor/dtype.h"

TEST(every_type_is_found_by_each_of_its_names)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        enum dtype found;
        char lower[32] = "";
        assert_true(dtype_from_name(str_of(info->name), &found) && found == (enum dtype)i);
        for (size_t c = 0; info->name[c]; c++)
            lower[c] = (char)(info->name[c] >= 'A' && info->name[c] <= 'Z' ? info->name[c] + 32 : info->name[c]);
        assert_true(dtype_from_name(str_of(lower), &found) && found == (enum dtype)i);
        bool in_safetensors = dtype_from_safetensors(str_of(info->name), &found);
        assert_int_equal(in_safetensors, info->safetensors_rank >= 0);
        if (*info->torch_name) {
            assert_true(dtype_from_torch(str_of(info->torch_name), &found) && found == (enum dtype)i);
            assert_true(dtype_from_name(str_of(info->torch_name), &found) && found == (enum dtype)i);
        }
        if (*info->torch_storage)
            assert_true(dtype_from_torch_storage(str_of(info->torch_storage), &found) && found == (enum dtype)i);
    }
}

TEST(other_names_are_unknown)
{
    static const char *const names[] = { "", "F33", "f32 ", "float", "Float32", "storage" };
    enum dtype found = DTYPE_BOOL;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_false(dtype_from_safetensors(str_of(names[i]), &found));
        assert_false(dtype_from_torch_storage(str_of(names[i]), &found));
        if (strcmp(names[i], "float") != 0)
            assert_false(dtype_from_torch(str_of(names[i]), &found) || dtype_from_name(str_of(names[i]), &found));
    }
    assert_false(dtype_from_safetensors(STR("f32"), &found));
    assert_false(dtype_from_safetensors(STR("C128"), &found));
    assert_true(dtype_from_torch(STR("half"), &found) && found == DTYPE_F16);
    assert_true(dtype_from_torch(STR("long"), &found) && found == DTYPE_I64);
}

TEST(sizes_are_whole_bytes_or_refused)
{
    static const struct { enum dtype dtype; uint64_t elements; bool ok; uint64_t bytes;
    } cases[] = {
        { DTYPE_F32, 3, true, 12 },
        { DTYPE_BOOL, 5, true, 5 },
        { DTYPE_C128, 2, true, 32 },
        { DTYPE_BF16, 0, true, 0 },
        { DTYPE_F4, 4, true, 2 },
        { DTYPE_F4, 3, false, 0 },
        { DTYPE_F6_E2M3, 4, true, 3 },
        { DTYPE_F6_E3M2, 6, false, 0 },
        { DTYPE_F6_E3M2, 0, true, 0 },
        { DTYPE_F4, UINT64_MAX - 1, true, UINT64_MAX / 2 },
        { DTYPE_U8, UINT64_MAX, true, UINT64_MAX },
        { DTYPE_F64, UINT64_MAX / 8 + 1, false, 0 },
        { DTYPE_F6_E2M3, UINT64_MAX - 3, true, (UINT64_MAX - 3) / 4 * 3 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 77;
        if (dtype_bytes(cases[i].dtype, cases[i].elements, &bytes) != cases[i].ok || bytes != (cases[i].ok ? cases[i].bytes : 77))
            fail_msg("%s, %llu elements: %llu bytes", dtype_info(cases[i].dtype)->name, (unsigned long long)cases[i].elements,
                     (unsigned long long)bytes);
    }
}

TEST(the_table_is_consistent)
{
    int ranks[64] = { 0 };
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        unsigned bytes = dtype_element_bytes((enum dtype)i);
        assert_int_equal(bytes, info->bits % 8 ? 0 : info->bits / 8);
        assert_true(bytes == 0 || bytes % info->swap_bytes == 0);
        if (info->safetensors_rank >= 0)
            assert_int_equal(++ranks[info->safetensors_rank], 1);
    }
    int last = 63;
    while (!ranks[last])
        last--;
    for (int i = 0; i <= last; i++)
        assert_int_equal(ranks[i], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_found_by_each_of_its_names),
        cmocka_unit_test(other_names_are_unknown),
        cmocka_unit_test(sizes_are_whole_bytes_or_refused),
        cmocka_unit_test(the_table_is_consistent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
