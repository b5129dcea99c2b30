/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a part of a target says that it has written, and what it was opened with, as the commit reads them: any bytes behind the right
 * beginning, with the right checksum.
 * A commit succeeds, and what is visible then opens, or it fails, and nothing is visible.
 */
#include "base/crc32.h"
#include "outcome.h"
#include "reshard/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEGINNING 16 /* magic and identity */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static char work[64], target[96], record[160];
static uint8_t beginning[BEGINNING];

static const int64_t shape[] = { 2, 3 };
static const reshard_writer_tensor tensors[] = { { { "w", 1 }, "F32", 2, shape }, { { "none", 4 }, "F32", 2, (const int64_t[]){ 0, 3 } } };

static reshard_convert_options options_make(void)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    options.to = "torch-dcp";
    options.no_sync = 1;
    options.part_count = 1;
    return options;
}

static reshard_writer_input input_make(void)
{
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    input.tensors = tensors;
    input.tensor_count = 2;
    return input;
}

static void must(int is_good)
{
    if (!is_good)
        abort();
}

static void work_remove(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", work);
    must(system(command) == 0);
}

/* A target whose only part has written all. */
static void part_write(void)
{
    static const float values[] = { 1, 2, 3, 4, 5, 6 };
    const reshard_convert_options options = options_make();
    const reshard_writer_input input = input_make();
    reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_writer *writer;
    piece.data = values;
    piece.size = sizeof(values);
    must(!reshard_writer_open(&input, target, &options, NULL, NULL, &writer, NULL));
    must(!reshard_writer_put(writer, &piece, NULL));
    must(!reshard_writer_finish(writer, NULL));
    reshard_writer_free(writer);
    FILE *file = fopen(record, "rb");
    must(file && fread(beginning, 1, BEGINNING, file) == BEGINNING);
    fclose(file);
}

static void work_make(void)
{
    strcpy(work, access("/dev/shm", W_OK) == 0 ? "/dev/shm/reshard-fuzz-XXXXXX" : "/tmp/reshard-fuzz-XXXXXX");
    must(mkdtemp(work) != NULL);
    snprintf(target, sizeof(target), "%s/target", work);
    snprintf(record, sizeof(record), "%s/.target.reshard-partial/.part-0-of-1", work);
    atexit(work_remove);
    part_write();
}

static void record_write(const uint8_t *bytes, size_t size)
{
    uint32_t crc = crc32c(crc32c(0, beginning, BEGINNING), bytes, size);
    FILE *file = fopen(record, "wb");
    must(file != NULL);
    fwrite(beginning, 1, BEGINNING, file);
    if (size)
        fwrite(bytes, 1, size, file);
    fwrite(&crc, 1, sizeof(crc), file);
    fclose(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    reshard_convert_options options = options_make();
    const reshard_writer_input input = input_make();
    if (!work[0])
        work_make();
    record_write(bytes, size);
    options.part_count = 0;
    reshard_status status = outcome_status(reshard_writer_commit(&input, target, &options, NULL, NULL, NULL), NULL);
    must((status == RESHARD_OK) == (access(target, F_OK) == 0));
    if (status) {
        status = outcome_status(reshard_writer_commit(NULL, target, NULL, NULL, NULL, NULL), NULL);
        must((status == RESHARD_OK) == (access(target, F_OK) == 0));
    }
    if (status)
        return 0;
    reshard_checkpoint *opened;
    char command[128];
    must(!reshard_open(target, NULL, &opened, NULL));
    reshard_close(opened);
    snprintf(command, sizeof(command), "rm -r %s", target);
    must(system(command) == 0);
    part_write();
    return 0;
}
