# members added to a zip file and to a tar file
import tarfile
import zipfile

with zipfile.ZipFile("ck/archive.zip", "a") as archive:
    archive.writestr("step-100.txt", "loss 1.5")
with tarfile.open("ck/archive.tar", "a") as archive:
    archive.add("ck/best.json", "best.json")

with zipfile.ZipFile("ck/archive.zip") as archive:
    assert archive.namelist() == ["step-99.txt", "step-100.txt"]
with tarfile.open("ck/archive.tar") as archive:
    assert archive.getnames() == ["log.txt", "best.json"]
print("DONE")
