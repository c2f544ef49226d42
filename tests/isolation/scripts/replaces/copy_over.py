# shutil.copyfile, copy and copy2 over real files
import filecmp
import shutil

shutil.copyfile("ck/best.json", "ck/old/model.pt")
shutil.copy("ck/best.json", "ck/log.txt")
shutil.copy2("ck/best.json", "ck/metrics.csv")

for path in ("ck/old/model.pt", "ck/log.txt", "ck/metrics.csv"):
    assert filecmp.cmp("ck/best.json", path, shallow=False)
print("DONE")
