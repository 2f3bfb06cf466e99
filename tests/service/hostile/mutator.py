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
WHOLE, KNOWN, LEFT_OUT, MANGLED = 0.3, 0.8, 0.2, 0.2
"""Shares of messages with every field, of values heard before, of fields left out, of messages whose bytes are changed."""

DEPTH = 4


class Mutator:
    """Makes messages with `random`. `known` holds values that mean something to the daemon, by field name: a message of
    nothing but noise is refused at the door."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.known: dict[str, list[Any]] = defaultdict(list)

    # ------------------------------------------------------------------------------------------------ out

    def raw(self, kind: Descriptor) -> bytes:
        """A message's bytes, or what was one."""
        raw: bytes = self.message(kind).SerializeToString()
        return self._mangled(raw) if self.random.random() < MANGLED else raw

    def message(self, kind: Descriptor, depth: int = 0) -> Message:
        message = GetMessageClass(kind)()
        whole = self.random.random() < WHOLE
        for field in kind.fields:
            if whole or self.random.random() >= LEFT_OUT:
                self._set(message, field, depth)
        return message

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.type == field.TYPE_MESSAGE:
            if depth >= DEPTH:
                return
            into = getattr(message, field.name)
            if field.is_repeated:
                for _ in range(min(self.random.choice(COUNTS), 20 if depth else 600)):
                    into.add().CopyFrom(self.message(field.message_type, depth + 1))
            else:
                into.CopyFrom(self.message(field.message_type, depth + 1))
        elif field.is_repeated:
            getattr(message, field.name).extend(self._value(field) for _ in range(self.random.choice(COUNTS)))
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: FieldDescriptor) -> Any:
        known = self.known.get(field.name) or self.known.get(field.name.removesuffix("s"))
        if known and self.random.random() < KNOWN:
            return self.random.choice(known)
        random = self.random
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
