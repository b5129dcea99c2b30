/* SPDX-License-Identifier: Apache-2.0 */
#ifndef API_REPORT_H
#define API_REPORT_H

#include "reshard/reshard.h"

#include "convert/conversion.h"

/* Behind a report: its files and notes, and perhaps moves; all texts in the arena. */
struct reshard_report_lists {
    struct arena arena;
    reshard_report_file *files;
    reshard_note *notes;
    reshard_move *moves;
    size_t file_count, note_count, move_count;
};

/* NULL if the caller's struct is too short to have them. */
struct reshard_report_lists *report_lists_of(const reshard_report *report);

/* Fills a report of the caller's, which was cleared. */
reshard_status report_give(const struct conversion *conversion, reshard_report *out, reshard_error *err);

/* Adds to a report that was filled before the run what the run has read back; out may be NULL. */
void report_give_verified(const struct conversion *conversion, reshard_report *out);

/* The same as report_give, with what goes from which file into which. */
reshard_status report_give_moves(const struct conversion *conversion, reshard_report *out, reshard_error *err);

/* What goes from which file into which; false without memory. */
bool report_moves_keep(struct reshard_report_lists *lists, const struct plan *plan);

#endif
