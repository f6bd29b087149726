"""The cost of steps: chips × hours × the price of a chip-hour.

Does not own the prices (``neurenix.chips``) or the step time (the report). A cost is an estimate,
like the step time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from neurenix import chips
from neurenix._core.errors import ArgumentError
from neurenix._core.number_checks import check_number
from neurenix._core.output_encoding import plain


@dataclass(frozen=True)
class Pricing:
    """Which price a cost uses.

    Attributes:
        region: ``"us"`` or another area, or a region of Google Cloud such as ``"europe-west4"``.
        commitment: ``"on-demand"``, ``"1-year"``, ``"3-year"`` or ``"spot"``.
        usd_per_chip_hour: your price instead of the list price: one number, or one for each
            generation by name; generations without an entry use the list price.

    Raises:
        UnknownNameError: unknown region, commitment or generation.
        ArgumentError: a price is negative or NaN, or a generation has two prices.
        ArgumentTypeError: a price is not a number.
    """

    region: str = "us"
    commitment: str = "on-demand"
    usd_per_chip_hour: float | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        usd = self.usd_per_chip_hour
        if isinstance(usd, Mapping):
            object.__setattr__(self, "usd_per_chip_hour", _by_generation(usd))
        elif usd is not None:
            _check_usd("usd_per_chip_hour", usd)
        chips.price("v5e", self.region, commitment=self.commitment)  # the names are checked there

    def own(self, generation: chips.Generation) -> float | None:
        """Return your price of a chip-hour, or ``None`` if the list price applies."""
        usd = self.usd_per_chip_hour
        return usd.get(generation.name) if isinstance(usd, Mapping) else usd

    def of(self, generation: chips.Generation) -> chips.Price | None:
        """Return the list price of a chip, or ``None`` if none is public or yours applies."""
        if self.own(generation) is not None:
            return None
        return chips.price(generation.name, self.region, commitment=self.commitment)

    def rate(self, generation: chips.Generation) -> float | None:
        """Return the USD of a chip-hour, or ``None`` if no price is public.

        Example:
            >>> nx.preflight.Pricing(usd_per_chip_hour=2.0).rate(nx.chips.generation("tpu7x"))
            2.0
            >>> own = nx.preflight.Pricing(usd_per_chip_hour={"tpu7x": 3.0})
            >>> own.rate(nx.chips.generation("tpu7x")), own.rate(nx.chips.generation("v5e"))
            (3.0, 1.2)
        """
        price = self.of(generation)
        return self.own(generation) if price is None else price.usd_per_chip_hour

    def missing(self, generation: chips.Generation) -> str:
        """Return a message that no price is public, with the prices that are.

        Example:
            >>> nx.preflight.Pricing().missing(nx.chips.generation("tpu7x"))
            'no public price for tpu7x'
        """
        listed = [
            f"{p.region} {p.commitment} {p.usd_per_chip_hour:g}"
            for p in generation.prices
            if p.region == self.region or p.commitment == self.commitment
        ]
        if not generation.prices:
            return f"no public price for {generation.name}"
        known = f" (listed: {', '.join(listed)})" if listed else ""
        return f"no public price for {generation.name} in {self.region}, {self.commitment}{known}"


def prices_of(text: str) -> float | dict[str, float]:
    """Parse a price, or prices of several generations.

    Raises:
        ArgumentError: the text is neither a number nor a list of ``generation=number``.

    Example:
        >>> prices_of("3"), prices_of("tpu7x=3, v5e=1.1")
        (3.0, {'tpu7x': 3.0, 'v5e': 1.1})
    """
    found: dict[str, float] = {}
    try:
        if "=" not in text:
            return float(text)
        for part in text.split(","):
            name, equals, usd = (word.strip() for word in part.partition("="))
            if not equals or name in found:
                raise ValueError
            found[name] = float(usd)
    except ValueError:
        raise ArgumentError(
            f"{text!r} is not a price. Write USD for a chip and an hour, such as 1.5, or those of "
            "each generation once: tpu7x=3,v5e=1.1."
        ) from None
    return found


def price_text(usd: float | Mapping[str, float]) -> str:
    """Return a price as text that ``prices_of`` parses.

    Example:
        >>> price_text(3.0), price_text({"tpu7x": 3.0, "v5e": 1.1})
        ('3.0', 'tpu7x=3.0,v5e=1.1')
    """
    if not isinstance(usd, Mapping):
        return str(usd)
    return ",".join(f"{name}={own}" for name, own in usd.items())


def _by_generation(prices: Mapping[str, float]) -> dict[str, float]:
    """Return the prices under the canonical names of the generations."""
    found: dict[str, float] = {}
    for given, usd in prices.items():
        name = chips.generation(given).name
        if name in found:
            raise ArgumentError(f"usd_per_chip_hour has two prices for {name}.")
        _check_usd(f"usd_per_chip_hour[{given!r}]", usd)
        found[name] = usd
    return found


def _check_usd(what: str, usd: float) -> None:
    check_number(what, usd)
    if not (usd >= 0 and math.isfinite(usd)):
        raise ArgumentError(f"A price is 0 or more USD for a chip and an hour; got {usd}.")


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a number of steps.

    ``usd`` is ``None`` if no public price is known; ``missing`` then says so. ``low`` and ``high``
    are the ends of the 80 % interval, from that of the step time. ``tokens`` and ``examples`` are
    totals over ``steps``, ``None`` if the program has none.
    """

    usd: float | None
    low: float | None
    high: float | None
    chip_hours: float
    seconds: float
    price: chips.Price | None
    usd_per_chip_hour: float | None
    steps: int = 1
    examples: int | None = None
    tokens: int | None = None
    missing: str = ""

    @property
    def usd_per_step(self) -> float | None:
        """USD for one step."""
        return self._share(self.steps)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """USD per million tokens; ``None`` without a price or without tokens."""
        return self._share((self.tokens or 0) / 1e6)

    @property
    def usd_per_million_examples(self) -> float | None:
        """USD per million examples; ``None`` without a price or without a batch."""
        return self._share((self.examples or 0) / 1e6)

    def _share(self, parts: float) -> float | None:
        return None if self.usd is None or not parts else self.usd / parts

    def __str__(self) -> str:
        hours = f"{self.chip_hours:,.4g} chip-hours"
        if self.usd is None or self.low is None or self.high is None:
            return plain(f"{hours}; {self.missing}")
        interval = f"80 % interval: {usd_text(self.low)} to {usd_text(self.high)}"
        return (
            f"{usd_text(self.usd)} estimated ({interval}) for {self.steps:,} steps: "
            f"{hours} at {usd_text(self.usd_per_chip_hour or 0)}"
        )


@dataclass(frozen=True)
class Work:
    """One step: its estimated seconds with their interval, its examples and tokens."""

    seconds: float
    low: float
    high: float
    examples: int | None
    tokens: int | None


def steps_for(work: Work, *, steps: int | None, examples: int | None, tokens: int | None) -> int:
    """Return the number of steps, from steps, examples or tokens; 1 if none is given.

    A last partial batch counts as a step, since ``fit`` pads it.

    Raises:
        ArgumentError: more than one argument is given; one is negative or a fraction; or the
            program has no examples or tokens to count.
        ArgumentTypeError: an argument is not a number.

    Example:
        >>> work = Work(0.1, 0.08, 0.14, examples=200, tokens=None)
        >>> steps_for(work, steps=None, examples=1437, tokens=None)
        8
    """
    given = {
        name: value
        for name, value in (("steps", steps), ("examples", examples), ("tokens", tokens))
        if value is not None
    }
    if len(given) > 1:
        raise ArgumentError(f"Give one of {' and '.join(given)}, which say the same thing.")
    for name, value in given.items():
        check_number(name, value)
        if not 0 <= value < math.inf:
            raise ArgumentError(f"{name} must be 0 or more; got {value}.")
        if value != int(value):
            raise ArgumentError(f"{name} must be a whole number; got {value}.")
    for name, asked, each in (
        ("examples", examples, work.examples),
        ("tokens", tokens, work.tokens),
    ):
        if asked is None:
            continue
        if not each:
            raise ArgumentError(
                f"The program is not known to take {name}, so the steps for {asked:,} of them are "
                "not known either. Give steps=…."
            )
        return math.ceil(asked / each)
    return 1 if steps is None else int(steps)


def cost_of(work: Work, steps: int, where: chips.Slice, pricing: Pricing) -> Cost:
    """Return the cost of ``steps`` steps on a slice.

    Example:
        >>> work = Work(0.9, 0.72, 1.26, examples=8, tokens=8 * 1024)
        >>> cost = cost_of(work, 1000, chips.resolve("v5e-8"), Pricing())
        >>> round(cost.usd, 6), cost.chip_hours, round(cost.usd_per_million_tokens, 6)
        (2.4, 2.0, 0.292969)
    """
    price, rate = pricing.of(where.generation), pricing.rate(where.generation)
    chip_hours = steps * work.seconds * where.num_chips / 3600

    def usd(seconds: float) -> float | None:
        return None if rate is None else rate * steps * seconds * where.num_chips / 3600

    return Cost(
        usd=usd(work.seconds),
        low=usd(work.low),
        high=usd(work.high),
        chip_hours=chip_hours,
        seconds=steps * work.seconds,
        price=price,
        usd_per_chip_hour=rate,
        steps=steps,
        examples=None if work.examples is None else work.examples * steps,
        tokens=None if work.tokens is None else work.tokens * steps,
        missing=pricing.missing(where.generation) if rate is None else "",
    )


def usd_text(usd: float) -> str:
    """Return an amount of USD with three significant digits.

    Example:
        >>> usd_text(0.00022413), usd_text(7.5), usd_text(1234567.8)
        ('0.000224 USD', '7.50 USD', '1,234,568 USD')
    """
    if usd >= 1000:
        return f"{usd:,.0f} USD"
    if usd >= 1:
        return f"{usd:.2f} USD"
    return f"{usd:.3g} USD" if usd >= 1e-4 or usd == 0 else f"{usd:.2e} USD"


def money_text(usd: float) -> str:
    """Return an amount of USD for a page: below one cent in cents, without an exponent.

    Example:
        >>> money_text(0.00022413), money_text(2.2e-7), money_text(0.5), money_text(0)
        ('0.0224 cents', '0.000022 cents', '0.5 USD', '0 USD')
    """
    return usd_text(usd) if usd == 0 or usd >= 0.01 else f"{plain_number(100 * usd)} cents"


def plain_number(value: float) -> str:
    """Return a number with three significant digits, without an exponent.

    Example:
        >>> plain_number(0.000012345), plain_number(250.0), plain_number(0.0)
        ('0.0000123', '250', '0')
    """
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    shown = f"{value:,.{digits}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown
