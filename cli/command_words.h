/* SPDX-License-Identifier: Apache-2.0 */
/* The library's messages name its functions and the fields of its options; people at a terminal know the command's words for them. */
#ifndef CLI_COMMAND_WORDS_H
#define CLI_COMMAND_WORDS_H

/* The text in the command's words: "reshard_open_options.lenient" becomes "--lenient". Valid until the next call. */
const char *command_words(const char *text);

/* From here on that path, of what stands for standard input or output meanwhile, is called "-". Of two. */
void call_stream(const char *path);

/* A path of the command line, or of a checkpoint, as it is printed: a URL without the secrets that may stand in it. Valid until the next
 * call. */
const char *shown_path(const char *path);

#endif
