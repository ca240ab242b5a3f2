#!/bin/sh
# Check that a tag can be released: sh scripts/ci/release_tag.sh v0.1.0
# The version, the changes and the citation must name it.
set -eu
cd "$(dirname "$0")/../.."
tag=${1:?give the tag, such as v0.1.0}
version=${tag#v}
wrong=0
grep -qx "__version__ = \"$version\"" src/tramfl/version.py || { echo "src/tramfl/version.py has another version" >&2; wrong=1; }
grep -qE "^## $version \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$" CHANGELOG.md || { echo "CHANGELOG.md has no '## $version (YYYY-MM-DD)'" >&2; wrong=1; }
grep -qx "version: $version" CITATION.cff || { echo "CITATION.cff has another version" >&2; wrong=1; }
exit $wrong
