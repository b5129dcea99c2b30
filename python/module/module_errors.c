/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses of the library as exceptions: reshard._errors has the classes. */
#include "binding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static PyObject *make_error, *warn_of_mapping, *said_of; /* reshard._errors has them */

/* What mappings of the call that this thread makes were said to be: on failure goes with the exception, and else becomes a warning. */
static _Thread_local char *diagnoses;

/* What was raised in the call that this thread makes. */
static _Thread_local PyObject *kept_type, *kept_value, *kept_trace;

const reshard_map_options map_initial = { .struct_size = sizeof(map_initial),
                                          .text_stride = sizeof(reshard_map_text),
                                          .constant_stride = sizeof(reshard_map_constant),
                                          .diagnose = diagnoses_remember };

bool errors_init(void)
{
    PyObject *module = PyImport_ImportModule("reshard._errors");
    make_error = module ? PyObject_GetAttrString(module, "make_error") : NULL;
    warn_of_mapping = make_error ? PyObject_GetAttrString(module, "warn_of_mapping") : NULL;
    said_of = warn_of_mapping ? PyObject_GetAttrString(module, "said_of") : NULL;
    Py_XDECREF(module);
    return said_of != NULL;
}

/* Of several texts it is called for one after the other. Without memory the first diagnosis is left, which errors say by themselves. */
int diagnoses_remember(const char *text, size_t error_count, void *context)
{
    size_t before = diagnoses ? strlen(diagnoses) : 0, size = strlen(text) + 1;
    char *both = realloc(diagnoses, before + size);
    (void)error_count;
    (void)context;
    if (both) {
        memcpy(both + before, text, size);
        diagnoses = both;
    }
    return 0;
}

void diagnoses_forget(void)
{
    free(diagnoses);
    diagnoses = NULL;
}

PyObject *diagnoses_warn(PyObject *out)
{
    PyObject *warned = out && diagnoses ? PyObject_CallFunction(warn_of_mapping, "N", text_of_c(diagnoses)) : NULL;
    if (out && diagnoses && !warned)
        Py_CLEAR(out);
    Py_XDECREF(warned);
    diagnoses_forget();
    return out;
}

void exception_keep(void)
{
    if (exception_is_kept())
        PyErr_Clear(); /* the first counts */
    else
        PyErr_Fetch(&kept_type, &kept_value, &kept_trace);
}

bool exception_is_kept(void)
{
    return kept_type != NULL;
}

bool exception_raise(void)
{
    if (!exception_is_kept())
        return false;
    PyErr_Restore(kept_type, kept_value, kept_trace);
    kept_type = kept_value = kept_trace = NULL;
    return true;
}

/* A thread of the library's own, as savers have one, hears of no signal, and the interpreter may have ended. */
int signals_look(void *context)
{
    (void)context;
    if (!PyGILState_GetThisThreadState())
        return 0;
    PyGILState_STATE state = PyGILState_Ensure();
    if (PyErr_CheckSignals() != 0)
        exception_keep();
    PyGILState_Release(state);
    return exception_is_kept();
}

PyObject *error_raise(reshard_status status, const reshard_error *err)
{
    if (exception_raise() || PyErr_Occurred()) {
        diagnoses_forget();
        return NULL;
    }
    const char *message = err->message[0] ? err->message : reshard_status_name(status);
    PyObject *error =
        PyObject_CallFunction(make_error, "iNNLiiiNN", (int)status, text_of_c(message), text_of_c(err->object), (long long)err->offset,
                              err->line, err->column, err->sys_errno, text_of_c(err->hint), text_of_c(diagnoses ? diagnoses : ""));
    diagnoses_forget();
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

reshard_status error_of_exception(PyObject *exception, reshard_error *err)
{
    const char *message = "it has failed, and cannot say why", *object = "", *hint = "";
    int status = RESHARD_ERR_USAGE;
    PyObject *said = PyObject_CallFunction(said_of, "O", exception);
    if (!said || !PyArg_ParseTuple(said, "isss", &status, &message, &object, &hint))
        PyErr_Clear();
    snprintf(err->message, sizeof(err->message), "%s", message);
    snprintf(err->object, sizeof(err->object), "%s", object);
    snprintf(err->hint, sizeof(err->hint), "%s", hint);
    Py_XDECREF(said);
    return (reshard_status)status;
}
