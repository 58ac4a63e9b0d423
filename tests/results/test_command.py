import pytest

from scripts.common import records

TEXT = "# Title\n\n<!-- table:quickstart -->\nold\n<!-- /table:quickstart -->\n\nafter\n"


def record(date="2026-01-01", **changes):
    return {
        "table": "quickstart",
        "arch": "fwp_transformer_tiny",
        "feature_map": "dpfp",
        "update_rule": "sum",
        "d_dot": 192,
        "parameters": 2345678,
        "updates": 4000,
        "train_seconds": 630,
        "decode_seconds": 21.4,
        "valid_loss": 3.14159,
        "bleu": 34.567,
        "signature": "nrefs:1|case:mixed",
        "seed": 1,
        "environment": {"date": date, "cpu": "Some CPU", "cores": 2, "gpu": None},
        **changes,
    }


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A repository with one page; the fixture appends records and returns the options that read them."""
    monkeypatch.setattr("scripts.results.__main__.ROOT", tmp_path)
    monkeypatch.setattr("scripts.results.__main__.FIGURES", tmp_path / "docs/figures")
    (tmp_path / "results").mkdir()
    (tmp_path / "README.md").write_text(TEXT)

    def arguments(*found):
        for one in found:
            records.append(tmp_path / "results" / "quickstart.jsonl", one)
        return ("--results", tmp_path / "results")

    arguments.readme = tmp_path / "README.md"
    return arguments


def rows(text):
    table = text.partition("<!-- table:quickstart -->\n")[2].partition("<!-- /table")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_row_of_a_record(results, files):
    assert results(*files(record())).status == 0
    text = files.readme.read_text()
    baseline, _, dpfp = rows(text)
    assert (dpfp["BLEU"], dpfp["training, minutes"], dpfp["d_dot"]) == ("34.57", "10.5", "192")
    assert (dpfp["parameters"], dpfp["valid loss"], dpfp["machine"]) == ("2,345,678", "3.142", "2 × Some CPU")
    assert baseline["attention"].startswith("softmax") and baseline["BLEU"] == "not run"
    assert "sacreBLEU signature: `nrefs:1|case:mixed`" in text
    assert text.startswith("# Title\n\n<!--") and text.endswith("-->\n\nafter\n") and "old" not in text


def test_check_changes_nothing_and_notices(results, refused, files):
    arguments = files(record())
    assert "README.md" in refused(1, *arguments, "--check")
    assert files.readme.read_text() == TEXT
    assert results(*arguments).status == 0
    assert results(*arguments, "--check").status == 0
    files(record("2026-03-01", bleu=36))
    refused(1, *arguments, "--check")


@pytest.mark.parametrize(
    "text, named",
    [
        (TEXT.replace("/table:quickstart", "/table:other"), "other"),
        (TEXT.replace("<!-- /table:quickstart -->", ""), "pair"),
        (TEXT.replace("quickstart", "unheard-of"), "unheard-of"),
    ],
)
def test_markers_that_make_no_sense(refused, files, text, named):
    files.readme.write_text(text)
    assert named in refused(1, *files(record()))
    assert files.readme.read_text() == text


def test_every_page_and_figure_is_made(results, refused, files, tmp_path):
    files(record())
    figure = tmp_path / "docs/figures/bleu_vs_d_dot-multi30k.svg"
    figure.parent.mkdir(parents=True)
    figure.write_text("<svg></svg>")
    some = ("--results", tmp_path / "results")
    assert "README.md" in refused(1, *some, "--check")
    assert results(*some).status == 0
    assert "34.57" in files.readme.read_text() and "the paper: transformer big" in figure.read_text()
    assert results(*some, "--check").status == 0
    figure.write_text("<svg></svg>")
    assert "bleu_vs_d_dot-multi30k.svg" in refused(1, *some, "--check")
