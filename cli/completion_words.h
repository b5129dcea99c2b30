/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fits the word that is being typed, from the tables that parse the command line: verbs, options, and for values and places what the
 * word that stands for them in --help says (FORMAT, GLOB, PATH, a|b|c). The shells' scripts ask for it, and know nothing else.
 */
#ifndef CLI_COMPLETION_WORDS_H
#define CLI_COMPLETION_WORDS_H

#include <stdbool.h>

/*
 * words: those behind the command's name, then NULL; the last is the one that is being typed, "" where nothing is yet. Prints a line for
 * each whole word that could stand there, with a tab and what it means behind it. A line "\tfiles" says that names of files fit too, behind
 * "--option=" if the word has that; "\tmore" that no blank follows the word. As JSON it is one object.
 */
void completion_words(const char *const *words, bool is_json);

#endif
