# os.open with O_TRUNC, os.write and os.pwrite
import os

descriptor = os.open("ck/log.txt", os.O_WRONLY | os.O_TRUNC)
os.write(descriptor, b"step 1\n")
os.pwrite(descriptor, b"S", 0)
os.close(descriptor)

with open("ck/log.txt") as f:
    assert f.read() == "Step 1\n"
print("DONE")
