# a logging.FileHandler that begins its file anew
import logging

handler = logging.FileHandler("ck/log.txt", mode="w")
log = logging.getLogger("training")
log.addHandler(handler)
log.warning("step 1")
log.removeHandler(handler)
handler.close()

with open("ck/log.txt") as f:
    assert f.read() == "step 1\n"
print("DONE")
