/* SPDX-License-Identifier: Apache-2.0 */
/* Trying texts of the mapping language. */
#include "binding.h"

#include <string.h>

typedef reshard_status (*map_verb)(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

static const struct {
    const char *name;
    map_verb run;
} verbs[] = {
    { "parse", reshard_map_parse }, { "expand", reshard_map_expand }, { "check", reshard_map_check },
    { "eval", reshard_map_eval },   { "invert", reshard_map_invert },
};

static map_verb verb_find(const char *name)
{
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (strcmp(verbs[i].name, name) == 0)
            return verbs[i].run;
    PyErr_Format(PyExc_ValueError, "there is no way '%s' to try a mapping", name);
    return NULL;
}

/* Of a checkpoint, a description as JSON, or None, which leaves *out NULL. */
static bool space_take(PyObject *kept, PyObject *given, reshard_map_space **out)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    if (given == Py_None)
        return true;
    if (checkpoint_is(given)) {
        struct checkpoint_object *checkpoint = (struct checkpoint_object *)given;
        if (!checkpoint_enter(checkpoint, false))
            return false;
        status = reshard_map_space_of(checkpoint->handle, out, &err);
        checkpoint_leave(checkpoint, false);
    } else {
        reshard_str json;
        if (!kept_str(kept, given, &json))
            return false;
        status = reshard_map_space_describe(json.data, json.size, out, &err);
    }
    return status ? error_raise(status, &err) != NULL : true;
}

/* (text for people, JSON, diagnoses) */
static PyObject *run_verb(map_verb verb, const reshard_map_input *input)
{
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    PyObject *out;
    Py_BEGIN_ALLOW_THREADS
    status = verb(input, &output, &err);
    Py_END_ALLOW_THREADS
    if (status) {
        if (output.diagnoses)
            diagnoses_remember(output.diagnoses, output.error_count, NULL);
        out = error_raise(status, &err);
    } else {
        out = Py_BuildValue("NNN", text_of_c(output.text), text_of_c(output.json), text_of_c(output.diagnoses));
    }
    reshard_map_output_release(&output);
    return out;
}

/* map(verb, input, source, target) */
static PyObject *call_map(PyObject *module, PyObject *arguments)
{
    PyObject *given, *from, *to, *kept = PyList_New(0), *out = NULL;
    const char *name;
    map_verb verb;
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    reshard_map_space *source = NULL, *target = NULL;
    (void)module;
    if (kept && PyArg_ParseTuple(arguments, "sOOO", &name, &given, &from, &to) && (verb = verb_find(name)) &&
        options_take(kept, given, map_input_members, &input) && space_take(kept, from, &source) && space_take(kept, to, &target)) {
        input.source = source;
        input.target = target;
        out = run_verb(verb, &input);
    }
    reshard_map_space_free(source);
    reshard_map_space_free(target);
    Py_XDECREF(kept);
    return out;
}

PyMethodDef mapping_methods[] = {
    { "map", call_map, METH_VARARGS, NULL },
    { NULL, NULL, 0, NULL },
};
