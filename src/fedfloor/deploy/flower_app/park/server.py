"""Flower's ServerApp: the cloud's loop."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfloor.deploy.flower import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run's configuration names."""
    serve(grid, context)
