#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages of the tree as it is committed or changed, in a copy, and checks them with lintian.
# usage: tools/make_deb.sh FOLDER         the packages lie in FOLDER then
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(cd "$1" && pwd)
rm -rf "$out/tree" "$out"/*.deb
mkdir "$out/tree"
git ls-files -co --exclude-standard -z | while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
    grep -zv '^tests/fixtures/' | tar -c --null -T - | tar -x -C "$out/tree"
(cd "$out/tree" && dpkg-buildpackage -us -uc -b >"$out/build.log" 2>&1) || { tail -40 "$out/build.log"; exit 1; }
rm -rf "$out/tree"
lintian --fail-on error,warning --allow-root "$out"/*.changes
ls "$out"/*.deb
