"""The export of a park's registry to MLflow's registry of models."""

from __future__ import annotations

from typing import Any

from fedfloor.base.errors import RunError, SettingError
from fedfloor.rollout.registry import MODELS, Registry
from fedfloor.tracking.sinks import defaults, public, tracking_uri

NUMBER = "fedfloor.version"
# aliases of the last released version
IN_USE = "in-use"
CANARY = "canary"


def mirror(registry: Registry) -> tuple[str, list[int]]:
    """Write the versions missing in MLflow, with their ONNX files, and the alias of the version in use.

    The model has the park's name, and its versions have the facts of the journal's entries as tags. The last released
    version is ``in-use`` if its whole target has it, otherwise ``canary``. Changes in MLflow do not reach devices, as
    only the park's journal is authoritative.

    Returns:
        The address of MLflow's registry, without a password, and the written versions.

    Raises:
        SettingError: mlflow is missing.
        RunError: MLflow refuses the request, or its server does not answer.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as absent:
        raise SettingError('mlflow is missing: pip install "fedfloor[tracking]".') from absent
    with defaults():
        uri = tracking_uri()
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        try:
            return public(uri), _written(client, registry)
        except MlflowException as error:
            raise RunError(f"MLflow at {public(uri)}: {error}") from error


def _written(client: Any, registry: Registry) -> list[int]:
    name = registry.park
    known = dict[int, str]()
    if not client.search_registered_models(f"name='{name}'"):
        client.create_registered_model(name, description=f"Models of the fedfloor park {name}")
    for one in client.search_model_versions(f"name='{name}'"):
        known |= {int(one.tags[NUMBER]): one.version} if one.tags.get(NUMBER, "").isdecimal() else {}
    new = [number for number in registry.versions if number not in known]
    experiment = client.get_experiment_by_name(name) if new else None
    place = experiment.experiment_id if experiment else client.create_experiment(name) if new else ""
    for number in new:
        version = registry.versions[number]
        facts = {key: str(value) for key, value in version.run.items() if value is not None}
        tags = {NUMBER: str(number), "fedfloor.network": version.network}
        tags |= {f"fedfloor.{key}": value for key, value in facts.items()}
        run = client.create_run(place, run_name=f"version {number}", tags=tags)
        for sha256, _ in version.files.values():
            registry.data(sha256)  # raises if the file was changed
            client.log_artifact(run.info.run_id, str(registry.place / MODELS / f"{sha256}.onnx"))
        client.set_terminated(run.info.run_id)
        made = client.create_model_version(name, run.info.artifact_uri, run.info.run_id, tags=tags)
        known[number] = made.version
    if registry.waiting is not None:
        number, left = registry.waiting
        client.set_registered_model_alias(name, CANARY if left else IN_USE, known[number])
        if not left:
            client.delete_registered_model_alias(name, CANARY)
    return new
