/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses of the library as exceptions: reshard._errors has the classes. */
#include "binding.h"

#include <stdio.h>

static PyObject *make_error; /* reshard._errors.make_error */

bool errors_init(void)
{
    PyObject *module = PyImport_ImportModule("reshard._errors");
    make_error = module ? PyObject_GetAttrString(module, "make_error") : NULL;
    Py_XDECREF(module);
    return make_error != NULL;
}

/* The first that was raised and that nobody has heard of; under the GIL. */
static PyObject *kept_type, *kept_value, *kept_trace;

void error_keep(void)
{
    if (kept_type)
        PyErr_Clear();
    else
        PyErr_Fetch(&kept_type, &kept_value, &kept_trace);
}

static bool kept_raise(reshard_status status)
{
    PyObject *type = kept_type, *value = kept_value, *trace = kept_trace;
    kept_type = kept_value = kept_trace = NULL;
    if (!type)
        return false;
    PyErr_Restore(type, value, trace);
    if (status != RESHARD_ERR_CANCELLED)
        PyErr_Clear(); /* the call has failed for another reason */
    return status == RESHARD_ERR_CANCELLED;
}

PyObject *error_raise(reshard_status status, const reshard_error *err)
{
    if (PyErr_Occurred() || kept_raise(status))
        return NULL;
    const char *message = err->message[0] ? err->message : reshard_status_name(status);
    PyObject *error = PyObject_CallFunction(make_error, "iNNLiiiN", (int)status, text_of_c(message), text_of_c(err->object),
                                            (long long)err->offset, err->line, err->column, err->sys_errno, text_of_c(err->hint));
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

PyObject *error_usage(const char *message)
{
    reshard_error err = RESHARD_ERROR_INIT;
    snprintf(err.message, sizeof(err.message), "%s", message);
    return error_raise(RESHARD_ERR_USAGE, &err);
}
