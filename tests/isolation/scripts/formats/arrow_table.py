# a table of metrics written by Arrow's own file system, which is C++
import pyarrow as pa
import pyarrow.parquet as pq

pq.write_table(pa.table({"step": [1, 2], "loss": [2.0, 1.0]}), "ck/metrics.csv")

assert pq.read_table("ck/metrics.csv").num_rows == 2
print("DONE")
