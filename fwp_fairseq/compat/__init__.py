"""Changes fairseq so that it works with today's torch, numpy and omegaconf, and mends faults that every user meets.

It is imported before the models for its effects, and exports nothing.
"""

from . import (
    architectures,
    binarised_data,
    checkpoints,
    context_window,
    criterions,
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
    text_encoding,
)

safe_globals.register()
literals.replace_eval()
numpy_names.restore()
checkpoints.make_saving_atomic()
checkpoints.make_copies_atomic()
checkpoints.name_unreadable_files()
checkpoints.explain_misfits()
binarised_data.check_when_opened()
text_encoding.name_undecodable_lines()
text_encoding.read_and_write_utf8()
dictionaries.check_in_checkpoints()
resuming.keep_batches()
resuming.stop_finished_trainings()
context_window.read_from_the_text()
data_position.count_batches_of_all_processes()
data_position.tell_before_saving()
divergence.watch_gradients_of_every_output()
divergence.report_divergence()
divergence.survive_overflow_on_cpu()
moving_average.skip_integer_buffers()
architectures.fill_hydra_models()
criterions.let_them_prepare_models()
processes.follow_launchers()
processes.train_on_cpu()
processes.explain_failures()
startup_warnings.silence()
