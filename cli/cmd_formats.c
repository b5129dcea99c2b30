/* SPDX-License-Identifier: Apache-2.0 */
/* What there is: formats, their options, limits, verbs. */
#include "command_words.h"
#include "commands.h"
#include "near_names.h"
#include "table.h"

#include <string.h>

static void format_json(const reshard_format *format, size_t index, bool first)
{
    printf("%s{\"name\":\"%s\",\"reads\":%s,\"writes\":%s,\"directory\":%s,\"items\":%s,\"summary\":", first ? "" : ",", format->name,
           format->reads ? "true" : "false", format->writes ? "true" : "false", format->is_directory ? "true" : "false",
           format->holds_items ? "true" : "false");
    json_text(stdout, format->summary);
    fputs(",\"options\":[", stdout);
    reshard_format_option option = RESHARD_FORMAT_OPTION_INIT;
    for (size_t i = 0; reshard_format_option_at(index, i, &option) == RESHARD_OK; i++) {
        printf("%s{\"name\":\"%s\",\"type\":\"%s\",\"default\":", i ? "," : "", option.name, option.type);
        json_text(stdout, option.default_value ? option.default_value : "");
        fputs(",\"help\":", stdout);
        json_text(stdout, option.help);
        putchar('}');
    }
    fputs("],\"layout\":[", stdout);
    reshard_format_word word = RESHARD_FORMAT_WORD_INIT;
    for (size_t i = 0; reshard_format_word_at(index, i, &word) == RESHARD_OK; i++) {
        printf("%s{\"name\":\"%s\",\"choices\":[", i ? "," : "", word.name);
        for (size_t c = 0; word.choices && word.choices[c]; c++)
            printf("%s\"%s\"", c ? "," : "", word.choices[c]);
        fputs("],\"help\":", stdout);
        json_text(stdout, word.help);
        putchar('}');
    }
    fputs("]}", stdout);
}

static int list_limits(const struct options *options)
{
    reshard_limit limit = RESHARD_LIMIT_INIT;
    struct table table = { .columns = 3 };
    if (options->json)
        fputs("{\"schema\":\"reshard-limits/1\",\"limits\":[", stdout);
    for (size_t i = 0; reshard_limit_at(i, &limit) == RESHARD_OK; i++) {
        if (options->json) {
            printf("%s{\"name\":\"%s\",\"default\":%llu,\"help\":", i ? "," : "", limit.name, (unsigned long long)limit.default_value);
            json_text(stdout, limit.help);
            putchar('}');
        } else {
            fprintf(table_cell(&table), "%s", limit.name);
            fprintf(table_cell(&table), "%llu", (unsigned long long)limit.default_value);
            fprintf(table_cell(&table), "%s", limit.help);
        }
    }
    if (options->json)
        puts("]}");
    else
        table_end(&table);
    return 0;
}

static void print_layout_words(size_t format)
{
    reshard_format_word word = RESHARD_FORMAT_WORD_INIT;
    for (size_t i = 0; reshard_format_word_at(format, i, &word) == RESHARD_OK; i++) {
        printf("  --layout %s=%s", word.name, word.choices ? "" : "N");
        for (size_t c = 0; word.choices && word.choices[c]; c++)
            printf("%s%s", c ? "|" : "", word.choices[c]);
        printf("  %s\n", word.help);
    }
}

static int one_format(const struct options *options, const reshard_format *format, size_t index)
{
    if (options->json) {
        fputs("{\"schema\":\"reshard-formats/1\",\"formats\":[", stdout);
        format_json(format, index, true);
        puts("]}");
        return 0;
    }
    printf("%s: %s\n%s%s\n", format->name, format->summary, format->reads ? "reads" : "", format->writes ? ", writes" : "");
    print_layout_words(index);
    reshard_format_option option = RESHARD_FORMAT_OPTION_INIT;
    for (size_t i = 0; reshard_format_option_at(index, i, &option) == RESHARD_OK; i++)
        printf("  -o %s=%s  %s (%s)\n", option.name, option.type, option.help, option.default_value ? option.default_value : "");
    return 0;
}

int command_formats(const struct options *options)
{
    reshard_format format = RESHARD_FORMAT_INIT;
    struct table table = { .columns = 3 };
    struct near_names near = { .word = options->path_count ? options->paths[0] : "" };
    if (options->list_limits)
        return list_limits(options);
    for (size_t i = 0; options->path_count && reshard_format_at(i, &format) == RESHARD_OK; i++) {
        if (strcmp(format.name, options->paths[0]) == 0)
            return one_format(options, &format, i);
        near_names_offer(&near, format.name);
    }
    if (options->path_count) {
        char hint[256];
        return print_failure(options, RESHARD_ERR_USAGE, near_names_hint(&near, "'reshard formats' lists them", hint, sizeof(hint)),
                             "unknown format '%s'", shown_path(options->paths[0]));
    }
    if (options->json)
        fputs("{\"schema\":\"reshard-formats/1\",\"formats\":[", stdout);
    for (size_t i = 0; reshard_format_at(i, &format) == RESHARD_OK; i++) {
        if (options->json) {
            format_json(&format, i, i == 0);
            continue;
        }
        fprintf(table_cell(&table), "%s", format.name);
        fprintf(table_cell(&table), "%s%s", format.reads ? "r" : "-", format.writes ? "w" : "-");
        fprintf(table_cell(&table), "%s", format.summary);
    }
    if (options->json)
        puts("]}");
    else
        table_end(&table);
    return 0;
}

static void json_or_null(const char *text)
{
    if (text)
        json_text(stdout, text);
    else
        fputs("null", stdout);
}

static void verb_json(int verb, bool first)
{
    struct option_row row;
    const char *separator = "";
    printf("%s{\"name\":\"%s\",\"arguments\":", first ? "" : ",", verb_table[verb].name);
    json_text(stdout, verb_table[verb].arguments);
    fputs(",\"summary\":", stdout);
    json_text(stdout, verb_table[verb].summary);
    fputs(",\"examples\":", stdout);
    json_text(stdout, verb_table[verb].examples);
    fputs(",\"options\":[", stdout);
    for (size_t i = 0; options_row(i, &row); i++) {
        if (!(row.verbs & 1u << verb))
            continue;
        printf("%s{\"name\":\"--%s\",\"short\":", separator, row.name);
        json_or_null(row.short_name ? (char[]){ '-', row.short_name, '\0' } : NULL);
        fputs(",\"argument\":", stdout);
        json_or_null(row.argument);
        fputs(",\"help\":", stdout);
        json_text(stdout, row.help);
        putchar('}');
        separator = ",";
    }
    fputs("]}", stdout);
}

/* All verbs, or one. */
static void help_json(int verb)
{
    fputs("{\"schema\":\"reshard-help/1\",\"verbs\":[", stdout);
    for (int i = 0; i < VERB_COUNT; i++) {
        if (verb == VERB_COUNT || verb == i)
            verb_json(i, verb == i || i == 0);
    }
    puts("]}");
}

int command_help(const struct options *options)
{
    struct near_names near = { .word = options->path_count ? options->paths[0] : "" };
    char hint[256];
    if (!options->path_count) {
        if (options->json)
            help_json(VERB_COUNT);
        else
            options_overview(stdout);
        return 0;
    }
    for (int i = 0; i < VERB_COUNT; i++) {
        if (strcmp(verb_table[i].name, options->paths[0]) == 0) {
            if (options->json)
                help_json(i);
            else
                options_help(stdout, (enum verb)i);
            return 0;
        }
        near_names_offer(&near, verb_table[i].name);
    }
    return print_failure(options, RESHARD_ERR_USAGE, near_names_hint(&near, "'reshard help' lists the verbs", hint, sizeof(hint)),
                         "unknown verb '%s'", shown_path(options->paths[0]));
}
