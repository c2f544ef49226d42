# os.truncate by name
import os

os.truncate("ck/tokens.bin", 10)

assert os.path.getsize("ck/tokens.bin") == 10
print("DONE")
