"""The referee of compare.py: says in what, other than attention and seed, the compared runs differ.

A warning means that the comparison does not show the attention alone. A note is a difference that leaves the training the same, or
something a reader of the figures should know.
"""

import math
from dataclasses import dataclass

from compare_runs import NOTED_KEYS, is_fixed, shard_signature, show

WARNING, NOTE = "warning", "note"
NAMES_SHOWN = 4         # runs named for one value of a difference; with many runs the rest is counted
ABSENT = "(absent)"


@dataclass(frozen=True)
class Finding:
    level: str
    text: str


def check(runs, variants, grad_steps=(0, 500)):
    """All findings, warnings first."""
    findings = []
    findings += check_config(runs)
    findings += check_start_events(runs)
    findings += check_data(runs)
    findings += check_initial_weights(runs)
    findings += check_shared_parameters(runs)
    findings += check_learning_rates(runs)
    findings += check_seeds(variants)
    findings += check_completeness(runs)
    findings += check_gradient_steps(runs, grad_steps)
    findings += [Finding(NOTE, note) for run in runs for note in run.notes]
    return sorted(findings, key=lambda finding: finding.level != WARNING)


# ---------------------------------------------------------------------------------------------------------------- wording

def names_of(runs):
    names = ", ".join(run.name for run in runs[:NAMES_SHOWN])
    return names + (f" and {len(runs) - NAMES_SHOWN} more" if len(runs) > NAMES_SHOWN else "")


def split_by(runs, value_of):
    """[(value, runs that have it)] in order of appearance; values need only be comparable."""
    groups = []
    for run in runs:
        value = value_of(run)
        for known, members in groups:
            if known == value:
                members.append(run)
                break
        else:
            groups.append((value, [run]))
    return groups


def describe(groups):
    return "; ".join(f"{value} in {names_of(members)}" for value, members in groups)


def difference(runs, level, what, value_of, text_of=show, why=""):
    """One finding, "different WHAT: ...", if value_of differs between runs, else none."""
    groups = split_by(runs, value_of)
    if len(groups) < 2:
        return []
    shown = describe([(text_of(value), members) for value, members in groups])
    return [Finding(level, f"different {what}: {shown}" + (f" ({why})" if why else ""))]


# ---------------------------------------------------------------------------------------------------------------- checks

def check_config(runs):
    """Every config key outside attention and seed; a key that one run lacks differs too."""
    keys = []
    for run in runs:
        keys += [key for key in run.config if key not in keys]
    findings = []
    for key in keys:
        if key == "compute.threads" and len(split_by(runs, lambda run: run.start_values("threads"))) > 1:
            continue        # the start events name the threads really used
        if is_fixed(key) or key in NOTED_KEYS:
            level = WARNING if is_fixed(key) else NOTE
            findings += difference(runs, level, key, lambda run: show(run.config[key]) if key in run.config else ABSENT,
                                   why=NOTED_KEYS.get(key, ""))
    return findings


def check_start_events(runs):
    """Code version and number format must agree, between runs and within a run that was resumed; the machine is worth a note."""
    findings = []
    for key, what, level in (("version", "code version", WARNING), ("dtype", "dtype", WARNING), ("device", "device", NOTE),
                             ("compiler", "compiler", NOTE), ("threads", "number of threads", NOTE),
                             ("processes", "number of processes", NOTE)):
        silent = [run for run in runs if not run.start_values(key)]
        if silent and level == WARNING:
            findings.append(Finding(WARNING, f"{what} cannot be checked: {names_of(silent)} does not say it"))
        spoken = [run for run in runs if run not in silent]
        findings += difference(spoken, level, what, lambda run: " then ".join(show(value) for value in run.start_values(key)))
        for run in spoken:
            if len(run.start_values(key)) > 1:
                changes = ", then ".join(show(value) for value in run.start_values(key))
                findings.append(Finding(level, f"{run.name} was resumed with another {what}: {changes}"))
    modified = [run for run in runs if any("modified" in str(version) for version in run.start_values("version"))]
    if modified:
        findings.append(Finding(NOTE, f"built from a modified source tree, so equal versions need not be equal code: {names_of(modified)}"))
    return findings


def check_data(runs):
    """The shards by token count and hash, split by split."""
    findings = []
    for split, what in (("train", "training data"), ("val", "validation data")):
        silent = [run for run in runs if not shard_signature(run, split)]
        silent_wrongly = [run for run in silent if split == "train" or run.config.get("data.val") is not None]    # none, no evaluation
        if silent_wrongly:
            findings.append(Finding(WARNING, f"{what} cannot be checked: {names_of(silent_wrongly)} lists no {split} shard"))
        spoken = [run for run in runs if run not in silent]
        findings += difference(spoken, WARNING, what, lambda run: shard_signature(run, split), show_shards)
        for run in spoken:
            later = [start["shards"] for start in run.starts[1:] if isinstance(start.get("shards"), list)]
            hashes = [[(shard.get("tokens"), shard.get("hash")) for shard in shards if shard.get("split") == split] for shards in later]
            if any(tuple(one) != shard_signature(run, split) for one in hashes):
                findings.append(Finding(WARNING, f"{run.name} was resumed with other {what}"))
    return findings


def show_shards(signature):
    tokens = sum(count for count, _ in signature if isinstance(count, int))
    hashes = ", ".join(str(value) for _, value in signature[:2]) + (", ..." if len(signature) > 2 else "")
    return f"{len(signature)} shard{'s' if len(signature) > 1 else ''}, {tokens:,} tokens (hash {hashes})"


def check_initial_weights(runs):
    """Runs of one seed must start from the same shared weights, bit for bit."""
    silent = [run for run in runs if not run.start_values("initial_weights")]
    findings = []
    if silent:
        findings.append(Finding(WARNING, f"initial shared weights cannot be checked: {names_of(silent)} does not give their hash"))
    spoken = [run for run in runs if run not in silent]
    for seed, members in split_by(spoken, lambda run: run.seed):
        findings += difference(members, WARNING, f"initial shared weights of seed {seed}",
                               lambda run: ", ".join(map(str, run.start_values("initial_weights"))))
    return findings


def check_shared_parameters(runs):
    """The parameter count without what the attention adds; where the model section differs that has been said already."""
    def shared(run):
        total, added = run.start_values("parameters")[:1], run.start_values("attention_parameters")[:1]
        return total[0] - added[0] if total and added else None
    models = split_by(runs, lambda run: {key: value for key, value in run.config.items() if key.startswith("model.")})
    if len(models) > 1:
        return []
    return difference([run for run in runs if shared(run) is not None], WARNING, "number of shared parameters", shared,
                      lambda count: f"{count:,}")


def check_learning_rates(runs):
    """Runs whose optimizer and schedule sections agree must log the same learning rate at the same step (train.steps moves a decay)."""
    def planned(run):
        return {key: value for key, value in run.config.items() if key.startswith("schedule.") or key == "optimizer.lr"}
    findings = []
    for _, members in split_by(runs, planned):
        reference = dict(zip(members[0].steps, members[0].lr))
        for run in members[1:]:
            for step, rate in zip(run.steps, run.lr):
                other = reference.get(step)
                if rate is not None and other is not None and not math.isclose(rate, other, rel_tol=1e-6):
                    findings.append(Finding(WARNING, f"different learning rate as logged, from step {step} on: "
                                                     f"{other:g} in {members[0].name}; {rate:g} in {run.name}"))
                    break
    return findings


def check_seeds(variants):
    """Differences between variants are free of the seed's noise only where both were run with the same seeds."""
    findings = []
    groups = split_by(variants, lambda variant: sorted(variant.seeds))
    if len(groups) > 1:
        shown = "; ".join(f"{', '.join(map(str, seeds))} in {' and '.join(variant.label for variant in members[:NAMES_SHOWN])}"
                          + (f" and {len(members) - NAMES_SHOWN} more" if len(members) > NAMES_SHOWN else "") for seeds, members in groups)
        findings.append(Finding(NOTE, f"variants were not run with the same seeds, so they do not share weights and batches: {shown}"))
    copies = split_by(variants, lambda variant: (variant.options, variant.settings))
    for _, members in copies:
        if len(members) > 1:
            names = names_of([run for variant in members for run in variant.runs])
            findings.append(Finding(NOTE, f"runs of one variant with the same seed are drawn one by one, not averaged: {names}"))
    return findings


def check_completeness(runs):
    findings = []
    for run in runs:
        if run.end is None:
            planned = run.config.get("train.steps")
            goal = f" of {planned}" if isinstance(planned, int) else ""
            findings.append(Finding(NOTE, f"{run.name} is not complete: no end event, last step {run.steps[-1]}{goal}"))
        if run.bad_steps:
            shown = ", ".join(map(str, run.bad_steps[:8])) + (", ..." if len(run.bad_steps) > 8 else "")
            findings.append(Finding(NOTE, f"{run.name} has {len(run.bad_steps)} bad step{'s' if len(run.bad_steps) > 1 else ''} "
                                          f"(loss or gradient not finite, no update): {shown}"))
    findings += difference(runs, NOTE, "last step", lambda run: run.steps[-1], str, "final values are each run's own last ones")
    return findings


def check_gradient_steps(runs, grad_steps):
    """Gradient statistics are comparable only over the same steps."""
    first, last = grad_steps
    findings = []
    for run in runs:
        have = sum(first <= step <= last for step in run.steps)
        want = last - max(first, 1) + 1
        if last != math.inf and have < want:
            findings.append(Finding(NOTE, f"{run.name} has {have} of the {want} steps {max(first, 1)} to {last} "
                                          f"that the gradient-norm statistics are over"))
    return findings
