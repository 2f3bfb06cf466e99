"""Messages that no client of ours sends, made from the descriptors: a call that is added later is fuzzed unlisted."""

from collections import defaultdict
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

INTEGERS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 511, 512, 513, 4096, 4097, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
LARGE = (2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
DOUBLES = (0.0, -0.0, 1e-9, 0.01, 0.5, 30.0, 3600.0, 3600.1, 1e308, -1.0, float("inf"), float("-inf"), float("nan"))
LENGTHS = (0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 4096, 70_000)
COUNTS = (0, 1, 1, 2, 3, 17, 600)
TEXTS = (
    "",
    "x",
    "cpu.policy",
    "cpu.capacity_bytes",
    "lru",
    '"lru"',
    "null",
    "[1]",
    "{",
    "1e999",
    "\x00",
    "🦊" * 40,
    "a" * 9000,
)
NOISE = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Shares of a message's fields that are hostile, one drawn for each message: with more noise it gets less far."""

LEFT_OUT, LEFT_OUT_OPTIONAL, MANGLED = 0.05, 0.7, 0.1
"""Shares of fields left out, and of messages whose bytes are changed."""

MODEST: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_UINT32: (0, 1, 2, 3),
    FieldDescriptor.TYPE_UINT64: (0, 1, 16, 64),
    FieldDescriptor.TYPE_DOUBLE: (0.0, 0.01),
    FieldDescriptor.TYPE_STRING: ("",),
    FieldDescriptor.TYPE_BYTES: (b"",),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2),
}
DEPTH = 4


class Mutator:
    """Makes messages with `random`. `known` holds values that mean something to the daemon, by field name: a message of
    nothing but noise is refused at the door."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.known: dict[str, list[Any]] = defaultdict(list)
        self._noise = 0.0

    # ------------------------------------------------------------------------------------------------ out

    def raw(self, kind: Descriptor) -> bytes:
        """A message's bytes, or what was one."""
        raw: bytes = self.message(kind).SerializeToString()
        return self._mangled(raw) if self.random.random() < MANGLED else raw

    def message(self, kind: Descriptor, depth: int = 0) -> Message:
        if not depth:
            self._noise = self.random.choice(NOISE)
        message = GetMessageClass(kind)()
        for field in kind.fields:
            seldom = field.has_presence or (field.is_repeated and field.type == field.TYPE_MESSAGE)
            absent = LEFT_OUT_OPTIONAL if seldom else LEFT_OUT
            if self.random.random() >= absent:
                self._set(message, field, depth)
        return message

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.type == field.TYPE_MESSAGE:
            if depth >= DEPTH:
                return
            into = getattr(message, field.name)
            if field.is_repeated:
                count = self.random.choice(COUNTS if self.random.random() < self._noise else COUNTS[1:4])
                for _ in range(min(count, 20 if depth else 600)):
                    into.add().CopyFrom(self.message(field.message_type, depth + 1))
            else:
                into.CopyFrom(self.message(field.message_type, depth + 1))
        elif field.is_repeated:
            count = self.random.choice(COUNTS if self.random.random() < self._noise else COUNTS[1:4])
            getattr(message, field.name).extend(self._value(field) for _ in range(count))
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: FieldDescriptor) -> Any:
        known = self.known.get(field.name) or self.known.get(field.name.removesuffix("s"))
        random, modest = self.random, self.random.random() >= self._noise
        if known and modest:
            return random.choice(known)
        if modest and field.type in MODEST:
            return random.choice(MODEST[field.type])
        if field.type == field.TYPE_BOOL:
            return random.random() < 0.5
        if field.type == field.TYPE_ENUM:
            return random.choice((*range(9), 99, 2**31 - 1, -1))
        if field.type == field.TYPE_DOUBLE:
            return random.choice(DOUBLES)
        if field.type == field.TYPE_STRING:
            return random.choice(TEXTS)
        if field.type == field.TYPE_BYTES:
            return random.randbytes(random.choice(LENGTHS))
        if field.type == field.TYPE_UINT32:
            return random.choice((*INTEGERS, random.getrandbits(32)))
        return random.choice((*INTEGERS, *LARGE, random.getrandbits(64)))

    def _mangled(self, raw: bytes) -> bytes:
        random, data = self.random, bytearray(raw)
        at = random.randrange(len(data) + 1)
        how = random.randrange(6)
        if how == 0:
            return bytes(data[:at])  # the end is missing
        if how == 1:
            return bytes(data[:at]) + random.randbytes(random.choice((1, 5, 100))) + bytes(data[at:])
        if how == 2:
            return bytes(data) + bytes(data)  # every field twice
        if how == 3:
            return b"\x0a\xff\xff\xff\xff\x0f" + bytes(data)  # a field of 4 GiB
        if how == 4:
            return b"\x0b" * random.choice((1, 200, 20_000)) + bytes(data)  # groups in groups
        for _ in range(1 + len(data) // 20):
            if data:
                data[random.randrange(len(data))] = random.getrandbits(8)
        return bytes(data)

    # ------------------------------------------------------------------------------------------------ in

    def learn(self, reply: Message) -> None:
        """Numbers of holds and sequences in an answer are worth being used again, also where they do not belong."""
        for field, value in reply.ListFields():
            if field.type == field.TYPE_MESSAGE:
                for one in value if field.is_repeated else [value]:
                    self.learn(one)
            elif field.type == field.TYPE_UINT64 and field.name not in ("session", "epoch"):
                self.note(field.name, *(value if field.is_repeated else [value]))

    def note(self, name: str, *values: Any) -> None:
        """The last hundred of each name."""
        self.known[name] = [*self.known[name], *values][-100:]
        if name in ("lease", "reservation"):
            self.known["hold"] = [*self.known["hold"], *values][-100:]
