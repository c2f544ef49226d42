# a table of metrics is read, cut and written again
import csv

with open("ck/metrics.csv", newline="") as f:
    rows = list(csv.DictReader(f))
with open("ck/metrics.csv", "w", newline="") as f:
    writer = csv.DictWriter(f, ["step", "loss"])
    writer.writeheader()
    writer.writerows([*rows[:1], {"step": "1", "loss": "2.0"}])

with open("ck/metrics.csv", newline="") as f:
    assert [row["step"] for row in csv.DictReader(f)] == ["99", "1"]
print("DONE")
