"""The most work that an experiment's method can require in a visit, for orders and records of others."""

from __future__ import annotations

from dataclasses import replace

from fedfloor.base.errors import SettingError
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Work

EXCESS = 10  # limit on a visit's mini-batches, relative to the experiment's work, one pass, or a hundred
BATCH = 100  # a tenth of the size of a mini-batch that is always accepted
MOST = 1 << 31  # epochs, steps, samples of a mini-batch
LARGEST = 3e38  # about the largest float32


def flaw(work: Work) -> str:
    """Return the reason why no device can carry out a work; "" if one can.

    >>> flaw(Work(epochs=1)), flaw(Work(steps=1 << 40))
    ('', 'its work needs epochs or steps, and a batch size, of at least 1.')
    """
    try:
        fastest = work.fastest
    except SettingError:
        return "its work has factors that are not those of a rate."
    clip = min(1.0 if limit is None else limit for limit in (work.clip_norm, work.sample_clip))
    weights = (work.rate, fastest, work.weight_decay, work.sample_noise)
    shares = all(0 <= number < 1 for number in (work.momentum, work.beta1, work.beta2))
    if not (shares and 0 < work.eps <= LARGEST and clip > 0 and all(0 <= number <= LARGEST for number in weights)):
        return "its work has a rate, momentum, decay or bound out of range."
    counts = [number for number in (work.epochs, work.steps) if number is not None]
    if len(counts) != 1 or not all(1 <= number < MOST for number in (*counts, work.batch_size)):
        return "its work needs epochs or steps, and a batch size, of at least 1."
    return ""


def excess(work: Work, method: ConfiguredMethod, samples: int) -> str:
    """Return the reason why a work is more than an experiment can require of a device; "" if it is not.

    Args:
        method: the experiment's method.
        samples: number of the device's samples.
    """
    batches = work.batches(samples)
    most = most_batches(method, samples)
    if batches > most:
        return f"{batches} mini-batches; at most {most} by this device's experiment."
    batch = min(work.batch_size, samples)
    largest = largest_batch(method)
    if batch > largest:
        return f"mini-batches of {batch} samples; at most {largest} by this device's experiment."
    return ""


def largest_batch(method: ConfiguredMethod) -> int:
    """Return the largest accepted size of a mini-batch; an external method may use any."""
    settings = getattr(method.method, "work", None)
    if not isinstance(settings, WorkSettings):
        return MOST
    return EXCESS * max(BATCH, settings.at(1, 1).batch_size)


def most_batches(method: ConfiguredMethod, samples: int) -> int:
    """Return the largest accepted number of mini-batches in a visit.

    Args:
        method: the experiment's method; without work settings, mini-batches of one sample are accepted.
    """
    settings = getattr(method.method, "work", None)
    own = settings.at(1, 1) if isinstance(settings, WorkSettings) else Work(epochs=EXCESS, batch_size=1)
    passes = replace(own, steps=None, epochs=max(own.epochs or 0, method.needs.epochs))
    return EXCESS * max(own.batches(samples), passes.batches(samples), 100)
