"""Concurrent changes and reads of few keys through one sidecar; every read must fit what was written.

history.py SIDECAR COUNT SEED

A read fits if the value it returns was written before the read ended, and no other write began after that one had ended
and ended before the read began: so nothing goes back, and every write is seen by the reads after it."""

import random
import sys
import threading
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, ResponseStreamingError

SIDECAR, COUNT, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
KEYS, THREADS, MIB = ["a", "b", "c"], 6, 1 << 20


def client():
    options = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    return boto3.client("s3", endpoint_url=SIDECAR, region_name="us-east-1", aws_access_key_id="key",
                        aws_secret_access_key="secret", config=options)


class Write:
    def __init__(self, value):
        self.value, self.begin, self.end = value, time.monotonic(), float("inf")


lock = threading.Lock()
writes = {key: [Write(None)] for key in KEYS}
for each in writes.values():
    each[0].end = each[0].begin
problems, counter, broken = [], [0], [0]


def body(value):
    # Of several buckets, and different in each of them.
    return b"".join(b"%015d\n" % (value * 10_000 + at) for at in range(1500))


def begin(key):
    with lock:
        counter[0] += 1
        write = Write(counter[0])
        writes[key].append(write)
    return write


def check(key, value, began):
    ended = time.monotonic()
    with lock:
        written = list(writes[key])
    same = [write for write in written if write.value == value and write.begin <= ended]
    for source in same:
        if not any(other.begin > source.end and other.end < began for other in written):
            return
    problems.append(f"{key}: {value} was read, which was replaced before")


def work(seed):
    rng, s3 = random.Random(seed), client()
    for _ in range(COUNT // THREADS):
        key, action = rng.choice(KEYS), rng.random()
        if action < 0.6:
            began = time.monotonic()
            first = rng.choice([None, None, 0, 4096, 10_000])
            try:
                options = {} if first is None else {"Range": f"bytes={first}-{first + 9_999}"}
                read = s3.get_object(Bucket="history", Key=key, **options)["Body"].read()
                at = (first or 0) // 16
                value = (int(read[:16] if (first or 0) % 16 == 0 else read[16 - first % 16:][:16]) - at) // 10_000
                whole = body(value)
                if read != (whole if first is None else whole[first:first + 10_000]):
                    problems.append(f"{key}: bytes of more than one value")
                check(key, value, began)
            except ResponseStreamingError:
                # An object that changes while it is read breaks the read off: no value was read.
                broken[0] += 1
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchKey":
                    raise
                check(key, None, began)
        elif action < 0.75:
            write = begin(key)
            s3.put_object(Bucket="history", Key=key, Body=body(write.value))
            write.end = time.monotonic()
        elif action < 0.85:
            write = begin(key)
            source = f"source-{write.value}"
            s3.put_object(Bucket="history", Key=source, Body=body(write.value))
            try:
                s3.copy_object(Bucket="history", Key=key, CopySource={"Bucket": "history", "Key": source})
                write.end = time.monotonic()
            except ClientError as error:
                # The endpoint fails where the target is deleted meanwhile: whether it was written is unknown.
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 500:
                    raise
        elif action < 0.95:
            write = begin(key)
            upload = s3.create_multipart_upload(Bucket="history", Key=key)["UploadId"]
            part = s3.upload_part(Bucket="history", Key=key, UploadId=upload, PartNumber=1, Body=body(write.value))
            s3.complete_multipart_upload(Bucket="history", Key=key, UploadId=upload, MultipartUpload={
                "Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
            write.end = time.monotonic()
        else:
            with lock:
                write = Write(None)
                writes[key].append(write)
            s3.delete_object(Bucket="history", Key=key)
            write.end = time.monotonic()


def run(seed):
    try:
        work(seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test fails by it
        problems.append(repr(error))


client().create_bucket(Bucket="history")
threads = [threading.Thread(target=run, args=(SEED * 100 + number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if broken[0] > COUNT // 20:
    problems.append(f"{broken[0]} reads were broken off")
if problems:
    sys.exit("\n".join(problems[:20]))
print("passed")
