# SPDX-License-Identifier: Apache-2.0
"""`python -m shoal.cli` is the `shoal` command, for where it is not on the PATH."""

from shoal.cli.main import main

raise SystemExit(main())
