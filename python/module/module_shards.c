/* SPDX-License-Identifier: Apache-2.0 */
/* Shards, and the state of a rank: tuples as lists of the library. */
#include "binding.h"

#include <string.h>

static PyObject *object_or_null(PyObject *object)
{
    return object == Py_None ? NULL : object;
}

bool range_take(PyObject *range, int64_t *is_flattened, int64_t *begin, int64_t *end)
{
    long long from, to;
    if (range == Py_None)
        return true;
    if (!PyArg_ParseTuple(range, "LL", &from, &to))
        return false;
    *is_flattened = 1;
    *begin = from;
    *end = to;
    return true;
}

/* ---- values that functions reach ---- */

/* The exception that is set goes to the object's list, of which the package raises it when the call has ended. */
static void keep_failure(PyObject *object)
{
    PyObject *type, *value, *trace, *failures, *added;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace)
        PyException_SetTraceback(value, trace);
    failures = PyObject_GetAttrString(object, "failures");
    added = failures && value ? PyObject_CallMethod(failures, "append", "O", value) : NULL;
    if (!added)
        PyErr_Clear();
    Py_XDECREF(added);
    Py_XDECREF(failures);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Calls read or write of the object that is the context with (offset, memory). The memory is the library's again behind it, in any case. */
static int reach_values(PyObject *object, const char *method, uint64_t offset, void *bytes, size_t size, int flags)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *view = PyMemoryView_FromMemory(bytes, (Py_ssize_t)size, flags);
    PyObject *done = view ? PyObject_CallMethod(object, method, "KO", (unsigned long long)offset, view) : NULL;
    const bool is_done = done != NULL;
    if (!is_done)
        keep_failure(object);
    Py_XDECREF(done);
    PyObject *released = view ? PyObject_CallMethod(view, "release", NULL) : NULL;
    const bool is_released = !view || released;
    if (!is_released)
        keep_failure(object);
    Py_XDECREF(released);
    Py_XDECREF(view);
    PyGILState_Release(state);
    return !is_done || !is_released;
}

static int values_read(void *out, uint64_t offset, size_t size, void *context)
{
    return reach_values(context, "read", offset, out, size, PyBUF_WRITE);
}

static int values_write(const void *bytes, uint64_t offset, size_t size, void *context)
{
    return reach_values(context, "write", offset, (void *)(uintptr_t)bytes, size, PyBUF_READ);
}

/* 1 and 0; -1: an exception is set */
static int has_method(PyObject *object, const char *name)
{
    PyObject *method = PyObject_GetAttrString(object, name);
    int is_there = method ? method != Py_None : -1;
    Py_XDECREF(method);
    return is_there;
}

bool functions_take(PyObject *object, int (**read)(void *, uint64_t, size_t, void *),
                    int (**write)(const void *, uint64_t, size_t, void *), void **context)
{
    if (object == Py_None)
        return true;
    const int reads = has_method(object, "read"), writes = reads < 0 ? -1 : has_method(object, "write");
    *read = reads == 1 ? values_read : NULL;
    *write = writes == 1 ? values_write : NULL;
    *context = object;
    return writes >= 0;
}

/* ---- shards ---- */

static bool take_shard(PyObject *kept, PyObject *tuple, reshard_shard *shard)
{
    PyObject *key, *dtype, *shape, *start, *extent, *range, *strides, *functions;
    unsigned long long address;
    if (!PyArg_ParseTuple(tuple, "OOOOOOKOO", &key, &dtype, &shape, &start, &extent, &range, &address, &strides, &functions))
        return false;
    shard->data = (void *)(uintptr_t)address;
    return kept_str(kept, key, &shard->key) && (shard->dtype = kept_text(kept, dtype)) &&
           (shard->global_shape = kept_vector(kept, shape, &shard->rank)) &&
           (shard->start = kept_coordinates(kept, start, shard->rank, "offset")) &&
           (shard->extent = kept_coordinates(kept, extent, shard->rank, "shape")) &&
           range_take(range, &shard->is_flattened, &shard->flat_begin, &shard->flat_end) &&
           (!object_or_null(strides) || (shard->strides = kept_coordinates(kept, strides, shard->rank, "memory"))) &&
           functions_take(functions, &shard->read, &shard->write, &shard->context);
}

bool shards_take(PyObject *list, reshard_shards **out)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = reshard_shards_new(out, &err);
    Py_ssize_t count = status ? 0 : PySequence_Size(list);
    bool is_taken = !status && count >= 0;
    for (Py_ssize_t i = 0; is_taken && i < count; i++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        PyObject *kept = PyList_New(0), *tuple = PySequence_GetItem(list, i);
        is_taken = kept && tuple && take_shard(kept, tuple, &shard);
        if (is_taken && (status = reshard_shards_add(*out, &shard, &err)) != RESHARD_OK)
            is_taken = false;
        Py_XDECREF(kept);
        Py_XDECREF(tuple);
    }
    if (status)
        error_raise(status, &err);
    if (!is_taken) {
        reshard_shards_free(*out);
        *out = NULL;
    }
    return is_taken;
}

/* ---- the state of a rank ---- */

/* (key, dtype, global shape, global offset, local shape, flat range or None, replica ids, address, strides or None, may mismatch, object
 * with functions or None) */
static reshard_status add_sharded_tensor(PyObject *kept, PyObject *tuple, reshard_sharded *out, reshard_error *err)
{
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    PyObject *key, *dtype, *shape, *offset, *local, *range, *replicas, *strides, *functions;
    unsigned long long address;
    int may_mismatch;
    if (!PyArg_ParseTuple(tuple, "OOOOOOOKOpO", &key, &dtype, &shape, &offset, &local, &range, &replicas, &address, &strides,
                          &may_mismatch, &functions) ||
        !kept_str(kept, key, &tensor.key) || !(tensor.dtype = kept_text(kept, dtype)) ||
        !(tensor.global_shape = kept_vector(kept, shape, &tensor.rank)) ||
        !(tensor.global_offset = kept_coordinates(kept, offset, tensor.rank, "offset")) ||
        !(tensor.local_shape = kept_coordinates(kept, local, tensor.rank, "shape")) ||
        !range_take(range, &tensor.is_flattened, &tensor.flat_begin, &tensor.flat_end) ||
        !(tensor.replica_ids = kept_vector(kept, replicas, &tensor.replica_count)) ||
        (object_or_null(strides) && !(tensor.strides = kept_coordinates(kept, strides, tensor.rank, "memory"))) ||
        !functions_take(functions, &tensor.read, &tensor.write, &tensor.context))
        return RESHARD_ERR_USAGE;
    tensor.data = (void *)(uintptr_t)address;
    tensor.allow_shape_mismatch = may_mismatch;
    return reshard_sharded_add(out, &tensor, err);
}

/* JSON as text, or a file of torch.save as bytes. */
static bool take_content(PyObject *kept, PyObject *given, reshard_str *json, reshard_str *file)
{
    return kept_str(kept, given, PyBytes_Check(given) ? file : json);
}

/* (key, grid, offset, replica ids, JSON or file) */
static reshard_status add_sharded_object(PyObject *kept, PyObject *tuple, reshard_sharded *out, reshard_error *err)
{
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    PyObject *key, *grid, *offset, *replicas, *content;
    if (!PyArg_ParseTuple(tuple, "OOOOO", &key, &grid, &offset, &replicas, &content) || !kept_str(kept, key, &object.key) ||
        !(object.global_shape = kept_vector(kept, grid, &object.rank)) ||
        !(object.global_offset = kept_coordinates(kept, offset, object.rank, "offset")) ||
        !(object.replica_ids = kept_vector(kept, replicas, &object.replica_count)) ||
        !take_content(kept, content, &object.json, &object.file))
        return RESHARD_ERR_USAGE;
    return reshard_sharded_add_object(out, &object, err);
}

/* (kind, key, JSON or file) */
static reshard_status add_sharded_value(PyObject *kept, PyObject *tuple, reshard_sharded *out, reshard_error *err)
{
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    PyObject *key, *content;
    long long kind;
    if (!PyArg_ParseTuple(tuple, "LOO", &kind, &key, &content) || !kept_str(kept, key, &value.key) ||
        !take_content(kept, content, &value.json, &value.file))
        return RESHARD_ERR_USAGE;
    value.kind = kind;
    return reshard_sharded_add_value(out, &value, err);
}

typedef reshard_status (*sharded_adder)(PyObject *kept, PyObject *tuple, reshard_sharded *out, reshard_error *err);

static bool add_sharded(PyObject *list, sharded_adder add, reshard_sharded *out)
{
    Py_ssize_t count = PySequence_Size(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        reshard_error err = RESHARD_ERROR_INIT;
        PyObject *kept = PyList_New(0), *tuple = PySequence_GetItem(list, i);
        reshard_status status = kept && tuple ? add(kept, tuple, out, &err) : RESHARD_ERR_MEMORY;
        Py_XDECREF(kept);
        Py_XDECREF(tuple);
        if (status)
            return error_raise(status, &err) != NULL;
    }
    return count >= 0;
}

bool sharded_take(PyObject *state, reshard_sharded **out)
{
    PyObject *tensors, *objects, *values;
    reshard_error err = RESHARD_ERROR_INIT;
    *out = NULL;
    if (!PyArg_ParseTuple(state, "OOO", &tensors, &objects, &values))
        return false;
    reshard_status status = reshard_sharded_new(out, &err);
    if (status)
        return error_raise(status, &err) != NULL;
    if (add_sharded(tensors, add_sharded_tensor, *out) && add_sharded(objects, add_sharded_object, *out) &&
        add_sharded(values, add_sharded_value, *out))
        return true;
    reshard_sharded_free(*out);
    *out = NULL;
    return false;
}

static PyObject *content_of(reshard_str json, reshard_str file)
{
    return file.data ? PyBytes_FromStringAndSize(file.data, (Py_ssize_t)file.size) : text_of(json);
}

static PyObject *sharded_object_tuple(const void *sharded, size_t index)
{
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    reshard_sharded_object_at(sharded, index, &object);
    return Py_BuildValue("NNNN", text_of(object.key), vector_tuple(object.global_shape, object.rank),
                         vector_tuple(object.global_offset, object.rank), content_of(object.json, object.file));
}

static PyObject *sharded_value_tuple(const void *sharded, size_t index)
{
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    reshard_sharded_value_at(sharded, index, &value);
    return Py_BuildValue("LNN", (long long)value.kind, text_of(value.key), content_of(value.json, value.file));
}

PyObject *sharded_to_python(const reshard_sharded *sharded)
{
    return Py_BuildValue("NN", list_made(sharded, reshard_sharded_object_count(sharded), sharded_object_tuple),
                         list_made(sharded, reshard_sharded_value_count(sharded), sharded_value_tuple));
}
