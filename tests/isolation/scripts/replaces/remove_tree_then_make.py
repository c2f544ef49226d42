# a folder is emptied by removing it and making it again
import os
import shutil

shutil.rmtree("ck/shards")
os.makedirs("ck/shards")
with open("ck/shards/shard-00.bin", "wb") as f:
    f.write(b"the first of a new run")

assert os.listdir("ck/shards") == ["shard-00.bin"]
print("DONE")
