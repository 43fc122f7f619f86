"""What clients of S3 do every day, through the sidecar, each read cold and warm: everyday.py SIDECAR ENDPOINT DIRECTORY."""

import hashlib
import io
import os
import sys
import urllib.request

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

SIDECAR, ENDPOINT, DIRECTORY = sys.argv[1:]
MIB = 1 << 20


def client(url):
    options = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, signature_version="s3v4")
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key",
                        aws_secret_access_key="secret", config=options)


through, direct = client(SIDECAR), client(ENDPOINT)


def pattern(length, seed):
    block = hashlib.sha512(str(seed).encode()).digest()
    return (block * (length // len(block) + 1))[:length]


def get(key, **options):
    answer = through.get_object(Bucket="bucket", Key=key, **options)
    return answer, answer["Body"].read()


def code(call):
    try:
        call()
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


through.create_bucket(Bucket="bucket")

# Names of every kind, with what belongs to an object.
names = ["plain", "a//b", "a/../b", "./x", "sp ace+plus%2Fslash", "ünï/✓", "dir/", "~!*'()", "a&b=c?d#e", "x" * 900]
for number, name in enumerate(names):
    body = pattern(5000 + number, name)
    through.put_object(Bucket="bucket", Key=name, Body=body, ContentType="text/x", Metadata={"colour": "green"},
                       CacheControl="max-age=5", ContentDisposition="inline", ChecksumAlgorithm="SHA256")
    for _ in range(3):
        answer, read = get(name, ChecksumMode="ENABLED")
        expected = direct.get_object(Bucket="bucket", Key=name, ChecksumMode="ENABLED")
        assert read == body, name
        for key in ["ETag", "LastModified", "ContentType", "Metadata", "CacheControl", "ContentDisposition",
                    "ChecksumSHA256", "ContentLength"]:
            assert answer.get(key) == expected.get(key), (name, key)
        head = through.head_object(Bucket="bucket", Key=name)
        assert head["ContentLength"] == len(body) and head["Metadata"] == {"colour": "green"}
listed = [each["Key"] for each in through.list_objects_v2(Bucket="bucket")["Contents"]]
assert listed == [each["Key"] for each in direct.list_objects_v2(Bucket="bucket")["Contents"]]
assert sorted(listed) == sorted(names)

# Large objects: in parts up, in parts down, and ranges.
path, copy = os.path.join(DIRECTORY, "large"), os.path.join(DIRECTORY, "copy")
large = pattern(20 * MIB + 123, "large")
with open(path, "wb") as file:
    file.write(large)
parts = TransferConfig(multipart_threshold=6 * MIB, multipart_chunksize=5 * MIB, max_concurrency=4)
through.upload_file(path, "bucket", "large", Config=parts)
for _ in range(2):
    through.download_file("bucket", "large", copy, Config=parts)
    with open(copy, "rb") as file:
        assert file.read() == large
    for first, last in [(0, 0), (4095, 4096), (4 * MIB - 1, 4 * MIB), (19 * MIB, 30 * MIB), (123, 9 * MIB)]:
        answer, read = get("large", Range=f"bytes={first}-{last}")
        assert read == large[first:last + 1]
        assert answer["ContentRange"] == f"bytes {first}-{min(last, len(large) - 1)}/{len(large)}"
    assert get("large", Range="bytes=-7")[1] == large[-7:]
assert code(lambda: get("large", Range=f"bytes={len(large)}-")) == "InvalidRange"

# Conditions.
etag = get("plain")[0]["ETag"]
for _ in range(2):
    assert code(lambda: get("plain", IfNoneMatch=etag)) == "304"
    assert code(lambda: get("plain", IfMatch='"other"')) == "PreconditionFailed"
    assert get("plain", IfMatch=etag)[1] == get("plain", IfNoneMatch='"other"')[1]

# Changes through the sidecar and around it are seen at once.
for change in [through, direct]:
    for number in range(3):
        change.put_object(Bucket="bucket", Key="plain", Body=pattern(4000, number))
        assert get("plain")[1] == get("plain")[1] == pattern(4000, number)
    change.copy_object(Bucket="bucket", Key="plain", CopySource={"Bucket": "bucket", "Key": "a//b"})
    assert get("plain")[1] == pattern(5001, "a//b")
    change.delete_object(Bucket="bucket", Key="plain")
    assert code(lambda: get("plain")) == "NoSuchKey"
    change.put_object(Bucket="bucket", Key="plain", Body=b"")
    assert get("plain")[1] == get("plain")[1] == b""
    change.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "plain"}, {"Key": "ünï/✓"}]})
    assert code(lambda: get("plain")) == code(lambda: get("ünï/✓")) == "NoSuchKey"

# Presigned requests.
url = through.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "a/../b"})
for _ in range(2):
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == pattern(5002, "a/../b")
    part = urllib.request.Request(url, headers={"Range": "bytes=10-19"})
    with urllib.request.urlopen(part) as answer:
        assert answer.status == 206 and answer.read() == pattern(5002, "a/../b")[10:20]
url = through.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "signed"})
put = urllib.request.Request(url, data=b"by a signed request", method="PUT", headers={"Content-Type": "text/x"})
urllib.request.urlopen(put).close()
assert get("signed")[1] == b"by a signed request"

# Versions.
through.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
versions = [through.put_object(Bucket="bucket", Key="many", Body=pattern(9, number))["VersionId"] for number in range(3)]
for _ in range(2):
    for number, version in enumerate(versions):
        assert get("many", VersionId=version)[1] == pattern(9, number)
    answer, read = get("many")
    assert (answer["VersionId"], read) == (versions[2], pattern(9, 2))
through.delete_object(Bucket="bucket", Key="many")
assert code(lambda: get("many")) == "NoSuchKey"

# A body whose length is not known.
class Stream:
    def __init__(self, length):
        self.bytes = io.BytesIO(pattern(length, "stream"))

    def read(self, length=-1):
        return self.bytes.read(length)


through.upload_fileobj(Stream(11 * MIB), "bucket", "unknown-length", Config=parts)
assert get("unknown-length")[1] == pattern(11 * MIB, "stream")
assert code(lambda: through.get_object(Bucket="none", Key="x")) == "NoSuchBucket"
print("passed")
