"""The examples of README.md, in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cached_objects import Client

from .conftest import Server


def test_the_examples_are_true(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(examples) + page.count("```sh\n") == page.count("```") // 2
    for shown, real in (
        ("http://127.0.0.1:11380", server.url),
        ("http://127.0.0.1:9150", server.admin_url),
    ):
        assert sum(shown in example for example in examples) == 1
        examples = [example.replace(shown, real) for example in examples]
    monkeypatch.setenv("CACHED_SECRET", server.secret)
    monkeypatch.setenv("CACHED_TOKEN", server.token)
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    client = names["client"]
    assert isinstance(client, Client)
    for info in client.list():
        client.delete(info.name)
    client.close()
