/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of YAML that mappings are written in: members `name: value`, lists of `- text`, texts plain, in quotes and in blocks (| and >),
 * and values in brackets, which are read as literals. Members other than ours are passed over.
 */
#include "mapping/map_config_parts.h"

struct yaml_line {
    size_t start, text, end; /* text: behind the indentation; end: without the line end */
    size_t indent;
};

static bool map_config_yaml_is_line_end(char c)
{
    return c == '\n' || c == '\r';
}

/* The line at reader->at; false at the end of the file. */
static bool peek_line(const struct config_reader *reader, struct yaml_line *out)
{
    struct str file = reader->file;
    if (reader->at >= file.size)
        return false;
    *out = (struct yaml_line){ reader->at, reader->at, reader->at, 0 };
    while (out->text < file.size && file.data[out->text] == ' ')
        out->text++;
    out->indent = out->text - out->start;
    out->end = out->text;
    while (out->end < file.size && !map_config_yaml_is_line_end(file.data[out->end]))
        out->end++;
    return true;
}

static void map_config_yaml_next_line(struct config_reader *reader, const struct yaml_line *line)
{
    reader->at = line->end;
    if (reader->at < reader->file.size && reader->file.data[reader->at] == '\r')
        reader->at++;
    if (reader->at < reader->file.size && reader->file.data[reader->at] == '\n')
        reader->at++;
}

static bool map_config_yaml_is_empty(const struct config_reader *reader, const struct yaml_line *line)
{
    return line->text == line->end || reader->file.data[line->text] == '#';
}

/* Where a plain text on this line ends: before a comment and trailing blanks. */
static size_t plain_end(struct str file, size_t from, size_t end)
{
    for (size_t at = from; at < end; at++) {
        if (file.data[at] == '#' && at > from && (file.data[at - 1] == ' ' || file.data[at - 1] == '\t'))
            end = at;
    }
    while (end > from && (file.data[end - 1] == ' ' || file.data[end - 1] == '\t'))
        end--;
    return end;
}

static size_t map_config_yaml_skip_blank(struct str file, size_t at, size_t end)
{
    while (at < end && (file.data[at] == ' ' || file.data[at] == '\t'))
        at++;
    return at;
}

/* ---- texts ---- */

/* | keeps the lines of a block, > joins them. */
static bool read_block(struct config_reader *reader, const struct yaml_line *head, size_t indent, bool keeps_lines)
{
    struct yaml_line line;
    bool any = false;
    map_config_yaml_next_line(reader, head);
    while (peek_line(reader, &line) && (line.text == line.end || line.indent > indent)) {
        if (any && line.text < line.end)
            config_emit_byte(reader, keeps_lines ? '\n' : ' ', line.start);
        config_emit(reader, line.text, line.end - line.text);
        any |= line.text < line.end;
        map_config_yaml_next_line(reader, &line);
    }
    config_emit_end(reader);
    return true;
}

/* A plain text goes on in lines that are indented deeper. */
static bool map_config_yaml_read_plain(struct config_reader *reader, const struct yaml_line *head, size_t from, size_t indent)
{
    struct yaml_line line;
    config_emit(reader, from, plain_end(reader->file, from, head->end) - from);
    map_config_yaml_next_line(reader, head);
    while (peek_line(reader, &line) && line.indent > indent && !map_config_yaml_is_empty(reader, &line)) {
        config_emit_byte(reader, ' ', line.start);
        config_emit(reader, line.text, plain_end(reader->file, line.text, line.end) - line.text);
        map_config_yaml_next_line(reader, &line);
    }
    config_emit_end(reader);
    return true;
}

/* Behind a value in quotes or brackets nothing but a comment may stand. */
static bool end_value(struct config_reader *reader)
{
    struct yaml_line line;
    size_t at = reader->at;
    if (!peek_line(reader, &line))
        return true;
    at = map_config_yaml_skip_blank(reader->file, at, line.end);
    if (at < line.end && reader->file.data[at] != '#')
        return config_fail(reader, at, NULL, "unexpected text behind a value");
    map_config_yaml_next_line(reader, &line);
    return true;
}

/* One statement, whose text begins at `from` on the line. */
static bool map_config_yaml_read_text(struct config_reader *reader, const struct yaml_line *line, size_t from, size_t indent)
{
    struct str value, file = reader->file;
    char c = file.data[from];
    if (c == '|' || c == '>')
        return read_block(reader, line, indent, c == '|');
    if (c != '"' && c != '\'')
        return map_config_yaml_read_plain(reader, line, from, indent);
    reader->at = from;
    if (!config_string(reader, true, true, &value))
        return false;
    config_emit_end(reader);
    return end_value(reader);
}

/* ---- lists and members ---- */

/* Members that lines lie in, the outermost first: an object is known by the line of its member. */
struct yaml_parents {
    size_t indents[CONFIG_DEPTH_MAX], starts[CONFIG_DEPTH_MAX], depth;
};

/* Enters the member of a line; *object: what tells the object that it is a member of from others. */
static bool enter_member(struct config_reader *reader, struct yaml_parents *parents, const struct yaml_line *line, size_t *object)
{
    while (parents->depth && parents->indents[parents->depth - 1] >= line->indent)
        parents->depth--;
    *object = parents->depth ? parents->starts[parents->depth - 1] + 1 : 0;
    if (parents->depth == CONFIG_DEPTH_MAX)
        return config_fail(reader, line->text, NULL, "members lie too deep in each other");
    parents->indents[parents->depth] = line->indent;
    parents->starts[parents->depth++] = line->start;
    return true;
}

/* The next line that says something; false at the end of the file. */
static bool peek_content(struct config_reader *reader, struct yaml_line *line)
{
    while (peek_line(reader, line)) {
        if (!map_config_yaml_is_empty(reader, line))
            return true;
        map_config_yaml_next_line(reader, line);
    }
    return false;
}

static bool is_document_mark(const struct config_reader *reader, const struct yaml_line *line)
{
    struct str text = { reader->file.data + line->text, line->end - line->text };
    return line->indent == 0 && (str_starts_with(text, "---") || str_starts_with(text, "..."));
}

static bool is_list_item(const struct config_reader *reader, const struct yaml_line *line)
{
    return reader->file.data[line->text] == '-' && (line->text + 1 == line->end || reader->file.data[line->text + 1] == ' ');
}

/* The name before a colon, without quotes; false: the line is no member. */
static bool member_name(const struct config_reader *reader, const struct yaml_line *line, struct str *name, size_t *value)
{
    struct str file = reader->file;
    size_t at = line->text;
    while (at < line->end && file.data[at] != ':')
        at++;
    if (at == line->end)
        return false;
    *name = (struct str){ file.data + line->text, at - line->text };
    while (name->size && name->data[name->size - 1] == ' ')
        name->size--;
    if (name->size >= 2 && (name->data[0] == '"' || name->data[0] == '\''))
        *name = (struct str){ name->data + 1, name->size - 2 };
    *value = map_config_yaml_skip_blank(file, at + 1, line->end);
    return true;
}

/* Whether a line is a member or an item, as each one is behind a list. */
static bool is_content(const struct config_reader *reader, const struct yaml_line *line)
{
    struct str name;
    size_t value;
    return member_name(reader, line, &name, &value) || is_list_item(reader, line);
}

/* "- text" lines of one indentation. member: that of the name that the list belongs to, with which other names may go on; -1: there is
 * none. What is neither an item nor behind the list would be lost, and is an error. */
static bool read_list(struct config_reader *reader, int64_t member)
{
    struct yaml_line line;
    size_t indent = 0;
    for (bool is_first = true; peek_content(reader, &line) && !is_document_mark(reader, &line); is_first = false) {
        if (is_first)
            indent = line.indent;
        bool is_item = is_list_item(reader, &line) && line.indent == indent;
        if (!is_item && (int64_t)line.indent <= member && is_content(reader, &line))
            return true;
        if (!is_item)
            return config_fail(reader, line.text, "statements begin with '- ', all as deep as the first one",
                               "unexpected line in a list of statements");
        size_t from = map_config_yaml_skip_blank(reader->file, line.text + 1, line.end);
        if (from == line.end || reader->file.data[from] == '#')
            return config_fail(reader, line.text, NULL, "the statement is empty");
        if (!map_config_yaml_read_text(reader, &line, from, line.indent))
            return false;
    }
    return true;
}

/* Statements that begin at `from` on a line, or on one of those behind it, where they are indented deeper; only items need not be. */
static bool map_config_yaml_read_statements(struct config_reader *reader, const struct yaml_line *member, size_t from, size_t object)
{
    struct yaml_line line = *member;
    if (from == line.end || reader->file.data[from] == '#') {
        map_config_yaml_next_line(reader, member);
        bool is_there = peek_content(reader, &line) && !is_document_mark(reader, &line);
        if (is_there && line.indent >= member->indent && is_list_item(reader, &line))
            return config_found_statements(reader, line.text, object) && read_list(reader, (int64_t)member->indent);
        if (!is_there || line.indent <= member->indent)
            return config_fail(reader, member->text, "[] says that there are none", "aoa_statements has no value");
        from = line.text;
    }
    reader->at = from;
    if (reader->file.data[from] == '[')
        return config_literal(reader, true, object) && end_value(reader);
    return config_found_statements(reader, from, object) && map_config_yaml_read_text(reader, &line, from, member->indent);
}

static bool read_reverse(struct config_reader *reader, const struct yaml_line *line, size_t from, size_t object)
{
    struct str word = { reader->file.data + from, plain_end(reader->file, from, line->end) - from };
    int truth = config_truth(word);
    if (truth < 0)
        return config_fail(reader, from, NULL, "aoa_config_reverse is true or false");
    map_config_yaml_next_line(reader, line);
    return config_found_reverse(reader, from, object, truth);
}

/* A value that is of no interest, with the lines of a block, which may look like members. */
static void pass_value(struct config_reader *reader, const struct yaml_line *member, size_t value)
{
    struct yaml_line line;
    bool is_block = value < member->end && (reader->file.data[value] == '|' || reader->file.data[value] == '>');
    map_config_yaml_next_line(reader, member);
    while (is_block && peek_line(reader, &line) && (line.text == line.end || line.indent > member->indent))
        map_config_yaml_next_line(reader, &line);
}

static bool map_config_yaml_read_line(struct config_reader *reader, struct yaml_parents *parents, const struct yaml_line *line)
{
    struct str name, file = reader->file;
    size_t value, object;
    if (!member_name(reader, line, &name, &value)) {
        map_config_yaml_next_line(reader, line);
        return true;
    }
    if (!enter_member(reader, parents, line, &object))
        return false;
    if (str_is(name, "aoa_statements"))
        return map_config_yaml_read_statements(reader, line, value, object);
    if (str_is(name, "aoa_config_reverse"))
        return read_reverse(reader, line, value, object);
    if (str_is(name, "aoa_config") && value < line->end && file.data[value] == '{') {
        reader->at = value;
        return config_literal(reader, false, object) && end_value(reader);
    }
    pass_value(reader, line, value);
    return true;
}

bool config_yaml(struct config_reader *reader)
{
    struct yaml_parents parents = { .depth = 0 };
    struct yaml_line line;
    bool is_first = true;
    while (peek_content(reader, &line)) {
        if (is_document_mark(reader, &line)) {
            map_config_yaml_next_line(reader, &line);
            is_first = true;
            continue;
        }
        if (is_first && is_list_item(reader, &line)) {
            if (!config_found_statements(reader, line.text, 0) || !read_list(reader, -1))
                return false;
        } else if (!map_config_yaml_read_line(reader, &parents, &line)) {
            return false;
        }
        is_first = false;
    }
    return true;
}
