"""The apps that Flower ships: the cloud's loop, and a way to each factory's edge."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedfloor.deploy import flower

client = ClientApp()  # assignments that Flower looks for in the text
server = ServerApp()

client.query("factory")(flower.factory)
client.train("walk")(flower.pass_on)
server.main()(flower.serve)
