# another interpreter deletes, with nothing of ours in it
import os
import subprocess
import sys

program = "import os, shutil; shutil.rmtree('ck/old'); os.remove('ck/optimizer.pt')"
subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)

assert not os.path.exists("ck/old")
assert not os.path.exists("ck/optimizer.pt")
print("DONE")
