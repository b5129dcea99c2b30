/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory. An Array is memory of the library's user with a type and a shape: the buffer protocol and DLPack show it without a copy. A
 * Buffer is what another object lends: where it lies, and how.
 */
#include "binding.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)

/* Memory of an array. The first touch of small pages takes longer than reading into them does: large arrays ask for huge ones. */
static void *array_memory(size_t size)
{
    void *memory;
    const bool is_large = size >= 2 * HUGE_PAGE;
    if (posix_memalign(&memory, is_large ? HUGE_PAGE : ALIGNMENT, size ? size : 1) != 0)
        return NULL;
    if (is_large)
        madvise(memory, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* a wish: nothing depends on it */
    return memory;
}

/* ---- arrays ---- */

struct array_object {
    PyObject_HEAD
    void *data;
    PyObject *owner;    /* another array whose memory this is; NULL: its own */
    size_t size;        /* bytes */
    const char *format; /* of the buffer protocol; NULL: the type has none */
    Py_ssize_t itemsize;
    int rank;
    Py_ssize_t *vectors; /* shape, strides in bytes */
};

/* Types of the buffer protocol and of DLPack. */
static const struct array_type {
    const char *dtype, *format;
    uint8_t code, bits; /* bits 0: DLPack has no such type */
} array_types[] = {
    { "BOOL", "?", 6, 8 },          { "U8", "B", 1, 8 },        { "I8", "b", 0, 8 },
    { "U16", "H", 1, 16 },          { "I16", "h", 0, 16 },      { "U32", "I", 1, 32 },
    { "I32", "i", 0, 32 },          { "U64", "Q", 1, 64 },      { "I64", "q", 0, 64 },
    { "F16", "e", 2, 16 },          { "F32", "f", 2, 32 },      { "F64", "d", 2, 64 },
    { "C64", "Zf", 5, 64 },         { "C128", "Zd", 5, 128 },   { "BF16", NULL, 4, 16 },
    { "F8_E4M3", NULL, 10, 8 },     { "F8_E5M2", NULL, 12, 8 }, { "F8_E4M3FNUZ", NULL, 11, 8 },
    { "F8_E5M2FNUZ", NULL, 13, 8 }, { "F8_E8M0", NULL, 14, 8 },
};

static const struct array_type *array_type_of(const char *dtype)
{
    for (size_t i = 0; i < sizeof(array_types) / sizeof(array_types[0]); i++)
        if (strcmp(array_types[i].dtype, dtype) == 0)
            return &array_types[i];
    return NULL;
}

static const struct array_type *array_type_coded(uint8_t code, uint8_t bits)
{
    for (size_t i = 0; i < sizeof(array_types) / sizeof(array_types[0]); i++)
        if (array_types[i].bits == bits && array_types[i].code == code)
            return &array_types[i];
    return NULL;
}

static bool set_shape(struct array_object *self, PyObject *shape, Py_ssize_t rank)
{
    Py_ssize_t *extent = self->vectors, *strides = self->vectors + rank;
    for (Py_ssize_t i = 0; i < rank; i++)
        extent[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
    Py_ssize_t step = self->itemsize;
    for (Py_ssize_t i = rank; i-- > 0;) {
        strides[i] = step;
        if (!PyErr_Occurred() && (extent[i] < 0 || (extent[i] && step > PY_SSIZE_T_MAX / extent[i])))
            PyErr_SetString(PyExc_ValueError, "an array of this shape does not fit in memory");
        if (PyErr_Occurred())
            return false;
        step *= extent[i] ? extent[i] : 1;
    }
    self->rank = (int)rank;
    return true;
}

/* Array(dtype, itemsize, shape, size, owner): memory of its own, not zeroed, or that of the owner. */
static PyObject *array_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    const char *dtype;
    Py_ssize_t itemsize, size;
    PyObject *shape, *owner;
    (void)names;
    if (!PyArg_ParseTuple(arguments, "snO!nO", &dtype, &itemsize, &PyTuple_Type, &shape, &size, &owner))
        return NULL;
    Py_ssize_t rank = PyTuple_Size(shape);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    if (rank > RESHARD_RANK_MAX)
        return PyErr_Format(PyExc_ValueError, "an array has at most %d axes", RESHARD_RANK_MAX);
    struct array_object *self = (struct array_object *)allocate(type, 0);
    if (!self)
        return NULL;
    self->vectors = calloc((size_t)rank * 2 + 1, sizeof(*self->vectors));
    const struct array_type *known = array_type_of(dtype);
    self->format = known ? known->format : NULL;
    self->itemsize = itemsize;
    self->size = (size_t)size;
    if (!self->vectors || !set_shape(self, shape, rank)) {
        Py_DECREF(self);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    if (owner != Py_None) {
        self->owner = Py_NewRef(owner);
        self->data = ((struct array_object *)owner)->data;
    } else if (!(self->data = array_memory((size_t)size))) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void array_dealloc(PyObject *object)
{
    struct array_object *self = (struct array_object *)object;
    if (self->owner)
        Py_DECREF(self->owner);
    else
        free(self->data);
    free(self->vectors);
    object_free(object);
}

static int array_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    struct array_object *self = (struct array_object *)object;
    view->obj = NULL;
    if (!self->format && (flags & PyBUF_FORMAT)) {
        PyErr_SetString(PyExc_BufferError,
                        "the buffer protocol has no name for this type: Array.raw shows its bytes, and read(dtype='F32') "
                        "casts");
        return -1;
    }
    *view =
        (Py_buffer){ .buf = self->data, .obj = Py_NewRef(object), .len = (Py_ssize_t)self->size, .itemsize = self->itemsize, .ndim = 1 };
    if (flags & PyBUF_FORMAT)
        view->format = (char *)self->format;
    if (flags & PyBUF_ND) {
        view->ndim = self->rank;
        view->shape = self->vectors;
    }
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES)
        view->strides = self->vectors + self->rank;
    return 0;
}

static PyObject *array_address(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(((struct array_object *)object)->data);
}

static PyObject *array_nbytes(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((struct array_object *)object)->size);
}

/* ---- DLPack: https://dmlc.github.io/dlpack/latest/c_api.html ---- */

struct dlpack_tensor {
    void *data;
    struct {
        int32_t kind, number;
    } device;
    int32_t rank;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } type;
    int64_t *shape, *strides; /* elements; NULL: row-major */
    uint64_t offset;
};

struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *context;
    void (*release)(struct dlpack_managed *self);
};

struct lent_array {
    struct dlpack_managed managed;
    PyObject *owner;
    int64_t shape[];
};

static void lent_array_release(struct dlpack_managed *managed)
{
    struct lent_array *lent = managed->context;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(lent->owner);
    PyGILState_Release(state);
    free(lent);
}

/* A capsule that nobody has taken. */
static void capsule_release(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
        managed->release(managed);
    }
}

/* dlpack_layout(capsule): (address, dtype or None, shape, strides or None); the capsule keeps the memory there. */
PyObject *call_dlpack_layout(PyObject *module, PyObject *capsule)
{
    (void)module;
    const struct dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    if (!managed)
        return NULL;
    const struct dlpack_tensor *tensor = &managed->tensor;
    const struct array_type *known = array_type_coded(tensor->type.code, tensor->type.bits);
    const size_t rank = (size_t)tensor->rank;
    PyObject *strides = tensor->strides ? vector_tuple(tensor->strides, rank) : Py_NewRef(Py_None);
    return Py_BuildValue("KzNN", (unsigned long long)((uintptr_t)tensor->data + tensor->offset),
                         known && tensor->type.lanes == 1 ? known->dtype : NULL, vector_tuple(tensor->shape, rank), strides);
}

/* dlpack(dtype): the array as a capsule for from_dlpack. */
static PyObject *array_dlpack(PyObject *object, PyObject *dtype_text)
{
    struct array_object *self = (struct array_object *)object;
    const char *dtype = PyUnicode_AsUTF8AndSize(dtype_text, NULL);
    const struct array_type *known = dtype ? array_type_of(dtype) : NULL;
    if (!known)
        return dtype ? PyErr_Format(PyExc_BufferError, "DLPack has no type %s", dtype) : NULL;
    struct lent_array *lent = calloc(1, sizeof(*lent) + (size_t)self->rank * sizeof(int64_t));
    if (!lent)
        return PyErr_NoMemory();
    for (int i = 0; i < self->rank; i++)
        lent->shape[i] = self->vectors[i];
    lent->owner = Py_NewRef(object);
    lent->managed = (struct dlpack_managed){
        .tensor = { .data = self->data,
                    .device = { 1, 0 },
                    .rank = self->rank,
                    .type = { known->code, known->bits, 1 },
                    .shape = lent->shape },
        .context = lent,
        .release = lent_array_release,
    };
    PyObject *capsule = PyCapsule_New(&lent->managed, "dltensor", capsule_release);
    if (!capsule)
        lent_array_release(&lent->managed);
    return capsule;
}

static PyMethodDef array_type_methods[] = {
    { "_dlpack", array_dlpack, METH_O, NULL },
    { NULL, NULL, 0, NULL },
};

static PyGetSetDef array_attributes[] = {
    { "address", array_address, NULL, "Where the first element lies.", NULL },
    { "nbytes", array_nbytes, NULL, "Size in bytes.", NULL },
    { NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot array_slots[] = {
    { Py_tp_new, array_new },           { Py_tp_dealloc, array_dealloc },     { Py_tp_methods, array_type_methods },
    { Py_tp_getset, array_attributes }, { Py_bf_getbuffer, array_getbuffer }, { 0, NULL },
};

PyType_Spec array_spec = { "reshard._reshard.Array", sizeof(struct array_object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           array_slots };

/* ---- buffers ---- */

struct buffer_object {
    PyObject_HEAD
    Py_buffer view;
    bool is_held;
};

/* Buffer(object, writable) */
static PyObject *buffer_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    PyObject *lender;
    int writable;
    (void)names;
    if (!PyArg_ParseTuple(arguments, "Op", &lender, &writable))
        return NULL;
    struct buffer_object *self = object_new(type);
    if (self && PyObject_GetBuffer(lender, &self->view, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (self)
        self->is_held = true;
    return (PyObject *)self;
}

static void buffer_dealloc(PyObject *object)
{
    struct buffer_object *self = (struct buffer_object *)object;
    if (self->is_held)
        PyBuffer_Release(&self->view);
    object_free(object);
}

static PyObject *ssize_tuple(const Py_ssize_t *numbers, int count)
{
    int64_t wide[RESHARD_RANK_MAX];
    for (int i = 0; i < count && i < RESHARD_RANK_MAX; i++)
        wide[i] = numbers[i];
    return vector_tuple(wide, (size_t)(count < RESHARD_RANK_MAX ? count : RESHARD_RANK_MAX));
}

/* (address, size in bytes, format, itemsize, shape, strides in bytes) */
static PyObject *buffer_layout(PyObject *object, PyObject *unused)
{
    (void)unused;
    const Py_buffer *view = &((struct buffer_object *)object)->view;
    return Py_BuildValue("NnsnNN", PyLong_FromVoidPtr(view->buf), view->len, view->format ? view->format : "B", view->itemsize,
                         ssize_tuple(view->shape, view->ndim), ssize_tuple(view->strides, view->ndim));
}

static PyMethodDef buffer_type_methods[] = {
    { "layout", buffer_layout, METH_NOARGS, NULL },
    { NULL, NULL, 0, NULL },
};

static PyType_Slot buffer_slots[] = {
    { Py_tp_new, buffer_new },
    { Py_tp_dealloc, buffer_dealloc },
    { Py_tp_methods, buffer_type_methods },
    { 0, NULL },
};

PyType_Spec buffer_spec = { "reshard._reshard.Buffer", sizeof(struct buffer_object), 0, Py_TPFLAGS_DEFAULT, buffer_slots };
