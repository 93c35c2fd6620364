#!/usr/bin/env python3
"""Turn text or JSON Lines files into token shards that train_gpt (and llm.c) read.

    python3 data/prepare.py --train a.txt b.txt --val c.txt --out data/mine

writes into data/mine
    train_000000.bin, train_000001.bin, ..., val_000000.bin, ...   the token shards
    tokenizer.json   the vocabulary, in the format of Hugging Face's tokenizers library
    prepare.json     what went in and what came out: sources, documents, tokens, entropy, shards

Tokens are bytes (vocabulary 256): a text file is taken byte by byte as it is, whatever its encoding, and of each line of
a JSON Lines file the string under --jsonl-key, as UTF-8. A text file is one document, a line of a JSON Lines file is one.
Between two documents of a split stands the separator, by default an empty line's "\\n\\n"; for a vocabulary of bytes it is
text like any other. Empty documents are left out.

Inputs are streamed, so they may be larger than memory. Everything is written under temporary names and moved into place
when all of it is complete: after an error, or an interrupt, the output directory is as it was before.

Exit status: 0, 1 (the run failed: a full disk, say), 2 (bad usage or bad input).
"""
import argparse
import array
import codecs
import collections
import fnmatch
import json
import math
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import time

CHUNK_BYTES = 1 << 18
HEADER_INTS = 256
MAX_SHARD_TOKENS = 2**31 - 1  # the header counts tokens in an int32
MAX_SHARDS = 10**6  # six digits in the name: the order by name stays the order of the stream
SPLITS = ("train", "val")
TEXT, JSONL = "text", "jsonl"
JSONL_SUFFIXES = (".jsonl", ".ndjson")
# Read as text these would train a model on compressed or packed bytes; nobody means that.
REFUSED_SUFFIXES = (".json", ".parquet", ".arrow", ".bin", ".npy", ".gz", ".bz2", ".xz", ".zst", ".zip", ".tar")


class PrepareError(Exception):
    """What ends the program: a message that names the place and the cure, and the exit status."""

    def __init__(self, message, status=2):
        super().__init__(message)
        self.status = status


# ---------------------------------------------------------------------------------------------------------------------
# Reading: a source yields pieces of documents


class Source:
    """An input file. Counts what it has read: bytes of the file, and documents that are not empty."""

    def __init__(self, path, kind, jsonl_key):
        self.path, self.kind, self.jsonl_key = path, kind, jsonl_key
        self.bytes_read = self.documents = 0

    def pieces(self):
        """Yield (starts_document, bytes) in order; a piece is never empty, and several may make up one document."""
        try:
            with open(self.path, "rb") as file:
                for starts_document, data in self._read_jsonl(file) if self.kind == JSONL else self._read_text(file):
                    self.documents += starts_document
                    yield starts_document, data
        except OSError as error:
            raise PrepareError(f"{self.path}: cannot read: {error.strerror}", status=1)

    def _read_text(self, file):
        starts_document = True
        for data in iter(lambda: file.read1(CHUNK_BYTES), b""):  # read() would not see a signal while a pipe lets it wait
            self.bytes_read += len(data)
            yield starts_document, data
            starts_document = False

    def _read_jsonl(self, file):
        for number, line in enumerate(file, 1):
            self.bytes_read += len(line)
            if number == 1 and line.startswith(codecs.BOM_UTF8):
                line = line[len(codecs.BOM_UTF8):]
            if line.strip():
                text = jsonl_text(line, self.jsonl_key, f"{self.path}:{number}")
                if text:
                    yield True, text


def jsonl_text(line, key, place):
    """Return the string under key of one line of a JSON Lines file, as UTF-8. Errors begin with place (file:line)."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise PrepareError(f"{place}: byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not valid UTF-8; "
                           "JSON Lines must be UTF-8")
    except json.JSONDecodeError as error:
        raise PrepareError(f"{place}: not valid JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets nested thousands deep
        raise PrepareError(f"{place}: JSON that cannot be read: {error}")
    if not isinstance(record, dict):
        raise PrepareError(f'{place}: each line must be an object such as {{"{key}": "..."}}, this one is {json_type(record)}')
    if key not in record:
        keys = ", ".join(json.dumps(name) for name in list(record)[:8]) or "none"
        raise PrepareError(f'{place}: no key "{key}"; the keys of this line are {keys} (--jsonl-key names the text\'s)')
    if not isinstance(record[key], str):
        raise PrepareError(f'{place}: the value of "{key}" must be a string, it is {json_type(record[key])}')
    try:
        return record[key].encode("utf-8")
    except UnicodeEncodeError as error:
        raise PrepareError(f'{place}: the value of "{key}" holds a lone surrogate, \\u{ord(record[key][error.start]):04x}, '
                           "which UTF-8 cannot express")


def json_type(value):
    """Return JSON's own name of a value's type, with its article."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


# ---------------------------------------------------------------------------------------------------------------------
# Vocabulary: from bytes of text to token ids


class ByteVocabulary:
    """Every byte is a token whose id is its value. Any other vocabulary needs the same members."""

    name = "bytes"
    size = 256

    @staticmethod
    def encode(data):
        """Return the ids of a piece of a document, a sequence of integers: the bytes themselves are one."""
        return data

    @staticmethod
    def tokenizer_json():
        """Return the vocabulary as the content of a tokenizer.json: byte-level BPE without a single merge."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {character: byte for byte, character in enumerate(byte_characters())}, "merges": [],
            },
        }


def byte_characters():
    """Return the 256 characters that stand for the bytes 0..255 in byte-level BPE, as GPT-2 chose them.

    A byte that is a visible character of Latin-1 stands for itself; the others (controls, spaces, the soft hyphen) are
    given the code points from 256 on, in order.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def encoded(sources, vocabulary, separator):
    """Yield the ids of a split, a run of them at a time, with the separator's between two documents."""
    separator_ids = vocabulary.encode(separator)
    first = True
    for source in sources:
        for starts_document, data in source.pieces():
            if starts_document and not first and separator:
                yield separator_ids
            first = False
            yield vocabulary.encode(data)


def entropy(counts):
    """Return the entropy in nats of the distribution that counts (id -> how often) describes."""
    total = sum(counts.values())
    return math.fsum(count / total * math.log(total / count) for count in counts.values())


# ---------------------------------------------------------------------------------------------------------------------
# Writing: llm.c's shards


def shard_format(vocabulary_size):
    """Return (magic, version, array type code) of the narrowest shard that holds the ids of a vocabulary."""
    return (20240520, 1, "H") if vocabulary_size <= 2**16 else (20240801, 7, "I")


def packed(ids, type_code):
    """Return ids as little-endian integers of the width of type_code ("H" 2 bytes, "I" 4)."""
    if isinstance(ids, bytes):  # the case of the byte vocabulary, many times faster than one id after the other
        width = array.array(type_code).itemsize
        widened = bytearray(width * len(ids))
        widened[::width] = ids
        return widened
    tokens = array.array(type_code, ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


class ShardWriter:
    """Writes the ids of a split into directory/SPLIT_000000.bin and so on, shard_tokens in each but the last."""

    def __init__(self, directory, split, shard_tokens, vocabulary_size):
        self.directory, self.split, self.shard_tokens = directory, split, shard_tokens
        self.magic, self.version, self.type_code = shard_format(vocabulary_size)
        self.shards = []  # {"file": name, "tokens": count}, the last one still open while self.file is
        self.file = None

    def write(self, ids):
        """Append a sequence of ids, beginning a new shard wherever one is full."""
        start = 0
        while start < len(ids):
            if self.file is None:
                self._open_next()
            shard = self.shards[-1]
            run = ids[start:start + self.shard_tokens - shard["tokens"]]
            self.file.write(packed(run, self.type_code))
            shard["tokens"] += len(run)
            start += len(run)
            if shard["tokens"] == self.shard_tokens:
                self.close()

    def _open_next(self):
        if len(self.shards) == MAX_SHARDS:
            raise PrepareError(f"more than {MAX_SHARDS} shards of --shard-tokens {self.shard_tokens}: make the shards larger")
        self.shards.append({"file": f"{self.split}_{len(self.shards):06d}.bin", "tokens": 0})
        self.file = open(os.path.join(self.directory, self.shards[-1]["file"]), "wb")
        self.file.write(bytes(4 * HEADER_INTS))

    def close(self):
        """Complete the shard in progress, if there is one: its header, now that the count is known, and sync it."""
        if self.file is None:
            return
        file, self.file = self.file, None
        with file:
            file.seek(0)
            file.write(struct.pack("<3i", self.magic, self.version, self.shards[-1]["tokens"]))
            file.flush()
            os.fsync(file.fileno())


def write_json(directory, name, content):
    """Write content as a JSON file that a person can read too."""
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


# ---------------------------------------------------------------------------------------------------------------------
# One split, and the directory of all


class Progress:
    """One live line on standard error where that is a terminal, else nothing."""

    def __init__(self, split, sources):
        self.split, self.sources = split, sources
        self.total = sum(os.path.getsize(source.path) for source in sources)
        self.live = sys.stderr.isatty()
        self.start = self.shown = time.monotonic()

    def show(self):
        """Draw the line anew if the last time is a while ago."""
        now = time.monotonic()
        if self.live and now - self.shown > 0.2:
            self.shown = now
            done = sum(source.bytes_read for source in self.sources)
            share = f"{100 * done / self.total:5.1f}% of {self.total / 1e6:.1f} MB, " if self.total else f"{done / 1e6:.1f} MB, "
            sys.stderr.write(f"\r\033[K{self.split}: {share}{done / 1e6 / (now - self.start):.1f} MB/s")
            sys.stderr.flush()

    def clear(self):
        """Take the line away."""
        if self.live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def prepare_split(split, sources, vocabulary, separator, shard_tokens, directory):
    """Write the shards of one split into directory and return what prepare.json says of it."""
    writer = ShardWriter(directory, split, shard_tokens, vocabulary.size)
    counts = collections.Counter()
    progress = Progress(split, sources)
    try:
        for ids in encoded(sources, vocabulary, separator):
            counts.update(ids)
            writer.write(ids)
            progress.show()
        writer.close()
    finally:
        progress.clear()
        if writer.file:
            writer.file.close()
    if not writer.shards:
        raise PrepareError(f"--{split}: no text at all in {', '.join(source.path for source in sources)}")
    for source in sources:
        if not source.documents:
            warn(f"{source.path}: no text in it, left out")
    return {
        "sources": [{"path": source.path, "bytes": source.bytes_read, "documents": source.documents} for source in sources],
        "documents": sum(source.documents for source in sources),
        "separator": separator.decode("utf-8", "backslashreplace"),
        "tokens": sum(counts.values()),
        "entropy_nats": round(entropy(counts), 6),
        "shards": writer.shards,
    }


def read_previous(out):
    """Return out/prepare.json of an earlier call as {split: {...}}, or {} where there is none of this kind."""
    try:
        with open(os.path.join(out, "prepare.json"), encoding="utf-8") as file:
            content = json.load(file)
        if content["tokenizer"] != ByteVocabulary.name:
            return {}
        return {split: facts for split, facts in content["splits"].items() if all(shard["file"] for shard in facts["shards"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def check_tokenizer(out, vocabulary):
    """Refuse a directory whose tokenizer.json is of another vocabulary: its shards would be mixed with ours."""
    path = os.path.join(out, "tokenizer.json")
    if not os.path.lexists(path):
        return
    try:
        with open(path, encoding="utf-8") as file:
            same = json.load(file)["model"]["vocab"] == vocabulary.tokenizer_json()["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        same = False
    if not same:
        raise PrepareError(f"{path}: is there already and is not the vocabulary of {vocabulary.name}; choose another --out, "
                           "or remove it")


def publish(temporary, out, splits, previous):
    """Move everything from temporary into out, prepare.json last, and remove the earlier call's shards that are left over."""
    for split, facts in splits.items():
        names = [shard["file"] for shard in facts["shards"]]
        for name in names:
            os.replace(os.path.join(temporary, name), os.path.join(out, name))
        for shard in previous.get(split, {}).get("shards", []):
            if shard["file"] not in names and re.fullmatch(split + r"_\d{6}\.bin", shard["file"]):
                try:
                    os.unlink(os.path.join(out, shard["file"]))
                except FileNotFoundError:
                    pass
        for name in sorted(fnmatch.filter(os.listdir(out), split + "*.bin")):
            if name not in names:
                warn(f"{os.path.join(out, name)}: not written by this call, yet {split}*.bin matches it")
    for name in ("tokenizer.json", "prepare.json"):
        os.replace(os.path.join(temporary, name), os.path.join(out, name))


def prepare(inputs, out, separator, shard_tokens):
    """Write shards, tokenizer.json and prepare.json of inputs, {split: [Source, ...]}; return {split: facts}."""
    vocabulary = ByteVocabulary()
    check_tokenizer(out, vocabulary)
    previous = read_previous(out)
    os.makedirs(out, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=".prepare-", dir=out)
    try:
        splits = {split: prepare_split(split, sources, vocabulary, separator, shard_tokens, temporary)
                  for split, sources in inputs.items()}
        # A split prepared by an earlier call is still there: keep what is known of it.
        known = {split: splits.get(split) or previous[split] for split in SPLITS if split in splits or split in previous}
        write_json(temporary, "tokenizer.json", vocabulary.tokenizer_json())
        write_json(temporary, "prepare.json", {"tokenizer": vocabulary.name, "vocab_size": vocabulary.size, "splits": known})
        publish(temporary, out, splits, previous)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return splits


# ---------------------------------------------------------------------------------------------------------------------
# Command line


def warn(message):
    """Say on standard error what does not stop the program."""
    print(f"prepare.py: warning: {message}", file=sys.stderr)


def separator_bytes(text):
    """Return the bytes of a --separator, in which \\n \\t \\r \\0 \\\\ and \\xHH may be written as in C."""
    simple = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}

    def unescape(match):
        code = match.group(1)
        if code[:1] == b"x" and len(code) == 3:
            return bytes([int(code[1:], 16)])
        if code not in simple:
            raise argparse.ArgumentTypeError(f"{text!r}: unknown escape \\{code.decode('utf-8', 'replace')}; "
                                             r"use \n \t \r \0 \\ or \xHH")
        return simple[code]

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.|$)", unescape, os.fsencode(text), flags=re.DOTALL)


def shard_size(text):
    """Return a --shard-tokens, a whole number that may be written 1e8 too."""
    try:
        number = int(text) if re.fullmatch(r"[0-9_]+", text) else float(text)
    except ValueError:
        number = math.nan
    if not 2 <= number <= MAX_SHARD_TOKENS or number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number from 2 to {MAX_SHARD_TOKENS}")
    return int(number)


def parse_arguments(arguments):
    """Return the command line's namespace; argparse exits with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="prepare.py", description="Turn text or JSON Lines files into token shards (bytes, vocabulary 256).",
        epilog="A text file is one document, a line of a JSON Lines file is one. Writes OUT/train_000000.bin, ..., "
               "OUT/val_000000.bin, ..., OUT/tokenizer.json and OUT/prepare.json.")
    parser.add_argument("--train", nargs="+", action="extend", default=[], metavar="FILE", help="files of the training split")
    parser.add_argument("--val", nargs="+", action="extend", default=[], metavar="FILE", help="files of the validation split")
    parser.add_argument("--out", required=True, metavar="DIR", help="directory to write to, made if it is not there")
    parser.add_argument("--format", choices=("auto", TEXT, JSONL), default="auto",
                        help="what the files are; auto goes by the name: JSON Lines for .jsonl and .ndjson, else text")
    parser.add_argument("--jsonl-key", default="text", metavar="KEY", help='key of the text in JSON Lines (default "text")')
    parser.add_argument("--separator", type=separator_bytes, default=b"\n\n", metavar="TEXT",
                        help=r"stands between two documents; \n \t \r \0 \\ \xHH are understood (default \n\n)")
    parser.add_argument("--shard-tokens", type=shard_size, default=10**8, metavar="N",
                        help="tokens in each shard but a split's last (default 100000000)")
    options = parser.parse_args(arguments)
    if not options.train and not options.val:
        parser.error("nothing to do: name files with --train, --val or both")
    return options


def open_source(path, options):
    """Return the Source of a path, after every check that needs no reading."""
    if not os.path.exists(path):
        raise PrepareError(f"{path}: no such file")
    if os.path.isdir(path):
        raise PrepareError(f"{path}: is a directory; name the files in it, {os.path.join(path, '*.txt')} for example")
    if not os.access(path, os.R_OK):
        raise PrepareError(f"{path}: permission denied")
    suffix = os.path.splitext(path)[1].lower()
    if options.format == "auto" and suffix in REFUSED_SUFFIXES:
        raise PrepareError(f"{path}: {suffix} is neither text nor JSON Lines; unpack or convert it first, or say what it is "
                           "with --format text or --format jsonl")
    kind = options.format
    if kind == "auto":
        kind = JSONL if suffix in JSONL_SUFFIXES else TEXT
    return Source(path, kind, options.jsonl_key)


def open_inputs(options):
    """Return {split: [Source, ...]} of the splits that the command line names."""
    inputs = {split: [open_source(path, options) for path in getattr(options, split)] for split in SPLITS}
    for source in inputs["val"]:
        if any(os.path.samefile(source.path, other.path) for other in inputs["train"]):
            warn(f"{source.path}: is in --train and in --val; the validation loss will mean little")
    if os.path.lexists(options.out) and not os.path.isdir(options.out):
        raise PrepareError(f"--out {options.out}: is not a directory")
    return {split: sources for split, sources in inputs.items() if sources}


def main(arguments=None):
    """Run the program; return its exit status."""
    options = parse_arguments(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda received, frame: sys.exit(128 + received))  # so that temporary files are removed
    try:
        splits = prepare(open_inputs(options), options.out, options.separator, options.shard_tokens)
    except PrepareError as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"prepare.py: cannot write to {options.out}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare.py: interrupted", file=sys.stderr)
        return 130
    for split, facts in splits.items():
        files = [os.path.join(options.out, shard["file"]) for shard in facts["shards"]]
        print(f"{split}: {facts['tokens']} tokens (documents: {facts['documents']}), entropy of the byte frequencies "
              f"{facts['entropy_nats']:.4f} nats, {' to '.join([files[0]] + files[1:][-1:])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
