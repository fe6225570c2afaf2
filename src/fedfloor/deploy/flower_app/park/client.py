"""Flower's ClientApp: a thin door to the factory's edge."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfloor.deploy.flower import factory, pass_on

app = ClientApp()
app.query("factory")(factory)


@app.train("walk")
def walk(message: Message, context: Context) -> Message:
    """Pass a frame on to the edge, and its answer back."""
    return pass_on(message, context)
