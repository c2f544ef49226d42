# a file with two names is changed by one of them

with open("ck/first.bin", "r+b") as f:
    f.write(b"changed")

with open("ck/first.bin", "rb") as f:
    assert f.read(7) == b"changed"
print("DONE")
