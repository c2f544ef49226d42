# cp over a real file, and cp -r
import filecmp
import os
import subprocess

subprocess.run(["cp", "ck/best.json", "ck/log.txt"], check=True)
subprocess.run(["cp", "-r", "ck/old", "ck/copy"], check=True)

assert filecmp.cmp("ck/best.json", "ck/log.txt", shallow=False)
assert len(os.listdir("ck/copy")) == 2
print("DONE")
