"""Tokens: the files they lie in, the form they have, and how they travel."""

import os
import stat
from pathlib import Path

from hybridkv.tiers.errors import InvalidArgumentError

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_CHARACTERS = 512
MAX_TOKENS_PER_FILE = 16
MAX_TOKEN_FILE_BYTES = 64 << 10

AUTHORIZATION = "authorization"
SCHEME = "Bearer "


def bearer_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """What a client sends with each call; nothing without a token."""
    return ((AUTHORIZATION, SCHEME + token),) if token else ()


def token_file(path: Path, field: str) -> str:
    """The first token of a file. Raises InvalidArgumentError naming `field`."""
    return tokens_of(path, field)[0]


def tokens_of(path: Path, field: str) -> list[str]:
    """The tokens of a file, one a line. Raises InvalidArgumentError when others may read it, or a line is no token."""
    text = _private_text(path, field)
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(tokens) <= MAX_TOKENS_PER_FILE:
        raise InvalidArgumentError(field, f"{path}: has {len(tokens)} tokens; 1 to {MAX_TOKENS_PER_FILE}, one a line")
    for number, token in enumerate(tokens, start=1):
        check_token(token, field, f"{path}: token {number}")
    return tokens


def _private_text(path: Path, field: str) -> str:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InvalidArgumentError(field, f"{path}: is no file")
            if about.st_mode & 0o077:
                raise InvalidArgumentError(
                    field, f"{path}: others may read it (mode {about.st_mode & 0o777:04o}); must be 0600"
                )
            return file.read(MAX_TOKEN_FILE_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise InvalidArgumentError(field, f"{path}: {error.strerror}") from error


def check_token(token: str, field: str, named: str = "") -> None:
    """Raises InvalidArgumentError; the message has its length, never the token."""
    prefix = f"{named} " if named else ""
    if not MIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS:
        raise InvalidArgumentError(
            field, f"{prefix}has {len(token)} characters; {MIN_TOKEN_CHARACTERS} to {MAX_TOKEN_CHARACTERS}"
        )
    if not all("!" <= letter <= "~" for letter in token):
        raise InvalidArgumentError(field, f"{prefix}has a character that is no printable ASCII, or a space")
