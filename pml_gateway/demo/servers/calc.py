"""An MCP server for what models are bad at: time zones, dates, arithmetic, statistics, units, interest."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo

from fastmcp.server import FastMCP
from pydantic import Field

from pml_gateway.demo.servers.expression import MAX_CHARACTERS, evaluate
from pml_gateway.demo.servers.launch import READS, RefusedError, serve, server_of, tool
from pml_gateway.demo.servers.units import convert, units

Zone = Annotated[str, Field(max_length=60, description="IANA time zone such as 'Europe/Zurich', or 'UTC'.")]
Moment = Annotated[str, Field(max_length=60, description="ISO 8601 date and time, e.g. '2026-03-01T14:30'.")]
Day = Annotated[date, Field(description="ISO date, e.g. '2026-03-01'.")]
Real = Annotated[float, Field(allow_inf_nan=False)]
Numbers = Annotated[list[Real], Field(min_length=1, max_length=10_000, description="The numbers.")]
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
Money = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False, description="Amount of money.")]
YearlyRate = Annotated[float, Field(ge=0, le=1000, description="Interest a year in percent, e.g. 4.5.")]
Holidays = Annotated[list[date] | None, Field(max_length=1000, description="Days that do not count as working days.")]

MAX_DAYS = 36_600
"""A hundred years: longer spans of working days are counted day by day for no user."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Clock:
    time: str
    zone: str
    weekday: str
    unix_seconds: int


@dataclass(frozen=True, slots=True)
class Span:
    days: int
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    text: str
    value: float


@dataclass(frozen=True, slots=True)
class Description:
    count: int
    sum: float
    mean: float
    median: float
    minimum: float
    maximum: float
    standard_deviation: float
    percentiles: dict[str, float]


@dataclass(frozen=True, slots=True)
class Divisors:
    greatest_common_divisor: int
    least_common_multiple: int


@dataclass(frozen=True, slots=True)
class Factors:
    number: int
    prime: bool
    factors: list[int]


@dataclass(frozen=True, slots=True)
class Growth:
    final_amount: float
    interest: float


@dataclass(frozen=True, slots=True)
class Loan:
    monthly_payment: float
    total_paid: float
    total_interest: float


class Calc:
    """The tools; none keeps state."""

    @tool(READS)
    def current_time(self, zone: Zone = "UTC") -> Clock:
        """Tell the current date, time and weekday in a time zone."""
        return _clock(datetime.now(_zone(zone)), zone)

    @tool(READS)
    def convert_timezone(self, moment: Moment, from_zone: Zone, to_zone: Zone) -> Clock:
        """Convert a date and time from one time zone to another, with daylight saving time."""
        return _clock(_in_zone(_moment(moment, from_zone), _zone(to_zone)), to_zone)

    @tool(READS)
    def date_difference(self, start: Moment, end: Moment, zone: Zone = "UTC") -> Span:
        """Count the days and hours between two dates or times: how long it is since or until a date, an age.

        Negative if the end comes first.
        """
        span = _in_zone(_moment(end, zone), UTC) - _in_zone(_moment(start, zone), UTC)
        return Span(span.days, span.total_seconds(), str(span))

    @tool(READS)
    def add_duration(
        self,
        moment: Moment,
        days: Annotated[int, Field(ge=-4_000_000, le=4_000_000, description="Days to add; may be negative.")] = 0,
        hours: Annotated[int, Field(ge=-100_000_000, le=100_000_000, description="Hours to add.")] = 0,
        minutes: Annotated[int, Field(ge=-(10**9), le=10**9, description="Minutes to add.")] = 0,
        zone: Zone = "UTC",
    ) -> Clock:
        """Find the date and time some days, hours or minutes after another. Days keep the clock time; hours elapse."""
        try:
            shifted = _in_zone(_moment(moment, zone) + timedelta(days=days), UTC)
            elapsed = shifted + timedelta(hours=hours, minutes=minutes)
        except OverflowError as exc:
            raise RefusedError("the result lies outside the years 1 to 9999") from exc
        return _clock(_in_zone(elapsed, _zone(zone)), zone)

    @tool(READS)
    def count_business_days(self, start: Day, end: Day, holidays: Holidays = None) -> int:
        """Count the working days (Monday to Friday) from a date up to, not including, another date."""
        total = (end - start).days
        if not 0 <= total <= MAX_DAYS:
            raise RefusedError(f"the end must be 0 to {MAX_DAYS} days after the start, not {total}")
        free = set(holidays or [])
        return sum(_works(start + timedelta(days=offset), free) for offset in range(total))

    @tool(READS)
    def add_business_days(
        self,
        start: Day,
        days: Annotated[int, Field(ge=-10_000, le=10_000, description="Working days to add; may be negative.")],
        holidays: Holidays = None,
    ) -> date:
        """Find the date a number of working days (Monday to Friday) after or before a date."""
        free, day, left = set(holidays or []), start, abs(days)
        step = timedelta(days=1 if days > 0 else -1)
        try:
            while left:
                day += step
                left -= _works(day, free)
        except OverflowError as exc:
            raise RefusedError("the result lies outside the years 1 to 9999") from exc
        return day

    @tool(READS)
    def evaluate_expression(
        self,
        expression: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS, description="e.g. '2*(3+4)^2'.")],
    ) -> Evaluation:
        """Calculate an arithmetic expression: + - * / // % ** and functions such as sqrt, log, sin, round, max."""
        result = evaluate(expression)
        return Evaluation(str(result), float(result))

    @tool(READS)
    def describe_numbers(self, numbers: Numbers) -> Description:
        """Compute statistics of numbers: sum, mean, median, extremes, standard deviation, percentiles."""
        ordered = sorted(numbers)
        try:
            deviation = statistics.stdev(ordered) if len(ordered) > 1 else 0.0
            total = math.fsum(ordered)
        except OverflowError as exc:
            raise RefusedError("the numbers are too large to be summed") from exc
        return Description(
            count=len(ordered),
            sum=total,
            mean=total / len(ordered),
            median=statistics.median(ordered),
            minimum=ordered[0],
            maximum=ordered[-1],
            standard_deviation=deviation,
            percentiles={f"p{percent}": _percentile(ordered, percent) for percent in (5, 25, 75, 90, 95, 99)},
        )

    @tool(READS)
    def percentage_of(
        self,
        percent: Annotated[Real, Field(description="Percent, e.g. 15 for 15 %.")],
        number: Annotated[Real, Field(description="The whole.")],
    ) -> float:
        """Compute a percentage of a number, such as a tip, a tax or a discount."""
        return _finite(percent * number / 100)

    @tool(READS)
    def percentage_change(
        self,
        old: Annotated[Real, Field(description="Value before.")],
        new: Annotated[Real, Field(description="Value after.")],
    ) -> float:
        """Compute by how many percent a value grew or shrank."""
        if old == 0:
            raise RefusedError("a change from zero has no percentage")
        return _finite((new - old) / abs(old) * 100)

    @tool(READS)
    def convert_units(
        self,
        value: Annotated[Real, Field(description="The amount to convert.")],
        from_unit: Annotated[str, Field(max_length=10, description="e.g. 'km', 'lb', 'C', 'MiB'; case matters.")],
        to_unit: Annotated[str, Field(max_length=10, description="Unit of the same kind, e.g. 'mi'.")],
    ) -> float:
        """Convert units, such as miles to kilometres: length, mass, time, area, volume, speed, energy, temperature."""
        return _finite(convert(value, from_unit, to_unit))

    @tool(READS)
    def list_units(self) -> dict[str, list[str]]:
        """List the units that convert_units knows, by kind."""
        return units()

    @tool(READS)
    def convert_number_base(
        self,
        number: Annotated[str, Field(min_length=1, max_length=300, description="e.g. '255', 'ff' or '0xff'.")],
        from_base: Annotated[int, Field(ge=2, le=36, description="Base the number is written in.")] = 10,
        to_base: Annotated[int, Field(ge=2, le=36, description="Base of the answer.")] = 16,
    ) -> str:
        """Write a whole number in another base, such as binary, octal or hexadecimal."""
        try:
            value = int(number, from_base)
        except ValueError as exc:
            raise RefusedError(f"{number!r} is not a whole number in base {from_base}") from exc
        digits = ""
        rest = abs(value)
        while rest:
            rest, digit = divmod(rest, to_base)
            digits = _DIGITS[digit] + digits
        return f"{'-' if value < 0 else ''}{digits or '0'}"

    @tool(READS)
    def factorize(
        self, number: Annotated[int, Field(ge=1, le=10**12, description="Whole number from 1 to 10^12.")]
    ) -> Factors:
        """Split a whole number into prime factors and tell whether it is prime."""
        rest, divisor, factors = number, 2, []
        while divisor * divisor <= rest:
            while rest % divisor == 0:
                factors.append(divisor)
                rest //= divisor
            divisor += 1 if divisor == 2 else 2
        if rest > 1:
            factors.append(rest)
        return Factors(number, len(factors) == 1, factors)

    @tool(READS)
    def common_divisors(
        self, numbers: Annotated[list[Whole], Field(min_length=2, max_length=50, description="Whole numbers.")]
    ) -> Divisors:
        """Find the greatest common divisor and the least common multiple of whole numbers."""
        multiple = math.lcm(*numbers)
        if multiple > 2**53:
            raise RefusedError("the least common multiple exceeds 2^53")
        return Divisors(math.gcd(*numbers), multiple)

    @tool(READS)
    def random_integers(
        self,
        low: Annotated[Whole, Field(description="Smallest possible number.")],
        high: Annotated[Whole, Field(description="Largest possible number.")],
        count: Annotated[int, Field(ge=1, le=1000, description="How many numbers.")] = 1,
        seed: Annotated[Whole | None, Field(description="The same seed gives the same numbers.")] = None,
    ) -> list[int]:
        """Draw random whole numbers, such as dice rolls or samples. Not for secrets."""
        if low > high:
            raise RefusedError(f"low ({low}) must not be greater than high ({high})")
        generator = random.Random(seed)
        return [generator.randint(low, high) for _ in range(count)]

    @tool(READS)
    def compound_interest(
        self,
        principal: Money,
        yearly_rate: YearlyRate,
        years: Annotated[float, Field(ge=0, le=200, description="How long the money is invested.")],
        periods_per_year: Annotated[int, Field(ge=1, le=366, description="12 pays interest monthly.")] = 1,
    ) -> Growth:
        """Compute what savings grow to with compound interest."""
        growth = periods_per_year * years * math.log1p(yearly_rate / 100 / periods_per_year)
        if growth > 600:
            raise RefusedError("the amount grows beyond any number that can be written; lower the rate or the years")
        final = principal * math.exp(growth)
        return Growth(round(final, 2), round(final - principal, 2))

    @tool(READS)
    def loan_payment(
        self,
        principal: Money,
        yearly_rate: YearlyRate,
        months: Annotated[int, Field(ge=1, le=1200, description="Number of monthly payments.")],
    ) -> Loan:
        """Compute the monthly payment and the total interest of a loan with equal payments."""
        rate = yearly_rate / 1200
        payment = principal * rate / -math.expm1(-months * math.log1p(rate)) if rate else principal / months
        total = payment * months
        return Loan(round(payment, 2), round(total, 2), round(total - principal, 2))


def _zone(name: str) -> tzinfo:
    if name.upper() in {"UTC", "Z"}:
        return UTC  # needs no time zone data, which slim systems lack
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise RefusedError(f"unknown time zone {name!r}; use a name such as 'Europe/Zurich'") from exc


def _moment(text: str, zone: str) -> datetime:
    """A given UTC offset wins over the zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise RefusedError(f"{text!r} is not an ISO 8601 date or time such as '2026-03-01T14:30'") from exc
    return moment if moment.tzinfo else moment.replace(tzinfo=_zone(zone))


def _in_zone(moment: datetime, zone: tzinfo) -> datetime:
    try:
        return moment.astimezone(zone)
    except OverflowError as exc:
        raise RefusedError(f"{moment.isoformat()} leaves the years 1 to 9999 in {zone}") from exc


def _clock(moment: datetime, zone: str) -> Clock:
    seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return Clock(moment.isoformat(), zone, moment.strftime("%A"), seconds)


def _works(day: date, holidays: set[date]) -> bool:
    return day.weekday() < 5 and day not in holidays


def _percentile(ordered: list[float], percent: int) -> float:
    """Linear interpolation between closest ranks, as spreadsheets do."""
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise RefusedError("the result is too large")
    return number


def build() -> FastMCP[None]:
    """The server; it needs no argument."""
    return server_of(Calc(), "calc", "Calculates exactly: dates, time zones, arithmetic, statistics, units, money.")


if __name__ == "__main__":
    serve(build())
