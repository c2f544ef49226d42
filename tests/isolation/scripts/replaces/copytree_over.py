# shutil.copytree into a folder that exists
import os
import shutil

shutil.copytree("ck/shards", "ck/old", dirs_exist_ok=True)
shutil.copytree("ck/deep", "ck/shards", dirs_exist_ok=True)

assert len(os.listdir("ck/old")) == 22
assert os.path.exists("ck/shards/deeper/only.txt")
print("DONE")
