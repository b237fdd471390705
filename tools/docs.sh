#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes the documentation site, out/docs, in an environment of its own with what pyproject.toml pins for it;
# needs PyPI the first time, and where that is out of reach it says so and does no more.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-/usr/bin/python3}
work=build/docs
pins=$("$python" -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
if [ "$(cat "$work/pins" 2>/dev/null)" != "$pins" ]; then
    rm -rf "$work"
    mkdir -p "$work"
    "$python" -m venv "$work/env"
    # shellcheck disable=SC2086
    if ! "$work/env/bin/pip" --disable-pip-version-check install -q $pins >"$work/pip.log" 2>&1; then
        echo "docs: skipped, PyPI has not given everything: $(tail -n 1 "$work/pip.log")"
        exit 0
    fi
    echo "$pins" >"$work/pins"
fi
mkdir -p out
exec "$work/env/bin/python" tools/docs.py "$work" out/docs
