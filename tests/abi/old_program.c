/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of version 0.2: it is built with the headers in reshard-0.2, and must run with every later library. It sees nothing of the
 * library but these. Prints TAP: old_program SOURCE TARGET
 */
#include "reshard/reshard.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count, failures;
static reshard_error err = RESHARD_ERROR_INIT;

static void check(int holds, const char *what)
{
    failures += !holds;
    printf("%s %d - %s\n", holds ? "ok" : "not ok", ++count, what);
    if (!holds)
        printf("# %s: %s\n", err.message, err.hint);
}

static int go_on(const reshard_progress *progress, void *context)
{
    *(size_t *)context += progress->struct_size >= sizeof(*progress);
    return 0;
}

static int count_finding(const reshard_finding *finding, void *context)
{
    *(size_t *)context += finding->struct_size >= sizeof(*finding) && finding->kind && finding->text;
    return 0;
}

static int add_hash(size_t tensor, const char *hex, void *context)
{
    *(size_t *)context += strlen(hex) == 16 && tensor < 1000;
    return 0;
}

static void look_at_tensors(const reshard_checkpoint *checkpoint)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    reshard_path_part part = RESHARD_PATH_PART_INIT;
    reshard_dtype dtype = RESHARD_DTYPE_INIT;
    size_t good = 0;
    for (size_t i = 0; i < reshard_tensor_count(checkpoint); i++)
        good += !reshard_tensor_at(checkpoint, i, &tensor) && !reshard_dtype_find(tensor.dtype, &dtype) && dtype.bits &&
                !reshard_chunk_at(checkpoint, i, 0, &chunk) && chunk.file.size && !reshard_tensor_path_at(checkpoint, i, 0, &part) &&
                part.kind == RESHARD_PATH_KEY && reshard_tensor_find(checkpoint, tensor.key.data, tensor.key.size) == (int64_t)i;
    check(good == reshard_tensor_count(checkpoint) && good == 7, "tensors, chunks and paths");
}

static void look_at_items(const reshard_checkpoint *checkpoint)
{
    reshard_item item = RESHARD_ITEM_INIT;
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    const reshard_value *value;
    size_t good = 0, size = 0;
    for (size_t i = 0; i < reshard_item_count(checkpoint); i++) {
        char *json = NULL;
        good += !reshard_item_at(checkpoint, i, &item) && !reshard_item_value(checkpoint, i, &value, &err) &&
                !reshard_value_look(checkpoint, value, &info) && !reshard_value_json(checkpoint, value, &json, &size, &err);
        reshard_free(json);
    }
    check(good == reshard_item_count(checkpoint) && good > 0, "items and values");
}

static void run(reshard_checkpoint *checkpoint, const char *target)
{
    reshard_run_options options = RESHARD_RUN_OPTIONS_INIT;
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    reshard_coverage coverage = RESHARD_COVERAGE_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_checkpoint *written = NULL;
    size_t calls = 0, hashes = 0, findings = 0;
    options.progress = go_on;
    options.context = &calls;
    check(!reshard_hash(checkpoint, "xxh3", &options, add_hash, &hashes, &err) && hashes == 7, "hash");
    verify.coverage = &coverage;
    check(!reshard_verify(checkpoint, &verify, &options, count_finding, &findings, &err) && coverage.tensors == 7, "verify");
    convert.to = "torch-dcp";
    convert.layout = "ranks=2";
    convert.overwrite = 1;
    check(!reshard_estimate(checkpoint, target, &convert, &options, &report, &err) && report.tensors == 7, "estimate");
    reshard_report_release(&report);
    check(!reshard_convert(checkpoint, target, &convert, &options, &report, &err) && report.tensors == 7 && calls > 0, "convert");
    reshard_report_release(&report);
    check(!reshard_open(target, NULL, &written, &err), "open what was written");
    check(written && !reshard_diff(checkpoint, written, NULL, &options, count_finding, &findings, &err), "diff");
    reshard_close(written);
}

static void map(void)
{
    static const char text[] = "a -> b\n";
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    input.text = text;
    input.size = sizeof(text) - 1;
    check(!reshard_map_parse(&input, &output, &err) && output.json && output.error_count == 0, "a mapping");
    reshard_map_output_release(&output);
}

int main(int argc, char **argv)
{
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    reshard_checkpoint *checkpoint = NULL;
    if (argc != 3)
        return RESHARD_ERR_USAGE;
    check(!reshard_open(argv[1], &open, &checkpoint, &err), "open");
    if (checkpoint) {
        look_at_tensors(checkpoint);
        look_at_items(checkpoint);
        run(checkpoint, argv[2]);
    }
    map();
    reshard_close(checkpoint);
    printf("1..%d\n", count);
    return failures != 0;
}
