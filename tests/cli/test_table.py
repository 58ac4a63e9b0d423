import csv
import io
import json
from itertools import pairwise
from unittest import mock

import pytest

from fwp_fairseq.tables.plot import Line, Plot, draw, embedded_description
from fwp_fairseq.tables.training_plots import plot

THEIRS = {
    "table": "quickstart", "arch": "fwp_transformer_tiny", "feature_map": "dpfp", "update_rule": "sum", "d_dot": 192,
    "parameters": 2345678, "updates": 4000, "valid_loss": 3.14159, "bleu": 12.25, "seed": 1,
    "environment": {"date": "2026-01-01"},
}  # fmt: skip


def test_records_become_a_table_and_a_plot(fwp, refused, tmp_path):
    """Records have different fields. One with feature_map and updates is a row; any other is left out."""
    lines = [
        {"name": "base", "feature_map": "softmax", "updates": 10, "bleu": 27},
        {
            "name": "a1",
            "recipe": "a",
            "feature_map": "dpfp",
            "update_rule": "sum",
            "d_dot": 96,
            "seed": 1,
            "updates": 10,
        },
        {
            "name": "a2",
            "recipe": "a",
            "feature_map": "dpfp",
            "update_rule": "sum",
            "d_dot": 96,
            "seed": 2,
            "updates": 10,
        },
        {"table": "synthetic", "feature_map": "elu", "steps": 3},
    ]
    lines[1]["bleu"], lines[2]["bleu"] = 25, 26
    own = tmp_path / "own.jsonl"
    own.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "quickstart.jsonl").write_text(json.dumps(THEIRS))
    found = fwp("table", "trainings", "--results", own, tmp_path / "results", "--format", "csv").out
    softmax, dpfp, theirs = csv.DictReader(io.StringIO(found))
    assert (softmax["training"], softmax["BLEU"], softmax["valid loss"], softmax["seeds"]) == ("base", "27.0", "", "")
    assert (dpfp["training"], dpfp["BLEU"], dpfp["seeds"]) == ("a1, a2", "25.5", "1, 2")
    assert (theirs["d_dot"], theirs["BLEU"], theirs["parameters"]) == ("192", "12.25", "2345678")
    pytest.importorskip("matplotlib")
    assert fwp("table", "trainings", "--results", own, "--plot", tmp_path / "own.svg", "--axis", "d_dot").status == 0
    drawn = json.loads(embedded_description((tmp_path / "own.svg").read_bytes()))
    assert drawn["series"][0]["points"] == {"96": [25.5, pytest.approx(0.5**0.5)]} and drawn["lines"][0]["y"] == 27
    own.write_text('{"feature_map": "softmax", "updates": 10}\n')
    assert "to plot, found none" in refused(1, "table", "trainings", "--results", own, "--plot", tmp_path / "no.svg")


CURVE, SHARES = [[10, 5.0, None], [20, 4.0, 8.0]], [[3, 9, 30.0], [9, 40, 22.0]]


@pytest.mark.parametrize("axis", [None, "d_dot", "attention", "updates", "length"])
def test_axes(fwp, tmp_path, axis):
    """Every training has a place in the plot, also one whose sites have different attention and so no single d_dot."""
    pytest.importorskip("matplotlib")
    sites = "encoder: dpfp, sum, 64; decoder: hedgehog with window 8, delta, 128; cross: dpfp, sum, 64"
    rows = [
        {"name": "a", "feature_map": "softmax", "updates": 20, "bleu": 31.0, "curve": CURVE, "by_length": SHARES},
        {"name": "b", "feature_map": sites, "updates": 20, "bleu": 30.0, "curve": CURVE},
        {"name": "c", "feature_map": sites, "updates": 30, "bleu": 29.0},
    ]
    (tmp_path / "own.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    chosen = ("--axis", axis) if axis else ()
    found = fwp("table", "--results", tmp_path / "own.jsonl", "--plot", tmp_path / "own.svg", *chosen)
    assert found.status == 0 and found.out.count("\n") == 5 and not found.err  # the table is printed as well
    drawn = json.loads(embedded_description((tmp_path / "own.svg").read_bytes()))
    values = [[y for y, _ in series["points"].values()] for series in drawn["series"]]
    if axis == "d_dot":
        assert [line["y"] for line in drawn["lines"]] == [31, 30, 29]
        assert len({line["label"] for line in drawn["lines"]}) == 3
    elif axis == "updates":
        assert values == [[5, 4], [5, 4]] and drawn["beside"][0]["series"][0]["points"] == {"20": [8, None]}
    elif axis == "length":
        assert values == [[30, 22]] and list(drawn["names"]) == ["3–9", "9–40"]
    else:
        assert values == [[31, 30, 29]] and len(drawn["names"]) == 3


def test_the_legend_is_inside(tmp_path):
    """Also one with entries that are longer than the page is wide."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    boxes = []
    save = Figure.savefig

    def measure(figure, *args, **kwargs):
        save(figure, *args, **kwargs)
        boxes.append((figure.legends[0].get_window_extent(), figure.bbox))

    lines = [Line(f"{number}: {'encoder: dpfp, sum, 64; ' * 8}", float(number)) for number in range(9)]
    with mock.patch.object(Figure, "savefig", measure):
        draw(Plot(x="d_dot", y="BLEU", lines=lines), "png")
    ((legend, page),) = boxes
    assert page.x0 <= legend.x0 and legend.x1 <= page.x1 and page.y0 <= legend.y0 and legend.y1 <= page.y1


@pytest.mark.parametrize("count", [2, 7, 10])
def test_names_below_an_axis_do_not_overlap_and_lines_have_colours_of_their_own(count):
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure

    sites = "decoder: elu with output-norm rms, delta, 48; encoder: elu with output-norm rms, delta, 48"
    row = {"feature_map": sites, "update_rule": None, "d_dot": None, "bleu": 30.0, "valid_bleu": None}
    rows = [row | {"name": f"training {number}", "valid_loss": None, "spread": {}} for number in range(count)]
    save = Figure.savefig

    def measure(figure, *args, **kwargs):
        save(figure, *args, **kwargs)
        axes = figure.axes[0]
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert not any(left.x1 > right.x0 for left, right in pairwise(boxes))
        assert axes.bbox.height > 0.5 * 4.2 * figure.dpi
        assert len({to_rgba(line.get_color()) for line in axes.lines}) == len(axes.lines)

    with mock.patch.object(Figure, "savefig", measure):
        for axis in ("attention", "d_dot"):
            draw(plot(rows, axis), "png")


def test_an_empty_table_is_an_error(refused, tmp_path):
    assert "no checkpoints and no records" in refused(1, "table", "--results", tmp_path)


def test_records_of_a_stranger(fwp, refused, tmp_path):
    """Control characters are shown as such, and what is no number is an error of one line."""
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"name": "a\x1b[31m\nb", "feature_map": "softmax", "updates": 1, "bleu": 3}) + "\n")
    found = fwp("table", "--results", own)
    assert "a\\x1b[31m\\nb" in found.out and found.out.count("\n") == 3
    for wrong in ({"curve": "x"}, {"curve": [[1, "x", {}]]}, {"by_length": 7}, {"bleu": []}):
        own.write_text(json.dumps({"feature_map": "softmax", "updates": 1, **wrong}) + "\n")
        for axis in ("updates", "length"):
            refused(1, "table", "--results", own, "--plot", tmp_path / "no.svg", "--axis", axis)


def test_the_log_of_another_training_is_not_this_one_s(fwp_process, save, tmp_path):
    torch = pytest.importorskip("torch")
    state = torch.load(save("fwp_transformer_tiny"), weights_only=True)
    state["cfg"]["checkpoint"] = {"save_dir": "run/checkpoints"}
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    torch.save(state, run / "checkpoints" / "checkpoint_last.pt")
    for name, save_dir, loss in (("train", "run/checkpoints", 7.771), ("other", "it's softmax/checkpoints", 0.056)):
        lines = [f"INFO | fairseq_cli.train | {{'checkpoint': {{'_name': None, 'save_dir': {save_dir!r}}}}}"]
        lines.append(f"epoch 001 | valid on 'valid' subset | loss {loss} | ppl 2")
        (run / f"{name}.log").write_text("\n".join(lines) + "\n")
    plot = ("--plot", tmp_path / "one.svg")
    found = fwp_process("table", "--results", tmp_path, "--format", "csv", *plot)
    assert found.status == 0 and not found.err and (tmp_path / "one.svg").is_file()
    (row,) = csv.DictReader(io.StringIO(found.out))
    assert float(row["valid loss"]) == pytest.approx(7.771, abs=0.01)


def test_calls_that_make_no_sense(refused, tmp_path):
    results = ("--results", tmp_path)
    assert "'quickstart'" in refused(2, "table", "quickstart", *results)
    assert "--axis goes with --plot" in refused(2, "table", *results, "--axis", "length")
    assert "--check needs a file" in refused(2, "table", *results, "--check")
    assert ".png or .svg or .pdf" in refused(2, "table", *results, "--plot", "x.jpg")
    assert "nowhere" in refused(1, "table", "--results", tmp_path / "nowhere")
