# a file gives way to a folder, a folder to a file, a link to a file
import os
import shutil

os.remove("ck/tokens.bin")
os.makedirs("ck/tokens.bin/part")
shutil.rmtree("ck/old")
with open("ck/old", "w") as f:
    f.write("no longer a folder")
os.remove("ck/latest")
with open("ck/latest", "w") as f:
    f.write("checkpoint-100")

assert os.path.isdir("ck/tokens.bin/part")
assert os.path.isfile("ck/old")
assert not os.path.islink("ck/latest")
print("DONE")
