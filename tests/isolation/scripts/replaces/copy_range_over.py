# os.copy_file_range and os.posix_fallocate
import os

with open("ck/best.json", "rb") as source, open("ck/log.txt", "r+b") as target:
    assert os.copy_file_range(source.fileno(), target.fileno(), 26) == 26
    os.posix_fallocate(target.fileno(), 0, 5000)

with open("ck/log.txt", "rb") as f:
    text = f.read()
assert text.startswith(b'{"step": 100, "loss": 1.5}')
assert len(text) == 5000
print("DONE")
