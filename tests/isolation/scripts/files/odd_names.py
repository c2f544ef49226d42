# names with spaces, commas, colons, line ends and bytes that are no text
import os

os.mkdir("ck/a, b:c")
os.replace("ck/best.json", "ck/a, b:c/two\nlines")
with open(b"ck/\xff\xfe.pt", "wb") as f:
    f.write(b"bytes for a name")
with open("ck/модель 模型.pt", "w") as f:
    f.write("another alphabet")

assert os.path.getsize("ck/a, b:c/two\nlines") == 26
assert os.path.getsize(b"ck/\xff\xfe.pt") == 16
assert not os.path.exists("ck/best.json")
print("DONE")
