#!/bin/sh
# The main use in two runs: a 7 B model that does not fit on one 80 GB device; what makes it fit, and how long a step takes.
cd "$(dirname "$0")/.." || exit 1
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

say "windtunnel run --device a100-80gb examples/qwen25_7b.py --batch-size 4"
windtunnel run --device a100-80gb --out windtunnel-out/demo-1 --force examples/qwen25_7b.py --batch-size 4
[ $? -eq 4 ] || { echo "expected: it does not fit (exit code 4)"; exit 1; }

say "windtunnel run --level 3 --device a100-80gb examples/qwen25_7b.py --batch-size 1 --checkpointing"
windtunnel run --level 3 --device a100-80gb --out windtunnel-out/demo-2 --force examples/qwen25_7b.py --batch-size 1 --checkpointing

here=$(command -v windtunnel)
printf '\nTo look at them in a browser, alone or side by side:\n  %s view windtunnel-out/demo-1\n  %s view windtunnel-out/demo-1 windtunnel-out/demo-2\n' "$here" "$here"
