"""Opens checkpoints of decoders that share their embeddings and have an adaptive softmax.

fairseq adds the weight of an output projection to them, which such a decoder lacks, and then refuses this weight.
"""

from fairseq.models.transformer import TransformerDecoderBase

from . import around


@around(TransformerDecoderBase, "upgrade_state_dict_named")
def upgrade_without_projection(upgrade, self, state_dict, name):
    upgraded = upgrade(self, state_dict, name)
    if self.adaptive_softmax is not None:
        upgraded.pop(f"{name}.output_projection.weight", None)
    return upgraded
