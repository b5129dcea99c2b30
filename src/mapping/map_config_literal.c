/* SPDX-License-Identifier: Apache-2.0 */
/* JSON and Python literals. Nothing is evaluated: what is neither a string nor a bracket is passed over, or refused where it would count.
 */
#include "mapping/map_config_parts.h"

/* What a value is for. */
enum role { ROLE_OTHER, ROLE_STATEMENTS, ROLE_REVERSE };

static size_t map_config_literal_skip_space(struct str file, size_t at)
{
    while (at < file.size) {
        char c = file.data[at];
        if (c == '#') {
            while (at < file.size && file.data[at] != '\n')
                at++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            at++;
        } else {
            break;
        }
    }
    return at;
}

static bool is_quote(char c)
{
    return c == '"' || c == '\'';
}

static size_t word_end(struct str file, size_t at)
{
    while (at < file.size && !memchr(" \t\r\n,:[]{}()\"'#=+", file.data[at], 17))
        at++;
    return at;
}

bool config_literal_end(struct config_reader *reader)
{
    struct str file = reader->file;
    do
        reader->at = map_config_literal_skip_space(file, reader->at);
    while (reader->at < file.size && file.data[reader->at] == ';' && reader->at++ < file.size);
    return reader->at == file.size ||
           config_fail(reader, reader->at, "one list or object is read, and nothing is computed: print the whole of it and give that",
                       "text behind the configuration");
}

/* A word: r before a string means that backslashes are themselves; f that it is computed, which nothing here can do. */
static bool map_config_literal_read_word(struct config_reader *reader, enum role role, size_t object)
{
    struct str file = reader->file;
    size_t start = reader->at, end = word_end(file, start);
    struct str word = { file.data + start, end - start };
    if (!word.size)
        return config_fail(reader, start, "only strings, brackets and commas are read; nothing is computed",
                           "unexpected character in a configuration object");
    if (role == ROLE_STATEMENTS && end < file.size && is_quote(file.data[end]) && !str_is(word, "u"))
        return config_fail(reader, start, "print the list and give that", "a string that Python would compute");
    if (role == ROLE_STATEMENTS && !(end < file.size && is_quote(file.data[end])))
        return config_fail(reader, start, "print the list and give that", "the list of statements holds something else than strings");
    if (role == ROLE_REVERSE) {
        int truth = config_truth(word);
        if (truth < 0)
            return config_fail(reader, start, NULL, "aoa_config_reverse is true or false");
        if (!config_found_reverse(reader, start, object, truth))
            return false;
    }
    reader->at = end;
    return true;
}

/* Strings that stand side by side are one, as in Python. */
static bool map_config_literal_read_statement(struct config_reader *reader)
{
    struct str value;
    for (;;) {
        if (!config_string(reader, false, true, &value))
            return false;
        size_t next = map_config_literal_skip_space(reader->file, reader->at);
        if (next >= reader->file.size || !is_quote(reader->file.data[next]))
            break;
        reader->at = next;
    }
    config_emit_end(reader);
    return true;
}

/* What the member of this name is for. */
static enum role role_of(struct str key)
{
    if (str_is(key, "aoa_statements"))
        return ROLE_STATEMENTS;
    return str_is(key, "aoa_config_reverse") ? ROLE_REVERSE : ROLE_OTHER;
}

/* A string: a statement, or the name of a member if a colon follows. *role: of the value that follows. */
static bool map_config_literal_read_string(struct config_reader *reader, bool in_statements, enum role *role, size_t object)
{
    struct str value;
    if (in_statements)
        return map_config_literal_read_statement(reader);
    size_t start = reader->at;
    if (!config_string(reader, false, false, &value))
        return false;
    size_t next = map_config_literal_skip_space(reader->file, reader->at);
    if (next < reader->file.size && reader->file.data[next] == ':') {
        reader->at = next + 1;
        *role = role_of(value);
        return true;
    }
    if (*role != ROLE_STATEMENTS)
        return true;
    reader->at = start; /* one text instead of a list */
    *role = ROLE_OTHER;
    return config_found_statements(reader, start, object) && map_config_literal_read_statement(reader);
}

static bool is_open(char c)
{
    return c == '[' || c == '{' || c == '(';
}

static bool is_close(char c)
{
    return c == ']' || c == '}' || c == ')';
}

bool config_literal(struct config_reader *reader, bool is_statements, size_t object)
{
    struct str file = reader->file;
    size_t start = reader->at, opened[CONFIG_DEPTH_MAX + 1] = { object }; /* where what is open begins; brackets of lists too */
    uint64_t depth = 0, list_depth = 0; /* list_depth: of the list of statements; 0: not inside */
    enum role role = is_statements ? ROLE_STATEMENTS : ROLE_OTHER;
    do {
        reader->at = map_config_literal_skip_space(file, reader->at);
        if (reader->at >= file.size)
            return config_fail(reader, start, NULL, "the bracket is not closed");
        char c = file.data[reader->at];
        if (is_open(c)) {
            if (depth == CONFIG_DEPTH_MAX)
                return config_fail(reader, reader->at, NULL, "brackets lie too deep in each other");
            opened[++depth] = reader->at;
            if (role == ROLE_STATEMENTS && !list_depth) {
                list_depth = depth;
                role = ROLE_OTHER;
                if (!config_found_statements(reader, reader->at, opened[depth - 1]))
                    return false;
            } else if (list_depth && c != '(') {
                return config_fail(reader, reader->at, NULL, "a statement is a string");
            }
            reader->at++;
        } else if (is_close(c)) {
            list_depth = depth == list_depth ? 0 : list_depth;
            depth--;
            role = ROLE_OTHER;
            reader->at++;
        } else if (is_quote(c)) {
            if (!map_config_literal_read_string(reader, list_depth != 0, &role, opened[depth]))
                return false;
        } else if (c == ',') {
            role = ROLE_OTHER;
            reader->at++;
        } else if (!map_config_literal_read_word(reader, list_depth ? ROLE_STATEMENTS : role, opened[depth])) {
            return false;
        }
    } while (depth);
    return true;
}
