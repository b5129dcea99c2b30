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

/* What stands in a verb's place number `place`, from 1, by its usage line: "FORMATS", "VERBS", "KEYS", a list of words with '|', or "" for
 * a file. Texts are as long as out has room. */
static const char *place_kind(const struct verb_info *verb, int place, char out[64])
{
    const char *at = verb->arguments;
    for (int i = 1; i < place && *at; i++)
        at += strcspn(at, " ") + (at[strcspn(at, " ")] == ' ');
    size_t size = strcspn(at, " ");
    snprintf(out, 64, "%.*s", (int)size, at);
    if (strcmp(out, "[NAME]") == 0)
        return "FORMATS";
    if (strcmp(out, "[VERB]") == 0)
        return "VERBS";
    if (strncmp(out, "KEY", 3) == 0 || strncmp(out, "[GLOB", 5) == 0)
        return "KEYS";
    return strchr(out, '|') && *out >= 'a' && *out <= 'z' ? out : "";
}

/* Places of verbs that hold something else than files, as the cases of a shell: 'VERB PLACE') WORDS ;; */
static void bash_places(void)
{
    char text[64];
    for (int verb = 0; verb < VERB_COUNT; verb++) {
        for (int place = 1; place <= 2; place++) {
            const char *kind = place_kind(&verb_table[verb], place, text);
            if (!*kind)
                continue;
            printf("        '%s %d') ", verb_table[verb].name, place);
            if (strcmp(kind, "FORMATS") == 0)
                fputs("words=$(reshard formats 2>/dev/null | cut -f1)", stdout);
            else if (strcmp(kind, "KEYS") == 0)
                fputs("words=$(reshard ls \"$path\" 2>/dev/null | cut -f1)", stdout);
            else if (strcmp(kind, "VERBS") == 0)
                fputs("words=$verbs", stdout);
            else
                printf("words='%s'; words=${words//|/ }", kind);
            puts(" ;;");
        }
    }
}

/* Words that a shell's script asks the command for when it completes: formats, words of a layout, options of a format, keys of a tensor.
 * FORMAT is that of --to on the line; without one all formats are asked. */
static const char shell_questions[] =
    "_reshard_formats() { reshard formats 2>/dev/null | cut -f1; }\n"
    "_reshard_of_formats() { [ -z \"$ZSH_VERSION\" ] || emulate -L sh; local one; for one in ${2:-$(_reshard_formats)}; do "
    "reshard formats $one 2>/dev/null; done |\n"
    "    sed -n \"s/^  $1 \\([a-z0-9-]*\\)=.*/\\1=/p\" | sort -u; }\n"
    "_reshard_keys() { [ -n \"$1\" ] && reshard ls \"$1\" 2>/dev/null | cut -f1; }\n";

static void bash_completion(void)
{
    struct option_row row;
    fputs("# bash completion for reshard\n", stdout);
    fputs(shell_questions, stdout);
    puts("_reshard() {\n    local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} last=${COMP_WORDS[COMP_CWORD-1]} "
         "format= path= place=0 i whole words\n"
         "    local before=${COMP_LINE:0:COMP_POINT}; whole=${before##* }; before=${before% *}; [ -n \"$COMP_LINE\" ] || { "
         "whole=$word; before=$last; }");
    fputs("    local verbs='", stdout);
    for (int i = 0; i < VERB_COUNT; i++)
        printf("%s%s", i ? " " : "", verb_table[i].name);
    puts("'\n    if [ \"$COMP_CWORD\" = 1 ]; then COMPREPLY=($(compgen -W \"$verbs --help --version\" -- \"$word\")); return; fi");
    puts("    for ((i = 2; i < COMP_CWORD; i++)); do\n        case ${COMP_WORDS[i-1]} in --to|-t) format=${COMP_WORDS[i]} ;; esac\n"
         "        case ${COMP_WORDS[i]} in -*) ;; *) case ${COMP_WORDS[i-1]} in -[a-z]|--*) [ \"${COMP_WORDS[i-1]}\" = -i ] "
         "|| continue ;; esac\n"
         "            place=$((place + 1)); [ $place = 1 ] && path=${COMP_WORDS[i]} ;; esac\n    done; place=$((place + 1))");
    puts("    case \"${before##* }\" in\n"
         "        --to|-t|--format|-f) COMPREPLY=($(compgen -W \"$(_reshard_formats)\" -- \"$word\")); return ;;\n"
         "        --layout) words=$(_reshard_of_formats --layout $format); [ \"${whole%,*}\" = \"$whole\" ] && before= || "
         "before=${whole%,*},\n"
         "            words=$(for i in $words; do echo \"$before$i\"; done); before=${whole%\"$word\"}\n"
         "            COMPREPLY=($(compgen -W \"$words\" -- \"$whole\")); COMPREPLY=(\"${COMPREPLY[@]#$before}\"); compopt "
         "-o nospace 2>/dev/null; return ;;\n"
         "        -o|--option) COMPREPLY=($(compgen -W \"$(_reshard_of_formats -o $format)\" -- \"$word\")); compopt -o "
         "nospace 2>/dev/null; return ;;\n"
         "        --include|--exclude) COMPREPLY=($(compgen -W \"$(_reshard_keys \"$path\")\" -- \"$word\")); return ;;\n    esac");
    bash_values();
    puts("    case \"$word\" in -*) ;; *)\n        case \"$verb $place\" in");
    bash_places();
    puts("        *) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n        esac\n        COMPREPLY=($(compgen -W "
         "\"$words\" -- \"$word\")); return ;; esac\n"
         "    case \"$verb\" in");
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

/* What zsh does for the value of an option. */
static const char *zsh_action(const struct option_row *row)
{
    static const char *const actions[][2] = { { "to", "_reshard_add_formats" },    { "format", "_reshard_add_formats" },
                                              { "layout", "_reshard_add_layout" }, { "option", "_reshard_add_options" },
                                              { "include", "_reshard_add_keys" },  { "exclude", "_reshard_add_keys" } };
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++) {
        if (strcmp(actions[i][0], row->name) == 0)
            return actions[i][1];
    }
    return "_files";
}

static const char zsh_functions[] =
    "_reshard_add_formats() { compadd -- ${(f)\"$(_reshard_formats)\"} }\n"
    "_reshard_add_layout() { compset -P '*,'; compadd -S '' -- ${(f)\"$(_reshard_of_formats --layout ${opt_args[--to]})\"} }\n"
    "_reshard_add_options() { compadd -S '' -- ${(f)\"$(_reshard_of_formats -o ${opt_args[--to]})\"} }\n"
    "_reshard_add_keys() { compadd -- ${(f)\"$(_reshard_keys ${words[3]})\"} }\n";

/* The places of a verb, behind itself. */
static void zsh_places(const struct verb_info *verb)
{
    char text[64];
    fputs(" '1:verb:'", stdout);
    for (int place = 1; place <= 2; place++) {
        const char *kind = place_kind(verb, place, text);
        if (strcmp(kind, "FORMATS") == 0)
            printf(" '%d:format:_reshard_add_formats'", place + 1);
        else if (strcmp(kind, "KEYS") == 0)
            printf(" '%d:key:_reshard_add_keys'", place + 1);
        else if (strcmp(kind, "VERBS") == 0)
            printf(" '%d:verb:(${verbs%%%%:*})'", place + 1);
        else if (!*kind)
            printf(" '%d:path:_files'", place + 1);
        else {
            printf(" '%d:word:(", place + 1);
            for (; *kind; kind++)
                putchar(*kind == '|' ? ' ' : *kind);
            fputs(")'", stdout);
        }
    }
    puts(" '*:path:_files' ;;");
}

/* An option under one of its names, "--to=" or "-t". */
static void zsh_option_as(const struct option_row *row, const char *name)
{
    printf(" '*%s[", name);
    quoted(row->help, "[]:");
    if (row->is_word) {
        fputs("]:value:(", stdout);
        print_words(row);
        fputs(")'", stdout);
    } else if (row->argument) {
        printf("]:value:%s'", zsh_action(row));
    } else {
        fputs("]'", stdout);
    }
}

static void zsh_option(const struct option_row *row)
{
    char name[64];
    snprintf(name, sizeof(name), "--%s%s", row->name, row->argument ? "=" : "");
    zsh_option_as(row, name);
    snprintf(name, sizeof(name), "-%c", row->short_name);
    if (row->short_name)
        zsh_option_as(row, name);
}

static void zsh_completion(void)
{
    struct option_row row;
    fputs("#compdef reshard\n", stdout);
    fputs(shell_questions, stdout);
    fputs(zsh_functions, stdout);
    puts("_reshard() {\n    local -a verbs\n    local -A opt_args\n    verbs=(");
    for (int i = 0; i < VERB_COUNT; i++) {
        printf("        '%s:", verb_table[i].name);
        quoted(verb_table[i].summary, ":");
        puts("'");
    }
    puts("    )\n    if (( CURRENT == 2 )); then _describe verb verbs; return; fi\n    case $words[2] in");
    for (int verb = 0; verb < VERB_COUNT; verb++) {
        printf("        %s) _arguments", verb_table[verb].name);
        for (size_t i = 0; options_row(i, &row); i++) {
            if (row.verbs & 1u << verb)
                zsh_option(&row);
        }
        zsh_places(&verb_table[verb]);
    }
    puts("    esac\n}\n[ \"$funcstack[1]\" = _reshard ] && _reshard \"$@\" || compdef _reshard reshard");
}

static const char fish_functions[] =
    "function __reshard_formats; reshard formats 2>/dev/null | cut -f1; end\n"
    "function __reshard_to; commandline -opc | grep -A1 -xE -e '--to|-t' | tail -n 1; end\n"
    "function __reshard_of_formats; set -l formats (__reshard_to); test -n \"$formats\"; or set formats (__reshard_formats)\n"
    "    for one in $formats; reshard formats $one 2>/dev/null; end | sed -n \"s/^  $argv[1] \\([a-z0-9-]*\\)=.*/\\1=/p\" | "
    "sort -u; end\n"
    "function __reshard_layout; set -l before (commandline -ct | string replace -r '[^,]*$' '')\n"
    "    for word in (__reshard_of_formats --layout); echo $before$word; end; end\n"
    "function __reshard_keys; set -l words (commandline -opc); test -n \"$words[3]\"; and reshard ls $words[3] 2>/dev/null | "
    "cut -f1; end\n"
    "function __reshard_place; set -l words (commandline -opc | string match -v -- '-*'); test (count $words) -eq (math "
    "$argv[2] + 1); and test \"$words[2]\" = $argv[1]; end\n";

/* What fish asks for the value of an option; NULL: a file. */
static const char *fish_question(const struct option_row *row)
{
    static const char *const questions[][2] = { { "to", "__reshard_formats" },    { "format", "__reshard_formats" },
                                                { "layout", "__reshard_layout" }, { "option", "__reshard_of_formats -o" },
                                                { "include", "__reshard_keys" },  { "exclude", "__reshard_keys" } };
    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
        if (strcmp(questions[i][0], row->name) == 0)
            return questions[i][1];
    }
    return NULL;
}

static void fish_places(void)
{
    char text[64];
    for (int verb = 0; verb < VERB_COUNT; verb++) {
        for (int place = 1; place <= 2; place++) {
            const char *kind = place_kind(&verb_table[verb], place, text);
            if (!*kind)
                continue;
            printf("complete -c reshard -f -n '__reshard_place %s %d' -a '", verb_table[verb].name, place);
            if (strcmp(kind, "FORMATS") == 0 || strcmp(kind, "KEYS") == 0)
                fputs(*kind == 'F' ? "(__reshard_formats)" : "(__reshard_keys)", stdout);
            for (int i = 0; strcmp(kind, "VERBS") == 0 && i < VERB_COUNT; i++)
                printf("%s ", verb_table[i].name);
            for (const char *c = kind; *c && *kind >= 'a'; c++)
                putchar(*c == '|' ? ' ' : *c);
            puts("'");
        }
    }
}

static void fish_completion(void)
{
    struct option_row row;
    puts("# fish completion for reshard");
    fputs(fish_functions, stdout);
    fish_places();
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
        if (fish_question(&row))
            printf(" -x -a '(%s)'", fish_question(&row));
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
