"""Files that appear whole: on the disk before they have their name, with permissions kept, from threads."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from whole_file import replace_file


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *words, n=name, f=real: (calls.append(n), f(*words)))
    replace_file(tmp_path / "x.png", b"new")
    assert calls == ["fsync", "replace"] and (tmp_path / "x.png").read_bytes() == b"new"


def test_a_file_keeps_the_permissions_of_the_one_before(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(b"old")
    path.chmod(0o640)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    replace_file(tmp_path / "new", b"new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_two_threads_write_into_one_folder_at_once(tmp_path, monkeypatch):
    both_are_open = Barrier(2, timeout=20)
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (both_are_open.wait(), real(descriptor)))
    contents = {tmp_path / "a": b"a" * 1000, tmp_path / "b": b"b"}
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(replace_file, contents, contents.values()))
    assert {path: path.read_bytes() for path in contents} == contents
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
