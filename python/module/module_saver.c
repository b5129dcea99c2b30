/* SPDX-License-Identifier: Apache-2.0 */
/* Saving in the background: by a thread, or by the program reshard-saver. */
#include "binding.h"

#include <unistd.h>

struct saver_object {
    PyObject_HEAD
    reshard_saver *handle;
    pid_t owner; /* the process that has opened it: one that was forked since has no thread that saves */
    PyObject *group; /* the Comm that it holds, or None; */
    reshard_comm *comm; /* and its handle */
    bool is_taken;
};

/* Saver(kind, program or None, depth, comm or None): kind 0 is a thread, 1 a program */
static PyObject *saver_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    PyObject *program, *group, *kept = PyList_New(0);
    long long kind, depth;
    reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    struct saver_object *self = NULL;
    (void)names;
    if (kept && PyArg_ParseTuple(arguments, "LOLO", &kind, &program, &depth, &group) &&
        (program == Py_None || (options.program = kept_text(kept, program))) && comm_hold(group, &options.comm)) {
        self = object_new(type);
        options.kind = kind;
        options.depth = depth;
        options.waiting = signals_look;
        reshard_status status = self ? reshard_saver_open(&options, &self->handle, &err) : RESHARD_ERR_MEMORY;
        if (status) {
            comm_release(group);
            Py_CLEAR(self);
            error_raise(status, &err);
        } else {
            self->group = Py_NewRef(group);
            self->comm = options.comm;
            self->owner = getpid();
        }
    }
    Py_XDECREF(kept);
    return (PyObject *)self;
}

static bool saver_enter(struct saver_object *self)
{
    if (!self->handle || self->is_taken)
        return error_usage(self->handle ? "another thread uses the saver" : "the saver is closed") != NULL;
    if (self->owner != getpid())
        return error_usage("the saver is that of the process from which this one was forked") != NULL;
    return self->is_taken = true;
}

/* What a save is of: (shards, items, items to copy), or, of the ranks of a group and with cells, the state that sharded_take takes. */
struct saved_state {
    reshard_shards *shards;
    reshard_items *items;
    reshard_sharded *sharded;
    reshard_state state;
};

static bool saved_state_take(bool is_sharded, PyObject *given, struct saved_state *out)
{
    PyObject *list, *items, *copies;
    if (is_sharded)
        return sharded_take(given, &out->sharded);
    if (!PyArg_ParseTuple(given, "OOO!", &list, &items, &PyList_Type, &copies) || !shards_take(list, &out->shards) ||
        !items_of_dict(items, copies, &out->items))
        return false;
    out->state.shards = out->shards;
    out->state.values = out->items;
    return true;
}

/* save(state, whether it is sharded, path, convert options, run): the save's number */
static PyObject *saver_save(PyObject *object, PyObject *arguments)
{
    struct saver_object *self = (struct saver_object *)object;
    PyObject *given_state, *path, *given, *run, *kept, *out = NULL;
    struct running running;
    struct saved_state saved = { .state = RESHARD_STATE_INIT };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    int64_t number = 0;
    int is_sharded;
    if (!self->group)
        return error_usage("the saver is closed");
    if (!PyArg_ParseTuple(arguments, "OpOOO", &given_state, &is_sharded, &path, &given, &run) || !(kept = PyList_New(0)))
        return NULL;
    if (running_take(kept, run, &running) && (request.path = kept_text(kept, path)) &&
        options_take(kept, given, convert_members, &options) && saved_state_take(is_sharded != 0, given_state, &saved) &&
        saver_enter(self)) {
        running.options.progress = NULL; /* the save goes on when this call has returned */
        request.state = saved.sharded ? NULL : &saved.state;
        request.sharded = saved.sharded;
        request.options = &options;
        request.run = &running.options;
        Py_BEGIN_ALLOW_THREADS
        status = reshard_saver_save(self->handle, &request, &number, &err);
        Py_END_ALLOW_THREADS
        self->is_taken = false;
        out = status ? error_raise(status, &err) : PyLong_FromLongLong(number);
    }
    reshard_shards_free(saved.shards);
    reshard_items_free(saved.items);
    reshard_sharded_free(saved.sharded);
    Py_DECREF(kept);
    return out;
}

/* test(): how many saves are under way */
static PyObject *saver_test(PyObject *object, PyObject *unused)
{
    struct saver_object *self = (struct saver_object *)object;
    reshard_error err = RESHARD_ERROR_INIT;
    int64_t unfinished;
    (void)unused;
    if (!saver_enter(self))
        return NULL;
    reshard_status status = reshard_saver_test(self->handle, &unfinished, &err);
    self->is_taken = false;
    return status ? error_raise(status, &err) : PyLong_FromLongLong(unfinished);
}

/* wait(number): of that save and those before it; -1: all */
static PyObject *saver_wait(PyObject *object, PyObject *given)
{
    struct saver_object *self = (struct saver_object *)object;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    long long number = PyLong_AsLongLong(given);
    if (PyErr_Occurred() || !saver_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = reshard_saver_wait(self->handle, number, &err);
    Py_END_ALLOW_THREADS
    self->is_taken = false;
    return status ? error_raise(status, &err) : Py_NewRef(Py_None);
}

/* Behind closing: the group is the caller's again. */
static void saver_leave_group(struct saver_object *self)
{
    if (self->group)
        comm_release(self->group);
    Py_CLEAR(self->group);
}

/* Waits for all saves, whatever becomes of them, unless a signal ends that: the first failure. */
static reshard_status saver_wait_for_all(struct saver_object *self, reshard_error *err)
{
    reshard_error said = *err;
    reshard_status first = RESHARD_OK, status;
    do {
        status = reshard_saver_wait(self->handle, -1, first ? &said : err);
        first = first ? first : status;
    } while (status && !exception_is_kept());
    return first;
}

/* A signal ends the waiting. Saves of this process alone go on then, and the saver is open; those of a group are ended with it: other ranks
 * may be waited for that are no more. */
static PyObject *saver_close(PyObject *object, PyObject *unused)
{
    struct saver_object *self = (struct saver_object *)object;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    (void)unused;
    if (!self->handle)
        Py_RETURN_NONE;
    if (!saver_enter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = saver_wait_for_all(self, &err);
    if (exception_is_kept() && self->comm)
        reshard_comm_abort(self->comm, "a rank was interrupted while it closed its saver");
    if (!exception_is_kept() || self->comm) {
        reshard_saver_close(self->handle, NULL);
        self->handle = NULL;
    }
    Py_END_ALLOW_THREADS
    self->is_taken = false;
    if (!self->handle)
        saver_leave_group(self);
    return status ? error_raise(status, &err) : Py_NewRef(Py_None);
}

/* Whether nobody will end what the saver has begun: a fork takes no thread along, and an interpreter that ends lets none in any more, which
 * a group over an object of Python needs. What it holds stays then, for as long as the process. */
static bool saver_is_stranded(const struct saver_object *self)
{
    return self->owner != getpid() || (self->group != Py_None && interpreter_ends());
}

static void saver_dealloc(PyObject *object)
{
    struct saver_object *self = (struct saver_object *)object;
    if (self->handle && saver_is_stranded(self)) {
        object_free(object);
        return;
    }
    if (self->handle) {
        Py_BEGIN_ALLOW_THREADS
        reshard_saver_close(self->handle, NULL);
        Py_END_ALLOW_THREADS
    }
    saver_leave_group(self);
    object_free(object);
}

static PyMethodDef saver_methods[] = {
    { "save", saver_save, METH_VARARGS, NULL },
    { "test", saver_test, METH_NOARGS, NULL },
    { "wait", saver_wait, METH_O, NULL },
    { "close", saver_close, METH_NOARGS, NULL },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot saver_slots[] = {
    { Py_tp_new, saver_new },
    { Py_tp_dealloc, saver_dealloc },
    { Py_tp_methods, saver_methods },
    { 0, NULL },
};

PyType_Spec saver_spec = { "reshard._reshard.Saver", sizeof(struct saver_object), 0, Py_TPFLAGS_DEFAULT, saver_slots };
