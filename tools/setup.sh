#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a task needs, if they are missing. Asks first, unless YES=1, or root without a terminal.
# usage: tools/setup.sh {build|test|live|venv|fuzz|fuzz-coverage|docs|deb|bench|coverage}
set -eu
build="gcc libc6-dev meson ninja-build pkg-config zlib1g-dev libzstd-dev libxxhash-dev nettle-dev libisal-dev libpcre2-dev liblz4-dev libblosc-dev libbz2-dev liblzma-dev libcurl4-openssl-dev"
case "${1:-build}" in
    build) want="$build" ;;
    test) want="$build libcmocka-dev scdoc python3 python3-dev python3-jsonschema zsh fish openmpi-bin libopenmpi-dev mpich libmpich-dev" ;;
    live) want="chromium fonts-dejavu-core" ;;
    venv) want="python3-venv" ;;
    fuzz) want="$build clang libclang-rt-14-dev" ;;
    fuzz-coverage) want="$build clang libclang-rt-14-dev llvm-14 libcmocka-dev python3" ;;
    docs) want="$build scdoc python3 mkdocs man-db bsdextrautils" ;;
    deb) want="$build scdoc python3 debhelper dpkg-dev fakeroot lintian mmdebstrap" ;;
    bench) want="$build python3" ;;
    coverage) want="$build libcmocka-dev scdoc python3 gcovr" ;;
    *) echo "usage: $0 {build|test|live|venv|fuzz|fuzz-coverage|docs|deb|bench|coverage}" >&2; exit 2 ;;
esac
missing=""
for package in $want; do
    case "$package" in
        python3 | gcc | chromium) command -v "$package" >/dev/null && continue ;;
    esac
    [ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" = "install ok installed" ] || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
echo "needs Debian packages:$missing"
if [ "${YES:-}" != 1 ] && { [ -n "$sudo" ] || [ -t 0 ]; }; then
    printf 'install them with apt-get? [y/N] '
    read -r answer || answer=n
    case "$answer" in y | Y | yes) ;; *) echo "not installed; run: $sudo apt-get install$missing" >&2; exit 1 ;; esac
fi
exec 9<"$0" && flock 9 # one at a time: apt-get does not wait for another
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
install() { $sudo apt-get install -y -qq --no-install-recommends $missing >"$log" 2>&1; }
install || { $sudo apt-get update -qq >"$log" 2>&1 && install; } || { cat "$log" >&2; exit 1; }
