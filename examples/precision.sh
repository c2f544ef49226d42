# Two trainings, one with a mistake, and where they part. Run by `make probe`.
set -e
out=windtunnel-out-precision
rm -rf "$out"
echo "a training as it should be"
python examples/precision.py --dump "$out/good"
echo
echo "the same training with a mistake"
python examples/precision.py --dump "$out/bad" --mistake
echo
echo "windtunnel compare $out/good $out/bad"
windtunnel compare "$out/good" "$out/bad" || test $? -eq 3
