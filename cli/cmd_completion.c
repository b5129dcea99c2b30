/* SPDX-License-Identifier: Apache-2.0 */
/* Completion: a script for each shell, which asks `reshard completion words` what fits, and says it in the shell's way. */
#include "commands.h"
#include "completion_words.h"

#include <string.h>

/* Bash breaks words at = and : too, and replaces what is behind the last of them only. */
static const char bash_script[] =
    "# bash completion for reshard\n"
    "_reshard() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} words=() breaks=${COMP_WORDBREAKS//[^=:]} i word blank typed cut= head\n"
    "    for ((i = 0; i <= COMP_CWORD; i++)); do\n"
    "        word=${COMP_WORDS[i]} blank=${line%%[![:blank:]]*} line=${line#\"${line%%[![:blank:]]*}\"}\n"
    "        [ \"$i\" = \"$COMP_CWORD\" ] && word=$line\n"
    "        if [ \"$i\" = 0 ] || [ -n \"$blank\" ]; then words+=(\"$word\"); else words[-1]+=$word; fi\n"
    "        line=${line#\"$word\"}\n"
    "    done\n"
    "    typed=${words[-1]}\n"
    "    [ -z \"$breaks\" ] || cut=${typed%\"${typed##*[$breaks]}\"}\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r word; do\n"
    "        case $word in\n"
    "        '') ;;\n"
    "        $'\\tfiles')\n"
    "            head=; [[ $typed == --*=* ]] && head=${typed%%=*}=\n"
    "            while IFS= read -r word; do [ -z \"$word\" ] || COMPREPLY+=(\"$head$word\"); done \\\n"
    "                <<<\"$(compgen -f -- \"${typed#\"$head\"}\")\" ;;\n"
    "        $'\\tmore') compopt -o nospace 2>/dev/null ;;\n"
    "        \"$typed\"*) COMPREPLY+=(\"${word%%$'\\t'*}\") ;;\n"
    "        esac\n"
    "    done <<<\"$(command reshard completion words -- \"${words[@]:1}\" 2>/dev/null)\"\n"
    "    COMPREPLY=(\"${COMPREPLY[@]#\"$cut\"}\")\n"
    "}\n"
    "complete -o filenames -F _reshard reshard\n";

static const char zsh_script[] =
    "#compdef reshard\n"
    "_reshard() {\n"
    "    local -a before offers space\n"
    "    local offer files=\n"
    "    (( CURRENT > 2 )) && before=(\"${(@Q)words[2,CURRENT-1]}\")\n"
    "    for offer in ${(f)\"$(command reshard completion words -- \"${before[@]}\" \"$PREFIX\" 2>/dev/null)\"}; do\n"
    "        case $offer in\n"
    "        $'\\tfiles') files=1 ;;\n"
    "        $'\\tmore') space=(-S '') ;;\n"
    "        *) offers+=(\"${${offer%%$'\\t'*}//:/\\\\:}:${offer#*$'\\t'}\") ;;\n"
    "        esac\n"
    "    done\n"
    "    (( $#offers )) && _describe reshard offers $space\n"
    "    [ -z \"$files\" ] || { compset -P '--*='; _files; }\n"
    "}\n"
    "[ \"$funcstack[1]\" = _reshard ] && _reshard \"$@\" || compdef _reshard reshard\n";

static const char fish_script[] =
    "# fish completion for reshard\n"
    "function __reshard_complete\n"
    "    set -l words (commandline -opc)\n"
    "    set -l typed (commandline -ct)\n"
    "    for offer in (command reshard completion words -- $words[2..-1] \"$typed\" 2>/dev/null)\n"
    "        switch $offer\n"
    "            case \\tfiles\n"
    "                set -l head (string match -r -- '^--[^=]*=' \"$typed\")\n"
    "                for file in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' \"$typed\"))\n"
    "                    echo \"$head$file\"\n"
    "                end\n"
    "            case \\tmore\n"
    "            case '*'\n"
    "                echo $offer\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c reshard -f -a '(__reshard_complete)'\n";

static const struct {
    const char *shell, *script;
} scripts[] = { { "bash", bash_script }, { "zsh", zsh_script }, { "fish", fish_script } };

int command_completion(const struct options *options)
{
    const char *what = options->paths[0];
    if (strcmp(what, "words") == 0) {
        completion_words(options->rest, options->json);
        return 0;
    }
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        if (strcmp(what, scripts[i].shell) != 0)
            continue;
        if (options->json) {
            printf("{\"schema\":\"reshard-completion/1\",\"shell\":\"%s\",\"script\":", what);
            json_text(stdout, scripts[i].script);
            puts("}");
        } else {
            fputs(scripts[i].script, stdout);
        }
        return 0;
    }
    return print_failure(options, RESHARD_ERR_USAGE, NULL, "no completion for '%s': bash, zsh or fish", what);
}
