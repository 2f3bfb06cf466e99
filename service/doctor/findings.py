"""What the doctor finds: how bad it is, the figures it rests on, and the config keys to turn."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """BAD: something fails or will; ADVICE: it works and could work better."""

    BAD = "bad"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` names what was looked at, `where` the tier, lane or path it was found in; `keys` are config keys."""

    severity: Severity
    rule: str
    where: str
    what: str
    advice: str
    keys: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "severity": self.severity.value,
            "rule": self.rule,
            "where": self.where,
            "what": self.what,
            "advice": self.advice,
            "keys": list(self.keys),
            "figures": dict(self.figures),
        }


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """What is bad first; else as found."""
    return sorted(findings, key=lambda finding: finding.severity is not Severity.BAD)


def any_bad(findings: Iterable[Finding]) -> bool:
    """Whether something fails or will."""
    return any(finding.severity is Severity.BAD for finding in findings)
