#!/bin/sh
# The steps of the image, as a script: where there is no container engine, run it as it is.
#   PREFIX   where the environment goes (/opt/tramfl)
#   EXTRAS   what a site needs (torch,runtime); a site without training code of its own needs both
set -eu
PREFIX=${PREFIX:-/opt/tramfl}
EXTRAS=${EXTRAS:-torch,runtime}
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
python3 -m venv "$PREFIX"
"$PREFIX/bin/python" -m pip install --quiet --no-cache-dir --constraint "$SOURCE/constraints.txt" "$SOURCE[$EXTRAS]"
"$PREFIX/bin/tramfl" --version
