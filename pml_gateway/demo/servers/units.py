"""Converts between units of one dimension: a factor to the base unit, and an offset for temperatures."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pml_gateway.demo.servers.launch import RefusedError

DIMENSIONS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "length": {
            "nm": 1e-9,
            "um": 1e-6,
            "mm": 1e-3,
            "cm": 1e-2,
            "m": 1.0,
            "km": 1e3,
            "in": 0.0254,
            "ft": 0.3048,
            "yd": 0.9144,
            "mi": 1609.344,
            "nmi": 1852.0,
        },
        "mass": {"mg": 1e-6, "g": 1e-3, "kg": 1.0, "t": 1e3, "oz": 0.028349523125, "lb": 0.45359237, "st": 6.35029318},
        "time": {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "wk": 604800.0},
        "area": {
            "cm2": 1e-4,
            "m2": 1.0,
            "ha": 1e4,
            "km2": 1e6,
            "sqft": 0.09290304,
            "acre": 4046.8564224,
            "sqmi": 2589988.110336,
        },
        "volume": {
            "ml": 1e-6,
            "cl": 1e-5,
            "l": 1e-3,
            "m3": 1.0,
            "tsp": 4.92892159375e-6,
            "tbsp": 1.478676478125e-5,
            "cup": 2.365882365e-4,
            "pt": 4.73176473e-4,
            "gal": 3.785411784e-3,
        },
        "speed": {"m/s": 1.0, "km/h": 1 / 3.6, "mph": 0.44704, "kn": 1852 / 3600},
        "pressure": {"Pa": 1.0, "hPa": 100.0, "kPa": 1e3, "bar": 1e5, "atm": 101325.0, "psi": 6894.757293168},
        "energy": {"J": 1.0, "kJ": 1e3, "cal": 4.184, "kcal": 4184.0, "Wh": 3600.0, "kWh": 3.6e6},
        "data": {
            "bit": 0.125,
            "B": 1.0,
            "kB": 1e3,
            "MB": 1e6,
            "GB": 1e9,
            "TB": 1e12,
            "KiB": 1024.0,
            "MiB": 1024.0**2,
            "GiB": 1024.0**3,
            "TiB": 1024.0**4,
        },
        "angle": {"rad": 1.0, "deg": 0.017453292519943295, "turn": 6.283185307179586},
    }
)

_KELVIN: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"K": (1.0, 0.0), "C": (1.0, 273.15), "F": (5 / 9, 459.67 * 5 / 9)}
)


def units() -> dict[str, list[str]]:
    """Every dimension with its units."""
    return {name: list(factors) for name, factors in DIMENSIONS.items()} | {"temperature": list(_KELVIN)}


def convert(value: float, unit: str, target: str) -> float:
    """`value` of `unit` expressed in `target`, which must measure the same thing."""
    if unit in _KELVIN and target in _KELVIN:
        (factor, offset), (target_factor, target_offset) = _KELVIN[unit], _KELVIN[target]
        kelvin = value * factor + offset
        if kelvin < -1e-9:
            raise RefusedError(f"{value} {unit} is below absolute zero")
        return (kelvin - target_offset) / target_factor
    for factors in DIMENSIONS.values():
        if unit in factors and target in factors:
            return value * factors[unit] / factors[target]
    known = units()
    owners = {name: next((kind for kind, names in known.items() if name in names), None) for name in (unit, target)}
    unknown = [name for name, kind in owners.items() if kind is None]
    if unknown:
        raise RefusedError(f"unknown unit {unknown[0]!r}; list_units shows all, and case matters")
    raise RefusedError(f"cannot convert {owners[unit]} ({unit}) to {owners[target]} ({target})")
