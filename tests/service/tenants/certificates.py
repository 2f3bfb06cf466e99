"""Certificates made for one test run, with the `openssl` command: an authority, and what it and others sign."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Signed:
    """PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl command")
        self._folder = folder
        self._name = name
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl("req", "-x509", *_KEY, "-nodes", "-days", "2", "-subj", f"/CN={name}",
                 "-keyout", self._key, "-out", self.cert)  # fmt: skip

    def sign(self, name: str, *, names: str = "", days: int = 2, stem: str = "") -> Signed:
        """A certificate with this common name; `names` are its alternative names; `days` below 0: it has expired."""
        stem = stem or f"{self._name}-{name}"
        request, extra = self._folder / f"{stem}.csr", self._folder / f"{stem}.ext"
        made = Signed(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        _openssl("req", "-new", *_KEY, "-nodes", "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
        extra.write_text(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
        _openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial",
                 "-days", str(days), "-extfile", extra, "-out", made.cert)  # fmt: skip
        return made


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
