#!/bin/sh
# Check the workflows, the forms for issues and CITATION.cff against their published schemas: make workflows
set -eu
cd "$(dirname "$0")/../.."
check="${CHECK_JSONSCHEMA:-.venv/bin/check-jsonschema}"
"$check" --builtin-schema vendor.github-workflows .github/workflows/*.yml
"$check" --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml
"$check" --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
"$check" --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
"$check" --builtin-schema vendor.citation-file-format --default-filetype yaml CITATION.cff
# What a schema does not see: a step that calls a script or a target that is not there.
grep -hoE 'scripts/ci/[a-z_]+\.sh' .github/workflows/*.yml | sort -u | while read -r script; do
    test -f "$script" || { echo "$script is named in a workflow, and is not there" >&2; exit 1; }
done
grep -hoE 'run: make [a-z]+' .github/workflows/*.yml | sort -u | while read -r _ _ target; do
    grep -qE "^$target:" Makefile || { echo "make $target is named in a workflow, and is no target" >&2; exit 1; }
done
