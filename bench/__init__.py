# SPDX-License-Identifier: Apache-2.0
"""The speed of the hot paths, each against the physical limit of its path. Run it with `dev/bench`."""
