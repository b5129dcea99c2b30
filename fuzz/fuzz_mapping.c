/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a mapping: parsed, expanded, checked, evaluated and inverted over a small source. Byte 0: bit 0 strict, bit 1 backwards, bit
 * 2 with a target. What follows a NUL is the description of the source instead of the one here; a second NUL ends it. An inverse that is
 * found must parse.
 */
#include "outcome.h"
#include "reshard/reshard.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const char source_text[] =
    "{\"tensors\":{\"l.0.q\":{\"dtype\":\"float32\",\"shape\":[8,4]},\"l.0.k\":{\"dtype\":\"float32\",\"shape\":[4,4]},"
    "\"l.0.v\":{\"dtype\":\"float32\",\"shape\":[4,4]},\"l.1.q\":{\"dtype\":\"float32\",\"shape\":[8,4]},\"l.1.e.0.w\":{\"dtype\":"
    "\"bfloat16\",\"shape\":[6]},"
    "\"l.1.e.10.w\":{\"dtype\":\"bfloat16\",\"shape\":[6]},\"a\":{\"dtype\":\"float32\",\"shape\":[2,3,4]},\"b\":{\"dtype\":\"float16\","
    "\"shape\":[]},"
    "\"m\":{\"dtype\":\"float32\",\"shape\":[2,16],\"shards\":[[[0,0],[2,8]],[[0,8],[2,8]]]},"
    "\"m.moment1_0\":{\"dtype\":\"float32\",\"shape\":[2,16],\"shards\":[[[0,0],[2,8]],[[0,8],[2,8]]]},\"m.beta1_pow_acc_0\":{\"dtype\":"
    "\"float32\",\"shape\":[1]}}}";

static const char target_text[] =
    "{\"tensors\":{\"t\":{\"dtype\":\"float32\",\"shape\":[4,8]},\"a\":{\"dtype\":\"float32\",\"shape\":[2,3,4]},"
    "\"m\":{\"dtype\":\"float32\",\"shape\":[2,16],\"shards\":[[[0,0],[2,4]],[[0,4],[2,4]],[[0,8],[2,4]],[[0,12],[2,4]]]}}}";

typedef reshard_status (*function)(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

/* The inverse runs from what the mapping put out; without a target that is only known inside, so the syntax must do. */
static void check_inverse(const reshard_map_output *inverse)
{
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    input.text = inverse->text;
    input.size = strlen(inverse->text);
    if (reshard_map_parse(&input, &output, NULL))
        abort();
    reshard_map_output_release(&output);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const function functions[] = { reshard_map_parse, reshard_map_expand, reshard_map_check, reshard_map_eval, reshard_map_invert };
    static const reshard_limit_change limits[] = {
        { "map_names", 20000 }, { "map_pieces", 20000 }, { "box_checks", 1000000 }, { "item_bytes", 100000 }
    };
    reshard_map_space *source = NULL, *target = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    if (size == 0)
        return 0;
    const uint8_t *end = memchr(bytes + 1, 0, size - 1);
    const char *description = end ? (const char *)end + 1 : source_text;
    size_t rest = end ? (size_t)(bytes + size - end) - 1 : sizeof(source_text) - 1;
    const char *second = end ? memchr(description, 0, rest) : NULL;
    if (reshard_map_space_describe(description, second ? (size_t)(second - description) : rest, &source, &err) ||
        reshard_map_space_describe(target_text, sizeof(target_text) - 1, &target, &err)) {
        reshard_map_space_free(source);
        return 0;
    }
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    input.text = (const char *)bytes + 1;
    input.size = end ? (size_t)(end - bytes) - 1 : size - 1;
    input.source = source;
    input.target = bytes[0] & 4 ? target : NULL;
    input.strict = bytes[0] & 1;
    input.reverse = bytes[0] >> 1 & 1;
    input.limits = limits;
    input.limit_count = sizeof(limits) / sizeof(limits[0]);
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
        if (outcome_status(functions[i](&input, &output, &err), &err) == RESHARD_OK) {
            outcome_text(str_of(output.json));
            if (functions[i] == reshard_map_invert)
                check_inverse(&output);
        }
        outcome_number((uint64_t)output.error_count << 32 | output.warning_count);
        reshard_map_output_release(&output);
    }
    reshard_map_space_free(source);
    reshard_map_space_free(target);
    return 0;
}
