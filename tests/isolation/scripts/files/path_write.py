# Path.write_text, Path.write_bytes, Path.touch and Path.unlink
from pathlib import Path

Path("ck/best.json").write_text("{}")
Path("ck/tokens.bin").write_bytes(b"few")
Path("ck/log.txt").touch()
Path("ck/new.txt").touch()
Path("ck/metrics.csv").unlink()

assert Path("ck/best.json").read_text() == "{}"
assert Path("ck/tokens.bin").read_bytes() == b"few"
assert Path("ck/new.txt").exists()
assert not Path("ck/metrics.csv").exists()
print("DONE")
