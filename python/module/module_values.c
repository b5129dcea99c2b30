/* SPDX-License-Identifier: Apache-2.0 */
/* Values of items: of the library as Python objects, and the other way round. */
#include "binding.h"

#include <string.h>

/* ---- to Python ---- */

struct converting {
    const reshard_checkpoint *checkpoint;
    PyObject *memo; /* values may hold each other: address -> object */
};

static PyObject *convert(struct converting *job, const reshard_value *value);

/* int.from_bytes, which the limited API has no function for. */
static PyObject *big_int(reshard_str bytes)
{
    PyObject *from = PyObject_GetAttrString((PyObject *)&PyLong_Type, "from_bytes"), *number = NULL;
    PyObject *arguments = Py_BuildValue("(y#s)", bytes.data, (Py_ssize_t)bytes.size, "little");
    PyObject *names = Py_BuildValue("{sO}", "signed", Py_True);
    if (from && arguments && names)
        number = PyObject_Call(from, arguments, names);
    Py_XDECREF(from);
    Py_XDECREF(arguments);
    Py_XDECREF(names);
    return number;
}

/* A list is no key of a dict, a tuple is. */
static PyObject *as_key(PyObject *object)
{
    if (!object || !PyList_Check(object))
        return object;
    PyObject *tuple = PyList_AsTuple(object);
    Py_DECREF(object);
    for (Py_ssize_t i = 0; tuple && i < PyTuple_Size(tuple); i++) {
        PyObject *member = as_key(Py_NewRef(PyTuple_GetItem(tuple, i)));
        if (!member || PyTuple_SetItem(tuple, i, member) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static bool fill_member(struct converting *job, const reshard_value *value, int64_t kind, size_t index, PyObject *out)
{
    const reshard_value *key_value = NULL, *member_value = NULL;
    if (reshard_value_at(job->checkpoint, value, index, &key_value, &member_value))
        return PyErr_Format(PyExc_RuntimeError, "a value has no member %zu", index) != NULL;
    PyObject *member = convert(job, member_value), *key = NULL;
    bool is_filled = false;
    if (kind == RESHARD_VALUE_DICT) {
        key = as_key(convert(job, key_value));
        is_filled = key && member && PyDict_SetItem(out, key, member) == 0;
    } else if (kind == RESHARD_VALUE_SET) {
        member = as_key(member);
        is_filled = member && PySet_Add(out, member) == 0;
    } else {
        is_filled = member && PyList_Append(out, member) == 0;
    }
    Py_XDECREF(key);
    Py_XDECREF(member);
    return is_filled;
}

static PyObject *container(struct converting *job, const reshard_value *value, const reshard_value_info *info)
{
    PyObject *address = PyLong_FromVoidPtr((void *)value);
    PyObject *known = address ? PyDict_GetItemWithError(job->memo, address) : NULL;
    PyObject *out = NULL;
    if (known)
        out = Py_NewRef(known);
    else if (address && !PyErr_Occurred()) {
        out = info->kind == RESHARD_VALUE_DICT ? PyDict_New() : info->kind == RESHARD_VALUE_SET ? PySet_New(NULL) : PyList_New(0);
        if (out && PyDict_SetItem(job->memo, address, out) != 0)
            Py_CLEAR(out);
        for (size_t i = 0; out && i < info->count; i++)
            if (!fill_member(job, value, info->kind, i, out))
                Py_CLEAR(out);
        if (out && info->is_tuple) { /* a list until it is whole: it may be in itself */
            PyObject *list = out;
            out = PyList_AsTuple(list);
            Py_DECREF(list);
            if (out && PyDict_SetItem(job->memo, address, out) != 0)
                Py_CLEAR(out);
        }
    }
    Py_XDECREF(address);
    return out;
}

/* (class name, JSON), which the package makes an Object of. */
static PyObject *object_of_class(struct converting *job, const reshard_value *value, reshard_str class_name)
{
    char *json;
    size_t size;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = reshard_value_json(job->checkpoint, value, &json, &size, &err);
    if (status)
        return error_raise(status, &err);
    PyObject *module = PyImport_ImportModule("reshard._values");
    PyObject *object =
        module ? PyObject_CallMethod(module, "Object", "NN", text_of(class_name), text_of((reshard_str){ json, size })) : NULL;
    Py_XDECREF(module);
    reshard_free(json);
    return object;
}

static PyObject *convert_kind(struct converting *job, const reshard_value *value, const reshard_value_info *info)
{
    switch (info->kind) {
    case RESHARD_VALUE_NULL:
        return Py_NewRef(Py_None);
    case RESHARD_VALUE_BOOL:
        return PyBool_FromLong(info->integer != 0);
    case RESHARD_VALUE_INT:
        return PyLong_FromLongLong(info->integer);
    case RESHARD_VALUE_BIG_INT:
        return big_int(info->text);
    case RESHARD_VALUE_REAL:
        return PyFloat_FromDouble(info->real);
    case RESHARD_VALUE_TEXT:
        return text_of(info->text);
    case RESHARD_VALUE_BYTES:
        return PyBytes_FromStringAndSize(info->text.data, (Py_ssize_t)info->text.size);
    case RESHARD_VALUE_OBJECT:
        return object_of_class(job, value, info->text);
    default:
        return container(job, value, info);
    }
}

static PyObject *convert(struct converting *job, const reshard_value *value)
{
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    if (reshard_value_look(job->checkpoint, value, &info))
        return error_usage("the value is not one of this checkpoint");
    if (Py_EnterRecursiveCall(" in a value of a checkpoint"))
        return NULL;
    PyObject *out = convert_kind(job, value, &info);
    Py_LeaveRecursiveCall();
    return out;
}

PyObject *value_to_python(const reshard_checkpoint *checkpoint, const reshard_value *value)
{
    struct converting job = { checkpoint, PyDict_New() };
    PyObject *out = job.memo ? convert(&job, value) : NULL;
    Py_XDECREF(job.memo);
    return out;
}

/* ---- from Python ---- */

static bool add_value(reshard_items *items, reshard_value *holder, PyObject *key, PyObject *value);

static bool add_members(reshard_items *items, reshard_value *holder, PyObject *value)
{
    PyObject *pairs = PyDict_Check(value) ? PyDict_Items(value) : PySequence_List(value);
    bool is_added = pairs != NULL;
    for (Py_ssize_t i = 0; is_added && i < PyList_Size(pairs); i++) {
        PyObject *member = PyList_GetItem(pairs, i), *key = NULL;
        if (PyDict_Check(value)) {
            key = PyTuple_GetItem(member, 0);
            member = PyTuple_GetItem(member, 1);
            if (!PyUnicode_Check(key)) {
                PyErr_Format(PyExc_TypeError, "keys of dicts in items are str, not %R", key);
                is_added = false;
                break;
            }
        }
        is_added = add_value(items, holder, key, member);
    }
    Py_XDECREF(pairs);
    return is_added;
}

/* Two's complement, little-endian. */
static PyObject *int_bytes(PyObject *number)
{
    PyObject *bits = PyObject_CallMethod(number, "bit_length", NULL);
    Py_ssize_t size = bits ? PyLong_AsSsize_t(bits) / 8 + 1 : 0;
    Py_XDECREF(bits);
    PyObject *method = size ? PyObject_GetAttrString(number, "to_bytes") : NULL, *bytes = NULL;
    PyObject *arguments = Py_BuildValue("(ns)", size, "little"), *names = Py_BuildValue("{sO}", "signed", Py_True);
    if (method && arguments && names)
        bytes = PyObject_Call(method, arguments, names);
    Py_XDECREF(method);
    Py_XDECREF(arguments);
    Py_XDECREF(names);
    return bytes;
}

static bool describe_int(PyObject *kept, PyObject *value, reshard_value_info *info)
{
    int overflow;
    info->kind = RESHARD_VALUE_INT;
    info->integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (!overflow)
        return !PyErr_Occurred();
    info->kind = RESHARD_VALUE_BIG_INT;
    PyObject *bytes = int_bytes(value);
    bool is_kept = bytes && kept_str(kept, bytes, &info->text);
    Py_XDECREF(bytes);
    return is_kept;
}

static bool describe(PyObject *kept, PyObject *value, reshard_value_info *info)
{
    if (value == Py_None) {
        info->kind = RESHARD_VALUE_NULL;
    } else if (PyBool_Check(value)) {
        info->kind = RESHARD_VALUE_BOOL;
        info->integer = value == Py_True;
    } else if (PyLong_Check(value)) {
        return describe_int(kept, value, info);
    } else if (PyFloat_Check(value)) {
        info->kind = RESHARD_VALUE_REAL;
        info->real = PyFloat_AsDouble(value);
    } else if (PyUnicode_Check(value) || PyBytes_Check(value)) {
        info->kind = PyBytes_Check(value) ? RESHARD_VALUE_BYTES : RESHARD_VALUE_TEXT;
        return kept_str(kept, value, &info->text);
    } else if (PyDict_Check(value)) {
        info->kind = RESHARD_VALUE_DICT;
    } else if (PyList_Check(value) || PyTuple_Check(value)) {
        info->kind = RESHARD_VALUE_LIST;
        info->is_tuple = PyTuple_Check(value);
    } else if (PyAnySet_Check(value)) {
        info->kind = RESHARD_VALUE_SET;
    } else {
        PyErr_Format(PyExc_TypeError, "items hold None, bool, int, float, str, bytes, list, tuple, dict and set, not %R",
                     (PyObject *)Py_TYPE(value));
        return false;
    }
    return true;
}

static bool add_value(reshard_items *items, reshard_value *holder, PyObject *key, PyObject *value)
{
    PyObject *kept = PyList_New(0);
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    reshard_str text = { "", 0 };
    reshard_value *added = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    bool is_added = kept && describe(kept, value, &info) && (!key || kept_str(kept, key, &text));
    reshard_status status = is_added ? reshard_items_add(items, holder, text, &info, &added, &err) : RESHARD_OK;
    if (status) {
        error_raise(status, &err);
        is_added = false;
    }
    Py_XDECREF(kept);
    if (!is_added || info.kind < RESHARD_VALUE_LIST)
        return is_added;
    if (Py_EnterRecursiveCall(" in an item"))
        return false;
    is_added = add_members(items, added, value);
    Py_LeaveRecursiveCall();
    return is_added;
}

/* (key, Checkpoint, item): as it is stored there, with classes and all. */
static bool copy_item(PyObject *tuple, reshard_items *items)
{
    PyObject *key, *source, *kept = PyList_New(0);
    Py_ssize_t item;
    reshard_str text, file;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = RESHARD_ERR_MEMORY;
    bool is_copied = false;
    if (kept && PyArg_ParseTuple(tuple, "OOn", &key, &source, &item) && kept_str(kept, key, &text)) {
        struct checkpoint_object *checkpoint = (struct checkpoint_object *)source;
        if (!checkpoint_is(source)) {
            if (kept_str(kept, source, &file))
                status = reshard_items_add_file(items, text, file.data, file.size, &err);
            is_copied = !status || error_raise(status, &err);
        } else if (checkpoint_enter(checkpoint, false)) {
            status = reshard_items_copy(items, checkpoint->handle, (size_t)item, text, &err);
            checkpoint_leave(checkpoint, false);
            is_copied = !status || error_raise(status, &err);
        }
    }
    Py_XDECREF(kept);
    return is_copied;
}

bool items_of_dict(PyObject *given, PyObject *copies, reshard_items **out)
{
    *out = NULL;
    Py_ssize_t plain = given == Py_None ? 0 : PyDict_Size(given), copied = PyList_Size(copies);
    if (plain + copied <= 0)
        return plain == 0 && copied == 0;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = reshard_items_new(out, &err);
    if (status)
        return error_raise(status, &err) != NULL;
    bool is_filled = !plain || add_members(*out, NULL, given);
    for (Py_ssize_t i = 0; is_filled && i < copied; i++)
        is_filled = copy_item(PyList_GetItem(copies, i), *out);
    if (is_filled)
        return true;
    reshard_items_free(*out);
    *out = NULL;
    return false;
}
