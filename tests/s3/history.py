"""Concurrent changes and reads of few keys through one sidecar or several; every read must fit what was written.

history.py SIDECAR[,SIDECAR...] COUNT SEED

A read fits if the value it returns was written before the read ended, and no other write began after that one had ended
and ended before the read began: so nothing goes back, and every write is seen by the reads after it, whichever sidecar
either has gone through. Only reads of `large` may be broken off."""

import os
import random
import sys
import threading
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, ResponseStreamingError

SIDECARS, COUNT, SEED = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
# Lines of 16 bytes. What is longer than 128 KiB is sent while the endpoint is asked for the rest.
LINES = {"a": 1500, "b": 1500, "large": 20_000}
KEYS, THREADS, BUCKET = list(LINES), 6, f"history-{SEED}"


def client(url):
    options = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1",
                        aws_access_key_id=os.environ.get("AWS_ACCESS_KEY_ID", "key"),
                        aws_secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY", "secret"), config=options)


class Write:
    def __init__(self, value):
        self.value, self.begin, self.end = value, time.monotonic(), float("inf")


lock = threading.Lock()
writes = {key: [Write(None)] for key in KEYS}
for each in writes.values():
    each[0].end = each[0].begin
problems, counter, broken, reads = [], [0], [0], [0]


def body(key, value):
    # Of several buckets, and different in each of them.
    return b"".join(b"%015d\n" % (value * 100_000 + at) for at in range(LINES[key]))


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
    rng, clients = random.Random(seed), [client(url) for url in SIDECARS]
    for _ in range(COUNT // THREADS):
        s3 = rng.choice(clients)
        key, action = rng.choice(KEYS), rng.random()
        if action < 0.6:
            began = time.monotonic()
            first = rng.choice([None, None, 0, 4096, 10_000])
            with lock:
                reads[0] += 1
            try:
                options = {} if first is None else {"Range": f"bytes={first}-{first + 9_999}"}
                read = s3.get_object(Bucket=BUCKET, Key=key, **options)["Body"].read()
                at = (first or 0) // 16
                value = (int(read[:16] if (first or 0) % 16 == 0 else read[16 - first % 16:][:16]) - at) // 100_000
                whole = body(key, value)
                if read != (whole if first is None else whole[first:first + 10_000]):
                    problems.append(f"{key}: bytes of more than one value")
                check(key, value, began)
            except ResponseStreamingError:
                # An object that changes while it is read breaks the read off: no value was read.
                if key != "large" or first is not None:
                    raise
                with lock:
                    broken[0] += 1
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchKey":
                    raise
                check(key, None, began)
        elif action < 0.75:
            write = begin(key)
            s3.put_object(Bucket=BUCKET, Key=key, Body=body(key, write.value))
            write.end = time.monotonic()
        elif action < 0.85:
            write = begin(key)
            source = f"source-{write.value}"
            s3.put_object(Bucket=BUCKET, Key=source, Body=body(key, write.value))
            try:
                s3.copy_object(Bucket=BUCKET, Key=key, CopySource={"Bucket": BUCKET, "Key": source})
                write.end = time.monotonic()
            except ClientError as error:
                # The endpoint fails where the target is deleted meanwhile: whether it was written is unknown.
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 500:
                    raise
        elif action < 0.95:
            write = begin(key)
            upload = s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
            part = s3.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=body(key, write.value))
            s3.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={
                "Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
            write.end = time.monotonic()
        else:
            with lock:
                write = Write(None)
                writes[key].append(write)
            try:
                s3.delete_object(Bucket=BUCKET, Key=key)
                write.end = time.monotonic()
            except ClientError as error:
                # So answers versitygw where two delete at once: what became of this one is unknown.
                if error.response["Error"]["Code"] != "NoSuchKey":
                    raise


def run(seed):
    try:
        work(seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test fails by it
        problems.append(repr(error))


client(SIDECARS[0]).create_bucket(Bucket=BUCKET)
threads = [threading.Thread(target=run, args=(SEED * 100 + number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if broken[0] > reads[0] // 20:
    problems.append(f"{broken[0]} of {reads[0]} reads were broken off")
if problems:
    sys.exit("\n".join(problems[:20]))
print("passed:", reads[0], "reads,", broken[0], "broken off")
