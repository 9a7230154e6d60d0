"""All meta-tools, in the order in which they are listed."""

from __future__ import annotations

from pml_gateway.exposure.meta_tool import MetaTools
from pml_gateway.meta.call_tool import CALL_TOOL, CALL_TOOLS_BY_EFFECT
from pml_gateway.meta.gateway_info import GATEWAY_INFO
from pml_gateway.meta.read_result import READ_RESULT
from pml_gateway.meta.search_tools import SEARCH_TOOLS
from pml_gateway.meta.tool_schema import TOOL_SCHEMA
from pml_gateway.meta.workflows import CALL_BATCH, EXECUTE_WORKFLOW

ALL_META_TOOLS = MetaTools(
    SEARCH_TOOLS,
    TOOL_SCHEMA,
    CALL_TOOL,
    CALL_BATCH,
    EXECUTE_WORKFLOW,
    READ_RESULT,
    *CALL_TOOLS_BY_EFFECT,
    GATEWAY_INFO,
)
