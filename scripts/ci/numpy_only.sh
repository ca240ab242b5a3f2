#!/usr/bin/env bash
# The base install, without extras, in a new environment: what needs NumPy alone works, and asks for what it lacks.
#   bash scripts/ci/numpy_only.sh           with PYTHON=python3.12 for another Python
# TESTS=no leaves the tests out: they are for Linux.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT="$root/constraints.txt" OMP_NUM_THREADS=1
"${PYTHON:-python3}" -m venv "$place/venv"
bin="$place/venv/bin" operating="pip install 'tramfl\["
if [ ! -d "$bin" ]; then  # Windows, from which no federation is operated
    bin="$place/venv/Scripts" operating="operated from Linux or macOS"
fi
"$bin/python" -m pip install --quiet "$root"
"$bin/python" -c '
import importlib.util as i
found = [name for name in ("torch", "grpc", "scipy", "plotly", "sklearn") if i.find_spec(name)]
assert not found, f"the base install brought {found}"
'
cd "$place"
"$bin/tramfl" --version
"$bin/tramfl" plan "$root/examples/plan.toml"
"$bin/tramfl" run mnist-10 --no-training --rounds 200 --out played --quiet
"$bin/tramfl" run mnist-10 --no-training --rounds 300 --out played --quiet --resume
"$bin/tramfl" compare digits-3 --no-training --rounds 20 --seeds 1 --policies load-aware,random --out compared --quiet
"$bin/tramfl" faults --schedules 20
"$bin/python" -c '
import tramfl
from tramfl.scheduling import largest_allotment
assert largest_allotment(used=[40, 10, 25], held=[[0, 60, 9], [50, 50, 50]], variance_limit=100).feasible.all()
assert len(tramfl.simulate("digits-5", train=False, rounds=30).rows) == 30
'
refuses() {  # the command must fail with these words
    if "$bin/tramfl" $1 2>said; then echo "tramfl $1 worked without its extra" >&2; exit 1; fi
    grep -q "$2" said || { cat said >&2; exit 1; }
}
refuses "run digits-3" "pip install 'tramfl\["
refuses "status nowhere.toml" "$operating"
[ "${TESTS:-yes}" = no ] && exit 0
"$bin/python" -m pip install --quiet pytest pytest-timeout hypothesis
cd "$root"
# Left out: what compares with other solvers, and what trains or draws a page. They are no part of the base install.
"$bin/python" -m pytest -p no:cacheprovider tests/scheduling tests/circulation tests/record tests/test_config.py \
    tests/test_draws.py tests/test_notation.py tests/test_purity.py tests/cli/test_plan.py tests/cli/test_faults.py \
    --ignore=tests/scheduling/test_water_level.py --ignore=tests/scheduling/test_clairvoyant.py \
    --ignore=tests/record/test_schema.py
