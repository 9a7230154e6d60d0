"""The table of the owner's operations says of each what answers it, and what comes back."""

from __future__ import annotations

import inspect

import pytest

from pml_gateway.local.machine import Machine
from pml_gateway.owner import operations
from pml_gateway.owner.operations import OPERATIONS, OfGateway
from pml_gateway.owner.process import ServingProcess


def result_of(name: str) -> str:
    """The type of the result in the table, as written."""
    [constant] = [each for each, value in vars(operations).items() if value is OPERATIONS[name]]
    declared: str = operations.__annotations__[constant]
    return declared.partition("[")[2].removesuffix("]").rpartition(".")[2]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_answered_by_what_its_row_names_with_the_result_that_its_row_names(name: str) -> None:
    operation = OPERATIONS[name]
    if isinstance(operation, OfGateway):
        run = operation.run
        assert next(iter(inspect.signature(run).parameters)) == "context"
    else:
        run = getattr(Machine, name)
        assert hasattr(ServingProcess, name) is not operation.is_shared
    assert run.__name__ == name
    assert run.__annotations__["return"] == result_of(name)
