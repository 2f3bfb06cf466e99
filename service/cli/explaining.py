"""What `hybridkv explain` prints: a block's copies, its moves, and what comes next, as text for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridkv.service.cli.failures import fail
from hybridkv.service.cli.tables import size_text


def from_hex(name: str, text: str) -> bytes:
    """The bytes; ends the command, naming the argument, when it is no hex."""
    try:
        return bytes.fromhex(text.strip().removeprefix("0x"))
    except ValueError:
        fail(f"{name}: {text!r} is not hex")


def print_accounts(accounts: Sequence[Mapping[str, Any]]) -> None:
    """One section for each namespace."""
    console = Console(highlight=False, soft_wrap=True)
    if not accounts:
        console.print("nothing is known of this block: it is not here, and has not moved lately")
    for account in accounts:
        _print_account(console, account)


def _print_account(console: Console, account: Mapping[str, Any]) -> None:
    console.print(f"block {account['key']} of namespace {account['fingerprint'][:16]}…: {account['state']}")
    if account["state"] == "sealed":
        console.print(
            f"  {size_text(account['block_bytes'])}, {account['age_s']:.1f} s old, used {account['idle_s']:.1f} s ago, "
            f"{account['accesses']:.2f} accesses (decayed), {account['window_accesses']} in its window, "
            f"{account['children']} children{', parent gone' if account['orphan'] else ''}"
        )
        if account["holders"]:
            console.print(f"  protected by {account['holders']} open requests or waiting calls")
    if moving := account.get("moving"):
        console.print(
            f"  on its way {moving['from']} -> {moving['to']} by {moving['reason']}: {moving['stage']} "
            f"for {moving['for_s']:.1f} s"
        )
    for copy in account["copies"]:
        _print_copy(console, copy)
    console.print(_history(account["history"]) if account["history"] else "  no moves remembered")


def _print_copy(console: Console, copy: Mapping[str, Any]) -> None:
    order = f", number {copy['order'] + 1} of {copy['of']} to go" if copy["order"] is not None else ""
    leases = f", {copy['leases']} leases (sessions {', '.join(map(str, copy['leased_by']))})" if copy["leases"] else ""
    console.print(f"  copy in {copy['pool']}, slot {copy['slot']}, for {copy['here_s']:.1f} s{leases}{order}")
    if move := copy["next"]:
        console.print(f"    next: {move['move']} by {move['reason']} ({figures_text(move['figures'])})")
    for verdict in copy["kept_by"]:
        shown = f" ({figures_text(verdict['figures'])})" if verdict["figures"] else ""
        console.print(f"    stays, {verdict['rule']}: {verdict['why']}{shown}")


def figures_text(figures: Mapping[str, float]) -> str:
    """name=value, bytes with their unit."""
    return ", ".join(
        f"{name}={size_text(value) if name.endswith('_bytes') else format(value, 'g')}"
        for name, value in figures.items()
    )


def _history(moves: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("ago", "from", "to", "reason", "outcome", "took", "on the figures", box=None, header_style="bold")
    for move in moves:
        table.add_row(
            f"{move['ago_s']:.1f} s", move["from"], move["to"] or "–", move["reason"], move["outcome"],
            f"{move['took_s'] * 1e3:.1f} ms", figures_text(move["figures"]),
        )  # fmt: skip
    return table
