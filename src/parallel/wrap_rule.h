/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which module's flat parameter a parameter belongs to, as --wrap says it:
 *
 *   root                      one flat parameter for all
 *   transformer.h.*           a path of modules: * is any one name; several are separated by |. The deepest module that fits counts
 *   ^(transformer\.h\.\d+)\.  anything else is an extended regular expression, searched in the parameter's name: its first group is the
 *                             module, or without a group all that it finds, up to the end of the name between dots
 */
#ifndef PARALLEL_WRAP_RULE_H
#define PARALLEL_WRAP_RULE_H

#include "base/error.h"
#include "base/str.h"

struct wrap_rule;

/* USAGE tells what is wrong with the text. */
reshard_status wrap_rule_parse(const char *text, struct wrap_rule **out, reshard_error *err);
void wrap_rule_free(struct wrap_rule *rule);

/* The module: a beginning of the name, empty for the root. The rule remembers which of its paths fit some name. */
reshard_status wrap_rule_module(struct wrap_rule *rule, struct str name, struct str *out, reshard_error *err);

/* After the last name: USAGE where a path, or the expression, names no module of any. */
reshard_status wrap_rule_check(const struct wrap_rule *rule, reshard_error *err);

#endif
