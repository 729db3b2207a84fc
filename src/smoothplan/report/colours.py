"""Colours of series: those of the static figures, and lighter ones of the same hue for a dark background."""

from smoothplan.findings.figures import COLOURS

DARK = "#15191e"
"""The background of the page in dark mode, as in page.css."""

CONTRAST = 4.5
"""What a text must have against its background (WCAG AA); it makes lines easy to see too."""

STEP = 0.05
"""How much white is added at a time."""


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21, as WCAG defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def on_dark(colour: str) -> str:
    """The colour with as little white in it as it takes to be read on a dark background."""
    channels, share = _channels(colour), 0.0
    while contrast(mixed := _mixed(channels, share), DARK) < CONTRAST:
        share += STEP
    return mixed


def of_series(place: int) -> str:
    """The colour of a figure's series by its place, as CSS for both backgrounds."""
    colour = COLOURS[place % len(COLOURS)]
    return f"light-dark({colour}, {on_dark(colour)})"


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[start : start + 2], 16) for start in (1, 3, 5))


def _mixed(channels: tuple[int, ...], share: float) -> str:
    return "#" + "".join(f"{round(channel + share * (255 - channel)):02x}" for channel in channels)


def _luminance(colour: str) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
