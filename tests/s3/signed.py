"""What an endpoint that checks signatures refuses is refused through the sidecar, also where the sidecar has the object.

signed.py SIDECAR ENDPOINT OWNER OTHER, each user KEY:SECRET"""

import datetime
import json
import socket
import sys
import urllib.error
import urllib.request

import boto3
import botocore.auth
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

SIDECAR, ENDPOINT = sys.argv[1:3]
OWNER, OTHER = (user.split(":") for user in sys.argv[3:5])
BODY = bytes(range(256)) * 2000

# Not every resolver knows the names below `localhost`.
resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: resolve("127.0.0.1" if host.endswith(".localhost") else host, *rest, **more)


def client(url, user, style="path", **more):
    options = Config(s3={"addressing_style": style, **more.pop("s3", {})}, retries={"total_max_attempts": 1},
                     **{"signature_version": "s3v4", **more})
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=user[0],
                        aws_secret_access_key=user[1], config=options)


def read(s3, **options):
    return s3.get_object(Bucket="signed", Key="secret/plan", **options)["Body"].read()


def refusal(call):
    try:
        call()
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
    return None


def fetched(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


owner, direct = client(SIDECAR, OWNER), client(ENDPOINT, OWNER)
owner.create_bucket(Bucket="signed")
owner.put_object(Bucket="signed", Key="secret/plan", Body=BODY)

strangers = {
    "a wrong secret": client(SIDECAR, [OWNER[0], OWNER[1] + "x"]),
    "a key that nobody has": client(SIDECAR, ["NOBODY", "secret"]),
    "another user": client(SIDECAR, OTHER),
    "no signature": client(SIDECAR, OWNER, signature_version=UNSIGNED),
}
same = {name: client(ENDPOINT, user) for name, user in
        {"a wrong secret": [OWNER[0], OWNER[1] + "x"], "a key that nobody has": ["NOBODY", "secret"], "another user": OTHER}.items()}
same["no signature"] = client(ENDPOINT, OWNER, signature_version=UNSIGNED)
# Cold, then with the object in the sidecar's memory: whole, and a part of it.
for is_warm in [False, True, True]:
    for name, stranger in strangers.items():
        for options in [{}, {"Range": "bytes=4096-8191"}]:
            refused = refusal(lambda: read(stranger, **options))
            assert refused is not None and refused[0] == 403, (name, is_warm, refused)
            assert refused == refusal(lambda: read(same[name], **options)), (name, is_warm, refused)
    assert read(owner) == BODY and read(owner, Range="bytes=4096-8191") == BODY[4096:8192]

# Rights that are given and taken are seen at once, although the object stays the same.
# versitygw takes a policy as the whole of what is allowed, to the owner too.
bucket = ["arn:aws:s3:::signed", "arn:aws:s3:::signed/*"]
grant = {"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Principal": {"AWS": [OWNER[0]]}, "Action": "s3:*", "Resource": bucket},
    {"Effect": "Allow", "Principal": {"AWS": [OTHER[0]]}, "Action": "s3:GetObject", "Resource": bucket[1]},
]}
for _ in range(2):
    owner.put_bucket_policy(Bucket="signed", Policy=json.dumps(grant))
    assert read(strangers["another user"]) == BODY
    assert read(strangers["another user"]) == BODY
    direct.delete_bucket_policy(Bucket="signed")
    assert refusal(lambda: read(strangers["another user"])) == (403, "AccessDenied")

# Presigned: as it is, with another range, with a signature of another object, and after its time.
place = {"Bucket": "signed", "Key": "secret/plan"}
url = owner.generate_presigned_url("get_object", Params=place)
for _ in range(2):
    assert fetched(url) == (200, BODY)
    assert fetched(url, Range="bytes=100-199") == (206, BODY[100:200])
    assert fetched(url[:-6] + "000000")[0] == 403
    assert fetched(url.replace("secret/plan", "secret/plans"))[0] == 403
now = botocore.auth.get_current_datetime
botocore.auth.get_current_datetime = lambda *rest: now(*rest) - datetime.timedelta(hours=2)
late = owner.generate_presigned_url("get_object", Params=place, ExpiresIn=3600)
early = owner.generate_presigned_url("get_object", Params=place, ExpiresIn=5 * 3600)
botocore.auth.get_current_datetime = now
assert fetched(late)[0] == 403 and fetched(early) == (200, BODY)
put = owner.generate_presigned_url("put_object", Params={"Bucket": "signed", "Key": "by-url"})
with urllib.request.urlopen(urllib.request.Request(put, data=b"new", method="PUT")) as answer:
    assert answer.status == 200
assert owner.get_object(Bucket="signed", Key="by-url")["Body"].read() == b"new"

# By host, which names the same objects: what is known by one name is known by the other.
by_host = client(SIDECAR.replace("127.0.0.1", "localhost"), OWNER, style="virtual")
stranger = client(SIDECAR.replace("127.0.0.1", "localhost"), [OWNER[0], "x"], style="virtual")
for number in range(3):
    body = BODY + str(number).encode()
    (owner, by_host)[number % 2].put_object(Bucket="signed", Key="secret/plan", Body=body)
    for _ in range(2):
        assert read(by_host) == read(owner) == body
        assert refusal(lambda: read(stranger)) == (403, "SignatureDoesNotMatch")

# Bodies with and without a hash in the signature, and with checksums of their own.
for number, (options, more) in enumerate([({"s3": {"payload_signing_enabled": True}}, {}),
                                          ({"s3": {"payload_signing_enabled": False}}, {}),
                                          ({"request_checksum_calculation": "when_required"}, {}),
                                          ({}, {"ChecksumAlgorithm": "SHA256"}), ({}, {"ChecksumAlgorithm": "CRC32"})]):
    key = f"sent-{number}"
    client(SIDECAR, OWNER, **options).put_object(Bucket="signed", Key=key, Body=BODY, **more)
    for _ in range(2):
        assert owner.get_object(Bucket="signed", Key=key, ChecksumMode="ENABLED")["Body"].read() == BODY
broken = client(SIDECAR, OWNER)
broken.meta.events.register("before-send.s3.PutObject", lambda request, **_: setattr(request, "body", BODY[:-1] + b"!"))
assert refusal(lambda: broken.put_object(Bucket="signed", Key="broken", Body=BODY)) is not None
assert refusal(lambda: owner.get_object(Bucket="signed", Key="broken")) == (404, "NoSuchKey")
print("passed")
