/* SPDX-License-Identifier: Apache-2.0 */
/* Writing piece by piece. */
#include "binding.h"

#include <unistd.h>

static PyTypeObject *writer_type;

struct writer_object {
    PyObject_HEAD
    reshard_writer *handle;
    pid_t owner;    /* the process that has opened it: in one that was forked since, its lock and its files are that one's */
    PyObject *kept; /* what its options point to */
    struct running running;
    int putting;   /* calls of put that run without the GIL */
    bool is_taken; /* by one of finish */
};

/* (key, dtype, shape) */
static bool take_declared(PyObject *kept, PyObject *tuple, void *out)
{
    reshard_writer_tensor *tensor = out;
    PyObject *key, *dtype, *shape;
    return PyArg_ParseTuple(tuple, "OOO", &key, &dtype, &shape) && kept_str(kept, key, &tensor->key) &&
           (tensor->dtype = kept_text(kept, dtype)) && (tensor->shape = kept_vector(kept, shape, &tensor->rank));
}

/* The run's dict is kept with what the options point to: its function is called while the writer is opened. */
static bool take_running(PyObject *kept, PyObject *run, struct running *out)
{
    return PyList_Append(kept, run) == 0 && running_take(kept, run, out);
}

/* The report of a call that has succeeded; NULL, with the exception, of one that has failed. */
static PyObject *opened_report(struct running *running, reshard_status status, reshard_report *report, const reshard_error *err)
{
    PyObject *ended = running_end(running, status, err), *out = ended ? report_to_python(report) : NULL;
    Py_XDECREF(ended);
    reshard_report_release(report);
    return out;
}

/* writer_open(tensors, items, items to copy, name, path, convert options, run): (report, writer) */
static PyObject *writer_open(PyObject *module, PyObject *arguments)
{
    PyObject *tensors, *given_items, *copies, *name, *path, *given, *run, *report = NULL;
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report facts = RESHARD_REPORT_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    reshard_items *items = NULL;
    const char *target;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO!OOOO", &tensors, &given_items, &PyList_Type, &copies, &name, &path, &given, &run))
        return NULL;
    struct writer_object *self = object_new(writer_type);
    PyObject *kept = self ? self->kept = PyList_New(0) : NULL;
    if (self)
        self->owner = getpid();
    if (kept && take_running(kept, run, &self->running) && (target = kept_text(kept, path)) && (input.name = kept_text(kept, name)) &&
        options_take(kept, given, convert_members, &options) && items_of_dict(given_items, copies, &items) &&
        (input.tensors = kept_array(kept, tensors, sizeof(reshard_writer_tensor), take_declared, &input.tensor_count))) {
        input.values = items;
        Py_BEGIN_ALLOW_THREADS
        status = reshard_writer_open(&input, target, &options, &self->running.options, &facts, &self->handle, &err);
        Py_END_ALLOW_THREADS
        report = opened_report(&self->running, status, &facts, &err);
    }
    reshard_items_free(items);
    PyObject *out = report ? Py_BuildValue("OO", report, self) : NULL;
    Py_XDECREF(report);
    Py_XDECREF((PyObject *)self);
    return out;
}

/* writer_commit(path, run): the report */
static PyObject *writer_commit(PyObject *module, PyObject *arguments)
{
    PyObject *path, *run, *kept = PyList_New(0), *out = NULL;
    struct running running;
    reshard_report facts = RESHARD_REPORT_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    const char *target;
    (void)module;
    if (kept && PyArg_ParseTuple(arguments, "OO", &path, &run) && take_running(kept, run, &running) && (target = kept_text(kept, path))) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_writer_commit(NULL, target, NULL, &running.options, &facts, &err);
        Py_END_ALLOW_THREADS
        out = opened_report(&running, status, &facts, &err);
    }
    Py_XDECREF(kept);
    return out;
}

static bool writer_is_free(const struct writer_object *self, bool alone)
{
    if (self->handle && self->owner != getpid())
        return error_usage("the writer is that of the process from which this one was forked") != NULL;
    if (self->handle && !self->is_taken && !(alone && self->putting))
        return true;
    error_usage(self->handle ? "another thread uses the writer: only put may be called by many at once" : "the writer is closed");
    return false;
}

/* put(tensor, rank, start, extent, flat range or None, dtype, strides or None, address, size, object with functions or None) */
static PyObject *writer_put(PyObject *object, PyObject *arguments)
{
    struct writer_object *self = (struct writer_object *)object;
    PyObject *start, *extent, *range, *dtype, *strides, *functions, *kept = PyList_New(0), *out = NULL;
    reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    int (*unused)(const void *, uint64_t, size_t, void *);
    unsigned long long address, size;
    Py_ssize_t tensor, rank;
    if (kept && PyArg_ParseTuple(arguments, "nnOOOOOKKO", &tensor, &rank, &start, &extent, &range, &dtype, &strides, &address, &size,
                                 &functions) &&
        (piece.start = kept_coordinates(kept, start, (size_t)rank, "offset")) &&
        (piece.extent = kept_coordinates(kept, extent, (size_t)rank, "shape")) &&
        range_take(range, &piece.is_flattened, &piece.flat_begin, &piece.flat_end) && (piece.dtype = kept_text(kept, dtype)) &&
        (strides == Py_None || (piece.strides = kept_coordinates(kept, strides, (size_t)rank, "memory"))) &&
        functions_take(functions, &piece.read, &unused, &piece.context) && writer_is_free(self, false)) {
        piece.tensor = (size_t)tensor;
        piece.data = (const void *)(uintptr_t)address;
        piece.size = size;
        self->putting++;
        Py_BEGIN_ALLOW_THREADS
        status = reshard_writer_put(self->handle, &piece, &err);
        Py_END_ALLOW_THREADS
        self->putting--;
        out = status ? error_raise(status, &err) : Py_NewRef(Py_None);
    }
    Py_XDECREF(kept);
    return out;
}

static PyObject *writer_finish(PyObject *object, PyObject *unused)
{
    struct writer_object *self = (struct writer_object *)object;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    (void)unused;
    if (!writer_is_free(self, true))
        return NULL;
    self->is_taken = true;
    Py_BEGIN_ALLOW_THREADS
    status = reshard_writer_finish(self->handle, &err);
    Py_END_ALLOW_THREADS
    self->is_taken = false;
    return status ? error_raise(status, &err) : Py_NewRef(Py_None);
}

static void writer_release(struct writer_object *self)
{
    reshard_writer *handle = self->handle;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS
    reshard_writer_free(handle);
    Py_END_ALLOW_THREADS
    Py_CLEAR(self->kept);
}

static PyObject *writer_close(PyObject *object, PyObject *unused)
{
    struct writer_object *self = (struct writer_object *)object;
    (void)unused;
    if (self->handle && !writer_is_free(self, true))
        return NULL;
    writer_release(self);
    Py_RETURN_NONE;
}

static void writer_dealloc(PyObject *object)
{
    struct writer_object *self = (struct writer_object *)object;
    if (self->owner == getpid())
        writer_release(self);
    object_free(object);
}

static PyMethodDef writer_methods[] = {
    { "put", writer_put, METH_VARARGS, NULL },
    { "finish", writer_finish, METH_NOARGS, NULL },
    { "close", writer_close, METH_NOARGS, NULL },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot writer_slots[] = {
    { Py_tp_dealloc, writer_dealloc },
    { Py_tp_methods, writer_methods },
    { 0, NULL },
};

static PyType_Spec writer_spec = { "reshard._reshard.Writer", sizeof(struct writer_object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, writer_slots };

static PyMethodDef writer_calls[] = {
    { "writer_open", writer_open, METH_VARARGS, NULL },
    { "writer_commit", writer_commit, METH_VARARGS, NULL },
    { NULL, NULL, 0, NULL },
};

bool writer_type_add(PyObject *module)
{
    return PyModule_AddFunctions(module, writer_calls) == 0 && type_add(module, &writer_spec, &writer_type);
}
