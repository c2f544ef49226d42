# mv of a file over another, and of a folder
import os
import subprocess

subprocess.run(["mv", "ck/optimizer.pt", "ck/model.pt"], check=True)
subprocess.run(["mv", "ck/old", "ck/older"], check=True)

assert not os.path.exists("ck/optimizer.pt")
assert len(os.listdir("ck/older")) == 2
assert not os.path.exists("ck/old")
print("DONE")
