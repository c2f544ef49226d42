# chmod and touch as commands
import os
import subprocess

subprocess.run(["chmod", "600", "ck/model.pt"], check=True)
subprocess.run(["touch", "-d", "2001-01-01T00:00:00Z", "ck/model.pt"], check=True)

assert os.stat("ck/model.pt").st_mode & 0o777 == 0o600
assert os.stat("ck/model.pt").st_mtime == 978_307_200
print("DONE")
