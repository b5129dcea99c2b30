/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the extension module share. It is thin: it hands the library's functions what Python has, and no more; names, defaults
 * and documentation are those of the package above it.
 *
 * Functions that return NULL or false have set a Python exception. All of them need the GIL; calls of the library that may take long are
 * made without it.
 */
#ifndef PYTHON_BINDING_H
#define PYTHON_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "reshard/async.h"
#include "reshard/sharded.h"
#include "reshard/transfers.h"
#include "reshard/writer.h"

#include <stdbool.h>

/* ---- module_errors.c ---- */

bool errors_init(void);

/* Raises what the library says, or leaves the exception that a callback has raised. Always NULL. */
PyObject *error_raise(reshard_status status, const reshard_error *err);

/*
 * What Python code that the library has called raises, other than failures that it is there to tell of: it is kept for this thread, while
 * the call comes to its end, and error_raise raises it. exception_raise does so where nothing has failed; false: nothing was kept.
 */
void exception_keep(void);
bool exception_is_kept(void); /* without the GIL, too */
bool exception_raise(void);

/* For the library's `waiting`, which is called without the GIL: Python's handlers of signals run. What one raises is kept, and ends the
 * waiting. */
int signals_look(void *context);

/* UsageError of the binding's own. Always NULL. */
PyObject *error_usage(const char *message);

/* What an exception says, as a record of the library for other ranks: the status of its class, its type's name before its text. */
reshard_status error_of_exception(PyObject *exception, reshard_error *err);

/* What a call starts with that takes a mapping: its diagnoses are kept for the exception, or become a warning. */
extern const reshard_map_options map_initial;

/* The receiver of map_initial, which needs no GIL. */
int diagnoses_remember(const char *text, size_t error_count, void *context);

/* Behind every call that takes a mapping, one of: error_raise; diagnoses_warn, if it has succeeded, which returns out, or NULL if warnings
 * are errors; diagnoses_forget, if it ends otherwise. running_end is all of them. */
PyObject *diagnoses_warn(PyObject *out);
void diagnoses_forget(void);

/* ---- module_texts.c ---- */

/* Keys may hold any byte. */
PyObject *text_of(reshard_str text);
PyObject *text_of_c(const char *text); /* NULL: None */

/*
 * What C structs point to lives in a list of Python objects for as long as the call needs it.
 */
void *kept_memory(PyObject *kept, size_t size); /* zeroed; size 0 gives memory too */
bool kept_str(PyObject *kept, PyObject *text, reshard_str *out);
const char *kept_text(PyObject *kept, PyObject *text); /* without NUL inside; str or path */
const int64_t *kept_vector(PyObject *kept, PyObject *numbers, size_t *count);
/* One number for each axis; UsageError names what has fewer or more. */
const int64_t *kept_coordinates(PyObject *kept, PyObject *numbers, size_t rank, const char *name);
PyObject *vector_tuple(const int64_t *numbers, size_t count);

/* A sequence of tuples: calls take for each of them, with the memory at out + i * stride. */
typedef bool (*taker)(PyObject *kept, PyObject *member, void *out);
void *kept_array(PyObject *kept, PyObject *members, size_t stride, taker take, size_t *count);

/* ---- module_options.c ---- */

enum option_kind {
    OPTION_FLAG,      /* int */
    OPTION_LONG_FLAG, /* int64_t */
    OPTION_INT,       /* int64_t */
    OPTION_SIZE,      /* uint64_t */
    OPTION_REAL,
    OPTION_TEXT,
    OPTION_STR,       /* reshard_str */
    OPTION_TEXTS,     /* NULL-terminated */
    OPTION_LIMITS,    /* a dict; the count at `count` */
    OPTION_CONSTANTS, /* a dict */
    OPTION_MAPPINGS,  /* a list of (name, text) */
    OPTION_MAPPING,   /* one of these */
    OPTION_STRUCT     /* a dict for the struct of `members` */
};

struct option {
    const char *name;
    enum option_kind kind;
    size_t offset, count;
    const struct option *members; /* of OPTION_STRUCT, ended by one without a name */
    const void *initial;          /* of OPTION_STRUCT: what the struct begins as */
    size_t size;
};

extern const struct option open_members[], convert_members[], verify_members[], diff_members[], salvage_members[], stats_members[],
    view_members[], run_members[], map_members[], map_input_members[];

/* Fills a struct with the members of a dict, or None. TypeError names what it does not know. */
bool options_take(PyObject *kept, PyObject *given, const struct option *members, void *out);

/* How a call runs: with Ctrl-C, and what the caller wants to be told. */
struct running {
    reshard_run_options options;
    PyObject *progress, *comm;      /* borrowed; NULL: none */
    PyObject *type, *value, *trace; /* what was raised meanwhile */
};

/* The dict has run_members, and perhaps "progress" and "comm", which only some calls hold and use. */
bool running_take(PyObject *kept, PyObject *given, struct running *out);
int running_progress(const reshard_progress *progress, void *context);

/* Behind the call: raises what was raised in it, or what the library says. NULL on failure, else None. */
PyObject *running_end(struct running *running, reshard_status status, const reshard_error *err);

/* Behind a callback that has raised something. Returns 1, which stops the call. */
int running_stop(struct running *running);

/* ---- module_values.c ---- */

PyObject *value_to_python(const reshard_checkpoint *checkpoint, const reshard_value *value);

/* A dict of items, and a list of (key, Checkpoint, item) to copy, or (key, file, 0); *out is NULL if there are none. */
bool items_of_dict(PyObject *items, PyObject *copies, reshard_items **out);

/* ---- module_shards.c ---- */

/* A flat range (begin, end), or None. */
bool range_take(PyObject *range, int64_t *is_flattened, int64_t *begin, int64_t *end);

/* What an object has of read and write, beside a list of failures, to which what they raise goes. The library calls them for as long as the
 * object lives. None: nothing is set. */
bool functions_take(PyObject *object, int (**read)(void *, uint64_t, size_t, void *),
                    int (**write)(const void *, uint64_t, size_t, void *), void **context);

/* A list of (key, dtype, global shape, start, extent, flat range or None, address or 0, strides or None, object with functions or None).
 */
bool shards_take(PyObject *list, reshard_shards **out);

/* ((tensor, …), (object, …), (value, …)); see the file. */
bool sharded_take(PyObject *state, reshard_sharded **out);

/* (objects, values) of a result. */
PyObject *sharded_to_python(const reshard_sharded *sharded);

/* ---- module_checkpoint.c ---- */

struct checkpoint_object {
    PyObject_HEAD
    reshard_checkpoint *handle;
    PyObject *kept; /* what the handle reads from */
    int users;      /* calls that share it and run without the GIL */
    bool is_taken;  /* by a call that needs it for itself */
};

bool checkpoint_type_add(PyObject *module);
bool checkpoint_is(PyObject *object);
PyObject *checkpoint_new(reshard_checkpoint *handle, PyObject *kept);

/* Before and behind a call without the GIL. alone: nobody else may use the handle meanwhile. */
bool checkpoint_enter(struct checkpoint_object *self, bool alone);
void checkpoint_leave(struct checkpoint_object *self, bool alone);

/* ---- module_comm.c ---- */

bool comm_type_add(PyObject *module);

/* The handle of a Comm, which nobody else uses until it is released; None: NULL, and nothing to release. */
bool comm_hold(PyObject *object, reshard_comm **out);
void comm_release(PyObject *object);

/*
 * The same behind the taking of what a call of all ranks is made with, so that none waits for one that has nothing to call with: is_ready
 * says whether it has been taken, and if not, an exception is set, of whatever class. True: all ranks are ready, and the handle is held.
 * False: this rank's exception is set, or what another one says. Between this and the call of the library nothing of Python runs.
 */
bool comm_hold_ready(PyObject *object, bool is_ready, reshard_comm **out);

/* ---- module_writer.c ---- */

bool writer_type_add(PyObject *module);

/* ---- module_array.c, module_saver.c, module_calls.c, module_mapping.c, module_transfers.c ---- */

extern PyType_Spec array_spec, buffer_spec, saver_spec;
extern PyMethodDef calls_methods[], comm_methods[], mapping_methods[], transfers_methods[];
PyObject *call_dlpack_layout(PyObject *module, PyObject *capsule);
PyObject *report_to_python(const reshard_report *report);

/* ---- module.c ---- */

/* Makes a type of its spec, adds it to the module, and keeps it in *kept, which may be NULL. */
bool type_add(PyObject *module, PyType_Spec *spec, PyTypeObject **kept);

/* A new object of a type, zeroed, and the end of one whose own members are released. */
void *object_new(PyTypeObject *type);
void object_free(PyObject *object);

/* Whether other threads get the GIL no more. */
bool interpreter_ends(void);

/* A list of count members, each made by make. */
PyObject *list_made(const void *context, size_t count, PyObject *(*make)(const void *context, size_t index));

PyMODINIT_FUNC PyInit__reshard(void);

#endif
