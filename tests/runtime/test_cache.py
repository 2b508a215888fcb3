from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fuseopt.errors import CacheError
from fuseopt.runtime.cache import Store, open_store, version_tag


def test_entries_come_back_as_written(tmp_path):
    store = Store(tmp_path / "cache")
    assert store.read("binary", "absent") is None
    for data in (b"", b"\n\x00one\ntwo", os.urandom(100_000)):
        store.write("binary", "key", data)
        assert store.read("binary", "key") == data
    store.write_json("tune", "key", {"choice": "a", "seconds": [1e-5, None]})
    assert Store(tmp_path / "cache").read_json("tune", "key") == {
        "choice": "a",
        "seconds": [1e-5, None],
    }


def test_only_the_owner_can_enter(tmp_path):
    store = Store(tmp_path / "deep" / "cache")
    store.write("binary", "key", b"data")
    folders = [store.root, store.directory, store.directory / "binary"]
    assert [stat.S_IMODE(f.stat().st_mode) for f in folders] == [0o700] * 3
    assert stat.S_IMODE((store.directory / "binary" / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_can_write_is_refused(tmp_path, mode):
    for folder in (tmp_path / "cache", tmp_path / "cache" / version_tag()):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        with pytest.raises(CacheError, match=f"can be written by others .mode {mode:o}") as caught:
            Store(tmp_path / "cache")
        assert "\n" not in str(caught.value)
        folder.chmod(0o755)
    Store(tmp_path / "cache")


def test_a_directory_of_someone_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(CacheError, match="belongs to user"):
        Store(tmp_path)


def test_a_file_in_the_directorys_place_is_refused(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheError, match="cannot make the cache directory"):
        Store(tmp_path / "cache")


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign", "empty"])
def test_a_damaged_entry_is_reported_and_forgotten(tmp_path, damage):
    store = Store(tmp_path)
    store.write("binary", "key", b"some machine code")
    path = store.directory / "binary" / "key"
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[:-3], "flip": data[:-1] + b"!", "foreign": b"hello", "empty": b""}[damage]
    )
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert store.read("binary", "key") is None
    assert not path.exists()
    assert store.read("binary", "key") is None
    store.write("binary", "key", b"again")
    assert store.read("binary", "key") == b"again"


def test_a_value_that_is_not_json_is_reported_and_forgotten(tmp_path):
    store = Store(tmp_path)
    store.write("tune", "key", b"{")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert store.read_json("tune", "key") is None
    assert store.read("tune", "key") is None


def test_a_placed_text_is_exactly_the_text(tmp_path):
    store = Store(tmp_path)
    path = store.place_text("source", "k.py", "α = 1\n")
    assert path.read_bytes() == "α = 1\n".encode()
    before = path.stat().st_mtime_ns
    assert store.place_text("source", "k.py", "α = 1\n") == path
    assert path.stat().st_mtime_ns == before
    path.write_text("import os")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        store.place_text("source", "k.py", "α = 1\n")
    assert path.read_bytes() == "α = 1\n".encode()


def test_the_directory_may_vanish_between_writes(tmp_path):
    store = Store(tmp_path / "cache")
    store.write("binary", "key", b"1")
    (store.directory / "binary" / "key").unlink()
    (store.directory / "binary").rmdir()
    store.directory.rmdir()
    store.write("binary", "key", b"2")
    assert store.read("binary", "key") == b"2"


def test_a_write_that_fails_says_what_to_do(tmp_path):
    store = Store(tmp_path)
    (store.directory / "binary").write_text("in the way")
    with pytest.raises(CacheError, match=r"cannot write .* set FUSEOPT_CACHE_DIR"):
        store.write("binary", "key", b"data")


WRITER = """
import sys
from fuseopt.runtime.cache import Store
store = Store(sys.argv[1])
for n in range(200):
    store.write("binary", "key", bytes([65 + n % 26]) * 50_000)
    data = store.read("binary", "key")
    assert data is not None and len(data) == 50_000 and len(set(data)) == 1
"""


def test_processes_and_threads_never_see_half_an_entry(tmp_path):
    Store(tmp_path)
    command = [sys.executable, "-W", "error", "-c", WRITER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    store, done = Store(tmp_path), threading.Event()

    def read() -> int:
        seen = 0
        while not done.is_set():
            data = store.read("binary", "key")
            if data is not None:
                assert len(data) == 50_000
                assert len(set(data)) == 1
                seen += 1
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            assert [p.wait(timeout=60) for p in processes] == [0, 0]
        finally:
            done.set()
        assert all(r.result() > 0 for r in readers)
    assert [p.name for p in (store.directory / "binary").iterdir()] == ["key"]


def test_importing_the_runtime_does_not_load_triton():
    names = [p.stem for p in Path(__file__).parents[2].glob("fuseopt/runtime/*.py")]
    lazy = {"interpreter_builder", "interpreter_reduce", "interpreter_rewrite", "__init__"}
    imports = "; ".join(f"import fuseopt.runtime.{n}" for n in sorted(set(names) - lazy))
    check = f"{imports}; import sys; assert 'triton' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)


def test_a_directory_that_cannot_be_used_is_replaced_for_the_process_with_a_warning(tmp_path):
    (tmp_path / "file").touch()

    with pytest.warns(RuntimeWarning, match=r"cannot make .* set FUSEOPT_CACHE_DIR .* kept"):
        store = open_store(tmp_path / "file")
    store.write("kind", "key", b"data")

    assert store.read("kind", "key") == b"data"
    assert open_store(tmp_path / "ours").root == tmp_path / "ours"
