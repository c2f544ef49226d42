# os.removedirs goes up as long as folders are empty
import os

os.remove("ck/deep/deeper/only.txt")
os.removedirs("ck/deep/deeper")

assert not os.path.exists("ck/deep")
assert os.path.isdir("ck")
print("DONE")
