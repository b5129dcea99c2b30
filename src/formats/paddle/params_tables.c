/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parameter a rank means by a name of the framework. The files of its weights say it; where they are saved without the weights that
 * have a master weight (save_sharding_stage1_model), model_meta.json does: {"sharding_metas": {"tp00_pp01":
 * {"structure_name_mapping": {KEY: NAME, …}, "param_meta": {KEY: [SHAPE, TYPE, IS_CUT, …], …}, …}, …}}, where all sharding ranks are one.
 */
#include "formats/paddle/params_family.h"

#include "base/array.h"
#include "encoding/json.h"
#include "parallel/expert_keys.h"

#include <inttypes.h>
#include <stdlib.h>

#define META_NAME "model_meta.json"
#define SLICE_MARK "slice@" /* before the name of a parameter that stage 3 cuts */

bool family_is_meta(struct str base)
{
    return str_is(base, META_NAME);
}

bool family_is_slice(struct str name)
{
    return str_starts_with(name, SLICE_MARK);
}

bool family_has_slices(const struct family *family, const struct family_file *file)
{
    const struct paddle_archive *archive = family_archive(family, file);
    bool found = false;
    for (uint32_t i = 0; i < archive->entry_count && !found; i++)
        found = family_is_slice(archive->entries[i].key);
    for (uint32_t i = 0; i < archive->tensor_count && !found; i++)
        found = family_is_slice(archive->tensors[i].name);
    return found;
}

/* ---- making them ---- */

static reshard_status tables_note_static(struct family_table *table, struct str name, struct str key, reshard_error *err)
{
    bool was_new;
    uint32_t number = name_map_intern(&table->statics, name, &was_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    /* Of tied weights the first name in order counts, as in Paddle itself. */
    if (was_new || str_compare(key, table->keys[number]) < 0)
        table->keys[number] = key;
    return RESHARD_OK;
}

/* Where ranks have experts of their own: which numbers this one gives them. */
static reshard_status tables_note_expert(struct family_table *table, struct str key, reshard_error *err)
{
    size_t begin, end;
    uint64_t number;
    bool was_new;
    if (table->ranks.ep < 0 || !expert_number_find(key, &begin, &end, &number) || number >= UINT32_MAX)
        return RESHARD_OK;
    uint32_t module = name_map_intern(&table->modules, (struct str){ key.data, begin }, &was_new);
    if (module == NAME_NONE)
        return error_set_memory(err);
    struct family_experts *experts = &table->experts_of[module];
    if (was_new || experts->first > number)
        experts->first = number;
    if (was_new || experts->end <= number)
        experts->end = number + 1;
    return RESHARD_OK;
}

static bool tables_may_be_one(int32_t a, int32_t b)
{
    return a < 0 || b < 0 || a == b;
}

/* Whether a file's rank is one of those that a table is of. What model_meta.json has for the ranks of data parallelism together says
 * nothing about experts that these number for themselves. */
static bool tables_is_of(const struct family_table *table, const struct family_ranks *ranks)
{
    return tables_may_be_one(table->ranks.tp, ranks->tp) && tables_may_be_one(table->ranks.pp, ranks->pp) &&
           (table->file ? tables_may_be_one(table->ranks.ep, ranks->ep) : table->ranks.ep == ranks->ep);
}

/* The next table, with room for so many names. */
static reshard_status tables_begin(struct family *family, const struct family_ranks *ranks, size_t names, struct family_table **out,
                                   reshard_error *err)
{
    if (!ARRAY_ROOM(family->tables, family->table_count, family->table_capacity))
        return error_set_memory(err);
    struct family_table *table = *out = &family->tables[family->table_count++];
    *table = (struct family_table){ .ranks = *ranks };
    table->keys = arena_array(&family->arena, names, sizeof(*table->keys));
    table->experts_of = arena_array(&family->arena, names, sizeof(*table->experts_of));
    return table->keys && table->experts_of ? RESHARD_OK : error_set_memory(err);
}

reshard_status family_note_names(struct family *family, struct family_file *file, reshard_error *err)
{
    const struct paddle_archive *archive = family_archive(family, file);
    struct family_table *table;
    file->table = family->table_count;
    reshard_status status = tables_begin(family, &file->ranks, archive->entry_count, &table, err);
    for (uint32_t i = 0; i < archive->entry_count && !status; i++) {
        const struct paddle_entry *entry = &archive->entries[i];
        if (entry->tensor && entry->name.size)
            status = tables_note_static(table, entry->name, entry->key, err);
        if (!status)
            status = tables_note_expert(table, entry->key, err);
    }
    if (status)
        return status;
    table->file = file;
    /* Of the experts that a rank has the files of sharding ranks have some only. */
    for (uint32_t i = 0; i < file->table && !family->tables[i].file; i++)
        if (tables_is_of(&family->tables[i], &file->ranks))
            file->table = i;
    return RESHARD_OK;
}

static reshard_status tables_note_facts(struct family *family, struct family_table *table, const struct value *facts, reshard_error *err)
{
    table->fact_of = arena_array(&family->arena, facts->list.count / 2, sizeof(*table->fact_of));
    if (!table->fact_of)
        return error_set_memory(err);
    for (size_t i = 0; i + 1 < facts->list.count; i += 2) {
        uint32_t number = name_map_intern(&table->facts, facts->list.items[i]->text, NULL);
        if (number == NAME_NONE)
            return error_set_memory(err);
        table->fact_of[number] = facts->list.items[i + 1];
    }
    return RESHARD_OK;
}

static reshard_status tables_add_meta(struct family *family, struct str ranks_text, const struct value *meta, reshard_error *err)
{
    const struct value *names = meta->kind == VALUE_DICT ? value_dict_get(meta, "structure_name_mapping") : NULL;
    const struct value *facts = meta->kind == VALUE_DICT ? value_dict_get(meta, "param_meta") : NULL;
    struct family_ranks ranks;
    struct family_table *table;
    if (!names || names->kind != VALUE_DICT || !facts || facts->kind != VALUE_DICT || !family_read_ranks(ranks_text, &ranks))
        return RESHARD_OK;
    reshard_status status = tables_begin(family, &ranks, names->list.count / 2, &table, err);
    if (!status)
        status = tables_note_facts(family, table, facts, err);
    if (!status)
        table->names = names;
    for (size_t i = 0; i + 1 < names->list.count && !status; i += 2) {
        struct str key = names->list.items[i]->text, name;
        if (!value_as_str(names->list.items[i + 1], &name) || name_map_find(&table->facts, key) == NAME_NONE)
            continue;
        status = tables_note_static(table, name, key, err);
        if (!status)
            status = tables_note_expert(table, key, err);
    }
    return status;
}

reshard_status family_read_meta(struct family *family, struct str name, reshard_error *err)
{
    const struct limits *limits = &family->source->limits;
    struct buffer text = { 0 };
    reshard_error unsaid = { 0 };
    reshard_status status = store_read_all(family->source->store, name.data, NAMED_LIMIT(limits, json_bytes), &text, &unsaid);
    if (!status)
        status = json_parse_python(text.data, text.size, limits, &family->meta, &unsaid);
    buffer_release(&text);
    if (failure_ends_run(status, &unsaid, err))
        return status;
    if (status) {
        catalog_warn(family->source->catalog, false, "'%.*s' says no names: %s", STR_ARG(name), unsaid.message);
        return RESHARD_OK;
    }
    const struct value *metas = family->meta.root->kind == VALUE_DICT ? value_dict_get(family->meta.root, "sharding_metas") : NULL;
    for (size_t i = 0; metas && metas->kind == VALUE_DICT && i + 1 < metas->list.count && !status; i += 2)
        status = tables_add_meta(family, metas->list.items[i]->text, metas->list.items[i + 1], err);
    return status;
}

void family_release_tables(struct family *family)
{
    for (uint32_t i = 0; i < family->table_count; i++) {
        name_map_release(&family->tables[i].statics);
        name_map_release(&family->tables[i].modules);
        name_map_release(&family->tables[i].facts);
    }
    free(family->tables);
    free(family->aliases);
    value_graph_release(&family->meta);
}

/* ---- experts ---- */

/* How many ranks of expert parallelism there are. *in_names: the names of the files of weights say so, and else model_meta.json. */
static int32_t tables_expert_ranks(const struct family *family, bool *in_names)
{
    int32_t count = 0;
    for (uint32_t i = 0; i < family->file_count && family->files[i].role == FAMILY_MODEL; i++)
        if (family->files[i].ranks.ep >= count)
            count = family->files[i].ranks.ep + 1;
    *in_names = count > 0;
    for (uint32_t i = 0; i < family->table_count && !*in_names; i++)
        if (family->tables[i].ranks.ep >= count)
            count = family->tables[i].ranks.ep + 1;
    return count;
}

void family_find_expert_ranks(struct family *family)
{
    bool in_names;
    int32_t places = tables_expert_ranks(family, &in_names);
    for (uint32_t i = 0; i < family->file_count; i++)
        family->spreads_experts |= family->files[i].ranks.is_spread;
    for (uint32_t i = 0; i < family->table_count; i++)
        family->spreads_experts |= family->tables[i].ranks.is_spread;
    for (uint32_t i = 0; i < family->file_count && places > 0; i++) {
        struct family_ranks *ranks = &family->files[i].ranks;
        if ((in_names && family->files[i].role == FAMILY_MODEL) || ranks->ep >= 0 || (ranks->shard < 0 && !family->spreads_experts))
            continue;
        int64_t number = (int64_t)(ranks->shard < 0 ? 0 : ranks->shard) * family->tp + (ranks->tp < 0 ? 0 : ranks->tp);
        ranks->ep = (int32_t)(number % places);
    }
}

/* ---- what they say ---- */

/* Appends a structured name, with the expert's number in the model. */
static bool tables_append_key(const struct family_table *table, struct str key, struct buffer *out)
{
    size_t begin, end;
    uint64_t number;
    uint32_t module = NAME_NONE;
    if (table->ranks.ep >= 0 && expert_number_find(key, &begin, &end, &number))
        module = name_map_find(&table->modules, (struct str){ key.data, begin });
    /* PaddleFormers leaves the places of other ranks' experts empty: where the numbers do not begin at 0, they are the model's. */
    if (module == NAME_NONE || table->experts_of[module].first > 0)
        return buffer_append_str(out, key);
    return buffer_append_str(out, (struct str){ key.data, begin }) &&
           buffer_printf(out, "%" PRIu64, number + (uint64_t)table->ranks.ep * table->experts_of[module].end) &&
           buffer_append_str(out, (struct str){ key.data + end, key.size - end });
}

bool family_append_key(const struct family *family, const struct family_file *file, struct str key, struct buffer *out)
{
    return tables_append_key(&family->tables[file->table], key, out);
}

/* What a table has under the framework's name: a weight of a file that has none stands for itself. */
static bool tables_find(const struct family *family, const struct family_table *table, struct str name, struct str *key)
{
    uint32_t number = name_map_find(&table->statics, name);
    if (number != NAME_NONE)
        *key = table->keys[number];
    else if (table->file && paddle_save_find(family_archive(family, table->file), name) != UINT32_MAX)
        *key = name;
    else
        return false;
    return true;
}

bool family_append_structured(const struct family *family, const struct family_file *file, struct str name, struct buffer *out)
{
    struct str key;
    if (family_is_slice(name))
        name = (struct str){ name.data + strlen(SLICE_MARK), name.size - strlen(SLICE_MARK) };
    for (uint32_t i = 0; i < family->table_count; i++) {
        const struct family_table *table = &family->tables[i];
        if (tables_is_of(table, &file->ranks) && tables_find(family, table, name, &key))
            return tables_append_key(table, key, out);
    }
    return false;
}

/* ---- shapes ---- */

/* [SHAPE, TYPE, IS_CUT, …]; *out NULL if it is nothing of the kind. */
static reshard_status tables_read_told(struct family *family, const struct value *facts, const struct family_told **out, reshard_error *err)
{
    struct value **fact, **sizes;
    size_t count, rank;
    *out = NULL;
    if (!facts || !value_as_sequence(facts, &fact, &count) || count < 3 || !value_as_sequence(fact[0], &sizes, &rank) ||
        rank > RANK_MAX || fact[2]->kind != VALUE_BOOL)
        return RESHARD_OK;
    int64_t shape[RANK_MAX], elements;
    for (size_t i = 0; i < rank; i++)
        if (!value_as_int(sizes[i], &shape[i]) || shape[i] < 0)
            return RESHARD_OK;
    if (!shape_volume((int)rank, shape, &elements))
        return RESHARD_OK;
    struct family_told *told = arena_zalloc(&family->arena, sizeof(*told));
    int64_t *kept = arena_array(&family->arena, rank, sizeof(*kept));
    if (!told || !kept)
        return error_set_memory(err);
    if (rank)
        memcpy(kept, shape, rank * sizeof(*kept));
    *told = (struct family_told){ .local = { .rank = (int)rank, .shape = kept }, .is_cut = fact[2]->boolean };
    *out = told;
    return RESHARD_OK;
}

/* The key of a parameter that model_meta.json tells of. */
static reshard_status tables_intern_told(struct family *family, const struct family_table *table, struct str key, struct buffer *full,
                                         uint32_t *out, reshard_error *err)
{
    const struct family_told *told;
    uint32_t fact = name_map_find(&table->facts, key);
    buffer_clear(full);
    reshard_status status = tables_read_told(family, fact == NAME_NONE ? NULL : table->fact_of[fact], &told, err);
    if (!status)
        status = tables_append_key(table, key, full) ? family_intern(family, buffer_str(full), out, err) : error_set_memory(err);
    if (!status && !family->key_list[*out].told)
        family->key_list[*out].told = told;
    return status;
}

/* A key with the name that another one has is the same parameter of the model: its states are the other one's. */
static reshard_status tables_tell_one(struct family *family, const struct family_table *table, struct str key, struct str name,
                                      struct buffer *full, reshard_error *err)
{
    uint32_t number = name_map_find(&table->statics, name), told, first;
    if (number == NAME_NONE)
        return RESHARD_OK;
    reshard_status status = tables_intern_told(family, table, key, full, &told, err);
    if (status || str_equal(table->keys[number], key))
        return status;
    status = tables_intern_told(family, table, table->keys[number], full, &first, err);
    if (status)
        return status;
    if (!ARRAY_ROOM(family->aliases, family->alias_count, family->alias_capacity))
        return error_set_memory(err);
    family->aliases[family->alias_count++] =
        (struct master_alias){ name_map_at(&family->keys, told), name_map_at(&family->keys, first) };
    return RESHARD_OK;
}

reshard_status family_note_told(struct family *family, reshard_error *err)
{
    struct buffer full = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < family->table_count && !family->tables[i].file && !status; i++) {
        const struct family_table *table = &family->tables[i];
        for (size_t j = 0; table->names && j + 1 < table->names->list.count && !status; j += 2) {
            struct str name;
            if (value_as_str(table->names->list.items[j + 1], &name))
                status = tables_tell_one(family, table, table->names->list.items[j]->text, name, &full, err);
        }
    }
    buffer_release(&full);
    return status;
}
