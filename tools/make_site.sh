#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the HTML site of the documents: pages for users, formats, manual pages, with search. Nothing is loaded from elsewhere.
# usage: tools/make_site.sh BUILD       into BUILD/site; BUILD has the manual pages
# Works from the folder, without a server.
set -eu
cd "$(dirname "$0")/.."
build=$1
source=$build/site-source
rm -rf "$source" "$build/site"
mkdir -p "$source/docs/man"
cp -r docs/*.md docs/formats docs/users docs/pictures docs/decisions CONTRIBUTING.md "$source/docs/"
cp README.md "$source/docs/index.md"
cp CHANGELOG.md "$source/docs/changelog.md"
sed -i 's|](docs/|](|g' "$source/docs/index.md" "$source/docs/CONTRIBUTING.md" "$source/docs/changelog.md"
# The headers are pages; links to other files of the tree are their names.
mkdir "$source/docs/headers"
for header in include/reshard/*.h; do
    { printf '# %s\n\n```c\n' "${header#include/}"; cat "$header"; printf '```\n'; } >"$source/docs/headers/$(basename "$header").md"
done
find "$source/docs" -name '*.md' -exec sed -i -E \
    's#\]\((\.\./)*include/reshard/([a-z]+\.h)\)#](headers/\2.md)#g; s#\[([^]]*)\]\((\.\./)*(tests|models|examples|src|tools)/[^)]*\)#\1#g' {} +
for page in "$build"/docs/*.1 "$build"/docs/reshard.3; do
    name=$(basename "$page")
    { printf '# %s\n\n```text\n' "$name"; MANWIDTH=110 man -l "$page" 2>/dev/null | col -bx; printf '```\n'; } >"$source/docs/man/${name%.*}${name##*.}.md"
done
{
    cat <<'CONFIG'
site_name: reshard
theme:
  name: readthedocs
  highlightjs: false
docs_dir: docs
use_directory_urls: false
plugins: [search]
nav:
  - Home: index.md
  - For users of Hugging Face: users/huggingface.md
  - For users of Megatron: users/megatron.md
  - For users of FSDP: users/fsdp.md
  - For keepers of checkpoints: users/keepers.md
  - Pictures: pictures.md
  - Checkpoints behind URLs: urls.md
  - Mapping language: mapping.md
  - Model families: models.md
  - Salvage: salvage.md
  - Checksums beside files: sidecar.md
  - Items: items.md
  - Security: SECURITY.md
  - C library: api.md
  - Python: python.md
  - Inside jobs: online.md
CONFIG
    echo "  - Headers:"
    for file in "$source"/docs/headers/*.md; do echo "      - $(basename "$file" .md): headers/$(basename "$file")"; done
    echo "  - Formats:"
    for file in docs/formats/*.md; do echo "      - $(basename "$file" .md): formats/$(basename "$file")"; done
    echo "  - Manual pages:"
    for file in "$source"/docs/man/*.md; do echo "      - $(basename "$file" .md | sed 's/\([13]\)$/(\1)/'): man/$(basename "$file")"; done
    cat <<'CONFIG'
  - For developers:
      - Contributing: CONTRIBUTING.md
      - Architecture: ARCHITECTURE.md
      - Adding a format: adding-a-format.md
      - Testing: TESTING.md
      - What the frameworks test: conformance.md
CONFIG
    for file in docs/decisions/*.md; do echo "      - $(sed -n 's/^# //p;T;q' "$file" | tr -d ':'): decisions/$(basename "$file")"; done
    echo "  - Changes: changelog.md"
} >"$source/mkdocs.yml"
mkdocs build --quiet --strict -f "$source/mkdocs.yml" -d "$(cd "$build" && pwd)/site"
# Debian's theme names scripts that it has under another name, or (for browsers of long ago) not at all.
(
    cd "$build/site"
    for script in $(grep -oh '"js/[^"]*\.js"' index.html | tr -d '"'); do
        [ -e "$script" ] || case $script in
            */jquery*) cp js/jquery*.js "$script" ;;
            *) find . -name '*.html' -exec sed -i "s|<script src=\"[./]*$script\"[^>]*></script>||" {} + ;;
        esac
    done
)
cp tools/site_search.js "$build/site/search/main.js"
python3 -c 'import json, sys; print("var site_pages = " + json.dumps(json.load(sys.stdin)["docs"]) + ";")' <"$build/site/search/search_index.json" >"$build/site/search/pages.js"
rm "$build/site/search/search_index.json" "$build/site/search/worker.js"
# The theme's fonts and scripts are its own files; a page that asks another host for something is a mistake.
! grep -rlE '(src|href)="https?://[^"]*\.(js|css|woff2?)"' "$build/site" --include='*.html' || { echo "pages load from elsewhere" >&2; exit 1; }
rm -rf "$source"
echo "$build/site/index.html"
