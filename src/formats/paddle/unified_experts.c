/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of whole tensors. Under expert parallelism each rank numbers its own experts from 0 on, so several files may have one key with
 * different bytes, of which the map names but one. The number in the model is local + rank * experts of a rank; the ranks are in the
 * order of the files. Files with the very same experts are copies of one rank (tensor parallelism leaves experts whole).
 */
#include "formats/paddle/unified.h"

#include "base/array.h"
#include "base/checked.h"
#include "parallel/expert_keys.h"

#include <inttypes.h>
#include <stdlib.h>

/* A module whose experts have numbers of their own on each rank: the text before the number. */
struct uc_module {
    uint32_t first_part, last_part, ranks;
    uint64_t experts; /* of a rank */
};

/* What one file has of such a module. */
struct uc_part {
    uint64_t experts; /* one more than the largest number */
    uint32_t file, next, rank;
    uint32_t first_member;
    bool is_copy;
};

struct uc_member {
    uint32_t entry, next;
};

struct uc_renumber {
    struct uc_read *read;
    struct st_set *set;
    enum uc_family family;
    struct name_map names; /* of modules */
    struct uc_module *modules;
    struct uc_part *parts;
    struct uc_member *members;
    uint32_t module_capacity, part_count, part_capacity, member_count, member_capacity;
};

static struct str unified_experts_module(struct str key, uint64_t *number)
{
    size_t begin, end;
    return expert_number_find(key, &begin, &end, number) ? (struct str){ key.data, begin } : (struct str){ 0 };
}

/* ---- keys in two files ---- */

static reshard_status unified_experts_same(const struct uc_renumber *run, uint32_t a_file, uint32_t b_file, struct str key, bool *same,
                                           bool *same_kind, reshard_error *err)
{
    const struct st_file *a = &run->set->files.items[a_file], *b = &run->set->files.items[b_file];
    const struct st_entry *x = &a->header.entries[name_map_find(&a->header.names, key)],
                          *y = &b->header.entries[name_map_find(&b->header.names, key)];
    *same_kind = x->dtype == y->dtype && x->rank == y->rank;
    for (int i = 0; i < x->rank && *same_kind; i++)
        *same_kind = st_entry_shape(&a->header, x)[i] == st_entry_shape(&b->header, y)[i];
    *same = false;
    return *same_kind ? st_ranges_equal(run->read->source->store, a->name, a->header.data_start + x->begin, b->name,
                                        b->header.data_start + y->begin, x->end - x->begin, same, err)
                      : RESHARD_OK;
}

static reshard_status unified_experts_refuse(const struct uc_renumber *run, struct str key, uint32_t a, uint32_t b, bool is_expert,
                                             bool same_kind, reshard_error *err)
{
    reshard_status code = is_expert ? RESHARD_ERR_UNSUPPORTED : RESHARD_ERR_FORMAT;
    error_set(err, code, "tensor '%.*s' is in '%.*s' and in '%.*s' with %s", STR_ARG(key), STR_ARG(run->set->files.items[a].name),
              STR_ARG(run->set->files.items[b].name), same_kind ? "other bytes" : "another dtype or shape");
    error_object(err, "%s:%.*s", uc_stems[run->family], STR_ARG(key));
    if (is_expert) {
        error_hint(err, "each expert-parallel rank numbered its experts from 0 on");
        error_hint(err, "reshard_open_options.lenient gives them the numbers in the model: rank * experts of a rank + number");
    }
    return code;
}

static reshard_status unified_experts_note_module(struct uc_renumber *run, struct str module, reshard_error *err)
{
    bool was_new;
    uint32_t number = name_map_intern(&run->names, module, &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(run->modules, number, run->module_capacity))
        return error_set_memory(err);
    if (was_new)
        run->modules[number] = (struct uc_module){ .first_part = NAME_NONE, .last_part = NAME_NONE };
    run->read->renumbered = true;
    return RESHARD_OK;
}

static reshard_status unified_experts_check_key(struct uc_renumber *run, struct str key, uint32_t file, reshard_error *err)
{
    uint32_t owner = run->set->index.file_of[name_map_find(&run->set->index.keys, key)];
    uint64_t number;
    bool same, same_kind;
    struct str module = unified_experts_module(key, &number);
    if (owner == file || (module.size && name_map_find(&run->names, module) != NAME_NONE))
        return RESHARD_OK;
    reshard_status status = unified_experts_same(run, owner, file, key, &same, &same_kind, err);
    if (status)
        return status;
    if (same) {
        catalog_warn(run->read->source->catalog, false, "tensor '%s:%.*s' is also in '%.*s', with the same bytes", uc_stems[run->family],
                     STR_ARG(key), STR_ARG(run->set->files.items[file].name));
        return RESHARD_OK;
    }
    if (!module.size || !run->read->source->lenient)
        return unified_experts_refuse(run, key, owner < file ? owner : file, owner < file ? file : owner, module.size > 0, same_kind, err);
    return unified_experts_note_module(run, module, err);
}

static reshard_status unified_experts_find_modules(struct uc_renumber *run, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t f = 0; f < run->set->files.count && !status; f++) {
        const struct st_header *header = &run->set->files.items[f].header;
        for (uint32_t i = 0; i < header->count && !status; i++)
            status = unified_experts_check_key(run, name_map_at(&header->names, i), f, err);
    }
    return status;
}

/* ---- ranks ---- */

/* The module of a key in this run, or NULL. */
static struct uc_module *unified_experts_of(const struct uc_renumber *run, struct str key, uint64_t *number)
{
    struct str module = unified_experts_module(key, number);
    uint32_t index = module.size ? name_map_find(&run->names, module) : NAME_NONE;
    return index == NAME_NONE ? NULL : &run->modules[index];
}

static reshard_status unified_experts_add_part(struct uc_renumber *run, struct uc_module *module, uint32_t file, uint32_t entry,
                                               uint64_t number, reshard_error *err)
{
    if (module->last_part == NAME_NONE || run->parts[module->last_part].file != file) {
        if (!ARRAY_ROOM(run->parts, run->part_count, run->part_capacity))
            return error_set_memory(err);
        run->parts[run->part_count] = (struct uc_part){ .file = file, .next = NAME_NONE, .first_member = NAME_NONE };
        if (module->last_part == NAME_NONE)
            module->first_part = run->part_count;
        else
            run->parts[module->last_part].next = run->part_count;
        module->last_part = run->part_count++;
    }
    struct uc_part *part = &run->parts[module->last_part];
    part->experts = number + 1 > part->experts ? number + 1 : part->experts;
    if (!ARRAY_ROOM(run->members, run->member_count, run->member_capacity))
        return error_set_memory(err);
    run->members[run->member_count] = (struct uc_member){ entry, part->first_member };
    part->first_member = run->member_count++;
    return RESHARD_OK;
}

static reshard_status unified_experts_find_parts(struct uc_renumber *run, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t f = 0; f < run->set->files.count && !status; f++) {
        const struct st_header *header = &run->set->files.items[f].header;
        for (uint32_t i = 0; i < header->count && !status; i++) {
            uint64_t number;
            struct uc_module *module = unified_experts_of(run, name_map_at(&header->names, i), &number);
            if (module)
                status = unified_experts_add_part(run, module, f, i, number, err);
        }
    }
    return status;
}

/* Whether a part is the same as an earlier one, bytes and all. */
static reshard_status unified_experts_compare(const struct uc_renumber *run, const struct uc_part *a, const struct uc_part *b, bool *same,
                                              reshard_error *err)
{
    const struct st_header *x = &run->set->files.items[a->file].header, *y = &run->set->files.items[b->file].header;
    bool same_kind;
    reshard_status status = RESHARD_OK;
    *same = a->experts == b->experts;
    for (uint32_t m = b->first_member; m != NAME_NONE && *same && !status; m = run->members[m].next) {
        struct str key = name_map_at(&y->names, run->members[m].entry);
        *same = name_map_find(&x->names, key) != NAME_NONE;
        if (*same)
            status = unified_experts_same(run, a->file, b->file, key, same, &same_kind, err);
    }
    return status;
}

static reshard_status unified_experts_rank_part(struct uc_renumber *run, struct uc_module *module, struct str name, struct uc_part *part,
                                                reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = module->first_part; &run->parts[i] != part && !part->is_copy && !status; i = run->parts[i].next) {
        const struct uc_part *earlier = &run->parts[i];
        if (!earlier->is_copy)
            status = unified_experts_compare(run, earlier, part, &part->is_copy, err);
    }
    if (status || part->is_copy)
        return status;
    part->rank = module->ranks++;
    if (!part->rank)
        module->experts = part->experts;
    if (part->experts == module->experts)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s:%.*s': '%.*s' has %" PRIu64 " experts, other ranks have %" PRIu64,
                     uc_stems[run->family], STR_ARG(name), STR_ARG(run->set->files.items[part->file].name), part->experts,
                     module->experts);
}

static reshard_status unified_experts_rank(struct uc_renumber *run, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t m = 0; m < run->names.count && !status; m++) {
        struct uc_module *module = &run->modules[m];
        for (uint32_t p = module->first_part; p != NAME_NONE && !status; p = run->parts[p].next)
            status = unified_experts_rank_part(run, module, name_map_at(&run->names, m), &run->parts[p], err);
        if (!status)
            catalog_warn(run->read->source->catalog, false, "'%s:%.*s': the experts of %" PRIu32 " ranks, %" PRIu64
                         " each, have got the numbers in the model", uc_stems[run->family], STR_ARG(name_map_at(&run->names, m)),
                         module->ranks, module->experts);
    }
    return status;
}

/* ---- tensors ---- */

static reshard_status unified_experts_add_entry(struct uc_renumber *run, const struct uc_part *part, const struct uc_module *module,
                                                uint32_t entry, reshard_error *err)
{
    const struct st_file *file = &run->set->files.items[part->file];
    struct str key = name_map_at(&file->header.names, entry);
    struct buffer name = { 0 };
    size_t begin, end;
    uint64_t number, base;
    expert_number_find(key, &begin, &end, &number);
    if (!checked_mul_u64(part->rank, module->experts, &base) || !checked_add_u64(base, number, &number))
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': the number of the expert is beyond 2^64", STR_ARG(key));
    buffer_append(&name, key.data, begin);
    buffer_printf(&name, "%" PRIu64, number);
    bool fits = buffer_append(&name, key.data + end, key.size - end);
    reshard_status status = fits ? uc_add_tensor(run->read, run->family, file, part->file, entry, buffer_str(&name), err)
                                 : error_set_memory(err);
    buffer_release(&name);
    return status;
}

static reshard_status unified_experts_add_parts(struct uc_renumber *run, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t m = 0; m < run->names.count; m++) {
        const struct uc_module *module = &run->modules[m];
        for (uint32_t p = module->first_part; p != NAME_NONE; p = run->parts[p].next) {
            const struct uc_part *part = &run->parts[p];
            for (uint32_t i = part->first_member; i != NAME_NONE && !part->is_copy && !status; i = run->members[i].next)
                status = unified_experts_add_entry(run, part, module, run->members[i].entry, err);
        }
    }
    return status;
}

/* In the order of the map, which is that of the model. */
static reshard_status unified_experts_add_others(struct uc_renumber *run, reshard_error *err)
{
    const struct st_index *index = &run->set->index;
    reshard_status status = RESHARD_OK;
    for (uint32_t k = 0; k < index->keys.count && !status; k++) {
        struct str key = name_map_at(&index->keys, k);
        uint64_t number;
        if (index->file_of[k] == ST_NO_FILE)
            continue;
        const struct st_file *file = &run->set->files.items[index->file_of[k]];
        if (!unified_experts_of(run, key, &number))
            status = uc_add_tensor(run->read, run->family, file, index->file_of[k], name_map_find(&file->header.names, key), key, err);
    }
    return status;
}

reshard_status uc_add_whole(struct uc_read *read, enum uc_family family, reshard_error *err)
{
    struct uc_renumber run = { .read = read, .set = &read->sets[family], .family = family };
    reshard_status status = unified_experts_find_modules(&run, err);
    if (!status)
        status = unified_experts_find_parts(&run, err);
    if (!status)
        status = unified_experts_rank(&run, err);
    if (!status)
        status = unified_experts_add_others(&run, err);
    if (!status)
        status = unified_experts_add_parts(&run, err);
    name_map_release(&run.names);
    free(run.modules);
    free(run.parts);
    free(run.members);
    return status;
}
