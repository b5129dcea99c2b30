/* SPDX-License-Identifier: Apache-2.0 */
#include "base/value_print.h"

#include <stdlib.h>

#include "base/array.h"

static bool value_print_out_of_memory(struct printer *printer)
{
    printer->no_memory = true;
    return false;
}

bool printer_enter(struct printer *printer, const struct value *node, bool *is_open)
{
    uint32_t *mark = value_table_at(&printer->open, node);
    if (!mark)
        return value_print_out_of_memory(printer);
    *is_open = *mark;
    *mark = 1;
    return true;
}

bool printer_push(struct printer *printer, struct print_frame frame)
{
    if (!work_take_steps(printer->work, frame.count + 1) || !ARRAY_ROOM(printer->frames, printer->frame_count, printer->frame_capacity)) {
        free(frame.order);
        return value_print_out_of_memory(printer);
    }
    printer->frames[printer->frame_count++] = frame;
    return true;
}

/* The mark is there already, so looking it up needs no memory. */
bool printer_pop(struct printer *printer)
{
    struct print_frame *frame = &printer->frames[--printer->frame_count];
    free(frame->order);
    if (frame->node) {
        uint32_t *mark = value_table_at(&printer->open, frame->node);
        if (!mark)
            return value_print_out_of_memory(printer);
        *mark = 0;
    }
    return buffer_append_text(printer->out, frame->close);
}

bool printer_next(struct printer *printer, size_t *index)
{
    struct print_frame *frame = &printer->frames[printer->frame_count - 1];
    *index = SIZE_MAX;
    if (frame->next >= frame->count)
        return true;
    *index = frame->order ? frame->order[frame->next] : frame->next;
    frame->next++;
    bool is_first = !frame->any;
    frame->any = true;
    return is_first || buffer_append_text(printer->out, frame->between);
}

bool printer_order_pairs(struct printer *printer, struct print_frame *frame)
{
    struct value_index index;
    size_t leaf_keys = 0, kept = 0;
    if (frame->count < 2)
        return true;
    if (!work_take_steps(printer->work, frame->count))
        return value_print_out_of_memory(printer);
    for (size_t i = 0; i < frame->count; i++)
        leaf_keys += frame->items[2 * i] && value_is_leaf(frame->items[2 * i]);
    if (!value_index_build(&index, frame->items, 2 * frame->count, 2, printer->seed))
        return value_print_out_of_memory(printer);
    if (index.leaf_count < leaf_keys) {
        frame->order = array_zeroed(frame->count, sizeof(*frame->order));
        if (!frame->order) {
            value_index_release(&index);
            return value_print_out_of_memory(printer);
        }
        for (size_t i = 0; i < frame->count; i++) {
            const struct value *key = frame->items[2 * i];
            if (!key || !value_is_leaf(key) || value_index_find(&index, key) == i)
                frame->order[kept++] = (uint32_t)i;
        }
        frame->count = kept;
    }
    value_index_release(&index);
    return true;
}

void printer_release(struct printer *printer)
{
    while (printer->frame_count)
        free(printer->frames[--printer->frame_count].order);
    free(printer->frames);
    value_table_release(&printer->open);
    buffer_release(&printer->scratch);
}
