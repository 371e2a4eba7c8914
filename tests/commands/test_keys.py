"""`fedbac keys` and the access files of `fedbac broker config`, as a person would type them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import NameOID

from fedbac_edge.cli import cli

ROSTER = """
name = "orchard"
[model]
classes = ["a", "b"]
[gateways]
gw1 = ["gw1", "cam"]
gw2 = []
"""


@pytest.fixture
def place(in_tmp_path: Path) -> Path:
    (in_tmp_path / "federation.toml").write_text(ROSTER)
    return in_tmp_path


def run(runner: CliRunner, line: str, code: int = 0) -> str:
    result = runner.invoke(cli, line.split())
    assert result.exit_code == code, result.output
    return result.output


def common_name(path: Path) -> str:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def test_a_folder_of_keys(runner: CliRunner, place: Path) -> None:
    output = run(runner, "keys init --host broker.local --federation federation.toml --user gw2/late")
    assert "gw2 lists no devices; for each: fedbac keys issue gw2/NAME --dir keys" in output
    assert "gw1 lists" not in output
    names = {str(path.relative_to("keys")): path for path in Path("keys").rglob("*.pem")}
    users = {
        "cloud.pem": "cloud",
        "observer.pem": "observer",
        "gateways/gw1.pem": "gw1",
        "gateways/gw2.pem": "gw2",
        "devices/gw1/gw1.pem": "gw1/gw1",
        "devices/gw1/cam.pem": "gw1/cam",
        "devices/gw2/late.pem": "gw2/late",
    }
    assert set(names) == {"ca.pem", "server.pem", *users}
    assert {name: common_name(names[name]) for name in users} == users
    server = x509.load_pem_x509_certificate(names["server.pem"].read_bytes())
    hosts = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["broker.local", "localhost"]

    before = {name: path.read_bytes() for name, path in names.items()}
    run(runner, "keys issue gw3 gw3/new")
    assert common_name(place / "keys/devices/gw3/new.pem") == "gw3/new"
    run(runner, "keys rotate gw1/cam --days 30")
    run(runner, "keys rotate --broker")
    after = {name: path.read_bytes() for name, path in names.items()}
    assert {name for name in names if before[name] != after[name]} == {"devices/gw1/cam.pem", "server.pem"}
    rotated = x509.load_pem_x509_certificate(after["devices/gw1/cam.pem"])
    assert (rotated.not_valid_after_utc - rotated.not_valid_before_utc).days == 31


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("keys issue gw1", "keys init"),
        ("keys init --host a/b", "host"),
        ("keys init --user cloud/x", "cloud-1"),
        ("keys issue a/b/c", "<gateway>/<device>"),
        ("keys rotate", "--broker"),
        ("keys rotate --broker", "keys init"),
        ("keys rotate gw1 --host x", "--broker"),
        ("keys init --federation nothing.toml", "nothing.toml"),
        ("broker config --out mq", "--federation"),
        ("broker config --user gw1/x", "--out"),
        ("broker config --out mq --federation federation.toml --keys nothing", "keys init"),
        ("broker config --out mq --federation federation.toml --acl-file federation.toml", "written"),
        ("broker run --keys keys", "--federation"),
    ],
)
def test_what_cannot_be(runner: CliRunner, line: str, said: str) -> None:
    assert said in run(runner, line, 2).splitlines()[-1]
    assert not Path("keys").exists()


@pytest.mark.usefixtures("place")
def test_an_authority_is_not_replaced(runner: CliRunner) -> None:
    run(runner, "keys init")
    before = Path("keys/ca.pem").read_bytes()
    assert "lock out" in run(runner, "keys init", 2)
    assert "rotate cloud" in run(runner, "keys issue cloud", 2)
    assert Path("keys/ca.pem").read_bytes() == before


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", ["config --out mq", "run --state mq"])
def test_plain_text_off_the_loopback_needs_to_be_asked_for(runner: CliRunner, command: str) -> None:
    line = f"broker {command} --federation federation.toml --host 192.0.2.1"
    assert "--insecure" in run(runner, line, 1)
    assert not Path("mq/mosquitto.conf").exists()


@pytest.mark.usefixtures("place")
def test_the_brokers_folder(runner: CliRunner) -> None:
    line = "broker config --federation federation.toml --out mq --host 192.0.2.1 --insecure --user gw2/late"
    output = run(runner, line)
    passwords = {path: path.read_text().strip() for path in Path("mq/users").rglob("*") if path.is_file()}
    assert {str(path.relative_to("mq/users")) for path in passwords} == {
        "cloud",
        "observer",
        "gateways/gw1",
        "gateways/gw2",
        "devices/gw1/gw1",
        "devices/gw1/cam",
        "devices/gw2/late",
    }
    assert not any(password in output for password in passwords.values())
    assert str(Path("mq/users").resolve()) in output
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in Path("mq").rglob("*") if path.is_file())
    text = Path("mq/mosquitto.conf").read_text()
    for directive in ("allow_anonymous false", "password_file", "acl_file", "listener 1883 192.0.2.1"):
        assert directive in text
    run(runner, line.removesuffix(" --user gw2/late"))
    assert not Path("mq/users/devices/gw2/late").exists()
    kept = Path("mq/users/devices/gw1/cam")
    assert kept.read_text().strip() == passwords[kept]


@pytest.mark.usefixtures("place")
def test_the_brokers_folder_with_certificates(runner: CliRunner) -> None:
    run(runner, "keys init --host broker.local --federation federation.toml")
    run(runner, "broker config --federation federation.toml --out mq --host 0.0.0.0 --keys keys")
    text = Path("mq/mosquitto.conf").read_text()
    for directive in ("require_certificate true", "use_identity_as_username true", "listener 8883 0.0.0.0"):
        assert directive in text
    assert not Path("mq/users").exists()
    assert not list(Path("mq").glob("ca.key"))
