"""--task multilingual_translation refuses, by name, an architecture that is not made for it.

The task itself looks up its options in those of the model before it checks that the model has several languages.
"""

from fairseq.models import ARCH_MODEL_REGISTRY, FairseqMultiModel
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask

from . import around


@around(MultilingualTranslationTask, "build_model")
def refuse_or_build(build_model, self, args, from_checkpoint=False):
    arch = getattr(args, "arch", None) or getattr(args, "_name", None)
    model = ARCH_MODEL_REGISTRY.get(arch)
    if model is not None and not issubclass(model, FairseqMultiModel):
        raise ValueError(
            f"--arch {arch}: --task multilingual_translation expects an architecture with a model for each pair of "
            "languages, such as multilingual_transformer; --task translation_multi_simple_epoch takes this one"
        )
    return build_model(self, args, from_checkpoint)
