"""Examples of each command, which end its help page."""

EXAMPLES = {
    "demo": (
        "demo --task life",
        "demo --task faults --out runs/faults",
    ),
    "new": (
        "new machines.csv",
        "new plant/ --task regression --out plant.toml",
    ),
    "ask": (
        "ask plant/",
        "ask plant.toml --json",
    ),
    "run": (
        "run plant.toml --references",
        "run plant.toml --method fedsr --rounds 50 --seed 1 --out runs/fedsr",
    ),
    "compare": (
        "compare plant.toml --methods fedavg,scaffold,fedsr --seeds 0,1,2",
        "compare plant.toml --methods fedavg,hierfavg --at seconds=3600",
    ),
    "sweep": (
        "sweep plant.toml --methods fedavg,fedprox --grid work.lr=0.1,0.01",
        "sweep plant.toml --methods fedprox --grid methods.fedprox.mu=0,0.1",
    ),
    "benchmark": (
        "benchmark --list",
        "benchmark --add mine:Method --seeds 0",
    ),
    "price": (
        "price plant.toml --network lte-cat-m2 --methods fedavg,fedsr",
        "price runs/plant --network 5g-edge --out runs/on-5g",
    ),
    "allocate": (
        "allocate rafed-0 --solver search",
        "allocate cell.toml --solver exact --time-limit 60 --svg cell.svg",
    ),
    "draw": (
        "draw plant.toml",
        "draw plant.toml --set method.name=fedsr --svg round.svg",
    ),
    "report": (
        "report runs/plant",
        "report runs/a runs/b --target 0.9 --out both.html",
    ),
    "watch": (
        "watch runs/plant",
        "watch runs/plant --park plant --port 9000",
    ),
    "track": (
        "track runs/plant --to tensorboard",
        "track runs/plant --to csv --out plant.csv",
    ),
    "predict": (
        "predict runs/plant new.csv",
        "predict runs/plant new.csv --device press-4 --csv answers.csv",
    ),
    "export": (
        "export runs/plant",
        "export runs/plant --device press-4 --out press-4.onnx",
    ),
    "park provision": (
        "park provision park.toml --out plant",
        "park provision park.toml --out plant --revoke press-4",
    ),
    "park cloud": (
        "park cloud cloud.toml",
        "park cloud cloud.toml --resume",
    ),
    "park ask": (
        "park ask cloud.toml",
        "park ask plant/cloud/cloud.toml --json",
    ),
    "park edge": (
        "park edge edge-north.toml",
        "park edge factories/north/edge-north.toml",
    ),
    "park device": (
        "park device device-press-4.toml",
        "park device devices/press-4/device-press-4.toml",
    ),
    "park sense": (
        "park sense sensors.toml --check",
        "park sense sensors.toml --into data.sqlite",
    ),
    "park schedule": (
        "park schedule cloud.toml --park plant",
        "park schedule cloud.toml --park plant --dry-run",
    ),
    "park live up": (
        "park live up demo-live",
        "park live up plant.toml --factories 2 --devices 8 --out runs/live",
    ),
    "park live demo": (
        "park live demo",
        "park live demo --out runs/tour",
    ),
    "park live status": (
        "park live status",
        "park live status --park runs/tour --json",
    ),
    "park live measure": (
        "park live measure --out measured.toml",
        "park live measure --park cloud.toml --repeats 30",
    ),
    "park live down": (
        "park live down",
        "park live down --park runs/tour",
    ),
    "park audit": (
        "park audit --park plant",
        "park audit --park plant --json",
    ),
    "model release": (
        "model release runs/plant --park plant --canary press-4",
        "model release 2 --park plant --to north",
    ),
    "model promote": (
        "model promote --park plant",
        "model promote 2 --park plant",
    ),
    "model rollback": (
        "model rollback --park plant",
        "model rollback --park plant --to press-4",
    ),
    "model list": (
        "model list --park plant",
        "model list --park plant --live",
    ),
    "model alarms": (
        "model alarms --park plant --since 24h",
        "model alarms --park plant --follow",
    ),
    "list methods": (
        "list methods",
        "list methods fedsr",
    ),
    "list parts": (
        "list parts",
        "list parts objective",
    ),
    "list models": (
        "list models",
        "list models cnn-small --shape 1,28,28 --classes 10",
    ),
    "list links": (
        "list links",
        "list links lte-cat-m2",
    ),
    "list datasets": (
        "list datasets",
        "list datasets --json",
    ),
    "list experiments": (
        "list experiments",
        "list experiments demo-life",
    ),
    "list tables": (
        "list tables",
        "list tables --json",
    ),
    "datasets get": (
        "datasets get mnist",
        "datasets get skab --root data",
    ),
    "datasets query": (
        "datasets query postgresql://host/db @pumps.sql --out data.parquet",
        "datasets query sqlite:///plant.db @pumps.sql --out data.parquet",
    ),
    "datasets label": (
        "datasets label sensors.csv stops.csv --within 24h --out marked.csv",
        "datasets label sensors.csv stops.csv --remaining --out left.csv",
    ),
    "datasets matrices": (
        "datasets matrices sensors/ --label profile.txt:1 --out valves.npz",
        "datasets matrices PS1.txt FS1.txt --out new.npz",
    ),
    "check method": (
        "check method mine:Method",
        "check method fedsr --set methods.fedsr.laps=2",
    ),
    "reproduce": (
        "reproduce",
        "reproduce fedsr-table2 --scale 0.1 --only mnist/",
    ),
    "bench": (
        "bench simulation --repeats 3",
        "bench methods --model lenet --epochs 1",
    ),
}


def epilog(path: str) -> str:
    """Return the examples of a command, as the end of its help page; \\b keeps the lines as they are."""
    return "\n".join(["\b", "Examples:", *(f"  fedfloor {line}" for line in EXAMPLES[path])])
