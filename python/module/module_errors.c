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

PyObject *error_raise(reshard_status status, const reshard_error *err)
{
    if (PyErr_Occurred())
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
