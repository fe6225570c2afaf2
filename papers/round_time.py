"""How long a round of FedGS takes beside one of FedAvg (FedGS, Proposition 4): ``python -m papers.round_time``.

Both train 50 mini-batches on each of 100 devices, ten in each of ten factories, with the paper's network. FedGS meets
at the edges after each step and in the cloud once, FedAvg in the cloud alone. As in the proposition, uploads over an
edge's cell take turns, those to the cloud share one wide-area link, one transmission down serves all devices of a cell
(FedAvg: of the park), and neither computing nor the choice of devices takes time. Unlike there, the model goes from the
cloud to one edge after the other, which counts against FedGS from 62 times on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedfloor import config
from fedfloor.network.profile import NetworkSettings
from fedfloor.runs import forecast
from fedfloor.runs.parks import build_park
from papers import documents

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "results/fedgs-round.md"
RATIOS = (1, 2, 5, 10, 30, 100)
EDGE_BPS = 100e6
FACTORIES = 10
CHOSEN = 10
ITERATIONS = 50
FEDAVG = "methods.fedavg={fraction=0.3333333, work={steps=50}}"  # 100 of the 300 writers


def links(ratio: float, downlink: str) -> NetworkSettings:
    """Return a network whose cells are so many times as fast as the link to the cloud."""
    cell = {"up_bps": EDGE_BPS, "down_bps": EDGE_BPS, "sharing": "serial", "over": "cell", "downlink": downlink}
    far = {**cell, "up_bps": EDGE_BPS / ratio, "down_bps": EDGE_BPS / ratio, "over": "park"}
    return NetworkSettings(route="direct", device_edge=cell, edge_cloud=far, device_cloud=far)


def bound(ratio: float, downlink: str) -> float:
    """Return the largest T for which a round of FedGS takes no longer than one of FedAvg.

    T ≤ (B_e/B_w)·M(L − 1)/(L + 1) with one transmission down, T ≤ (B_e/B_w)·M(L − 1)/L with one for each receiver.

    >>> round(bound(10, "multicast"), 1), bound(10, "unicast")
    (81.8, 90.0)
    """
    transfers = CHOSEN + 1 if downlink == "multicast" else CHOSEN
    return ratio * FACTORIES * (CHOSEN - 1) / transfers


def rows(downlink: str) -> list[list[str]]:
    """Return the seconds of a round of each method by how many times as fast links at the edge are."""
    base = config.read(ROOT / "experiments/fedgs.toml", ["network.profile=5g-edge", FEDAVG])
    park = build_park(base)
    found = []
    for ratio in RATIOS:
        seconds = []
        for method in ("fedgs", "fedavg"):
            what = replace(
                config.read(ROOT / "experiments/fedgs.toml", [f"method.name={method}", FEDAVG]),
                network=links(ratio, downlink),
            )
            (last,) = [one.price for one in forecast.rounds(what, park, 1) if one.number]
            seconds.append(last.seconds)
        mine, theirs = seconds
        times = [f"{one:,.0f}" for one in seconds]
        found.append([f"{ratio}", f"{bound(ratio, downlink):.0f}", *times, f"{mine / theirs:.2f}"])
    return found


def main() -> None:
    """Price and write the page."""
    columns = ["edge, times as fast", "T at most", "FedGS, s", "FedAvg, s", "FedGS / FedAvg"]
    blocks: list[Any] = ["# fedgs-round", " ".join((__doc__ or "").split("\n\n", 1)[1].split())]
    blocks += ["```bash\npython -m papers.round_time\n```"]
    about = f"Edge links of {EDGE_BPS / 1e6:g} Mbit/s, T = {ITERATIONS}"
    blocks += [f"{about}; *T at most*: with which the proposition has FedGS no slower."]
    headings = {"multicast": "One transmission down", "unicast": "A transmission down for each receiver"}
    for downlink, heading in headings.items():
        blocks += [f"## {heading}", {"columns": columns, "rows": rows(downlink)}]
    documents.publish(PAGE, blocks)


if __name__ == "__main__":
    main()
