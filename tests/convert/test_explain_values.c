/* SPDX-License-Identifier: Apache-2.0 */
/* What is told of two tensors that differ in their values: each usual mistake, and what looks like one and is none. */
#include "check.h"

#include "convert/explain_slices.h"

#include <math.h>

#define ELEMENTS 3000 /* some blocks of those that are looked at at a time, and a part of one */

static float ramp[ELEMENTS], zeros[ELEMENTS], scaled[ELEMENTS], cut[ELEMENTS], rounded[ELEMENTS];
static uint16_t codes_cut[ELEMENTS], codes_rounded[ELEMENTS];
static double wide[ELEMENTS];
static const int64_t row[] = { ELEMENTS };

static float upper_half(float value, uint32_t more)
{
    uint32_t code;
    memcpy(&code, &value, sizeof(code));
    code = (code + more) & 0xffff0000;
    memcpy(&value, &code, sizeof(value));
    return value;
}

static uint16_t code_of(float value)
{
    uint32_t code;
    memcpy(&code, &value, sizeof(code));
    return (uint16_t)(code >> 16);
}

static int make_values(void **state)
{
    (void)state;
    for (int i = 0; i < ELEMENTS; i++) {
        ramp[i] = 1 + (float)i / 1024 + 0x1p-20f; /* bfloat16 keeps eight digits */
        scaled[i] = ramp[i] * 3;
        cut[i] = upper_half(ramp[i], 0);
        rounded[i] = upper_half(ramp[i], 0x8000);
        codes_cut[i] = code_of(cut[i]);
        codes_rounded[i] = code_of(rounded[i]);
        wide[i] = ramp[i];
    }
    return 0;
}

static struct held_tensor held(const void *bytes, enum dtype dtype, int rank, const int64_t *shape)
{
    struct held_tensor tensor = { bytes, 1, shape, dtype, rank };
    for (int i = 0; i < rank; i++)
        tensor.elements *= (uint64_t)shape[i];
    return tensor;
}

static void check_text(struct held_tensor a, struct held_tensor b, const char *expected)
{
    struct buffer out = { 0 };
    bool is_told = explain_values(&a, &b, &out);
    assert_true(buffer_append_byte(&out, 0));
    assert_string_equal((const char *)out.data, expected);
    assert_int_equal(is_told, *expected != 0);
    buffer_release(&out);
}

static void check_f32(const float *a, const float *b, const char *expected)
{
    check_text(held(a, DTYPE_F32, 1, row), held(b, DTYPE_F32, 1, row), expected);
}

TEST(nothing_but_zeros)
{
    static float first[ELEMENTS], last[ELEMENTS], minus[ELEMENTS];
    last[ELEMENTS - 1] = first[0] = 1e-30f;
    for (int i = 0; i < ELEMENTS; i++)
        minus[i] = -0.0f;
    check_f32(ramp, zeros, "the second is nothing but zeros");
    check_f32(zeros, ramp, "the first is nothing but zeros");
    check_f32(ramp, minus, "the second is nothing but zeros");
    check_f32(ramp, last, "");
    check_f32(ramp, first, "");
    const float imaginary[] = { 0, 1 }, nothing[] = { 0, 0 };
    const int64_t one[] = { 1 };
    check_text(held(nothing, DTYPE_C64, 1, one), held(nothing, DTYPE_C64, 1, one), "the second is nothing but zeros");
    check_text(held(imaginary, DTYPE_C64, 1, one), held(imaginary, DTYPE_C64, 1, one), "");
}

TEST(casts)
{
    const struct held_tensor f32 = held(ramp, DTYPE_F32, 1, row), f64 = held(wide, DTYPE_F64, 1, row),
                             bf16 = held(codes_rounded, DTYPE_BF16, 1, row), bf16_cut = held(codes_cut, DTYPE_BF16, 1, row);
    check_text(f32, bf16, "the second is the first, cast to BF16");
    check_text(bf16, f32, "the first is the second, cast to BF16");
    check_text(f32, f64, "the second is the first, cast to F64");
    check_text(f32, bf16_cut, "the second was cast to BF16 by cutting digits off, not by rounding");
    check_text(bf16_cut, f32, "the first was cast to BF16 by cutting digits off, not by rounding");
    check_f32(ramp, rounded, "the second was cast to BF16, a narrower type, and back");
    check_f32(rounded, ramp, "the first was cast to BF16, a narrower type, and back");
    check_f32(ramp, cut, "the second was cast to BF16 by cutting digits off, not by rounding, and back");
    check_f32(cut, ramp, "the first was cast to BF16 by cutting digits off, not by rounding, and back");
}

static void check_with_one_element_changed(int at)
{
    static float almost_rounded[ELEMENTS], almost_cut[ELEMENTS], almost_scaled[ELEMENTS];
    static uint16_t almost_codes[ELEMENTS];
    memcpy(almost_rounded, rounded, sizeof(rounded));
    memcpy(almost_cut, cut, sizeof(cut));
    memcpy(almost_scaled, scaled, sizeof(scaled));
    memcpy(almost_codes, codes_cut, sizeof(codes_cut));
    almost_rounded[at] += 1;
    almost_cut[at] += 1;
    almost_scaled[at] *= 1.001f;
    almost_codes[at] ^= 4;
    check_f32(ramp, almost_rounded, "");
    check_f32(ramp, almost_cut, "");
    check_f32(ramp, almost_scaled, "");
    check_text(held(ramp, DTYPE_F32, 1, row), held(almost_codes, DTYPE_BF16, 1, row), "");
}

/* One element that is none of a cast's makes it no cast, in whichever block it is. */
TEST(one_element_more_is_another_matter)
{
    static const int places[] = { 0, 1023, 1024, ELEMENTS - 1 };
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
        check_with_one_element_changed(places[i]);
}

TEST(what_is_no_number_on_one_side_alone)
{
    static float torn[ELEMENTS], other[ELEMENTS];
    memcpy(torn, ramp, sizeof(ramp));
    memcpy(other, ramp, sizeof(ramp));
    torn[0] = NAN;
    check_f32(ramp, torn, "1 NaN in the second alone, all other values agree");
    check_f32(torn, ramp, "1 NaN in the first alone, all other values agree");
    torn[ELEMENTS - 1] = -INFINITY;
    torn[7] = INFINITY;
    check_f32(ramp, torn, "1 NaN in the second alone, 2 infinite in the second alone, all other values agree");
    other[5] = NAN;
    other[7] = INFINITY; /* of both */
    check_f32(other, torn,
              "1 NaN in the first alone, 1 NaN in the second alone, 1 infinite in the second alone, all other values agree");
    other[0] = INFINITY; /* against a NaN: neither is a number */
    check_f32(other, torn, "");
    torn[9] += 1;
    check_f32(ramp, torn, "");
}

TEST(one_factor_for_all)
{
    static float halved[ELEMENTS], inverse[ELEMENTS], little[ELEMENTS];
    static double wide_scaled[ELEMENTS], fine[ELEMENTS];
    static int32_t whole[ELEMENTS], doubled[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) {
        halved[i] = ramp[i] / 2;
        inverse[i] = -ramp[i];
        little[i] = ramp[i] * (1 + 0x1p-21f);
        wide_scaled[i] = wide[i] * 1e-3;
        doubled[i] = 2 * (whole[i] = i + 1);
    }
    check_f32(ramp, scaled, "the second is the first, scaled by 3");
    check_f32(ramp, halved, "the second is the first, scaled by 0.5");
    check_f32(ramp, inverse, "the second is the first, scaled by -1");
    check_f32(ramp, little, ""); /* no more than rounding */
    check_text(held(wide, DTYPE_F64, 1, row), held(wide_scaled, DTYPE_F64, 1, row), "the second is the first, scaled by 0.001");
    for (int i = 0; i < ELEMENTS; i++) {
        fine[i] = wide[i] + 1e-12;
        wide_scaled[i] = fine[i] * (1 + 0x1p-49);
    }
    check_text(held(fine, DTYPE_F64, 1, row), held(wide_scaled, DTYPE_F64, 1, row), "");
    check_text(held(whole, DTYPE_I32, 1, row), held(doubled, DTYPE_I32, 1, row), "");
}

TEST(the_last_two_axes_in_each_others_place)
{
    uint8_t a[24], b[24];
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 4; j++) {
                a[k * 12 + i * 4 + j] = (uint8_t)(k * 12 + i * 4 + j + 1);
                b[k * 12 + j * 3 + i] = a[k * 12 + i * 4 + j];
            }
    static const int64_t shape[] = { 2, 3, 4 }, turned[] = { 2, 4, 3 }, matrix[] = { 3, 4 }, turned_matrix[] = { 4, 3 },
                         two[] = { 1, 12 }, twelve[] = { 12, 1 }, other[] = { 1, 4, 3 }, backwards[] = { 4, 3, 2 }, square[] = { 2, 2 },
                         two_in_front[] = { 2, 1, 2, 2 }, two_behind[] = { 1, 2, 2, 2 };
    const char *const text = "the second is the first, transposed";
    check_text(held(a, DTYPE_U8, 3, shape), held(b, DTYPE_U8, 3, turned), text);
    check_text(held(a, DTYPE_U8, 2, matrix), held(b, DTYPE_U8, 2, turned_matrix), text);
    for (int i = 0; i < 24; i++) {
        b[i]++;
        check_text(held(a, DTYPE_U8, 3, shape), held(b, DTYPE_U8, 3, turned), "");
        b[i]--;
    }
    check_text(held(a, DTYPE_U8, 3, shape), held(b, DTYPE_U8, 3, shape), "");
    check_text(held(a, DTYPE_U8, 3, shape), held(b, DTYPE_I8, 3, turned), "");
    check_text(held(a, DTYPE_U8, 2, two), held(a, DTYPE_U8, 2, twelve), ""); /* the same bytes: no more than another shape */
    check_text(held(a, DTYPE_U8, 2, matrix), held(b, DTYPE_U8, 3, other), "");
    check_text(held(a, DTYPE_U8, 3, shape), held(b, DTYPE_U8, 2, turned_matrix), "");
    check_text(held(a, DTYPE_U8, 3, shape), held(b, DTYPE_U8, 3, backwards), "");
    const uint8_t small[] = { 1, 2, 3, 4, 5, 6, 7, 8 }, small_turned[] = { 1, 3, 2, 4, 5, 7, 6, 8 };
    check_text(held(small, DTYPE_U8, 2, square), held(small_turned, DTYPE_U8, 2, square), text);
    check_text(held(small, DTYPE_U8, 4, two_in_front), held(small_turned, DTYPE_U8, 4, two_in_front), text);
    check_text(held(small, DTYPE_U8, 4, two_in_front), held(small_turned, DTYPE_U8, 4, two_behind), ""); /* those before them must stay */
}

/* ---- fused weights ---- */

/* Slices of parts as `degree` ranks have them, rank behind rank: of each its share of the first part, of the second, … */
static void deal(int parts, const int64_t *sizes, int64_t degree, uint64_t *out)
{
    for (int64_t rank = 0; rank < degree; rank++)
        for (int part = 0; part < parts; part++)
            for (int64_t i = 0; i < sizes[part] / degree; i++)
                *out++ = (uint64_t)(1000 * (part + 1) + rank * (sizes[part] / degree) + i);
}

static void check_fused(int parts, const int64_t *sizes, int64_t degree_a, int64_t degree_b, const char *expected)
{
    uint64_t a[512], b[512];
    struct slice_order order = { .count = sizes[0] + sizes[1] + (parts == 3 ? sizes[2] : 0), .a = a, .b = b, .noun = "rows" };
    deal(parts, sizes, degree_a, a);
    deal(parts, sizes, degree_b, b);
    for (int64_t wrong = -1; wrong < order.count; wrong += order.count - 1) { /* in the last one, none would be that is another's */
        struct buffer out = { 0 };
        if (wrong >= 0)
            b[wrong] = 7;
        bool is_told = parts == 3 ? slices_fused_qkv(&order, &out) : slices_fused_pair(&order, &out);
        buffer_append_byte(&out, 0);
        assert_string_equal((const char *)out.data, wrong < 0 ? expected : "");
        assert_int_equal(is_told, *(const char *)out.data != 0);
        buffer_release(&out);
    }
}

TEST(fused_weights_of_another_number_of_ranks)
{
    check_fused(2, (int64_t[]){ 8, 8 }, 1, 4,
                "rows of two fused weights (gate and up) are interleaved for 4 tensor-parallel ranks in the second, for 1 in the first");
    check_fused(2, (int64_t[]){ 4, 4 }, 4, 1,
                "rows of two fused weights (gate and up) are interleaved for 1 tensor-parallel ranks in the second, for 4 in the first");
    check_fused(2, (int64_t[]){ 9, 9 }, 1, 3, ""); /* a number that nobody has */
    check_fused(3, (int64_t[]){ 2, 2, 2 }, 1, 2,
                "rows of fused q, k and v are interleaved for 2 tensor-parallel ranks in the second, for 1 in the first");
    check_fused(3, (int64_t[]){ 6, 6, 6 }, 3, 2,
                "rows of fused q, k and v are interleaved for 2 tensor-parallel ranks in the second, for 3 in the first");
    check_fused(3, (int64_t[]){ 16, 4, 4 }, 4, 2,
                "rows of fused q, k and v are interleaved for 2 tensor-parallel ranks in the second, for 4 in the first (4 of q for one of "
                "k and v)");
    check_fused(3, (int64_t[]){ 128, 2, 2 }, 1, 2,
                "rows of fused q, k and v are interleaved for 2 tensor-parallel ranks in the second, for 1 in the first (64 of q for one "
                "of k and v)");
    check_fused(3, (int64_t[]){ 130, 2, 2 }, 1, 2, "");
    uint64_t one[9] = { 5 }, dealt[9] = { 5 };
    deal(2, (int64_t[]){ 4, 4 }, 1, one);
    deal(2, (int64_t[]){ 4, 4 }, 4, dealt);
    const struct slice_order few = { .count = 1, .a = one, .b = one, .noun = "rows" };
    const struct slice_order odd = { .count = 9, .a = one, .b = dealt, .noun = "rows" };
    struct buffer out = { 0 };
    assert_false(slices_fused_pair(&few, &out) || slices_fused_qkv(&few, &out));
    assert_false(slices_fused_pair(&odd, &out));
    assert_int_equal(out.size, 0);
}

/* The shapes must be one, and there must be something to look at. */
TEST(what_is_not_compared_is_not_explained)
{
    static const int64_t none[] = { 0 }, half[] = { ELEMENTS / 2 }, matrix[] = { 2, ELEMENTS / 2 };
    check_text(held(ramp, DTYPE_F32, 1, none), held(zeros, DTYPE_F32, 1, none), "");
    check_text(held(ramp, DTYPE_F32, 1, row), held(zeros, DTYPE_F32, 1, half), "");
    check_text(held(ramp, DTYPE_F32, 1, row), held(zeros, DTYPE_F32, 2, matrix), "");
    check_text(held(ramp, DTYPE_QINT32, 1, row), held(zeros, DTYPE_QINT32, 1, row), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_but_zeros),
        cmocka_unit_test(casts),
        cmocka_unit_test(one_element_more_is_another_matter),
        cmocka_unit_test(what_is_no_number_on_one_side_alone),
        cmocka_unit_test(one_factor_for_all),
        cmocka_unit_test(the_last_two_axes_in_each_others_place),
        cmocka_unit_test(fused_weights_of_another_number_of_ranks),
        cmocka_unit_test(what_is_not_compared_is_not_explained),
    };
    return cmocka_run_group_tests(tests, make_values, NULL);
}
