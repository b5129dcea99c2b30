/* SPDX-License-Identifier: Apache-2.0 */
#include "findings.h"

#include "command_words.h"

#include <math.h>
#include <string.h>

int print_finding(const reshard_finding *finding, void *context)
{
    static const char *const severities[] = { "note", "warning", "failure" };
    struct findings *findings = context;
    const char *text = command_words(finding->text);
    findings->count[finding->severity]++;
    if (findings->most && findings->printed++ >= findings->most)
        return 0;
    if (findings->options->json) {
        printf("%s{\"severity\":\"%s\",\"kind\":\"%s\",\"key\":", findings->any ? "," : "", severities[finding->severity], finding->kind);
        json_string(stdout, finding->key.data, finding->key.size);
        fputs(",\"text\":", stdout);
        json_text(stdout, text);
        if (finding->index >= 0)
            printf(",\"index\":%lld,\"count\":%llu", (long long)finding->index, (unsigned long long)finding->count);
        if (finding->index >= 0 && isfinite(finding->max_difference))
            printf(",\"max_difference\":%.17g", finding->max_difference);
        putchar('}');
        findings->any = true;
        return 0;
    }
    if (findings->options->quiet)
        return 0;
    const char *paint = colour(findings->options, finding->severity == 2 ? "\x1b[31m" : finding->severity == 1 ? "\x1b[33m" : "");
    printf("%s%s%s\t%s\t", paint, severities[finding->severity], *paint ? "\x1b[0m" : "", finding->kind);
    print_escaped(stdout, finding->key.data, finding->key.size);
    putchar('\t');
    print_text(stdout, text, strlen(text));
    putchar('\n');
    return 0;
}

void print_findings_left_out(const struct findings *findings)
{
    if (findings->most && findings->printed > findings->most && !findings->options->quiet && !findings->options->json)
        printf("… and %llu more\n", (unsigned long long)(findings->printed - findings->most));
}

int verdict(const struct findings *findings, reshard_status status, const char *good, const char *bad)
{
    bool holds = status == RESHARD_OK;
    if (findings->options->json)
        printf(",\"ok\":%s,\"failures\":%llu,\"warnings\":%llu}\n", holds ? "true" : "false", (unsigned long long)findings->count[2],
               (unsigned long long)findings->count[1]);
    else if (!findings->options->quiet)
        printf("%s\n", holds ? good : bad);
    return holds ? 0 : 1;
}
