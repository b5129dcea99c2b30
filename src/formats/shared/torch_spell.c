/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/torch_spell.h"

#include "encoding/pickle_write.h"

#include <inttypes.h>
#include <stdio.h>

static bool put_names(const struct value *global, struct buffer *out)
{
    buffer_append_byte(out, 'c');
    buffer_append_str(out, global->global.module);
    buffer_append_byte(out, '\n');
    buffer_append_str(out, global->global.name);
    buffer_append_byte(out, '\n');
    return true;
}

static bool put_storage(const struct torch_storage_finder *finder, const struct value *persid, reshard_status *kept, struct buffer *out)
{
    const struct value *class_;
    bool is_known, is_untyped;
    enum dtype dtype;
    int64_t numel;
    uint32_t record;
    uint64_t bytes;
    char key[16];
    if (!torch_save_storage_id(persid, &class_, &is_known, &dtype, &is_untyped, &numel))
        return false;
    reshard_status status = finder->find(finder->context, persid, &record, &bytes);
    if (status) {
        *kept = status;
        out->failed = true;
        return true;
    }
    snprintf(key, sizeof(key), "%" PRIu32, record);
    if (is_known) {
        const char *name = is_untyped ? "UntypedStorage" : dtype_info(dtype)->torch_storage;
        torch_save_put_storage(out, is_untyped ? "torch.storage" : "torch", name, key,
                               is_untyped ? bytes : bytes / dtype_element_bytes(dtype));
        return true;
    }
    pickle_put_opcode(out, PICKLE_MARK);
    pickle_put_str(out, STR("storage"));
    put_names(class_, out);
    pickle_put_str(out, str_of(key));
    pickle_put_str(out, STR("cpu"));
    pickle_put_int(out, numel);
    pickle_put_opcode(out, PICKLE_TUPLE);
    pickle_put_opcode(out, PICKLE_BINPERSID);
    return true;
}

/* ('module', class, file, source) of a legacy stream is the class. */
static bool put_module_class(const struct value *persid, struct buffer *out)
{
    const struct value *payload = persid->inner;
    struct str tag;
    if (payload->kind != VALUE_TUPLE || payload->list.count != 4 || !value_as_str(payload->list.items[0], &tag) || !str_is(tag, "module") ||
        payload->list.items[1]->kind != VALUE_GLOBAL)
        return false;
    return put_names(payload->list.items[1], out);
}

/* Protocol 2 cannot name what lies inside something: a dotted name is spelled as CPython does, getattr(first, 'second'). */
static bool put_dotted(const struct value *global, struct buffer *out)
{
    struct str name = global->global.name;
    size_t dot, begin = 0;
    if (!str_find_char(name, '.', &dot))
        return false;
    struct value first = *global;
    first.global.name = (struct str){ name.data, dot };
    size_t dots = 0;
    for (size_t i = 0; i < name.size; i++)
        dots += name.data[i] == '.';
    for (size_t i = 0; i < dots; i++)
        pickle_put_global(out, "__builtin__", "getattr");
    put_names(&first, out);
    for (begin = dot + 1; begin <= name.size; begin = dot + 1) {
        struct str rest = { name.data + begin, name.size - begin };
        dot = str_find_char(rest, '.', &dot) ? begin + dot : name.size;
        pickle_put_str(out, (struct str){ name.data + begin, dot - begin });
        pickle_put_opcode(out, PICKLE_TUPLE2);
        pickle_put_opcode(out, PICKLE_REDUCE);
    }
    return true;
}

bool torch_spell(const struct value *value, const struct torch_storage_finder *finder, reshard_status *status, struct buffer *out)
{
    if (value->kind == VALUE_GLOBAL)
        return put_dotted(value, out);
    if (value->kind != VALUE_PERSID)
        return false;
    return value->storage > 0 ? put_storage(finder, value, status, out) : put_module_class(value, out);
}

reshard_status torch_check_type(const struct catalog_tensor *tensor, reshard_error *err)
{
    if (torch_save_can_hold(tensor->dtype))
        return RESHARD_OK;
    const struct dtype_info *info = dtype_info(tensor->dtype);
    if (tensor->dtype == DTYPE_F4) /* with an even last dimension it is F4_X2 here */
        error_set(err, RESHARD_ERR_UNSUPPORTED,
                  "tensor '%.*s': torch has F4 as %s, two in a byte along an even last dimension: this one cannot be written so",
                  STR_ARG(tensor->key), dtype_info(DTYPE_F4_X2)->torch_name);
    else
        error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': torch has no type %s", STR_ARG(tensor->key), info->name);
    error_hint(err, info->class_ == DTYPE_CLASS_OPAQUE
                        ? "reshard_convert_options.exclude leaves it out"
                        : "reshard_convert_options.dtypes 'GLOB=TYPE' converts it to one that torch has, reshard_convert_options.exclude "
                          "leaves it out");
    return RESHARD_ERR_UNSUPPORTED;
}
