# a file is cut through a descriptor
import os

descriptor = os.open("ck/tokens.bin", os.O_WRONLY)
os.ftruncate(descriptor, 100)
os.close(descriptor)

assert os.path.getsize("ck/tokens.bin") == 100
print("DONE")
