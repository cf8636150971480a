# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor freshness`: its lines, its JSON, its exit codes."""

from __future__ import annotations

import json


def test_stages_as_text_and_json(run, warehouse):
    ran = run("doctor", "freshness", "-w", warehouse, "shop.orders")
    assert ran.code == 0 and ran.out.startswith("shop.orders: snapshot ")
    assert "commit to batch      at once" in ran.out and "continuous.discovery-interval" in ran.out
    told = json.loads(run("doctor", "freshness", "-w", warehouse, "shop.orders", "-o", "json").out)
    assert told["slo_ms"] is None and told["commit_to_visible"]["discovery_interval_ms"] == 10_000


def test_what_cannot_be_asked_for_is_refused(run, warehouse):
    ran = run("doctor", "freshness", "-w", warehouse, "shop.orders", "--event-time", "nothing")
    assert ran.code == 2 and "has no column 'nothing'" in ran.err
    assert run("doctor", "freshness", "-w", warehouse, "shop.orders", "--slo", "0s").code == 2
    assert run("doctor", "freshness", "-w", warehouse, "shop.orders", "--slo", "soon").code == 2
