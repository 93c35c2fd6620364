"""Reads run directories for compare.py and sorts them into variants.

A run directory holds config.json (the whole config as run) and metrics.jsonl (one JSON object a line: start, step, eval, diagnostics and
end events). A variant is what one curve shows: all runs that differ in their seed alone.
"""

import json
import math
import os
from array import array
from dataclasses import dataclass, field

# Every attention type that has, or is to have, a colour and options of its own in the config (keys that begin with the type's name).
ATTENTION_TYPES = ("baseline", "off_by_one", "sink", "affine", "relu", "sa_softmax", "sa_softmax_raw", "softpick", "poly", "kinterval")
GATES = ("none", "headwise", "elementwise")

# Config keys, or whole sections, in which runs of a fair comparison may differ without a word ...
SILENT_KEYS = ("run_dir", "extends", "seed", "attention", "eval", "checkpoint", "diagnostics", "sample", "compute.recompute")
# ... and those that are worth a note: they change how a number was measured, its rounding, or a path, but not what was trained.
NOTED_KEYS = {
    "eval.batches": "validation losses are means over different numbers of batches",
    "train.steps": "runs were to end at different steps",
    "train.micro_batch_size": "results differ in rounding",
    "compute.threads": "speeds are not comparable",
    "data.train": "the paths differ; the shards are compared by their hashes",
    "data.val": "the paths differ; the shards are compared by their hashes",
    "data.tokenizer": "the shards hold the tokens; this path does not change them",
}


class CompareError(Exception):
    """Bad input: the message names the file, and the line or key where there is one."""


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins of one width, the first centred at `first`; the outermost bins also hold what lies beyond them."""
    first: float
    width: float
    counts: array


@dataclass(frozen=True)
class Diagnostics:
    """One diagnostics event: for each layer its fields, a number (None: not finite) or a Histogram. Fields of heads are left out."""
    step: int
    layers: tuple


@dataclass(eq=False)
class Run:
    """One run directory as read. The lists of a step's values run parallel to `steps`; None stands for a number that was not finite."""
    path: str
    name: str = ""
    config: dict = field(default_factory=dict)      # flat: "train.steps" -> 500
    starts: list = field(default_factory=list)      # start events, more than one after a resume
    steps: list = field(default_factory=list)
    loss: list = field(default_factory=list)
    grad_norm: list = field(default_factory=list)
    ce: list = field(default_factory=list)          # this and kl: of runs with a teacher only, empty otherwise
    kl: list = field(default_factory=list)
    lr: list = field(default_factory=list)
    tokens_per_second: list = field(default_factory=list)
    bad_steps: list = field(default_factory=list)
    eval_steps: list = field(default_factory=list)
    val_loss: list = field(default_factory=list)
    val_perplexity: list = field(default_factory=list)
    diagnostics: list = field(default_factory=list)     # of Diagnostics
    end: dict = None
    notes: list = field(default_factory=list)       # what had to be passed over in reading

    @property
    def seed(self):
        return self.config["seed"]

    @property
    def attention_type(self):
        return self.config["attention.type"]

    @property
    def gate(self):
        return self.config["attention.gate"]

    def start_values(self, key):
        """The distinct values of `key` over this run's start events, in order; empty where none of them has it."""
        values = []
        for start in self.starts:
            if start.get(key) is not None and start[key] not in values:
                values.append(start[key])
        return values


@dataclass(eq=False)
class Variant:
    """The runs behind one curve: alike in everything but the seed."""
    label: str
    runs: list
    options: dict       # the attention options that mean something for this type: "attention.affine_rho" -> 0.9
    settings: dict      # every other config key that a fair comparison holds fixed

    @property
    def attention_type(self):
        return self.runs[0].attention_type

    @property
    def gate(self):
        return self.runs[0].gate

    @property
    def seeds(self):
        return [run.seed for run in self.runs]


# ---------------------------------------------------------------------------------------------------------------- reading

def read_runs(paths):
    """Reads every run directory; names are the last parts of the paths, as many as tell the runs apart."""
    seen = {}
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise CompareError(f"{path}: the same run directory is given twice (also as {seen[real]})")
        seen[real] = path
    runs = [read_run(path) for path in paths]
    for run, name in zip(runs, distinct_names(paths)):
        run.name = name
    return runs


def distinct_names(paths):
    """The shortest common number of trailing path components that gives every path another name."""
    parts = [os.path.normpath(path).split(os.sep) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [os.path.realpath(path) for path in paths]


def read_run(path):
    """Reads one run directory. Raises CompareError for a path that is no run, a broken file, or a run without a step."""
    if not os.path.isdir(path):
        raise CompareError(f"{path}: no such directory; give run directories, each with config.json and metrics.jsonl")
    for name in ("config.json", "metrics.jsonl"):
        if not os.path.isfile(os.path.join(path, name)):
            raise CompareError(f"{path}: not a run directory: it has no {name}")
    run = Run(path=path)
    run.config = read_config(os.path.join(path, "config.json"))
    read_metrics(run, os.path.join(path, "metrics.jsonl"))
    return run


def parse_object(text):
    """A JSON object from bytes; ValueError says what is wrong. NaN and Infinity are no JSON, though Python would take them."""
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CompareError(f"{path}: cannot be read: {error.strerror}") from None


def read_config(path):
    """The config as a flat dict, "section.key" -> value, with the few keys checked that everything else here needs."""
    try:
        config = flatten(parse_object(read_bytes(path)))
    except ValueError as error:
        raise CompareError(f"{path}: {error}") from None
    for key, kind, article in (("attention.type", str, "a string"), ("attention.gate", str, "a string"), ("seed", int, "an integer")):
        if key not in config:
            raise CompareError(f"{path}: {key} is missing; a run's config.json holds every key")
        if not isinstance(config[key], kind) or isinstance(config[key], bool):
            raise CompareError(f"{path}: {key}: {json.dumps(config[key])} is not {article}")
    return config


def flatten(value, prefix=""):
    flat = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat.update(flatten(item, f"{prefix}{key}."))
        else:
            flat[prefix + key] = item
    return flat


def read_metrics(run, path):
    """Fills the run from metrics.jsonl. The last line may be cut off, as a killed run leaves it; anything else unreadable is an error."""
    lines = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            event = parse_object(line)
        except ValueError as error:
            if number == len(lines):        # no newline after it: it was never finished
                run.notes.append(f"{path}: line {number}, the last, is cut off and was left out")
                break
            raise CompareError(f"{where}: not one JSON object: {error}") from None
        add_event(run, event, where)
    if not run.starts:
        raise CompareError(f"{path}: no start event; the comparison needs it to tell what was run")
    if not run.steps:
        raise CompareError(f"{path}: no step event: there is nothing to compare yet")


def add_event(run, event, where):
    kind = event.get("event")
    if kind == "start":
        for key in ("parameters", "attention_parameters"):
            number_of(event, key, where, required=False)
        run.starts.append(event)
    elif kind == "step":
        add_step(run, event, where)
    elif kind == "eval":
        run.eval_steps.append(step_after(run.eval_steps, event, 0, where))
        run.val_loss.append(number_of(event, "val_loss", where))
        perplexity = number_of(event, "val_perplexity", where, required=False)
        run.val_perplexity.append(perplexity if perplexity is not None else exponential(run.val_loss[-1]))
    elif kind == "diagnostics":
        run.diagnostics.append(read_diagnostics(run, event, where))
    elif kind == "end":
        run.end = event
    elif not isinstance(kind, str):
        raise CompareError(f"{where}: no \"event\" key that says what the line is")


def add_step(run, event, where):
    run.steps.append(step_after(run.steps, event, 1, where))
    run.loss.append(number_of(event, "loss", where))
    run.grad_norm.append(number_of(event, "grad_norm", where))
    for key in ("ce", "kl"):
        if key in event:
            getattr(run, key).append(number_of(event, key, where))
    if len({len(values) for values in (run.ce, run.kl, run.steps if run.ce or run.kl else run.ce)}) > 1:
        raise CompareError(f"{where}: ce and kl stand in every step of a run with a teacher, or in none")
    run.lr.append(number_of(event, "lr", where, required=False))
    run.tokens_per_second.append(number_of(event, "tokens_per_second", where, required=False))
    if event.get("bad") is True or run.loss[-1] is None or run.grad_norm[-1] is None:
        run.bad_steps.append(run.steps[-1])


def read_diagnostics(run, event, where):
    """The event as Diagnostics; every event of a run has the same number of layers."""
    step = step_after([one.step for one in run.diagnostics], event, 1, where)
    layers = event.get("layers")
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, dict) for layer in layers):
        raise CompareError(f"{where}: layers is no list of objects")
    if run.diagnostics and len(layers) != len(run.diagnostics[0].layers):
        raise CompareError(f"{where}: {len(layers)} layers, but {len(run.diagnostics[0].layers)} at step {run.diagnostics[0].step}")
    return Diagnostics(step, tuple({key: histogram_of(value, f"{where}: {key}") if isinstance(value, dict)
                                    else number_of(layer, key, where) for key, value in layer.items() if key != "heads"}
                                   for layer in layers))


def histogram_of(value, where):
    counts = value.get("counts")
    if not isinstance(counts, list) or not counts:
        raise CompareError(f"{where}: counts is no list of numbers")
    numbers = [number_of({"count": count}, "count", where) for count in counts]
    first, width = number_of(value, "first", where), number_of(value, "width", where)
    if first is None or not width or width < 0 or any(count is None or count < 0 for count in numbers):
        raise CompareError(f"{where}: not a histogram: first, a width above 0, and counts from 0 up are needed")
    return Histogram(first, width, array("d", numbers))


def step_after(earlier, event, first, where):
    """The event's step, which must be an integer above every earlier one: no step stands twice in a run."""
    step = event.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or step < first:
        raise CompareError(f"{where}: step: {json.dumps(step)} is not an integer from {first} up")
    if earlier and step <= earlier[-1]:
        raise CompareError(f"{where}: step {step} stands after step {earlier[-1]}; is this two runs in one file?")
    return step


def number_of(event, key, where, required=True):
    """A finite number, or None for null, which is how a non-finite number is written."""
    if required and key not in event:
        raise CompareError(f"{where}: {key} is missing")
    value = event.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CompareError(f"{where}: {key}: {json.dumps(value)} is not a number")
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def exponential(value):
    """exp, or None where there is no finite one."""
    try:
        return math.exp(value)
    except (OverflowError, TypeError):
        return None


def read_entropies(runs):
    """The entropy of token frequencies (nats) that prepare.py leaves beside the shards: ({"train": .., "val": ..}, notes).

    A split is there only where every file found agrees on it. A run started elsewhere names its shards by a path that leads nowhere from
    here, so no file is no error.
    """
    found = {"train": set(), "val": set()}
    notes = []
    for folder in sorted({os.path.dirname(str(shard.get("path"))) for run in runs for shard in shards_of(run)}):
        path = os.path.join(folder, "prepare.json")
        if not os.path.isfile(path):
            continue
        try:
            prepared = flatten(parse_object(read_bytes(path)))
        except (ValueError, CompareError) as error:
            notes.append(f"{path}: left out: {error}")
            continue
        for split, values in found.items():
            value = prepared.get(f"splits.{split}.entropy_nats", prepared.get(f"{split}_entropy_nats"))
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                values.add(float(value))
    for split, values in found.items():
        if len(values) > 1:
            notes.append(f"the runs' {split} shards have different entropies of token frequencies; none is drawn")
    return {split: values.pop() for split, values in found.items() if len(values) == 1}, notes


def shards_of(run, split=None):
    """The shards that the run's first start event lists, of one split or of all."""
    shards = run.starts[0].get("shards")
    shards = [shard for shard in shards if isinstance(shard, dict)] if isinstance(shards, list) else []
    return [shard for shard in shards if split in (None, shard.get("split"))]


def shard_signature(run, split):
    """What tells two data sets apart: each shard's token count and hash, in order."""
    return tuple((shard.get("tokens"), shard.get("hash")) for shard in shards_of(run, split))


# ---------------------------------------------------------------------------------------------------------------- variants

def in_keys(key, keys):
    """Whether `keys` holds the key itself or its section."""
    return key in keys or key.split(".")[0] in keys


def is_fixed(key):
    """Whether a fair comparison holds this config key fixed."""
    return not in_keys(key, SILENT_KEYS) and key not in NOTED_KEYS


def attention_options(run):
    """The attention section without the options that belong to other types (a baseline's affine_rho means nothing)."""
    def belongs(key):
        owners = [kind for kind in ATTENTION_TYPES if key.startswith(f"attention.{kind}_")]
        return not owners or any(run.attention_type == owner or run.attention_type.startswith(owner + "_") for owner in owners)
    options = {key: value for key, value in run.config.items() if key.startswith("attention.") and belongs(key)}
    if options.get("attention.affine_n") == "prefix":
        options.pop("attention.affine_length", None)        # N is i + 1: the length is not used
    return options


def fixed_settings(run):
    """What two runs must share, attention and seed aside, to be averaged: config keys, the number of steps, and the shards."""
    settings = {key: value for key, value in run.config.items() if is_fixed(key)}
    settings["train.steps"] = run.config.get("train.steps")
    for split in ("train", "val"):
        settings[f"shards.{split}"] = shard_signature(run, split)
    return settings


def make_variants(runs):
    """Sorts runs into variants, by type and gate and then as given, each with a label that tells it from the others.

    Runs of one variant with the same seed are no sample over seeds: they become variants of their own, told apart by their names.
    """
    groups = {}
    for run in runs:
        options, settings = attention_options(run), fixed_settings(run)
        key = json.dumps([options, settings], sort_keys=True)
        groups.setdefault(key, Variant("", [], options, settings)).runs.append(run)
    variants = []
    for group in groups.values():
        if len(set(group.seeds)) == len(group.runs):
            variants.append(group)
        else:
            variants.extend(Variant("", [run], group.options, group.settings) for run in group.runs)
    variants.sort(key=lambda variant: (place_in(ATTENTION_TYPES, variant.attention_type), place_in(GATES, variant.gate)))
    label_variants(variants)
    return variants


def place_in(known, value):
    return known.index(value) if value in known else len(known)


def label_variants(variants):
    """Type and gate, then the options and settings in which variants differ; the run's name where that is too much or not enough."""
    for variant in variants:
        family = [other for other in variants if other.attention_type == variant.attention_type]
        options = differing_keys([other.options for other in family], skip=("attention.type", "attention.gate"))
        settings = differing_keys([other.settings for other in variants])
        words = [variant.attention_type]
        if variant.gate != "none":
            words[0] += f" + {variant.gate} gate"
        words += [f"{option_name(variant, key)}={show(variant.options.get(key))}" for key in options]
        named = [key for key in settings if not key.startswith("shards.")]
        if len(named) <= 3:
            words += [f"{short_name(key, variant.settings)}={show(variant.settings.get(key))}" for key in named]
        else:
            words.append(variant.runs[0].name)
        variant.label = ", ".join(words)
    labels = [variant.label for variant in variants]
    for variant in variants:
        if labels.count(variant.label) > 1:
            variant.label += f", {variant.runs[0].name}"


def differing_keys(dicts, skip=()):
    keys = []
    for one in dicts:
        keys += [key for key in one if key not in keys and key not in skip]
    return [key for key in keys if any(one.get(key) != dicts[0].get(key) for one in dicts)]


def option_name(variant, key):
    """affine_rho of an affine variant is its rho."""
    name = key.split(".", 1)[1]
    prefix = variant.attention_type + "_"
    return name[len(prefix):] if name.startswith(prefix) else name


def short_name(key, settings):
    """The key without its section, where no other section has the same key ("lr", but "schedule.type")."""
    leaf = key.rsplit(".", 1)[-1]
    ambiguous = leaf == "type" or sum(other.rsplit(".", 1)[-1] == leaf for other in settings) > 1
    return key if ambiguous else leaf


def show(value):
    """A config value as a reader would write it."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return value if isinstance(value, str) else json.dumps(value)
