/* SPDX-License-Identifier: Apache-2.0 */
/* From rank to rank: at once, or by a plan that is kept. */
#include "binding.h"

#define PLAN_NAME "reshard.transfers"

/* What both have in common. */
struct moving {
    PyObject *kept, *made; /* made: what the options point into, too */
    reshard_comm *comm;
    reshard_shards *source, *target;
    reshard_map_options map;
    reshard_redistribute_options options;
    reshard_redistribute_report report;
    reshard_error err;
};

/* Of what make() is, (source shards, target shards, map or None, scratch bytes), on all ranks. True: the group is held. */
static bool moving_begin(struct moving *call, PyObject *group, PyObject *make)
{
    PyObject *from, *to, *map;
    unsigned long long scratch;
    *call = (struct moving){ .kept = PyList_New(0),
                             .map = map_initial,
                             .options = RESHARD_REDISTRIBUTE_OPTIONS_INIT,
                             .report = RESHARD_REDISTRIBUTE_REPORT_INIT,
                             .err = RESHARD_ERROR_INIT };
    const bool is_ready = call->kept && (call->made = PyObject_CallNoArgs(make)) &&
                          PyArg_ParseTuple(call->made, "OOOK", &from, &to, &map, &scratch) && shards_take(from, &call->source) &&
                          shards_take(to, &call->target) && options_take(call->kept, map, map_members, &call->map);
    if (is_ready) {
        call->options.map = map == Py_None ? NULL : &call->map;
        call->options.scratch_bytes = scratch;
    }
    return comm_hold_ready(group, is_ready, &call->comm);
}

static void moving_end(struct moving *call)
{
    reshard_shards_free(call->source);
    reshard_shards_free(call->target);
    Py_XDECREF(call->kept);
    Py_XDECREF(call->made);
}

static PyObject *numbers_of(const struct moving *call, reshard_status status)
{
    const reshard_redistribute_report *report = &call->report;
    return status ? error_raise(status, &call->err)
                  : diagnoses_warn(Py_BuildValue("{sKsKsKsK}", "bytes_kept", (unsigned long long)report->bytes_kept, "bytes_sent",
                                  (unsigned long long)report->bytes_sent, "bytes_received", (unsigned long long)report->bytes_received,
                                  "bytes_moved", (unsigned long long)report->bytes_moved));
}

/* redistribute(comm, make): numbers of bytes */
static PyObject *call_redistribute(PyObject *module, PyObject *arguments)
{
    PyObject *group, *make, *out = NULL;
    struct moving call;
    reshard_status status;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &group, &make))
        return NULL;
    if (moving_begin(&call, group, make)) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_redistribute(call.comm, call.source, call.target, &call.options, &call.report, &call.err);
        Py_END_ALLOW_THREADS
        comm_release(group);
        out = numbers_of(&call, status);
    }
    moving_end(&call);
    return out;
}

static void plan_release(PyObject *capsule)
{
    reshard_transfers_free(PyCapsule_GetPointer(capsule, PLAN_NAME));
}

/* transfers_new(comm, make): a plan */
static PyObject *call_transfers_new(PyObject *module, PyObject *arguments)
{
    PyObject *group, *make, *out = NULL;
    struct moving call;
    reshard_transfers *plan = NULL;
    reshard_status status;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &group, &make))
        return NULL;
    if (moving_begin(&call, group, make)) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_transfers_new(call.comm, call.source, call.target, &call.options, &plan, &call.err);
        Py_END_ALLOW_THREADS
        comm_release(group);
        out = status ? error_raise(status, &call.err) : PyCapsule_New(plan, PLAN_NAME, plan_release);
        if (!out)
            reshard_transfers_free(plan);
        out = diagnoses_warn(out);
    }
    moving_end(&call);
    return out;
}

/* transfers_run(plan, comm, make): numbers of bytes. The comm, which one thread holds, guards the plan too. */
static PyObject *call_transfers_run(PyObject *module, PyObject *arguments)
{
    PyObject *capsule, *group, *make, *out = NULL;
    struct moving call;
    reshard_status status;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO", &capsule, &group, &make))
        return NULL;
    reshard_transfers *plan = PyCapsule_GetPointer(capsule, PLAN_NAME);
    if (!plan)
        return NULL;
    if (moving_begin(&call, group, make)) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_transfers_run(plan, call.comm, call.source, call.target, &call.report, &call.err);
        Py_END_ALLOW_THREADS
        comm_release(group);
        out = numbers_of(&call, status);
    }
    moving_end(&call);
    return out;
}

PyMethodDef transfers_methods[] = {
    { "redistribute", call_redistribute, METH_VARARGS, NULL },
    { "transfers_new", call_transfers_new, METH_VARARGS, NULL },
    { "transfers_run", call_transfers_run, METH_VARARGS, NULL },
    { NULL, NULL, 0, NULL },
};
