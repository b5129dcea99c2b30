#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the HTML site of the documents: pages for users, formats, manual pages, with search. Nothing is loaded from elsewhere.
# usage: tools/make_site.sh BUILD       into BUILD/site; BUILD has the manual pages
# The search needs a server: `python3 -m http.server -d build/site`.
set -eu
cd "$(dirname "$0")/.."
build=$1
source=$build/site-source
rm -rf "$source" "$build/site"
mkdir -p "$source/docs/man"
cp -r docs/*.md docs/formats docs/users docs/pictures "$source/docs/"
sed 's|](docs/|](|g; s|](models/README.md)|](models.md)|g' README.md >"$source/docs/index.md"
cp CHANGELOG.md "$source/docs/changelog.md"
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
  - Mapping language: mapping.md
  - Model families: models.md
  - Salvage: salvage.md
  - Checksums beside files: sidecar.md
  - Items: items.md
  - Security: SECURITY.md
  - C library: api.md
CONFIG
    echo "  - Formats:"
    for file in docs/formats/*.md; do echo "      - $(basename "$file" .md): formats/$(basename "$file")"; done
    echo "  - Manual pages:"
    for file in "$source"/docs/man/*.md; do echo "      - $(basename "$file" .md | sed 's/\([13]\)$/(\1)/'): man/$(basename "$file")"; done
    echo "  - Changes: changelog.md"
} >"$source/mkdocs.yml"
mkdocs build --quiet -f "$source/mkdocs.yml" -d "$(cd "$build" && pwd)/site"
# The theme's fonts and scripts are its own files; a page that asks another host for something is a mistake.
! grep -rlE '(src|href)="https?://[^"]*\.(js|css|woff2?)"' "$build/site" --include='*.html' || { echo "pages load from elsewhere" >&2; exit 1; }
rm -rf "$source"
echo "$build/site/index.html"
