# sed -i, which writes a new file and renames it
import subprocess

subprocess.run(["sed", "-i", "s/1.5/0.5/", "ck/best.json"], check=True)

with open("ck/best.json") as f:
    assert f.read() == '{"step": 100, "loss": 0.5}'
print("DONE")
