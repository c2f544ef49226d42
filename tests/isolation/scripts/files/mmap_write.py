# bytes changed through a shared map
import mmap

with open("ck/tokens.bin", "r+b") as f, mmap.mmap(f.fileno(), 0) as memory:
    memory[:5] = b"hello"
    memory.flush()

with open("ck/tokens.bin", "rb") as f:
    assert f.read(5) == b"hello"
print("DONE")
