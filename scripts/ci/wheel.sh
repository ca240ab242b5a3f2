#!/usr/bin/env bash
# Build sdist and wheel, check them, and use the wheel in a new environment, far from the source: dist/ has both then.
#   bash scripts/ci/wheel.sh                with PYTHON=python3.12 for another Python
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT="$root/constraints.txt" OMP_NUM_THREADS=1
python="${PYTHON:-python3}"
"$python" -m venv "$place/tools"
"$place/tools/bin/python" -m pip install --quiet build twine
rm -rf "$root/dist"
"$place/tools/bin/python" -m build --outdir "$root/dist" "$root" >"$place/build.log" 2>&1 || { cat "$place/build.log"; exit 1; }
"$place/tools/bin/twine" check --strict "$root"/dist/*
"$python" - "$root" <<'PY'
"""The wheel has all of the package and nothing else; the sdist has what is needed to build, test and read it."""
import pathlib, subprocess, sys, tarfile, zipfile
root = pathlib.Path(sys.argv[1])
(wheel,), (sdist,) = (root / "dist").glob("*.whl"), (root / "dist").glob("*.tar.gz")
inside = set(zipfile.ZipFile(wheel).namelist())
source = {str(p.relative_to(root / "src")) for p in (root / "src/tramfl").rglob("*") if p.is_file() and p.suffix != ".pyc"}
assert source <= inside, f"not in the wheel: {sorted(source - inside)[:5]}"
stray = {name for name in inside - source if ".dist-info/" not in name}
assert not stray, f"strange in the wheel: {sorted(stray)[:5]}"
parts = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
for name in ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "docs/tutorial.md", "tests/conftest.py", "examples/plan.toml"):
    assert name in parts, f"{name} is not in the sdist"
print(f"{wheel.name}: {len(inside)} files; {sdist.name}: {len(parts)} files")
PY
"$python" -m venv "$place/venv"
bin="$place/venv/bin"
# PyTorch first and alone: the pinned version, so that no other build of it is taken.
torch=$(grep '^torch==' "$root/constraints.txt")
"$bin/python" -m pip install --quiet "$torch"
wheel=$(ls "$root"/dist/*.whl)
"$bin/python" -m pip install --quiet "$wheel[torch,dashboard,runtime]"
cd "$place"
"$bin/tramfl" --version
"$bin/tramfl" run digits-3 --rounds 20 --seed 1 --out first --quiet
"$bin/tramfl" report first
"$bin/tramfl" figures first
"$bin/tramfl" up --sites 3 --rounds 4 --target 1 --out street --quiet
"$bin/tramfl" run street/config.toml --loads street/rounds.jsonl --out replayed --quiet
test -s first/report.html && test -s first/model.safetensors && test -s street/model.safetensors
"$bin/python" -c 'import tramfl, pathlib; assert "site-packages" in tramfl.__file__, tramfl.__file__'
