/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes over shared memory: random layouts against the naive model, and what becomes of the others when a process is killed, is late,
 * or leaves; that no segment is left; that what is not this user's is refused; messages made in the shared memory itself, and sources that
 * lie in it; and what a process that goes astray writes there.
 */
#include "check.h"

#include "comm/comm_transport.h"
#include "comm/layouts.h"
#include "../../fuzz/stray.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CASES 150

static char group[64];

static char *segment_name(void)
{
    static char name[128];
    snprintf(name, sizeof(name), "/reshard-%u-%s", (unsigned)geteuid(), group);
    return name;
}

static int segment_is_left(void)
{
    int fd = shm_open(segment_name(), O_RDONLY, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

typedef int (*process_run)(reshard_comm *comm, int rank, int size);

/* Runs a function as every rank, in processes of their own: by rank, what it returned, or 256 and more if it was killed. */
static void processes_run_all(int size, double timeout_seconds, process_run run, int *results)
{
    pid_t ids[LAYOUT_RANKS_MAX];
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        ids[rank] = fork();
        if (ids[rank])
            continue;
        reshard_error err = RESHARD_ERROR_INIT;
        reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
        reshard_comm *comm;
        options.timeout_seconds = timeout_seconds;
        if (reshard_comm_processes(group, rank, size, &options, &comm, &err)) {
            fprintf(stderr, "rank %d: %s\n", rank, err.message);
            _exit(99);
        }
        int result = run(comm, rank, size);
        reshard_comm_free(comm);
        exit(result); /* not _exit: lines that ran are counted */
    }
    for (int rank = 0; rank < size; rank++) {
        int status;
        waitpid(ids[rank], &status, 0);
        results[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
    }
    assert_false(segment_is_left());
}

/* Fills the targets of a layout, from memory of the group `shared` or, NULL, from the process's own. */
static bool process_fills(reshard_comm *comm, reshard_comm *shared, const struct layouts *layouts, uint64_t scratch_bytes,
                          reshard_redistribute_report *report)
{
    struct layout_rank own;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_redistribute_options options = RESHARD_REDISTRIBUTE_OPTIONS_INIT;
    options.scratch_bytes = scratch_bytes;
    reshard_status status = layout_rank_make_in(layouts, (int)reshard_comm_rank(comm), shared, &own, &err);
    if (!status)
        status = reshard_redistribute(comm, own.source, own.target, &options, report, &err);
    bool is_good = !status && layout_rank_is_good(layouts, &own) && report->bytes_moved == layouts_minimum(layouts);
    if (!is_good)
        fprintf(stderr, "%s, rank %d: %s\n", shared ? "shared" : "own memory", (int)reshard_comm_rank(comm), err.message);
    layout_rank_release(&own);
    return is_good;
}

/* Each layout from own memory and from the group's: the same bytes go from rank to rank, each one way. */
static int process_redistributes(reshard_comm *comm, int rank, int size)
{
    static struct layouts layouts;
    uint64_t sent = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        reshard_redistribute_report own = RESHARD_REDISTRIBUTE_REPORT_INIT, shared = RESHARD_REDISTRIBUTE_REPORT_INIT;
        const uint64_t scratch_bytes = UINT64_C(1) << seed % 20;
        layouts_make(&layouts, seed * 31, size);
        bool is_good = process_fills(comm, NULL, &layouts, scratch_bytes, &own) &&
                       process_fills(comm, comm, &layouts, scratch_bytes, &shared);
        if (!is_good || own.bytes_sent != shared.bytes_sent || own.bytes_received != shared.bytes_received) {
            fprintf(stderr, "seed %d, rank %d: sent %d and %d, received %d and %d\n", (int)seed, rank, (int)own.bytes_sent,
                    (int)shared.bytes_sent, (int)own.bytes_received, (int)shared.bytes_received);
            return 1;
        }
        sent += own.bytes_sent;
    }
    return sent || size == 1 ? 0 : 2;
}

TEST(random_layouts_over_processes)
{
    int results[LAYOUT_RANKS_MAX];
    for (int size = 1; size <= 5; size += 2) {
        processes_run_all(size, 30, process_redistributes, results);
        for (int rank = 0; rank < size; rank++)
            assert_int_equal(results[rank], 0);
    }
}

/* Rank 2 is killed at some point of a call, wherever that is; the others read its memory, or wait for it. */
static int process_dies_in_a_call(reshard_comm *comm, int rank, int size)
{
    static struct layouts layouts;
    struct layout_rank own;
    reshard_error err = RESHARD_ERROR_INIT;
    layouts_make(&layouts, 11, size);
    reshard_status status = layout_rank_make_in(&layouts, rank, comm, &own, &err);
    if (rank == size - 1)
        ualarm(40000, 0);
    while (!status)
        status = reshard_redistribute(comm, own.source, own.target, NULL, NULL, &err);
    layout_rank_release(&own);
    if (status == RESHARD_ERR_IO && strstr(err.message, "rank 2 has died"))
        return 0;
    fprintf(stderr, "status %d: '%s'\n", (int)status, err.message);
    return 1;
}

TEST(a_rank_that_dies_in_a_call_is_named)
{
    for (int i = 0; i < 5; i++) {
        int results[LAYOUT_RANKS_MAX];
        processes_run_all(3, 20, process_dies_in_a_call, results);
        assert_int_equal(results[0], 0);
        assert_int_equal(results[1], 0);
        assert_int_equal(results[2], 256 + SIGALRM);
    }
}

/* 0 if the group broke as it should have. */
static int process_expects(reshard_comm *comm, const char *text)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = reshard_comm_barrier(comm, &err);
    if (status == RESHARD_ERR_IO && strstr(err.message, text))
        return 0;
    fprintf(stderr, "status %d: '%s' lacks '%s'\n", (int)status, err.message, text);
    return 1;
}

static int process_is_killed(reshard_comm *comm, int rank, int size)
{
    if (rank == size - 1)
        raise(SIGKILL);
    return process_expects(comm, "rank 2 has died");
}

static int process_leaves(reshard_comm *comm, int rank, int size)
{
    return rank == size - 1 ? 0 : process_expects(comm, "rank 2 has left");
}

static int process_is_late(reshard_comm *comm, int rank, int size)
{
    if (rank == size - 1)
        usleep(1500000);
    return process_expects(comm, "rank 2 did not come within 0.5 s");
}

TEST(a_rank_that_goes_is_named_and_nothing_is_left)
{
    static const process_run faults[] = { process_is_killed, process_leaves, process_is_late };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        int results[LAYOUT_RANKS_MAX];
        processes_run_all(3, i == 2 ? 0.5 : 20, faults[i], results);
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(results[rank], i == 0 && rank == 2 ? 256 + SIGKILL : 0);
    }
}

static int process_does_nothing(reshard_comm *comm, int rank, int size)
{
    (void)comm, (void)rank, (void)size;
    return 0;
}

TEST(what_a_crash_left_is_taken_over)
{
    int results[LAYOUT_RANKS_MAX], fd = shm_open(segment_name(), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && ftruncate(fd, 4096) == 0);
    close(fd);
    processes_run_all(3, 20, process_does_nothing, results);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(results[rank], 0);
}

TEST(what_others_may_open_is_refused)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm *comm;
    int fd = shm_open(segment_name(), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && fchmod(fd, 0666) == 0);
    CHECK_FAILS(reshard_comm_processes(group, 0, 2, NULL, &comm, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "mode 666"));
    CHECK_FAILS(reshard_comm_processes(group, 1, 2, NULL, &comm, &err), RESHARD_ERR_USAGE);
    if (geteuid() == 0) {
        assert_true(fchmod(fd, 0600) == 0 && fchown(fd, 12345, 12345) == 0);
        CHECK_FAILS(reshard_comm_processes(group, 0, 2, NULL, &comm, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "user 12345"));
    }
    assert_true(segment_is_left());
    close(fd);
    shm_unlink(segment_name());
}

/* Another process that says it is rank 0 makes the segment between this one's look and its own making. */
static bool another_is_faster;
int __real_shm_open(const char *name, int flags, mode_t mode);
int __wrap_shm_open(const char *name, int flags, mode_t mode);
int __wrap_shm_open(const char *name, int flags, mode_t mode)
{
    if (another_is_faster && flags & O_EXCL)
        close(__real_shm_open(name, O_RDWR | O_CREAT, mode));
    return __real_shm_open(name, flags, mode);
}

TEST(of_two_that_are_rank_0_one_leaves_the_other_its_name)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm *comm;
    another_is_faster = true;
    CHECK_FAILS(reshard_comm_processes(group, 0, 2, NULL, &comm, &err), RESHARD_ERR_IO);
    another_is_faster = false;
    assert_true(segment_is_left());
    shm_unlink(segment_name());
}

TEST(a_rank_that_never_comes_is_named)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_comm *comm;
    options.timeout_seconds = 0.2;
    CHECK_FAILS(reshard_comm_processes(group, 0, 2, &options, &comm, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "rank 1 did not come"));
    assert_false(segment_is_left());
    CHECK_FAILS(reshard_comm_processes(group, 1, 2, &options, &comm, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "rank 0 did not come"));
}

TEST(a_name_of_a_group_is_checked)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_comm *comm;
    char name[COMM_NAME_MAX + 2];
    options.timeout_seconds = 5;
    CHECK_FAILS(reshard_comm_processes("a/b", 0, 2, &options, &comm, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_comm_processes("", 0, 1, &options, &comm, &err), RESHARD_ERR_USAGE);
    memset(name, 'n', sizeof(name));
    name[COMM_NAME_MAX + 1] = '\0';
    CHECK_FAILS(reshard_comm_processes(name, 0, 1, &options, &comm, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "1 to 100 letters"));
    snprintf(name, sizeof(name), "%d-%.60s", (int)getpid() % 10, group);
    for (size_t size = strlen(name); size < COMM_NAME_MAX; size++)
        name[size] = 'n', name[size + 1] = '\0';
    CHECK_OK(reshard_comm_processes(name, 0, 1, &options, &comm, &err));
    reshard_comm_free(comm);
    name[1] = '\0';
    CHECK_OK(reshard_comm_processes(name, 0, 1, &options, &comm, &err));
    reshard_comm_free(comm);
}

/* ---- windows ---- */

#define WINDOWS 200

static uint64_t window_size(const struct comm *comm, uint32_t from, int number)
{
    return number % 50 == 7 ? comm_window_bytes(comm) : ((uint64_t)number * 977 + from * 31) % comm_window_bytes(comm);
}

static void window_fill(uint8_t *place, uint64_t size, uint32_t from, int number)
{
    for (uint64_t i = 0; i < size; i++)
        place[i] = (uint8_t)(i * 7 + from * 13 + (uint64_t)number);
}

static bool window_is_good(const struct comm *comm, const uint8_t *place, uint64_t size, uint32_t from, int number)
{
    bool is_good = size == window_size(comm, from, number);
    for (uint64_t i = 0; is_good && i < size; i++)
        is_good = place[i] == (uint8_t)(i * 7 + from * 13 + (uint64_t)number);
    return is_good;
}

/* Sends as many as there is room for and takes what has come, until all have. */
static bool windows_pass_on(struct comm *comm, uint32_t other)
{
    struct comm_idle idle = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    for (int sent = 0, taken = 0; sent < WINDOWS || taken < WINDOWS;) {
        uint8_t *place = NULL;
        const uint8_t *came = NULL;
        uint64_t size;
        while (sent < WINDOWS && !comm_window_open(comm, other, &place, &err) && place) {
            window_fill(place, window_size(comm, comm_rank(comm), sent), comm_rank(comm), sent);
            comm_window_send(comm, other, window_size(comm, comm_rank(comm), sent++));
        }
        if (taken < WINDOWS && !comm_window_look(comm, other, &came, &size, &err) && came) {
            if (!window_is_good(comm, came, size, other, taken++))
                return false;
            comm_window_take(comm, other);
            idle = (struct comm_idle){ 0 };
        } else if (comm_window_wait(comm, "windows", other, &idle, &err)) {
            fprintf(stderr, "%s\n", err.message);
            return false;
        }
    }
    return true;
}

/* Frames that follow each other leave the ring where no slot begins. */
static int process_passes_windows(reshard_comm *given, int rank, int size)
{
    struct comm *comm;
    reshard_error err = RESHARD_ERROR_INIT;
    char name[80];
    (void)given;
    snprintf(name, sizeof(name), "%.60s-windows", group);
    if (comm_processes_new(name, (uint32_t)rank, (uint32_t)size, &(struct comm_patience){ .timeout_seconds = 20 }, &comm, &err))
        return 1;
    int result = 0;
    for (int round = 0; round < 3 && !result; round++) {
        struct comm_gathered all = { 0 };
        uint8_t bytes[1001];
        memset(bytes, rank, sizeof(bytes));
        if (comm_all_gather(comm, "gather", bytes, sizeof(bytes) - (size_t)(round + rank), &all, &err))
            result = 2;
        else if (all.parts[1 - rank].size != sizeof(bytes) - (size_t)(round + 1 - rank) || all.parts[1 - rank].data[900] != 1 - rank)
            result = 3;
        else if (!windows_pass_on(comm, 1 - (uint32_t)rank))
            result = 4;
        comm_gathered_release(&all);
    }
    comm_free(comm);
    return result;
}

TEST(windows_pass_in_order_behind_other_messages)
{
    int results[LAYOUT_RANKS_MAX];
    processes_run_all(2, 20, process_passes_windows, results);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], 0);
}

/* Messages that go around the end of a ring, in pieces that fit nowhere evenly. */
static int process_gathers_much(reshard_comm *given, int rank, int size)
{
    enum { BYTES = 3000017 };
    struct comm *comm;
    reshard_error err = RESHARD_ERROR_INIT;
    char name[80];
    uint8_t *bytes = malloc(BYTES);
    (void)given;
    snprintf(name, sizeof(name), "%.60s-rings", group);
    if (!bytes || comm_processes_new(name, (uint32_t)rank, (uint32_t)size, &(struct comm_patience){ .timeout_seconds = 20 }, &comm, &err))
        return 1;
    for (uint32_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> (24 - rank));
    int result = 0;
    for (size_t round = 0; round < 3 && !result; round++) {
        struct comm_gathered all = { 0 };
        const size_t sent = BYTES - 1009 * round;
        if (comm_all_gather(comm, "gather", bytes, sent, &all, &err))
            result = 2;
        for (int r = 0; r < size && !result; r++) {
            const uint8_t *part = (const uint8_t *)all.parts[r].data;
            result = all.parts[r].size == sent ? 0 : 3;
            for (uint32_t i = 0; i < sent && !result; i++)
                result = part[i] == (uint8_t)(i * 2654435761u >> (24 - r)) ? 0 : 4;
        }
        comm_gathered_release(&all);
    }
    comm_free(comm);
    free(bytes);
    return result;
}

TEST(messages_go_around_the_end_of_a_ring)
{
    int results[LAYOUT_RANKS_MAX];
    processes_run_all(3, 20, process_gathers_much, results);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(results[rank], 0);
}

/* ---- a process that goes astray ---- */

static void frame_put(const struct stray *stray, uint32_t kind, uint64_t size)
{
    const struct {
        uint32_t kind, reserved;
        uint64_t size;
    } frame = { kind, 0, size };
    stray_data(stray, STRAY_SENT, 0, &frame, sizeof(frame));
}

static reshard_status stray_receives(struct comm *comm, reshard_error *err)
{
    uint8_t memory[100];
    reshard_status status = comm_recv(comm, 0, memory, sizeof(memory), err);
    return status ? status : comm_run(comm, "receive", err);
}

static reshard_status stray_sends(struct comm *comm, reshard_error *err)
{
    reshard_status status = comm_send(comm, 0, "bytes", 5, err);
    return status ? status : comm_run(comm, "send", err);
}

static reshard_status stray_gathers(struct comm *comm, reshard_error *err)
{
    struct comm_gathered all = { 0 };
    reshard_status status = comm_all_gather(comm, "gather", "bytes", 5, &all, err);
    comm_gathered_release(&all);
    return status;
}

static reshard_status stray_looks(struct comm *comm, reshard_error *err)
{
    const uint8_t *place;
    uint64_t size;
    return comm_window_look(comm, 0, &place, &size, err);
}

static reshard_status stray_opens(struct comm *comm, reshard_error *err)
{
    uint8_t *place;
    return comm_window_open(comm, 0, &place, err);
}

/* How many messages there is room for. */
static int windows_open_now(struct comm *comm)
{
    int count = 0;
    uint8_t *place;
    reshard_error err = RESHARD_ERROR_INIT;
    while (count < 100 && !comm_window_open(comm, 0, &place, &err) && place) {
        memset(place, count++, comm_window_bytes(comm));
        comm_window_send(comm, 0, comm_window_bytes(comm));
    }
    return count;
}

TEST(windows_wait_for_their_reader)
{
    struct stray stray;
    reshard_error err = RESHARD_ERROR_INIT;
    const uint64_t slot = STRAY_SLOT_BYTES;
    assert_true(stray_open(&stray, 5, &err));
    assert_int_equal(windows_open_now(stray.comm), 4);
    stray_read(&stray, STRAY_RECEIVED, slot - 1);
    assert_int_equal(windows_open_now(stray.comm), 0);
    stray_read(&stray, STRAY_RECEIVED, 3 * slot);
    assert_int_equal(windows_open_now(stray.comm), 3);
    stray_read(&stray, STRAY_RECEIVED, 7 * slot);
    assert_int_equal(stray_sends(stray.comm, &err), 0);
    assert_int_equal(windows_open_now(stray.comm), 3); /* the rest of a slot that is begun is passed over */
    stray_close(&stray);
}

/* Places that no rank has made, and what rank 1 has made itself: behind the rings, which end in the middle of a page. */
TEST(a_place_of_another_rank_leads_nowhere_else)
{
    struct stray stray;
    reshard_error err = RESHARD_ERROR_INIT;
    uint8_t *memory;
    const uint8_t *found = NULL;
    uint64_t place = 0;
    assert_true(stray_open(&stray, 5, &err));
    assert_true(comm_has_memory(stray.comm));
    assert_false(comm_memory_is_made(stray.comm));
    CHECK_FAILS(comm_memory_look(stray.comm, "call", 0, (STRAY_BYTES + 4095) / 4096 * 4096, 1, &found, &err), RESHARD_ERR_IO);
    CHECK_OK(comm_memory_new(stray.comm, 5000, &memory, &err));
    assert_true(comm_memory_is_made(stray.comm));
    assert_int_equal(memory[8191], 0);
    memory[8191] = 9;
    assert_true(comm_memory_find(stray.comm, memory, 8192, &place));
    assert_false(comm_memory_find(stray.comm, memory, 8193, &place));
    assert_false(comm_memory_find(stray.comm, memory + 8192, 1, &place));
    assert_false(comm_memory_find(stray.comm, memory - 1, 1, &place));
    CHECK_OK(comm_memory_look(stray.comm, "call", 0, place, 8192, &found, &err));
    assert_int_equal(found[8191], 9);
    const struct {
        uint64_t place, size;
    } bad[] = { { 0, 1 },  { STRAY_BYTES - 1, 1 }, { place - 1, 2 },  { place, 8193 },       { place + 8192, 1 },
                { place, UINT64_MAX }, { UINT64_MAX - 1, 1 }, { UINT64_MAX - 1, 2 }, { INT64_MAX, 1 } };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_FAILS(comm_memory_look(stray.comm, "call", 0, bad[i].place, bad[i].size, &found, &err), RESHARD_ERR_IO);
        assert_non_null(strstr(err.message, "rank 0 names"));
    }
    comm_memory_free(stray.comm, memory);
    CHECK_OK(comm_memory_look(stray.comm, "call", 0, place, 8192, &found, &err));
    assert_int_equal(found[8191], 0); /* its pages went back */
    CHECK_FAILS(comm_memory_new(stray.comm, INT64_MAX / 2, &memory, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.hint, "/dev/shm"));
    assert_null(memory);
    stray_put_u64(&stray, STRAY_MADE, UINT64_MAX - 1); /* another rank's nonsense */
    CHECK_FAILS(comm_memory_new(stray.comm, 1, &memory, &err), RESHARD_ERR_LIMIT);
    stray_close(&stray);
}

TEST(a_stray_process_is_an_error_of_the_call)
{
    static const struct {
        reshard_status (*call)(struct comm *comm, reshard_error *err);
        uint64_t written, read; /* what rank 0 says it has sent, and received */
        uint32_t kind;
        uint64_t size;
        const char *message;
    } cases[] = {
        { stray_receives, STRAY_RING_BYTES + 1, 0, 2, 100, "memory between rank 1 and rank 0 is damaged" },
        { stray_receives, UINT64_MAX, 0, 2, 100, "memory between rank 1 and rank 0 is damaged" },
        { stray_receives, 116, 0, 2, 101, "rank 0 sends 101 bytes, rank 1 expects 100" },
        { stray_receives, 116, 0, 1, 100, "rank 0 is in another call than rank 1" },
        { stray_receives, 15, 0, 2, 100, "rank 0 did not come" },
        { stray_sends, 0, 1, 0, 0, "memory between rank 1 and rank 0 is damaged" },
        { stray_gathers, 16, 0, 1, UINT64_MAX, "rank 0 gathers 18446744073709551615 bytes" },
        { stray_gathers, 16, 0, 3, 0, "rank 0 is in another call than rank 1" },
        { stray_looks, STRAY_RING_BYTES + 1, 0, 3, 9, "memory between rank 1 and rank 0 is damaged" },
        { stray_looks, STRAY_SLOT_BYTES, 0, 2, 9, "rank 0 is in another call than rank 1" },
        { stray_opens, 0, 1, 0, 0, "memory between rank 1 and rank 0 is damaged" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stray stray;
        reshard_error err = RESHARD_ERROR_INIT;
        assert_true(stray_open(&stray, 0.2, &err));
        frame_put(&stray, cases[i].kind, cases[i].size);
        stray_written(&stray, STRAY_SENT, cases[i].written);
        stray_read(&stray, STRAY_RECEIVED, cases[i].read);
        if (!cases[i].call(stray.comm, &err) || !strstr(err.message, cases[i].message))
            fail_msg("case %zu: '%s' lacks '%s'", i, err.message, cases[i].message);
        stray_close(&stray);
    }
}

/* A rank that dies while it writes why it gives up holds the others up once, and no longer than the group's timeout. */
TEST(a_reason_that_does_not_come_is_waited_for_once)
{
    struct stray stray;
    struct comm_idle idle = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    struct timespec began, ended;
    const uint32_t writing = 1;
    assert_true(stray_open(&stray, 0.2, &err));
    stray_put(&stray, STRAY_OVER, &writing, sizeof(writing));
    clock_gettime(CLOCK_MONOTONIC, &began);
    CHECK_FAILS(comm_window_wait(stray.comm, "windows", 0, &idle, &err), RESHARD_ERR_IO);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    assert_string_equal(err.message, "another rank has given up");
    uint32_t over;
    memcpy(&over, stray.memory + STRAY_OVER, sizeof(over));
    assert_int_equal(over, 3);
    assert_true((double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9 < 0.9);
    stray_close(&stray);
}

/* ---- a small /dev/shm: of a program in a place of its own, which `unshare` gives ---- */

static const char *program;

static void small_mount(const char *size)
{
    char data[32];
    snprintf(data, sizeof(data), "size=%s", size);
    assert_int_equal(mount("none", "/dev/shm", "tmpfs", 0, data), 0);
}

/* 0 if every rank gathers a byte of each other's number, a megabyte from each. */
static int small_gathers(reshard_comm *comm, int rank, int size)
{
    enum { BYTES = 1 << 20 };
    reshard_error err = RESHARD_ERROR_INIT;
    const void *parts[LAYOUT_RANKS_MAX];
    size_t sizes[LAYOUT_RANKS_MAX];
    void *all = NULL;
    uint8_t *bytes = malloc(BYTES);
    if (!bytes)
        return 1;
    memset(bytes, rank, BYTES);
    int result = reshard_comm_all_gather(comm, bytes, BYTES, parts, sizes, &all, &err) ? 2 : 0;
    for (int r = 0; r < size && !result; r++)
        result = sizes[r] == BYTES && ((const uint8_t *)parts[r])[BYTES - 1] == r ? 0 : 3;
    reshard_free(all);
    free(bytes);
    return result;
}

/* What is left of it is taken, as far as it goes: the rings have their pages already. */
static int small_fills(reshard_comm *comm, int rank, int size)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = RESHARD_OK;
    int blocks = 0;
    void *memory;
    while (rank == 0 && !status && blocks++ < 1000)
        status = reshard_comm_memory_new(comm, 65536, &memory, &err);
    if (rank == 0 && (status != RESHARD_ERR_IO || blocks < 17)) /* a megabyte, of the half that rings leave */
        return 4;
    return reshard_comm_barrier(comm, &err) ? 5 : small_gathers(comm, rank, size);
}

TEST(rings_that_are_made_have_their_pages)
{
    static const struct {
        const char *room;
        int ranks;
    } cases[] = { { "4m", 2 }, { "64m", 8 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int results[LAYOUT_RANKS_MAX];
        small_mount(cases[i].room);
        processes_run_all(cases[i].ranks, 20, small_fills, results);
        for (int rank = 0; rank < cases[i].ranks; rank++)
            assert_int_equal(results[rank], 0);
    }
}

TEST(a_group_for_which_there_is_no_room_says_so)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm *comm;
    small_mount("128k");
    CHECK_FAILS(reshard_comm_processes(group, 0, 8, NULL, &comm, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "shared memory of 278528 bytes for a group of 8 processes"));
    assert_non_null(strstr(err.hint, "--shm-size"));
    assert_false(segment_is_left());
}

static int small_main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_that_are_made_have_their_pages),
        cmocka_unit_test(a_group_for_which_there_is_no_room_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

TEST(where_shared_memory_is_small_rings_are_short)
{
    char command[4200];
    if (system("unshare -rm mount -t tmpfs none /dev/shm 2>/dev/null") != 0)
        skip();
    /* Its lines are not cases of this program. */
    snprintf(command, sizeof(command), "CMOCKA_MESSAGE_OUTPUT=STDOUT unshare -rm '%s' small >&2", program);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_layouts_over_processes),
        cmocka_unit_test(a_rank_that_goes_is_named_and_nothing_is_left),
        cmocka_unit_test(a_rank_that_dies_in_a_call_is_named),
        cmocka_unit_test(what_a_crash_left_is_taken_over),
        cmocka_unit_test(what_others_may_open_is_refused),
        cmocka_unit_test(of_two_that_are_rank_0_one_leaves_the_other_its_name),
        cmocka_unit_test(a_rank_that_never_comes_is_named),
        cmocka_unit_test(a_name_of_a_group_is_checked),
        cmocka_unit_test(windows_pass_in_order_behind_other_messages),
        cmocka_unit_test(messages_go_around_the_end_of_a_ring),
        cmocka_unit_test(windows_wait_for_their_reader),
        cmocka_unit_test(a_reason_that_does_not_come_is_waited_for_once),
        cmocka_unit_test(a_stray_process_is_an_error_of_the_call),
        cmocka_unit_test(a_place_of_another_rank_leads_nowhere_else),
        cmocka_unit_test(where_shared_memory_is_small_rings_are_short),
    };
    snprintf(group, sizeof(group), "test-%d", (int)getpid());
    program = argv[0];
    if (argc > 1)
        return small_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
