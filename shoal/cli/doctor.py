# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor`: every verb of it, in the order of the help."""

from __future__ import annotations

from shoal.cli.doctor_check import CHECK_COMMANDS
from shoal.cli.doctor_fix import FIX_COMMANDS
from shoal.cli.doctor_fleet import FLEET_COMMANDS
from shoal.cli.doctor_freshness import FRESHNESS
from shoal.cli.doctor_history import HISTORY_COMMANDS
from shoal.cli.doctor_lint import LINT
from shoal.cli.doctor_timeline import TIMELINE

COMMANDS = (*CHECK_COMMANDS, *FIX_COMMANDS, *FLEET_COMMANDS, *HISTORY_COMMANDS, LINT, FRESHNESS, TIMELINE)
