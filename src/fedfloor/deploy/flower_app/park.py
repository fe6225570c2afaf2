"""The two apps that Flower starts: the cloud's loop, and the adapter to each factory's edge."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedfloor.deploy import flower

client = ClientApp()  # Flower searches the text of this file for these assignments
server = ServerApp()

client.query("factory")(flower.factory)
client.train("walk")(flower.pass_on)
server.main()(flower.serve)
