"""How sizes, times and memory are written in tables and drawings."""

from __future__ import annotations

from ..memory import Plan


def intermediates(plan: Plan) -> str:
    """How what lies between segments shares memory.

    >>> intermediates(Plan((0, 128, 0), (192,), 320))
    '320 B in 3 pieces, which share 192 B'
    """
    count = len(plan.offsets)
    if not count:
        return "none"
    total = f"{size(plan.total)} in {count} {'piece' if count == 1 else 'pieces'}"
    return f"{total}, which share {size(plan.peak)}" if plan.peak < plan.total else f"{total}, none used again"


def size(count: int) -> str:
    """A number of bytes.

    >>> size(192), size(8192), size(1300000)
    ('192 B', '8.0 KiB', '1.2 MiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def duration(seconds: float) -> str:
    """A time.

    >>> duration(2.5e-6), duration(0.0123), duration(1.5), duration(-3e-6)
    ('2.5 us', '12.30 ms', '1.50 s', '-3.0 us')
    """
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"
