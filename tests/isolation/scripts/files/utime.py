# times change: a file, a folder, by name and by descriptor
import os

os.utime("ck/model.pt", (1, 2))
os.utime("ck/old", (1, 2))
with open("ck/log.txt") as f:
    os.utime(f.fileno(), (1, 2))

assert [os.stat(path).st_mtime for path in ("ck/model.pt", "ck/old", "ck/log.txt")] == [2, 2, 2]
print("DONE")
