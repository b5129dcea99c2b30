#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on a real sharded checkpoint (FSDP2 on four ranks, model and AdamW, written by torch). usage: tools/demo.sh RESHARD
set -eu
reshard=$(realpath "${1:-build/reshard}")
cd "$(dirname "$0")/.."
source=tests/fixtures/torch-dcp/dcp-fsdp2-4/ckpt
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
step() {
    printf '\n$ reshard %s\n' "$*" | sed "s,$out,/tmp/demo,g"
    "$reshard" "$@" | sed "s,$out,/tmp/demo,g"
}
set -o pipefail
step inspect $source
step verify $source
step convert $source "$out/hf" --to hf --verify
step diff --items ignore $source "$out/hf"
"$reshard" hash $source >"$out/source.txt"
"$reshard" hash "$out/hf" >"$out/hf.txt"
printf '\n$ reshard hash on both, compared: '
cmp "$out/source.txt" "$out/hf.txt" && echo "$(wc -l <"$out/hf.txt") digests, all equal"
printf '\ndemo: done\n'
