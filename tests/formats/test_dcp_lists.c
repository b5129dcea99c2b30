/* SPDX-License-Identifier: Apache-2.0 */
/* Which lists of a state dict are written under flat names: those that torch.distributed.checkpoint would not make again. */
#include "check.h"

#include "formats/dcp/dcp_lists.h"

#define KEY(text) { .kind = PATH_KEY, .key = STR(text) }
#define AT(number) { .kind = PATH_INDEX, .index = number }

TEST(torch_opens_lists_with_a_tensor_or_a_dict_in_them)
{
    const struct path_part plain[2][2] = { { KEY("betas"), AT(0) }, { KEY("betas"), AT(1) } };
    const struct path_part tensors[2][2] = { { KEY("layers"), AT(0) }, { KEY("layers"), AT(1) } };
    const struct path_part groups[1][3] = { { KEY("groups"), AT(0), KEY("lr") } };
    const struct path_part sparse[1][2] = { { KEY("holes"), AT(1) } };
    struct dcp_lists lists = { 0 };
    reshard_error err = { 0 };
    for (int i = 0; i < 2; i++) {
        CHECK_OK(dcp_lists_add(&lists, plain[i], 2, false, &err));
        CHECK_OK(dcp_lists_add(&lists, tensors[i], 2, i == 1, &err));
    }
    CHECK_OK(dcp_lists_add(&lists, groups[0], 3, false, &err));
    CHECK_OK(dcp_lists_add(&lists, sparse[0], 2, true, &err));
    assert_true(dcp_lists_are_flat(&lists, plain[0], 2));
    assert_true(dcp_lists_are_flat(&lists, plain[1], 2));
    assert_false(dcp_lists_are_flat(&lists, tensors[0], 2));
    assert_false(dcp_lists_are_flat(&lists, groups[0], 3));
    assert_true(dcp_lists_are_flat(&lists, sparse[0], 2));
    dcp_lists_release(&lists);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(torch_opens_lists_with_a_tensor_or_a_dict_in_them) };
    return cmocka_run_group_tests_name("dcp_lists", tests, NULL, NULL);
}
