"""A park's certificate authority: it issues and revokes certificates (X.509; ECDSA P-256).

A certificate's common name is its holder's name, the only identity by which a broker grants rights. The certificates of
devices, and no others, have the organisational unit :data:`DEVICE`.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.deploy.settings import Tls

YEARS = 10  # validity of an authority and of its revocation list; an expired list would block every client
AHEAD = dt.timedelta(hours=1)  # certificates are valid from so long before their issue, for clocks that run slow
Key = ec.EllipticCurvePrivateKey
UNIT = NameOID.ORGANIZATIONAL_UNIT_NAME
DEVICE = "device"  # organisational unit in the certificates of devices


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its certificate and its private key."""

    cert: x509.Certificate
    key: Key

    def pem(self) -> tuple[bytes, bytes]:
        """Return the certificate and the key as PEM."""
        return _certificate_pem(self.cert), _key_pem(self.key)


@dataclass(frozen=True)
class Holder:
    """The holder of a certificate.

    Args:
        name: the common name.
        addresses: host names and IP addresses at which it accepts connections; empty for a client.
        client: whether it also connects to others as a client.
        device: whether it is a device.
    """

    name: str
    addresses: tuple[str, ...] = ()
    client: bool = True
    device: bool = False


def now() -> dt.datetime:
    """Return the time of this machine's clock."""
    return dt.datetime.now(dt.UTC)


def found(park: str, at: dt.datetime) -> Authority:
    """Create a park's authority: a new key and a self-signed certificate, which must not sign further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _x509_name(f"fedfloor {park}")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    built = certificate_builder(name, name, key.public_key(), at, dt.timedelta(days=365 * YEARS))
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(usage, critical=True)
    built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Authority(built.sign(key, hashes.SHA256()), key)


def load(folder: Path) -> Authority:
    """Read an authority's ``ca.crt`` and ``ca.key``.

    Raises:
        SettingError: a file is missing or unreadable, or the key does not match the certificate.
    """
    cert = certificate(folder / "ca.crt")
    key = private_key(folder / "ca.key")
    if cert.public_key() != key.public_key():
        raise SettingError(
            f"{folder}: ca.key is not the key of ca.crt. Put back the pair that was provisioned together."
        )
    return Authority(cert, key)


def issue(by: Authority, holder: Holder, days: int, at: dt.datetime) -> tuple[bytes, bytes]:
    """Return a new certificate and its private key as PEM, valid from ``at`` for ``days``.

    Args:
        by: the authority that signs.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    span = min(dt.timedelta(days=days), by.cert.not_valid_after_utc - at)
    subject = _x509_name(holder.name, device=holder.device)
    built = certificate_builder(subject, by.cert.subject, key.public_key(), at, span)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH] if holder.addresses else []
    uses += [ExtendedKeyUsageOID.CLIENT_AUTH] if holder.client else []
    parent = by.cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    built = built.add_extension(usage, critical=True).add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    built = built.add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(parent), critical=False)
    if holder.addresses:
        names = x509.SubjectAlternativeName([_general_name(one) for one in holder.addresses])
        built = built.add_extension(names, critical=False)
    return _certificate_pem(built.sign(by.key, hashes.SHA256())), _key_pem(key)


def revocations(by: Authority, serials: Iterable[tuple[int, dt.datetime]], at: dt.datetime) -> bytes:
    """Return the certificate revocation list as PEM, valid as long as the authority.

    Args:
        by: the authority that signs.
    """
    listed = x509.CertificateRevocationListBuilder().issuer_name(by.cert.subject).last_update(at - AHEAD)
    listed = listed.next_update(by.cert.not_valid_after_utc)
    for serial, when in serials:
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
        listed = listed.add_revoked_certificate(one)
    return listed.sign(by.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def sign(by: Authority, purpose: str, text: str) -> str:
    """Return an authority's signature of a text (ECDSA with SHA-256) in base64.

    Args:
        by: the authority that signs.
        purpose: signed together with the text, so that a text of one kind is never accepted as another kind.
    """
    return base64.b64encode(by.key.sign(_purposed(purpose, text), ec.ECDSA(hashes.SHA256()))).decode()


def signed(root: x509.Certificate, purpose: str, text: str, signature: str) -> bool:
    """Return whether a signature in base64 is the authority's for this text and purpose."""
    key = root.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        sealed = base64.b64decode(signature, validate=True)
        key.verify(sealed, _purposed(purpose, text), ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature):
        return False
    return True


def _purposed(purpose: str, text: str) -> bytes:
    return f"fedfloor {purpose}\n{text}".encode()


def certificate(path: Path) -> x509.Certificate:
    """Read a certificate.

    Raises:
        SettingError: the file is missing or has another format.
    """
    try:
        return x509.load_pem_x509_certificate(read_bytes(path, "certificate"))
    except ValueError as error:
        raise SettingError(
            f"{path} is not a certificate in PEM format: copy it again from the folder where it was provisioned.",
            key="not-a-certificate",
        ) from error


def private_key(path: Path) -> Key:
    """Read a private key.

    Raises:
        SettingError: the file is missing or has another format.
    """
    try:
        key = serialization.load_pem_private_key(read_bytes(path, "private key"), None)
    except (ValueError, TypeError) as error:
        raise SettingError(f"{path} is not a private key in PEM format: copy it again.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{path}: its type of key is not ECDSA, the type that fedfloor park provision writes.")
    return key


def addresses(cert: x509.Certificate) -> tuple[str, ...]:
    """Return the host names and IP addresses in a certificate."""
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(one.value) for one in names)


def common_name(cert: x509.Certificate) -> str:
    """Return the common name of a certificate's holder."""
    return str(cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def of_device(cert: x509.Certificate) -> bool:
    """Return whether a certificate is that of a device."""
    return [str(unit.value) for unit in cert.subject.get_attributes_for_oid(UNIT)] == [DEVICE]


def fault(path: Path, cert: x509.Certificate, root: x509.Certificate, name: str, at: dt.datetime) -> str | None:
    """Return a sentence on a certificate's fault and its remedy; None if the certificate is valid.

    Args:
        root: the authority's certificate.
        at: the time of this machine's clock.
    """
    whose = f"{path}: the certificate of '{common_name(cert)}'"
    clock = f"This machine's clock shows {_day(at)}"
    if at > cert.not_valid_after_utc:
        until = f"{whose} expired on {_day(cert.not_valid_after_utc)}. {clock}"
        return f"{until}: if that is right, run fedfloor park provision again and copy the new one; else set the clock."
    if at < cert.not_valid_before_utc:
        return f"{whose} is valid only from {_day(cert.not_valid_before_utc)}. {clock}: set the clock if it is slow."
    try:
        cert.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return f"{whose} was not signed by {common_name(root)}: copy the certificate and ca.crt from the same park."
    if common_name(cert) != name:
        return f"{whose} must be that of '{name}': files of two machines were mixed up."
    return None


def check(tls: Tls, name: str, at: dt.datetime | None = None) -> None:
    """Check a process's certificate, key and authority before it connects.

    Args:
        name: the process's name.
        at: the time; default: this machine's clock.

    Raises:
        SettingError: a file is missing, expired, or belongs to another park or machine; the message names the remedy.
    """
    cert = certificate(tls.cert)
    root = certificate(tls.ca)
    moment = at or now()
    wrong = fault(tls.ca, root, root, common_name(root), moment) or fault(tls.cert, cert, root, name, moment)
    if wrong is None and cert.public_key() != private_key(tls.key).public_key():
        wrong = f"{tls.key} is not the key of {tls.cert}: copy both again."
    if wrong is not None:
        raise SettingError(wrong, key="wrong-certificate")


def refusal(error: str, where: str, own: Path | None = None) -> str:
    """Return the error message for a failed TLS connection.

    Args:
        own: the file of this process's certificate.

    >>> print(refusal("[SSL] tlsv13 alert certificate required", "north:8883"))
    north:8883 requires a certificate and received none: set ca, cert and key in [tls].
    """
    alert = error.lower()
    alerts = {
        "certificate required": "requires a certificate and received none: set ca, cert and key in [tls].",
        "certificate revoked": "refuses this certificate: it was revoked.",
        "unknown ca": "refuses this certificate: another authority signed it. Copy the files of this park.",
        "alert certificate expired": "refuses this certificate: it has expired, or that machine's clock is fast.",
        "not yet valid": f"shows a certificate not valid yet: this machine's clock shows {_day(now())}: set it.",
        "has expired": f"shows an expired certificate: this machine's clock shows {_day(now())}. Provision it again.",
        "mismatch": "shows a certificate for another address: set this address in PARK.toml and provision again.",
        "verify failed": "shows a certificate that ca.crt did not sign: another park's, or an attacker's.",
    }
    why = next((words for sign, words in alerts.items() if sign in alert), f"made no secure connection: {error}.")
    return f"{where} {why}{'' if own is None else described(own)}"


def described(path: Path) -> str:
    """Return a sentence with a certificate's holder and validity and this machine's time."""
    try:
        cert = certificate(path)
    except SettingError as error:
        return f" {error}"
    span = f"from {_day(cert.not_valid_before_utc)} until {_day(cert.not_valid_after_utc)}"
    return (
        f" {path} is the certificate of '{common_name(cert)}', valid {span}; this machine's clock shows {_day(now())}."
    )


def read_bytes(path: Path, what: str) -> bytes:
    """Return the bytes of a provisioned file; raise SettingError if it cannot be read."""
    try:
        return regular.read_bytes(path)
    except OSError as error:
        raise SettingError(
            f"{what} {path}: {error.strerror or error}. fedfloor park provision PARK.toml writes it.",
            key="unreadable-file",
        ) from error


def _day(when: dt.datetime) -> str:
    return when.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _x509_name(common: str, *, device: bool = False) -> x509.Name:
    unit = [x509.NameAttribute(UNIT, DEVICE)] if device else []
    return x509.Name([*unit, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, at: dt.datetime, span: dt.timedelta
) -> x509.CertificateBuilder:
    """Return a certificate builder with a validity of ``span``, which begins shortly before ``at``."""
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    built = built.serial_number(x509.random_serial_number())
    return built.not_valid_before(at - AHEAD).not_valid_after(at + span)


def _certificate_pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: Key) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
