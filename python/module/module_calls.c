/* SPDX-License-Identifier: Apache-2.0 */
/* The library's functions that are no methods: open, convert, plan, commit, verify, diff, hash, stats, salvage, and what there is. */
#include "binding.h"

/* A call that fails before the library is asked has its exception. */
struct call {
    PyObject *kept;
    struct running running;
    bool holds_comm;
    reshard_error err;
    reshard_status status;
};

static bool call_begin(struct call *call, PyObject *run)
{
    *call = (struct call){ .kept = PyList_New(0), .err = RESHARD_ERROR_INIT };
    if (!call->kept || !running_take(call->kept, run, &call->running))
        return false;
    call->holds_comm = call->running.comm && comm_hold(call->running.comm, &call->running.options.comm);
    return !call->running.comm || call->holds_comm;
}

static void call_end(struct call *call)
{
    if (call->holds_comm)
        comm_release(call->running.comm);
    Py_XDECREF(call->kept);
}

/* out if the call has succeeded, or only said that things differ; else NULL. Takes the reference. */
static PyObject *call_result(struct call *call, PyObject *out)
{
    reshard_status status = call->status == RESHARD_DIFFERS ? RESHARD_OK : call->status;
    PyObject *ended = running_end(&call->running, status, &call->err);
    if (!ended)
        Py_CLEAR(out);
    Py_XDECREF(ended);
    return out;
}

/* A checkpoint that the call has to itself, until checkpoint_leave. */
static bool checkpoint_take(PyObject *source, struct checkpoint_object **out)
{
    if (!checkpoint_is(source))
        return PyErr_Format(PyExc_TypeError, "what is looked at is no checkpoint") != NULL;
    if (!checkpoint_enter((struct checkpoint_object *)source, true))
        return false;
    *out = (struct checkpoint_object *)source;
    return true;
}

/* ---- opening ---- */

/* open(path, options, run): of run, progress counts */
static PyObject *call_open(PyObject *module, PyObject *arguments)
{
    PyObject *path, *given, *run, *out = NULL;
    struct call call;
    reshard_open_options options = RESHARD_OPEN_OPTIONS_INIT;
    reshard_checkpoint *handle = NULL;
    const char *text;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO", &path, &given, &run))
        return NULL;
    if (call_begin(&call, run) && (text = kept_text(call.kept, path)) && options_take(call.kept, given, open_members, &options)) {
        options.progress = running_progress;
        options.context = &call.running;
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_open(text, &options, &handle, &call.err);
        Py_END_ALLOW_THREADS
        PyObject *ended = running_end(&call.running, call.status, &call.err);
        out = ended ? checkpoint_new(handle, NULL) : NULL;
        Py_XDECREF(ended);
    }
    call_end(&call);
    return out;
}

/* open_state(shards, items, items to copy, name, options, owners): owners is kept until the checkpoint is closed */
static PyObject *call_open_state(PyObject *module, PyObject *arguments)
{
    PyObject *list, *given_items, *copies, *name, *given, *owners, *kept = PyList_New(0), *out = NULL;
    reshard_shards *shards = NULL;
    reshard_items *items = NULL;
    reshard_checkpoint *handle = NULL;
    reshard_open_options options = RESHARD_OPEN_OPTIONS_INIT;
    reshard_state state = RESHARD_STATE_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    (void)module;
    if (kept && PyArg_ParseTuple(arguments, "OOO!OOO", &list, &given_items, &PyList_Type, &copies, &name, &given, &owners) &&
        shards_take(list, &shards) && items_of_dict(given_items, copies, &items) && (state.name = kept_text(kept, name)) &&
        options_take(kept, given, open_members, &options)) {
        state.shards = shards;
        state.values = items;
        reshard_status status = reshard_open_shards(&state, &options, &handle, &err);
        out = status ? error_raise(status, &err) : checkpoint_new(handle, owners);
    }
    reshard_shards_free(shards);
    reshard_items_free(items);
    Py_XDECREF(kept);
    return out;
}

/* ---- converting ---- */

static PyObject *report_file_tuple(const void *report, size_t i)
{
    reshard_report_file file = RESHARD_REPORT_FILE_INIT;
    reshard_report_file_at(report, i, &file);
    return Py_BuildValue("NKKK", text_of(file.name), (unsigned long long)file.bytes, (unsigned long long)file.chunks,
                         (unsigned long long)file.sources);
}

static PyObject *report_note_tuple(const void *report, size_t i)
{
    reshard_note note = RESHARD_NOTE_INIT;
    reshard_report_note_at(report, i, &note);
    return Py_BuildValue("LsNNN", (long long)note.what, note.kind, text_of(note.key), text_of(note.reason), text_of(note.text));
}

static PyObject *report_move_tuple(const void *report, size_t i)
{
    reshard_move move = RESHARD_MOVE_INIT;
    reshard_report_move_at(report, i, &move);
    return Py_BuildValue("NNLLK", text_of(move.from), text_of(move.to), (long long)move.from_writer, (long long)move.to_writer,
                         (unsigned long long)move.bytes);
}

PyObject *report_to_python(const reshard_report *report)
{
    return Py_BuildValue("{sNsNsKsKsKsKsKsKsKsKsKsKsKsNsNsN}", "source_format", text_of_c(report->source_format), "target_format",
                         text_of_c(report->target_format), "tensors", (unsigned long long)report->tensors, "items",
                         (unsigned long long)report->items, "source_chunks", (unsigned long long)report->source_chunks, "target_chunks",
                         (unsigned long long)report->target_chunks, "steps", (unsigned long long)report->steps, "read_bytes",
                         (unsigned long long)report->read_bytes, "write_bytes", (unsigned long long)report->write_bytes, "target_bytes",
                         (unsigned long long)report->target_bytes, "peak_memory_bytes", (unsigned long long)report->peak_memory_bytes,
                         "verified_tensors", (unsigned long long)report->verified_tensors, "verified_bytes",
                         (unsigned long long)report->verified_bytes, "files", list_made(report, report->file_count, report_file_tuple),
                         "notes", list_made(report, report->note_count, report_note_tuple), "moves",
                         list_made(report, report->move_count, report_move_tuple));
}

typedef reshard_status (*converting_call)(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                          const reshard_run_options *run, reshard_report *report, reshard_error *err);

/* (checkpoint, target or None, options, run): the report; without a function: that and the target to look at */
static PyObject *run_conversion(PyObject *arguments, converting_call function)
{
    PyObject *source, *target, *given, *run, *out = NULL;
    struct call call;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_checkpoint *preview = NULL;
    const char *path = NULL;
    if (!PyArg_ParseTuple(arguments, "OOOO", &source, &target, &given, &run))
        return NULL;
    if (!checkpoint_is(source))
        return PyErr_Format(PyExc_TypeError, "the source is no checkpoint");
    struct checkpoint_object *checkpoint = (struct checkpoint_object *)source;
    if (call_begin(&call, run) && (target == Py_None || (path = kept_text(call.kept, target))) &&
        options_take(call.kept, given, convert_members, &options)) {
        if (checkpoint_enter(checkpoint, true)) {
            Py_BEGIN_ALLOW_THREADS
            call.status = function
                              ? function(checkpoint->handle, path, &options, &call.running.options, &report, &call.err)
                              : reshard_preview(checkpoint->handle, path, &options, &call.running.options, &report, &preview, &call.err);
            Py_END_ALLOW_THREADS
            checkpoint_leave(checkpoint, true);
            PyObject *ended = running_end(&call.running, call.status, &call.err);
            if (ended)
                out = preview ? Py_BuildValue("NN", report_to_python(&report), checkpoint_new(preview, NULL)) : report_to_python(&report);
            else
                reshard_close(preview);
            Py_XDECREF(ended);
            reshard_report_release(&report);
        }
    }
    call_end(&call);
    return out;
}

static PyObject *call_convert(PyObject *module, PyObject *arguments)
{
    (void)module;
    return run_conversion(arguments, reshard_convert);
}

static PyObject *call_plan(PyObject *module, PyObject *arguments)
{
    (void)module;
    return run_conversion(arguments, reshard_estimate);
}

static PyObject *call_preview(PyObject *module, PyObject *arguments)
{
    (void)module;
    return run_conversion(arguments, NULL);
}

static PyObject *call_commit(PyObject *module, PyObject *arguments)
{
    (void)module;
    return run_conversion(arguments, reshard_commit);
}

/* ---- checking ---- */

/* What a sink fills. */
struct collecting {
    PyObject *list;
    struct running *running;
};

/* Takes the reference. */
static int collect(struct collecting *collecting, PyObject *member)
{
    int stops = 0;
    if (!member || PyList_Append(collecting->list, member) != 0)
        stops = running_stop(collecting->running);
    Py_XDECREF(member);
    return stops;
}

static int take_finding(const reshard_finding *finding, void *context)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *member =
        Py_BuildValue("sNNLLKd", finding->kind, text_of(finding->key), text_of_c(finding->text), (long long)finding->severity,
                      (long long)finding->index, (unsigned long long)finding->count, finding->max_difference);
    int stops = collect(context, member);
    PyGILState_Release(state);
    return stops;
}

static int take_uncovered(reshard_str key, uint64_t bytes, void *context)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int stops = collect(context, Py_BuildValue("NK", text_of(key), (unsigned long long)bytes));
    PyGILState_Release(state);
    return stops;
}

static PyObject *coverage_dict(const reshard_coverage *coverage)
{
    return Py_BuildValue("{sKsKsKsKsKsKsKsNsNsKsKsK}", "tensors", (unsigned long long)coverage->tensors, "bytes",
                         (unsigned long long)coverage->bytes, "checked_tensors", (unsigned long long)coverage->checked_tensors,
                         "checked_bytes", (unsigned long long)coverage->checked_bytes, "items", (unsigned long long)coverage->items,
                         "checked_items", (unsigned long long)coverage->checked_items, "replicas", (unsigned long long)coverage->replicas,
                         "names_are_checked", PyBool_FromLong(coverage->names_are_checked), "has_sidecar",
                         PyBool_FromLong(coverage->has_sidecar), "elements", (unsigned long long)coverage->elements, "read_bytes",
                         (unsigned long long)coverage->read_bytes, "checksums", (unsigned long long)coverage->checksums);
}

/* verify(comm or None, make): (is good, findings, coverage, uncovered). make() is (checkpoint, options, run) */
static PyObject *call_verify(PyObject *module, PyObject *arguments)
{
    PyObject *group, *make, *made = NULL, *source, *given, *run, *out = NULL;
    struct checkpoint_object *checkpoint = NULL;
    struct call call = { .kept = NULL };
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    reshard_coverage coverage = RESHARD_COVERAGE_INIT;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &group, &make))
        return NULL;
    struct collecting findings = { PyList_New(0), &call.running }, uncovered = { PyList_New(0), &call.running };
    const bool is_ready = findings.list && uncovered.list && (made = PyObject_CallNoArgs(make)) &&
                          PyArg_ParseTuple(made, "OOO", &source, &given, &run) && call_begin(&call, run) &&
                          options_take(call.kept, given, verify_members, &options) && checkpoint_take(source, &checkpoint);
    if (comm_hold_ready(group, is_ready, &call.running.options.comm)) {
        options.coverage = &coverage;
        options.uncovered = take_uncovered;
        options.context = &uncovered;
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_verify(checkpoint->handle, &options, &call.running.options, take_finding, &findings, &call.err);
        Py_END_ALLOW_THREADS
        comm_release(group);
        out = call_result(&call, Py_BuildValue("NOON", PyBool_FromLong(call.status == RESHARD_OK), findings.list, uncovered.list,
                                               coverage_dict(&coverage)));
    }
    if (checkpoint)
        checkpoint_leave(checkpoint, true);
    Py_XDECREF(made);
    Py_XDECREF(findings.list);
    Py_XDECREF(uncovered.list);
    call_end(&call);
    return out;
}

static int take_difference(const reshard_diff_tensor *tensor, void *context)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *member = Py_BuildValue("NLKKKdd", text_of(tensor->key), (long long)tensor->outcome, (unsigned long long)tensor->elements,
                                     (unsigned long long)tensor->bytes, (unsigned long long)tensor->changed_elements,
                                     tensor->max_difference, tensor->max_relative);
    int stops = collect(context, member);
    PyGILState_Release(state);
    return stops;
}

static PyObject *summary_dict(const reshard_diff_summary *summary)
{
    return Py_BuildValue(
        "{sKsKsKsKsKsKsKsKsKsKsKsKsKsKsdsd}", "tensors", (unsigned long long)summary->tensors, "same_tensors",
        (unsigned long long)summary->same_tensors, "changed_tensors", (unsigned long long)summary->changed_tensors, "missing_tensors",
        (unsigned long long)summary->missing_tensors, "unexpected_tensors", (unsigned long long)summary->unexpected_tensors,
        "reshaped_tensors", (unsigned long long)summary->reshaped_tensors, "retyped_tensors", (unsigned long long)summary->retyped_tensors,
        "explained_tensors", (unsigned long long)summary->explained_tensors, "items", (unsigned long long)summary->items, "different_items",
        (unsigned long long)summary->different_items, "elements", (unsigned long long)summary->elements, "bytes",
        (unsigned long long)summary->bytes, "changed_elements", (unsigned long long)summary->changed_elements, "changed_bytes",
        (unsigned long long)summary->changed_bytes, "max_difference", summary->max_difference, "max_relative", summary->max_relative);
}

/* diff(comm or None, make): (is same, findings, tensors, summary). make() is (a, b, options, run) */
static PyObject *call_diff(PyObject *module, PyObject *arguments)
{
    PyObject *group, *make, *made = NULL, *first, *second, *given, *run, *out = NULL;
    struct checkpoint_object *a = NULL, *b = NULL;
    struct call call = { .kept = NULL };
    reshard_diff_options options = RESHARD_DIFF_OPTIONS_INIT;
    reshard_diff_summary summary = RESHARD_DIFF_SUMMARY_INIT;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &group, &make))
        return NULL;
    struct collecting findings = { PyList_New(0), &call.running }, tensors = { PyList_New(0), &call.running };
    const bool is_ready = findings.list && tensors.list && (made = PyObject_CallNoArgs(make)) &&
                          PyArg_ParseTuple(made, "OOOO", &first, &second, &given, &run) && call_begin(&call, run) &&
                          options_take(call.kept, given, diff_members, &options) &&
                          (first != second || PyErr_Format(PyExc_TypeError, "two checkpoints are compared")) &&
                          checkpoint_take(first, &a) && checkpoint_take(second, &b);
    if (comm_hold_ready(group, is_ready, &call.running.options.comm)) {
        options.summary = &summary;
        options.tensor = take_difference;
        options.context = &tensors;
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_diff(a->handle, b->handle, &options, &call.running.options, take_finding, &findings, &call.err);
        Py_END_ALLOW_THREADS
        comm_release(group);
        out = call_result(&call, Py_BuildValue("NOON", PyBool_FromLong(call.status == RESHARD_OK), findings.list, tensors.list,
                                               summary_dict(&summary)));
    }
    if (b)
        checkpoint_leave(b, true);
    if (a)
        checkpoint_leave(a, true);
    Py_XDECREF(made);
    Py_XDECREF(findings.list);
    Py_XDECREF(tensors.list);
    call_end(&call);
    return out;
}

static int take_digest(size_t tensor, const char *hex, void *context)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int stops = collect(context, Py_BuildValue("ns", (Py_ssize_t)tensor, hex));
    PyGILState_Release(state);
    return stops;
}

/* hash(comm or None, make): [(tensor, hex), …]. make() is (checkpoint, digest, run) */
static PyObject *call_hash(PyObject *module, PyObject *arguments)
{
    PyObject *group, *make, *made = NULL, *source, *run, *out = NULL;
    struct checkpoint_object *checkpoint = NULL;
    const char *digest;
    struct call call = { .kept = NULL };
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO", &group, &make))
        return NULL;
    struct collecting digests = { PyList_New(0), &call.running };
    const bool is_ready = digests.list && (made = PyObject_CallNoArgs(make)) && PyArg_ParseTuple(made, "OsO", &source, &digest, &run) &&
                          call_begin(&call, run) && checkpoint_take(source, &checkpoint);
    if (comm_hold_ready(group, is_ready, &call.running.options.comm)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_hash(checkpoint->handle, digest, &call.running.options, take_digest, &digests, &call.err);
        Py_END_ALLOW_THREADS
        comm_release(group);
        out = call_result(&call, Py_NewRef(digests.list));
    }
    if (checkpoint)
        checkpoint_leave(checkpoint, true);
    Py_XDECREF(made);
    Py_XDECREF(digests.list);
    call_end(&call);
    return out;
}

static PyObject *bins_list(const uint64_t *bins)
{
    PyObject *list = PyList_New(RESHARD_STATS_BINS);
    for (int i = 0; list && i < RESHARD_STATS_BINS; i++)
        if (PyList_SetItem(list, i, PyLong_FromUnsignedLongLong(bins[i])) != 0)
            Py_CLEAR(list);
    return list;
}

static int take_stats(size_t tensor, const reshard_tensor_stats *stats, void *context)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *member = Py_BuildValue("n{sKsKsKsKsKsNsdsdsdsdsdsNsN}", (Py_ssize_t)tensor, "count", (unsigned long long)stats->count,
                                     "nan_count", (unsigned long long)stats->nan_count, "inf_count", (unsigned long long)stats->inf_count,
                                     "zero_count", (unsigned long long)stats->zero_count, "subnormal_count",
                                     (unsigned long long)stats->subnormal_count, "is_opaque", PyBool_FromLong(stats->is_opaque != 0), "min",
                                     stats->min, "max", stats->max, "mean", stats->mean, "deviation", stats->deviation, "norm", stats->norm,
                                     "negative", bins_list(stats->negative), "positive", bins_list(stats->positive));
    int stops = collect(context, member);
    PyGILState_Release(state);
    return stops;
}

/* stats(checkpoint, options, run): [(tensor, statistics), …] */
static PyObject *call_stats(PyObject *module, PyObject *arguments)
{
    PyObject *source, *given, *run, *out = NULL;
    struct call call;
    reshard_stats_options options = RESHARD_STATS_OPTIONS_INIT;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO", &source, &given, &run))
        return NULL;
    if (!checkpoint_is(source))
        return PyErr_Format(PyExc_TypeError, "there are statistics of checkpoints only");
    struct checkpoint_object *checkpoint = (struct checkpoint_object *)source;
    struct collecting found = { PyList_New(0), &call.running };
    if (call_begin(&call, run) && found.list && options_take(call.kept, given, stats_members, &options) &&
        checkpoint_enter(checkpoint, true)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_stats(checkpoint->handle, &options, &call.running.options, take_stats, &found, &call.err);
        Py_END_ALLOW_THREADS
        checkpoint_leave(checkpoint, true);
        out = call_result(&call, Py_NewRef(found.list));
    }
    Py_XDECREF(found.list);
    call_end(&call);
    return out;
}

/* salvage(path, target, options, run): (is all there, findings, counts) */
static PyObject *call_salvage(PyObject *module, PyObject *arguments)
{
    PyObject *path, *target, *given, *run, *out = NULL;
    struct call call;
    reshard_salvage_options options = RESHARD_SALVAGE_OPTIONS_INIT;
    reshard_salvage_counts counts = RESHARD_SALVAGE_COUNTS_INIT;
    const char *from, *to;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO", &path, &target, &given, &run))
        return NULL;
    struct collecting findings = { PyList_New(0), &call.running };
    if (call_begin(&call, run) && findings.list && (from = kept_text(call.kept, path)) && (to = kept_text(call.kept, target)) &&
        options_take(call.kept, given, salvage_members, &options)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_salvage(from, to, &options, &call.running.options, take_finding, &findings, &counts, &call.err);
        Py_END_ALLOW_THREADS
        PyObject *numbers =
            Py_BuildValue("{sKsKsKsKsKsKsKsK}", "tensors", (unsigned long long)counts.tensors, "proved_tensors",
                          (unsigned long long)counts.proved_tensors, "unproved_tensors", (unsigned long long)counts.unproved_tensors,
                          "lost_tensors", (unsigned long long)counts.lost_tensors, "items", (unsigned long long)counts.items,
                          "proved_items", (unsigned long long)counts.proved_items, "unproved_items",
                          (unsigned long long)counts.unproved_items, "lost_items", (unsigned long long)counts.lost_items);
        out = call_result(&call, Py_BuildValue("NON", PyBool_FromLong(call.status == RESHARD_OK), findings.list, numbers));
    }
    Py_XDECREF(findings.list);
    call_end(&call);
    return out;
}

/* latest_good(root, open options, verify options, run): its path, or None */
static PyObject *call_latest_good(PyObject *module, PyObject *arguments)
{
    PyObject *root, *given_open, *given, *run, *out = NULL;
    struct call call;
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    const char *text;
    char *path = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO", &root, &given_open, &given, &run))
        return NULL;
    if (call_begin(&call, run) && (text = kept_text(call.kept, root)) && options_take(call.kept, given_open, open_members, &open) &&
        options_take(call.kept, given, verify_members, &options)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = reshard_latest_good(text, &open, &options, &call.running.options, NULL, NULL, &path, &call.err);
        Py_END_ALLOW_THREADS
        out = call_result(&call, text_of_c(path));
        reshard_free(path);
    }
    call_end(&call);
    return out;
}

/* ---- what there is ---- */

static PyObject *format_option_tuple(const void *format, size_t i)
{
    reshard_format_option option = RESHARD_FORMAT_OPTION_INIT;
    reshard_format_option_at(*(const size_t *)format, i, &option);
    return Py_BuildValue("ssss", option.name, option.type, option.default_value, option.help);
}

static PyObject *format_words_list(size_t format)
{
    PyObject *list = PyList_New(0);
    reshard_format_word word = RESHARD_FORMAT_WORD_INIT;
    for (size_t i = 0; list && !reshard_format_word_at(format, i, &word); i++) {
        PyObject *member = Py_BuildValue("ss", word.name, word.help);
        if (!member || PyList_Append(list, member) != 0)
            Py_CLEAR(list);
        Py_XDECREF(member);
        word = (reshard_format_word)RESHARD_FORMAT_WORD_INIT;
    }
    return list;
}

/* formats(): [(name, summary, reads, writes, is a directory, holds items, options, layout words), …] */
static PyObject *format_tuple(const void *none, size_t i)
{
    (void)none;
    reshard_format format = RESHARD_FORMAT_INIT;
    reshard_format_at(i, &format);
    return Py_BuildValue("ssNNNNNN", format.name, format.summary, PyBool_FromLong(format.reads), PyBool_FromLong(format.writes),
                         PyBool_FromLong(format.is_directory), PyBool_FromLong(format.holds_items),
                         list_made(&i, format.option_count, format_option_tuple), format_words_list(i));
}

static PyObject *call_formats(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return list_made(NULL, reshard_format_count(), format_tuple);
}

/* dtypes(): [(name, torch's name, bits), …] */
static PyObject *dtype_tuple(const void *none, size_t i)
{
    (void)none;
    reshard_dtype dtype = RESHARD_DTYPE_INIT;
    reshard_dtype_at(i, &dtype);
    return Py_BuildValue("ssK", dtype.name, dtype.torch_name, (unsigned long long)dtype.bits);
}

static PyObject *call_dtypes(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return list_made(NULL, reshard_dtype_count(), dtype_tuple);
}

/* limits(): [(name, help, default), …] */
static PyObject *limit_tuple(const void *none, size_t i)
{
    (void)none;
    reshard_limit limit = RESHARD_LIMIT_INIT;
    reshard_limit_at(i, &limit);
    return Py_BuildValue("ssK", limit.name, limit.help, (unsigned long long)limit.default_value);
}

static PyObject *call_limits(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return list_made(NULL, reshard_limit_count(), limit_tuple);
}

static PyObject *call_version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(reshard_version());
}

PyMethodDef calls_methods[] = {
    { "open", call_open, METH_VARARGS, NULL },
    { "open_state", call_open_state, METH_VARARGS, NULL },
    { "convert", call_convert, METH_VARARGS, NULL },
    { "plan", call_plan, METH_VARARGS, NULL },
    { "preview", call_preview, METH_VARARGS, NULL },
    { "commit", call_commit, METH_VARARGS, NULL },
    { "verify", call_verify, METH_VARARGS, NULL },
    { "diff", call_diff, METH_VARARGS, NULL },
    { "hash", call_hash, METH_VARARGS, NULL },
    { "stats", call_stats, METH_VARARGS, NULL },
    { "salvage", call_salvage, METH_VARARGS, NULL },
    { "latest_good", call_latest_good, METH_VARARGS, NULL },
    { "formats", call_formats, METH_NOARGS, NULL },
    { "dtypes", call_dtypes, METH_NOARGS, NULL },
    { "dlpack_layout", call_dlpack_layout, METH_O, NULL },
    { "limits", call_limits, METH_NOARGS, NULL },
    { "version", call_version, METH_NOARGS, NULL },
    { NULL, NULL, 0, NULL },
};
