/* SPDX-License-Identifier: Apache-2.0 */
/* draw: pictures of where tensors lie, of what a conversion moves, and of what differs. */
#include "command_words.h"
#include "commands.h"
#include "diff_map.h"
#include "page.h"
#include "mapping_input.h"
#include "whole_file.h"

#include <stdlib.h>
#include <string.h>

#define MAPS_MAX 2

/* What is drawn. */
struct picture {
    const struct options *options;
    const char *title, *names[MAPS_MAX];
    reshard_checkpoint *checkpoints[MAPS_MAX];
    struct layout_map maps[MAPS_MAX];
    size_t map_count;
    reshard_report report; /* of before and after */
};

static bool ends_with(const char *text, const char *end)
{
    size_t size = strlen(text), length = strlen(end);
    return size >= length && strcmp(text + size - length, end) == 0;
}

static int no_memory(const struct options *options)
{
    return print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory");
}

/* ---- what a page says ---- */

static void subtitle_json(FILE *out, const struct picture *picture)
{
    char *text = NULL;
    size_t size = 0;
    FILE *line = open_memstream(&text, &size);
    if (line) {
        fputs(shown_path(reshard_checkpoint_path(picture->checkpoints[0])), line);
        fclose(line);
    }
    json_string(out, text ? text : "", text ? size : 0);
    free(text);
}

static void picture_json(FILE *out, const struct picture *picture)
{
    fputs("{\"schema\":\"reshard-draw/1\",\"title\":", out);
    json_text(out, picture->title);
    fputs(",\"subtitle\":", out);
    subtitle_json(out, picture);
    fprintf(out, ",\"footer\":\"Drawn by reshard %s from metadata alone: no values were read.\"", reshard_version());
    fputs(",\"maps\":[", out);
    for (size_t i = 0; i < picture->map_count; i++) {
        fputs(i ? "," : "", out);
        map_json(out, &picture->maps[i], picture->names[i]);
    }
    putc(']', out);
    if (picture->map_count == 2) {
        fputs(",\"moves\":", out);
        moves_json(out, &picture->maps[0], &picture->maps[1], &picture->report);
    }
    putc('}', out);
}

static void picture_svg(FILE *out, const struct picture *picture)
{
    const struct layout_map *maps[MAPS_MAX] = { &picture->maps[0], &picture->maps[1] };
    maps_svg(out, picture->title, maps, picture->names, picture->map_count);
}

static int write_json_page(const struct options *options, const char *path, const char *title, const char *json, size_t size)
{
    struct whole_file file;
    int exit_status = whole_file_begin(&file, options, path);
    if (exit_status)
        return exit_status;
    page_write(file.out, title, json, size);
    return whole_file_end(&file);
}

static int draw_html(const struct picture *picture, const char *path)
{
    char *json = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&json, &size);
    if (!out)
        return no_memory(picture->options);
    picture_json(out, picture);
    bool is_whole = !ferror(out);
    is_whole &= fclose(out) == 0;
    int exit_status = is_whole ? write_json_page(picture->options, path, picture->title, json, size) : no_memory(picture->options);
    free(json);
    return exit_status;
}

static int draw_svg(const struct picture *picture, const char *path)
{
    struct whole_file file;
    int exit_status = whole_file_begin(&file, picture->options, path);
    if (exit_status)
        return exit_status;
    picture_svg(file.out, picture);
    return whole_file_end(&file);
}

static void draw_text(const struct picture *picture)
{
    bool is_coloured = *colour(picture->options, "\x1b[1m") != '\0';
    for (size_t i = 0; i < picture->map_count; i++) {
        if (picture->map_count > 1)
            printf("%s%s: ", i ? "\n" : "", picture->names[i]);
        map_text(stdout, &picture->maps[i], is_coloured);
    }
    uint64_t moved = 0, all = 0;
    reshard_move move = RESHARD_MOVE_INIT;
    char size[32];
    for (size_t i = 0; i < picture->report.move_count; i++) {
        reshard_report_move_at(&picture->report, i, &move);
        all += move.bytes;
        moved += move.from_writer != move.to_writer ? move.bytes : 0;
    }
    if (picture->map_count == 2 && picture->maps[0].is_by_rank && picture->maps[1].is_by_rank) {
        printf("\n%s of", human_bytes(moved, size));
        printf(" %s change their rank\n", human_bytes(all, size));
    }
}

/* ---- making it ---- */

static int picture_add(struct picture *picture, const char *name, reshard_checkpoint *checkpoint)
{
    bool wants_files = picture->options->columns && strcmp(picture->options->columns, "files") == 0;
    picture->checkpoints[picture->map_count] = checkpoint;
    picture->names[picture->map_count] = name;
    return layout_map_make(checkpoint, wants_files, &picture->maps[picture->map_count++]) ? 0 : no_memory(picture->options);
}

/* What a conversion reads is the whole checkpoint, which chooses for itself. */
static int picture_add_target(struct picture *picture, const struct mapping_input *mapping)
{
    int exit_status = 0;
    reshard_error err = { 0 };
    reshard_checkpoint *source = open_path(picture->options, 0, &exit_status);
    if (!source)
        return exit_status;
    reshard_open_options open = options_open(picture->options);
    open.format = NULL;
    reshard_convert_options convert = convert_options_make(picture->options, &open, mapping);
    reshard_checkpoint *target;
    reshard_status status = reshard_preview(source, NULL, &convert, NULL, &picture->report, &target, &err);
    reshard_close(source);
    return status ? mapping_input_error(mapping, status, &err) : picture_add(picture, "After", target);
}

static void picture_release(struct picture *picture)
{
    reshard_report_release(&picture->report);
    for (size_t i = 0; i < picture->map_count; i++) {
        layout_map_release(&picture->maps[i]);
        reshard_close(picture->checkpoints[i]);
    }
}

static int picture_write(const struct picture *picture)
{
    const struct options *options = picture->options;
    const char *path = options->path_count > 1 ? options->paths[1] : NULL;
    int exit_status = !path ? 0 : ends_with(path, ".svg") ? draw_svg(picture, path) : draw_html(picture, path);
    if (!exit_status && options->json) {
        picture_json(stdout, picture);
        putchar('\n');
    } else if (!path) {
        draw_text(picture);
    }
    return exit_status;
}

static int run_draw(const struct options *options, const struct mapping_input *mapping)
{
    int exit_status = 0;
    bool has_target = options->to || options->like;
    struct picture picture = { .options = options, .report = RESHARD_REPORT_INIT };
    reshard_checkpoint *checkpoint = open_view(options, 0, &exit_status);
    if (!checkpoint)
        return exit_status;
    picture.title = has_target ? "Before and after" : "Where the tensors lie";
    exit_status = picture_add(&picture, has_target ? "Before" : "Layout", checkpoint);
    if (!exit_status && has_target)
        exit_status = picture_add_target(&picture, mapping);
    if (!exit_status)
        exit_status = picture_write(&picture);
    picture_release(&picture);
    return exit_status;
}

/* What the paths and options say, before anything is opened. */
static int check_words(const struct options *options)
{
    int last = options->path_count - 1, count = options->diff ? 3 : 2;
    const char *path = options->path_count == count ? options->paths[last] : NULL;
    if (options->diff && options->path_count < 2)
        return print_failure(options, RESHARD_ERR_USAGE, "usage: reshard draw --diff A B OUT.html", "--diff needs two checkpoints");
    if (!options->diff && options->path_count > 2)
        return print_failure(options, RESHARD_ERR_USAGE, "--diff draws what differs between two checkpoints", "unexpected argument '%s'",
                             shown_path(options->paths[2]));
    if (options->diff && !path && !options->json)
        return print_failure(options, RESHARD_ERR_USAGE, "'reshard diff A B' lists what differs in words", "--diff needs a page to write");
    if (path && !ends_with(path, ".html") && !(ends_with(path, ".svg") && !options->diff))
        return print_failure(options, RESHARD_ERR_USAGE, options->diff ? "its name ends with .html" : "its name ends with .html or .svg",
                             "cannot tell what to draw into '%s'", shown_path(path));
    if (options->layout && !options->to && !options->like)
        return print_failure(options, RESHARD_ERR_USAGE, "before and after: --to FORMAT --layout …", "--layout needs --to or --like");
    return 0;
}

/* ---- what differs ---- */

static int run_draw_diff(const struct options *options, const struct mapping_input *mapping)
{
    char *json = NULL;
    size_t size = 0;
    int exit_status = options->json ? 0 : whole_file_check(options, options->paths[2]); /* all values are read before it is written */
    if (exit_status)
        return exit_status;
    reshard_checkpoint *a = open_path(options, 0, &exit_status), *b = a ? open_path(options, 1, &exit_status) : NULL;
    FILE *out = b ? open_memstream(&json, &size) : NULL;
    if (b && !out)
        exit_status = no_memory(options);
    if (out) {
        exit_status = diff_map_json(out, options, mapping, a, b);
        if (fclose(out))
            exit_status = no_memory(options);
    }
    if (out && exit_status <= 1 && options->path_count > 2) {
        int written = write_json_page(options, options->paths[2], "What differs", json, size);
        exit_status = written ? written : exit_status;
    }
    if (out && exit_status <= 1 && options->json)
        printf("%.*s\n", (int)size, json);
    free(json);
    reshard_close(a);
    reshard_close(b);
    return exit_status;
}

int command_draw(const struct options *options)
{
    struct mapping_input mapping;
    int exit_status = check_words(options);
    if (exit_status)
        return exit_status;
    exit_status = mapping_input_read(options, &mapping);
    if (exit_status < 0)
        exit_status = options->diff ? run_draw_diff(options, &mapping) : run_draw(options, &mapping);
    mapping_input_release(&mapping);
    return exit_status;
}
