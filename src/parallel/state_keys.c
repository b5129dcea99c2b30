/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/state_keys.h"

#define NUMBER_MAX 1000000000
#define WHOLE_OBJECT "shard_0_1"

/* ---- parts of a key ---- */

static bool take_key_text(struct str *text, const char *prefix)
{
    size_t size = strlen(prefix);
    if (!str_starts_with(*text, prefix))
        return false;
    *text = (struct str){ text->data + size, text->size - size };
    return true;
}

static bool take_key_number(struct str *text, int64_t *out)
{
    size_t size = 0;
    int64_t number = 0;
    while (size < text->size && text->data[size] >= '0' && text->data[size] <= '9' && number < NUMBER_MAX)
        number = number * 10 + (text->data[size++] - '0');
    if (size == 0 || number >= NUMBER_MAX)
        return false;
    *text = (struct str){ text->data + size, text->size - size };
    *out = number;
    return true;
}

/* "torch.float32" up to the character `end`, and that. */
static bool take_key_dtype(struct str *text, char end, enum dtype *out)
{
    size_t size;
    if (!take_key_text(text, "torch.") || !str_find_char(*text, end, &size) || !dtype_from_torch((struct str){ text->data, size }, out))
        return false;
    *text = (struct str){ text->data + size + 1, text->size - size - 1 };
    return true;
}

/* Splits at the first dot, or at the last one; both parts have text. */
static bool split_key(struct str text, bool at_last, struct str *before, struct str *behind)
{
    size_t dot = text.size;
    if (at_last) {
        while (dot > 0 && text.data[dot - 1] != '.')
            dot--;
        dot = dot > 0 ? dot - 1 : text.size;
    } else if (!str_find_char(text, '.', &dot)) {
        return false;
    }
    if (dot == 0 || dot + 1 >= text.size)
        return false;
    *before = (struct str){ text.data, dot };
    *behind = (struct str){ text.data + dot + 1, text.size - dot - 1 };
    return true;
}

/* ---- what follows the prefixes ---- */

/* Behind optimizer.state. */
static enum state_key_kind state_keys_read_state(struct str rest, struct state_key *out)
{
    struct str first, behind;
    int64_t number;
    if (!split_key(rest, false, &first, &behind))
        return STATE_KEY_OTHER;
    struct str digits = first;
    if (take_key_number(&digits, &number) && digits.size == 0) {
        out->state = behind;
        return STATE_KEY_NUMBERED;
    }
    bool is_parameter_first = str_is(first, "module");
    if (is_parameter_first && !split_key(rest, true, &behind, &first))
        return STATE_KEY_OTHER;
    out->state = first;
    out->parameter = behind;
    out->is_master = str_is(first, STATE_MASTER) || str_is(first, STATE_PLAIN_MASTER);
    return STATE_KEY_PARAMETER;
}

static enum state_key_kind read_bucket_key(struct str rest, struct state_key *out)
{
    bool is_one = take_key_number(&rest, &out->buffer) && take_key_text(&rest, ".dtype_(") &&
                  take_key_dtype(&rest, ',', &out->param_dtype) && take_key_text(&rest, " ") &&
                  take_key_dtype(&rest, ')', &out->grad_dtype) && take_key_text(&rest, ".bucket_idx_") &&
                  take_key_number(&rest, &out->bucket) && take_key_text(&rest, ".") && rest.size > 0;
    out->state = is_one ? rest : out->state;
    return is_one ? STATE_KEY_BUCKET : STATE_KEY_OTHER;
}

/* Behind optimizer.distributed.dp_group_idx_ */
static enum state_key_kind read_group(struct str rest, struct state_key *out)
{
    static const struct {
        const char *name;
        enum state_key_kind kind;
    } objects[] = {
        { "param_state", STATE_KEY_BUFFERS },
        { "per_bucket_numel", STATE_KEY_BUCKET_SIZES },
        { "per_bucket_numel_unpadded", STATE_KEY_UNPADDED_SIZES },
        { "optimizer", STATE_KEY_GROUPS },
        { "grad_scaler", STATE_KEY_SCALER },
    };
    if (!take_key_number(&rest, &out->group) || !take_key_text(&rest, "."))
        return STATE_KEY_OTHER;
    if (take_key_text(&rest, "gbuf_idx_"))
        return read_bucket_key(rest, out);
    size_t slash;
    struct str name = rest;
    if (str_find_char(rest, '/', &slash)) {
        name.size = slash;
        out->shard = (struct str){ rest.data + slash + 1, rest.size - slash - 1 };
    }
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
        if (str_is(name, objects[i].name))
            return objects[i].kind;
    }
    return STATE_KEY_OTHER;
}

bool state_key_read(struct str key, struct state_key *out)
{
    *out = (struct state_key){ .chain = -1, .group = -1, .buffer = -1, .bucket = -1 };
    struct str rest = key;
    if (take_key_text(&rest, "chained_") && (!take_key_number(&rest, &out->chain) || !take_key_text(&rest, ".")))
        return false;
    out->plain = rest;
    if (!take_key_text(&rest, STATE_KEY_ANY))
        return false;
    if (take_key_text(&rest, "state."))
        out->kind = state_keys_read_state(rest, out);
    else if (take_key_text(&rest, "param_to_group_meta."))
        out->kind = split_key(rest, true, &out->parameter, &out->state) ? STATE_KEY_GROUP_META : STATE_KEY_OTHER;
    else if (take_key_text(&rest, "distributed.dp_group_idx_"))
        out->kind = read_group(rest, out);
    else
        out->kind = STATE_KEY_OTHER;
    return true;
}

bool state_key_is_any(struct str key)
{
    struct state_key read;
    return state_key_read(key, &read);
}

bool state_key_other_master(struct str key, struct buffer *out)
{
    struct state_key read;
    buffer_clear(out);
    if (!state_key_read(key, &read) || read.kind != STATE_KEY_PARAMETER || !read.is_master || read.state.data > read.parameter.data)
        return false;
    buffer_append(out, key.data, (size_t)(read.state.data - key.data));
    buffer_append_text(out, str_is(read.state, STATE_MASTER) ? STATE_PLAIN_MASTER : STATE_MASTER);
    buffer_append_byte(out, '.');
    return buffer_append_str(out, read.parameter);
}

reshard_status state_refuse_remainders(struct str key, reshard_error *err)
{
    error_set(err, RESHARD_ERR_UNSUPPORTED,
              "'%.*s' has the low 16 bits of fp32 masters (store_param_remainders), whose high ones are the bf16 weights: "
              "it is no state by itself",
              STR_ARG(key));
    error_object(err, "%.*s", STR_ARG(key));
    error_hint(err, "torch_dist with optimizer=dp_reshardable or fully_sharded_model_space keeps both as they are; "
                    "reshard_convert_options.exclude 'optimizer*' leaves the state out");
    return RESHARD_ERR_UNSUPPORTED;
}

bool state_key_is(struct str key, enum state_key_kind kind)
{
    struct state_key read;
    return state_key_read(key, &read) && read.kind == kind && (kind < STATE_KEY_BUFFERS || str_is(read.shard, WHOLE_OBJECT));
}
