#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the environments of the live judges, .venv, .venv-paddle, .venv-atorch and .venv-browser, from the pinned requirements beside this file.
# Does nothing if they are there.
# usage: tests/live/setup.sh [FOLDER]        FOLDER: where they are made, default the root of the tree
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "${1:-$here/../..}" && pwd)

# environment NAME REQUIREMENTS...: complete if its stamp has the text of the requirements.
environment() {
    local place=$root/$1 wanted
    shift
    wanted=$(cat "$@")
    [ "$(cat "$place/requirements" 2>/dev/null)" = "$wanted" ] && return
    rm -rf "$place"
    python3 -m venv "$place" || { "$here/../../tools/setup.sh" venv && python3 -m venv "$place"; }
    for file in "$@"; do
        case $file in
            *-atorch0.txt) "$place/bin/pip" install -q --no-deps --target "$place/atorch0" -r "$file" ;;
            *-alone.txt) "$place/bin/pip" install -q --no-deps -r "$file" ;;
            *) first=$(grep -v '^#' "$file" | head -n 1)
               "$place/bin/pip" install -q "$first" && "$place/bin/pip" install -q -r "$file" ;;
        esac
    done
    printf '%s\n' "$wanted" >"$place/requirements"
}
environment .venv "$here/requirements.txt" "$here/requirements-alone.txt"
environment .venv-paddle "$here/requirements-paddle.txt" "$here/requirements-paddle-alone.txt"
environment .venv-atorch "$here/requirements-atorch.txt" "$here/requirements-atorch-alone.txt" "$here/requirements-atorch0.txt"
environment .venv-browser "$here/requirements-browser.txt"
# Its browser is Debian's.
"$here/../../tools/setup.sh" live
