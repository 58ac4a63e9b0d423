import csv
import io
import re
import shutil
from argparse import Namespace
from itertools import pairwise
from unittest import mock

import pytest
import torch

from fwp_fairseq.cli import archs
from fwp_fairseq.cli.plugin import import_plugin
from fwp_fairseq.cli.trainings import _attention, _fields_of_checkpoint, _parameters, _shown
from fwp_fairseq.tables.plot import Line, Plot, Series, draw
from fwp_fairseq.tables.render import markdown
from fwp_fairseq.tables.table import grid, run_rows
from fwp_fairseq.tables.training_plots import plot
from fwp_fairseq.tables.trainings import FIELDS, TRAININGS

CURVE = [[10, 5.0, None], [20, 4.0, 8.0]]


def trainings(*found):
    own = ({"name": str(number), "recipe": number, "line": number} for number in range(len(found)))
    return [dict.fromkeys(FIELDS) | names | one for names, one in zip(own, found, strict=True)]


def test_trainings_that_differ_in_an_option_have_lines_of_their_own():
    """Here in the learning rate: a line leads over d_dot alone, and has the field's names."""
    dpfp = {"attention": "dpfp,update-rule=gated_delta", "updates": 20}
    rows = trainings(
        dpfp | {"line": "slow", "d_dot": 64, "bleu": 30.0, "curve": CURVE},
        dpfp | {"line": "slow", "d_dot": 128, "bleu": 31.0, "curve": CURVE},
        dpfp | {"line": "fast", "d_dot": 64, "bleu": 32.0},
        {"attention": "elu", "d_dot": 64, "bleu": 29.0, "updates": 20},
    )
    rows = run_rows(TRAININGS, "trainings", rows)
    drawn = plot(rows, "d_dot")
    assert {series.label: {x: y for x, (y, _) in series.points.items()} for series in drawn.series} == {
        "elu": {64: 29},
        "dpfp,update-rule=gated_delta, 0": {64: 30, 128: 31},
        "dpfp,update-rule=gated_delta, 2": {64: 32},
    }
    curves = [series.label for series in plot(rows, "updates").series]
    assert curves == ["dpfp,update-rule=gated_delta, 0, d_dot 64", "dpfp,update-rule=gated_delta, 0, d_dot 128"]


def test_markers_do_not_overlap():
    from matplotlib.figure import Figure

    series = [Series(f"line {n}", f"line {n}", {1: (30.0, 0.5), 2: (31 + n / 100, 0.5)}) for n in range(4)]
    save = Figure.savefig

    def measure(figure, *args, **kwargs):
        save(figure, *args, **kwargs)
        (axes,) = figure.axes
        firsts = sorted(line.get_transform().transform(line.get_xydata())[0][0] for line in axes.lines[::3])
        assert len(firsts) == 4 and all(right - left > 10 for left, right in pairwise(firsts))
        assert axes.bbox.x0 < firsts[0]

    with mock.patch.object(Figure, "savefig", measure):
        draw(Plot(x="d_dot", y="BLEU", series=series, log_x=0), "png")


@pytest.mark.parametrize("attention, note", [("delta / delta / softmax", "encoder / decoder / cross"), ("delta", "")])
def test_the_sites_of_attention_are_named(attention, note):
    table = markdown(grid(TRAININGS, "trainings", trainings({"attention": attention, "updates": 20})))
    assert ("attention: " in table) == bool(note) and note in table


def test_updates_are_whole_numbers():
    curve = Series("delta", "delta", {1: (9.0, None), 2: (8.0, None)})
    ticks = re.findall(
        r">(1|2|1[.]\d+)</text>", draw(Plot(x="updates", y="loss", series=[curve], log_x=0), "svg").decode()
    )
    assert ticks == ["1", "2"]


def test_a_fine_tuned_model_is_marked_in_tables_and_curves():
    """Its updates are those after the model that it began with, so that its curve is not one from scratch."""
    rows = trainings(
        {"attention": "softmax", "updates": 20, "curve": CURVE},
        {"attention": "delta", "updates": 20, "curve": CURVE, "fine_tuned": True},
    )
    cells = [str(row[0]) for row in grid(TRAININGS, "trainings", rows).rows]
    assert cells == ["0", "1 (fine-tuned)"]
    drawn = plot(run_rows(TRAININGS, "trainings", rows), "updates")
    assert [series.label for series in drawn.series] == ["softmax", "delta, fine-tuned"]


@pytest.mark.parametrize(
    "flags, updates, fine_tuned",
    [
        ({"reset_optimizer": True, "restore_file": "softmax.pt"}, [7, 9], True),
        ({}, [7, 3], True),  # the same, resumed without these flags
        ({"reset_optimizer": True}, [9], False),  # there was nothing to restore
        ({}, [7, 7, 9], False),
    ],
)
def test_fine_tuning_with_restore_file_is_marked(save, flags, updates, fine_tuned):
    state = torch.load(save("fwp_transformer_tiny"), weights_only=True)
    state["optimizer_history"] = [{"num_updates": count} for count in updates]
    state["cfg"]["checkpoint"] = {"finetune_from_model": None, "reset_optimizer": False} | flags
    assert _fields_of_checkpoint(state, None)["fine_tuned"] == fine_tuned


@pytest.mark.parametrize("path", ["softmax.pt", None])
def test_an_old_checkpoint_has_the_options_of_fine_tuning_among_all_others(save, path):
    state = torch.load(save("fwp_transformer_tiny"), weights_only=True)
    options = state["cfg"]["model"] | {"arch": "fwp_transformer_tiny", "finetune_from_model": path}
    for form in ({"cfg": None, "args": Namespace(**options)}, {"cfg": state["cfg"] | {"checkpoint": options}}):
        assert _fields_of_checkpoint(state | form, None)["fine_tuned"] == bool(path)


def test_columns_without_any_value_are_left_out():
    rows = trainings({"attention": "softmax", "updates": 20, "bleu": 3.0}, {"attention": "elu", "updates": 20})
    made = grid(TRAININGS, "trainings", rows).without_empty_columns()
    assert made.headings == ["training", "attention", "updates", "BLEU"]
    assert [len(row) for row in made.rows] == [4, 4]


@pytest.mark.parametrize(
    "flags, attention",
    [
        (
            {"fwp_decoder": "hedgehog-window,d-dot=64"},
            {"attention": "softmax / hedgehog-window / softmax", "d_dot": 64},
        ),
        (
            {"fwp_encoder": "elu", "fwp_decoder": "hedgehog,d-dot=64"},
            {"attention": "elu / hedgehog,d-dot=64 / softmax"},
        ),
    ],
)
def test_the_width_of_features_stands_apart_if_sites_have_no_other(save, flags, attention):
    state = torch.load(save("fwp_transformer_tiny", fwp_feature_map="softmax", **flags), weights_only=True)
    assert _attention(state["cfg"]["model"], state["model"]) == attention


def test_a_hybrid_whose_attention_was_replaced_is_not_named_so():
    import_plugin()
    arch = "fwp_transformer_tiny_hybrid"
    assert _shown(arch, archs.defaults(arch)) == arch
    assert _shown(arch, archs.defaults(arch) | {"fwp_decoder": "dpfp"}) == "fwp_transformer_tiny"


def test_what_cannot_be_drawn_is_said():
    rows = run_rows(TRAININGS, "trainings", trainings({"attention": "softmax", "updates": 20}))
    for axis, named in (("d_dot", "found none"), ("updates", "expected logs"), ("length", "--references")):
        with pytest.raises(ValueError, match=named):
            plot(rows, axis)


def test_the_legend_is_inside(tmp_path):
    """Also one with entries that are longer than the page is wide."""
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
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure

    sites = "delta,d-dot=48,passes=both-ways / delta,d-dot=48,window=16 / softmax,source-window=64"
    row = {"attention": sites, "d_dot": None, "bleu": 30.0, "valid_bleu": None}
    rows = [
        row | {"name": f"training {n}", "line": n, "fine_tuned": False, "valid_loss": None, "spread": {}}
        for n in range(count)
    ]
    save = Figure.savefig

    def measure(figure, *args, **kwargs):
        save(figure, *args, **kwargs)
        axes = figure.axes[0]
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert not any(left.x1 > right.x0 for left, right in pairwise(boxes))
        assert axes.bbox.height > 0.5 * 4.2 * figure.dpi
        assert len({to_rgba(line.get_color()) for line in axes.lines}) == len(axes.lines)

    words = re.split(r"[\s-]+", sites)
    for name in plot(rows, "attention").names:  # lines end between words
        assert re.split(r"[\s-]+", name)[: len(words) - 1] == words[:-1]
    with mock.patch.object(Figure, "savefig", measure):
        for axis in ("attention", "d_dot"):
            draw(plot(rows, axis), "png")


def test_control_characters_are_shown_as_such():
    rows = trainings({"name": "a\x1b[31m\nb", "attention": "softmax", "updates": 1, "bleu": 3})
    found = markdown(grid(TRAININGS, "trainings", rows))
    assert "a\\x1b[31m\\nb" in found and found.count("\n") == 2


def test_the_log_of_another_training_is_not_this_one_s(fwp, save, tmp_path):
    state = torch.load(save("fwp_transformer_tiny"), weights_only=True)
    state["cfg"]["checkpoint"] = {"save_dir": "run/checkpoints"}
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    torch.save(state, run / "checkpoints/checkpoint_last.pt", _use_new_zipfile_serialization=False)  # of torch 1.5
    for name, save_dir, loss in (("train", "run/checkpoints", 7.771), ("other", "it's softmax/checkpoints", 0.056)):
        lines = [f"INFO | fairseq_cli.train | {{'checkpoint': {{'_name': None, 'save_dir': {save_dir!r}}}}}"]
        lines.append(f"epoch 001 | valid on 'valid' subset | loss {loss} | ppl 2")
        (run / f"{name}.log").write_text("\n".join(lines) + "\n")
    (run / "translations.de").write_text("eins zwei drei vier\n")  # as fwp train leaves them
    (tmp_path / "test.de").write_text("eins zwei drei vier\n")
    more = ("--plot", tmp_path / "one.svg", "--references", tmp_path / "test.de")
    found = fwp("table", "--results", tmp_path, "--format", "csv", *more)
    assert found.status == 0 and not found.err and (tmp_path / "one.svg").is_file()
    (row,) = csv.DictReader(io.StringIO(found.out))
    assert float(row["valid loss"]) == pytest.approx(7.771, abs=0.01) and float(row["BLEU"]) == pytest.approx(100)
    inner = shutil.copytree(run, run / "inner")  # a training in the folder of another
    (inner / "translations.de").write_text("fünf sechs sieben acht\n")
    shutil.copytree(run, tmp_path / "again" / "run")  # the same training twice has two rows, wherever it is found
    twice = fwp("table", "--results", run, tmp_path / "again", "--format", "csv", *more[2:])
    scores = {row["training"]: round(float(row["BLEU"])) for row in csv.DictReader(io.StringIO(twice.out))}
    assert scores == {"run": 100, "run/inner": 0, "again/run": 100, "again/run/inner": 0}
    inside = fwp("table", "--results", run, inner, run, "--format", "csv")  # a folder that is named twice has one row
    assert [row["training"] for row in csv.DictReader(io.StringIO(inside.out))] == ["run", "inner"]


def test_a_training_whose_folder_was_renamed_has_all_of_its_validations(fwp, save, tmp_path):
    state = torch.load(save("fwp_transformer_tiny"), weights_only=True)
    state["cfg"]["checkpoint"] = {"save_dir": "c/checkpoints"}
    run = tmp_path / "c"
    (run / "checkpoints").mkdir(parents=True)
    torch.save(state, run / "checkpoints/checkpoint_last.pt")
    lines = []
    # The names that the folder had, with other trainings between them; the first session lacks its first line.
    sessions = (("", 0, 8.5), ("x", 3, 0.5), ("a", 0, 5.5), ("y", 0, 0.6), ("b", 30, 6.5), ("c", 60, 7.5))
    for folder, loaded, loss in sessions:
        if folder:
            lines.append(f"INFO | fairseq_cli.train | {{'checkpoint': {{'save_dir': '{folder}/checkpoints'}}}}")
        if loaded:
            lines.append(
                f"INFO | Loaded checkpoint {folder}/checkpoints/checkpoint_last.pt (epoch 1 @ {loaded} updates)"
            )
        lines.append(f"epoch 001 | valid on 'valid' subset | loss {loss} | ppl 2")
        updates = {"a": 30, "b": 60}.get(folder, 7)
        lines.append(
            f"INFO | Saved checkpoint {folder}/checkpoints/checkpoint1.pt (epoch 1 @ {updates} updates, score 1)"
        )
    (run / "train.log").write_text("\n".join(lines) + "\n")
    found = fwp("table", "--results", tmp_path, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(found.out))
    assert float(row["valid loss"]) == pytest.approx(5.5, abs=0.01)


REFERENCES = ["Ein Mann geht heute in den Garten.", "Zwei Hunde spielen am Fluss.", "Das Haus ist alt und leer."]
OTHERS = ["Drei Frauen essen Suppe.", "Kein Zug fährt nach Süden.", "Blaue Vögel singen im Mai."]


def generated(references):
    """Returns translations as fairseq-generate prints them, with its own references in pieces."""
    pieces = [text.replace(" ", " ▁").replace("i", "i ") for text in references]
    return "".join(f"T-{n}\t▁{text}\nH-{n}\t-1\teins zwei\nD-{n}\t-1\teins zwei\n" for n, text in enumerate(pieces))


@pytest.mark.parametrize("kind", ["translations.de", "generate-test.txt"])
def test_translations_of_another_test_set_with_as_many_lines_are_noticed(fwp, save, tmp_path, kind):
    path, expected = tmp_path / "run" / kind, tmp_path / "test.de"
    path.parent.mkdir()
    save("fwp_transformer_tiny").rename(path.with_name("checkpoint_last.pt"))
    expected.write_text("\n".join(REFERENCES) + "\n")
    for references, other in ((REFERENCES, False), (OTHERS, True)):
        if kind == "translations.de":
            path.write_text("eins zwei\n" * 3)
            path.with_name("references.de").write_text("\n".join(references) + "\n")  # as fwp train leaves them
        else:
            path.write_text(generated(references))
        scored = fwp("table", "--results", tmp_path, "--references", expected, "--format", "csv")
        score = next(csv.DictReader(io.StringIO(scored.out)))["BLEU"]
        assert bool(score) != other and (f"{path} translates another test set" in scored.err) == other
        found = fwp("bleu", "--hypotheses", path, "--references", expected)
        assert found.status == 0 and ("translates another test set" in found.err) == other


def test_the_score_of_a_part_of_the_test_set_is_not_that_of_the_training(fwp, save, tmp_path):
    save("fwp_transformer_tiny").rename(tmp_path / "checkpoint_last.pt")
    score = "Generate test with beam=4: BLEU4 = 12.34, 40.0/20.0\n"
    for numbers, scored in ((range(4), True), ((1, 3), False)):
        lines = "".join(f"S-{n}\tone\nH-{n}\t-1\teins\n" for n in numbers)
        (tmp_path / "generate-test.txt").write_text(lines + score)
        found = fwp("table", "--results", tmp_path, "--format", "csv")
        assert next(csv.DictReader(io.StringIO(found.out)))["BLEU"] == ("12.34" if scored else "")
        assert ("2 of 4 translations are missing, the first is 0" in found.err) != scored


def test_calls_that_make_no_sense(refused, tmp_path):
    results = ("--results", tmp_path)
    assert "--axis goes with --plot" in refused(2, "table", *results, "--axis", "updates")
    assert ".png or .svg or .pdf" in refused(2, "table", *results, "--plot", "x.jpg")
    assert "there is no folder nowhere" in refused(2, "table", *results, "--plot", "nowhere/x.svg")
    for nothing in (tmp_path, tmp_path / "nowhere"):
        assert f"{nothing}: expected save-dirs" in refused(1, "table", "--results", nothing)


def test_parameters_of_a_model_that_cannot_be_built_are_those_of_its_checkpoint():
    assert _parameters({"_name": "transformer", "encoder_layers": "many"}, {"weight": torch.zeros(2, 3)}) == 6
