# a cache in the home folder, as data libraries keep one
import os
from pathlib import Path

cache = Path.home() / ".cache" / "datasets"
(cache / "index.json").write_text('{"tokens": 0}')
(cache / "tokens.bin").unlink()
(cache / "tokens.bin.lock").touch()

assert os.path.expanduser("~/.cache/datasets") == str(cache)
assert sorted(os.listdir(cache)) == ["index.json", "tokens.bin.lock"]
print("DONE")
