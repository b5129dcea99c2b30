/* SPDX-License-Identifier: Apache-2.0 */
/* From rank to rank: at once, or by a plan that is kept. */
#include "binding.h"

#define PLAN_NAME "reshard.transfers"

/* What both have in common. group is NULL as long as it is not held. */
struct moving {
    PyObject *kept, *group;
    reshard_comm *comm;
    reshard_shards *source, *target;
    reshard_map_options map;
    reshard_redistribute_options options;
    reshard_redistribute_report report;
    reshard_error err;
};

static bool moving_begin(struct moving *call, PyObject *group, PyObject *from, PyObject *to)
{
    *call = (struct moving){ .kept = PyList_New(0),
                             .map = map_initial,
                             .options = RESHARD_REDISTRIBUTE_OPTIONS_INIT,
                             .report = RESHARD_REDISTRIBUTE_REPORT_INIT,
                             .err = RESHARD_ERROR_INIT };
    if (!call->kept || !shards_take(from, &call->source) || !shards_take(to, &call->target) || !comm_hold(group, &call->comm))
        return false;
    call->group = group;
    return true;
}

/* The same for (comm, source shards, target shards, map or None, scratch bytes). */
static bool moving_begin_planned(struct moving *call, PyObject *arguments)
{
    PyObject *group, *from, *to, *map;
    unsigned long long scratch;
    *call = (struct moving){ .kept = NULL };
    if (!PyArg_ParseTuple(arguments, "OOOOK", &group, &from, &to, &map, &scratch) || !moving_begin(call, group, from, to) ||
        !options_take(call->kept, map, map_members, &call->map))
        return false;
    call->options.map = map == Py_None ? NULL : &call->map;
    call->options.scratch_bytes = scratch;
    return true;
}

static void moving_end(struct moving *call)
{
    if (call->group)
        comm_release(call->group);
    reshard_shards_free(call->source);
    reshard_shards_free(call->target);
    Py_XDECREF(call->kept);
}

static PyObject *numbers_of(const struct moving *call, reshard_status status)
{
    const reshard_redistribute_report *report = &call->report;
    return status ? error_raise(status, &call->err)
                  : diagnoses_warn(Py_BuildValue("{sKsKsKsK}", "bytes_kept", (unsigned long long)report->bytes_kept, "bytes_sent",
                                  (unsigned long long)report->bytes_sent, "bytes_received", (unsigned long long)report->bytes_received,
                                  "bytes_moved", (unsigned long long)report->bytes_moved));
}

/* redistribute(comm, source shards, target shards, map or None, scratch bytes): numbers of bytes */
static PyObject *call_redistribute(PyObject *module, PyObject *arguments)
{
    PyObject *out = NULL;
    struct moving call;
    reshard_status status;
    (void)module;
    if (moving_begin_planned(&call, arguments)) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_redistribute(call.comm, call.source, call.target, &call.options, &call.report, &call.err);
        Py_END_ALLOW_THREADS
        out = numbers_of(&call, status);
    }
    moving_end(&call);
    return out;
}

static void plan_release(PyObject *capsule)
{
    reshard_transfers_free(PyCapsule_GetPointer(capsule, PLAN_NAME));
}

/* transfers_new(comm, source shards, target shards, map or None, scratch bytes): a plan */
static PyObject *call_transfers_new(PyObject *module, PyObject *arguments)
{
    PyObject *out = NULL;
    struct moving call;
    reshard_transfers *plan = NULL;
    reshard_status status;
    (void)module;
    if (moving_begin_planned(&call, arguments)) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_transfers_new(call.comm, call.source, call.target, &call.options, &plan, &call.err);
        Py_END_ALLOW_THREADS
        out = status ? error_raise(status, &call.err) : PyCapsule_New(plan, PLAN_NAME, plan_release);
        if (!out)
            reshard_transfers_free(plan);
        out = diagnoses_warn(out);
    }
    moving_end(&call);
    return out;
}

/* transfers_run(plan, comm, source shards, target shards): numbers of bytes. The comm, which one thread holds, guards the plan too. */
static PyObject *call_transfers_run(PyObject *module, PyObject *arguments)
{
    PyObject *capsule, *group, *from, *to, *out = NULL;
    struct moving call;
    reshard_status status;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO", &capsule, &group, &from, &to))
        return NULL;
    reshard_transfers *plan = PyCapsule_GetPointer(capsule, PLAN_NAME);
    if (!plan)
        return NULL;
    if (moving_begin(&call, group, from, to)) {
        Py_BEGIN_ALLOW_THREADS
        status = reshard_transfers_run(plan, call.comm, call.source, call.target, &call.report, &call.err);
        Py_END_ALLOW_THREADS
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
