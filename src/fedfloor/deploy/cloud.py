"""The cloud of a park of real machines: the loop of :mod:`fedfloor.runs`, whose branches the edges carry out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedfloor.base.errors import SettingError
from fedfloor.base.names import Names
from fedfloor.config import read as read_experiment
from fedfloor.deploy import sizes
from fedfloor.deploy.cloud_executor import CloudExecutor
from fedfloor.deploy.device import foreign_requests
from fedfloor.deploy.names import table
from fedfloor.deploy.settings import CloudSettings
from fedfloor.deploy.uplink import Downlink, Edges
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import loop, privacy
from fedfloor.runs.asking import Asked, check
from fedfloor.runs.asking import asks as is_asking
from fedfloor.runs.folder import identify, identity, new_identity, owned
from fedfloor.runs.launch import ignore
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits, Orders, interrupts
from fedfloor.runs.parks import build_park, warn_of_gaps
from fedfloor.runs.prepare import check_place, prepare
from fedfloor.runs.results import noted


def machines(settings: CloudSettings, factories: int) -> Names:
    """Return the names of a park's machines by the cloud's settings: of devices, and of ``factories`` edges."""
    edges = {edge.factory: edge.name for edge in settings.edges}
    devices = {device.device: device.name for edge in settings.edges for device in edge.devices}
    return Names(devices, tuple(edges.get(m, "") for m in range(factories)))


def asked(settings: CloudSettings, edges: Edges) -> Asked:
    """Return what the devices of a park state of their rows, and what does not fit together."""
    experiment = read_experiment(Path(settings.experiment), [])
    sites = CloudExecutor(settings, edges, [], table(experiment), experiment.deploy).sites()
    return Asked.of(sites, experiment.data)


def attached(
    settings: CloudSettings, edges: Edges, *, resume: bool = False, asks: bool = False, name: str = ""
) -> tuple[Experiment, Park, CloudExecutor]:
    """Return a cloud's experiment, the park of its devices, and the executor that is connected to them.

    Args:
        resume: whether a run goes on.
        asks: whether devices are asked before, as ``[data] agree`` says.
        name: the name by which machines know the run; default: that of its folder.
    """
    experiment = read_experiment(Path(settings.experiment), [])
    method = experiment.configured
    away = settings.samples == "devices"
    names = table(experiment)
    park = None if away else build_park(experiment)
    factory_of = [] if park is None else park.factory_of.tolist()
    crosses = bool(foreign_requests(experiment, method))
    live = CloudExecutor(settings, edges, factory_of, names, experiment.deploy, crosses)
    live.edges.run = name or live.edges.run
    if asks and is_asking(experiment):
        check(Asked.of(live.sites(), experiment.data), experiment)
    park = live.gather(experiment, method.parts.travel or "", resume=resume) if park is None else park
    return experiment, replace(park, machines=machines(settings, park.factories)), live


def run(
    settings: CloudSettings, edges: Edges | None = None, *, resume: bool = False, limits: Limits | None = None,
    report: Callable[[Line], None] = ignore, interrupted: Callable[[], bool] | None = None,
) -> str:  # fmt: skip
    """Run an experiment on real machines; return the reason of its end, as
    :func:`fedfloor.runs.loop.execute` does.

    Args:
        settings: settings of the cloud.
        edges: the connection to the edges; default: over the cloud's broker.
        interrupted: returns whether the run is to stop; default: Ctrl-C.
    """
    orders = Orders(settings.out, resume=resume, limits=limits or Limits())
    check_place(orders, live=True)  # before edges and devices are waited for
    if edges is None:
        if settings.transport == "flower":
            app = f"flwr run {Path(__file__).parent / 'flower_app'} SUPERLINK --run-config 'settings=\"FILE\"'"
            raise SettingError(f"transport = 'flower': Flower starts the loop: {app}.")
        with Downlink(settings) as link:
            return run(settings, link, resume=resume, limits=limits, report=report, interrupted=interrupted)
    name = identity(orders.out) if resume else new_identity(orders.out)
    experiment, park, live = attached(settings, edges, resume=resume, asks=not resume, name=name)
    live.repeats = resume and privacy.by_visits(experiment.configured)
    sizes.check(experiment, park, settings.message_mb)
    with owned(orders.out), noted(orders.out), interrupts() as asked:
        prepare(experiment, orders, park, live=True)
        if not resume:
            identify(orders.out, name)
        live.keep_left()
        warn_of_gaps(park)
        return loop.execute(experiment, orders, Alone(), park, report, interrupted or asked, live)
