"""Columns of a Parquet file, read by Arrow's own S3 client (AWS's SDK for C++): parquet.py SIDECAR KEY SECRET.

Writes in parts, reads single columns by ranges. That SDK signs them, so they cannot be widened to buckets: what they begin and end with is not
kept, and columns come from memory once the file was read as a whole."""

import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

SIDECAR, KEY, SECRET = sys.argv[1:]
ROWS, GROUP = 400_000, 50_000
s3 = fs.S3FileSystem(access_key=KEY, secret_key=SECRET, endpoint_override=SIDECAR.split("//")[1], scheme="http",
                     region="us-east-1", allow_bucket_creation=True)
s3.create_dir("tables")


def table(factor):
    number = pa.array(range(ROWS), pa.int64())
    return pa.table({"number": number, "product": pc.multiply(number, factor),
                     "text": pc.binary_join_element_wise("row", pc.cast(number, pa.string()), "-"),
                     "filler": pa.array([bytes([row % 251]) * 40 for row in range(ROWS)], pa.binary())})


for factor in [3, 7]:
    whole = table(factor)
    pq.write_table(whole, "tables/t.parquet", filesystem=s3, row_group_size=GROUP, compression="none", use_dictionary=False)
    for number in range(4):
        if number == 1:
            with s3.open_input_file("tables/t.parquet") as file:
                assert len(file.read()) == s3.get_file_info("tables/t.parquet").size
        part = pq.read_table("tables/t.parquet", columns=["product"], filesystem=s3)
        assert part.column_names == ["product"] and part["product"] == whole["product"]
        few = ds.dataset("tables/t.parquet", filesystem=s3).to_table(
            columns=["text"], filter=(pc.field("number") >= 123_456) & (pc.field("number") < 123_460))
        assert few["text"].to_pylist() == [f"row-{row}" for row in range(123_456, 123_460)]
    assert pq.read_table("tables/t.parquet", filesystem=s3) == whole
print("passed", s3.get_file_info("tables/t.parquet").size)
