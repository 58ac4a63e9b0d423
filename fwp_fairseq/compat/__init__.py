"""What today's torch, numpy and omegaconf need of fairseq, and faults of its own that every user would meet.

Imported before the models; has effects, exports nothing.
"""

from . import (
    architectures,
    checkpoints,
    data_position,
    dictionaries,
    divergence,
    literals,
    moving_average,
    numpy_names,
    processes,
    resuming,
    safe_globals,
    startup_warnings,
)

safe_globals.register()
literals.replace_eval()
numpy_names.restore()
checkpoints.make_saving_atomic()
checkpoints.make_copies_atomic()
checkpoints.name_unreadable()
checkpoints.say_why_unfit()
dictionaries.remember()
resuming.keep_batches()
resuming.leave_finished_alone()
data_position.count_batches_of_all_processes()
divergence.watch_gradients_of_every_output()
divergence.say_in_the_last_line()
moving_average.keep_integers_out()
architectures.fill_by_name()
processes.follow_launchers()
processes.communicate_on_a_cpu()
processes.name_reasons()
startup_warnings.silence()
