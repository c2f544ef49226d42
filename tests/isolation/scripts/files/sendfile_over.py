# os.sendfile from one file into another
import os

with open("ck/model.pt", "rb") as source, open("ck/tokens.bin", "r+b") as target:
    size = os.fstat(source.fileno()).st_size
    assert os.sendfile(target.fileno(), source.fileno(), 0, size) == size
    target.truncate(size)

with open("ck/model.pt", "rb") as source, open("ck/tokens.bin", "rb") as target:
    assert source.read() == target.read()
print("DONE")
