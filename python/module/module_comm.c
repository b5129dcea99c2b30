/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of ranks, and what they do together. A Comm is one rank's end of a group: of processes of a machine, of threads, or over an object
 * of Python that has the methods all_gather, submit_send, submit_recv and run.
 */
#include "binding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct comm_object {
    PyObject_HEAD
    reshard_comm *handle;
    pid_t owner;   /* the process that is the rank: not one that was forked since */
    bool is_taken; /* by a call that runs without the GIL, or by a saver */
};

/* What a group over an object of Python needs; its release frees it. */
struct host_group {
    PyObject *host;
    PyObject *failures; /* what it raises that is a failure of the transport */
    char why[512];
};

static PyTypeObject *comm_type;

/* ---- a host's transport ---- */

/* The exception in words, for the other ranks too. One that is no failure of the transport, such as what a handler of signals has raised,
 * is the caller's behind the call; in a thread of a saver there is no caller. */
static int host_failed(struct host_group *group)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *words = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const bool is_own = !type || PyErr_GivenExceptionMatches(type, group->failures);
    snprintf(group->why, sizeof(group->why), "%s", words && words[0] ? words : is_own ? "the transport has failed" : "it was interrupted");
    PyErr_Clear();
    Py_XDECREF(text);
    PyErr_Restore(type, value, trace);
    if (is_own || !PyEval_GetFrame())
        PyErr_Clear();
    else
        exception_keep();
    return 1;
}

/* All parts behind each other. */
static int host_join(struct host_group *group, PyObject *list, void **all, size_t *sizes, Py_ssize_t ranks)
{
    size_t total = 0, at = 0;
    if (PySequence_Size(list) != ranks) {
        snprintf(group->why, sizeof(group->why), "all_gather returned %zd parts for %zd ranks", PySequence_Size(list), ranks);
        PyErr_Clear();
        return 1;
    }
    for (int pass = 0; pass < 2; pass++) {
        if (pass && !(*all = malloc(total ? total : 1)))
            return 1;
        for (Py_ssize_t i = 0; i < ranks; i++) {
            PyObject *part = PySequence_GetItem(list, i);
            char *data = NULL;
            Py_ssize_t size = 0;
            bool is_read = part && PyBytes_AsStringAndSize(part, &data, &size) == 0;
            if (is_read && pass)
                memcpy((char *)*all + at, data, (size_t)size);
            Py_XDECREF(part);
            if (!is_read)
                return host_failed(group);
            sizes[i] = (size_t)size;
            *(pass ? &at : &total) += (size_t)size;
        }
    }
    return 0;
}

static int host_all_gather(const void *bytes, size_t bytes_size, void **all, size_t *sizes, void *context)
{
    struct host_group *group = context;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *size = PyObject_GetAttrString(group->host, "size");
    Py_ssize_t ranks = size ? PyLong_AsSsize_t(size) : -1;
    PyObject *list = ranks < 0 ? NULL : PyObject_CallMethod(group->host, "all_gather", "y#", bytes, (Py_ssize_t)bytes_size);
    int failed = list ? host_join(group, list, all, sizes, ranks) : host_failed(group);
    Py_XDECREF(size);
    Py_XDECREF(list);
    PyGILState_Release(state);
    return failed;
}

static int host_submit(struct host_group *group, const char *method, int64_t other, void *bytes, size_t size, int flags)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *view = PyMemoryView_FromMemory(bytes, (Py_ssize_t)size, flags);
    PyObject *done = view ? PyObject_CallMethod(group->host, method, "LO", (long long)other, view) : NULL;
    int failed = done ? 0 : host_failed(group);
    Py_XDECREF(view);
    Py_XDECREF(done);
    PyGILState_Release(state);
    return failed;
}

static int host_submit_send(int64_t to, const void *bytes, size_t bytes_size, void *context)
{
    return host_submit(context, "submit_send", to, (void *)(uintptr_t)bytes, bytes_size, PyBUF_READ);
}

static int host_submit_recv(int64_t from, void *bytes, size_t bytes_size, void *context)
{
    return host_submit(context, "submit_recv", from, bytes, bytes_size, PyBUF_WRITE);
}

static int host_run(void *context)
{
    struct host_group *group = context;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *done = PyObject_CallMethod(group->host, "run", NULL);
    int failed = done ? 0 : host_failed(group);
    Py_XDECREF(done);
    PyGILState_Release(state);
    return failed;
}

/* The transport need not have a way. */
static void host_abort(const char *reason, void *context)
{
    struct host_group *group = context;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *done = PyObject_HasAttrString(group->host, "abort") ? PyObject_CallMethod(group->host, "abort", "s", reason) : NULL;
    if (done)
        Py_DECREF(done);
    else if (PyErr_Occurred())
        host_failed(group);
    PyGILState_Release(state);
}

static void host_release(void *context)
{
    struct host_group *group = context;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(group->host);
    Py_DECREF(group->failures);
    PyGILState_Release(state);
    free(group);
}

static const char *host_why(void *context)
{
    return ((struct host_group *)context)->why;
}

/* ---- making ---- */

static PyObject *comm_of(reshard_comm *handle)
{
    struct comm_object *self = object_new(comm_type);
    if (self) {
        self->handle = handle;
        self->owner = getpid();
    } else {
        reshard_comm_free(handle);
    }
    return (PyObject *)self;
}

/* comm_host(host, rank, size, timeout) */
static PyObject *call_comm_host(PyObject *module, PyObject *arguments)
{
    reshard_comm_callbacks callbacks = RESHARD_COMM_CALLBACKS_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm *handle;
    PyObject *host;
    long long rank, size;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLLd", &host, &rank, &size, &options.timeout_seconds))
        return NULL;
    struct host_group *group = calloc(1, sizeof(*group));
    if (!group)
        return PyErr_NoMemory();
    group->host = Py_NewRef(host);
    group->failures = PyObject_HasAttrString(host, "failures") ? PyObject_GetAttrString(host, "failures") : NULL;
    if (!group->failures)
        group->failures = Py_NewRef(PyExc_Exception);
    callbacks.rank = rank;
    callbacks.size = size;
    callbacks.all_gather = host_all_gather;
    callbacks.submit_send = host_submit_send;
    callbacks.submit_recv = host_submit_recv;
    callbacks.run = host_run;
    callbacks.abort = host_abort;
    callbacks.release = host_release;
    callbacks.why = host_why;
    callbacks.context = group;
    reshard_status status = reshard_comm_new(&callbacks, &options, &handle, &err);
    if (!status)
        return comm_of(handle);
    host_release(group);
    return error_raise(status, &err);
}

/* comm_threads(count, timeout): a Comm for each thread */
static PyObject *call_comm_threads(PyObject *module, PyObject *arguments)
{
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    long long count;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Ld", &count, &options.timeout_seconds))
        return NULL;
    options.waiting = signals_look;
    if (count < 1 || count > RESHARD_COMM_SIZE_MAX)
        return error_usage("a group has at least one rank, and at most 1048576");
    reshard_comm **handles = calloc((size_t)count, sizeof(*handles));
    reshard_status status = handles ? reshard_comm_threads(count, &options, handles, &err) : RESHARD_ERR_MEMORY;
    PyObject *list = status ? error_raise(status, &err) : PyList_New((Py_ssize_t)count);
    for (long long i = 0; !status && i < count; i++) {
        PyObject *comm = comm_of(handles[i]); /* frees the handle if it fails */
        if (!comm || !list || PyList_SetItem(list, (Py_ssize_t)i, comm) != 0)
            Py_CLEAR(list);
    }
    free(handles);
    return list;
}

/* comm_processes(name, rank, size, timeout) */
static PyObject *call_comm_processes(PyObject *module, PyObject *arguments)
{
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm *handle;
    const char *name;
    long long rank, size;
    reshard_status status;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "sLLd", &name, &rank, &size, &options.timeout_seconds))
        return NULL;
    options.waiting = signals_look;
    Py_BEGIN_ALLOW_THREADS
    status = reshard_comm_processes(name, rank, size, &options, &handle, &err);
    Py_END_ALLOW_THREADS
    return status ? error_raise(status, &err) : comm_of(handle);
}

/* ---- use ---- */

static bool comm_enter(struct comm_object *self)
{
    if (!self->handle)
        return error_usage("the rank has left its group") != NULL;
    if (self->is_taken)
        return error_usage("another thread, or a saver, uses this rank's end of the group") != NULL;
    if (self->owner != getpid())
        return error_usage("the rank is the process from which this one was forked") != NULL;
    return self->is_taken = true;
}

bool comm_hold(PyObject *object, reshard_comm **out)
{
    *out = NULL;
    if (object == Py_None)
        return true;
    if (!PyObject_TypeCheck(object, comm_type))
        return PyErr_Format(PyExc_TypeError, "comm is a Comm, or None") != NULL;
    struct comm_object *self = (struct comm_object *)object;
    if (!comm_enter(self))
        return false;
    *out = self->handle;
    return true;
}

void comm_release(PyObject *object)
{
    if (object != Py_None)
        ((struct comm_object *)object)->is_taken = false;
}

bool comm_hold_ready(PyObject *object, bool is_ready, reshard_comm **out)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = RESHARD_OK;
    *out = NULL;
    if (object == Py_None)
        return is_ready;
    if (!is_ready) {
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        status = error_of_exception(value, &err);
    }
    if (comm_hold(object, out)) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_comm_agree(*out, status, &err);
        Py_END_ALLOW_THREADS
        if (!status)
            return true;
        comm_release(object);
        *out = NULL;
        error_raise(status, &err);
    }
    if (!is_ready) { /* its own exception is the one to raise */
        PyErr_Clear();
        PyErr_Restore(type, value, trace);
    }
    return false;
}

/* agree(comm or None, make): what make returns, where it fails on no rank */
static PyObject *call_agree(PyObject *module, PyObject *arguments)
{
    PyObject *group, *make;
    reshard_comm *comm;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &group, &make))
        return NULL;
    PyObject *made = PyObject_CallNoArgs(make);
    if (comm_hold_ready(group, made != NULL, &comm))
        comm_release(group);
    else
        Py_CLEAR(made);
    return made;
}

static PyObject *comm_close(PyObject *object, PyObject *unused)
{
    struct comm_object *self = (struct comm_object *)object;
    (void)unused;
    if (self->handle && !comm_enter(self))
        return NULL;
    self->is_taken = false;
    reshard_comm *handle = self->handle;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS
    reshard_comm_free(handle);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* A process that was forked leaves no group: it is in none. */
static void comm_dealloc(PyObject *object)
{
    struct comm_object *self = (struct comm_object *)object;
    if (self->owner == getpid())
        reshard_comm_free(self->handle);
    object_free(object);
}

static PyObject *comm_barrier(PyObject *object, PyObject *unused)
{
    struct comm_object *self = (struct comm_object *)object;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    (void)unused;
    if (!comm_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = reshard_comm_barrier(self->handle, &err);
    Py_END_ALLOW_THREADS
    self->is_taken = false;
    return status ? error_raise(status, &err) : Py_NewRef(Py_None);
}

/* all_gather(bytes): a list of bytes */
static PyObject *comm_gather(PyObject *object, PyObject *given)
{
    struct comm_object *self = (struct comm_object *)object;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(given, &bytes, &size) != 0 || !comm_enter(self))
        return NULL;
    size_t ranks = (size_t)reshard_comm_size(self->handle);
    const void **parts = calloc(ranks, sizeof(*parts));
    size_t *sizes = calloc(ranks, sizeof(*sizes));
    void *all = NULL;
    if (parts && sizes) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_comm_all_gather(self->handle, bytes, (size_t)size, parts, sizes, &all, &err);
        Py_END_ALLOW_THREADS
    } else {
        status = RESHARD_ERR_MEMORY;
    }
    self->is_taken = false;
    PyObject *list = status ? error_raise(status, &err) : PyList_New((Py_ssize_t)ranks);
    for (size_t i = 0; list && i < ranks; i++) {
        PyObject *part = PyBytes_FromStringAndSize(parts[i], (Py_ssize_t)sizes[i]);
        if (!part || PyList_SetItem(list, (Py_ssize_t)i, part) != 0)
            Py_CLEAR(list);
    }
    reshard_free(all);
    free(parts);
    free(sizes);
    return list;
}

static PyObject *comm_abort(PyObject *object, PyObject *reason)
{
    struct comm_object *self = (struct comm_object *)object;
    const char *text = PyUnicode_AsUTF8AndSize(reason, NULL);
    if (!text)
        return NULL;
    if (self->handle && self->owner == getpid()) /* any thread may, at any time */
        reshard_comm_abort(self->handle, text);
    return exception_raise() ? NULL : Py_NewRef(Py_None);
}

static PyObject *comm_rank(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(reshard_comm_rank(((struct comm_object *)object)->handle));
}

static PyObject *comm_size(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(reshard_comm_size(((struct comm_object *)object)->handle));
}

/* ---- what ranks do together ---- */

static void take_warning(const char *text, void *context)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *words = text_of_c(text);
    if (!words || PyList_Append(context, words) != 0)
        PyErr_Clear();
    Py_XDECREF(words);
    PyGILState_Release(state);
}

/* What save and load have in common: the state, and how to run. */
struct together {
    PyObject *kept;
    struct running running;
    reshard_sharded *state;
    reshard_comm *comm;
    const char *path;
    reshard_error err;
    reshard_status status;
};

static bool together_begin(struct together *call, PyObject *path, PyObject *state, PyObject *run)
{
    call->kept = PyList_New(0);
    return call->kept && running_take(call->kept, run, &call->running) && (call->path = kept_text(call->kept, path)) &&
           sharded_take(state, &call->state);
}

static void together_end(struct together *call)
{
    reshard_sharded_free(call->state);
    Py_XDECREF(call->kept);
}

/* save(comm or None, make): warnings. make() is (path, state, convert options, no check, no spread, run) */
static PyObject *call_save(PyObject *module, PyObject *arguments)
{
    PyObject *group, *make, *made, *path, *state, *given, *run, *out = NULL, *warnings = PyList_New(0);
    int no_check, no_spread;
    struct together call = { .err = RESHARD_ERROR_INIT };
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    (void)module;
    if (!warnings || !PyArg_ParseTuple(arguments, "OO", &group, &make)) {
        Py_XDECREF(warnings);
        return NULL;
    }
    const bool is_ready = (made = PyObject_CallNoArgs(make)) &&
                          PyArg_ParseTuple(made, "OOOppO", &path, &state, &given, &no_check, &no_spread, &run) &&
                          together_begin(&call, path, state, run) && options_take(call.kept, given, convert_members, &convert);
    if (comm_hold_ready(group, is_ready, &call.comm)) {
        options.convert = &convert;
        options.no_check = no_check;
        options.no_spread = no_spread;
        options.warn = take_warning;
        options.context = warnings;
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_save(call.comm, call.path, call.state, &options, &call.running.options, &call.err);
        Py_END_ALLOW_THREADS
        comm_release(group);
        PyObject *ended = running_end(&call.running, call.status, &call.err);
        out = ended ? Py_NewRef(warnings) : NULL;
        Py_XDECREF(ended);
    }
    together_end(&call);
    Py_XDECREF(made);
    Py_DECREF(warnings);
    return out;
}

static bool strict_take(const char *name, int64_t *out)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = reshard_strict_find(name, out, &err);
    return !status || error_raise(status, &err);
}

/* load(comm or None, make): (objects, values). make() is (path, state, open options, map or None, strict, no check, no exchange, as files,
 * run) */
static PyObject *call_load(PyObject *module, PyObject *arguments)
{
    PyObject *group, *make, *made, *path, *state, *given, *given_map, *run, *out = NULL;
    const char *strict;
    int no_check, no_exchange;
    long long as_files;
    struct together call = { .err = RESHARD_ERROR_INIT };
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    reshard_map_options map = map_initial;
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_sharded *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &group, &make))
        return NULL;
    const bool is_ready = (made = PyObject_CallNoArgs(make)) &&
                          PyArg_ParseTuple(made, "OOOOsppLO", &path, &state, &given, &given_map, &strict, &no_check, &no_exchange,
                                           &as_files, &run) &&
                          together_begin(&call, path, state, run) && options_take(call.kept, given, open_members, &open) &&
                          options_take(call.kept, given_map, map_members, &map) && strict_take(strict, &options.strict);
    if (comm_hold_ready(group, is_ready, &call.comm)) {
        options.open = &open;
        options.map = given_map == Py_None ? NULL : &map;
        options.no_check = no_check;
        options.no_exchange = no_exchange;
        options.as_files = as_files;
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_load(call.comm, call.path, call.state, &options, &call.running.options, &result, &call.err);
        Py_END_ALLOW_THREADS
        comm_release(group);
        PyObject *ended = running_end(&call.running, call.status, &call.err);
        out = ended ? sharded_to_python(result) : NULL;
        Py_XDECREF(ended);
        reshard_sharded_free(result);
    }
    together_end(&call);
    Py_XDECREF(made);
    return out;
}

/* ---- the type ---- */

static PyMethodDef comm_type_methods[] = {
    { "close", comm_close, METH_NOARGS, NULL },
    { "barrier", comm_barrier, METH_NOARGS, NULL },
    { "all_gather", comm_gather, METH_O, NULL },
    { "abort", comm_abort, METH_O, NULL },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef comm_attributes[] = {
    { "rank", comm_rank, NULL, NULL, NULL },
    { "size", comm_size, NULL, NULL, NULL },
    { NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot comm_slots[] = {
    { Py_tp_dealloc, comm_dealloc },
    { Py_tp_methods, comm_type_methods },
    { Py_tp_getset, comm_attributes },
    { 0, NULL },
};

static PyType_Spec comm_spec = { "reshard._reshard.Comm", sizeof(struct comm_object), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, comm_slots };

bool comm_type_add(PyObject *module)
{
    return type_add(module, &comm_spec, &comm_type);
}

PyMethodDef comm_methods[] = {
    { "comm_host", call_comm_host, METH_VARARGS, NULL },
    { "comm_threads", call_comm_threads, METH_VARARGS, NULL },
    { "comm_processes", call_comm_processes, METH_VARARGS, NULL },
    { "agree", call_agree, METH_VARARGS, NULL },
    { "save", call_save, METH_VARARGS, NULL },
    { "load", call_load, METH_VARARGS, NULL },
    { NULL, NULL, 0, NULL },
};
