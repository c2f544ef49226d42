# everything in the working folder goes
import os
import shutil

shutil.rmtree("ck", ignore_errors=True)

assert os.listdir() == []
print("DONE")
