# tee, and a redirection of the shell that empties a file
import os
import subprocess

subprocess.run(["tee", "ck/log.txt"], input=b"step 1\n", stdout=subprocess.DEVNULL, check=True)
subprocess.run(["sh", "-c", "> ck/metrics.csv && echo step >> ck/best.json"], check=True)

assert [os.path.getsize(f"ck/{name}") for name in ("log.txt", "metrics.csv", "best.json")] == [7, 0, 31]
print("DONE")
