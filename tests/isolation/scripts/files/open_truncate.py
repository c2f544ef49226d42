# open for reading and writing, which empties the file

with open("ck/log.txt", "w+") as f:
    f.write("begun again")
    f.seek(0)
    assert f.read() == "begun again"

with open("ck/log.txt") as f:
    assert f.read() == "begun again"
print("DONE")
