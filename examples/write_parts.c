/* SPDX-License-Identifier: Apache-2.0 */
/* A process writes its rows of one matrix, whatever the others do; `reshard commit` makes all visible: write_parts TARGET PART PARTS */
#include <reshard/writer.h>

#include <stdio.h>
#include <stdlib.h>

#define ROWS 12
#define COLUMNS 4

int main(int argc, char **argv)
{
    const int64_t shape[] = { ROWS, COLUMNS };
    const reshard_writer_tensor tensor = { { "w", 1 }, "float32", 2, shape };
    const reshard_state_item step = { { "step", 4 }, { "12", 2 } };
    float rows[ROWS * COLUMNS];
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_writer *writer = NULL;
    if (argc != 4)
        return fputs("usage: write_parts FOLDER PART PARTS\n", stderr), 2;
    input.tensors = &tensor, input.tensor_count = 1;
    input.items = &step, input.item_count = 1;
    options.to = "torch-dcp";
    options.layout = "ranks=2";
    options.part = strtoull(argv[2], NULL, 10), options.part_count = strtoull(argv[3], NULL, 10);
    const int64_t first = (int64_t)(ROWS * options.part / options.part_count);
    const int64_t start[] = { first, 0 }, extent[] = { (int64_t)(ROWS * (options.part + 1) / options.part_count) - first, COLUMNS };
    for (int64_t i = 0; i < extent[0] * COLUMNS; i++)
        rows[i] = (float)(first * COLUMNS + i);
    piece.start = start, piece.extent = extent;
    piece.data = rows, piece.size = (size_t)(extent[0] * COLUMNS) * sizeof(*rows);
    reshard_status status = reshard_writer_open(&input, argv[1], &options, NULL, NULL, &writer, &err);
    status = status ? status : reshard_writer_put(writer, &piece, &err);
    status = status ? status : reshard_writer_finish(writer, &err);
    if (status)
        fprintf(stderr, "write_parts: %s\n", err.message);
    reshard_writer_free(writer);
    return status != RESHARD_OK;
}
