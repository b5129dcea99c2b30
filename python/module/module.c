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

static PyModuleDef definition = { PyModuleDef_HEAD_INIT, "reshard._reshard", NULL, -1, calls_methods, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit__reshard(void)
{
    PyObject *module = errors_init() ? PyModule_Create(&definition) : NULL;
    if (module && PyModule_AddFunctions(module, comm_methods) == 0 && checkpoint_type_add(module) && comm_type_add(module) &&
        type_add(module, &array_spec, NULL) && type_add(module, &buffer_spec, NULL) && type_add(module, &saver_spec, NULL))
        return module;
    Py_XDECREF(module);
    return NULL;
}
