"""Where a file was made."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from danp_lib.storage import origin


def test_the_commit_says_where_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "__file__", str(tmp_path / "danp_lib" / "storage" / "origin.py"))
    assert origin.commit() is None
    (tmp_path / "file").write_text("one")
    someone = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "file"], [*someone, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert re.fullmatch(r"[0-9a-f]{40}", origin.commit() or "")
    (tmp_path / "file").write_text("two")
    assert re.fullmatch(r"[0-9a-f]{40}-dirty", origin.commit() or "")
