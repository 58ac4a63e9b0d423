"""BLEU by site: which kind of attention costs or gains how much in the encoder, the decoder and cross-attention."""

from dataclasses import replace

from scripts.experiments.bleu_vs_d_dot import presets as bleu_vs_d_dot
from scripts.translation.experiment import Translation
from scripts.translation.preset import multi30k

from .rows import DE_EN_ROWS, LR, ROWS

_SMALL = multi30k(ROWS)
# As many tokens as with multi30k of bleu_vs_d_dot, in smaller updates, with which the same model gets further
# (docs/results.md). Validation BLEU, of a greedy search, is what configurations are chosen by.
SITES = replace(
    _SMALL,
    name="sites",
    training={
        **_SMALL.training,
        "--lr": LR,
        "--warmup-updates": 750,
        "--total-num-update": 3250,
        "--max-update": 3250,
        "--max-tokens": 1000,
        "--validate-interval": 3,
        "--eval-bleu": True,
        "--eval-bleu-args": '{"beam": 1}',
        "--eval-bleu-remove-bpe": "sentencepiece",
    },
    tokens_per_update=1000,
    table="bleu_by_site",
)

# The same from German into English, for which nothing was chosen.
DE_EN = replace(
    SITES,
    name="de-en",
    reference="raw/test_2016_flickr.en",
    source="de",
    target="en",
    rows=DE_EN_ROWS,
    table="bleu_of_de_en",
)

# All rows in minutes and in seconds.
REHEARSAL, SMOKE = (
    replace(
        size,
        rows=ROWS,
        table=f"bleu_by_site-{size.name}",
        training=size.training | {"--lr": LR},
    )
    for size in (bleu_vs_d_dot.REHEARSAL, bleu_vs_d_dot.SMOKE)
)

PRESETS = {preset.name: preset for preset in (SITES, DE_EN, REHEARSAL, SMOKE)}


class BySite(Translation):
    # The file of bleu_vs_d_dot, too; the field `table` tells the records apart.
    name, file, presets = "by_site", "bleu_vs_d_dot.jsonl", PRESETS
    description = """\
BLEU by site: trains, decodes, scores and records models with one kind of attention in the encoder, one in the decoder
and one in cross-attention, on Multi30k. A row is named after these three,
or after the one kind that they all have.

  --preset sites --rows softmax 'dpfp,*' --seeds 1 2 3 --jobs 2
"""


EXPERIMENT = BySite()
