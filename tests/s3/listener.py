"""A sidecar that verifies signatures, before an endpoint: listener.py SIDECAR. Its keys file has "owner", "reader" and "part"."""

import base64
import hashlib
import io
import sys
import urllib.error
import urllib.request
import zlib

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

SIDECAR = sys.argv[1]
SECRETS = {name: f"{name}-secret-0123456789" for name in ["owner", "reader", "part"]}
MIB = 1 << 20


def client(name, secret=None, **options):
    options = Config(s3={"addressing_style": "path", **options}, retries={"total_max_attempts": 1}, signature_version="s3v4")
    return boto3.client("s3", endpoint_url=SIDECAR, region_name="us-east-1", aws_access_key_id=name,
                        aws_secret_access_key=secret or SECRETS.get(name, "x" * 20), config=options)


def code(call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    return None


def status(request):
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


owner, reader, part = client("owner"), client("reader"), client("part")
owner.create_bucket(Bucket="bucket")
owner.create_bucket(Bucket="other")

# Names and bodies of every kind, read cold and warm.
names = ["plain", "a/b", "sp ace+plus", "p%2Fq", "ünï/✓", "~!*'()", "a&b=c?d", "x" * 200]
for number, name in enumerate(names):
    body = hashlib.sha512(name.encode()).digest() * (100 + number)
    owner.put_object(Bucket="bucket", Key=name, Body=body, ContentType="text/x", Metadata={"colour": "green  or blue"})
    for who in [owner, reader]:
        answer = who.get_object(Bucket="bucket", Key=name)
        assert answer["Body"].read() == body and answer["ContentType"] == "text/x", name
    assert owner.get_object(Bucket="bucket", Key=name, Range="bytes=5-9")["Body"].read() == body[5:10], name
    assert reader.head_object(Bucket="bucket", Key=name)["ContentLength"] == len(body), name
    with urllib.request.urlopen(owner.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": name})) as answer:
        assert answer.read() == body, name
    etag = owner.head_object(Bucket="bucket", Key=name)["ETag"]
    assert code(owner.get_object, Bucket="bucket", Key=name, IfNoneMatch=etag)[1] == 304, name
assert [entry["Key"] for entry in reader.list_objects_v2(Bucket="bucket")["Contents"]] == sorted(names, key=str.encode)
assert reader.list_objects_v2(Bucket="bucket", Prefix="sp ace+")["KeyCount"] == 1
assert {bucket["Name"] for bucket in owner.list_buckets()["Buckets"]} >= {"bucket", "other"}

# Uploads: signed as a whole, not signed, with each checksum, in parts, by a presigned URL, and of nothing.
for name, options in [("signed", {"payload_signing_enabled": True}), ("unsigned", {"payload_signing_enabled": False})]:
    client("owner", **options).put_object(Bucket="bucket", Key=name, Body=b"x" * 100_000)
    assert reader.get_object(Bucket="bucket", Key=name)["Body"].read() == b"x" * 100_000
for checksum in ["CRC32", "SHA1", "SHA256"]:
    owner.put_object(Bucket="bucket", Key=checksum, Body=b"y" * 1000, ChecksumAlgorithm=checksum)
    assert reader.get_object(Bucket="bucket", Key=checksum)["Body"].read() == b"y" * 1000
owner.put_object(Bucket="bucket", Key="empty", Body=b"")
assert reader.get_object(Bucket="bucket", Key="empty")["Body"].read() == b""
large = hashlib.sha512(b"large").digest() * (12 * MIB // 64)
owner.upload_fileobj(io.BytesIO(large), "bucket", "large", Config=TransferConfig(multipart_threshold=MIB, multipart_chunksize=5 * MIB))
assert reader.get_object(Bucket="bucket", Key="large")["Body"].read() == large
url = owner.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "by-url"})
urllib.request.urlopen(urllib.request.Request(url, data=b"by url", method="PUT", headers={"Content-Type": "text/plain"}))
assert reader.get_object(Bucket="bucket", Key="by-url")["Body"].read() == b"by url"


def put_with_trailer(key, body, checksum):
    """Returns the status of an upload in chunks, with a checksum after them, as SDKs send it over TLS."""
    data = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    data += b"0\r\nx-amz-checksum-crc32:%s\r\n\r\n" % checksum
    # Python would call it a form, of which moto keeps no bytes.
    headers = {"content-type": "text/plain", "content-encoding": "aws-chunked", "x-amz-trailer": "x-amz-checksum-crc32",
               "x-amz-decoded-content-length": str(len(body))}
    request = AWSRequest("PUT", f"{SIDECAR}/bucket/{key}", data=data, headers=headers)
    request.context["checksum"] = {"request_algorithm": {"in": "trailer", "algorithm": "crc32", "name": "x-amz-checksum-crc32"}}
    S3SigV4Auth(Credentials("owner", SECRETS["owner"]), "s3", "us-east-1").add_auth(request)
    return status(urllib.request.Request(request.url, data=data, headers=dict(request.headers), method="PUT"))


for body in [b"", b"z", b"z" * 3_000_000]:
    right = base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))
    assert put_with_trailer("trailer", body, right) == 200, len(body)
    assert reader.get_object(Bucket="bucket", Key="trailer")["Body"].read() == body
assert put_with_trailer("trailer", b"other", b"AAAAAA==") == 400
assert reader.get_object(Bucket="bucket", Key="trailer")["Body"].read() == b"z" * 3_000_000
owner.copy_object(Bucket="bucket", Key="copy", CopySource={"Bucket": "bucket", "Key": "sp ace+plus"})
assert owner.get_object(Bucket="bucket", Key="copy")["Body"].read() == owner.get_object(Bucket="bucket", Key="sp ace+plus")["Body"].read()

# Rights.
denied = ("AccessDenied", 403)
assert code(reader.put_object, Bucket="bucket", Key="plain", Body=b"x") == denied
assert code(reader.delete_object, Bucket="bucket", Key="plain") == denied
assert code(reader.get_object, Bucket="other", Key="x") == denied
assert code(reader.list_buckets) == denied
part.put_object(Bucket="bucket", Key="in/a", Body=b"a")
assert part.get_object(Bucket="bucket", Key="in/a")["Body"].read() == b"a"
assert part.list_objects_v2(Bucket="bucket", Prefix="in/")["KeyCount"] == 1
assert code(part.list_objects_v2, Bucket="bucket") == denied
assert code(part.put_object, Bucket="bucket", Key="out", Body=b"a") == denied
assert code(part.copy_object, Bucket="bucket", Key="in/b", CopySource={"Bucket": "bucket", "Key": "plain"}) == denied
part.copy_object(Bucket="bucket", Key="in/b", CopySource={"Bucket": "bucket", "Key": "in/a"})
objects = lambda *keys: {"Objects": [{"Key": key} for key in keys]}
assert code(part.delete_objects, Bucket="bucket", Delete=objects("in/a", "plain")) == denied
assert len(part.delete_objects(Bucket="bucket", Delete=objects("in/a", "in/b"))["Deleted"]) == 2
assert code(part.get_object, Bucket="bucket", Key="in/a") == ("NoSuchKey", 404)
assert reader.head_bucket(Bucket="bucket") and reader.get_object(Bucket="bucket", Key="plain")
owner.delete_objects(Bucket="bucket", Delete=objects("copy", "by-url"))

# Signatures that do not hold.
assert code(client("owner", "another-secret-0123456789").get_object, Bucket="bucket", Key="plain") == ("SignatureDoesNotMatch", 403)
assert code(client("nobody").get_object, Bucket="bucket", Key="plain") == ("InvalidAccessKeyId", 403)

url = owner.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "plain"}, ExpiresIn=60)
assert status(url) == 200 and status(url.replace("Expires=60", "Expires=61")) == 403 and status(url.replace("plain", "large")) == 403
assert status(url + "&response-content-type=text/html") == 403 and status(f"{SIDECAR}/bucket/plain") == 403
request = AWSRequest("GET", f"{SIDECAR}/bucket/plain", headers={"x-amz-content-sha256": hashlib.sha256(b"").hexdigest()})
S3SigV4Auth(Credentials("owner", SECRETS["owner"]), "s3", "us-east-1").add_auth(request)
headers = dict(request.headers)
assert status(urllib.request.Request(request.url, headers=headers)) == 200
assert status(urllib.request.Request(request.url, headers={**headers, "x-amz-acl": "public-read"})) == 403
assert status(urllib.request.Request(request.url, headers={**headers, "X-Amz-Date": "20200101T000000Z"})) == 400
print("passed")
