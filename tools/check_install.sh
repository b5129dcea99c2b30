#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into a fresh root, builds and runs the C program of the README there, as its reader would, with pkg-config and what is installed,
# and builds the examples so, in C and C++.
# usage: tools/check_install.sh BUILD          ends with `N passed, N failed`
set -u
cd "$(dirname "$0")/.."
here=$PWD
build=${1:-build}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
passed=0
failed=0
holds() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$root/log" 2>&1; then
        passed=$((passed + 1)) && echo "ok: $name"
    else
        failed=$((failed + 1)) && echo "FAILED: $name" && cat "$root/log"
    fi
}
holds "make install" make --no-print-directory install BUILD="$build" DESTDIR="$root" PREFIX=/usr
lib=$(dirname "$(find "$root/usr" -name libreshard.so)")
for file in bin/reshard include/reshard/reshard.h include/reshard/error.h include/reshard/geometry.h include/reshard/state.h include/reshard/sharded.h share/man/man1/reshard.1 share/bash-completion/completions/reshard.bash \
    share/zsh/site-functions/_reshard share/fish/vendor_completions.d/reshard.fish; do
    holds "$file is installed" test -s "$root/usr/$file"
done
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' README.md >"$root/list.c"
export PKG_CONFIG_PATH="$lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root" LD_LIBRARY_PATH="$lib"
holds "the README's program builds" sh -c "cc -Wall -Wextra -Werror '$root/list.c' \$(pkg-config --cflags --libs reshard) -o '$root/list'"
fixture=tests/fixtures/torch-dcp/dcp-small/ckpt
"$root/usr/bin/reshard" ls "$fixture" | awk -F'\t' '{ print $2 "\t" $3 "\t" $1 }' >"$root/expected"
"$root/list" "$fixture" >"$root/found"
holds "it lists what the installed command lists" sh -c "test -s '$root/expected' && diff '$root/expected' '$root/found'"
module=$(find "$root/usr" -name '_reshard.abi3.so')
if [ -n "$module" ]; then # where Python's headers are
    printf 'import sys, reshard\nfor t in reshard.open(sys.argv[1]).tensor_list:\n    print(t.dtype, "[" + ",".join(map(str, t.shape)) + "]", t.key, sep="\\t")\n' >"$root/list.py"
    holds "the package for Python lists the same" sh -c "PYTHONPATH='${module%/reshard/*}' python3 '$root/list.py' '$fixture' | diff '$root/expected' -"
fi
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1
cc "$root/list.c" -I"$root/usr/include" "$lib/libreshard.a" $(pkg-config --static --libs reshard | tr " " "\n" | grep -v -e -lreshard -e "^-L$root") -o "$root/static" 2>"$root/log"
holds "the same, linked statically" sh -c "env -u LD_LIBRARY_PATH '$root/static' '$fixture' | diff '$root/expected' - && ! ldd '$root/static' | grep libreshard"
if command -v cmake >/dev/null; then
    mkdir "$root/cmake"
    cp "$root/list.c" "$root/cmake"
    printf 'cmake_minimum_required(VERSION 3.13)\nproject(list C)\nfind_package(reshard 0.3 REQUIRED)\nadd_executable(list list.c)\ntarget_link_libraries(list reshard::reshard)\n' \
        >"$root/cmake/CMakeLists.txt"
    holds "the same by CMake" sh -c "cd '$root/cmake' && cmake -Dreshard_DIR='$lib/cmake/reshard' . && make && ./list '$here/$fixture' | diff '$root/expected' -"
fi
# The examples, in C and as C++; those that use MPI with each MPI that there is.
for example in examples/*.c; do
    name=$(basename "$example" .c)
    variants=plain
    grep -q '<reshard/mpi.h>' "$example" && variants=$(cd "$lib" && ls libreshard-mpi*.so 2>/dev/null | sed 's/^lib//; s/[.]so$//')
    for variant in $variants; do
        more=""
        if [ "$variant" != plain ]; then
            mpi=$(readelf -d "$lib/lib$variant.so" | grep -q 'NEEDED.*libmpich' && echo mpich || echo ompi-c)
            more="-l$variant $(PKG_CONFIG_SYSROOT_DIR='' pkg-config --cflags --libs "$mpi")"
        fi
        for language in "cc -std=gnu17 -xc" "c++ -std=c++17 -xc++"; do
            command -v "${language%% *}" >/dev/null || continue
            holds "$name builds and links: ${language%% *}, $variant" \
                sh -c "$language -Wall -Wextra '$example' -xnone \$(pkg-config --cflags --libs reshard) $more -lpthread -lm -o '$root/example'"
        done
    done
done
holds "every document that a manual page names is there" sh -c "cat '$root'/usr/share/man/man1/*.1 | tr -d '\\\\' | grep -o '/usr/share/doc/reshard/[a-zA-Z_/-]*[.]md' | sort -u | sed 's|^|$root|' | xargs ls"
for verb in $("$root/usr/bin/reshard" --help | sed -n 's/^  \([a-z]*\) .*/\1/p' | grep -v help); do
    holds "$verb has a manual page" test -s "$root/usr/share/man/man1/reshard-$verb.1"
done
holds "every function has a manual page" sh -c "grep -o 'reshard_[a-z0-9_]*;' libreshard.map | tr -d ';' | sed 's|.*|$root/usr/share/man/man3/&.3|' | xargs ls"
holds "make uninstall" make --no-print-directory uninstall BUILD="$build" DESTDIR="$root" PREFIX=/usr
holds "it leaves nothing" sh -c "! find '$root/usr' -type f -o -type l | grep ."
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
