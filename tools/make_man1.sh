#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A manual page of section 1 from standard input, in which documents of the tree are named by the place where they are installed.
# usage: make_man1.sh SCDOC FOLDER
escaped=$(printf '%s' "$2" | sed 's/_/\\\\_/g')
sed "s|docs/\([a-z-]*\.md\)|$escaped/\1|g; s|docs/schemas/|$escaped/schemas/|g; s|models/README\.md|$escaped/models/README.md|g" | "$1"
