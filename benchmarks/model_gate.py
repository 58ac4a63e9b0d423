"""Checks, before a model is timed, that it computes the same as the reference with its weights in float64."""

from copy import deepcopy

import torch
from fairseq.utils import move_to_cuda
from torch import nn

from .gate import Refused
from .models import ModelCase, build_model, configuration

# Permitted relative errors of the loss and the whole gradient, and of a hypothesis's score, a mean log probability.
_LOSS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
_GRADIENT = {torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 3e-2}
_SCORE = {torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 2e-2}
_SENTENCES, _LENGTH = 3, 16
# Every site once.
_LAYERS = ("--encoder-layers", 1, "--decoder-layers", 1)


def reference(task, case: ModelCase, row: str, model: nn.Module) -> nn.Module:
    """Builds the model on the CPU, with the backend reference for every operator."""
    backend = [] if row == "softmax" else ["--fwp-backend", "reference"]
    exact = build_model(task, case.size, row, *_LAYERS, *backend)
    exact.load_state_dict(model.state_dict())
    return exact.eval()


def small_sample(task) -> dict:
    """Returns a batch of a few sentences, cut short."""
    dataset = task.dataset("train")
    cut = []
    for number in range(_SENTENCES):
        pair = dataset[number]
        sides = {
            side: torch.cat([pair[side][:-1][: _LENGTH - number], pair[side][-1:]]) for side in ("source", "target")
        }
        cut.append({"id": number, **sides})
    return dataset.collater(cut)


def _loss(criterion: nn.Module, model: nn.Module, sample: dict) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    loss, _, _ = criterion(model, sample)
    loss.backward()
    gradient = torch.cat([p.grad.detach().double().cpu().flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return loss.detach().double().cpu(), gradient


def _refuse_above(what: str, error: float, limit: float) -> None:
    if not error <= limit:
        raise Refused(f"{what} {error:.1e}, allowed {limit:.1e}")


def check_update(name: str, criterion: nn.Module, model: nn.Module, exact: nn.Module, sample: dict) -> None:
    """Raises Refused unless the model's loss and gradient of a batch are those of ``exact`` in float64.

    Args:
        name: of the model and its case, for the message.
        model: in evaluation, on any device and of any floating point type.
        exact: the model with the backend reference, on the CPU.
        sample: the batch, on the CPU.
    """
    parameter = next(model.parameters())
    expected_loss, expected_gradient = _loss(criterion, deepcopy(exact).double(), sample)

    def errors(model: nn.Module, batch: dict) -> tuple[float, float]:
        loss, gradient = _loss(criterion, model, batch)
        error = (gradient - expected_gradient).norm() / expected_gradient.norm()
        return ((loss - expected_loss).abs() / expected_loss).item(), error.item()

    loss_error, gradient_error = errors(model, move_to_cuda(sample) if parameter.is_cuda else sample)
    limit = _GRADIENT[parameter.dtype]
    if gradient_error > limit:
        # Rounding alone may switch a ReLU, which makes the gradient jump; the reference in the same type shows this.
        limit = max(limit, 2 * errors(exact.to(parameter.dtype), sample)[1])
    _refuse_above(f"{name}: error of the loss", loss_error, _LOSS[parameter.dtype])
    _refuse_above(f"{name}: error of the gradient", gradient_error, limit)


def check_training(task, case: ModelCase, row: str, device: str, dtype: torch.dtype) -> None:
    """Raises Refused unless the loss and gradient of a small batch, without dropout, are right."""
    model = build_model(task, case.size, row, *_LAYERS).to(device, dtype).eval()
    criterion = task.build_criterion(configuration(case.size, row).criterion)
    exact = reference(task, case, row, model)
    check_update(f"{row}, {case.name}", criterion, model, exact, small_sample(task))


def check_decoding(
    task, case: ModelCase, row: str, device: str, dtype: torch.dtype, generate, limit: float | None = None
) -> None:
    """Raises Refused unless the scores of all hypotheses of a small batch are right.

    ``generate(model, sample)`` returns fairseq's hypotheses. ``limit`` is the permitted error, by default the type's.
    """
    model = build_model(task, case.size, row, *_LAYERS).to(device, dtype).eval()
    exact = reference(task, case, row, model).double()
    sample = small_sample(task)

    def scores(model: nn.Module, batch: dict) -> torch.Tensor:
        return torch.tensor([[float(h["score"]) for h in hypotheses] for hypotheses in generate(model, batch)]).double()

    actual, expected = scores(model, move_to_cuda(sample) if device == "cuda" else sample), scores(exact, sample)
    error = (actual - expected).abs().max().item()
    _refuse_above(f"{row}, {case.name}: error of a hypothesis' score", error, limit or _SCORE[dtype])
