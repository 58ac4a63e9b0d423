"""Raw texts: from where they come, and that nothing else than the pinned text is taken."""

import gzip
import hashlib
import http.server
import threading
import urllib.request
from functools import partial

import pytest

from scripts.data.texts import DataError, Source, provide

TEXT = "".join(f"line {n}\n" for n in range(5000)).encode()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves a folder; `asked` lists the ranges that it was asked for, and it answers them if `ranges`."""
    folder, asked = tmp_path / "served", []
    folder.mkdir()
    (folder / "text.txt").write_bytes(TEXT)

    class Handler(http.server.SimpleHTTPRequestHandler):
        ranges = True

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            asked.append(self.headers.get("Range"))
            if asked[-1] is None or not self.ranges:
                return super().do_GET()
            start = int(asked[-1].removeprefix("bytes=").removesuffix("-"))
            if start >= len(TEXT):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Length", str(len(TEXT) - start))
            self.end_headers()
            self.wfile.write(TEXT[start:])

    monkeypatch.setenv("FWP_DATA", str(tmp_path / "data"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        running.asked, running.handler = asked, Handler
        running.url = f"http://127.0.0.1:{running.server_port}"
        yield running
        running.shutdown()


def source(server, name="text.txt", sha256=None):
    return Source("corpus", f"{server.url}/{name}", sha256 or hashlib.sha256(TEXT).hexdigest())


def test_local_files_come_first_packed_or_not_and_are_checked(server, tmp_path):
    folder, target = tmp_path / "data/corpus", tmp_path / "out/text.txt"
    folder.mkdir(parents=True)
    for name, content in (("text.txt", TEXT), ("text.txt.gz", gzip.compress(TEXT))):
        (folder / name).write_bytes(content)
        provide(source(server), target, print)
        assert target.read_bytes() == TEXT
        target.unlink()
        (folder / name).unlink()
    (folder / "text.txt.gz").write_bytes(gzip.compress(b"another"))
    with pytest.raises(DataError, match=r"text\.txt\.gz: sha256 of text\.txt: expected .*, actual"):
        provide(source(server), target, print)
    (folder / "text.txt.gz").write_bytes(gzip.compress(TEXT)[:-9])
    with pytest.raises(DataError, match="not a complete gzip file"):
        provide(source(server), target, print)
    assert not target.exists() and server.asked == []


def test_download_is_checked_and_not_repeated(server, tmp_path):
    target = tmp_path / "out/text.txt"
    with pytest.raises(DataError, match=f"{server.url}/text.txt: sha256"):
        provide(source(server, sha256="0" * 64), target, print)
    assert list(target.parent.iterdir()) == []
    for _ in range(2):
        provide(source(server), target, print)
    assert target.read_bytes() == TEXT and server.asked == [None, None]


@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_download_goes_on(server, tmp_path, ranges):
    server.handler.ranges = ranges
    target = tmp_path / "text.txt"
    for there in (1000, len(TEXT)):
        target.with_name("text.txt.part").write_bytes(TEXT[:there])
        provide(source(server), target, print)
        assert target.read_bytes() == TEXT and server.asked.pop() == f"bytes={there}-"
        target.unlink()


def test_a_packed_file_is_unpacked(server, tmp_path):
    (tmp_path / "served/text.txt.gz").write_bytes(gzip.compress(TEXT))
    assert provide(source(server, "text.txt.gz"), tmp_path / "text.txt", print)
    assert (tmp_path / "text.txt").read_bytes() == TEXT and not provide(source(server), tmp_path / "text.txt", print)
    (tmp_path / "served/text.txt.gz").write_bytes(gzip.compress(TEXT)[:-9])
    with pytest.raises(DataError, match="not a complete gzip file"):
        provide(source(server, "text.txt.gz"), tmp_path / "other.txt", print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["served", "text.txt"]


def test_a_network_that_fails_is_tried_again(server, tmp_path, monkeypatch):
    asked, said = [], []
    genuine = urllib.request.urlopen

    def sometimes(request, timeout):
        asked.append(request.full_url)
        if len(asked) < 3:
            raise TimeoutError("timed out")
        return genuine(request, timeout=timeout)

    monkeypatch.setattr(urllib.request, "urlopen", sometimes)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    provide(source(server), tmp_path / "text.txt", said.append)
    assert (tmp_path / "text.txt").read_bytes() == TEXT and len(asked) == 3
    assert said[1:] == [f"  timed out; trying again ({number} of 3)" for number in (1, 2)]


def test_what_cannot_be_had_says_where_to_put_it(server, tmp_path):
    with pytest.raises(DataError) as error:
        provide(source(server, "none.txt"), tmp_path / "out/none.txt", print)
    for part in ("none.txt is not here", "404", str(tmp_path / "data/corpus"), "set FWP_DATA=DIR"):
        assert part in str(error.value)
