# twenty shards found by a pattern, removed one by one
import glob
import os

for path in glob.glob("ck/shards/*.bin"):
    os.remove(path)

assert os.listdir("ck/shards") == []
print("DONE")
