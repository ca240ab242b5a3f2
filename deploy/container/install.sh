#!/bin/sh
# The steps of the image, as a script: where there is no container engine, run it as it is.
#   PREFIX   where the environment goes (/opt/tramfl)
#   EXTRAS   what a site needs (torch,runtime,fast): PyTorch, the site's own service, and quick coding of the model
set -eu
PREFIX=${PREFIX:-/opt/tramfl}
EXTRAS=${EXTRAS:-torch,runtime,fast}
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
python3 -m venv "$PREFIX"
"$PREFIX/bin/python" -m pip install --quiet --no-cache-dir --constraint "$SOURCE/constraints.txt" "$SOURCE[$EXTRAS]"
"$PREFIX/bin/tramfl" --version
