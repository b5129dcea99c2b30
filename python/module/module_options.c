/* SPDX-License-Identifier: Apache-2.0 */
/* Dicts as option structs. Their members have the names that they have in C, so that messages of the library are right here too. */
#include "binding.h"

#include <string.h>

#define AT(type, member) offsetof(reshard_##type##_options, member)
#define END                                                                                                                                \
    {                                                                                                                                      \
        NULL, OPTION_FLAG, 0, 0, NULL, NULL, 0                                                                                             \
    }
#define ONE(type, member, kind)                                                                                                            \
    {                                                                                                                                      \
#member, kind, AT(type, member), 0, NULL, NULL, 0                                                                                  \
    }
#define MANY(type, member, kind, counted)                                                                                                  \
    {                                                                                                                                      \
#member, kind, AT(type, member), AT(type, counted), NULL, NULL, 0                                                                  \
    }
#define PART(type, member, part)                                                                                                           \
    {                                                                                                                                      \
#member, OPTION_STRUCT, AT(type, member), 0, part##_members, &part##_initial, sizeof(part##_initial)                               \
    }

static const reshard_open_options open_initial = RESHARD_OPEN_OPTIONS_INIT;

const struct option open_members[] = {
    ONE(open, format, OPTION_TEXT),
    ONE(open, iteration, OPTION_INT),
    ONE(open, has_iteration, OPTION_FLAG),
    ONE(open, follow_links, OPTION_FLAG),
    ONE(open, lenient, OPTION_FLAG),
    ONE(open, skip_unsupported, OPTION_FLAG),
    MANY(open, limits, OPTION_LIMITS, limit_count),
    ONE(open, shows_damage, OPTION_LONG_FLAG),
    END,
};

const struct option map_members[] = {
    MANY(map, texts, OPTION_MAPPINGS, text_count),
    ONE(map, rules, OPTION_TEXT),
    ONE(map, rules_text, OPTION_MAPPING),
    ONE(map, strict, OPTION_LONG_FLAG),
    { "config", OPTION_STR, AT(map, config), 0, NULL, NULL, 0 }, /* config_size lies behind it */
    MANY(map, constants, OPTION_CONSTANTS, constant_count),
    END,
};
_Static_assert(AT(map, config_size) == AT(map, config) + sizeof(char *), "config and config_size are a reshard_str");

const struct option convert_members[] = {
    ONE(convert, to, OPTION_TEXT),
    ONE(convert, like, OPTION_TEXT),
    ONE(convert, layout, OPTION_TEXT),
    ONE(convert, include, OPTION_TEXTS),
    ONE(convert, exclude, OPTION_TEXTS),
    ONE(convert, dtypes, OPTION_TEXTS),
    ONE(convert, format_options, OPTION_TEXTS),
    ONE(convert, max_shard_bytes, OPTION_SIZE),
    ONE(convert, no_shard_limit, OPTION_FLAG),
    ONE(convert, drop_items, OPTION_FLAG),
    ONE(convert, overwrite, OPTION_FLAG),
    ONE(convert, resume, OPTION_FLAG),
    ONE(convert, no_sync, OPTION_FLAG),
    ONE(convert, verify, OPTION_FLAG),
    ONE(convert, checksum, OPTION_TEXT),
    PART(convert, open, open),
    PART(convert, map, map),
    ONE(convert, wrap, OPTION_TEXT),
    ONE(convert, strip_prefix, OPTION_TEXT),
    ONE(convert, add_prefix, OPTION_TEXT),
    ONE(convert, renames, OPTION_TEXTS),
    ONE(convert, missing, OPTION_TEXT),
    ONE(convert, part, OPTION_SIZE),
    ONE(convert, part_count, OPTION_SIZE),
    ONE(convert, no_space_check, OPTION_LONG_FLAG),
    END,
};

const struct option verify_members[] = {
    ONE(verify, deep, OPTION_LONG_FLAG), ONE(verify, expect_optimizer, OPTION_LONG_FLAG),
    ONE(verify, against, OPTION_TEXT),   PART(verify, open, open),
    ONE(verify, fail_on, OPTION_INT),    END,
};

const struct option diff_members[] = {
    ONE(diff, absolute_tolerance, OPTION_REAL),
    ONE(diff, relative_tolerance, OPTION_REAL),
    PART(diff, map, map),
    ONE(diff, ignore_items, OPTION_LONG_FLAG),
    ONE(diff, include, OPTION_TEXTS),
    ONE(diff, exclude, OPTION_TEXTS),
    ONE(diff, explain, OPTION_LONG_FLAG),
    ONE(diff, strip_prefix, OPTION_TEXT),
    ONE(diff, add_prefix, OPTION_TEXT),
    ONE(diff, renames, OPTION_TEXTS),
    ONE(diff, ignore_dtype, OPTION_LONG_FLAG),
    END,
};

const struct option salvage_members[] = {
    ONE(salvage, to, OPTION_TEXT),       ONE(salvage, like, OPTION_TEXT),
    PART(salvage, open, open),           ONE(salvage, overwrite, OPTION_FLAG),
    ONE(salvage, no_sync, OPTION_FLAG),  ONE(salvage, include, OPTION_TEXTS),
    ONE(salvage, exclude, OPTION_TEXTS), END,
};

const struct option stats_members[] = {
    ONE(stats, include, OPTION_TEXTS),
    ONE(stats, exclude, OPTION_TEXTS),
    END,
};

const struct option view_members[] = {
    { "strip_prefix", OPTION_TEXT, offsetof(reshard_view, strip_prefix), 0, NULL, NULL, 0 },
    { "renames", OPTION_TEXTS, offsetof(reshard_view, renames), 0, NULL, NULL, 0 },
    { "add_prefix", OPTION_TEXT, offsetof(reshard_view, add_prefix), 0, NULL, NULL, 0 },
    { "include", OPTION_TEXTS, offsetof(reshard_view, include), 0, NULL, NULL, 0 },
    { "exclude", OPTION_TEXTS, offsetof(reshard_view, exclude), 0, NULL, NULL, 0 },
    END,
};

const struct option map_input_members[] = {
    { "name", OPTION_TEXT, offsetof(reshard_map_input, name), 0, NULL, NULL, 0 },
    { "text", OPTION_STR, offsetof(reshard_map_input, text), 0, NULL, NULL, 0 }, /* size lies behind it */
    { "strict", OPTION_FLAG, offsetof(reshard_map_input, strict), 0, NULL, NULL, 0 },
    { "reverse", OPTION_FLAG, offsetof(reshard_map_input, reverse), 0, NULL, NULL, 0 },
    { "limits", OPTION_LIMITS, offsetof(reshard_map_input, limits), offsetof(reshard_map_input, limit_count), NULL, NULL, 0 },
    { "config", OPTION_STR, offsetof(reshard_map_input, config), 0, NULL, NULL, 0 }, /* config_size lies behind it */
    { "constants", OPTION_CONSTANTS, offsetof(reshard_map_input, constants), offsetof(reshard_map_input, constant_count), NULL, NULL, 0 },
    END,
};
_Static_assert(offsetof(reshard_map_input, size) == offsetof(reshard_map_input, text) + sizeof(char *) &&
                   offsetof(reshard_map_input, config_size) == offsetof(reshard_map_input, config) + sizeof(char *),
               "texts and their sizes are reshard_strs");

const struct option run_members[] = {
    ONE(run, memory_bytes, OPTION_SIZE),
    ONE(run, threads, OPTION_SIZE),
    ONE(run, io, OPTION_TEXT),
    END,
};

/* ---- members ---- */

static bool take_limit(PyObject *kept, PyObject *pair, void *out)
{
    reshard_limit_change *limit = out;
    PyObject *name, *value;
    if (!PyArg_ParseTuple(pair, "OO", &name, &value) || !(limit->name = kept_text(kept, name)))
        return false;
    limit->value = PyLong_AsUnsignedLongLong(value);
    return !PyErr_Occurred();
}

static bool take_constant(PyObject *kept, PyObject *pair, void *out)
{
    reshard_map_constant *constant = out;
    PyObject *name, *value;
    if (!PyArg_ParseTuple(pair, "OO", &name, &value) || !(constant->name = kept_text(kept, name)))
        return false;
    constant->value = PyLong_AsLongLong(value);
    return !PyErr_Occurred();
}

static bool take_mapping(PyObject *kept, PyObject *pair, void *out)
{
    reshard_map_text *mapping = out;
    PyObject *name, *text;
    reshard_str given;
    if (!PyArg_ParseTuple(pair, "OU", &name, &text) || !(mapping->name = kept_text(kept, name)) || !kept_str(kept, text, &given))
        return false;
    mapping->text = given.data;
    mapping->size = given.size;
    return true;
}

static bool take_text(PyObject *kept, PyObject *text, void *out)
{
    return (*(const char **)out = kept_text(kept, text)) != NULL;
}

/* Of a dict: its pairs. */
static bool take_array(PyObject *kept, PyObject *value, size_t stride, taker take, void *array, void *count)
{
    PyObject *members = PyDict_Check(value) ? PyDict_Items(value) : Py_NewRef(value);
    size_t found = 0;
    void *memory = members ? kept_array(kept, members, stride, take, &found) : NULL;
    Py_XDECREF(members);
    memcpy(array, &memory, sizeof(memory));
    if (count)
        *(size_t *)count = found;
    return memory != NULL;
}

/* With a NULL behind them. */
static bool take_texts(PyObject *kept, PyObject *value, void *array)
{
    PyObject *list = PyUnicode_Check(value) ? PyTuple_Pack(1, value) : PySequence_List(value);
    size_t count;
    const char **texts = list ? kept_array(kept, list, sizeof(*texts), take_text, &count) : NULL;
    const char **ended = texts ? kept_memory(kept, (count + 1) * sizeof(*ended)) : NULL;
    if (ended)
        memcpy(ended, texts, count * sizeof(*ended));
    memcpy(array, &ended, sizeof(ended));
    Py_XDECREF(list);
    return ended != NULL;
}

static bool take_struct(PyObject *kept, PyObject *value, const struct option *option, void *place)
{
    void *memory = kept_memory(kept, option->size);
    if (!memory)
        return false;
    memcpy(memory, option->initial, option->size);
    memcpy(place, &memory, sizeof(memory));
    return options_take(kept, value, option->members, memory);
}

static bool take_number(PyObject *value, enum option_kind kind, void *place)
{
    if (kind == OPTION_FLAG)
        *(int *)place = PyObject_IsTrue(value);
    else if (kind == OPTION_LONG_FLAG)
        *(int64_t *)place = PyObject_IsTrue(value);
    else if (kind == OPTION_INT)
        *(int64_t *)place = PyLong_AsLongLong(value);
    else if (kind == OPTION_SIZE)
        *(uint64_t *)place = PyLong_AsUnsignedLongLong(value);
    else
        *(double *)place = PyFloat_AsDouble(value);
    return !PyErr_Occurred();
}

static bool take_member(PyObject *kept, PyObject *value, const struct option *option, char *out)
{
    void *place = out + option->offset, *count = option->count ? out + option->count : NULL;
    switch (option->kind) {
    case OPTION_TEXT:
        return take_text(kept, value, place);
    case OPTION_STR:
        return kept_str(kept, value, place);
    case OPTION_TEXTS:
        return take_texts(kept, value, place);
    case OPTION_LIMITS:
        return take_array(kept, value, sizeof(reshard_limit_change), take_limit, place, count);
    case OPTION_CONSTANTS:
        return take_array(kept, value, sizeof(reshard_map_constant), take_constant, place, count);
    case OPTION_MAPPINGS:
        return take_array(kept, value, sizeof(reshard_map_text), take_mapping, place, count);
    case OPTION_MAPPING: {
        void *mapping = kept_memory(kept, sizeof(reshard_map_text));
        memcpy(place, &mapping, sizeof(mapping));
        return mapping && take_mapping(kept, value, mapping);
    }
    case OPTION_STRUCT:
        return take_struct(kept, value, option, place);
    default:
        return take_number(value, option->kind, place);
    }
}

bool options_take(PyObject *kept, PyObject *given, const struct option *members, void *out)
{
    Py_ssize_t at = 0;
    PyObject *name, *value;
    while (given != Py_None && PyDict_Next(given, &at, &name, &value)) {
        const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
        const struct option *option = members;
        while (text && option->name && strcmp(option->name, text) != 0)
            option++;
        if (!text)
            return false;
        if (!option->name) {
            PyErr_Format(PyExc_TypeError, "unknown option '%s'", text);
            return false;
        }
        if (value != Py_None && !take_member(kept, value, option, out))
            return false;
    }
    return true;
}

/* ---- runs ---- */

bool running_take(PyObject *kept, PyObject *given, struct running *out)
{
    *out = (struct running){ .options = RESHARD_RUN_OPTIONS_INIT };
    PyObject *rest = PyDict_New();
    if (!rest || PyDict_Update(rest, given) != 0) {
        Py_XDECREF(rest);
        return false;
    }
    PyObject *progress = PyDict_GetItemString(rest, "progress"), *comm = PyDict_GetItemString(rest, "comm");
    out->progress = progress == Py_None ? NULL : progress; /* given has them as well */
    out->comm = comm;
    bool is_taken = (!progress || PyDict_DelItemString(rest, "progress") == 0) && (!comm || PyDict_DelItemString(rest, "comm") == 0);
    is_taken = is_taken && options_take(kept, rest, run_members, &out->options);
    Py_DECREF(rest);
    out->options.progress = running_progress;
    out->options.context = out;
    return is_taken;
}

int running_stop(struct running *running)
{
    if (running->type)
        PyErr_Clear(); /* the first counts */
    else
        PyErr_Fetch(&running->type, &running->value, &running->trace);
    return 1;
}

int running_progress(const reshard_progress *progress, void *context)
{
    struct running *running = context;
    PyGILState_STATE state = PyGILState_Ensure();
    bool goes_on = !running->type && PyErr_CheckSignals() == 0;
    if (goes_on && running->progress) {
        PyObject *said = PyObject_CallFunction(running->progress, "KKKKK", (unsigned long long)progress->bytes_done,
                                               (unsigned long long)progress->bytes_total, (unsigned long long)progress->bytes_read,
                                               (unsigned long long)progress->bytes_written, (unsigned long long)progress->memory_bytes);
        goes_on = said != NULL;
        Py_XDECREF(said);
    }
    if (!goes_on)
        running_stop(running);
    PyGILState_Release(state);
    return !goes_on;
}

PyObject *running_end(struct running *running, reshard_status status, const reshard_error *err)
{
    if (running->type) {
        if (exception_raise())
            PyErr_Clear(); /* one is enough */
        diagnoses_forget();
        PyErr_Restore(running->type, running->value, running->trace);
        running->type = running->value = running->trace = NULL;
        return NULL;
    }
    return status ? error_raise(status, err) : diagnoses_warn(Py_NewRef(Py_None));
}
