# a name of another file takes the place of a real one
import filecmp
import os

os.link("ck/old/model.pt", "ck/model.pt.tmp")
os.replace("ck/model.pt.tmp", "ck/tokens.bin")
os.remove("ck/optimizer.pt")
os.link("ck/best.json", "ck/optimizer.pt")

assert filecmp.cmp("ck/old/model.pt", "ck/tokens.bin", shallow=False)
assert filecmp.cmp("ck/best.json", "ck/optimizer.pt", shallow=False)
print("DONE")
