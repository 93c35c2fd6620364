#!/usr/bin/env python3
"""Tests of data/prepare.py as a user runs it: what it writes is read back here with struct and nothing of its own code.

    python3 tests/test_prepare.py
"""
import collections
import glob
import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "data", "prepare.py")
HEADER_BYTES = 1024


def read_shard(path):
    """Return the tokens of a shard as bytes, after checking every field of its header."""
    content = read_file(path)
    header = struct.unpack("<256i", content[:HEADER_BYTES])
    count = header[2]
    assert header[:2] == (20240520, 1), header[:3]
    assert not any(header[3:]), "the rest of the header must be 0"
    assert len(content) == HEADER_BYTES + 2 * count, (len(content), count)
    return bytes(struct.unpack(f"<{count}H", content[HEADER_BYTES:]))


def read_split(directory, split):
    """Return the tokens of each shard that the trainer's glob finds, in sorted order."""
    return [read_shard(path) for path in sorted(glob.glob(os.path.join(directory, split + "*.bin")))]


def contents(directory):
    """Return {name: bytes} of everything in a directory, hidden files too."""
    return {name: read_file(os.path.join(directory, name)) for name in os.listdir(directory)}


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


class PrepareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="test_prepare-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "out")

    def file(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    def run_prepare(self, *arguments, out=None, **options):
        command = [sys.executable, PROGRAM, "--out", out or self.out, *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", **options)

    def prepare(self, *arguments, **options):
        result = self.run_prepare(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, *arguments, status=2, says=(), **options):
        """Expect a failure: this status, a message with all of `says`, no traceback, and nothing changed in out."""
        before = contents(self.out) if os.path.isdir(self.out) else {}
        result = self.run_prepare(*arguments, **options)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        for text in says:
            self.assertIn(text, result.stderr)
        self.assertEqual(contents(self.out) if os.path.isdir(self.out) else {}, before)
        return result

    def facts(self, split):
        with open(os.path.join(self.out, "prepare.json"), encoding="utf-8") as file:
            return json.load(file)["splits"][split]


class Shards(PrepareTest):
    def test_every_byte_value_comes_back(self):
        content = bytes(range(256)) + "héllo\r\n£20,000 \U0001f600".encode() + b"\xff\xfe\x00"
        self.prepare("--train", self.file("a.txt", content), "--val", self.file("b.txt", "validation\n"))
        self.assertEqual(read_split(self.out, "train"), [content])
        self.assertEqual(read_split(self.out, "val"), [b"validation\n"])
        self.assertEqual(sorted(os.listdir(self.out)), ["prepare.json", "tokenizer.json", "train_000000.bin", "val_000000.bin"])

    def test_documents_in_order_with_the_separator_between_them_only(self):
        files = [self.file(name, name) for name in ("b.txt", "a.txt", "c.txt")]
        self.prepare("--train", files[0], files[1], "--train", files[2])
        self.assertEqual(read_split(self.out, "train"), [b"b.txt\n\na.txt\n\nc.txt"])

    def test_separators(self):
        files = [self.file(name, name) for name in ("1", "2")]
        for given, expected in (("", b""), ("\n--\n", b"\n--\n"), (r"\0", b"\0"), (r"\xFF\\n\t\r", b"\xff\\n\t\r"), ("é", "é".encode())):
            self.prepare("--train", *files, "--separator=" + given)
            self.assertEqual(read_split(self.out, "train"), [b"1" + expected + b"2"])
        self.refused("--train", *files, r"--separator=a\q", says=[r"\q"])
        self.refused("--train", *files, "--separator=a\\", says=["--separator"])

    def test_several_shards(self):
        text = bytes(i * 7 % 251 for i in range(1000))
        for shard_tokens, sizes in ((300, [300, 300, 300, 100]), (250, [250] * 4), (999, [999, 1]), (1000, [1000]), (1001, [1000])):
            self.prepare("--train", self.file("a.txt", text), "--shard-tokens", str(shard_tokens))
            shards = read_split(self.out, "train")
            self.assertEqual([len(shard) for shard in shards], sizes)
            self.assertEqual(b"".join(shards), text)
            self.assertEqual(self.facts("train")["shards"],
                             [{"file": f"train_{i:06d}.bin", "tokens": size} for i, size in enumerate(sizes)])

    def test_a_shard_boundary_inside_a_separator(self):
        files = [self.file(name, name * 9) for name in "abc"]
        self.prepare("--train", *files, "--shard-tokens", "10")
        self.assertEqual(read_split(self.out, "train"), [b"aaaaaaaaa\n", b"\nbbbbbbbbb", b"\n\ncccccccc", b"c"])

    def test_larger_than_a_read(self):
        text = b"".join(struct.pack("<I", i * 2654435761 % 2**32) for i in range(200_000))
        self.prepare("--val", self.file("a.txt", text), "--shard-tokens", "300_000")
        self.assertTrue(b"".join(read_split(self.out, "val")) == text)

    def test_memory_does_not_grow_with_the_input(self):
        def peak(content_bytes):
            path = self.file("a.txt", "")
            os.truncate(path, content_bytes)
            code = f"import os, resource, subprocess, sys; sys.argv = {[PROGRAM, '--out', self.out, '--train', path]!r}; " \
                   "import runpy\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\n" \
                   "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
            return int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout.split()[-1])
        unit = 1024 if sys.platform != "darwin" else 1
        growth = (peak(24 << 20) - peak(1 << 20)) * unit
        self.assertLess(growth, 8 << 20)

    def test_repeat_is_identical(self):
        arguments = ["--train", self.file("a.txt", "one"), self.file("b.jsonl", '{"text": "zwei"}\n'),
                     "--val", self.file("c.txt", "three"), "--shard-tokens", "4"]
        self.prepare(*arguments)
        first = contents(self.out)
        self.prepare(*arguments)
        self.assertEqual(contents(self.out), first)
        self.prepare(*arguments, env={**os.environ, "PYTHONHASHSEED": "7", "LC_ALL": "C"})
        self.assertEqual(contents(self.out), first)

    def test_fewer_shards_than_before_leave_none_behind(self):
        path = self.file("a.txt", "x" * 100)
        self.prepare("--train", path, "--val", path, "--shard-tokens", "10")
        foreign = self.file("out/train_extra.bin", "not ours")
        result = self.prepare("--train", path, "--shard-tokens", "60")
        self.assertIn("train_extra.bin", result.stderr)
        os.unlink(foreign)
        self.assertEqual([len(shard) for shard in read_split(self.out, "train")], [60, 40])
        self.assertEqual(len(read_split(self.out, "val")), 10)
        self.assertEqual(len(self.facts("val")["shards"]), 10, "the other split's facts are kept")
        self.assertEqual(len(self.facts("train")["shards"]), 2)

    def test_reads_a_pipe(self):
        self.prepare("--train", "/dev/stdin", input="from a pipe")
        self.assertEqual(read_split(self.out, "train"), [b"from a pipe"])


class JsonLines(PrepareTest):
    def test_documents(self):
        lines = ['{"text": "caf\\u00e9\\n"}', "", '{"id": 3, "text": "\\ud83d\\ude00"}', '{"text": ""}', '  {"text": "z"}  ']
        self.prepare("--train", self.file("a.jsonl", "\r\n".join(lines)))
        self.assertEqual(read_split(self.out, "train"), ["café\n\n\n\U0001f600\n\nz".encode()])
        self.assertEqual(self.facts("train")["documents"], 3)

    def test_key_format_and_byte_order_mark(self):
        path = self.file("a.json", b'\xef\xbb\xbf{"content": "one", "text": 5}\n{"content": "two"}\n')
        self.prepare("--train", path, "--format", "jsonl", "--jsonl-key", "content")
        self.assertEqual(read_split(self.out, "train"), [b"one\n\ntwo"])
        self.prepare("--train", path, "--format", "text")
        self.assertEqual(read_split(self.out, "train"), [read_file(path)])

    def test_mixed_with_text(self):
        self.prepare("--train", self.file("a.txt", "text"), self.file("b.jsonl", '{"text": "line 1"}\n{"text": "line 2"}\n'),
                     self.file("c.txt", "end"), "--separator=|")
        self.assertEqual(read_split(self.out, "train"), [b"text|line 1|line 2|end"])

    def test_mistakes_are_named_with_file_and_line(self):
        good = b'{"text": "good"}\n'
        cases = [
            (b"{text: 1}", ["JSON", "column 2"]),
            (b'{"text": "cut', ["JSON"]),
            (b'{"body": "x", "id": 1}', ['"text"', '"body", "id"', "--jsonl-key"]),
            (b"{}", ['"text"']),
            (b'{"text": 5}', ['"text"', "a number"]),
            (b'{"text": null}', ["null"]),
            (b'{"text": ["x"]}', ["an array"]),
            (b'["text"]', ["an array"]),
            (b'{"text": "\xff"}', ["byte 11", "0xff", "UTF-8"]),
            (b'{"text": "\\ud800"}', ["lone surrogate", "\\ud800"]),
            (b"[" * 200_000, ["JSON"]),
            (b"9" * 10_000, []),
        ]
        self.prepare("--train", self.file("old.txt", "what was there before stays"))
        for line, says in cases:
            path = self.file("bad.jsonl", good + good + line + b"\n" + good)
            self.refused("--train", path, says=[path + ":3: ", *says])


class Mistakes(PrepareTest):
    def test_usage(self):
        path = self.file("a.txt", "text")
        self.refused(says=["--train"])
        self.refused("--train", path, "--no-such-option")
        for value in ("1", "0", "-5", "2.5", "many", "2147483648", "1e10", "nan", "inf", ""):
            self.refused("--train", path, "--shard-tokens=" + value, says=["--shard-tokens", "2147483647"])
        result = subprocess.run([sys.executable, PROGRAM, "--train", path], stderr=subprocess.PIPE, encoding="utf-8")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--out", result.stderr)

    def test_inputs(self):
        good = self.file("a.txt", "text")
        missing = os.path.join(self.folder, "missing.txt")
        self.refused("--train", good, "--val", missing, says=[missing, "no such file"])
        self.refused("--train", self.folder, says=[self.folder, "directory"])
        for name in ("a.parquet", "a.txt.gz", "train_000000.bin", "a.json"):
            self.refused("--train", self.file(name, "x"), says=[name, "--format"])
        self.assertFalse(os.path.exists(self.out), "nothing is written before the inputs are checked")

    def test_empty(self):
        empty, text = self.file("empty.txt", ""), self.file("a.txt", "text")
        self.refused("--train", empty, says=["--train", empty])
        self.refused("--train", text, "--val", self.file("e.jsonl", '{"text": ""}\n'), says=["--val", "e.jsonl"])
        result = self.prepare("--train", empty, text, empty)
        self.assertIn(empty, result.stderr)
        self.assertEqual(read_split(self.out, "train"), [b"text"])

    def test_out(self):
        path = self.file("a.txt", "text")
        self.refused("--train", path, out=path, says=[path, "not a directory"])
        self.assertEqual(self.run_prepare("--train", path, out=os.path.join(path, "x")).returncode, 1)
        nested = os.path.join(self.folder, "x", "y", "z")
        self.prepare("--train", path, out=nested)
        self.assertEqual(read_split(nested, "train"), [b"text"])

    def test_another_vocabulary_is_not_overwritten(self):
        os.mkdir(self.out)
        path = self.file("a.txt", "text")
        for content in ('{"model": {"type": "BPE", "vocab": {"a": 0}}}', "not JSON", "[]"):
            self.file("out/tokenizer.json", content)
            self.refused("--train", path, says=["tokenizer.json", "--out"])
        os.unlink(os.path.join(self.out, "tokenizer.json"))
        for content in ("not JSON", "[]", '{"tokenizer": "bytes", "splits": {"val": {"shards": 5}}}'):
            self.file("out/prepare.json", content)
            self.prepare("--train", path)
            self.assertEqual(self.facts("train")["tokens"], 4)

    def test_the_same_file_in_both_splits_is_remarked(self):
        path = self.file("a.txt", "text")
        self.assertIn(path, self.prepare("--train", path, "--val", path).stderr)

    def test_failed_write(self):
        """A file size limit stands for a full disk: the write fails half-way through."""
        self.prepare("--train", self.file("a.txt", "what was there before stays"))
        large = self.file("b.txt", b"x" * 100_000)
        self.refused("--train", large, status=1, says=[self.out, "File too large"],
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))

    def test_terminated(self):
        """SIGTERM or SIGINT in the middle: no temporary file stays, and what was there before does."""
        self.prepare("--train", self.file("a.txt", "what was there before stays"))
        before = contents(self.out)
        command = [sys.executable, PROGRAM, "--out", self.out, "--train", "/dev/stdin"]
        for number, status in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)):
            # A job in the background of a shell inherits an ignored SIGINT: make it the default again.
            with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)) as process:
                sent = False
                for _ in range(500):  # it always has more to read, so that it ends by the signal or not at all
                    try:
                        process.stdin.write(b"x" * 65536)
                    except BrokenPipeError:
                        break
                    if not sent and glob.glob(os.path.join(self.out, ".prepare-*", "train_000000.bin")):
                        process.send_signal(number)
                        sent = True
                self.assertTrue(sent)
            self.assertEqual(process.returncode, status)
            self.assertEqual(contents(self.out), before)


class Facts(PrepareTest):
    def test_tokens_and_entropy(self):
        train, val = self.file("a.txt", "abac" * 50), self.file("b.txt", "z" * 7)
        result = self.prepare("--train", train, "--val", val)
        facts = self.facts("train")
        self.assertEqual(facts["sources"], [{"path": train, "bytes": 200, "documents": 1}])
        self.assertEqual(facts["tokens"], 200)
        self.assertAlmostEqual(facts["entropy_nats"], 1.5 * math.log(2), places=6)
        self.assertEqual(self.facts("val")["entropy_nats"], 0.0)
        self.assertIn("train: 200 tokens", result.stdout)
        self.assertIn("1.0397 nats", result.stdout)
        self.assertIn("val: 7 tokens", result.stdout)

    def test_entropy_is_that_of_the_shards(self):
        files = [self.file(name, name * 20) for name in ("alpha", "beta", "gamma")]
        self.prepare("--train", *files, "--shard-tokens", "64")
        tokens = b"".join(read_split(self.out, "train"))
        expected = -sum(n / len(tokens) * math.log(n / len(tokens)) for n in collections.Counter(tokens).values())
        self.assertEqual(self.facts("train")["tokens"], len(tokens))
        self.assertAlmostEqual(self.facts("train")["entropy_nats"], expected, places=6)

    def test_tokenizer(self):
        """The id of each of the 256 characters is the byte it stands for; checked through GPT-2's own rule and examples."""
        self.prepare("--train", self.file("a.txt", "text"))
        with open(os.path.join(self.out, "tokenizer.json"), encoding="utf-8") as file:
            tokenizer = json.load(file)
        vocabulary = tokenizer["model"]["vocab"]
        self.assertEqual(sorted(vocabulary.values()), list(range(256)))
        self.assertEqual(tokenizer["model"]["type"], "BPE")
        self.assertEqual(tokenizer["model"]["merges"], [])
        self.assertEqual(tokenizer["added_tokens"], [])
        for part in (tokenizer["pre_tokenizer"], tokenizer["decoder"]):
            self.assertEqual((part["type"], part["add_prefix_space"], part["use_regex"]), ("ByteLevel", False, False))
        known = {"A": 0x41, "~": 0x7E, "!": 0x21, "Ġ": 0x20, "Ċ": 0x0A, "ĉ": 0x09, "č": 0x0D, "Ā": 0x00, "ġ": 0x7F, "Ģ": 0x80,
                 "ł": 0xA0, "Ń": 0xAD, "¡": 0xA1, "é": 0xE9, "Ã": 0xC3, "ÿ": 0xFF}
        self.assertEqual({character: vocabulary[character] for character in known}, known)
        for character, byte in vocabulary.items():
            self.assertTrue(character.isprintable() and not character.isspace())
            self.assertTrue(ord(character) == byte or 256 <= ord(character) < 324)

    def test_tokenizer_against_the_library(self):
        """Where the tokenizers library is installed, it must encode to UTF-8's bytes and back."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            self.skipTest("the tokenizers library is not installed")
        self.prepare("--train", self.file("a.txt", "text"))
        tokenizer = Tokenizer.from_file(os.path.join(self.out, "tokenizer.json"))
        for text in ("héllo\n", "  two  spaces ", "\t\r\n", "I'm 12 £ \U0001f600 日本", ""):
            self.assertEqual(tokenizer.encode(text).ids, list(text.encode()))
            self.assertEqual(tokenizer.decode(list(text.encode())), text)


class Corpus(PrepareTest):
    """The embedded novels, as the README's commands prepare them."""

    def test_novels(self):
        novels = sorted(glob.glob(os.path.join(ROOT, "data", "austen", "*.txt")))
        self.assertEqual(len(novels), 6)
        validation = [path for path in novels if path.endswith("persuasion.txt")]
        training = [path for path in novels if path not in validation]
        self.prepare("--train", *training, "--val", *validation)
        text = {path: read_file(path) for path in novels}
        # No assertEqual: its report of a difference in megabytes takes minutes.
        self.assertTrue(read_split(self.out, "train") == [b"\n\n".join(text[path] for path in training)])
        self.assertTrue(read_split(self.out, "val") == [text[validation[0]]])
        for path in novels:
            text[path].decode("utf-8")
            self.assertTrue(text[path].endswith(b".\n") or text[path].lower().endswith((b"finis\n", b"the end\n")), path)
            self.assertNotIn(b"\r", text[path])
        self.assertTrue(3.0 < self.facts("train")["entropy_nats"] < 3.2)
        self.assertTrue(3.0 < self.facts("val")["entropy_nats"] < 3.2)


if __name__ == "__main__":
    unittest.main()
