"""A plugin of pytest for Ceph's s3-tests: takes every so manieth test, ends one that hangs, writes what became of each.

Environment:
- S3_SUITE_ONLY     a part of the names of the tests that are taken; all of them without it
- S3_SUITE_NAMES    a file with the names of the tests that are taken, one a line; all of them without it
- S3_SUITE_SKIPPED  a file with the names of tests that are not taken
- S3_SUITE_SLICE    NUMBER/COUNT: of these, the tests whose place in the list, modulo COUNT, is NUMBER
- S3_SUITE_REPORT   the file for the outcomes: a line of JSON for each test
- S3_SUITE_BUCKETS  what the names of all buckets begin with. The name of the test follows, so that buckets which one
                    test cannot remove are not in the way of the others, and the same test has the same ones each time
- S3_SUITE_READS    how often each GetObject is sent; the last answer is the one that the test judges
- S3_SUITE_SECONDS  the time that a test has
"""

import itertools
import json
import os
import signal
import zlib

import botocore.client
import pytest
import s3tests.functional as suite

NUMBER, COUNT = (int(part) for part in os.environ["S3_SUITE_SLICE"].split("/"))
BUCKETS = os.environ["S3_SUITE_BUCKETS"]
READS = int(os.environ["S3_SUITE_READS"])
SECONDS = int(os.environ["S3_SUITE_SECONDS"])
outcomes = {}
running = [""]


def name_of(nodeid):
    path, test = nodeid.split("::", 1)
    return f"{os.path.basename(path)}::{test}"


def listed(variable):
    path = os.environ.get(variable)
    if not path:
        return set()
    with open(path, encoding="utf-8") as file:
        return set(file.read().splitlines())


def pytest_collection_modifyitems(items):
    only = os.environ.get("S3_SUITE_ONLY", "")
    names, skipped = listed("S3_SUITE_NAMES"), listed("S3_SUITE_SKIPPED")
    taken = [item for item in items if only in name_of(item.nodeid) and name_of(item.nodeid) not in skipped]
    if names:
        taken = [item for item in taken if name_of(item.nodeid) in names]
    items[:] = taken[NUMBER::COUNT]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    def expire(_signal, _frame):
        raise TimeoutError(f"not done after {SECONDS} s")

    running[0] = name_of(item.nodeid)
    signal.signal(signal.SIGALRM, expire)
    signal.alarm(SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def pytest_runtest_logreport(report):
    """Of the three parts of a test, the worst counts; what fails before or after the test itself is an error."""
    name = name_of(report.nodeid)
    known = outcomes.setdefault(name, {"test": name, "outcome": "passed", "why": "", "seconds": 0.0})
    known["seconds"] = round(known["seconds"] + report.duration, 2)
    if report.skipped and known["outcome"] == "passed":
        known["outcome"], known["why"] = "skipped", str(report.longrepr)[-200:]
    if report.failed and known["outcome"] in ("passed", "skipped"):
        known["outcome"] = "failed" if report.when == "call" else "error"
        known["why"] = str(getattr(report.longrepr, "reprcrash", report.longrepr))[-600:]
    if report.when == "teardown":
        with open(os.environ["S3_SUITE_REPORT"], "a", encoding="utf-8") as file:
            file.write(json.dumps(outcomes.pop(name)) + "\n")


def with_names_of_its_own(step):
    def named():
        suite.prefix = f"{BUCKETS}{zlib.crc32(running[0].encode()):08x}-"
        return step()

    return named


def begin(step):
    def begun():
        suite.bucket_counter = itertools.count(1)
        return step()

    return begun


def several_times(call):
    def read(self, operation, parameters):
        if operation == "GetObject":
            for _ in range(READS - 1):
                try:
                    call(self, operation, parameters)["Body"].read()
                except TimeoutError:
                    raise
                except Exception:  # noqa: BLE001 - the last answer is the one that is judged
                    pass
        return call(self, operation, parameters)

    return read


suite.setup = begin(with_names_of_its_own(suite.setup))
suite.teardown = with_names_of_its_own(suite.teardown)
botocore.client.BaseClient._make_api_call = several_times(botocore.client.BaseClient._make_api_call)
