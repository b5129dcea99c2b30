/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "base/decimal_text.h"
#include "base/value_print.h"

#include <inttypes.h>
#include <math.h>

/* Names may come from anywhere; what is no UTF-8 is escaped before, so that the JSON is valid. */
static bool put_string(struct printer *p, struct str text)
{
    if (str_is_utf8(text, true, NULL))
        return buffer_append_json_visible(p->out, text);
    struct buffer escaped = { .limit = p->out->limit };
    bool ok = buffer_append_escaped(&escaped, text) && buffer_append_json_visible(p->out, buffer_str(&escaped));
    p->out->failed |= escaped.failed;
    p->out->over_limit |= escaped.over_limit;
    buffer_release(&escaped);
    return ok;
}

/* A string with what was put into the scratch buffer. */
static bool put_scratch(struct printer *p, bool filled)
{
    p->out->failed |= p->scratch.failed;
    p->out->over_limit |= p->scratch.over_limit;
    return filled && put_string(p, buffer_str(&p->scratch));
}

static struct buffer *scratch(struct printer *p)
{
    buffer_clear(&p->scratch);
    p->scratch.limit = p->out->limit;
    return &p->scratch;
}

static bool put_repr_string(struct printer *p, const struct value *value)
{
    return put_scratch(p, value_to_repr(value, scratch(p), p->work));
}

static bool put_double(struct printer *p, double real)
{
    if (isfinite(real))
        return buffer_append_double(p->out, real);
    if (p->is_python)
        return buffer_append_text(p->out, isnan(real) ? "NaN" : real < 0 ? "-Infinity" : "Infinity");
    return buffer_append_byte(p->out, '"') && buffer_append_double(p->out, real) && buffer_append_byte(p->out, '"');
}

static bool value_json_put_bytes(struct printer *p, const struct value *value)
{
    static const char hex[] = "0123456789abcdef";
    struct buffer *bytes = scratch(p);
    bool ok = value_as_bytes(value, bytes) && buffer_append_text(p->out, "{\"__bytes__\": \"");
    p->out->failed |= bytes->failed;
    p->out->over_limit |= bytes->over_limit;
    ok = ok && buffer_reserve(p->out, 2 * bytes->size);
    for (size_t i = 0; ok && i < bytes->size; i++)
        ok = buffer_append(p->out, (char[]){ hex[bytes->data[i] >> 4], hex[bytes->data[i] & 15] }, 2);
    return ok && buffer_append_text(p->out, "\"}");
}

static bool value_json_put_global(struct printer *p, const struct value *value)
{
    bool is_torch = value->kind == VALUE_GLOBAL && str_is(value->global.module, "torch");
    bool ok = is_torch || buffer_append_text(p->out, "{\"__global__\": ");
    ok = ok && put_scratch(p, value_append_name(value, scratch(p)));
    return ok && (is_torch || buffer_append_byte(p->out, '}'));
}

static bool value_json_put_leaf(struct printer *p, const struct value *value)
{
    switch ((enum value_kind)value->kind) {
    case VALUE_NONE:
        return buffer_append_text(p->out, "null");
    case VALUE_BOOL:
        return buffer_append_text(p->out, value->boolean ? "true" : "false");
    case VALUE_INT:
        return buffer_append_integer(p->out, value->integer);
    case VALUE_BIGINT:
        return buffer_append_bigint(p->out, value->text);
    case VALUE_FLOAT:
        return put_double(p, value->real);
    case VALUE_STR:
        return put_string(p, value->text);
    case VALUE_GLOBAL:
        return value_json_put_global(p, value);
    default:
        return value_json_put_bytes(p, value);
    }
}

static bool append_device(struct buffer *out, struct value *const *args, size_t count)
{
    if (count < 1 || count > 2 || !args[0] || args[0]->kind != VALUE_STR)
        return false;
    if (count == 2 && (!args[1] || (args[1]->kind != VALUE_INT && args[1]->kind != VALUE_NONE)))
        return false;
    bool ok = buffer_append_str(out, args[0]->text);
    return ok && (count == 1 || args[1]->kind == VALUE_NONE || buffer_printf(out, ":%" PRId64, args[1]->integer));
}

static bool append_part(struct buffer *out, const struct value *part)
{
    if (part && part->kind == VALUE_FLOAT)
        return buffer_append_double_bare(out, part->real);
    return part && part->kind == VALUE_INT && buffer_printf(out, "%" PRId64, part->integer);
}

static bool append_complex(struct buffer *out, struct value *const *args, size_t count)
{
    if (count != 2 || !append_part(out, args[0]))
        return false;
    bool is_imaginary = str_is(buffer_str(out), "0");
    if (is_imaginary)
        buffer_clear(out);
    struct buffer imaginary = { .limit = out->limit };
    bool ok = append_part(&imaginary, args[1]);
    bool has_sign = imaginary.size && (imaginary.data[0] == '-');
    struct str real = buffer_str(out), text = buffer_str(&imaginary);
    struct buffer joined = { .limit = out->limit };
    ok = ok && buffer_printf(&joined, is_imaginary ? "%.*s%s%.*sj" : "(%.*s%s%.*sj)", STR_ARG(real), is_imaginary || has_sign ? "" : "+",
                             STR_ARG(text));
    buffer_clear(out);
    ok = ok && buffer_append_str(out, buffer_str(&joined));
    out->failed |= imaginary.failed || joined.failed;
    out->over_limit |= imaginary.over_limit || joined.over_limit;
    buffer_release(&imaginary);
    buffer_release(&joined);
    return ok;
}

/* A path's arguments are its components; the first may be a root or a drive that ends in the separator. */
static bool append_path(struct buffer *out, struct value *const *args, size_t count, char separator)
{
    bool ok = count || buffer_append_byte(out, '.');
    for (size_t i = 0; ok && i < count; i++) {
        if (!args[i] || args[i]->kind != VALUE_STR)
            return false;
        if (i && out->size && out->data[out->size - 1] != (uint8_t)separator)
            ok = buffer_append_byte(out, (uint8_t)separator);
        ok = ok && buffer_append_str(out, args[i]->text);
    }
    return ok;
}

static bool as_path(const struct value *value, struct value ***args, size_t *count, char *separator)
{
    static const char *const modules[] = { "pathlib", "pathlib._local" };
    static const char *const classes[] = { "PosixPath", "PurePosixPath", "Path", "PurePath", "WindowsPath", "PureWindowsPath" };
    for (int m = 0; m < 2; m++) {
        for (int c = 0; c < 6; c++) {
            *separator = c < 4 ? '/' : '\\';
            if (value_is_plain_call(value, modules[m], classes[c], args, count))
                return true;
        }
    }
    return false;
}

/* Fills scratch with the text of calls that are best shown as one; *is_text says whether value is one of them. */
static bool known_text(struct printer *p, const struct value *value, bool *is_text)
{
    struct value **args;
    size_t count;
    char separator;
    struct buffer *out = scratch(p);
    *is_text = false;
    if (value->kind != VALUE_CALL)
        return true;
    if (value_is_plain_call(value, "torch", "device", &args, &count))
        *is_text = append_device(out, args, count);
    else if (value_is_plain_call(value, "builtins", "complex", &args, &count))
        *is_text = append_complex(out, args, count);
    else if (as_path(value, &args, &count, &separator))
        *is_text = append_path(out, args, count, separator);
    p->out->failed |= out->failed;
    p->out->over_limit |= out->over_limit;
    return !out->failed;
}

static bool push_pairs(struct printer *p, const struct value *node, struct value *const *items, size_t count)
{
    struct print_frame frame = { .node = node, .kind = PRINT_PAIRS, .items = items, .count = count / 2, .between = ", ", .close = "}" };
    return buffer_append_byte(p->out, '{') && printer_order_pairs(p, &frame) && printer_push(p, frame);
}

static bool push_items(struct printer *p, const struct value *node, struct value *const *items, size_t count)
{
    struct print_frame frame = { .node = node, .kind = PRINT_ITEMS, .items = items, .count = count, .between = ", ", .close = "]" };
    return buffer_append_byte(p->out, '[') && printer_push(p, frame);
}

static bool value_json_push_object(struct printer *p, const struct value *node)
{
    struct print_frame frame = { .node = node, .kind = PRINT_OBJECT, .close = "}" };
    size_t skipped;
    const struct value *class = value_class(node, &skipped);
    bool ok = buffer_append_text(p->out, "{\"__class__\": ");
    bool has_name = ok && class && value_append_name(class, scratch(p));
    ok = ok && (has_name || p->scratch.failed ? put_scratch(p, has_name) : put_repr_string(p, class));
    return ok && printer_push(p, frame);
}

static bool is_set_call(const struct value *value, struct value ***items, size_t *count)
{
    struct value **args;
    size_t arg_count;
    if (!value_is_plain_call(value, "builtins", "set", &args, &arg_count) &&
        !value_is_plain_call(value, "builtins", "frozenset", &args, &arg_count))
        return false;
    *items = NULL;
    *count = 0;
    return arg_count == 0 || (arg_count == 1 && value_as_sequence(args[0], items, count));
}

static bool put_container(struct printer *p, const struct value *value)
{
    struct value **items;
    size_t count;
    bool is_open;
    if (p->frame_count >= VALUE_JSON_DEPTH_MAX)
        return buffer_append_text(p->out, "{\"__too_deep__\": true}");
    if (!printer_enter(p, value, &is_open))
        return false;
    if (is_open)
        return buffer_append_text(p->out, "{\"__cycle__\": true}");
    if (value_as_mapping(value, &items, &count))
        return push_pairs(p, value, items, count);
    if (value_as_sequence(value, &items, &count) || is_set_call(value, &items, &count))
        return push_items(p, value, items, count);
    if (value->kind == VALUE_SET || value->kind == VALUE_FROZENSET)
        return push_items(p, value, value->list.items, value->list.count);
    if (value->kind == VALUE_PERSID) {
        struct print_frame frame = { .node = value, .kind = PRINT_ITEMS, .items = &value->inner, .count = 1, .close = "}" };
        return buffer_append_text(p->out, "{\"__persistent_id__\": ") && printer_push(p, frame);
    }
    return value_json_push_object(p, value);
}

static bool value_json_put_value(struct printer *p, const struct value *value)
{
    bool is_text;
    if (!value)
        return buffer_append_text(p->out, "null");
    if (value->tensor)
        return buffer_printf(p->out, "{\"__tensor__\": %" PRIu32 "}", value->tensor - 1);
    if (value_is_leaf(value))
        return value_json_put_leaf(p, value);
    if (value_is_bytes(value))
        return value_json_put_bytes(p, value);
    if (!known_text(p, value, &is_text))
        return false;
    if (is_text)
        return put_scratch(p, true);
    if (value_is_call(value, "builtins", "getattr") && (value_append_name(value, scratch(p)) || p->scratch.failed))
        return value_json_put_global(p, value);
    return put_container(p, value);
}

static bool value_json_put_key(struct printer *p, const struct value *key)
{
    if (key && key->kind == VALUE_STR)
        return put_string(p, key->text);
    return put_repr_string(p, key);
}

/* Attributes stand beside "__class__", so none may look like what is put there. */
static bool is_attributes(const struct value *state)
{
    if (!state || state->kind != VALUE_DICT || state->tensor)
        return false;
    for (size_t i = 0; i < state->list.count; i += 2) {
        const struct value *key = state->list.items[i];
        if (!key || key->kind != VALUE_STR || str_starts_with(key->text, "__"))
            return false;
    }
    return true;
}

static bool push_attributes(struct printer *p, const struct value *state)
{
    struct print_frame frame = {
        .kind = PRINT_PAIRS, .items = state->list.items, .count = state->list.count / 2, .between = ", ", .close = ""
    };
    bool is_open;
    if (!printer_enter(p, state, &is_open))
        return false;
    if (is_open)
        return buffer_append_text(p->out, ", \"__state__\": {\"__cycle__\": true}");
    frame.node = state;
    frame.any = true;
    return printer_order_pairs(p, &frame) && printer_push(p, frame);
}

static bool put_args(struct printer *p, const struct value *object)
{
    size_t skipped;
    const struct value *args = object->object->args;
    value_class(object, &skipped);
    if (!args)
        return true;
    bool is_plain = args->kind == VALUE_TUPLE || args->kind == VALUE_LIST;
    if (is_plain && args->list.count <= skipped)
        return true;
    if (!buffer_append_text(p->out, ", \"__args__\": "))
        return false;
    if (is_plain && skipped)
        return push_items(p, NULL, args->list.items + skipped, args->list.count - skipped);
    return value_json_put_value(p, args);
}

static bool put_states(struct printer *p, const struct value_object *object)
{
    if (object->state_count == 0)
        return true;
    if (object->state_count > 1)
        return buffer_append_text(p->out, ", \"__states__\": ") && push_items(p, NULL, object->states, object->state_count);
    if (is_attributes(object->states[0]))
        return push_attributes(p, object->states[0]);
    return buffer_append_text(p->out, ", \"__state__\": ") && value_json_put_value(p, object->states[0]);
}

/* One section of the object in the top frame; what it pushes is printed before the next section. */
static bool put_section(struct printer *p)
{
    struct print_frame *frame = &p->frames[p->frame_count - 1];
    const struct value *node = frame->node;
    const struct value_object *object = node->object;
    switch (frame->section++) {
    case 0:
        return put_args(p, node);
    case 1:
        return !object->kwargs || (buffer_append_text(p->out, ", \"__kwargs__\": ") && value_json_put_value(p, object->kwargs));
    case 2:
        return put_states(p, object);
    case 3:
        return !object->list_count ||
               (buffer_append_text(p->out, ", \"__items__\": ") && push_items(p, NULL, object->list_items, object->list_count));
    case 4:
        return !object->dict_count ||
               (buffer_append_text(p->out, ", \"__dict__\": ") && push_pairs(p, NULL, object->dict_items, object->dict_count));
    case 5:
        return !object->set_count ||
               (buffer_append_text(p->out, ", \"__set__\": ") && push_items(p, NULL, object->set_items, object->set_count));
    default:
        return printer_pop(p);
    }
}

static bool value_json_put_element(struct printer *p)
{
    size_t index;
    const struct print_frame *frame = &p->frames[p->frame_count - 1];
    struct value *const *items = frame->items;
    bool is_pair = frame->kind == PRINT_PAIRS;
    if (!printer_next(p, &index))
        return false;
    if (index == SIZE_MAX)
        return printer_pop(p);
    if (!is_pair)
        return value_json_put_value(p, items[index]);
    return value_json_put_key(p, items[2 * index]) && buffer_append_text(p->out, ": ") && value_json_put_value(p, items[2 * index + 1]);
}

static reshard_status document_print(const struct value *value, bool is_python, struct buffer *out, struct named_limit most,
                                     reshard_error *err)
{
    size_t bytes_max = most.value < SIZE_MAX ? (size_t)most.value : SIZE_MAX;
    uint64_t affordable = work_left(most.budget, bytes_max);
    bool is_budget = affordable < bytes_max;
    struct printer printer = { .out = out, .seed = hash_table_seed(), .work = most.budget, .is_python = is_python };
    size_t start = out->size, limit = out->limit;
    bool had_failed = out->failed, was_over = out->over_limit;
    bytes_max = (size_t)affordable;
    if (bytes_max < SIZE_MAX - start && (!limit || start + bytes_max < limit))
        out->limit = start + bytes_max ? start + bytes_max : 1;
    out->failed = out->over_limit = false;

    bool ok = value_json_put_value(&printer, value);
    while (ok && printer.frame_count)
        ok = printer.frames[printer.frame_count - 1].kind == PRINT_OBJECT ? put_section(&printer) : value_json_put_element(&printer);
    bool over_limit = out->over_limit && !printer.no_memory;
    printer_release(&printer);
    ok = work_take(most.budget, over_limit && is_budget ? UINT64_MAX : out->size - start) && ok;
    out->limit = limit;
    out->failed = had_failed;
    out->over_limit = was_over;
    if (ok)
        return RESHARD_OK;
    out->size = start;
    return over_limit && !is_budget ? limit_error_bytes(err, most, "value as JSON", 0) : work_error(most.budget, err);
}

reshard_status value_to_json(const struct value *value, struct buffer *out, struct named_limit limit, reshard_error *err)
{
    return document_print(value, false, out, limit, err);
}

reshard_status value_to_python_json(const struct value *value, struct buffer *out, struct named_limit limit, reshard_error *err)
{
    return document_print(value, true, out, limit, err);
}
