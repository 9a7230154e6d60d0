"""An MCP server for what models are bad at: time zones, dates, arithmetic, statistics, units, loans."""

from __future__ import annotations

import ast
import math
import operator
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

from fastmcp.server import FastMCP
from pydantic import Field

from pml_gateway.demo.servers.launch import QUIET, READS, add_tools

Zone = Annotated[str, Field(max_length=60, description="IANA time zone such as 'Europe/Zurich', or 'UTC'.")]
Moment = Annotated[str, Field(max_length=60, description="ISO 8601 date and time, e.g. '2026-03-01T14:30'.")]
Added = Annotated[int, Field(description="So many to add; may be negative.")]
Day = Annotated[date, Field(description="ISO date, e.g. '2026-03-01'.")]
WorkDays = Annotated[int, Field(ge=-10_000, le=10_000, description="Working days to add; may be negative.")]
Holidays = Annotated[list[date] | None, Field(max_length=1000, description="Days that do not count as working days.")]
Expression = Annotated[str, Field(min_length=1, max_length=500, description="e.g. '2*(3+4)^2'.")]
Real = Annotated[float, Field(allow_inf_nan=False)]
Numbers = Annotated[list[Real], Field(min_length=1, max_length=10_000, description="The numbers.")]
Percent = Annotated[Real, Field(description="Percent, e.g. 15 for 15 %.")]
Amount = Annotated[Real, Field(description="The amount, as a number.")]
FromUnit = Annotated[str, Field(max_length=10, description="e.g. 'km', 'lb', 'C', 'MiB'; case matters.")]
ToUnit = Annotated[str, Field(max_length=10, description="Unit of the same kind, e.g. 'mi'.")]
Whole = Annotated[int, Field(ge=1, le=10**12, description="Whole number from 1 to 10^12.")]
Bound = Annotated[int, Field(ge=-(2**53), le=2**53, description="Smallest or largest possible number.")]
Count = Annotated[int, Field(ge=1, le=1000, description="How many numbers.")]
Seed = Annotated[int | None, Field(description="The same seed gives the same numbers.")]
Money = Annotated[Real, Field(ge=0, le=1e15, description="Amount of money.")]
YearlyRate = Annotated[Real, Field(ge=0, le=1000, description="Interest a year in percent, e.g. 4.5.")]
Months = Annotated[int, Field(ge=1, le=1200, description="Number of monthly payments.")]

UNITS = {
    "length": {"mm": 1e-3, "cm": 1e-2, "m": 1.0, "km": 1e3, "in": 0.0254, "ft": 0.3048, "yd": 0.9144, "mi": 1609.344},
    "mass": {"mg": 1e-6, "g": 1e-3, "kg": 1.0, "t": 1e3, "oz": 0.028349523125, "lb": 0.45359237, "st": 6.35029318},
    "time": {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "wk": 604800.0},
    "area": {"cm2": 1e-4, "m2": 1.0, "ha": 1e4, "km2": 1e6, "sqft": 0.09290304, "acre": 4046.8564224},
    "volume": {"ml": 1e-6, "cl": 1e-5, "l": 1e-3, "m3": 1.0, "cup": 2.365882365e-4, "gal": 3.785411784e-3},
    "speed": {"m/s": 1.0, "km/h": 1 / 3.6, "mph": 0.44704, "kn": 1852 / 3600},
    "energy": {"J": 1.0, "kJ": 1e3, "cal": 4.184, "kcal": 4184.0, "Wh": 3600.0, "kWh": 3.6e6},
    "temperature": {"K": 1.0, "C": 1.0, "F": 5 / 9},
    "data": {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
}
ZEROS = {"C": 273.15, "F": 459.67 * 5 / 9}  # kelvin

OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
} | {ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: lambda base, power: _power(base, power)}
CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
OF_MATH = "acos asin atan ceil cos degrees exp floor hypot log log10 log2 radians sin sqrt tan"
FUNCTIONS: Mapping[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in OF_MATH.split()},
    **{"abs": abs, "max": max, "min": min},
    # Rounding a whole number to -10**9 digits would take forever.
    "round": lambda number, digits=None: round(float(number), digits),
}


@dataclass(frozen=True, slots=True)
class Clock:
    time: str
    weekday: str


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
class Factors:
    prime: bool
    factors: list[int]


def current_time(zone: Zone = "UTC") -> Clock:
    """Tell the current date, time and weekday in a time zone."""
    return _clock(datetime.now(UTC), zone)


def convert_timezone(moment: Moment, from_zone: Zone, to_zone: Zone) -> Clock:
    """Convert a date and time from one time zone to another, with daylight saving time."""
    return _clock(_moment(moment, from_zone), to_zone)


def date_difference(start: Moment, end: Moment, zone: Zone = "UTC") -> Span:
    """Count the days and hours between two dates or times: how long it is since or until a date, an age.

    Negative if the end comes first.
    """
    span = _moment(end, zone).astimezone(UTC) - _moment(start, zone).astimezone(UTC)
    return Span(span.days, span.total_seconds(), str(span))


def add_duration(moment: Moment, days: Added = 0, hours: Added = 0, minutes: Added = 0, zone: Zone = "UTC") -> Clock:
    """Find the date and time some days, hours or minutes after another. Days keep the clock time; hours elapse."""
    shifted = (_moment(moment, zone) + timedelta(days=days)).astimezone(UTC)
    return _clock(shifted + timedelta(hours=hours, minutes=minutes), zone)


def count_business_days(start: Day, end: Day, holidays: Holidays = None) -> int:
    """Count the working days (Monday to Friday) from a date up to, not including, another date."""
    days = {start + timedelta(days=number) for number in range((end - start).days)}
    return sum(day.weekday() < 5 for day in days.difference(holidays or []))


def add_business_days(start: Day, days: WorkDays, holidays: Holidays = None) -> date:
    """Find the date a number of working days (Monday to Friday) after or before a date."""
    day, left = start, abs(days)
    while left:
        day += timedelta(days=1 if days > 0 else -1)
        left -= day.weekday() < 5 and day not in (holidays or [])
    return day


def evaluate_expression(expression: Expression) -> Evaluation:
    """Calculate an arithmetic expression: + - * / // % ** and functions such as sqrt, log, sin, round, max."""
    try:
        result = _value(ast.parse(expression.strip().replace("^", "**"), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError, ValueError, ArithmeticError) as exc:
        raise ValueError(f"cannot compute {expression!r}: {exc}") from exc
    return Evaluation(str(result), float(result))


def describe_numbers(numbers: Numbers) -> dict[str, float]:
    """Compute statistics of numbers: sum, mean, median, extremes, standard deviation, percentiles."""
    several = numbers * 2 if len(numbers) == 1 else numbers
    cuts = statistics.quantiles(several, n=100, method="inclusive")
    described = {"count": len(numbers), "sum": math.fsum(numbers), "mean": statistics.fmean(numbers)}
    described |= {"median": statistics.median(numbers), "minimum": min(numbers), "maximum": max(numbers)}
    described |= {f"p{percent}": cuts[percent - 1] for percent in (5, 25, 75, 90, 95, 99)}
    described["standard_deviation"] = statistics.stdev(several)
    return {name: _finite(value) for name, value in described.items()}


def percentage_of(percent: Percent, number: Amount) -> float:
    """Compute a percentage of a number, such as a tip, a tax or a discount."""
    return _finite(percent * number / 100)


def percentage_change(old: Amount, new: Amount) -> float:
    """Compute by how many percent a value grew or shrank."""
    return _finite((new - old) / abs(old) * 100)


def convert_units(value: Amount, from_unit: FromUnit, to_unit: ToUnit) -> float:
    """Convert units, such as miles to kilometres: length, mass, time, area, volume, speed, energy, temperature."""
    for factors in UNITS.values():
        if from_unit in factors and to_unit in factors:
            base = value * factors[from_unit] + ZEROS.get(from_unit, 0.0)
            return _finite((base - ZEROS.get(to_unit, 0.0)) / factors[to_unit])
    known = "; ".join(f"{kind}: {' '.join(factors)}" for kind, factors in UNITS.items())
    raise ValueError(f"cannot convert {from_unit!r} to {to_unit!r}; known are {known}")


def factorize(number: Whole) -> Factors:
    """Split a whole number into prime factors and tell whether it is prime."""
    rest, divisor, factors = number, 2, []
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            factors.append(divisor)
            rest //= divisor
        divisor += 1
    factors += [rest] if rest > 1 else []
    return Factors(len(factors) == 1, factors)


def random_integers(low: Bound, high: Bound, count: Count = 1, seed: Seed = None) -> list[int]:
    """Draw random whole numbers, such as dice rolls or samples. Not for secrets."""
    generator = random.Random(seed)
    return [generator.randint(low, high) for _ in range(count)]


def loan_payment(principal: Money, yearly_rate: YearlyRate, months: Months) -> dict[str, float]:
    """Compute the monthly payment and the total interest of a loan with equal payments."""
    rate = yearly_rate / 1200
    payment = principal * rate / -math.expm1(-months * math.log1p(rate)) if rate else principal / months
    return {"monthly_payment": round(payment, 2), "total_interest": round(payment * months - principal, 2)}


def _moment(text: str, zone: str) -> datetime:
    """Parse a date and time; a given UTC offset takes precedence over the zone."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC if zone == "UTC" else ZoneInfo(zone))


def _clock(moment: datetime, zone: str) -> Clock:
    # UTC needs no time zone data, which slim systems lack.
    local = moment.astimezone(UTC if zone == "UTC" else ZoneInfo(zone))
    return Clock(local.isoformat(), local.strftime("%A"))


def _value(node: ast.expr) -> float:
    """Compute a syntax tree of arithmetic, running no code; whole numbers stay exact."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _finite(value)
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in OPERATORS:
            return _finite(OPERATORS[type(symbol)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return _finite(FUNCTIONS[name](*map(_value, arguments)))
    raise ValueError(f"not arithmetic; known are + - * / // % ** {' '.join([*CONSTANTS, *FUNCTIONS])}")


def _power(base: float, exponent: float) -> float:
    math.pow(base, exponent)  # refuses at once what is too large, or is not a real number
    result: float = base**exponent
    return result


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("the result is too large")
    return number


def build() -> FastMCP[None]:
    """Build the server, which needs no argument."""
    server = FastMCP[None]("calc", "Calculates exactly: dates, time zones, arithmetic, statistics, units, money.")
    add_tools(server, READS, current_time, convert_timezone, date_difference, add_duration)
    add_tools(server, READS, count_business_days, add_business_days, evaluate_expression, describe_numbers)
    add_tools(server, READS, percentage_of, percentage_change, convert_units, factorize, random_integers, loan_payment)
    return server


if __name__ == "__main__":
    build().run(**QUIET)
