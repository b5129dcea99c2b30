/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that cross the boundary, as programs of any version may pass them. A table has a row for each struct and a call that takes it;
 * where its members begin comes from the headers themselves ("api/public_members.h", made by tests/abi/public_headers.py), and tests/abi
 * says what the tables lack.
 */
#ifndef TESTS_API_ARGUMENTS_H
#define TESTS_API_ARGUMENTS_H

#include "check.h"

#include "reshard/async.h"
#include "reshard/layers.h"
#include "reshard/plan.h"
#include "reshard/store.h"
#include "reshard/transfers.h"
#include "reshard/writer.h"

#include <stdbool.h>

extern reshard_error err; /* of every call */

struct struct_case {
    const char *name;
    size_t size;
    const void *init;                      /* of a struct that is handed in; NULL: of one that is filled in */
    reshard_status (*call)(void *given);
    reshard_status (*fails)(void *given);  /* a call that fails and has zeroed the struct; NULL for one that is handed in */
    const size_t *members;                 /* where those behind struct_size begin, then 0 */
};

#define IN(type, init, call) { #type, sizeof(type), init, call, NULL, MEMBERS_##type }
#define OUT(type, call, fails) { #type, sizeof(type), NULL, call, fails, MEMBERS_##type }

/* What a program of any version may rely on, for all rows of a table. */
void check_cut_structs(const struct struct_case *cases, size_t count);
void check_sizeless_structs(const struct struct_case *cases, size_t count);
void check_longer_structs(const struct struct_case *cases, size_t count);
void check_failed_structs(const struct struct_case *cases, size_t count);

#define STRUCT_TESTS(cases)                                                                                                                \
    TEST(a_struct_may_be_cut_after_every_member) { check_cut_structs(cases, sizeof(cases) / sizeof(cases[0])); }                           \
    TEST(a_struct_without_a_size_is_refused) { check_sizeless_structs(cases, sizeof(cases) / sizeof(cases[0])); }                          \
    TEST(a_longer_struct_is_taken_unless_what_is_not_known_is_set) { check_longer_structs(cases, sizeof(cases) / sizeof(cases[0])); }      \
    TEST(a_struct_that_is_filled_in_is_zeroed_on_failure) { check_failed_structs(cases, sizeof(cases) / sizeof(cases[0])); }
#define STRUCT_TEST_NAMES                                                                                                                  \
    cmocka_unit_test(a_struct_may_be_cut_after_every_member), cmocka_unit_test(a_struct_without_a_size_is_refused),                        \
        cmocka_unit_test(a_longer_struct_is_taken_unless_what_is_not_known_is_set),                                                        \
        cmocka_unit_test(a_struct_that_is_filled_in_is_zeroed_on_failure)

/* A cut struct may lack what the call needs: that is not the size's fault. */
reshard_status unless_lacking(reshard_status status);

/*
 * An array whose members may be longer or shorter than ours. call is handed the array and its stride; it makes use of what every member of
 * ours says. Members that are filled in, too, are handed back as far as theirs go.
 */
struct array_case {
    const char *where; /* "reshard_map_options.text_stride" */
    const char *name;
    size_t size, count;
    const void *array;
    reshard_status (*call)(const void *array, size_t stride, size_t count);
};
#define ARRAY(struct_or_call, stride, type, array, call) \
    { #struct_or_call "." #stride, #type, sizeof(type), sizeof(array) / sizeof(array[0]), array, call }
void check_arrays(const struct array_case *cases, size_t count);

/* NULL where something is needed: the message begins with the name of the function, or of a struct. The record of the error is one of a
 * version that has no hints yet: what lies behind it is not the library's, in any function. */
#define REFUSED(call)                                                                              \
    do {                                                                                           \
        refused_begin();                                                                           \
        reshard_status refused_status = (call);                                                    \
        refused_end(#call, refused_status);                                                        \
    } while (0)
void refused_begin(void);
void refused_end(const char *call, reshard_status status);

#endif
