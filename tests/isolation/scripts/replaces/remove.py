# os.remove of one file and of a link
import os

os.remove("ck/optimizer.pt")
os.unlink("ck/latest")

assert not os.path.exists("ck/optimizer.pt")
assert not os.path.lexists("ck/latest")
assert os.path.isdir("ck/checkpoint-100")
print("DONE")
