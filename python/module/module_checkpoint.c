/* SPDX-License-Identifier: Apache-2.0 */
/* An open checkpoint: lists as Python has them, and values into memory. */
#include "binding.h"

static PyTypeObject *checkpoint_type;

bool checkpoint_is(PyObject *object)
{
    return PyObject_TypeCheck(object, checkpoint_type);
}

PyObject *checkpoint_new(reshard_checkpoint *handle, PyObject *kept)
{
    struct checkpoint_object *self = object_new(checkpoint_type);
    if (!self) {
        reshard_close(handle);
        return NULL;
    }
    self->handle = handle;
    self->kept = Py_XNewRef(kept);
    return (PyObject *)self;
}

bool checkpoint_enter(struct checkpoint_object *self, bool alone)
{
    if (!self->handle)
        return error_usage("the checkpoint is closed") != NULL;
    if (self->is_taken || (alone && self->users))
        return error_usage("another thread uses the checkpoint: reading may be shared, all else needs a checkpoint of its own") != NULL;
    self->users++;
    self->is_taken = alone;
    return true;
}

void checkpoint_leave(struct checkpoint_object *self, bool alone)
{
    self->users--;
    if (alone)
        self->is_taken = false;
}

static PyObject *checkpoint_close(PyObject *object, PyObject *unused)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    (void)unused;
    if (self->users)
        return error_usage("another thread uses the checkpoint");
    reshard_close(self->handle);
    self->handle = NULL;
    Py_CLEAR(self->kept);
    Py_RETURN_NONE;
}

static void checkpoint_dealloc(PyObject *object)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    reshard_close(self->handle);
    Py_XDECREF(self->kept);
    object_free(object);
}

/* ---- lists ---- */

static PyObject *tensor_tuple(const void *handle, size_t index)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(handle, index, &tensor);
    return Py_BuildValue("NsNKnnLO", text_of(tensor.key), tensor.dtype, vector_tuple(tensor.shape, (size_t)tensor.rank),
                         (unsigned long long)tensor.bytes, (Py_ssize_t)tensor.chunk_count, (Py_ssize_t)tensor.replica_count,
                         (long long)tensor.tied_to, tensor.is_ambiguous ? Py_True : Py_False);
}

static PyObject *item_tuple(const void *handle, size_t index)
{
    reshard_item item = RESHARD_ITEM_INIT;
    reshard_item_at(handle, index, &item);
    return Py_BuildValue("NsNK", text_of(item.key), item.kind, text_of(item.class_name), (unsigned long long)item.bytes);
}

static PyObject *warning_tuple(const void *handle, size_t index)
{
    reshard_warning warning = RESHARD_WARNING_INIT;
    reshard_warning_at(handle, index, &warning);
    return Py_BuildValue("NON", text_of_c(warning.text), warning.is_damage ? Py_True : Py_False, text_of(warning.lost));
}

static PyObject *fact_tuple(const void *handle, size_t index)
{
    reshard_fact fact = RESHARD_FACT_INIT;
    reshard_fact_at(handle, index, &fact);
    return Py_BuildValue("NN", text_of_c(fact.name), text_of_c(fact.value));
}

static PyObject *file_tuple(const void *handle, size_t index)
{
    reshard_file file = RESHARD_FILE_INIT;
    reshard_file_at(handle, index, &file);
    return Py_BuildValue("NK", text_of(file.name), (unsigned long long)file.bytes);
}

#define LIST(name, count, tuple)                                                                                                           \
    static PyObject *checkpoint_##name(PyObject *object, PyObject *unused)                                                                 \
    {                                                                                                                                      \
        (void)unused;                                                                                                                      \
        const reshard_checkpoint *handle = ((struct checkpoint_object *)object)->handle;                                                   \
        return handle ? list_made(handle, count(handle), tuple) : error_usage("the checkpoint is closed");                                 \
    }
LIST(tensors, reshard_tensor_count, tensor_tuple)
LIST(items, reshard_item_count, item_tuple)
LIST(warnings, reshard_warning_count, warning_tuple)
LIST(facts, reshard_fact_count, fact_tuple)
LIST(files, reshard_file_count, file_tuple)

/* The number of a tensor or an item; -1 if it is none. */
static Py_ssize_t index_of(struct checkpoint_object *self, PyObject *number, size_t (*count_of)(const reshard_checkpoint *))
{
    Py_ssize_t index = PyLong_AsSsize_t(number);
    if (PyErr_Occurred())
        return -1;
    if (!self->handle || index < 0 || (size_t)index >= count_of(self->handle)) {
        error_usage(self->handle ? "there is no such tensor or item" : "the checkpoint is closed");
        return -1;
    }
    return index;
}

struct chunks_of {
    const reshard_checkpoint *handle;
    size_t tensor, rank;
};

static PyObject *chunk_tuple(const void *context, size_t index)
{
    const struct chunks_of *of = context;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    reshard_chunk_at(of->handle, of->tensor, index, &chunk);
    return Py_BuildValue("NNNKKLLsOOL", vector_tuple(chunk.start, of->rank), vector_tuple(chunk.extent, of->rank), text_of(chunk.file),
                         (unsigned long long)chunk.offset, (unsigned long long)chunk.bytes, (long long)chunk.flat_begin,
                         (long long)chunk.flat_count, chunk.encoding, chunk.is_replica ? Py_True : Py_False,
                         chunk.is_resolved ? Py_True : Py_False, (long long)chunk.writer);
}

static PyObject *checkpoint_chunks(PyObject *object, PyObject *number)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    Py_ssize_t tensor = index_of(self, number, reshard_tensor_count);
    if (tensor < 0)
        return NULL;
    reshard_tensor whole = RESHARD_TENSOR_INIT;
    reshard_tensor_at(self->handle, (size_t)tensor, &whole);
    const struct chunks_of of = { self->handle, (size_t)tensor, (size_t)whole.rank };
    return list_made(&of, whole.chunk_count, chunk_tuple);
}

/* The way to a tensor or an item: texts, and ints for positions and integer keys. */
static PyObject *path_tuple(struct checkpoint_object *self, size_t index, size_t count,
                            reshard_status (*part_at)(const reshard_checkpoint *, size_t, size_t, reshard_path_part *))
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        reshard_path_part part = RESHARD_PATH_PART_INIT;
        part_at(self->handle, index, i, &part);
        PyObject *member = part.kind == RESHARD_PATH_KEY ? text_of(part.key) : PyLong_FromLongLong(part.index);
        if (!member || PyTuple_SetItem(tuple, (Py_ssize_t)i, member) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *checkpoint_tensor_path(PyObject *object, PyObject *number)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    Py_ssize_t index = index_of(self, number, reshard_tensor_count);
    return index < 0 ? NULL
                     : path_tuple(self, (size_t)index, reshard_tensor_path_count(self->handle, (size_t)index), reshard_tensor_path_at);
}

static PyObject *checkpoint_item_path(PyObject *object, PyObject *number)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    Py_ssize_t index = index_of(self, number, reshard_item_count);
    return index < 0 ? NULL : path_tuple(self, (size_t)index, reshard_item_path_count(self->handle, (size_t)index), reshard_item_path_at);
}

/* ---- values ---- */

static PyObject *checkpoint_item_value(PyObject *object, PyObject *number)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    Py_ssize_t index = index_of(self, number, reshard_item_count);
    if (index < 0 || !checkpoint_enter(self, false))
        return NULL;
    const reshard_value *value;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    Py_BEGIN_ALLOW_THREADS
    status = reshard_item_value(self->handle, (size_t)index, &value, &err);
    Py_END_ALLOW_THREADS
    PyObject *out = status ? error_raise(status, &err) : value_to_python(self->handle, value);
    checkpoint_leave(self, false);
    return out;
}

static PyObject *checkpoint_item_json(PyObject *object, PyObject *number)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    Py_ssize_t index = index_of(self, number, reshard_item_count);
    if (index < 0 || !checkpoint_enter(self, false))
        return NULL;
    char *json;
    size_t size;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    Py_BEGIN_ALLOW_THREADS
    status = reshard_item_json(self->handle, (size_t)index, &json, &size, &err);
    Py_END_ALLOW_THREADS
    PyObject *out = status ? error_raise(status, &err) : text_of((reshard_str){ json, size });
    reshard_free(json);
    checkpoint_leave(self, false);
    return out;
}

static PyObject *checkpoint_item_file(PyObject *object, PyObject *number)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    Py_ssize_t index = index_of(self, number, reshard_item_count);
    if (index < 0 || !checkpoint_enter(self, false))
        return NULL;
    void *bytes;
    size_t size;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    Py_BEGIN_ALLOW_THREADS
    status = reshard_item_file(self->handle, (size_t)index, &bytes, &size, &err);
    Py_END_ALLOW_THREADS
    PyObject *out = status ? error_raise(status, &err) : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    reshard_free(bytes);
    checkpoint_leave(self, false);
    return out;
}

/* (tensor, its rank, start or None, extent, strides or None, dtype or None, address, size) */
static bool take_box(PyObject *kept, PyObject *tuple, void *out)
{
    reshard_box *box = out;
    PyObject *start, *extent, *strides, *dtype;
    Py_ssize_t tensor, rank;
    unsigned long long address, size;
    if (!PyArg_ParseTuple(tuple, "nnOOOOKK", &tensor, &rank, &start, &extent, &strides, &dtype, &address, &size))
        return false;
    box->tensor = (size_t)tensor;
    box->out = (void *)(uintptr_t)address; /* 0 too */
    box->size = size;
    return (start == Py_None || (box->start = kept_coordinates(kept, start, (size_t)rank, "start"))) &&
           (extent == Py_None || (box->extent = kept_coordinates(kept, extent, (size_t)rank, "extent"))) &&
           (strides == Py_None || (box->strides = kept_coordinates(kept, strides, (size_t)rank, "memory"))) &&
           (dtype == Py_None || (box->dtype = kept_text(kept, dtype)));
}

/* read(boxes, run) */
static PyObject *checkpoint_read(PyObject *object, PyObject *arguments)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    PyObject *boxes, *run, *kept = PyList_New(0), *out = NULL;
    struct running running;
    reshard_box_list list = RESHARD_BOX_LIST_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    if (kept && PyArg_ParseTuple(arguments, "OO", &boxes, &run) && running_take(kept, run, &running) &&
        (list.boxes = kept_array(kept, boxes, sizeof(reshard_box), take_box, &list.box_count)) && checkpoint_enter(self, false)) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_read_many(self->handle, &list, &running.options, &err);
        Py_END_ALLOW_THREADS
        checkpoint_leave(self, false);
        out = running_end(&running, status, &err);
    }
    Py_XDECREF(kept);
    return out;
}

/* load(shards, map or None, run) */
static PyObject *checkpoint_load(PyObject *object, PyObject *arguments)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    PyObject *list, *map, *run, *kept = PyList_New(0), *out = NULL;
    struct running running;
    reshard_shards *shards = NULL;
    reshard_map_options options = map_initial;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    if (kept && PyArg_ParseTuple(arguments, "OOO", &list, &map, &run) && running_take(kept, run, &running) &&
        options_take(kept, map, map_members, &options) && shards_take(list, &shards) && checkpoint_enter(self, map != Py_None)) {
        Py_BEGIN_ALLOW_THREADS
        status = map == Py_None ? reshard_load_shards(self->handle, shards, &running.options, &err)
                                : reshard_load_shards_mapped(self->handle, shards, &options, &running.options, &err);
        Py_END_ALLOW_THREADS
        checkpoint_leave(self, map != Py_None);
        out = running_end(&running, status, &err);
    }
    reshard_shards_free(shards);
    Py_XDECREF(kept);
    return out;
}

/* view(options) */
static PyObject *checkpoint_view(PyObject *object, PyObject *given)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    PyObject *kept = PyList_New(0), *out = NULL;
    reshard_view view = RESHARD_VIEW_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    if (kept && options_take(kept, given, view_members, &view) && checkpoint_enter(self, true)) {
        reshard_status status = reshard_checkpoint_view(self->handle, &view, &err);
        checkpoint_leave(self, true);
        out = status ? error_raise(status, &err) : Py_NewRef(Py_None);
    }
    Py_XDECREF(kept);
    return out;
}

static PyObject *checkpoint_format(PyObject *object, void *closure)
{
    struct checkpoint_object *self = (struct checkpoint_object *)object;
    (void)closure;
    return self->handle ? text_of_c(reshard_checkpoint_format(self->handle)) : error_usage("the checkpoint is closed");
}

static PyMethodDef checkpoint_methods[] = {
    { "close", checkpoint_close, METH_NOARGS, NULL },
    { "tensors", checkpoint_tensors, METH_NOARGS, NULL },
    { "items", checkpoint_items, METH_NOARGS, NULL },
    { "warnings", checkpoint_warnings, METH_NOARGS, NULL },
    { "facts", checkpoint_facts, METH_NOARGS, NULL },
    { "files", checkpoint_files, METH_NOARGS, NULL },
    { "chunks", checkpoint_chunks, METH_O, NULL },
    { "tensor_path", checkpoint_tensor_path, METH_O, NULL },
    { "item_path", checkpoint_item_path, METH_O, NULL },
    { "item_value", checkpoint_item_value, METH_O, NULL },
    { "item_json", checkpoint_item_json, METH_O, NULL },
    { "item_file", checkpoint_item_file, METH_O, NULL },
    { "read", checkpoint_read, METH_VARARGS, NULL },
    { "load", checkpoint_load, METH_VARARGS, NULL },
    { "view", checkpoint_view, METH_O, NULL },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef checkpoint_attributes[] = {
    { "format", checkpoint_format, NULL, NULL, NULL },
    { NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot checkpoint_slots[] = {
    { Py_tp_dealloc, checkpoint_dealloc },
    { Py_tp_methods, checkpoint_methods },
    { Py_tp_getset, checkpoint_attributes },
    { 0, NULL },
};

static PyType_Spec checkpoint_spec = { "reshard._reshard.Checkpoint", sizeof(struct checkpoint_object), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, checkpoint_slots };

bool checkpoint_type_add(PyObject *module)
{
    return type_add(module, &checkpoint_spec, &checkpoint_type);
}
