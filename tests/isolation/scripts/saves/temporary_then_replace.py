# a NamedTemporaryFile in the same folder replaces a real file
import json
import os
import tempfile

with tempfile.NamedTemporaryFile("w", dir="ck", delete=False) as f:
    json.dump({"step": 2}, f)
os.replace(f.name, "ck/best.json")

with open("ck/best.json") as f:
    assert json.load(f) == {"step": 2}
print("DONE")
