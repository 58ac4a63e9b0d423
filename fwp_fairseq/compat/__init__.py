"""What today's torch, numpy and omegaconf need of fairseq. Imported before the models; has effects, exports nothing."""

from . import architectures, checkpoints, moving_average, numpy_names, safe_globals, startup_warnings

safe_globals.register()
numpy_names.restore()
checkpoints.make_saving_atomic()
checkpoints.make_copies_atomic()
checkpoints.name_unreadable()
checkpoints.say_why_unfit()
moving_average.keep_integers_out()
architectures.fill_by_name()
startup_warnings.silence()
