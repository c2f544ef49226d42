# os.system and os.popen, whose failures a script may not even notice
import os

assert os.system("rm -rf ck/old && mv ck/log.txt ck/log.old") == 0
with os.popen("echo {} > ck/best.json && echo written") as answer:
    assert answer.read() == "written\n"

assert not os.path.exists("ck/old")
assert not os.path.exists("ck/log.txt")
assert os.path.getsize("ck/best.json") == 3
print("DONE")
