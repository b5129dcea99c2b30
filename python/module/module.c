/* SPDX-License-Identifier: Apache-2.0 */
/* reshard._reshard: what the package stands on. Nobody else imports it; it may change with every release. */
#include "binding.h"

#include <string.h>

bool type_add(PyObject *module, PyType_Spec *spec, PyTypeObject **kept)
{
    PyObject *type = PyType_FromSpec(spec);
    if (!type || PyModule_AddObjectRef(module, strrchr(spec->name, '.') + 1, type) != 0) {
        Py_XDECREF(type);
        return false;
    }
    if (kept)
        *kept = (PyTypeObject *)type; /* for as long as the process */
    else
        Py_DECREF(type);
    return true;
}

void *object_new(PyTypeObject *type)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

void object_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* What is called has no name of its own in the limited API before Python 3.13. Where sys is cleared already, the end has come. */
bool interpreter_ends(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *function = PySys_GetObject("is_finalizing"); /* borrowed */
    PyObject *said = function ? PyObject_CallNoArgs(function) : NULL;
    const bool ends = !said || PyObject_IsTrue(said) != 0;
    Py_XDECREF(said);
    PyErr_Restore(type, value, trace); /* and nothing else */
    return ends;
}

PyObject *list_made(const void *context, size_t count, PyObject *(*make)(const void *context, size_t index))
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *member = make(context, i);
        if (!member || PyList_SetItem(list, (Py_ssize_t)i, member) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyModuleDef definition = { PyModuleDef_HEAD_INIT, "reshard._reshard", NULL, -1, calls_methods, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit__reshard(void)
{
    PyObject *module = errors_init() ? PyModule_Create(&definition) : NULL;
    if (module && PyModule_AddFunctions(module, comm_methods) == 0 &&
        PyModule_AddFunctions(module, mapping_methods) == 0 && PyModule_AddFunctions(module, transfers_methods) == 0 &&
        checkpoint_type_add(module) && comm_type_add(module) && writer_type_add(module) &&
        type_add(module, &array_spec, NULL) && type_add(module, &buffer_spec, NULL) && type_add(module, &saver_spec, NULL))
        return module;
    Py_XDECREF(module);
    return NULL;
}
