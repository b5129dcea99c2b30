/* SPDX-License-Identifier: Apache-2.0 */
#include "binding.h"

#include <stdio.h>
#include <string.h>

/* UTF-8; with lone surrogates, as pickles may have them; else bytes that are no UTF-8 become surrogates, as in names of files. */
static const char *const ways[] = { "strict", "surrogatepass", "surrogateescape" };

PyObject *text_of(reshard_str text)
{
    const char *data = text.data ? text.data : "";
    if (PyErr_Occurred()) /* what was before it has failed */
        return NULL;
    PyObject *decoded = PyUnicode_DecodeUTF8(data, (Py_ssize_t)text.size, ways[0]);
    for (int way = 1; !decoded && way < 3 && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError); way++) {
        PyErr_Clear();
        decoded = PyUnicode_DecodeUTF8(data, (Py_ssize_t)text.size, ways[way]);
    }
    return decoded;
}

/* The way back: what text_of escaped first. */
static PyObject *text_bytes(PyObject *text)
{
    PyObject *bytes = PyUnicode_AsUTF8String(text);
    for (int way = 2; !bytes && way > 0 && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError); way--) {
        PyErr_Clear();
        bytes = PyUnicode_AsEncodedString(text, "utf-8", ways[way]);
    }
    return bytes;
}

PyObject *text_of_c(const char *text)
{
    return text ? text_of((reshard_str){ text, strlen(text) }) : Py_NewRef(Py_None);
}

/* Takes the reference. */
static bool keep(PyObject *kept, PyObject *object)
{
    bool is_kept = object && PyList_Append(kept, object) == 0;
    Py_XDECREF(object);
    return is_kept;
}

void *kept_memory(PyObject *kept, size_t size)
{
    PyObject *memory = size < PY_SSIZE_T_MAX ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : PyErr_NoMemory();
    if (!keep(kept, memory))
        return NULL;
    return memset(PyBytes_AsString(memory), 0, size);
}

bool kept_str(PyObject *kept, PyObject *text, reshard_str *out)
{
    PyObject *bytes = PyBytes_Check(text) ? Py_NewRef(text) : text_bytes(text);
    char *data;
    Py_ssize_t size;
    if (!keep(kept, bytes) || PyBytes_AsStringAndSize(bytes, &data, &size) != 0)
        return false;
    *out = (reshard_str){ data, (size_t)size };
    return true;
}

const char *kept_text(PyObject *kept, PyObject *text)
{
    PyObject *bytes;
    if (!PyUnicode_FSConverter(text, &bytes)) /* refuses NUL inside */
        return NULL;
    return keep(kept, bytes) ? PyBytes_AsString(bytes) : NULL;
}

const int64_t *kept_vector(PyObject *kept, PyObject *numbers, size_t *count)
{
    Py_ssize_t size = PySequence_Size(numbers);
    int64_t *out = size < 0 ? NULL : kept_memory(kept, (size_t)size * sizeof(*out));
    for (Py_ssize_t i = 0; out && i < size; i++) {
        PyObject *number = PySequence_GetItem(numbers, i);
        out[i] = number ? PyLong_AsLongLong(number) : 0;
        Py_XDECREF(number);
        if (PyErr_Occurred())
            return NULL;
    }
    if (out)
        *count = (size_t)size;
    return out;
}

const int64_t *kept_coordinates(PyObject *kept, PyObject *numbers, size_t rank, const char *name)
{
    char message[128];
    size_t count;
    const int64_t *out = kept_vector(kept, numbers, &count);
    if (!out || count == rank)
        return out;
    snprintf(message, sizeof(message), "the %s has %zu numbers for %zu axes", name, count, rank);
    error_usage(message);
    return NULL;
}

PyObject *vector_tuple(const int64_t *numbers, size_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (!number || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

void *kept_array(PyObject *kept, PyObject *members, size_t stride, taker take, size_t *count)
{
    Py_ssize_t size = PySequence_Size(members);
    char *out = size < 0 ? NULL : kept_memory(kept, (size_t)size * stride);
    for (Py_ssize_t i = 0; out && i < size; i++) {
        PyObject *member = PySequence_GetItem(members, i);
        bool is_taken = member && take(kept, member, out + (size_t)i * stride);
        if (!keep(kept, member) || !is_taken)
            return NULL;
    }
    if (out)
        *count = (size_t)size;
    return out;
}
