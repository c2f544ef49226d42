# shutil.rmtree of a folder, and of one in it
import os
import shutil

shutil.rmtree("ck/old")
shutil.rmtree("ck/deep/deeper")

assert not os.path.exists("ck/old")
assert os.listdir("ck/deep") == []
print("DONE")
