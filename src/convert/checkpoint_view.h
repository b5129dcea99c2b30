/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of which only some is seen, and under other names: for those who look, not for those who convert. */
#ifndef CONVERT_CHECKPOINT_VIEW_H
#define CONVERT_CHECKPOINT_VIEW_H

#include "convert/checkpoint.h"
#include "convert/key_filter.h"
#include "convert/naming.h"

struct view_options {
    struct naming_options naming;                /* before the globs */
    const char *const *include, *const *exclude; /* globs on keys; each matches some */
};

struct checkpoint_view {
    struct naming naming;     /* whose names are */
    struct str *names;        /* by position in checkpoint.listed */
    struct name_map by_name;
    uint32_t *tensors;        /* by number in by_name: position in checkpoint.listed */
    uint32_t *items;          /* that are seen: catalog indices */
    struct str *item_names;
    uint32_t item_count;
    struct key_filter filter; /* that chose them */
    uint32_t *whole;          /* checkpoint.listed as it was without the view */
    uint32_t whole_count;
    bool *is_chosen;          /* by catalog tensor */
};

/* Narrows checkpoint.listed and sets checkpoint.view, once. On failure all is as it was; USAGE names a glob that matches nothing. */
reshard_status checkpoint_select(struct checkpoint *checkpoint, const struct view_options *options, reshard_error *err);
/* The tensors that were listed before there was a view. */
static inline const uint32_t *checkpoint_whole_listing(const struct checkpoint *checkpoint, uint32_t *count)
{
    *count = checkpoint->view ? checkpoint->view->whole_count : checkpoint->listed_count;
    return checkpoint->view ? checkpoint->view->whole : checkpoint->listed;
}

/* Whether a tensor of the catalog is seen; payload of items is what no view leaves out. */
static inline bool checkpoint_shows(const struct checkpoint *checkpoint, uint32_t tensor)
{
    return !checkpoint->view || checkpoint->view->is_chosen[tensor];
}

/* USAGE if there is a view, where all of a checkpoint is needed. */
reshard_status checkpoint_is_whole(const struct checkpoint *checkpoint, reshard_error *err);
void checkpoint_view_free(struct checkpoint_view *view);

static inline struct str checkpoint_tensor_name(const struct checkpoint *checkpoint, size_t listed)
{
    return checkpoint->view ? checkpoint->view->names[listed] : checkpoint->source->catalog->tensors[checkpoint->listed[listed]].key;
}

static inline uint32_t checkpoint_item_count(const struct checkpoint *checkpoint)
{
    return checkpoint->view ? checkpoint->view->item_count : checkpoint->source->catalog->item_count;
}

/* The catalog's number of an item that is seen. */
static inline uint32_t checkpoint_item_at(const struct checkpoint *checkpoint, size_t index)
{
    return checkpoint->view ? checkpoint->view->items[index] : (uint32_t)index;
}

static inline struct str checkpoint_item_name(const struct checkpoint *checkpoint, size_t index)
{
    return checkpoint->view ? checkpoint->view->item_names[index] : checkpoint->source->catalog->items[index].key;
}

#endif
