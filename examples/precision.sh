#!/bin/sh
# Two training runs with the same seed, one with a mistake, and the call at which they diverge.
cd "$(dirname "$0")/.." || exit 1
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
out=windtunnel-out/precision
rm -rf "$out"

say "python examples/precision.py --dump $out/good"
python examples/precision.py --dump "$out/good" || exit 1

say "python examples/precision.py --dump $out/bad --mistake"
python examples/precision.py --dump "$out/bad" --mistake || exit 1

say "windtunnel compare $out/good $out/bad"
windtunnel compare "$out/good" "$out/bad"
[ $? -eq 3 ] || { echo "expected: they differ (exit code 3)"; exit 1; }
