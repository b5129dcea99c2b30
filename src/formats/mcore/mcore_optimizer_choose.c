/* SPDX-License-Identifier: Apache-2.0 */
/* In which of Megatron's layouts the distributed optimizer's state is written: the option `optimizer` decides, else the reference. */
#include "formats/mcore/mcore_buckets.h"
#include "formats/mcore/mcore_items.h"
#include "formats/mcore/mcore_relate.h"
#include "parallel/state_keys.h"

#define OPTION "optimizer"
#define MODEL_SPACE_RELEASE 8   /* Megatron Core 0.N reads these layouts from N on */
#define BY_PARAMETER_RELEASE 15
#define VECTORS_RELEASE 11      /* flattens vectors too; it reads both */
#define BUCKET_SPACE "fully_sharded_bucket_space"

static const char *const layout_names[] = {
#define X(layout, name) name,
    MCORE_OPTIMIZER_LAYOUTS(X)
#undef X
};

const char *mcore_optimizer_layout_name(enum mcore_optimizer_layout layout)
{
    return layout_names[layout];
}

/* The option's layout; *is_auto if it is not given. */
static reshard_status read_option(const struct layout_request *request, enum mcore_optimizer_layout *out, bool *is_auto, reshard_error *err)
{
    const char *option = layout_option(request, OPTION);
    *is_auto = !option || strcmp(option, "auto") == 0;
    *out = MCORE_BY_PARAMETER;
    if (*is_auto)
        return RESHARD_OK;
    for (size_t i = 0; i < sizeof(layout_names) / sizeof(layout_names[0]); i++) {
        if (strcmp(option, layout_names[i]) == 0) {
            *out = (enum mcore_optimizer_layout)i;
            return RESHARD_OK;
        }
    }
    error_set(err, RESHARD_ERR_USAGE, "option " OPTION "='%s': there is no such layout to write", option);
    error_hint(err, OPTION " is one of auto, %s, %s, %s, %s", layout_names[0], layout_names[1], layout_names[2], layout_names[3]);
    return RESHARD_ERR_USAGE;
}

/* Whether the reference's common state names fully_sharded_bucket_space, whose buckets have the same keys as those of dp_reshardable. */
static bool is_bucket_space(const struct catalog *catalog)
{
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        const struct value *optimizer = str_is(catalog->items[i].key, "optimizer") ? catalog->items[i].value : NULL;
        if (optimizer && optimizer->kind == VALUE_DICT && optimizer->list.count >= 2 && optimizer->list.items[0]->kind == VALUE_INT)
            optimizer = optimizer->list.items[1];
        const struct value *type =
            optimizer && optimizer->kind == VALUE_DICT ? value_dict_get(optimizer, "param_state_sharding_type") : NULL;
        struct str name;
        if (type && value_as_str(type, &name))
            return str_is(name, BUCKET_SPACE);
    }
    return false;
}

/* How the reference stores its state: buckets that are vectors, buffers in objects, or flattened tensors, whose masters are called
 * otherwise. */
static enum mcore_optimizer_layout reference_layout(const struct source *like, bool *has_chained_keys)
{
    const struct catalog *catalog = like->catalog;
    for (uint32_t i = 0; like->has_other_view && i < catalog->tensor_count; i++) {
        struct state_key key;
        if (!state_key_read(catalog->tensors[i].key, &key))
            continue;
        if (key.kind == STATE_KEY_PARAMETER && str_is(key.state, STATE_PLAIN_MASTER)) {
            *has_chained_keys = key.chain >= 0;
            return MCORE_MODEL_SPACE;
        }
        /* The releases that write the bucket space read the model space. */
        if (key.kind == STATE_KEY_BUCKET)
            return is_bucket_space(catalog) ? MCORE_MODEL_SPACE : MCORE_BUCKETS;
    }
    for (uint32_t i = 0; like->has_other_view && i < catalog->item_count; i++) {
        if (state_key_is(catalog->items[i].key, STATE_KEY_BUFFERS))
            return MCORE_GATHERED;
    }
    return MCORE_BY_PARAMETER;
}

/* Of which kind of optimizer the reference has masters. Flattened ones are the distributed optimizer's, whatever they are called. */
static enum mcore_masters reference_masters(const struct source *like, enum mcore_optimizer_layout layout)
{
    const struct catalog *catalog = like->catalog;
    if (layout != MCORE_BY_PARAMETER)
        return MCORE_MASTERS_PARAM;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct state_key key;
        if (state_key_read(catalog->tensors[i].key, &key) && key.kind == STATE_KEY_PARAMETER && key.is_master)
            return str_is(key.state, STATE_MASTER) ? MCORE_MASTERS_PARAM : MCORE_MASTERS_PLAIN;
    }
    return MCORE_MASTERS_KEPT;
}

static bool has_masters(const struct catalog *wanted, const char *state)
{
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        struct state_key key;
        bool is_one = state_key_read(wanted->tensors[i].key, &key) && key.kind == STATE_KEY_PARAMETER && str_is(key.state, state);
        if (is_one && key.chain < 0)
            return true;
    }
    return false;
}

/* Whether it is, or is made of, remainders of masters: *key is theirs. */
static bool is_of_remainders(const struct layout_request *request, uint32_t tensor, struct state_key *key)
{
    uint32_t from = request->wanted_source[tensor];
    const struct catalog_tensor *wanted = &request->wanted->tensors[tensor];
    bool is_short = wanted->dtype == DTYPE_I16 || (from != CATALOG_NONE && request->source_catalog->tensors[from].dtype == DTYPE_I16);
    return is_short && state_key_read(wanted->key, key) && key->is_master;
}

/* They lie beside the bf16 weights that they belong to, in layouts that store a vector of any type as it is. */
static reshard_status check_remainders(const struct layout_request *request, const struct mcore_target *state, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    bool is_kept = state->optimizer_layout == MCORE_BUCKETS || state->optimizer_layout == MCORE_MODEL_SPACE;
    struct name_map weights = { 0 };
    struct state_key key;
    uint32_t first = 0;
    reshard_status status = RESHARD_OK;
    while (first < wanted->tensor_count && !is_of_remainders(request, first, &key))
        first++;
    for (uint32_t i = 0; first < wanted->tensor_count && i < wanted->tensor_count && !status; i++) {
        if (wanted->tensors[i].dtype == DTYPE_BF16 && name_map_intern(&weights, wanted->tensors[i].key, NULL) == NAME_NONE)
            status = error_set_memory(err);
    }
    for (uint32_t i = first; i < wanted->tensor_count && !status; i++) {
        bool is_cast = wanted->tensors[i].dtype != DTYPE_I16;
        if (is_of_remainders(request, i, &key) && (!is_kept || is_cast || name_map_find(&weights, key.parameter) == NAME_NONE))
            status = state_refuse_remainders(wanted->tensors[i].key, err);
    }
    name_map_release(&weights);
    return status;
}

/* Layouts of the distributed optimizer need its masters; a checkpoint without state has nothing to lay out. */
static reshard_status check_there_are_none(const struct catalog *wanted, enum mcore_optimizer_layout layout, reshard_error *err)
{
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        struct str key = wanted->tensors[i].key;
        if (wanted->tensors[i].flags & TENSOR_HIDDEN || !state_key_is_any(key))
            continue;
        error_set(err, RESHARD_ERR_UNSUPPORTED,
                  "option " OPTION "=%s: '%.*s' has no masters beside it (" STATE_KEY_PREFIX STATE_MASTER
                  ".…), which the distributed optimizer keeps",
                  layout_names[layout], STR_ARG(key));
        error_object(err, "%.*s", STR_ARG(key));
        error_hint(err, "without the option there is a tensor for each parameter and state; reshard_convert_options.exclude "
                        "'optimizer*' leaves the state out");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

static reshard_status choose_optimizer_layout(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    enum mcore_optimizer_layout layout;
    bool is_auto;
    if (state->flavour->items_are_files) { /* zarr, of releases that flatten: what they store are arrays of the real shape */
        state->optimizer_layout = has_masters(request->wanted, STATE_MASTER) ? MCORE_MODEL_SPACE : MCORE_BY_PARAMETER;
        return RESHARD_OK;
    }
    uint32_t release = 0;
    reshard_status status = read_option(request, &layout, &is_auto, err);
    if (!status)
        status = mcore_release_choose(request, target, &release, err);
    if (status)
        return status;
    if (is_auto && request->like)
        layout = reference_layout(request->like, &state->has_chained_keys);
    else if (is_auto && release)
        layout = release < MODEL_SPACE_RELEASE ? MCORE_GATHERED : release < BY_PARAMETER_RELEASE ? MCORE_MODEL_SPACE : MCORE_BY_PARAMETER;
    state->is_layout_asked = !is_auto;
    /* That of a distributed optimizer for sure: where it is by parameter, other optimizers have theirs alike. */
    bool is_distributed = layout == MCORE_BUCKETS || layout == MCORE_GATHERED || (state->is_layout_asked && layout == MCORE_MODEL_SPACE);
    bool has_own = has_masters(request->wanted, STATE_MASTER), has_plain = has_masters(request->wanted, STATE_PLAIN_MASTER);
    if (is_auto && request->like && has_own != has_plain)
        state->masters = reference_masters(request->like, layout);
    else if (is_distributed && has_plain)
        state->masters = MCORE_MASTERS_PARAM;
    if (state->masters == MCORE_MASTERS_PLAIN || (state->masters == MCORE_MASTERS_KEPT && !has_own))
        return is_auto || layout == MCORE_BY_PARAMETER || has_plain ? RESHARD_OK : check_there_are_none(request->wanted, layout, err);
    state->optimizer_layout = layout;
    state->keeps_vectors = release && release < VECTORS_RELEASE;
    if (!is_auto || layout != MCORE_MODEL_SPACE || !request->like || !is_bucket_space(request->like->catalog))
        return RESHARD_OK;
    return target_note_changed(target, NOTE_OPTIMIZER, (struct str){ 0 }, err,
                               "optimizer state: %s, not " BUCKET_SPACE " as the reference has it", layout_names[layout]);
}

reshard_status mcore_optimizer_choose(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    bool is_job = state->flavour->dcp.store_items == mcore_items_keep;
    if (!state->flavour->has_common)
        return RESHARD_OK;
    reshard_status status = choose_optimizer_layout(request, target, err);
    return status || is_job ? status : check_remainders(request, state, err);
}
