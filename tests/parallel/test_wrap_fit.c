/* SPDX-License-Identifier: Apache-2.0 */
/* Which modules FSDP1 wrapped: what is found from pieces and from sizes, and where nothing or two things fit. */
#include "check.h"

#include "parallel/flat_unit.h"
#include "parallel/wrap_fit.h"

static const struct wrap_parameter model[] = {
    { { "cube", 4 }, 105 },   { { "embed.weight", 12 }, 119 }, { { "h.0.a.w", 7 }, 63 }, { { "h.0.a.b", 7 }, 9 },
    { { "h.0.norm", 8 }, 7 }, { { "h.0.up", 6 }, 77 },         { { "h.1.a.w", 7 }, 63 }, { { "h.1.a.b", 7 }, 9 },
    { { "h.1.norm", 8 }, 7 }, { { "h.1.up", 6 }, 77 },         { { "norm.w", 6 }, 7 },   { { "empty", 5 }, 0 },
};
#define COUNT (sizeof(model) / sizeof(model[0]))

struct fit_case {
    const char *why, *wrapped, *rule; /* how it was wrapped; the only way to be tried, or NULL */
    uint32_t shards, unseen;          /* unseen: a parameter of which there is no piece, or COUNT */
    int64_t alignment;                /* 1: sizes are seen, else pieces */
    enum wrap_fit found;
};

static const struct fit_case cases[] = {
    { "blocks, by pieces", "h.*", NULL, 3, COUNT, 4, WRAP_FITS },
    { "mixed precision", "h.*", NULL, 3, COUNT, 8, WRAP_FITS },
    { "modules in blocks", "h.*|h.*.a", NULL, 4, COUNT, 4, WRAP_FITS },
    { "the root", "root", NULL, 5, COUNT, 4, WRAP_FITS },
    { "a frozen parameter has no state", "h.*", NULL, 3, 5, 4, WRAP_FITS },
    { "blocks, by sizes", "h.*", NULL, 3, COUNT, 1, WRAP_FITS },
    { "modules in blocks, by sizes", "h.*|h.*.a", NULL, 3, COUNT, 1, WRAP_FITS },
    { "the root, by its size", "root", NULL, 7, COUNT, 1, WRAP_FITS },
    { "a rule that is right", "h.*", "h.*", 3, COUNT, 4, WRAP_FITS },
    { "a rule that is wrong", "h.*", "root", 3, COUNT, 4, WRAP_FITS_NOT },
    { "a kind of block that no path names", "h.1", NULL, 3, COUNT, 4, WRAP_FITS_NOT },
    { "an alignment that FSDP1 does not have", "h.*", NULL, 3, COUNT, 32, WRAP_FITS_NOT },
    { "one rank holds all: nothing tells", "h.*", NULL, 1, COUNT, 4, WRAP_FITS_TWICE },
};

static void see(const struct fit_case *c, const struct wrap_units *units, int64_t *pieces, int64_t *sizes)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct wrap_place *place = &units->places[i];
        int64_t piece = flat_unit_piece(units->ends[place->unit], c->shards);
        for (uint32_t s = 0; s < c->shards; s++) {
            struct flat_unit_part part;
            bool is_there = flat_unit_part_of(piece, c->shards, s, place->start, model[i].elements, &part);
            pieces[i * c->shards + s] = i == c->unseen ? -1 : is_there ? part.count : 0;
        }
    }
    for (uint32_t i = 0; i < units->count; i++)
        sizes[i] = flat_unit_piece(units->ends[i], c->shards);
}

/* Units found by pieces have numbers of their own. */
static bool are_same(const struct wrap_units *a, const struct wrap_units *b)
{
    bool same = a->count == b->count && a->alignment == b->alignment;
    for (size_t i = 0; same && i < COUNT; i++)
        same = a->places[i].start == b->places[i].start && a->ends[a->places[i].unit] == b->ends[b->places[i].unit];
    return same;
}

TEST(wrappings_are_found)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct fit_case *c = &cases[i];
        struct wrap_units real, got;
        int64_t pieces[COUNT * 8], sizes[COUNT];
        reshard_error err = { 0 };
        enum wrap_fit found;
        assert_int_equal(wrap_units_of_rule(model, COUNT, c->wrapped, c->alignment, &real, &err), RESHARD_OK);
        see(c, &real, pieces, sizes);
        struct wrap_sight sight = { .parameters = model,
                                    .count = COUNT,
                                    .shards = c->shards,
                                    .rule = c->rule,
                                    .element_bytes = 4,
                                    .pieces = c->alignment > 1 ? pieces : NULL,
                                    .sizes = sizes,
                                    .size_count = real.count };
        assert_int_equal(wrap_fit(&sight, NULL, &found, &got, &err), RESHARD_OK);
        if (found != c->found || (found == WRAP_FITS && !are_same(&real, &got)))
            fail_msg("%s: %d", c->why, (int)found);
        wrap_units_release(&real);
        wrap_units_release(&got);
    }
}

/* Both alignments put parameters of 8 and 16 elements into the same places: that is said. */
TEST(an_open_alignment_is_said)
{
    static const struct wrap_parameter even[] = { { { "a.w", 3 }, 16 }, { { "b.w", 3 }, 8 } };
    const int64_t pieces[] = { 12, 4, 0, 8 };
    struct wrap_sight sight = { .parameters = even, .count = 2, .shards = 2, .pieces = pieces, .element_bytes = 4 };
    struct wrap_units got;
    reshard_error err = { 0 };
    enum wrap_fit found;
    assert_int_equal(wrap_fit(&sight, NULL, &found, &got, &err), RESHARD_OK);
    assert_int_equal(found, WRAP_FITS);
    assert_int_equal(got.alignment, 4);
    assert_int_equal(got.other_alignment, 8);
    wrap_units_release(&got);
}

TEST(sizes_that_overflow_are_refused)
{
    static const struct wrap_parameter huge[] = { { { "a", 1 }, INT64_MAX / 2 }, { { "b", 1 }, INT64_MAX / 2 } };
    const int64_t sizes[] = { 1 };
    struct wrap_sight sight = { .parameters = huge, .count = 2, .shards = 2, .sizes = sizes, .size_count = 1 };
    struct wrap_units got;
    reshard_error err = { 0 };
    enum wrap_fit found;
    assert_int_equal(wrap_fit(&sight, NULL, &found, &got, &err), RESHARD_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(wrappings_are_found), cmocka_unit_test(an_open_alignment_is_said),
                                        cmocka_unit_test(sizes_that_overflow_are_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
