/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include "output.h"

#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define EXIT_INTERRUPTED 130
#define COLUMNS_USUAL 80 /* of terminals that do not say */
#define BAR_MIN 8
#define BAR_MAX 30
#define PARTS 4 /* beside the bar: size, rate, time that is left, memory */
#define PART_MAX 32

static volatile sig_atomic_t interrupted, is_writing;

static void on_signal(int number)
{
    (void)number;
    if (!is_writing)
        _exit(EXIT_INTERRUPTED);
    interrupted = 1;
}

void install_signals(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND }, old;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGQUIT, &action, NULL);
    /* nohup has it ignored, and that is meant. */
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    /* Whoever reads the progress may go: that is no reason to leave a conversion half done. Writes tell when standard output is gone. */
    signal(SIGPIPE, SIG_IGN);
    /* The same of a limit on the size of files (ulimit -f): calls tell, and what was begun is removed. */
    signal(SIGXFSZ, SIG_IGN);
}

bool signals_end_at_once(void)
{
    is_writing = 0;
    return interrupted;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

enum style { STYLE_NONE, STYLE_BAR, STYLE_PLAIN, STYLE_JSON };

static enum style style_of(const struct options *options)
{
    const char *choice = options->progress ? options->progress : "auto";
    if (strcmp(choice, "auto") == 0)
        return !options->quiet && !options->json && isatty(STDERR_FILENO) ? STYLE_BAR : STYLE_NONE;
    if (strcmp(choice, "bar") == 0)
        return isatty(STDERR_FILENO) ? STYLE_BAR : STYLE_PLAIN;
    return strcmp(choice, "plain") == 0 ? STYLE_PLAIN : strcmp(choice, "json") == 0 ? STYLE_JSON : STYLE_NONE;
}

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : COLUMNS_USUAL;
}

/* In one row of the terminal, because no more is taken away again: what does not fit beside the bar is left out, the last first. */
static void draw_bar(const char *what, double share, const char parts[PARTS][PART_MAX])
{
    char bar[BAR_MAX + 1], tail[PARTS * (PART_MAX + 2) + 1];
    const int room = terminal_columns() - 1; /* a full row would move some terminals to the next one */
    int width, kept = PARTS + 1;
    do {
        kept--;
        tail[0] = '\0';
        for (int i = 0; i < kept; i++)
            strcat(strcat(tail, "  "), parts[i]);
        width = room - (int)(strlen(what) + strlen(" [] 100%") + strlen(tail));
    } while (width < BAR_MIN && kept > 0);
    width = width > BAR_MAX ? BAR_MAX : width;
    for (int i = 0; i < width; i++)
        bar[i] = i < (int)(share * width) ? '#' : '-';
    if (width >= BAR_MIN)
        fprintf(stderr, "\r%s [%.*s] %3.0f%%%s\x1b[K", what, width, bar, share * 100, tail);
    else if (room >= (int)strlen("100%"))
        fprintf(stderr, "\r%3.0f%%\x1b[K", share * 100);
    fflush(stderr);
}

static void draw(struct progress *display, enum style style, const reshard_progress *progress, double elapsed)
{
    double share = progress->bytes_total ? (double)progress->bytes_done / (double)progress->bytes_total : 1;
    double rate = elapsed > 0 ? (double)progress->bytes_done / elapsed : 0;
    double left = rate > 0 ? (double)(progress->bytes_total - progress->bytes_done) / rate : 0;
    char done[32], parts[PARTS][PART_MAX];
    if (style == STYLE_JSON) {
        fprintf(stderr,
                "{\"schema\":\"reshard-progress/"
                "1\",\"done\":%llu,\"total\":%llu,\"bytes_per_second\":%.0f,\"eta_seconds\":%.1f,\"memory\":%llu}\n",
                (unsigned long long)progress->bytes_done, (unsigned long long)progress->bytes_total, rate, left,
                (unsigned long long)display->memory_bytes);
        return;
    }
    human_bytes(progress->bytes_done, done);
    human_bytes(progress->bytes_total, parts[0]);
    snprintf(parts[1], PART_MAX, "%.2f GB/s", rate / 1e9);
    snprintf(parts[2], PART_MAX, "ETA %.0f s", left);
    human_bytes(display->memory_bytes, parts[3]);
    if (style == STYLE_PLAIN) {
        fprintf(stderr, "%s: %3.0f%%  %s of %s  %s  %s  memory %s\n", display->what, share * 100, done, parts[0], parts[1], parts[2],
                parts[3]);
        return;
    }
    draw_bar(display->what, share, parts);
    display->drawn = true;
}

static int on_progress(const reshard_progress *progress, void *context)
{
    struct progress *display = context;
    enum style style = style_of(display->options);
    double time = now();
    double interval = style == STYLE_BAR ? 0.1 : 1.0;
    bool is_end = progress->bytes_done == progress->bytes_total && !display->has_ended;
    if (progress->memory_bytes > display->memory_bytes)
        display->memory_bytes = progress->memory_bytes;
    if (style != STYLE_NONE && (time - display->shown >= interval || (is_end && style != STYLE_BAR))) {
        display->has_ended = display->has_ended || is_end;
        draw(display, style, progress, time - display->started);
        display->shown = time;
    }
    if (!verb_writes(display->options))
        return ferror(stdout) != 0;
    is_writing = 1;
    return interrupted;
}

reshard_run_options progress_start(struct progress *progress, const struct options *options, const char *what)
{
    *progress = (struct progress){ .options = options, .what = what, .started = now() };
    progress->shown = progress->started;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    run.memory_bytes = options->memory_bytes;
    run.threads = options->threads;
    run.io = options->io;
    run.progress = on_progress;
    run.context = progress;
    run.comm = options->comm;
    return run;
}

double progress_seconds(const struct progress *progress)
{
    return now() - progress->started;
}

void progress_end(struct progress *progress)
{
    if (progress->drawn) {
        fputs("\r\x1b[K", stderr);
        fflush(stderr);
    }
}
