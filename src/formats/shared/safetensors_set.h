/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files that are one set of tensors, with an index beside them or without: what a driver reads of it before its catalog. */
#ifndef FORMATS_SAFETENSORS_SET_H
#define FORMATS_SAFETENSORS_SET_H

#include "encoding/safetensors_header.h"
#include "formats/driver.h"
#include "formats/shared/safetensors_index.h"

struct st_file {
    struct str name; /* relative to the store's root, NUL-terminated */
    struct st_header header;
    uint64_t bytes;
    uint32_t object; /* of the catalog, once it is added */
};

struct st_files {
    struct st_file *items;
    uint32_t count;
};

#define ST_NO_FILE UINT32_MAX

/* Reads the headers of all named files; names stay where they are. A file that is not there, or is no such file, is an error; where
 * source_bears_loss it is left out, as damage, unless none is left. numbers is by name, its number in out or ST_NO_FILE; NULL: there is no
 * index that tells what was in a file. */
reshard_status st_files_read(struct source *source, const struct str *names, size_t count, uint32_t *numbers, struct st_files *out,
                             reshard_error *err);
void st_files_release(struct st_files *files);
reshard_status st_files_add_objects(struct source *source, struct st_files *files, reshard_error *err);

/* Where the file would end if all its tensors were there, and whether it reaches as far as one of them. */
uint64_t st_file_end(const struct st_file *file);
static inline bool st_entry_is_there(const struct st_file *file, const struct st_entry *entry)
{
    return entry->end <= file->bytes - file->header.data_start;
}

/* Adds the chunk that an entry of the file is, the whole tensor or its box at start; none (*out NULL) if the file ends before it, as it may
 * where damage is shown. */
reshard_status st_file_add_chunk(struct source *source, uint32_t tensor, const struct st_file *file, const struct st_entry *entry,
                                 const int64_t *start, struct catalog_chunk **out, reshard_error *err);

/* Whether two ranges of equal size in two files hold the same bytes. */
reshard_status st_ranges_equal(struct store *store, struct str a, uint64_t a_offset, struct str b, uint64_t b_offset, uint64_t bytes,
                               bool *equal, reshard_error *err);

struct st_set {
    bool may_lack_map;     /* an index without a weight_map says nothing of files: none are read. To be set before */
    const struct str *numbered; /* names -0000i-of-0000N without the directory: those that are of one set with a file of the map are read
                                 * too, as a key may be in several files though the map names but one. To be set before */
    size_t numbered_count;
    bool (*is_beside)(const struct st_set *set, struct str key); /* whether a file may have this though no map does; NULL: nothing */
    /* Whether another tensor of the files holds what the map says of this; NULL: none does. Then file_of says ST_NO_FILE. To be set before
     */
    reshard_status (*is_within)(const struct st_set *set, struct str key, bool *out, reshard_error *err);
    struct str index_name; /* relative to the store's root, NUL-terminated; empty: there is none */
    struct st_index index; /* of all tensors of the files; file_of counts files.items, ST_NO_FILE: the tensor is lost */
    uint32_t mapped_count; /* keys that the index file has; those behind them it does not */
    struct st_files files;
};

/* Reads an index and the headers of all its files, in the order of their names. A file that is not there, or lacks a tensor that is mapped
 * to it, is an error, or damage where source_bears_loss; tensors that no map has come along with a warning. directory ends with '/' or is
 * empty. Names live in arena. */
reshard_status st_set_read_indexed(struct source *source, struct str index_name, struct str directory, struct arena *arena,
                                   struct st_set *out, reshard_error *err);

/* The same of named files without an index. */
reshard_status st_set_read_listed(struct source *source, const struct str *names, size_t count, struct st_set *out, reshard_error *err);
void st_set_release(struct st_set *set);

#endif
