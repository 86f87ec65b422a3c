#!/bin/sh
# Makes .venv from the project's own files: `setup.sh runtime` what the program needs, `setup.sh dev` what its tests and linters need on top,
# `setup.sh docs` what makes the site. requirements/ has all packages with their hashes, so nothing is resolved here, and nothing
# else is installed.
set -eu
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
PIP=".venv/bin/python -m pip --disable-pip-version-check --no-input -q install --no-deps"

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $PYTHON is $("$PYTHON" -V); Python 3.11 or newer is needed (PYTHON=/path/to/python3.11 make …)" >&2
    exit 1
}
if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    echo "setup: making .venv" >&2
    "$PYTHON" -m venv .venv || {
        echo "setup: $PYTHON cannot make virtual environments; install its venv module (Debian: apt-get install python3-venv)" >&2
        exit 1
    }
fi
case "${1:-runtime}" in
runtime)
    echo "setup: installing the program and its libraries" >&2
    $PIP --require-hashes -r requirements/build.txt -r requirements/all.txt
    $PIP --no-build-isolation -e .
    ;;
dev)
    echo "setup: installing the test tools and linters" >&2
    $PIP --require-hashes -r requirements/dev.txt
    ;;
docs)
    echo "setup: installing the generator of the site" >&2
    $PIP --require-hashes -r requirements/docs.txt
    ;;
*)
    echo "usage: hack/setup.sh runtime|dev|docs" >&2
    exit 2
    ;;
esac
