/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include <stdint.h>
#include <string.h>

struct page_data {
    const char *name;
    struct {
        const char *data;
        size_t size;
    } text;
};

/* Made by tools/embed_files.py from page.html, page.css and page.js. */
#include "cli/page_files.h"

void xml_text(FILE *out, const char *data, size_t size)
{
    for (size_t at = 0, step; at < size; at += step) {
        const char c = data[at];
        step = reshard_visible_char(data + at, size - at);
        if (!step) {
            fprintf(out, "\\x%02X", (unsigned char)c);
            step = 1;
        } else if (c == '<' || c == '>' || c == '&' || c == '"' || c == '\'') {
            fprintf(out, "&#%d;", c);
        } else {
            fwrite(data + at, 1, step, out);
        }
    }
}

/* JSON inside a script element: what could end the element, or begin a comment, only stands in strings, and is spelled otherwise there. */
static void script_json(FILE *out, const char *json, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (json[i] == '<' || json[i] == '>' || json[i] == '&')
            fprintf(out, "\\u%04x", json[i]);
        else
            putc_unlocked(json[i], out);
    }
}

static void page_file(FILE *out, const char *name)
{
    for (uint32_t i = 0; i < page_file_count; i++) {
        if (strcmp(page_files[i].name, name) == 0)
            fwrite(page_files[i].text.data, 1, page_files[i].text.size, out);
    }
}

/* The template's words between @ are replaced: TITLE, STYLE, DATA, SCRIPT. */
void page_write(FILE *out, const char *title, const char *json, size_t size)
{
    const char *text = NULL, *word;
    for (uint32_t i = 0; i < page_file_count; i++) {
        if (strcmp(page_files[i].name, "page.html") == 0)
            text = page_files[i].text.data;
    }
    for (; text && (word = strchr(text, '@')); text = strchr(word + 1, '@') + 1) {
        fwrite(text, 1, (size_t)(word - text), out);
        if (strncmp(word, "@TITLE@", 7) == 0)
            xml_text(out, title, strlen(title));
        else if (strncmp(word, "@DATA@", 6) == 0)
            script_json(out, json, size);
        else
            page_file(out, strncmp(word, "@STYLE@", 7) == 0 ? "page.css" : "page.js");
    }
    fputs(text ? text : "", out);
}
