# bytes changed in the middle of a file

with open("ck/tokens.bin", "r+b") as f:
    f.seek(100)
    f.write(b"changed")

with open("ck/tokens.bin", "rb") as f:
    assert f.read()[100:107] == b"changed"
print("DONE")
