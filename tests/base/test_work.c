/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "base/work.h"

TEST(a_budget_is_spent_to_the_last_unit)
{
    struct work work;
    work_begin(&work, 100);
    assert_true(work_take(&work, 60));
    assert_int_equal(work_left(&work, 1000), 40);
    assert_int_equal(work_left(&work, 7), 7);
    assert_true(work_take(&work, 40));
    assert_false(work_is_spent(&work));
    assert_false(work_take(&work, 1));
    assert_true(work_is_spent(&work));
    assert_int_equal(work_left(&work, 7), 0);
}

TEST(a_spent_budget_stays_spent_until_it_is_renewed)
{
    struct work work;
    work_begin(&work, 100);
    assert_false(work_take(&work, 101));
    assert_false(work_take(&work, 0));
    work_add_input(&work, 1000);
    assert_false(work_take(&work, 1));
    work_renew(&work);
    assert_true(work_take(&work, 100 + 1000 * WORK_PER_BYTE));
    assert_false(work_take(&work, 1));
}

TEST(input_makes_a_budget_larger)
{
    struct work work;
    work_begin(&work, 0);
    work_add_input(&work, 3);
    work_add_input(&work, 1);
    assert_int_equal(work_left(&work, UINT64_MAX), 4 * WORK_PER_BYTE);
    assert_true(work_take_steps(&work, 4 * WORK_PER_BYTE / WORK_STEP));
    assert_false(work_take_steps(&work, 1));
}

TEST(huge_numbers_do_not_wrap)
{
    struct work work;
    work_begin(&work, UINT64_MAX);
    work_add_input(&work, UINT64_MAX);
    work_add_input(&work, UINT64_MAX);
    assert_true(work_take(&work, UINT64_MAX));
    assert_false(work_take_steps(&work, UINT64_MAX));
    for (int i = 0; i < 10; i++)
        assert_false(work_take(&work, UINT64_MAX));
}

TEST(the_error_names_the_limit_and_how_to_raise_it)
{
    reshard_error err = { 0 };
    struct work work;
    work_begin(&work, 100);
    assert_int_equal(work_spend(&work, 99, &err), RESHARD_OK);
    assert_int_equal(work_error(&work, &err), RESHARD_ERR_MEMORY);
    assert_int_equal(work_spend_steps(&work, 1, &err), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.message, "work: "));
    assert_non_null(strstr(err.message, "100 units"));
    assert_non_null(strstr(err.hint, "reshard_open_options.limits work=401"));
    assert_int_equal(work_error(&work, &err), RESHARD_ERR_LIMIT);
}

TEST(no_budget_has_no_end)
{
    assert_true(work_take(NULL, UINT64_MAX));
    assert_true(work_take_steps(NULL, UINT64_MAX));
    assert_int_equal(work_spend(NULL, UINT64_MAX, NULL), RESHARD_OK);
    assert_true(work_left(NULL, UINT64_MAX) == UINT64_MAX);
    assert_int_equal(work_error(NULL, NULL), RESHARD_ERR_MEMORY);
    work_add_input(NULL, 1);
    work_renew(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_is_spent_to_the_last_unit),
        cmocka_unit_test(a_spent_budget_stays_spent_until_it_is_renewed),
        cmocka_unit_test(input_makes_a_budget_larger),
        cmocka_unit_test(huge_numbers_do_not_wrap),
        cmocka_unit_test(the_error_names_the_limit_and_how_to_raise_it),
        cmocka_unit_test(no_budget_has_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
