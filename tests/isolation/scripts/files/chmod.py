# modes change: a file, a folder, by name and by descriptor
import os

os.chmod("ck/model.pt", 0o600)
os.chmod("ck/old", 0o700)
with open("ck/log.txt") as f:
    os.fchmod(f.fileno(), 0o640)

modes = [os.stat(path).st_mode & 0o777 for path in ("ck/model.pt", "ck/old", "ck/log.txt")]
assert modes == [0o600, 0o700, 0o640]
print("DONE")
