# a name of another file takes the place of a real one
import os

os.link("ck/old/model.pt", "ck/model.pt.tmp")
os.replace("ck/model.pt.tmp", "ck/tokens.bin")
os.remove("ck/optimizer.pt")
os.link("ck/best.json", "ck/optimizer.pt")

assert os.path.samefile("ck/old/model.pt", "ck/tokens.bin")
assert os.path.samefile("ck/best.json", "ck/optimizer.pt")
print("DONE")
