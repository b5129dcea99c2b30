#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages of `make deb` in a fresh Debian root, by the steps of the Containerfile, and uses them there. Needs root and mmdebstrap.
# usage: tools/check_deb.sh [FOLDER]      FOLDER: with the packages; ends with `N passed, N failed`
set -u
cd "$(dirname "$0")/.."
debs=${1:-build/deb}
root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null; rm -rf "$root"' EXIT
passed=0
failed=0
holds() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$root.log" 2>&1; then
        passed=$((passed + 1)) && echo "ok: $name"
    else
        failed=$((failed + 1)) && echo "FAILED: $name" && tail -20 "$root.log"
    fi
    rm -f "$root.log"
}
inside() { chroot "$root" /bin/sh -c "$1"; }
copy() { # what COPY of the Containerfile names, from the folder of the packages
    local name
    for name in "$@"; do cp "$debs"/$(basename "$name") "$root/tmp/" || return 1; done
}
holds "a fresh root" mmdebstrap --quiet --variant=apt --mode=root --skip=check/empty bookworm "$root"
cp -r /etc/apt/. "$root/etc/apt/"
cp /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null
while IFS= read -r line; do
    case $line in
        COPY*) read -r -a words <<<"$line"; holds "$line" copy "${words[@]:1:${#words[@]}-2}" ;;
        RUN*) holds "$line" inside "${line#RUN }" ;;
    esac
done <Containerfile
cp -r tests/fixtures/torch-dcp/dcp-small/ckpt "$root/ckpt"
holds "the command opens a checkpoint" inside 'reshard ls /ckpt | grep -q big'
holds "it converts" inside 'reshard convert /ckpt /hf --to safetensors && reshard diff /ckpt /hf --items ignore'
holds "the loader finds the library where its package put it" inside 'ldd /usr/bin/reshard | grep -q "libreshard.so.0 => /"'
holds "completion for bash, zsh and fish" inside 'test -s /usr/share/bash-completion/completions/reshard -a -s /usr/share/zsh/vendor-completions/_reshard -a -s /usr/share/fish/vendor_completions.d/reshard.fish'
holds "bash completes" inside 'bash -c ". /usr/share/bash-completion/completions/reshard; COMP_LINE=\"reshard cat /ckpt bi\" COMP_POINT=20 COMP_CWORD=3
    COMP_WORDS=(reshard cat /ckpt bi); _reshard; test \"\${COMPREPLY[*]}\" = big"'
holds "every verb has a manual page" inside 'for verb in $(reshard --help | sed -n "s/^  \([a-z]*\) .*/\1/p" | grep -v help); do dpkg -L reshard | grep -q "/man1/reshard-$verb.1.gz$" || exit 1; done'
cp "$debs"/libreshard-dev_*.deb "$root/tmp/"
holds "the package for developers unpacks beside them" inside 'dpkg --unpack /tmp/libreshard-dev_*.deb && test -s /usr/include/reshard/reshard.h'
holds "the packages are removed without a rest" inside 'dpkg --purge --force-depends libreshard-dev reshard libreshard0 && ! find /usr -name "*reshard*" | grep .'
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
