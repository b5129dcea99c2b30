/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "output.h"

#include <stdlib.h>

/* Display width: code points; good enough for names. */
static size_t text_width(const char *text, size_t size)
{
    size_t width = 0;
    for (size_t i = 0; i < size; i++)
        width += ((unsigned char)text[i] & 0xC0) != 0x80;
    return width;
}

/* Ends of cells are noted when the next one begins. */
static void note_end(struct table *table)
{
    if (table->count) {
        fflush(table->text);
        table->ends[table->count - 1] = table->block_size;
    }
}

static void print_block(struct table *table)
{
    note_end(table);
    for (size_t i = 0, start = 0; i < table->count; start = table->ends[i++]) {
        size_t width = text_width(table->block + start, table->ends[i] - start);
        if (width > table->widths[i % table->columns])
            table->widths[i % table->columns] = width;
    }
    for (size_t i = 0, start = 0; i < table->count; start = table->ends[i++]) {
        size_t size = table->ends[i] - start, column = i % table->columns;
        fwrite(table->block + start, 1, size, stdout);
        if (column == table->columns - 1)
            putchar('\n');
        else
            printf("%*s", (int)(table->widths[column] - text_width(table->block + start, size) + 2), "");
    }
    fclose(table->text);
    free(table->block);
    table->text = NULL;
    table->block = NULL;
    table->count = 0;
}

FILE *table_cell(struct table *table)
{
    if (table->text && table->count == TABLE_BLOCK_CELLS - TABLE_BLOCK_CELLS % table->columns)
        print_block(table);
    if (table->count == 0 && is_terminal())
        table->text = open_memstream(&table->block, &table->block_size);
    if (table->text)
        note_end(table);
    else if (table->count)
        putchar(table->count % table->columns ? '\t' : '\n');
    table->count++;
    return table->text ? table->text : stdout;
}

void table_end(struct table *table)
{
    if (table->text)
        print_block(table);
    else if (table->count)
        putchar('\n');
    *table = (struct table){ .columns = table->columns };
}
