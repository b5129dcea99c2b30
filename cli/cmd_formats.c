/* SPDX-License-Identifier: Apache-2.0 */
/* What there is: formats, their options, limits, and completion scripts made from the same tables. */
#include "commands.h"

#include <string.h>

static void format_json(const reshard_format *format, bool first)
{
    printf("%s{\"name\":\"%s\",\"reads\":%s,\"writes\":%s,\"directory\":%s,\"items\":%s,\"summary\":", first ? "" : ",", format->name,
           format->reads ? "true" : "false", format->writes ? "true" : "false", format->is_directory ? "true" : "false", format->holds_items ? "true" : "false");
    json_text(stdout, format->summary);
    fputs(",\"options\":[", stdout);
    for (const reshard_format_option *option = format->options; option->name; option++) {
        printf("%s{\"name\":\"%s\",\"type\":\"%s\",\"default\":", option == format->options ? "" : ",", option->name, option->type);
        json_text(stdout, option->default_value ? option->default_value : "");
        fputs(",\"help\":", stdout);
        json_text(stdout, option->help);
        putchar('}');
    }
    fputs("]}", stdout);
}

static int list_limits(const struct options *options)
{
    reshard_limit limit;
    struct table table = { .columns = 3 };
    if (options->json)
        fputs("{\"schema\":\"reshard-limits/1\",\"limits\":[", stdout);
    for (size_t i = 0; reshard_limit_at(i, &limit) == RESHARD_OK; i++) {
        if (options->json) {
            printf("%s{\"name\":\"%s\",\"default\":%llu,\"help\":", i ? "," : "", limit.name, (unsigned long long)limit.value);
            json_text(stdout, limit.help);
            putchar('}');
        } else {
            table_add(&table, "%s", limit.name);
            table_add(&table, "%llu", (unsigned long long)limit.value);
            table_add(&table, "%s", limit.help);
        }
    }
    table_flush(&table, stdout);
    if (options->json)
        puts("]}");
    return 0;
}

static int one_format(const struct options *options, const reshard_format *format)
{
    if (options->json) {
        fputs("{\"schema\":\"reshard-formats/1\",\"formats\":[", stdout);
        format_json(format, true);
        puts("]}");
        return 0;
    }
    printf("%s: %s\n%s%s\n", format->name, format->summary, format->reads ? "reads" : "", format->writes ? ", writes" : "");
    for (const reshard_format_option *option = format->options; option->name; option++)
        printf("  -o %s=%s  %s (%s)\n", option->name, option->type, option->help, option->default_value ? option->default_value : "");
    return 0;
}

int command_formats(const struct options *options)
{
    reshard_format format;
    struct table table = { .columns = 3 };
    if (options->list_limits)
        return list_limits(options);
    for (size_t i = 0; options->path_count && reshard_format_at(i, &format) == RESHARD_OK; i++) {
        if (strcmp(format.name, options->paths[0]) == 0)
            return one_format(options, &format);
    }
    if (options->path_count) {
        fprintf(stderr, "reshard: unknown format '%s'\nhint: 'reshard formats' lists them\n", options->paths[0]);
        return 2;
    }
    if (options->json)
        fputs("{\"schema\":\"reshard-formats/1\",\"formats\":[", stdout);
    for (size_t i = 0; reshard_format_at(i, &format) == RESHARD_OK; i++) {
        if (options->json) {
            format_json(&format, i == 0);
            continue;
        }
        table_add(&table, "%s", format.name);
        table_add(&table, "%s%s", format.reads ? "r" : "-", format.writes ? "w" : "-");
        table_add(&table, "%s", format.summary);
    }
    table_flush(&table, stdout);
    if (options->json)
        puts("]}");
    return 0;
}

/* ---- completion ---- */

static void bash_completion(void)
{
    struct option_row row;
    puts("# bash completion for reshard\n_reshard() {\n    local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} last=${COMP_WORDS[COMP_CWORD-1]}\n"
         "    if [ \"$COMP_CWORD\" = 1 ]; then");
    fputs("        COMPREPLY=($(compgen -W '", stdout);
    for (int i = 0; i < VERB_COUNT; i++)
        printf("%s ", verb_table[i].name);
    puts("--help --version' -- \"$word\")); return\n    fi");
    puts("    case \"$last\" in --to|-t|--format|-f) COMPREPLY=($(compgen -W \"$(reshard formats | cut -f1)\" -- \"$word\")); return ;; esac");
    puts("    case \"$word\" in -*) ;; *) COMPREPLY=($(compgen -f -- \"$word\")); return ;; esac\n    case \"$verb\" in");
    for (int verb = 0; verb < VERB_COUNT; verb++) {
        printf("        %s) COMPREPLY=($(compgen -W '", verb_table[verb].name);
        for (size_t i = 0; options_row(i, &row); i++) {
            if (row.verbs & 1u << verb)
                printf("--%s ", row.name);
        }
        puts("' -- \"$word\")) ;;");
    }
    puts("    esac\n}\ncomplete -o filenames -F _reshard reshard");
}

/* Single quotes end and start again around a quoted one. */
static void quoted(const char *text, const char *also)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr(also, *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void zsh_completion(void)
{
    struct option_row row;
    puts("#compdef reshard\n_reshard() {\n    local -a verbs\n    verbs=(");
    for (int i = 0; i < VERB_COUNT; i++) {
        printf("        '%s:", verb_table[i].name);
        quoted(verb_table[i].summary, ":");
        puts("'");
    }
    puts("    )\n    if (( CURRENT == 2 )); then _describe verb verbs; return; fi\n    case $words[2] in");
    for (int verb = 0; verb < VERB_COUNT; verb++) {
        printf("        %s) _arguments", verb_table[verb].name);
        for (size_t i = 0; options_row(i, &row); i++) {
            if (!(row.verbs & 1u << verb))
                continue;
            printf(" '*--%s%s[", row.name, row.argument ? "=" : "");
            quoted(row.help, "[]:");
            fputs(row.argument ? "]:value:_files'" : "]'", stdout);
        }
        puts(" '*:path:_files' ;;");
    }
    puts("    esac\n}\n_reshard \"$@\"");
}

static void fish_completion(void)
{
    struct option_row row;
    puts("# fish completion for reshard");
    for (int i = 0; i < VERB_COUNT; i++) {
        printf("complete -c reshard -n __fish_use_subcommand -a %s -d '", verb_table[i].name);
        quoted(verb_table[i].summary, "");
        puts("'");
    }
    for (size_t i = 0; options_row(i, &row); i++) {
        fputs("complete -c reshard -n '__fish_seen_subcommand_from", stdout);
        for (int verb = 0; verb < VERB_COUNT; verb++) {
            if (row.verbs & 1u << verb)
                printf(" %s", verb_table[verb].name);
        }
        printf("' -l %s", row.name);
        if (row.short_name)
            printf(" -s %c", row.short_name);
        fputs(row.argument ? " -r -d '" : " -d '", stdout);
        quoted(row.help, "");
        puts("'");
    }
}

int command_completion(const struct options *options)
{
    if (strcmp(options->paths[0], "bash") == 0)
        bash_completion();
    else if (strcmp(options->paths[0], "zsh") == 0)
        zsh_completion();
    else if (strcmp(options->paths[0], "fish") == 0)
        fish_completion();
    else {
        fprintf(stderr, "reshard: no completion for '%s': bash, zsh or fish\n", options->paths[0]);
        return 2;
    }
    return 0;
}
