/* SPDX-License-Identifier: Apache-2.0 */
/* Completion scripts, made from the tables that parse the command line. */
#include "commands.h"

#include <string.h>

/* The values of a row that has a closed list of them, with blanks between. */
static void print_words(const struct option_row *row)
{
    for (const char *c = row->argument; *c; c++)
        putchar(*c == '|' ? ' ' : *c);
}

static void bash_values(void)
{
    struct option_row row;
    puts("    case \"$verb $last\" in");
    for (int verb = 0; verb < VERB_COUNT; verb++) {
        for (size_t i = 0; options_row(i, &row); i++) {
            if (!row.is_word || !(row.verbs & 1u << verb))
                continue;
            printf("        '%s --%s') COMPREPLY=($(compgen -W '", verb_table[verb].name, row.name);
            print_words(&row);
            puts("' -- \"$word\")); return ;;");
        }
    }
    puts("    esac");
}

static void bash_completion(void)
{
    struct option_row row;
    puts("# bash completion for reshard\n_reshard() {\n    local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} "
         "last=${COMP_WORDS[COMP_CWORD-1]}\n"
         "    if [ \"$COMP_CWORD\" = 1 ]; then");
    fputs("        COMPREPLY=($(compgen -W '", stdout);
    for (int i = 0; i < VERB_COUNT; i++)
        printf("%s ", verb_table[i].name);
    puts("--help --version' -- \"$word\")); return\n    fi");
    puts("    case \"$last\" in --to|-t|--format|-f) COMPREPLY=($(compgen -W \"$(reshard formats | cut -f1)\" -- \"$word\")); return ;; "
         "esac");
    bash_values();
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
            fputs(row.is_word ? "]:value:(" : row.argument ? "]:value:_files'" : "]'", stdout);
            if (row.is_word)
                print_words(&row);
            fputs(row.is_word ? ")'" : "", stdout);
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
        fputs(row.is_word ? " -x -a '" : row.argument ? " -r" : "", stdout);
        if (row.is_word)
            print_words(&row);
        fputs(row.is_word ? "' -d '" : " -d '", stdout);
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
    else
        return print_failure(options, RESHARD_ERR_USAGE, NULL, "no completion for '%s': bash, zsh or fish", options->paths[0]);
    return 0;
}
